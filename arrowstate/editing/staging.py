"""A checkpoint that is not committed: what statements made of one, written over the store and not into it.

Each step makes new documents of the operators it touches, as a checkpoint of a job would: the subtasks whose rows
change are restored, changed, and written again, which is a run of the rows that came and a bit for each row that went.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from arrowstate.editing.applying import Rule, exchange_rows
from arrowstate.editing.forms import Rows, RowsForm
from arrowstate.editing.operator_states import EditedOperatorState, with_other_names
from arrowstate.editing.overlay import Overlay
from arrowstate.errors import InvalidInputError, StateNotFoundError
from arrowstate.files.reading import find_operator, find_state
from arrowstate.files.subtasks import whole_operator
from arrowstate.files.writing import FrozenState, write_subtask
from arrowstate.log.entries import CommittedEntry, next_checkpoint
from arrowstate.query.catalog import SqlName
from arrowstate.schema.layout import StateLayout, descriptor_of, key_schema_of
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.restoring import restore_backend
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument, SubtaskDocument
from arrowstate_formats.key_groups import check_max_parallelism, key_group_range, key_groups_of_hashes
from arrowstate_formats.key_hash import hash_columns
from arrowstate_formats.names import check_operator_uid, check_state_name
from arrowstate_formats.run_files import RunFormat

Change = Callable[[KeyedStateBackend, int], None]
"""Changes the state of a subtask of this number."""


class _Layout(Struct, frozen=True):
    """How the subtasks of an operator share its key groups."""

    max_parallelism: int
    ends: tuple[int, ...]
    "The last key group of each."

    @classmethod
    def of(cls, operator: OperatorDocument) -> _Layout:
        return cls(operator.max_parallelism, tuple(subtask.key_groups[1] for subtask in operator.subtasks))

    @property
    def is_even(self) -> bool:
        """Whether a restore at this parallelism cuts at the same places."""
        count = len(self.ends)
        return all(
            key_group_range(self.max_parallelism, parallelism=count, subtask=number).end == end
            for number, end in enumerate(self.ends)
        )

    def subtasks_of(self, key: Sequence[pa.Array]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the subtask of each key in an even layout."""
        groups = key_groups_of_hashes(hash_columns(list(key)), self.max_parallelism)
        count = len(self.ends)
        ends = [key_group_range(self.max_parallelism, parallelism=count, subtask=number).end for number in range(count)]
        return np.searchsorted(np.array(ends), groups)


class Staging:
    """The checkpoint that statements have made so far."""

    def __init__(
        self,
        overlay: Overlay,
        store_id: str,
        base: LogEntryDocument,
        newest: CommittedEntry,
        *,
        format: RunFormat,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self.overlay = overlay
        self.base = base
        self.store_id = store_id
        self._newest = newest
        self._format = format
        self.clock_ms = clock_ms
        self.new_id = new_id
        self.entry = base
        "The checkpoint as it is now; from the start it has the id that it is to have."
        self._commit(base.operators)

    # Rows

    def form(self, name: SqlName) -> RowsForm:
        """Return the columns of a state."""
        operator = find_operator(self.entry, name.uid)
        if name.is_operator_state:
            return self.operator_state(name).form
        document = find_state(self.entry, operator, name.state)
        return RowsForm(
            f"{name.uid}.{name.state}", StateLayout.of(key_schema_of(operator.key), descriptor_of(document))
        )

    def operator_state(self, name: SqlName) -> EditedOperatorState:
        """Return an operator state as it is now."""
        operator = whole_operator(self.overlay, find_operator(self.entry, name.uid))
        return EditedOperatorState(self.overlay, self.entry, operator, name.state)

    def change_rows(self, name: SqlName, gone: Rows | None, rows: Rows | None, rule: Rule = "update") -> None:
        """Remove rows of a state, and then write others; errors as for `put_rows`."""
        if not gone and not rows:
            return
        if name.is_operator_state:
            changed = self.operator_state(name).changed(
                lambda state: exchange_rows(state, gone, rows, rule, None), self.new_id
            )
            self._replace({name.uid: changed})
            return
        operator = whole_operator(self.overlay, find_operator(self.entry, name.uid))
        layout = _Layout.of(operator)
        of_gone, of_rows = (
            np.empty(0, np.int64) if not part else layout.subtasks_of(part.key) for part in (gone, rows)
        )

        def change(backend: KeyedStateBackend, number: int) -> None:
            own_gone = gone and gone.take(np.flatnonzero(of_gone == number))
            own_rows = rows and rows.take(np.flatnonzero(of_rows == number))
            now = self._time_of_update(backend, name.state)
            exchange_rows(backend.states[name.state], own_gone, own_rows, rule, now)

        self._change(operator, np.union1d(of_gone, of_rows).tolist(), change)

    def clear_keys(self, uid: str, key: Sequence[pa.Array]) -> None:
        """Remove all that an operator holds of some keys."""
        operator = whole_operator(self.overlay, find_operator(self.entry, uid))
        numbers = _Layout.of(operator).subtasks_of(key)

        def change(backend: KeyedStateBackend, number: int) -> None:
            own = pa.array(np.flatnonzero(numbers == number))
            backend.clear_key(pa.RecordBatch.from_arrays([item.take(own) for item in key], schema=backend.key))

        self._change(operator, np.unique(numbers).tolist(), change)

    def rewrite(self, uid: str, change: Callable[[KeyedStateBackend], None]) -> None:
        """Change the state of all subtasks of an operator."""
        operator = whole_operator(self.overlay, find_operator(self.entry, uid))
        self._change(operator, range(len(operator.subtasks)), lambda backend, _: change(backend))

    def _time_of_update(self, backend: KeyedStateBackend, name: str) -> int | None:
        """Return the time at which a row of a subtask counts as updated: event time is that of the subtask itself."""
        ttl = backend.states[name].descriptor.ttl
        return backend.watermark if ttl is not None and ttl.clock == "event_time" else self.clock_ms()

    # Documents

    def rename_operator(self, uid: str, new: str) -> None:
        """Give an operator another uid; no row is written again."""
        find_operator(self.entry, uid)
        check_operator_uid(new)
        taken = [item.uid for item in self.entry.operators if item.uid.lower() == new.lower() and item.uid != uid]
        if taken:
            raise InvalidInputError(
                f"operator {uid!r} cannot be named {new!r}: there is {taken[0]!r}, and names differ in more than case"
            )
        operator = whole_operator(self.overlay, find_operator(self.entry, uid))
        renamed = msgspec.structs.replace(operator, uid=new)
        if operator.subtasks:
            renamed = self._written(operator, range(len(operator.subtasks)), lambda *_: None, new_uid=new)
        self._replace({uid: renamed})

    def drop_operator(self, uid: str) -> None:
        """Leave an operator out."""
        find_operator(self.entry, uid)
        self._commit([item for item in self.entry.operators if item.uid != uid])

    def change_states(
        self, uid: str, drop: Sequence[str] = (), rename: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Leave states out, or give them other names, operator state too; errors as for a restore."""
        operator = whole_operator(self.overlay, find_operator(self.entry, uid))
        names = [*(state.name for state in operator.states), *(state.name for state in operator.operator_states)]
        for name, new in rename.items():
            check_state_name(new)
            taken = [other for other in names if other != name and other.lower() == new.lower()]
            if taken:
                raise InvalidInputError(
                    f"state {name!r} of operator {uid!r} cannot be named {new!r}: there is {taken[0]!r}, and names "
                    "differ in more than case"
                )
        own = [state.name for state in operator.operator_states]
        if {*own}.intersection([*drop, *rename]) - {state.name for state in operator.states}:
            self._replace({uid: with_other_names(self.overlay, operator, drop, rename, new_id=self.new_id)})
            return
        if not operator.key:
            raise StateNotFoundError([*drop, *rename][0], own, uid, self.entry.checkpoint_id)
        every = range(len(operator.subtasks))
        self._replace({uid: self._written(operator, every, lambda *_: None, drop=drop, rename=rename)})

    def change_max_parallelism(self, uid: str, max_parallelism: int) -> None:
        """Give an operator another number of key groups; no row is written again."""
        operator = whole_operator(self.overlay, find_operator(self.entry, uid))
        if not operator.key:
            raise InvalidInputError(f"operator {uid!r} has operator state only, which is in no key groups")
        check_max_parallelism(max_parallelism)
        count = min(len(operator.subtasks), max_parallelism)
        if count < len(operator.subtasks) and operator.operator_states:
            raise InvalidInputError(
                f"operator {uid!r} has operator state of {len(operator.subtasks)} subtasks, which {max_parallelism} "
                "key groups have no room for; restore it at a lower parallelism first"
            )
        changed = self._written(operator, range(count), lambda *_: None, parallelism=count, maximum=max_parallelism)
        self._replace({uid: changed})

    # How

    def _change(self, operator: OperatorDocument, numbers: Iterable[int], change: Change) -> None:
        numbers = list(numbers)
        if numbers:
            self._replace({operator.uid: self._written(operator, numbers, change)})

    def _written(
        self,
        operator: OperatorDocument,
        numbers: Iterable[int],
        change: Change,
        *,
        new_uid: str | None = None,
        parallelism: int | None = None,
        maximum: int | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] = MappingProxyType({}),
    ) -> OperatorDocument:
        """Return an operator whose subtasks of these numbers are changed and written."""
        count = len(operator.subtasks) if parallelism is None else parallelism
        if not _Layout.of(operator).is_even:
            # A restore cuts elsewhere, so every subtask is another one than before.
            numbers = range(count)
        kept: list[SubtaskDocument | None] = [None] * count
        if parallelism is None:
            kept[:] = operator.subtasks
        states = operator.states
        # The others read what they need from the store, so each has its own list of runs alone.
        entry = msgspec.structs.replace(self.entry, operators=[operator])
        for number in numbers:
            backend = restore_backend(
                self.overlay,
                self.store_id,
                entry,
                operator.uid,
                parallelism=count,
                subtask=number,
                max_parallelism=maximum,
                clock_ms=self.clock_ms,
                drop=drop,
                rename=rename,
            )
            change(backend, number)
            frozen = backend.freeze()
            if not drop and not rename:
                # What a descriptor knows of a state may be less than what is stored.
                stored = {state.name: state for state in operator.states}
                frozen = replace(
                    frozen, states=tuple(FrozenState(stored[item.document.name], item.table) for item in frozen.states)
                )
            written = write_subtask(
                self.overlay,
                self.store_id,
                new_uid or operator.uid,
                number,
                frozen,
                format=self._format,
                new_id=self.new_id,
                previous=kept[number] if new_uid is None and not rename else None,
            )
            kept[number] = written.document
            states = [state.document for state in frozen.states]
        return msgspec.structs.replace(
            operator,
            uid=new_uid or operator.uid,
            max_parallelism=maximum or operator.max_parallelism,
            states=states,
            subtasks=[item for item in kept if item is not None],
            subtask_files=[],
        )

    def _replace(self, changed: Mapping[str, OperatorDocument]) -> None:
        self._commit([changed.get(item.uid, item) for item in self.entry.operators])

    def _commit(self, operators: Sequence[OperatorDocument]) -> None:
        now = self.clock_ms()
        self.entry = next_checkpoint(
            self._newest,
            operators,
            commit_id=self.new_id(),
            started_at_ms=now,
            now_ms=now,
            watermark=self.base.watermark,
            properties=self.base.properties,
        )
