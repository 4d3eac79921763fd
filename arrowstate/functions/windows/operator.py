"""The window operator: elements go into windows, windows fire by event time or by count, and are removed.

All it knows is in the keyed state of its backend, so a snapshot holds it and a rescale moves it. The contents of a
window are a state in the namespace (window_start, window_end). Which windows are due is read from these columns: the
watermark has passed a window when `window_end - 1` is up to it, and passes it for good `allowed_lateness_ms` later,
when the window is removed. Where windows stay after they have fired, a timer of each says that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import InvalidInputError, ProcessElementError, ValueTypeError
from arrowstate.functions.windows.assigners import (
    CountWindows,
    SessionWindows,
    SlidingWindows,
    WindowAssigner,
    clock_of,
    slices,
)
from arrowstate.functions.windows.assigning import WINDOW, Batch, WindowOutput, Windows, assign, assign_sessions
from arrowstate.functions.windows.triggers import HIGHEST, LOWEST, Progress, Trigger, check_triggers
from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    TimerStateDescriptor,
)
from arrowstate.schema.encodings import without_views
from arrowstate.schema.keys import key_columns, value_array
from arrowstate.schema.times import saturated, timestamp_array
from arrowstate.schema.types import as_arrow, first_null
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.base import KeyedState
from arrowstate.state.inspection import namespaces_of
from arrowstate.state.kinds.list import ListState
from arrowstate.state.kinds.reducing import ReducingState, countable
from arrowstate.state.kinds.timers import TimerState
from arrowstate.table.columns import canonical_floats, columns_equal, take
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.pair_kernels import sort_by_pair
from arrowstate.table.table import gather
from arrowstate.table.time_column import Rows, TimeColumn
from arrowstate_formats.key_hash import hash_columns

Ints = npt.NDArray[np.int64]

_FEWEST_FOLDED = 64
"""Of fewer rows each is added by itself."""


class WindowOperator:
    """Windows over the elements of each key.

    All rows of a batch go into their windows, and then a window fires at most once for the batch. Rows of one batch do
    not make each other late: a late row that joins a session together with other rows of its batch is in the session.

    Parameters
    ----------
    backend
        Holds the states: the contents of the windows under the name of the descriptor, and beside it `<name>_count` for
        a trigger with a count, `<name>_seen` for count windows, and `<name>_fired` for lateness.
    windows
        One of the assigners of this package.
    descriptor
        The state with the content of the windows: reducing, aggregating or list, without namespaces and without a time
        to live. Values are added in the order of the rows; if sessions merge, those of the earlier session come first.
    trigger
        When windows fire; by default when the watermark passes their end. Global windows need a trigger with a count.
        Count windows take no trigger. Session windows take none that purges, since a purged session cannot be merged.
    allowed_lateness_ms
        For how long after its end a window takes late elements and fires again, 0 to 2^63 - 1; event time only.

    Raises
    ------
    InvalidInputError
        If the arguments do not fit each other.
    IncompatibleStateError
        If a state of one of these names is of another kind or type.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.windows import TumblingEventTimeWindows, WindowOperator
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> hourly = WindowOperator(backend, TumblingEventTimeWindows(3_600_000), clicks)
    >>> _ = hourly.process(["ann", "bob", "ann"], [1_000, 2_000, 3_600_000], [1, 5, 7])
    >>> hourly.advance_watermark(3_600_000).to_pylist()
    [{'user': 'bob', 'window_start': 0, 'window_end': 3600000, 'clicks': 5}, \
{'user': 'ann', 'window_start': 0, 'window_end': 3600000, 'clicks': 1}]
    >>> hourly.process(["bob"], [3_599_999], [1]).late.to_pylist()
    [{'user': 'bob', 'timestamp': 3599999, 'clicks': 1}]
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        windows: WindowAssigner,
        descriptor: ReducingStateDescriptor | AggregatingStateDescriptor | ListStateDescriptor,
        *,
        trigger: Trigger | None = None,
        allowed_lateness_ms: int = 0,
    ) -> None:
        check_triggers(windows, descriptor, trigger, allowed_lateness_ms)
        self._backend = backend
        self._windows = windows
        self._trigger = trigger or Trigger()
        self._lateness = int(allowed_lateness_ms)
        self._clock = clock_of(windows)
        self._contents = backend.state(replace(descriptor, namespace=WINDOW))
        self._counts: ReducingState | None = None
        self._seen: ReducingState | None = None
        self._fired: TimerState | None = None
        name = descriptor.name
        if self._trigger.count is not None:
            self._counts = backend.state(
                ReducingStateDescriptor(f"{name}_count", pa.int64(), reduce="count", namespace=WINDOW)
            )
        elif isinstance(windows, CountWindows):
            self._seen = backend.state(ReducingStateDescriptor(f"{name}_seen", pa.int64(), reduce="count"))
        is_marked = self._lateness and self._counts is None and not self._trigger.purging
        # With less lateness or another trigger, windows may still have been restored that fired and stayed.
        if is_marked or (self._clock == "event_time" and f"{name}_fired" in backend.state_names):
            self._fired = backend.state(TimerStateDescriptor(f"{name}_fired", "event_time", namespace=WINDOW))
        self._progress = Progress()
        backend.transactions.join(self._progress)
        # Windows that do not stay after they have fired are gone then.
        staying = self._counts is not None or self._fired is not None
        self._by_window = [state for state in (self._contents, self._counts) if state is not None]
        self._to_fire = self._by_end(self._contents)
        self._to_remove = [self._by_end(state) for state in self._by_window if staying]
        self._schema = _schema(self._contents)
        self._nothing = pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in self._schema], schema=self._schema
        )

    def _by_end(self, state: KeyedState[Any]) -> TimeColumn:
        ends = TimeColumn(state.table, state.layout.first_value - 1)
        self._backend.transactions.join(ends)
        return ends

    def __repr__(self) -> str:
        return f"<WindowOperator {self._windows!r}, {self._contents.descriptor.name!r}>"

    @property
    def _time(self) -> int | None:
        """How far the clock is that windows end by."""
        return self._progress.processing_time if self._clock == "processing_time" else self._backend.watermark

    @property
    def late_rows(self) -> int:
        """How many rows have come too late since the operator was made."""
        return self._progress.late_rows

    def process(self, keys: Any, timestamps: Any, values: Any) -> WindowOutput:
        """Put each row into its windows.

        Parameters
        ----------
        keys
            An Array for one key column, else a RecordBatch or StructArray with the key schema.
        timestamps
            As many event times: milliseconds since 1970 or Arrow timestamps, finer ones rounded down; for windows by
            processing time the times at which the rows are processed. None for global and for count windows.
        values
            As many values for the state, without nulls.

        Returns
        -------
        WindowOutput
            `fired`: the windows that late elements or a count made fire at once, as `advance_watermark` returns them.
            `late`: the late rows in the order of the batch: the key columns; `timestamp` int64, milliseconds since
            1970; the values, in a column named after the state. No nulls. `late_row_numbers` has their numbers in the
            batch.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError, ValueTypeError, InvalidInputError
            If a key, timestamp or value does not fit, or is null.
        ValueOverflowError, ProcessElementError
            If a sum does not fit its type, or a reducer raises.
        StorageFullError
            If the disk has no room for spilled runs. After any error all states are as before the batch.
        """
        with self._backend.transaction():
            return self._process(self._checked(keys, timestamps, values))

    def _process(self, batch: Batch) -> WindowOutput:
        watermark = self._time
        removed = self._removed_end(watermark)
        folded, members = batch, None
        if isinstance(self._windows, SessionWindows):
            known = self._backend.group_keys(self._key_rows(batch.keys))
            have = namespaces_of(self._contents, known)
            assigned = assign_sessions(self._windows.gap_ms, batch, known, *have, removed)
        else:
            folded, members = self._folded(batch)
            assigned = assign(self._windows, folded)
        windows, rows = assigned.windows, assigned.rows
        late = np.empty(0, dtype=np.int64)
        if self._clock is not None and (len(windows) < len(folded.values) or (windows.ends <= removed).any()):
            pairs = np.flatnonzero(windows.ends > removed)
            rows, windows = assigned.row_of(pairs), windows.only(pairs)
            late = self._late(batch, rows, members, watermark, removed)
        due = np.flatnonzero(windows.ends <= self._due_end(batch, rows, watermark))
        sources, targets = assigned.sources, assigned.targets
        if sources is not None and targets is not None:
            with _naming_row(partial(_row_in, assigned.windows, targets)):
                self._merge(sources, targets)
        given = folded.values if rows is None else take(folded.values, rows)
        if members is not None and isinstance(self._contents, ReducingState):
            self._contents.add_partials_batch(self._key_rows(windows.keys), given, namespace=windows.namespace)
        else:
            with _naming_row(lambda pair: pair if rows is None else rows[pair]):
                self._contents.add_batch(self._key_rows(windows.keys), given, namespace=windows.namespace)
        if self._seen is not None:
            self._seen.add_batch(self._key_rows(batch.keys), batch.values)
        if self._fired is not None and not self._fired.none_after(LOWEST if watermark is None else watermark):
            # The watermark was restored to before the end of windows that have fired; these will fire again.
            self._change_fired(windows, registered=False)
        fired = self._fire_touched(windows, due, given)
        self._progress.late_rows += late.size
        return WindowOutput(fired, self._late_batch(batch, late), pa.array(late))

    def advance_watermark(self, watermark: int) -> pa.RecordBatch:
        """Advance event time of the backend, fire the windows that it passes, and remove those that are over.

        Parameters
        ----------
        watermark
            Milliseconds since 1970. A watermark below the current one is ignored: nothing fires.

        Returns
        -------
        pa.RecordBatch
            The key columns; `window_start` and `window_end` int64, milliseconds since 1970, the end exclusive; the
            result, as the state's `get_batch` returns it, in a column named after the state. A row per window and
            key, in the order of `window_end`, then of the key's hash. No nulls. If an earlier column has the same name,
            the name of the state and `_` come before it.

        Raises
        ------
        ProcessElementError, ValueTypeError
            If an aggregate of your own fails; the states and the watermark are then as before.
        StorageFullError
            If the disk has no room for spilled runs; the states and the watermark are as before then.
        """
        time = saturated(watermark)
        current = self._backend.watermark
        if current is not None and time < current:
            return self._nothing
        with self._backend.transaction():
            return self._advance(time)

    def _advance(self, time: int) -> pa.RecordBatch:
        fired = self._pass(time) if self._clock == "event_time" else self._nothing
        self._backend.advance_watermark(time)
        return fired

    def advance_processing_time(self, now_ms: int) -> pa.RecordBatch:
        """Let processing time pass: fire and remove the windows by processing time that end up to it.

        Parameters
        ----------
        now_ms
            Milliseconds since 1970. A time below an earlier one is ignored: nothing fires.

        Returns
        -------
        pa.RecordBatch
            As `advance_watermark`; the errors too.
        """
        time = saturated(now_ms)
        if self._clock != "processing_time" or time < self._progress.processing_time:
            return self._nothing
        with self._backend.transaction():
            fired = self._pass(time)
            self._progress.processing_time = time
        return fired

    def next_processing_time(self) -> int | None:
        """Return the processing time at which the next window fires or is removed, None if there is none.

        Returns
        -------
        int or None
            Milliseconds since 1970.
        """
        if self._clock != "processing_time":
            return None
        for state in self._by_window:
            state.flush()
        ends = [rows.earliest() for rows in (self._to_fire, *self._to_remove)]
        return min((end for end in ends if end is not None), default=None)

    def _pass(self, time: int) -> pa.RecordBatch:
        """Fire the windows that a time passes, and remove those that it passes for good."""
        passed, removed = self._passed_end(time), self._removed_end(time)
        for state in self._by_window:
            state.flush()
        fired = self._fire_passed(passed, removed) if self._counts is None else self._nothing
        for rows in self._to_remove:
            rows.remove(rows.find(removed))
        if self._fired is not None:
            self._fired.pop_due(removed - 1)
        return fired

    # From rows to windows

    def _checked(self, keys: Any, timestamps: Any, values: Any) -> Batch:
        """Return the batch in columns, after looking at everything but the types of the values."""
        columns = [canonical_floats(column) for column in key_columns(keys, self._backend.key)]
        rows = len(columns[0])
        given = self._value_column(values, rows)
        if self._clock is None:
            if timestamps is not None:
                raise InvalidInputError(f"{self._windows!r} knows no time; pass None for the timestamps")
            if self._seen is None:
                return Batch(columns, given, np.empty(0, dtype=np.int64))
            return self._positions(columns, given)
        if timestamps is None:
            raise InvalidInputError(f"{self._windows!r} needs a timestamp for each row, got None")
        times = timestamp_array(self._contents.descriptor.name, timestamps, round_down=True).to_numpy()
        if times.size != rows:
            raise InvalidInputError(f"{rows} keys need {rows} timestamps, got {times.size}")
        if self._clock == "processing_time":
            # A clock that was set back must not lead rows into windows that have fired.
            times = np.maximum(times, self._progress.processing_time)
        return Batch(columns, given, times)

    def _value_column(self, values: Any, rows: int) -> pa.Array:
        descriptor, values = self._contents.descriptor, as_arrow(values)
        if isinstance(values, pa.RecordBatch):
            values = values.to_struct_array()
        # What a count counts may have any type; the state itself looks at the others.
        try:
            kind = values.type if isinstance(values, (pa.Array, pa.ChunkedArray)) else descriptor.type
            column = value_array(values, kind, rows, descriptor.name)
        except ValueTypeError:
            values = countable(descriptor, values)
            kind = values.type if isinstance(values, pa.Array) else descriptor.type
            column = value_array(values, kind, rows, descriptor.name)
        if column.null_count:
            row = first_null(column)
            raise InvalidInputError(f"a value of a window must not be null, the one in row {row} is")
        return without_views(column, descriptor.name)

    def _positions(self, keys: list[pa.Array], values: pa.Array) -> Batch:
        """Number the elements of each key, on from those it has had."""
        assert self._seen is not None
        batch = self._backend.group_keys(self._key_rows(keys))
        before = self._seen.read_keys(batch).fill_null(0).to_numpy()
        counts = np.diff(batch.starts)
        positions = np.empty(batch.row_count, dtype=np.int64)
        positions[batch.order] = np.repeat(before - batch.starts[:-1], counts) + np.arange(batch.row_count)
        return Batch(keys, values, positions, (before + counts)[batch.groups()])

    def _folded(self, batch: Batch) -> tuple[Batch, Ints | None]:
        """Fold the rows of a key that go into the same windows into one; return which of these each row is part of.

        So what windows that overlap have in common is folded once. The batch stays as it is where its rows must be
        added one by one, or few have a key and their windows in common.
        """
        windows, contents = self._windows, self._contents
        if not isinstance(windows, SlidingWindows) or not isinstance(contents, ReducingState):
            return batch, None
        if self._counts is not None or len(batch.values) < _FEWEST_FOLDED or windows.size_ms < 2 * windows.slide_ms:
            return batch, None
        begin = slices(batch.places, windows.size_ms, windows.slide_ms, windows.offset_ms)
        rows = KeyBatch.of(hash_columns(batch.keys), batch.keys, seconds=begin)
        if 2 * len(rows) > rows.row_count:
            return batch, None
        values = contents.partials_of(batch.values, rows)
        if values is None:
            return batch, None
        first = rows.order[rows.starts[:-1]]
        return Batch(list(rows.columns), values, batch.places[first]), rows.groups()

    def _late(self, batch: Batch, accepted: Ints, members: Ints | None, watermark: int | None, removed: int) -> Ints:
        """Return the rows that are in no window any more and late themselves; others lie in the gaps of windows."""
        if watermark is None or self._clock == "processing_time":
            return np.empty(0, dtype=np.int64)
        dropped = np.ones(len(batch.values), dtype=np.bool_)
        dropped[accepted] = False
        if members is not None:
            dropped = dropped[members]
        # Of the windows that end at the highest time the last millisecond is that time itself.
        limit = removed if removed == HIGHEST else max(watermark - self._lateness, LOWEST)
        return np.flatnonzero(dropped & (batch.places <= limit))

    def _late_batch(self, batch: Batch, rows: Ints) -> pa.RecordBatch:
        """Return rows for the side output."""
        name = self._contents.descriptor.name
        fields = list(self._backend.key)
        fields.append(_field(name, "timestamp", pa.int64(), fields))
        fields.append(_field(name, name, batch.values.type, fields))
        times = pa.array(batch.places[rows])
        columns = [*(take(key, rows) for key in batch.keys), times, take(batch.values, rows)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    # From windows to results

    def _removed_end(self, watermark: int | None) -> int:
        """Return the highest end of windows that the watermark has passed for good."""
        if watermark is None or watermark == HIGHEST or self._clock == "processing_time":
            return self._passed_end(watermark)
        return max(watermark - self._lateness + 1, LOWEST)

    def _passed_end(self, time: int | None) -> int:
        """Return the highest end of windows that a time has passed.

        At a watermark no row of that time is to come. At a processing time one may be: its window ends later.
        """
        if time is None or self._clock == "processing_time":
            return LOWEST if time is None else time
        return min(time + 1, HIGHEST)

    def _due_end(self, batch: Batch, rows: Ints | None, watermark: int | None) -> Any:
        """Return up to which end windows fire with this batch."""
        if batch.totals is not None:
            return batch.totals if rows is None else batch.totals[rows]
        return self._passed_end(watermark) if self._clock is not None and self._counts is None else LOWEST

    def _merge(self, sources: Windows, targets: Windows) -> None:
        keys = self._key_rows(sources.keys)
        for state in self._by_window:
            state.merge_namespaces_batch(keys, targets.namespace, sources.namespace)
        self._change_fired(sources, registered=False)

    def _change_fired(self, windows: Windows, *, registered: bool) -> None:
        """Note that windows have fired, or that they will once more."""
        if self._fired is not None and len(windows) and not (registered and self._counts is not None):
            verb = self._fired.register_batch if registered else self._fired.delete_batch
            verb(self._key_rows(windows.keys), windows.ends - 1, namespace=windows.namespace)

    def _fire_touched(self, windows: Windows, due: Ints, values: pa.Array) -> pa.RecordBatch:
        """Fire those of the windows with new elements that do not wait for the watermark."""
        if self._counts is not None:
            self._counts.add_batch(self._key_rows(windows.keys), values, namespace=windows.namespace)
            windows = windows.distinct()
            counts = self._counts.get_batch(self._key_rows(windows.keys), namespace=windows.namespace)
            windows = windows.only(np.flatnonzero(counts.to_numpy() >= self._trigger.count))
            self._counts.clear_batch(self._key_rows(windows.keys), namespace=windows.namespace)
        else:
            windows = windows.only(due).distinct()
        if not len(windows):
            return self._nothing
        keys = self._key_rows(windows.keys)
        fired = self._results(windows, self._contents.get_batch(keys, namespace=windows.namespace))
        if self._trigger.purging or self._seen is not None:
            self._contents.clear_batch(keys, namespace=windows.namespace)
        self._change_fired(windows, registered=True)
        return fired

    def _fire_passed(self, passed: int, removed: int) -> pa.RecordBatch:
        """Fire the windows that have not fired and that end up to `passed`; keep those that end after `removed`."""
        found = self._to_fire.find(passed, self._progress.fired_end)
        fired = self._nothing
        if found:
            windows, values = self._read(found)
            if self._fired is not None and len(self._fired):
                keys = self._key_rows(windows.keys)
                known = self._fired.contains_batch(keys, windows.ends - 1, namespace=windows.namespace)
                fresh = np.flatnonzero(~known)
                windows, values = windows.only(fresh), take(values, fresh)
            fired = self._results(windows, values)
            if self._fired is None:
                self._to_fire.remove(found)
            else:
                if self._trigger.purging:
                    self._contents.clear_batch(self._key_rows(windows.keys), namespace=windows.namespace)
                self._change_fired(windows.only(np.flatnonzero(windows.ends > removed)), registered=True)
        self._progress.fired_end = passed
        return fired

    def _read(self, found: Rows) -> tuple[Windows, pa.Array]:
        """Return the windows and results of rows, in the order of the end of the window, then of the key's hash."""
        keys = len(self._backend.key)
        schema = self._contents.layout.schema
        first = 1 if self._contents.layout.second is None else 2
        columns = [gather(found, number, schema.field(number).type) for number in range(first, len(schema))]
        windows = Windows(columns[:keys], columns[keys].to_numpy(), columns[keys + 1].to_numpy())
        if isinstance(self._contents, ListState):
            windows = windows.distinct()
            return windows, self._contents.get_batch(self._key_rows(windows.keys), namespace=windows.namespace)
        order = sort_by_pair(windows.ends, gather(found, 0, pa.int64()).to_numpy())
        return windows.only(order), take(self._contents.values_of(columns[keys + 2 :]), order)

    def _results(self, windows: Windows, values: pa.Array) -> pa.RecordBatch:
        if values.null_count:
            # A reducer that is a callable may return None, and then a window has no result.
            present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            windows, values = windows.only(present), take(values, present)
        columns = [*windows.keys, *windows.namespace.columns, values]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _key_rows(self, columns: Sequence[pa.Array]) -> Any:
        """Return key columns as the verbs of a state take them."""
        return columns[0] if len(columns) == 1 else pa.RecordBatch.from_arrays(columns, schema=self._backend.key)


def _schema(contents: KeyedState[Any]) -> pa.Schema:
    """Return the schema of results."""
    descriptor = contents.descriptor
    kind = descriptor.type
    if isinstance(descriptor, AggregatingStateDescriptor):
        kind = descriptor.result_type
    elif isinstance(descriptor, ListStateDescriptor):
        kind = pa.list_(kind)
    before = [*contents.layout.key, *contents.layout.namespace_fields]
    return pa.schema([*before, _field(descriptor.name, descriptor.name, kind, before)])


def _field(state: str, name: str, kind: pa.DataType, before: Sequence[pa.Field]) -> pa.Field:
    taken = {field.name.lower() for field in before}
    return pa.field(f"{state}_{name}" if name.lower() in taken else name, kind, nullable=False)


@contextmanager
def _naming_row(row_of: Callable[[int], Any]) -> Iterator[None]:
    """Have the error of a reducer name the row of the batch in the place of the row that the state was given."""
    try:
        yield
    except ProcessElementError as error:
        raise ProcessElementError(int(row_of(error.row)), error.detail) from error.__cause__


def _row_in(windows: Windows, merged: Windows, number: int) -> int:
    """Return the first row of a batch whose session is one of those that others become part of."""
    found = windows.starts == merged.starts[number]
    for keys, key in zip(windows.keys, merged.keys, strict=True):
        found &= columns_equal(keys, take(key, np.full(len(keys), number)))
    return int(np.flatnonzero(found)[0])
