"""What makes state of a table: a store that is filled without a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from arrowstate.bootstrap.planning import AskedStates
from arrowstate.bootstrap.tables import DEFAULT_BUDGET_BYTES, TableFill, fill_operators, plan_table
from arrowstate.schema.descriptors import StateDescriptor
from arrowstate.schema.row_streams import open_stream
from arrowstate.store.editing import EditableStore
from arrowstate.store.snapshot import Snapshot
from arrowstate_formats.names import check_savepoint_name
from arrowstate_formats.run_files import RunFormat


class FilledStore(EditableStore):
    """A store that takes tables for state."""

    def bootstrap(
        self,
        uid: str,
        key: Sequence[str] | pa.Schema,
        states: Sequence[StateDescriptor],
        table: Any,
        *,
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        overwrite: bool = False,
        accumulators: bool = False,
        updated_at: str | None = None,
        order_by: Sequence[str] = (),
        watermark: int | None = None,
        format: RunFormat = "arrow",
        memory_budget_bytes: int | None = DEFAULT_BUDGET_BYTES,
        spill_dir: str | Path | None = None,
        properties: Mapping[str, Any] | None = None,
        savepoint: str | Path | None = None,
    ) -> Snapshot:
        """Make keyed states of a table and commit them as one checkpoint.

        The table may be larger than memory: it is read once, from the first row to the last. A job restores from the
        checkpoint as from any other, at any parallelism. Operators and states that the store has beside those given
        stay. Whoever writes to the store meanwhile is fenced. `arrowstate.spark.bootstrap` does the same on a cluster.

        A state is made of the columns with its name, or for a struct type of those named after its fields or one struct
        column with the state's name:

        ===========  ==========================================================================================
        kind         what a row has
        ===========  ==========================================================================================
        value        the value of its key; a second row of a key is refused
        reducing     a value to fold in; with `accumulators`, what is stored for its key, once
        aggregating  a value to add; with `accumulators`, what is stored for its key, once
        list         one element; or a list with some of the key's elements, in their order
        map          one entry, with its user key in the column `<state>_key`; or a map with some of the key's
                     entries; a second row of an entry is refused
        timer        the `timestamp`; a state for each clock, `timers_event_time` for example
        ===========  ==========================================================================================

        A row with a null has nothing for that state, except that a map may hold nulls under user keys. Namespaces are
        columns of their names. Rows of one key are taken in the order of the table, unless `order_by` says another.

        Parameters
        ----------
        uid
            The operator's name in the store; a new one, or one that has the same key.
        key
            The key columns, of which none may be null. A new operator gets the types that they have in the table,
            without dictionaries, views and large offsets, or those of the schema that is given instead of names.
        states
            The states to make, with the descriptors that the job uses.
        table
            A table, record batch, reader or dataset of PyArrow; anything with Arrow's PyCapsule protocol, such as a
            frame of Polars or pandas, or a relation of DuckDB; or an iterator of record batches, of which each may be
            any of these. Only the columns named here are used. A reader or an iterator is used up, after an error too.
        parallelism
            The number of subtasks, 1 to `max_parallelism`; by default that of the operator in the store, or 1. A job
            may restore at any other.
        max_parallelism
            The number of key groups, up to 32768. By default that of the operator in the store; for a new one 128, or
            more at a parallelism above 85.
        overwrite
            Replace states of these names that the operator has. They are refused otherwise.
        accumulators
            The rows have what reducing and aggregating states store, such as a count so far, instead of values to fold.
        updated_at
            For states with a time to live: the column with the time a row was last updated, a timestamp or
            milliseconds. Without it, and where it is null, rows count as updated now; a state that expires by event
            time needs it.
        order_by
            Columns by which the rows of each key are sorted before they are written, ascending, nulls first, for lists
            and for the reducers `first` and `last`. Where the table does not fit in memory, it is kept in local files
            meanwhile.
        watermark
            The event time, in milliseconds since 1970, up to which everything is in the state.
        format
            The format of the run files: `arrow`, `parquet` or `lance`.
        memory_budget_bytes
            What all subtasks together hold of the state in memory, the rest is in mapped local files; None for no
            limit. The batches that the table is read in come on top.
        spill_dir
            The folder of these files, which are removed by themselves; the system's temporary folder by default, which
            is no help where that is in memory (a tmpfs).
        properties
            JSON values kept in the checkpoint, for instance where the table comes from.
        savepoint
            Also write the checkpoint as a savepoint, in Parquet: a name, or a path or URL (with a `/`).

        Returns
        -------
        Snapshot
            The checkpoint, or the savepoint if there is to be one.

        Raises
        ------
        InvalidInputError
            If an argument is out of range, a column is missing, a state exists already, or a key has two rows where it
            may have one; nothing is committed then and no file is left, nor after any other error, or after what the
            table itself raises.
        NullKeyError, ValueOverflowError
            If a row does not fit.
        KeyTypeError, ValueTypeError
            If a column has another type than the store's key or the state; a narrower number is widened.
        FencedError
            If another writer committed to the store meanwhile.
        CollectedError, StorageFullError, StorageError
            If it could not be written.
        CommitUnknownError
            If it cannot be told whether it was committed; the files stay.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://bootstrap-example", create=True)
        >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
        >>> history = pa.table({"user": ["ann", "bob", "ann"], "clicks": [3, 4, 2]})
        >>> snapshot = store.bootstrap("counter", ["user"], [clicks], history, parallelism=2)
        >>> snapshot.to_arrow("counter.clicks").sort_by("user").to_pylist()
        [{'user': 'ann', 'clicks': 5}, {'user': 'bob', 'clicks': 4}]
        >>> snapshot.restore("counter").state(clicks).get_batch(["ann"]).to_pylist()
        [5]
        """
        if savepoint is not None and "/" not in str(savepoint):
            check_savepoint_name(str(savepoint))
        stream = open_stream(table)
        plan = plan_table(
            self.storage,
            stream.schema,
            uid=uid,
            key=key,
            states=AskedStates(states, overwrite=overwrite, accumulators=accumulators, updated_at=updated_at),
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            order_by=order_by,
            watermark=watermark,
            format=format,
            memory_budget_bytes=memory_budget_bytes,
            spill_dir=spill_dir,
            new_id=self.new_id,
            clock_ms=self.clock_ms,
        )
        entry = fill_operators(
            self.storage,
            self.store_id,
            [TableFill(plan, stream.batches([*plan.columns, *order_by]), order_by)],
            properties=dict(properties or {}),
            new_id=self.new_id,
            clock_ms=self.clock_ms,
        )
        if savepoint is None:
            return self.snapshot_of(entry)
        return self.savepoint(savepoint, checkpoint=entry.checkpoint_id)
