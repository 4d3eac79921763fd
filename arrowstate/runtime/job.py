"""Jobs as they are declared, and how they are started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.errors import InvalidInputError
from arrowstate.functions.dead_letters import dead_letter_table, dead_letters_name
from arrowstate.publish.publication import Publish, check_publish
from arrowstate.runtime.connectors import Source
from arrowstate.runtime.declaring import check_stored, check_timestamps
from arrowstate.runtime.graph import Graph, Mode, SourceNode
from arrowstate.runtime.restart import Restart
from arrowstate.runtime.running import RunningJob, start
from arrowstate.runtime.standing_by import Standby
from arrowstate.runtime.streams import Stream
from arrowstate.runtime.watermarks import Watermarks
from arrowstate.schema.types import check_type
from arrowstate.store.snapshot import Snapshot
from arrowstate.upkeep.beside import check_retention
from arrowstate.upkeep.retention import DEFAULT_RETENTION, RetentionPolicy
from arrowstate_formats.integers import check_integer
from arrowstate_formats.key_groups import MAX_PARALLELISM, check_max_parallelism


class Job:
    """A job on one machine: its sources, its functions and its sinks.

    The job has a store of its own. The checkpoints there hold its state, its positions in the sources, and the rows
    that sinks have not accepted yet. Started again with the same store, the job goes on from the newest checkpoint,
    at any parallelism, and each row counts once.

    Parameters
    ----------
    store
        The path or URL of the store, which is made if there is none.
    parallelism
        The number of slots, each of which runs one subtask of every operator; 1 to `max_parallelism`.
    max_parallelism
        The number of key groups, up to 32768. By default that of the store; in a new store 128, or more at a
        parallelism above 85.
    options
        When checkpoints are taken; by default every ten seconds.
    mode
        `exactly-once`, or `at-least-once`: then no channel waits for a barrier, and rows may count twice after a
        restart.
    restart
        What happens after a failure; by default the job starts again after 1 s to 60 s, for ever.
    storage_options
        As for `arrowstate.open_store`.
    allow_non_restored_state
        Drop the state of operators that the job does not declare. Without it a store with such state is refused.
    from_savepoint
        Where the first start begins, while the store has no checkpoint: with the state, the positions in the sources
        and the output tables of a savepoint, of a checkpoint or of the store of another job. A name, for the folder
        `savepoints/<name>` of the store; a path or URL, whose newest checkpoint it is, or with `@` and an id, a tag or
        a time an older one, such as `/data/totals@41`; or a `Snapshot`. Its files are copied and checked. Rows that its
        sinks had already they are not given again. Every later start goes on from the job's own store, and needs that
        place no more. A store with checkpoints that did not begin there is refused.
    task_timeout_ms
        For slots in processes: a slot that stays in one step for longer, at least 1 ms, counts as hung. It is killed,
        and the job starts again from its newest checkpoint. None for never.
    spare_slot
        For slots in processes: keep a spare process ready that replaces the first slot that dies. It has loaded all
        packages that a slot needs, and takes some 200 MB.
    retention
        Which checkpoints stay: by default the newest 10, and the newest of each of the last 24 hours, and always
        savepoints and checkpoints with a tag or a lease. None keeps all. The others are deleted beside the job, one
        collection at a time, and no checkpoint waits for it. A collection that fails is logged as a warning, and the
        next goes on.
    publish
        Where each checkpoint is published as open tables, see `StateStore.publish`: a folder or URL, or an
        `arrowstate.Publish`. It is done beside the job, no checkpoint waits for it, and a publication that fails is
        logged as a warning. None publishes nothing.
    lease_ms
        For slots in processes or threads: for so long after its last sign of life nobody who stands by takes the job
        for dead, at least 100 ms. It renews its lease three times in this time. See `stand_by`.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa, tempfile
    >>> from arrowstate.runtime import Job, OutputTable, TableSource
    >>> class Totals(arrowstate.BatchFunction):
    ...     def open(self, context):
    ...         self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    ...
    ...     def process_batch(self, batch, context):
    ...         keys = context.group_keys(batch)
    ...         self.total.add_batch(keys, batch["amount"])
    ...         return pa.record_batch([*keys.columns, self.total.read_keys(keys)], names=["user", "total"])
    >>> folder = tempfile.mkdtemp()
    >>> job = Job(folder + "/store")
    >>> given = TableSource(pa.table({"user": ["ann", "bob", "ann"], "amount": [1, 5, 2]}))
    >>> payments = job.source(given, uid="payments")
    >>> schema = pa.schema([("user", pa.string()), ("total", pa.int64())])
    >>> totals = payments.stateful(Totals(), key=["user"], uid="totals", output_schema=schema)
    >>> totals.sink(OutputTable("changes"))
    >>> snapshot = job.run(mode="inline")
    >>> snapshot.sql("select user, total from totals.total order by user").fetchall()
    [('ann', 3), ('bob', 5)]
    """

    def __init__(
        self,
        store: str | Path,
        *,
        parallelism: int = 1,
        max_parallelism: int | None = None,
        options: CheckpointOptions | None = None,
        mode: Literal["exactly-once", "at-least-once"] = "exactly-once",
        restart: Restart | None = None,
        storage_options: Mapping[str, Any] | None = None,
        allow_non_restored_state: bool = False,
        from_savepoint: str | Path | Snapshot | None = None,
        task_timeout_ms: int | None = None,
        spare_slot: bool = True,
        retention: RetentionPolicy | None = DEFAULT_RETENTION,
        publish: Publish | str | Path | None = None,
        lease_ms: int = 10_000,
    ) -> None:
        self.store = store
        self.parallelism = check_integer("parallelism", parallelism, 1, MAX_PARALLELISM)
        self.max_parallelism = None if max_parallelism is None else check_max_parallelism(max_parallelism)
        self.options = options or CheckpointOptions(interval_ms=10_000)
        if mode not in ("exactly-once", "at-least-once"):
            raise InvalidInputError(f"mode must be exactly-once or at-least-once, got {mode!r}")
        self.mode = mode
        self.restart = restart or Restart.exponential()
        self.storage_options = storage_options
        self.allow_non_restored_state = allow_non_restored_state
        self.from_savepoint = from_savepoint
        self.spare_slot = spare_slot
        self.retention = check_retention(retention)
        self.publish = check_publish(publish)
        self.lease_ms = check_integer("lease_ms", lease_ms, 100, unit="milliseconds")
        self.task_timeout_ms = check_integer("task_timeout_ms", task_timeout_ms, 1, optional=True)
        if self.options.unaligned and mode == "at-least-once":
            raise InvalidInputError(
                "unaligned=True is for mode='exactly-once': at least once no channel waits for a barrier anyway"
            )
        self.graph = Graph(keeps_in_flight=self.options.unaligned)

    def __repr__(self) -> str:
        return f"<Job in {self.store}: {', '.join(task.uid for task in self.graph.tasks) or 'nothing yet'}>"

    def source(
        self,
        source: Source,
        *,
        uid: str,
        watermarks: Watermarks | None = None,
        on_error: Literal["fail", "dead_letter"] = "fail",
        dead_letters: str | None = None,
    ) -> Stream:
        """Read rows.

        Parameters
        ----------
        source
            The source.
        uid
            Its name in the store, under which its positions are kept; the same at every start.
        watermarks
            How event time follows from its rows; by default event time stands still until the end of the input.
        on_error
            What happens to a row that the source cannot read, such as a message that is not JSON, and to a row without
            the event time that `watermarks` need: by default it fails the job; with `dead_letter` it goes to an output
            table, as for `Stream.stateful`. The `key` of such rows is the `split` and the `position` of the row, and
            the columns of the source's `unread_schema`, such as the bytes of the message. A split that cannot be
            read on, such as a file that is cut short, always fails the job.
        dead_letters
            The name of that output table, by default the uid with `_dead_letters`.

        Raises
        ------
        InvalidInputError
            If the uid is taken, `source` is not a `Source`, it has no such timestamp column, or the store cannot keep
            its positions or dead letters.
        """
        given: object = source
        if not isinstance(given, Source) or not isinstance(getattr(given, "schema", None), pa.Schema):
            raise InvalidInputError(
                f"source {uid!r} must be a Source with a pyarrow.Schema as its schema, got {source!r}"
            )
        check_type(source.position_type, f"the position_type of source {uid!r}")
        if watermarks is not None and watermarks.timestamp not in source.schema.names:
            raise InvalidInputError(
                f"source {uid!r} has no column {watermarks.timestamp!r}; it has {', '.join(source.schema.names)}"
            )
        if watermarks is not None:
            check_timestamps(f"source {uid!r}", source.schema.field(watermarks.timestamp))
        aside = dead_letters_name(uid, on_error, dead_letters)
        if aside is not None:
            check_stored(f"the table of dead letters {aside!r}", source.schema)
        self.graph.take_uids(uid, *([] if aside is None else [aside]))
        node = SourceNode(uid=uid, source=source, watermarks=watermarks, schema=source.schema)
        if aside is not None:
            place = pa.schema([("split", pa.string()), ("position", source.position_type), *source.unread_schema])
            check_stored(f"the key of dead letters {aside!r}", place)
            self.graph.set_aside([node], dead_letter_table(aside, place, source.schema))
        self.graph.tasks.append(node)
        return Stream(self.graph, [(node, node)])

    def start(self, *, mode: Mode = "processes", seed: int = 0) -> RunningJob:
        """Start the job, and return while it runs.

        Parameters
        ----------
        mode
            Where slots run: in `processes` of their own, in `threads` of this process, or `inline`, in the thread that
            calls the running job, in an order that the seed decides and with a clock of its own.
        seed
            The seed for `inline`.

        Raises
        ------
        InvalidInputError
            If the job has no source, the store or `from_savepoint` has state that the job does not declare, the store
            has not begun with `from_savepoint`, or a part of the job cannot be pickled.
        StoreNotFoundError, NotFoundError
            If the first start finds nothing at `from_savepoint`.
        FencedError
            If a newer writer opens the store while this one starts.
        """
        if not self.graph.sources:
            raise InvalidInputError("a job needs a source; make one with job.source(...)")
        return start(self, mode, seed)

    def stand_by(self, *, mode: Literal["processes", "threads"] = "processes") -> Standby:
        """Stand by for the job, which another process runs on the same store, and take over when that one is gone.

        Parameters
        ----------
        mode
            Where slots run, as for `start`. Slots in processes are started now, and wait.

        Returns
        -------
        Standby
            To be used in a `with` block; its `wait` returns the running job.

        Raises
        ------
        InvalidInputError
            If the job has no source, the store has state that the job does not declare, or a part of the job cannot be
            pickled.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from arrowstate.runtime import Job, OutputTable, TableSource
        >>> job = Job("memory://stand-by-example", lease_ms=100)
        >>> job.source(TableSource(pa.table({"n": [1, 2, 3]})), uid="numbers").sink(OutputTable("copy"))
        >>> with job.stand_by(mode="threads") as standby:
        ...     running = standby.wait()  # nobody runs the job, so its lease has ended after 100 ms
        >>> with running:
        ...     running.wait().sql("select count(*) from copy.rows").fetchall()
        [(3,)]
        """
        if not self.graph.sources:
            raise InvalidInputError("a job needs a source; make one with job.source(...)")
        return Standby(self, mode)

    def run(self, *, mode: Mode = "processes", seed: int = 0) -> Snapshot:
        """Run the job to the end of its input, and return the snapshot that it ended with; errors as for `start`.

        Raises
        ------
        JobFailedError
            If it failed and is not to start again.
        """
        with self.start(mode=mode, seed=seed) as running:
            return running.wait()
