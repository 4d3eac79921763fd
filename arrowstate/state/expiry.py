"""Expiry: when the rows of a state with a time to live are gone, and which time they carry.

Each row has the time of its last update in its last column. A row that has expired counts as absent, and is removed
where it is met: on a read, in a merge, and by a savepoint. Without a time to live nothing here does anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import StateDescriptor
from arrowstate.schema.layout import StateLayout
from arrowstate.schema.times import expired_up_to, timestamp_array
from arrowstate.state.current_key import KeyContext
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.run import Run
from arrowstate.table.table import Found, FrozenTable, Table, gather

Ints = npt.NDArray[np.int64]
Rows = list[tuple[Run, Ints, Ints]]

UNKNOWN_TIME = int(np.iinfo(np.int64).max)
"""The time of rows that were written before one was known: they do not expire before they are written again."""


class Expiry:
    """The time to live of a state."""

    def __init__(self, descriptor: StateDescriptor, layout: StateLayout, table: Table, context: KeyContext) -> None:
        self.descriptor = descriptor
        self._layout = layout
        self._table = table
        self._context = context
        self._column = len(layout.schema) - 1

    # Times of rows

    def times(self, rows: int, timestamps: Any) -> list[pa.Array]:
        """Return the `_updated_at` column for rows written now, nothing where there is no time to live."""
        ttl, name = self.descriptor.ttl, self.descriptor.name
        if ttl is None:
            if timestamps is not None:
                raise InvalidInputError(f"state {name!r} has no time to live, so it takes no timestamps")
            return []
        if timestamps is not None:
            if ttl.clock != "event_time":
                raise InvalidInputError(f"state {name!r} expires by processing time, so it takes no timestamps")
            column = timestamp_array(name, timestamps, round_down=True, saturate=False)
            if len(column) != rows:
                raise InvalidInputError(f"{rows} rows need {rows} timestamps, got {len(column)}")
            return [column]
        if not rows:
            return [pa.array([], pa.int64())]
        return [_all(rows, self._context.time_of_update(ttl.clock, name))]

    def times_of_values(self, values: pa.Array, timestamps: Any) -> list[pa.Array]:
        """Return the `_updated_at` column for rows with these values; nulls, which remove, need no time."""
        timed = timestamps is not None or values.null_count < len(values)
        return self.times(len(values), timestamps) if timed else self.no_times(len(values))

    def no_times(self, rows: int) -> list[pa.Array]:
        """Return what stands in the place of `_updated_at` for rows that are removed."""
        return [] if self.descriptor.ttl is None else [_all(rows, 0)]

    def time_now(self) -> int | None:
        """Return the time that rows written now carry, None if none is known."""
        ttl = self.descriptor.ttl
        return None if ttl is None else self._context.known_time(ttl.clock)

    def times_of(self, found: Found) -> pa.Array:
        """Return the time of the last update of each key's row, null where the key has none."""
        return found.column(self._column, pa.int64())

    def times_of_rows(self, found: Rows) -> pa.Array | None:
        """Return the time of the last update of each row, None where there is no time to live."""
        return None if self.descriptor.ttl is None else gather(found, self._column, pa.int64())

    def youngest(self, found: Found, updated: list[pa.Array]) -> list[pa.Array]:
        """Return these times, or those of the rows found where they are later."""
        if not updated or not found.hits:
            return updated
        earlier = pc.coalesce(self.times_of(found), updated[0])
        return [pa.array(np.maximum(updated[0].to_numpy(), earlier.to_numpy()))]

    def written(self, found: Found, updated: list[pa.Array]) -> list[pa.Array]:
        """Return the times of what is written now together with the rows found: the later ones that are known."""
        if not updated or not found.hits:
            return updated
        unknown = pc.equal(self.times_of(found), UNKNOWN_TIME)
        return [pc.if_else(pc.fill_null(unknown, False), updated[0], self.youngest(found, updated)[0])]

    # Rows that have expired

    def cutoff(self) -> int | None:
        """Return the last time of update that has expired by now, None if nothing can have."""
        ttl = self.descriptor.ttl
        return None if ttl is None else expired_up_to(ttl.ttl_ms, self._context.now(ttl.clock))

    def late(self, updated: list[pa.Array]) -> npt.NDArray[np.bool_] | None:
        """Return which of these rows nobody sees any more once they are written, None if all are seen."""
        ttl = self.descriptor.ttl
        cutoff = None if ttl is None or ttl.clock != "event_time" else self.cutoff()
        if cutoff is None or not self._hides():
            return None
        late = updated[0].to_numpy() <= cutoff
        return late if late.any() else None

    def without_unknown(self, found: Found, numbers: Ints) -> Found:
        """Return where the keys are as if those of these numbers were absent whose rows have no known time."""
        unknown = pc.fill_null(pc.equal(self.times_of(found), UNKNOWN_TIME), False).to_numpy(zero_copy_only=False)
        return found.without(numbers[unknown[numbers]])

    def settle(self) -> None:
        """Merge and spill before a write; rows that have expired are left out of merges."""
        self._table.settle(expired_up_to=self.cutoff())

    def find(self, keys: KeyBatch) -> Found:
        """Find the rows of the keys; those that have expired count as absent and are removed."""
        found = self._table.find(keys)
        if not self._hides():
            return found
        expired = self.expired(found)
        if not expired.size:
            return found
        self._table.remove(found.only(expired))
        return found.without(expired)

    def find_rows(self, found: Rows) -> Rows:
        """Return these rows of the table; those that have expired count as absent and are removed."""
        if not self._hides():
            return found
        out = []
        for (run, numbers, rows), fresh, _ in self._with_fresh(found):
            self._table.kill(run, rows[~fresh])
            out.append((run, numbers[fresh], rows[fresh]))
        return out

    def expired(self, found: Found) -> Ints:
        """Return the numbers of the keys whose rows have expired."""
        cutoff = self.cutoff()
        if cutoff is None or not found.hits:
            return np.empty(0, dtype=np.int64)
        times = self.times_of(found)
        present = np.flatnonzero(times.is_valid().to_numpy(zero_copy_only=False))
        return present[times.fill_null(0).to_numpy()[present] <= cutoff]

    def unexpired(self, found: Found) -> Found:
        """Return where the keys are as if those whose rows have expired were absent; nothing is removed."""
        expired = self.expired(found)
        return found.without(expired) if expired.size else found

    def after_read(self, keys: KeyBatch, found: Found, values: pa.Array) -> None:
        """Remove what this read was the last to see, and renew the rest if that is the rule."""
        expired = self.expired(found)
        if expired.size:
            self._table.remove(found.only(expired))
        now = self._time_of_read()
        if now is None:
            return
        fresh = found.without(expired)
        older = np.flatnonzero(self.times_of(fresh).fill_null(now).to_numpy() < now)
        if older.size:
            columns = [*self._layout.split(values), _all(len(keys), now)]
            self._table.put(fresh.only(older), keys, columns, keep=older)
            self.settle()

    def seen(self, found: Rows) -> Rows:
        """Return the rows that a caller sees; remove those that have expired, renew the rest if that is the rule."""
        if self.descriptor.ttl is None:
            return found
        now = self._time_of_read()
        out, renewed = [], []
        for (run, numbers, rows), fresh, updated in self._with_fresh(found):
            if now is not None:
                # In the order of the run, which keys of one hash may not be asked for in.
                older = np.sort(rows[fresh & (updated < now)])
                if older.size:
                    part = [(run, older, older)]
                    columns = [gather(part, n, field.type) for n, field in enumerate(self._layout.schema)]
                    columns[self._column] = _all(older.size, now)
                    renewed.append((run, older, pa.RecordBatch.from_arrays(columns, schema=self._layout.schema)))
            self._table.kill(run, rows[~fresh])
            out.append((run, numbers[fresh], rows[fresh]) if self._hides() else (run, numbers, rows))
        for run, older, batch in renewed:
            self._table.kill(run, older)
            self._table.append(batch)
        if renewed:
            self.settle()
        return out

    def live(self, found: Rows) -> Rows:
        """Return the rows that have not expired; they are not renewed."""
        if self.cutoff() is None:
            return found
        return [(run, numbers[fresh], rows[fresh]) for (run, numbers, rows), fresh, _ in self._with_fresh(found)]

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch in the columns of the layout that have not expired."""
        cutoff = self.cutoff()
        if cutoff is None:
            return batch
        fresh = np.flatnonzero(batch.column(self._column).to_numpy() > cutoff)
        return batch if fresh.size == batch.num_rows else batch.take(pa.array(fresh))

    def _with_fresh(self, found: Rows) -> list[tuple[tuple[Run, Ints, Ints], npt.NDArray[np.bool_], Ints]]:
        """Return with the rows of each run which have not expired, and the times of their last update."""
        cutoff = self.cutoff()
        times = [gather([part], self._column, pa.int64()).to_numpy() for part in found]
        fresh = [np.ones(each.size, dtype=np.bool_) if cutoff is None else each > cutoff for each in times]
        return list(zip(found, fresh, times, strict=True))

    def _hides(self) -> bool:
        ttl = self.descriptor.ttl
        return ttl is not None and ttl.visibility == "never_return_expired"

    def _time_of_read(self) -> int | None:
        """Return the time that rows which are read get, None if they keep theirs."""
        ttl = self.descriptor.ttl
        return self._context.known_time(ttl.clock) if ttl is not None and ttl.update == "on_read_and_write" else None


def runs_with_times(frozen: FrozenTable, layout: StateLayout, now: int | None) -> tuple[Run, ...]:
    """Return the rows of a state in runs of the layout that it has with, or without, a time to live.

    Rows that get a time to live count as written now; where no time is known, they do not expire before they are
    written again.
    """
    runs = []
    for run in frozen.runs:
        batches = []
        for batch in run.live_batches():
            columns = batch.columns[: len(layout.schema)]
            if layout.has_ttl:
                columns.append(_all(batch.num_rows, UNKNOWN_TIME if now is None else now))
            batches.append(pa.RecordBatch.from_arrays(columns, schema=layout.schema))
        if batches:
            runs.append(Run.of(batches))
    return tuple(runs)


def _all(rows: int, time: int) -> pa.Array:
    return pa.array(np.full(rows, time, dtype=np.int64))
