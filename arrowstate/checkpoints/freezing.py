"""What a checkpoint consists of at the moment it is taken, and the rules it must obey.

Freezing is the synchronous part of a checkpoint: no row is copied and nothing is written. Everything else may happen
later and in other threads, while the job goes on.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from arrowstate.errors import InvalidInputError
from arrowstate.files.operator import FrozenOperatorState
from arrowstate.files.subtasks import check_parts, lowest_watermark
from arrowstate.files.writing import FrozenSubtask
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend
from arrowstate_formats.documents import OperatorDocument
from arrowstate_formats.names import check_operator_uid

_Backend = TypeVar("_Backend", KeyedStateBackend, OperatorStateBackend)


class Part(Struct, frozen=True, order=True):
    """One of the pieces that a checkpoint is written in."""

    operator: str
    "The uid."
    subtask: int | None
    "Whose keyed state it is; None for the operator state of all subtasks."

    def __str__(self) -> str:
        return f"operator state of {self.operator}" if self.subtask is None else f"{self.operator}[{self.subtask}]"


class FrozenCheckpoint(Struct, frozen=True):
    """The state of all operators at one moment."""

    operators: Mapping[str, Sequence[FrozenSubtask]]
    operator_states: Mapping[str, Sequence[Sequence[FrozenOperatorState]]]
    watermark: int | None
    "The lowest of the subtasks, None if one has none."
    sync_us: Mapping[Part, int]
    "How long the job stood still for each part, in microseconds."

    @property
    def parts(self) -> tuple[Part, ...]:
        """The pieces to write, in the order of the operators."""
        return tuple(self.sync_us)


def freeze_checkpoint(
    operators: Mapping[str, Sequence[KeyedStateBackend]],
    operator_states: Mapping[str, Sequence[OperatorStateBackend]],
) -> FrozenCheckpoint:
    """Freeze all backends; to be called where they are written to, between two batches."""
    sync_us: dict[Part, int] = {}
    keyed: dict[str, list[FrozenSubtask]] = {}
    for uid, backends in backends_by_uid("operators", operators, KeyedStateBackend).items():
        keyed[check_operator_uid(uid)] = []
        for number, backend in enumerate(backends):
            began = time.perf_counter_ns()
            keyed[uid].append(backend.freeze())
            sync_us[Part(uid, number)] = (time.perf_counter_ns() - began) // 1000
        check_parts(uid, [subtask.as_part(number) for number, subtask in enumerate(keyed[uid])])
    own: dict[str, list[tuple[FrozenOperatorState, ...]]] = {}
    for uid, parts in backends_by_uid("operator_states", operator_states, OperatorStateBackend).items():
        began = time.perf_counter_ns()
        own[check_operator_uid(uid)] = [part.freeze() for part in parts]
        sync_us[Part(uid, None)] = (time.perf_counter_ns() - began) // 1000
        _check_operator_states(uid, own[uid], keyed.get(uid))
    watermark = lowest_watermark(subtask.watermark for subtasks in keyed.values() for subtask in subtasks)
    return FrozenCheckpoint(keyed, own, watermark, sync_us)


def backends_by_uid(
    what: str, given: Mapping[str, Iterable[_Backend]], kind: type[_Backend]
) -> dict[str, tuple[_Backend, ...]]:
    """Return the backends of each operator; `what` is the name of the argument that has them."""
    found: object = given
    if not isinstance(found, Mapping):
        raise InvalidInputError(
            f"{what} must be a dict with a list of backends by operator uid, got a {type(found).__name__}"
        )
    return {uid: backends_of(uid, backends, kind) for uid, backends in given.items()}


def backends_of(uid: str, backends: Iterable[_Backend], wanted: type[_Backend]) -> tuple[_Backend, ...]:
    """Return the backends of an operator, or refuse what is no list of them, such as the backend alone."""
    if isinstance(backends, (KeyedStateBackend, OperatorStateBackend)) or not isinstance(backends, Iterable):
        kind = type(backends).__name__
        raise InvalidInputError(
            f"operator {uid!r} needs a list of backends, one per subtask, got a {kind}; of one subtask it is [backend]"
        )
    found = tuple(backends)
    for backend in found:
        if not isinstance(backend, wanted):
            kind = type(backend).__name__
            raise InvalidInputError(f"operator {uid!r} needs backends of class {wanted.__name__} here, got a {kind}")
    return found


def check_nothing_dropped(before: Sequence[OperatorDocument], frozen: FrozenCheckpoint) -> None:
    """Refuse a checkpoint that lacks operators or states of the one before it."""
    keyed, own = frozen.operators, frozen.operator_states
    gone = {operator.uid for operator in before if operator.parallelism and operator.uid not in keyed}
    gone |= {operator.uid for operator in before if operator.uid not in keyed and operator.uid not in own}
    if gone:
        raise InvalidInputError(
            f"the checkpoint would drop the state of {', '.join(sorted(gone))}; "
            "pass these operators too, or allow_dropped_state=True"
        )
    for operator in before:
        uid = operator.uid
        if uid in keyed:
            states = {state.document.name for state in keyed[uid][0].states}
            given_up = frozenset.intersection(*(subtask.dropped for subtask in keyed[uid]))
            lost = [state.name for state in operator.states if state.name not in states | given_up]
            if lost:
                raise InvalidInputError(
                    f"the checkpoint would drop the state {', '.join(lost)} of {uid}; restore the backends from the "
                    "checkpoint before, or pass allow_dropped_state=True"
                )
        had = [state.name for state in operator.operator_states]
        have = {state.descriptor.name for part in own.get(uid, ()) for state in part}
        lost = [name for name in had if name not in have]
        if lost:
            raise InvalidInputError(
                f"the checkpoint would drop the operator state {', '.join(lost)} of {uid}; pass its restored "
                "OperatorStateBackends as operator_states, or allow_dropped_state=True"
            )


def warn_of_fresh_start(
    before: Sequence[OperatorDocument],
    frozen: FrozenCheckpoint,
    operators: Mapping[str, Sequence[KeyedStateBackend]],
    operator_states: Mapping[str, Sequence[OperatorStateBackend]],
) -> None:
    """Warn where backends that were never restored stand in for more rows of the checkpoint before, as after a restart.

    It is no error, for a job may begin anew on purpose; one that has as many rows again has computed them anew. A
    backend that was frozen for a checkpoint goes on from there.
    """
    for operator in before:
        uid = operator.uid
        if not all(backend.was_stored for backend in operators.get(uid, ())):
            had = sum(operator.live_rows(state.name) for state in operator.states)
            has = sum(state.table.live_rows for subtask in frozen.operators[uid] for state in subtask.states)
            _warn_of_fewer_rows(uid, had, has, f"restore({uid!r})")
        if not all(part.was_stored for part in operator_states.get(uid, ())):
            had = sum(part.rows for state in operator.operator_states for part in state.parts)
            had += sum(file.rows for state in operator.operator_states for file in state.part_files)
            has = sum(state.batch.num_rows for part in frozen.operator_states[uid] for state in part)
            _warn_of_fewer_rows(uid, had, has, f"restore_operator_state({uid!r})")


def _warn_of_fewer_rows(uid: str, had: int, has: int, restore: str) -> None:
    if has < had:
        warnings.warn(
            f"the checkpoint has {has} rows of operator {uid!r} and the one before {had}, for its backends were not "
            f"restored: restore them by store.latest().{restore}, or begin anew with allow_dropped_state=True",
            RuntimeWarning,
            stacklevel=6,
        )


def _check_operator_states(
    uid: str, parts: Sequence[Sequence[FrozenOperatorState]], keyed: Sequence[FrozenSubtask] | None
) -> None:
    if not parts:
        raise InvalidInputError(f"operator {uid!r} has no operator state backend; pass one per subtask")
    if keyed is None:
        return
    if len(keyed) != len(parts):
        raise InvalidInputError(
            f"operator {uid!r} has {len(keyed)} backends of keyed state and {len(parts)} of operator state; "
            "pass one of each per subtask"
        )
    names = {state.document.name.lower() for state in keyed[0].states}
    for state in parts[0]:
        if state.descriptor.name.lower() in names:
            raise InvalidInputError(
                f"operator {uid!r} has a keyed state and an operator state named {state.descriptor.name!r}; rename one"
            )
