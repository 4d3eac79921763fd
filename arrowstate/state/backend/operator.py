"""The operator state of one subtask, and how a restore shares out that of all old subtasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import overload

import pyarrow as pa

from arrowstate.errors import InvalidInputError, StateNotFoundError
from arrowstate.files.operator import FrozenOperatorState, read_part
from arrowstate.files.reading import find_operator
from arrowstate.files.subtasks import whole_operator
from arrowstate.schema.evolution import names_fields
from arrowstate.schema.operator_state import (
    BroadcastStateDescriptor,
    OperatorListStateDescriptor,
    OperatorStateDescriptor,
    check_same_operator_state,
    converted,
    operator_descriptor_of,
)
from arrowstate.state.backend.broadcast import restored_broadcast
from arrowstate.state.backend.names import check_new_name
from arrowstate.state.operator_list import BroadcastState, OperatorListState
from arrowstate.state.shown import Shown
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, OperatorStateDocument
from arrowstate_formats.integers import check_integer
from arrowstate_formats.key_groups import MAX_PARALLELISM


class OperatorStateBackend(Shown):
    """The operator state of one subtask: lists and broadcast maps that belong to no key.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.OperatorStateBackend()
    >>> offsets = backend.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64()))
    >>> offsets.add_all([3, 1])
    >>> store = arrowstate.open_store("memory://operator-state-example", create=True)
    >>> with store.writer() as writer:
    ...     snapshot = writer.checkpoint({}, operator_states={"source": [backend]})
    >>> restored = snapshot.restore_operator_state("source", parallelism=2, subtask=1)
    >>> restored.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).get()
    [1]
    """

    _plumbing = frozenset({"existing", "hold", "restored_bytes", "states", "take_up", "was_stored"})

    def __init__(self) -> None:
        self._states: dict[str, OperatorListState | BroadcastState] = {}
        self._untouched: set[str] = set()
        "Restored states that no descriptor has taken up."
        self._stored: list[str] = []
        "The states that were restored."
        self.was_stored = False
        "Whether it was restored, or frozen for a checkpoint."
        self.restored_bytes = 0
        "The size of what it was restored from."

    def __repr__(self) -> str:
        return f"<OperatorStateBackend, states: {', '.join(self._states) or 'none'}>"

    @property
    def state_names(self) -> tuple[str, ...]:
        """The states it holds, restored ones that nobody has asked for included."""
        return tuple(self._states)

    @overload
    def state(self, descriptor: OperatorListStateDescriptor) -> OperatorListState: ...
    @overload
    def state(self, descriptor: BroadcastStateDescriptor) -> BroadcastState: ...
    def state(self, descriptor: OperatorStateDescriptor) -> OperatorListState | BroadcastState:
        """Return the state with this descriptor, restored or new.

        The first descriptor that a restored state is asked for with may have another type, if what is stored can
        follow (see `SchemaEvolution`).

        Raises
        ------
        IncompatibleStateError
            If a state of this name has another kind, mode or type.
        InvalidInputError
            If the name differs from another state's only in case.
        """
        if not isinstance(descriptor, OperatorStateDescriptor):
            raise InvalidInputError(f"expected a descriptor of operator state, got {type(descriptor).__name__}")
        have = self._states.get(descriptor.name)
        changes = descriptor.evolution is not None or (have is not None and have.descriptor != descriptor)
        if have is not None and descriptor.name in self._untouched and changes:
            part = converted(have.descriptor, descriptor, have.freeze())
            have = self._add(descriptor)
            have.take_up(part)
        if have is not None:
            self._untouched.discard(descriptor.name)
            check_same_operator_state(have.descriptor, descriptor)
            return have
        check_new_name(descriptor.name, self._states, self._untouched)
        self._check_evolution(descriptor)
        return self._add(descriptor)

    def _check_evolution(self, descriptor: OperatorStateDescriptor) -> None:
        """Refuse a new state that says how stored values become its own: it would start empty beside them."""
        if self._stored and names_fields(descriptor.evolution):
            raise InvalidInputError(
                f"no stored operator state is named {descriptor.name!r}, so its evolution has no values to apply to; "
                f"stored are {', '.join(map(repr, self._stored))}. For a new state leave it out"
            )

    def _add(self, descriptor: OperatorStateDescriptor) -> OperatorListState | BroadcastState:
        state: OperatorListState | BroadcastState
        if isinstance(descriptor, BroadcastStateDescriptor):
            state = BroadcastState(descriptor)
        else:
            state = OperatorListState(descriptor)
        self._states[descriptor.name] = state
        return state

    @property
    def states(self) -> tuple[OperatorListState | BroadcastState, ...]:
        """The states it holds."""
        return tuple(self._states.values())

    def take_up(self, descriptor: OperatorStateDescriptor, parts: Iterable[pa.RecordBatch]) -> None:
        """Hold a restored state until an operator asks for it; untouched, it is part of the next checkpoint."""
        state = self._add(descriptor)
        for part in parts:
            state.take_up(part)
        self._restored(descriptor.name)

    def hold(self, state: BroadcastState) -> None:
        """Hold a broadcast state that was restored as `take_up` does."""
        self._states[state.descriptor.name] = state
        self._restored(state.descriptor.name)

    def _restored(self, name: str) -> None:
        self._untouched.add(name)
        self._stored.append(name)

    def existing(self, name: str) -> OperatorListState | BroadcastState:
        """Return a state it holds, declared as it is.

        Raises
        ------
        StateNotFoundError
            If there is none of this name; the message lists the existing ones.
        """
        if name not in self._states:
            raise StateNotFoundError(name, self._states)
        return self._states[name]

    def freeze(self) -> tuple[FrozenOperatorState, ...]:
        """Return all states as they are now; later writes do not change the result."""
        return tuple(FrozenOperatorState(state.descriptor, state.freeze()) for state in self._states.values())


def split_pieces(totals: Sequence[int], parallelism: int, subtask: int) -> list[tuple[int, int]]:
    """Return for each state which of its elements, all old subtasks in order, a subtask gets: first, one past the last.

    Each subtask gets `total // parallelism` elements of a state, and the first `total % parallelism` in turn one more;
    the turn goes on from one state to the next.
    """
    turn = 0
    out = []
    for total in totals:
        size, extra = divmod(total, parallelism)
        place = (subtask - turn) % parallelism
        first = place * size + min(place, extra)
        out.append((first, first + size + (place < extra)))
        turn = (turn + extra) % parallelism
    return out


def restore_operator_backend(
    storage: Storage,
    entry: LogEntryDocument,
    uid: str,
    *,
    parallelism: int = 1,
    subtask: int = 0,
    without: Collection[str] = (),
) -> OperatorStateBackend:
    """Return the operator state of one subtask of a checkpoint, at any parallelism; `without` states of these names."""
    parallelism = check_integer("parallelism", parallelism, 1, MAX_PARALLELISM)
    subtask = check_integer("subtask", subtask, 0, parallelism - 1)
    operator = whole_operator(storage, find_operator(entry, uid))
    backend = OperatorStateBackend()
    backend.was_stored = True
    states = [state for state in operator.operator_states if state.name not in without]
    lists = [state for state in states if state.kind == "list"]
    totals = [sum(part.rows for part in state.parts) for state in lists]
    pieces = dict(zip((state.name for state in lists), split_pieces(totals, parallelism, subtask), strict=True))
    for document in states:
        if document.kind == "broadcast":
            number = subtask % len(document.parts)
            backend.restored_bytes += document.parts[number].bytes
            backend.hold(restored_broadcast(storage, document, number))
            continue
        wanted = _wanted(document, pieces.get(document.name), parallelism, subtask)
        backend.restored_bytes += sum(document.parts[number].bytes for number, _, _ in wanted)
        parts = (read_part(storage, document, number).slice(first, last - first) for number, first, last in wanted)
        backend.take_up(operator_descriptor_of(document), parts)
    return backend


def _wanted(
    document: OperatorStateDocument, piece: tuple[int, int] | None, parallelism: int, subtask: int
) -> list[tuple[int, int, int]]:
    """Return (number of the part, first row, one past the last) of what a subtask gets of a state."""
    rows = [part.rows for part in document.parts]
    if document.kind == "union":
        return [(number, 0, count) for number, count in enumerate(rows) if count]
    if len(rows) == parallelism:
        return [(subtask, 0, rows[subtask])] if rows[subtask] else []
    assert piece is not None
    out = []
    start = 0
    for number, count in enumerate(rows):
        first, last = max(piece[0], start), min(piece[1], start + count)
        if first < last:
            out.append((number, first - start, last - start))
        start += count
    return out
