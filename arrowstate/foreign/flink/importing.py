"""From a savepoint of Flink to a checkpoint of ours: each state becomes one of the kind that it was.

| in Flink | here |
| --- | --- |
| value; list; map | the same |
| reducing, aggregating | a value state with the accumulator, or that of the state that is asked for |
| timers | a timer state for each clock |
| a window, another namespace | namespace columns |
| the time of the last use, in a state with a time to live | the time of the last update |
| lists of subtasks, broadcast maps | operator state |

All of it is one checkpoint, or none. What cannot be a state is told with the reason, and stops nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.bootstrap.planning import AskedStates
from arrowstate.bootstrap.tables import TableFill, fill_operators, plan_table
from arrowstate.errors import InvalidInputError
from arrowstate.files.operator import FrozenOperatorState
from arrowstate.files.subtasks import whole_operator
from arrowstate.foreign.flink.imported_rows import TIMERS, KeyedRows, free_name, name_of
from arrowstate.foreign.flink.savepoint import FlinkOperator, FlinkSavepoint
from arrowstate.foreign.flink.sessions import CONTENTS_OF, WINDOWS_OF_SESSIONS
from arrowstate.foreign.flink.states import FlinkState
from arrowstate.html import table_html
from arrowstate.log.commit_log import CommitLog
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    TimeToLive,
)
from arrowstate.schema.operator_state import (
    SUBTASK_COLUMN,
    BroadcastStateDescriptor,
    OperatorListStateDescriptor,
    OperatorStateDescriptor,
    operator_state_schema,
)
from arrowstate.store import Snapshot, StateStore
from arrowstate_formats.documents import OperatorDocument
from arrowstate_formats.names import check_operator_uid

_Given = TypeVar("_Given")

_KEYLESS = ("split", "union", "broadcast")
_FLINK = "flink"
"""The property of the checkpoint that tells where it is from."""


@dataclass(frozen=True, slots=True)
class ImportedFlinkState:
    """What became of a state of Flink."""

    operator: str
    state: str
    kind: str
    uid: str | None
    "The operator it is in now; None if it was left out."
    name: str | None
    "What it is called now."
    rows: int | None
    "How many rows it has now; of a list its elements, of a map its entries."
    note: str = ""
    "Why it was left out, or what is to be known of it."


@dataclass(frozen=True, slots=True)
class FlinkImport:
    """What an import took, what it left out, and why."""

    snapshot: Snapshot
    states: tuple[ImportedFlinkState, ...]
    left_out: tuple[str, ...] = ()
    "What of the savepoint is no state: records that were under way, finished subtasks."

    def _repr_html_(self) -> str:
        columns = ["operator", "state", "kind", "is now", "rows", "note"]
        rows = [
            (
                item.operator,
                item.state,
                item.kind,
                f"{item.uid}.{item.name}" if item.name else None,
                item.rows,
                item.note,
            )
            for item in self.states
        ]
        return table_html(f"imported from Flink as checkpoint {self.snapshot.checkpoint_id}", columns, rows)


def import_flink_savepoint(
    savepoint: FlinkSavepoint,
    store: StateStore,
    *,
    operators: Mapping[str, str] | None = None,
    states: Mapping[str, StateDescriptor | None] = MappingProxyType({}),
    keys: Mapping[str, Sequence[str]] = MappingProxyType({}),
    time_to_live: Mapping[str, TimeToLive] = MappingProxyType({}),
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    properties: Mapping[str, Any] = MappingProxyType({}),
) -> FlinkImport:
    """Make a checkpoint from a savepoint of Flink, from which a job or a query goes on.

    Other operators and states of the store stay. Rows are decoded and written as they come, so memory does not grow
    with their number.

    Parameters
    ----------
    savepoint
        From `open_flink_savepoint`.
    store
        The store.
    operators
        The new uid for each operator of Flink to import, as `savepoint.operators` names it; other operators are left
        out. By default all are imported under their own names.
    states
        A descriptor for each `operator.state` of Flink that is to become another state. It gives the new name and
        kind: for instance a `ReducingStateDescriptor`, whose accumulators are the stored ones. If it names no
        namespaces, it gets those of the state. None leaves the state out. By default a state keeps its kind, and
        accumulators become values.
    keys
        The names of the key columns for each operator of Flink; by default those of the fields of the key, or `key`.
    time_to_live
        The time to live for each `operator.state` of Flink, since a savepoint does not have it. Rows keep the time of
        their last use. Without it the state has no time to live.
    parallelism, max_parallelism
        The numbers of subtasks and key groups of the operators; by default those of the savepoint. A job may restore
        with other numbers.
    properties
        JSON values for the checkpoint, beside `flink`, which names the savepoint.

    Returns
    -------
    FlinkImport
        The checkpoint, and what became of each state.

    Raises
    ------
    OperatorNotFoundError, StateNotFoundError
        If an argument names an operator or state that the savepoint does not have.
    InvalidInputError
        If there is nothing to import, a descriptor does not fit, or an operator of the store has one of the states
        already; nothing is committed.
    CorruptDataError
        If the savepoint is damaged; nothing is committed. The rest is as for `StateStore.bootstrap`.
    """
    planned = plan_flink_import(
        savepoint,
        store,
        operators=operators,
        states=states,
        keys=keys,
        time_to_live=time_to_live,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
    )
    return planned.commit(store, properties)


@dataclass(frozen=True, slots=True)
class PlannedImport:
    """An import that nothing is in the way of, as far as can be told without reading all rows."""

    savepoint: FlinkSavepoint
    fills: Sequence[TableFill]
    operator_states: Mapping[str, Sequence[Sequence[FrozenOperatorState]]]
    told: Sequence[_Told]
    left_out: Sequence[str]

    def commit(self, store: StateStore, properties: Mapping[str, Any] = MappingProxyType({})) -> FlinkImport:
        """Import into the store that it was planned for, or into a new one if that was empty."""
        savepoint = self.savepoint
        entry = fill_operators(
            store.storage,
            store.store_id,
            self.fills,
            operator_states=self.operator_states,
            properties={_FLINK: {"from": savepoint.url, "checkpoint_id": savepoint.checkpoint_id}, **properties},
            new_id=store.new_id,
            clock_ms=store.clock_ms,
        )
        found = {operator.uid: operator for operator in entry.operators}
        return FlinkImport(
            store.snapshot_of(entry),
            tuple(item.done(lambda uid, name: found[uid].live_rows(name)) for item in self.told),
            tuple(dict.fromkeys(self.left_out)),
        )


def plan_flink_import(
    savepoint: FlinkSavepoint,
    store: StateStore,
    *,
    operators: Mapping[str, str] | None = None,
    states: Mapping[str, StateDescriptor | None] = MappingProxyType({}),
    keys: Mapping[str, Sequence[str]] = MappingProxyType({}),
    time_to_live: Mapping[str, TimeToLive] = MappingProxyType({}),
    parallelism: int | None = None,
    max_parallelism: int | None = None,
) -> PlannedImport:
    """Settle what an import does and refuse what cannot be done; nothing is written. For the arguments see above."""
    asked = _Asked(savepoint, operators, dict(states), dict(keys), dict(time_to_live), parallelism, max_parallelism)
    fills: list[TableFill] = []
    beside: dict[str, list[list[FrozenOperatorState]]] = {}
    told: list[_Told] = []
    left_out: list[str] = []
    for label, operator in savepoint.operators.items():
        left_out += [f"{label}: {reason}" for reason in operator.left_out]
        uid = asked.uid_of(label)
        if uid is None:
            told += [_Told(state, note="not asked for") for state in operator.states]
            continue
        made = _Operator(asked, operator, uid, store)
        fills += made.fills
        if made.operator_states:
            beside[uid] = made.operator_states
        told += made.told
    if not fills and not beside:
        reasons = "; ".join(f"{item.state.operator}.{item.state.name}: {item.note}" for item in told[:5])
        raise InvalidInputError(f"{savepoint.url} has no state to import{': ' if reasons else ''}{reasons}")
    return PlannedImport(savepoint, fills, beside, told, left_out)


@dataclass(slots=True)
class _Told:
    """What will be told of a state."""

    state: FlinkState
    uid: str | None = None
    name: str | None = None
    note: str = ""
    rows: int | None = None
    source: KeyedRows | None = None
    "Knows in the end what it has left out."

    def done(self, rows_of: Any) -> ImportedFlinkState:
        rows = self.rows
        if self.uid is not None and self.name is not None and rows is None:
            rows = rows_of(self.uid, self.name)
        state = self.state
        note = "; ".join(filter(None, [self.note, "" if self.source is None else self.source.left_out]))
        return ImportedFlinkState(state.operator, state.name, state.kind, self.uid, self.name, rows, note)


@dataclass(slots=True)
class _Asked:
    """What a caller asks for, after a look whether the savepoint has what it names."""

    savepoint: FlinkSavepoint
    operators: Mapping[str, str] | None
    states: dict[str, StateDescriptor | None]
    keys: dict[str, Sequence[str]]
    ttls: dict[str, TimeToLive]
    parallelism: int | None
    max_parallelism: int | None
    _taken: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.operators is not None:
            self.operators = self._by_label(self.operators)
        self.keys, self.states, self.ttls = (
            self._by_label(self.keys),
            self._by_name(self.states),
            self._by_name(self.ttls),
        )

    def _by_label(self, given: Mapping[str, _Given]) -> dict[str, _Given]:
        """What was given by operator, also by the uid of one that has its id alone."""
        return {self.savepoint.operator(name).label: value for name, value in given.items()}

    def _by_name(self, given: Mapping[str, _Given]) -> dict[str, _Given]:
        """What was given by state, also by the name that a job of PyFlink gave it."""
        found = ((self.savepoint[name], value) for name, value in given.items())
        return {f"{state.operator}.{state.name}": value for state, value in found}

    def uid_of(self, label: str) -> str | None:
        """Return the uid that an operator gets; None if it is left out."""
        if self.operators is not None:
            uid = self.operators.get(label)
            return None if uid is None else check_operator_uid(uid)
        return free_name(name_of(label), self._taken)


class _Operator:
    """An operator, and how each of its states is filled."""

    def __init__(self, asked: _Asked, operator: FlinkOperator, uid: str, store: StateStore) -> None:
        self._asked = asked
        self._operator = operator
        self._uid = uid
        self._store = store
        self._names: dict[str, str] = {}
        self.fills: list[TableFill] = []
        self.told: list[_Told] = []
        self.operator_states: list[list[FrozenOperatorState]] = []
        self._stored = _stored_operator(store, uid)
        self._taken: list[str] = []
        self._parallelism = asked.parallelism or max(operator.parallelism, 1)
        self._max_parallelism = asked.max_parallelism or max(operator.max_parallelism, 1)
        keyless: list[tuple[FlinkState, OperatorStateDescriptor]] = []
        for state in operator.states:
            reference = f"{state.operator}.{state.name}"
            if asked.states.get(reference, state) is None:
                self.told.append(_Told(state, note="not asked for"))
                continue
            try:
                if state.kind in _KEYLESS:
                    keyless.append((state, self._keyless(state)))
                else:
                    self._keyed(state, asked.states.get(reference), asked.ttls.get(reference))
            except InvalidInputError as error:
                if reference in asked.states or reference in asked.ttls:
                    raise
                self.told.append(_Told(state, note=str(error)))
        if self._taken:
            # With states of two savepoints an operator would have sums of one time, and positions of another.
            names = ", ".join(map(repr, self._taken))
            raise InvalidInputError(
                f"operator {uid!r} in {store.storage.url} has {names} already, and an import neither adds to a state "
                "nor replaces it: import into another store, or under another uid"
            )
        if keyless:
            self._check_subtasks()
            self._fill_keyless(keyless)

    def _is_free(self, name: str) -> bool:
        """Whether the operator has no state of this name yet; one that is taken is noted."""
        stored = self._stored
        known = [] if stored is None else [state.name for state in stored.states]
        known += [] if stored is None else [state.name for state in stored.operator_states]
        taken = [other for other in known if other.lower() == name.lower()]
        self._taken += taken
        return not taken

    def _check_subtasks(self) -> None:
        """Refuse operator state of another number of subtasks than the operator has."""
        stored = self._stored
        if stored is None or self.fills:
            return
        count = stored.operator_states[0].part_count if stored.operator_states else len(stored.subtasks)
        if count != self._parallelism:
            raise InvalidInputError(
                f"operator {self._uid!r} in {self._store.storage.url} has {count} subtasks, got operator state of "
                f"{self._parallelism}: import it with parallelism={count}"
            )

    # Keyed state

    def _keyed(self, state: FlinkState, given: StateDescriptor | None, ttl: TimeToLive | None) -> None:
        rows = KeyedRows(state, self._asked.keys.get(state.operator), self._operator.states)
        descriptor = rows.descriptor(self._name(state), ttl) if given is None else rows.with_namespace(given)
        self._fill(state, rows, descriptor)
        notes = [f"{name} cannot be decoded without its class, and is bytes" for name in state.opaque]
        if rows.has_times and descriptor.ttl is None:
            notes.append("its time to live is not in a savepoint: give it, or rows do not expire")
        if given is None and state.kind in ("reducing", "aggregating"):
            notes.append("accumulators are values")
        if rows.is_wrapped:
            notes.append("some of its values are null, so each is one column and not a column for each field")
        notes += self._of_sessions(state, rows)
        # What some rows have and nobody here can read is kept beside, by the same keys.
        unread = rows.raw() if rows.has_raw else None
        has_unread = unread is not None and next(unread.batches(), None) is not None
        if unread is not None and not has_unread and unread.left_out:
            notes.append(unread.left_out)
        self.told.append(_Told(state, self._uid, descriptor.name, "; ".join(notes), source=rows))
        if has_unread:
            self._fill_raw(state, rows.raw(), descriptor.name)

    def _fill_raw(self, state: FlinkState, raw: KeyedRows, beside: str) -> None:
        name = free_name(f"{beside}_raw", self._names)
        self._fill(state, raw, raw.descriptor(name, None))
        note = "values of this state that could not be decoded, as bytes"
        self.told.append(_Told(state, self._uid, name, note, source=raw))

    def _of_sessions(self, state: FlinkState, rows: KeyedRows) -> Iterator[str]:
        """Yield what is to be known of windows that merge."""
        known = {each.name for each in self._operator.states}
        contents = CONTENTS_OF.get(state.name)
        if contents in known:
            left_out = self._asked.states.get(f"{state.operator}.{contents}", state) is None
            yield f"{contents!r}, whose sessions it has, is " + (
                "left out" if left_out else "in these sessions already: nothing needs this state"
            )
        for mapping in known.intersection(CONTENTS_OF) if rows.has_windows else ():
            if rows.sessions is not None and rows.sessions.name == mapping:
                yield f"its windows are the sessions of {mapping!r}"
            elif state.name not in WINDOWS_OF_SESSIONS:
                yield f"its windows are those under which Flink keeps it; {mapping!r} has what they have become"

    def _fill(self, state: FlinkState, rows: KeyedRows, descriptor: StateDescriptor) -> None:
        name = descriptor.name
        if not self._is_free(name):
            return
        asked = AskedStates(
            [descriptor],
            accumulators=isinstance(descriptor, (ReducingStateDescriptor, AggregatingStateDescriptor)),
            updated_at={name: "_updated_at"} if rows.has_times else None,
            value_columns={} if state.kind == "timers" else {name: ["_value"]},
            user_keys={name: "_entry"},
        )
        plan = plan_table(
            self._store.storage,
            rows.schema,
            uid=self._uid,
            key=rows.key_names,
            states=asked,
            parallelism=self._parallelism,
            max_parallelism=self._max_parallelism,
            new_id=self._store.new_id,
            clock_ms=self._store.clock_ms,
        )
        self.fills.append(TableFill(plan, rows.batches()))

    def _name(self, state: FlinkState) -> str:
        timers = TIMERS.fullmatch(state.name)
        if timers is None:
            return free_name(name_of(state.name), self._names)
        service = "timers" if timers[2] == "user-timers" else name_of(timers[2])
        return free_name(f"{service}_{timers[1]}_time", self._names)

    # State without keys

    def _keyless(self, state: FlinkState) -> OperatorStateDescriptor:
        name = free_name(name_of(state.name.removesuffix(" (operator)")), self._names)
        self._is_free(name)
        kind = state.schema.field("value").type
        if state.kind == "broadcast":
            return BroadcastStateDescriptor(name, state.schema.field("key").type, kind)
        return OperatorListStateDescriptor(name, kind, "union" if state.kind == "union" else "split")

    def _fill_keyless(self, states: Sequence[tuple[FlinkState, OperatorStateDescriptor]]) -> None:
        count = self._parallelism
        parts: list[list[FrozenOperatorState]] = [[] for _ in range(count)]
        for state, descriptor in states:
            table = state.to_arrow()
            schema = operator_state_schema(descriptor)
            kept = pc.is_valid(table.column("value"))
            if isinstance(descriptor, BroadcastStateDescriptor):
                # Every subtask has the same; one of them is enough.
                subtasks = table.column(SUBTASK_COLUMN)
                first = pc.equal(subtasks, pc.min(subtasks))
                table = table.filter(first)
                known = table.column("key").is_valid()
                note = _lost(table.num_rows - (pc.sum(known).as_py() or 0), "maps")
                batch = _one_batch(table.filter(known).select(["key", "value"]), schema)
                for part in parts:
                    part.append(FrozenOperatorState(descriptor, batch))
                self.told.append(_Told(state, self._uid, descriptor.name, note, rows=batch.num_rows))
                continue
            lost = table.num_rows - (pc.sum(kept).as_py() or 0)
            table = table.filter(kept)
            numbers = table.column(SUBTASK_COLUMN).to_numpy() if table.num_rows else np.empty(0, dtype=np.int64)
            if numbers.size and numbers.max() >= count:
                numbers = np.sort(numbers * count // (int(numbers.max()) + 1))
            for number, part in enumerate(parts):
                own = table.filter(pa.array(numbers == number)).select(["value"])
                part.append(FrozenOperatorState(descriptor, _one_batch(own, schema)))
            note = _lost(lost, "elements")
            self.told.append(_Told(state, self._uid, descriptor.name, note, rows=table.num_rows))
        self.operator_states = parts


def _stored_operator(store: StateStore, uid: str) -> OperatorDocument | None:
    """Return what the newest checkpoint of a store has of an operator."""
    newest = CommitLog(store.storage).latest_checkpoint()
    found = () if newest is None else newest.operators
    operator = next((item for item in found if item.uid == uid), None)
    return None if operator is None else whole_operator(store.storage, operator)


def _lost(count: int, what: str) -> str:
    return f"{count} {what} cannot be decoded, and are left out" if count else ""


def _one_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    columns = [column.combine_chunks() for column in table.columns]
    arrays = [column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
