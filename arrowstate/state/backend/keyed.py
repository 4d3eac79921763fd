"""The keyed state of one subtask: a set of named states over one range of key groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

import msgspec
import pyarrow as pa

from arrowstate.clock import now_ms
from arrowstate.errors import InvalidInputError
from arrowstate.files.writing import FrozenState, FrozenSubtask
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    TimerStateDescriptor,
    ValueStateDescriptor,
)
from arrowstate.schema.evolution import names_fields
from arrowstate.schema.layout import (
    StateLayout,
    check_same_state,
    computed_by,
    descriptor_of,
    key_documents,
    state_document,
)
from arrowstate.schema.versions import RunSchemas, evolve_state, layout_of
from arrowstate.state.backend.names import check_new_name
from arrowstate.state.base import KeyedState
from arrowstate.state.current_key import KeyContext
from arrowstate.state.inspection import distinct_keys, distinct_keys_and_namespaces, largest_keys, sizes_by_key_group
from arrowstate.state.kinds.aggregating import AggregatingState
from arrowstate.state.kinds.list import ListState
from arrowstate.state.kinds.map import MapState
from arrowstate.state.kinds.reducing import ReducingState
from arrowstate.state.kinds.timer_service import TimerService
from arrowstate.state.kinds.timers import TimerState
from arrowstate.state.kinds.value import ValueState
from arrowstate.state.shown import Shown
from arrowstate.state.transaction import Participant, Transactions
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.merging import MergePolicy
from arrowstate.table.run import Run
from arrowstate.table.spill import Budget
from arrowstate.table.table import Table
from arrowstate_formats.cached_properties import cached_property
from arrowstate_formats.integers import check_integer
from arrowstate_formats.key_groups import KeyGroupRange, check_max_parallelism
from arrowstate_formats.schema_documents import FieldDocument, StateDocument

_KINDS: dict[str, Any] = {
    "value": ValueState,
    "reducing": ReducingState,
    "aggregating": AggregatingState,
    "list": ListState,
    "map": MapState,
    "timer": TimerState,
}


class KeyedStateBackend(Shown):
    """The keyed state of one subtask.

    One thread uses it at a time. A call while another thread uses it is refused with `ConcurrentUseError`, and so is a
    verb for one record with a current key that another running thread has set. Between two batches you may hand it to
    another thread, and another thread may write a snapshot of it.

    Parameters
    ----------
    key
        The key columns. Key types are those that `key_hash` knows; the type is part of the key.
    max_parallelism
        The number of key groups, 1 to 32768.
    key_groups
        The key groups of this subtask, both ends inclusive; all by default.
    memory_budget_bytes
        How many bytes the rows of all states together may take in memory; further rows are kept in mapped local files.
        None for no limit.
    spill_dir
        The folder of these files, which are deleted in the end; the system's temporary folder by default.
    merge_policy
        When runs are merged.
    clock_ms
        A function that returns the processing time in milliseconds since 1970; the time to live uses it.

    Raises
    ------
    InvalidInputError
        If an argument is out of range, or a key type cannot be hashed.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
    >>> clicks.add_batch(pa.array(["ann", "bob", "ann"]), pa.array([1, 2, 3]))
    >>> clicks.get_batch(pa.array(["ann", "bob", "eve"])).to_pylist()
    [4, 2, None]
    """

    _plumbing = frozenset({"in_use", "migrate", "states", "take_up", "transactions", "was_stored"})

    def __init__(
        self,
        *,
        key: pa.Schema,
        max_parallelism: int,
        key_groups: KeyGroupRange | None = None,
        memory_budget_bytes: int | None = None,
        spill_dir: str | Path | None = None,
        merge_policy: MergePolicy | None = None,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        max_parallelism = check_max_parallelism(max_parallelism)
        if key_groups is None:
            key_groups = KeyGroupRange(0, max_parallelism - 1)
        elif key_groups.end >= max_parallelism:
            raise InvalidInputError(
                f"key groups must be within 0 to {max_parallelism - 1} at max parallelism {max_parallelism}, "
                f"got {key_groups.start} to {key_groups.end}"
            )
        memory_budget_bytes = check_integer("memory_budget_bytes", memory_budget_bytes, 0, optional=True)
        self._context = KeyContext(key, max_parallelism, key_groups, clock_ms)
        spill_folder = Path(spill_dir) if spill_dir is not None else None
        self._budget = Budget(memory_budget_bytes, spill_folder, lambda: [s.table for s in self._states.values()])
        self._policy = merge_policy
        self._states: dict[str, KeyedState[Any]] = {}
        self._stored: dict[str, StateDocument] = {}
        "The states that were restored, in the schema that they have now."
        self._untouched: set[str] = set()
        "Restored states that no descriptor has taken up."
        self._dropped: frozenset[str] = frozenset()
        "States that the restore gave up or renamed: the next checkpoint may lack them."
        self.was_stored = False
        "Whether it was restored, or frozen for a checkpoint."

    def __reduce__(self) -> Any:
        raise TypeError(
            "a KeyedStateBackend is the state of one process and is not pickled: write it there with "
            "store.subtask_writer(uid, subtask).write(backend), and restore it in the other one"
        )

    def __repr__(self) -> str:
        groups = self.key_groups
        states = ", ".join(self._states) or "none"
        return f"<KeyedStateBackend key groups {groups.start} to {groups.end}, states: {states}>"

    @property
    def key(self) -> pa.Schema:
        """The schema of the key columns."""
        return self._context.key

    @cached_property
    def _key_fields(self) -> list[FieldDocument]:
        """The key columns as documents have them; a restored backend is given those of the checkpoint."""
        return key_documents(self._context.key)

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        return self._context.max_parallelism

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups of this subtask, both ends inclusive."""
        return self._context.key_groups

    @property
    def state_names(self) -> tuple[str, ...]:
        """The states it holds, restored ones that nobody has asked for included."""
        return tuple(self._states)

    @property
    def states(self) -> Mapping[str, KeyedState[Any]]:
        """The states by name, for those who look after their runs; `state` is what an operator asks."""
        return MappingProxyType(self._states)

    @property
    def in_use(self) -> list[KeyedState[Any]]:
        """The states that a descriptor has asked for."""
        return [state for name, state in self._states.items() if name not in self._untouched]

    @property
    def memory_bytes(self) -> int:
        """Bytes of rows, directories and live bits in memory; mapped rows do not count."""
        return sum(state.memory_bytes for state in self._states.values())

    @property
    def current_key(self) -> Any:
        """The key that scalar verbs work on: a plain value, or a tuple or mapping for several key columns.

        Raises
        ------
        InvalidInputError
            If it is read before it was set.
        KeyTypeError, NullKeyError, KeyOutOfRangeError
            If it is set to something that is no key of this subtask; the current key stays as it was.
        """
        return self._context.current.value

    @current_key.setter
    def current_key(self, value: Any) -> None:
        with self._context.transactions.owned():
            self._context.set_current(value, thread=threading.current_thread())

    @overload
    def state(self, descriptor: ValueStateDescriptor) -> ValueState: ...
    @overload
    def state(self, descriptor: ReducingStateDescriptor) -> ReducingState: ...
    @overload
    def state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState: ...
    @overload
    def state(self, descriptor: ListStateDescriptor) -> ListState: ...
    @overload
    def state(self, descriptor: MapStateDescriptor) -> MapState: ...
    @overload
    def state(self, descriptor: TimerStateDescriptor) -> TimerState: ...
    def state(self, descriptor: StateDescriptor) -> KeyedState[Any]:
        """Return the state with this descriptor, restored or new.

        The first call for a restored state may declare another type, if the stored rows can be converted (see
        `SchemaEvolution`), and another time to live. Rows are converted when they are read; no file is written again.

        Raises
        ------
        IncompatibleStateError
            If a state of this name has another kind, type or reducer, and stored rows cannot follow.
        InvalidInputError
            If the name differs from another state's only in case, or its columns clash with the key's.
        """
        if not isinstance(descriptor, StateDescriptor):
            raise InvalidInputError(f"expected a state descriptor, got {type(descriptor).__name__}")
        have = self._states.get(descriptor.name)
        if have is None:
            check_new_name(descriptor.name, self._states, self._untouched)
            self._check_evolution(descriptor)
            return self._add(descriptor, ())
        if descriptor.name in self._untouched:
            return self._adopt(descriptor)
        check_same_state(have.descriptor, descriptor)
        if have.descriptor.ttl != descriptor.ttl:
            raise InvalidInputError(
                f"state {descriptor.name!r} is in use with {have.descriptor.ttl or 'no time to live'}, "
                f"got {descriptor.ttl or 'none'}; it may change after a restore"
            )
        used, given = computed_by(have.descriptor), computed_by(descriptor)
        if used != given:
            raise InvalidInputError(f"state {descriptor.name!r} is in use with {used}, got {given}; use one descriptor")
        return have

    def keys(self, state: StateDescriptor | str, namespace: Any = None) -> pa.RecordBatch:
        """Return each key that has a row in a state.

        Parameters
        ----------
        state
            The name or descriptor of a state of this backend.
        namespace
            For a state with namespaces: the only one to look at; all of them by default.

        Returns
        -------
        pa.RecordBatch
            The key columns, not null; each key once, in the order of the key hash.

        Raises
        ------
        InvalidInputError
            If there is no such state, or it has no namespaces.
        """
        return distinct_keys(self._state_of(state), namespace)

    def keys_and_namespaces(self, state: StateDescriptor | str) -> pa.RecordBatch:
        """Return each key and namespace that has a row in a state.

        Returns
        -------
        pa.RecordBatch
            The key columns and the namespace columns, not null; each pair once, in the order of the key hash.

        Raises
        ------
        InvalidInputError
            If there is no such state, or it has no namespaces.
        """
        found = self._state_of(state)
        if found.descriptor.namespace is None:
            raise InvalidInputError(f"state {found.descriptor.name!r} has no namespaces; ask for its keys")
        return distinct_keys_and_namespaces(found)

    def apply_to_all_keys(
        self, namespace: Any, descriptor: StateDescriptor, function: Callable[[Any, Any], object]
    ) -> None:
        """Call a function with each key that has a row in a state, and the state with this key as the current one.

        The keys are those at the time of the call, so the function may clear, update and add. If it raises, its changes
        for earlier keys stay, and its changes for this key are undone. Afterwards the current key and namespace are as
        before.

        Parameters
        ----------
        namespace
            For a state with namespaces the one to go through, else None.
        descriptor
            The state.
        function
            Called with (key, state): the key as a plain value, or a tuple for several key columns.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> clicks = arrowstate.ReducingStateDescriptor(
        ...     "clicks", pa.int64(), reduce="sum", namespace=pa.schema([("day", pa.int32())])
        ... )
        >>> backend.state(clicks).add_batch(["ann", "bob"], [3, 4], namespace=pa.array([1, 2], pa.int32()))
        >>> sorted(backend.keys(clicks)["user"].to_pylist()), backend.keys(clicks, namespace=2)["user"].to_pylist()
        (['ann', 'bob'], ['bob'])
        >>> sorted(backend.keys_and_namespaces(clicks).to_pylist(), key=str)
        [{'user': 'ann', 'day': 1}, {'user': 'bob', 'day': 2}]
        >>> backend.apply_to_all_keys(2, clicks, lambda key, state: state.clear())
        >>> backend.keys(clicks)["user"].to_pylist()
        ['ann']
        """
        state = self._state_of(descriptor)
        if namespace is None and state.descriptor.namespace is not None:
            raise InvalidInputError(f"state {state.descriptor.name!r} has namespaces; name the one to go through")
        keys = distinct_keys(state, namespace)
        with self._context.kept(), state.kept_namespace():
            if namespace is not None:
                state.current_namespace = namespace
            for row in range(keys.num_rows):
                with self._context.transactions.begun():
                    function(self._context.set_row(keys.columns, row), state)

    def key_group_sizes(self, state: StateDescriptor | str) -> pa.Table:
        """Return how large a state is by key group.

        Returns
        -------
        pa.Table
            `key_group` int32, `rows` int64, `bytes` int64, without nulls; a row per key group that has rows. Bytes
            are those of the columns, before encoding and compression; nested columns count with their average.
        """
        return sizes_by_key_group(self._state_of(state), self._context.max_parallelism)

    def state_sizes(self) -> pa.Table:
        """Return how large each state is.

        Returns
        -------
        pa.Table
            `state` string, `kind` string, `rows` int64, `bytes` int64, without nulls; a row per state.
        """
        sizes = {name: self.key_group_sizes(name) for name in self._states}
        return pa.table(
            [
                pa.array(list(sizes), pa.string()),
                pa.array([state.descriptor.kind for state in self._states.values()], pa.string()),
                pa.array([sum(table["rows"].to_pylist()) for table in sizes.values()], pa.int64()),
                pa.array([sum(table["bytes"].to_pylist()) for table in sizes.values()], pa.int64()),
            ],
            names=["state", "kind", "rows", "bytes"],
        )

    def largest_keys(self, state: StateDescriptor | str, limit: int = 10) -> pa.Table:
        """Return the keys with the most rows in a state: elements, entries and namespaces.

        Returns
        -------
        pa.Table
            The key columns, `_rows` int64 and `_bytes` int64, without nulls; at most `limit` rows, the largest first.
        """
        limit = check_integer("the limit", limit, 0)
        return largest_keys(self._state_of(state), limit)

    def _check_evolution(self, descriptor: StateDescriptor) -> None:
        """Refuse a new state that says how stored rows become its own: it would start empty beside them."""
        if self._stored and names_fields(descriptor.evolution):
            raise InvalidInputError(
                f"no stored state is named {descriptor.name!r}, so its evolution has no rows to apply to; stored are "
                f"{', '.join(map(repr, self._stored))}. An evolution renames fields of a state; the state itself is "
                f"renamed by restore(..., rename={{'old': {descriptor.name!r}}}). For a new state leave it out"
            )

    def _adopt(self, descriptor: StateDescriptor) -> KeyedState[Any]:
        """Take a restored state up with its first descriptor."""
        name = descriptor.name
        self.migrate(evolve_state(self._stored[name], self._key_fields, descriptor))
        self._untouched.discard(name)
        have = self._states[name]
        if (have.descriptor.ttl is None) != (descriptor.ttl is None):
            return self._add(descriptor, have.runs_with_times(descriptor))
        # What was restored knows no default and no callable; this descriptor brings them.
        have.adopt(descriptor)
        return have

    def migrate(self, document: StateDocument) -> None:
        """Give a restored state the schema of a document that continues its own."""
        stored = self._stored.get(document.name)
        if stored is None or document.schema_version <= stored.schema_version:
            return
        have = self._states[document.name]
        document = msgspec.structs.replace(document, time_to_live=stored.time_to_live)
        _, convert = RunSchemas(self._key_fields, document).of_version(stored.schema_version)
        assert convert is not None, "an older version is never the current one"
        self._stored[document.name] = document
        self._add(descriptor_of(document), tuple(run.with_conversion(convert) for run in have.table.runs))

    def group_keys(self, keys: Any) -> KeyBatch:
        """Return the distinct keys of a batch, checked and hashed, and which rows have them.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError
            If a key does not fit the key schema or belongs to another subtask.
        """
        return self._context.group(self._context.columns(keys))

    def clear_key(self, keys: Any) -> None:
        """Remove some keys from all states: their rows in all namespaces, their windows and their timers.

        Restored states that nobody has asked for are cleared too. If it raises, nothing is removed. The cost depends
        only on the rows of these keys.

        Parameters
        ----------
        keys
            An Array for one key column, else a RecordBatch or StructArray with the key schema; a key may come more
            than once, and one without rows is passed over.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError
            If a key does not fit the key schema or belongs to another subtask.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> pages = backend.state(arrowstate.ListStateDescriptor("pages", pa.string()))
        >>> pages.add_batch(["ann", "bob"], ["/", "/"])
        >>> backend.timers().register_batch(["ann"], [99])
        >>> backend.clear_key(["ann"])
        >>> pages.get_batch(["ann", "bob"]).to_pylist(), len(backend.timers())
        ([[], ['/']], 0)
        """
        grouped = self.group_keys(keys)
        with self.transaction():
            for state in self._states.values():
                state.clear_keys(grouped)

    @property
    def watermark(self) -> int | None:
        """The event time, in milliseconds, up to which everything has come; None before the first watermark."""
        return self._context.watermark

    def advance_watermark(self, watermark: int) -> None:
        """Advance event time to a watermark in milliseconds since 1970; one below the current one is passed over.

        Raises
        ------
        InvalidInputError
            If it is no integer of 64 bits.
        """
        watermark = check_integer("watermark", watermark)
        if self._context.watermark is None or watermark > self._context.watermark:
            self._context.watermark = watermark

    def timers(self, name: str = "timers", namespace: pa.Schema | None = None) -> TimerService:
        """Return the timers of this name, restored or new: the states `<name>_event_time` and `<name>_processing_time`.

        Parameters
        ----------
        name
            Unique within the operator.
        namespace
            The namespace columns, for timers that belong to a key and a namespace such as a window.

        Raises
        ------
        IncompatibleStateError
            If there are timers of this name with other namespaces.
        """
        event = self.state(TimerStateDescriptor(f"{name}_event_time", "event_time", namespace=namespace))
        processing = self.state(TimerStateDescriptor(f"{name}_processing_time", "processing_time", namespace=namespace))
        return TimerService(event, processing, self._context)

    @property
    def current_timestamp(self) -> int | None:
        """The event time, in milliseconds, of the record that scalar verbs work for; None if it has none."""
        return self._context.timestamp

    @current_timestamp.setter
    def current_timestamp(self, timestamp: int | None) -> None:
        self._context.timestamp = check_integer("current_timestamp", timestamp, optional=True)

    @property
    def transactions(self) -> Transactions:
        """What takes part in the transactions of the backend, for what looks after its states."""
        return self._context.transactions

    def transaction(self, *others: Participant) -> AbstractContextManager[None]:
        """Make one step of several verbs: changes in the block stay if it ends, and are undone if it raises.

        That covers all rows of all states and timers, the watermark, the current key, timestamp and namespaces. A state
        that was made in the block stays, without the rows written to it. To begin a transaction costs the same for any
        number of rows. Transactions may be nested.

        Parameters
        ----------
        others
            Operator states and broadcast states that take part too.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("account", pa.string())]), max_parallelism=128)
        >>> money = backend.state(arrowstate.ReducingStateDescriptor("money", pa.int64(), reduce="sum"))
        >>> try:
        ...     with backend.transaction():
        ...         money.add_batch(["ann"], [-5])
        ...         money.add_batch(["bob"], ["five"])
        ... except arrowstate.ValueTypeError:
        ...     print(money.get_batch(["ann"]).to_pylist())
        [None]
        """
        return self._context.transactions.begun(others)

    def freeze(self) -> FrozenSubtask:
        """Return all states as they are now; later writes do not change the result.

        No row is copied and nothing is written; the cost grows with the live bits alone (one bit per row).
        """
        with self._context.transactions.owned():
            states = tuple(
                FrozenState(
                    state_document(state.descriptor, state.layout, self._key_fields, self._stored.get(name)),
                    state.freeze(),
                )
                for name, state in self._states.items()
            )
        return FrozenSubtask(
            tuple(self._key_fields), self.max_parallelism, self.key_groups, states, self.watermark, self._dropped
        )

    def take_up(
        self,
        key: Sequence[FieldDocument],
        states: Iterable[tuple[StateDocument, tuple[Run, ...]]],
        dropped: Iterable[str] = (),
    ) -> None:
        """Hold restored states until an operator asks for them; untouched, they are part of the next snapshot.

        `dropped` are stored states that are not among them, on purpose.
        """
        self._key_fields = list(key)
        self._dropped = frozenset(dropped)
        self.was_stored = True
        for document, runs in states:
            self._stored[document.name] = document
            self._add(descriptor_of(document), runs, layout_of(self._key_fields, document)[0])
            self._untouched.add(document.name)

    def _add(
        self, descriptor: StateDescriptor, runs: tuple[Run, ...], layout: StateLayout | None = None
    ) -> KeyedState[Any]:
        layout = layout or StateLayout.of(self._context.key, descriptor)
        policy = self._policy or MergePolicy()
        table = Table(
            layout.schema,
            len(layout.key),
            runs=runs,
            policy=policy.for_appends() if descriptor.kind == "list" else policy,
            budget=self._budget,
        )
        state: KeyedState[Any] = _KINDS[descriptor.kind](descriptor, layout, table, self._context)
        self._states[descriptor.name] = state
        self._context.transactions.join(state)
        return state

    def _state_of(self, state: StateDescriptor | str) -> KeyedState[Any]:
        name = str(getattr(state, "name", state))
        found = self._states.get(name)
        if found is None:
            raise InvalidInputError(f"the backend has no state {name!r}; it has {', '.join(self._states) or 'none'}")
        return found
