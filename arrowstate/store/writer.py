"""The writer of a store, as the Python API has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from arrowstate.checkpoints.compaction import CompactionPolicy, compact_backends
from arrowstate.checkpoints.coordination import CheckpointOptions
from arrowstate.checkpoints.driver import CheckpointCoordinator
from arrowstate.checkpoints.freezing import backends_by_uid
from arrowstate.checkpoints.handles import SubtaskHandle, commit_handles
from arrowstate.checkpoints.pending import StoreSide
from arrowstate.checkpoints.protocol import Kind
from arrowstate.checkpoints.writer import CheckpointWriter
from arrowstate.publish.beside import PublisherBeside, publisher_of_writer
from arrowstate.publish.publication import Publish
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend
from arrowstate.store.snapshot import Snapshot
from arrowstate.telemetry.records import Listener, recorded
from arrowstate.upkeep.beside import check_retention, collector_of_writer
from arrowstate.upkeep.retention import DEFAULT_RETENTION, RetentionPolicy
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.run_files import RunFormat


class StoreWriter:
    """Commits checkpoints; opening it fences every writer opened before. Use it in a `with` block.

    It belongs to the process that opened it: a process that is forked from that one opens a writer of its own.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://writer-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
    >>> with store.writer() as writer:
    ...     snapshot = writer.checkpoint({"people": [backend]}, properties={"offset": 17})
    >>> snapshot.checkpoint_id, snapshot.properties
    (1, {'offset': 17})
    >>> successor = store.writer()
    >>> writer.checkpoint({"people": [backend]})
    Traceback (most recent call last):
      ...
    arrowstate.errors.FencedError: this writer (epoch 1) was fenced by a newer one (epoch 2); stop it, only the newest
    writer of a store may commit
    """

    def __init__(
        self,
        writer: CheckpointWriter,
        side: StoreSide[Snapshot],
        compaction: CompactionPolicy | None = None,
        on_checkpoint: Listener | None = None,
        publisher: PublisherBeside | None = None,
        publish: Publish | None = None,
    ) -> None:
        self._publisher = publisher
        self._publish = publish
        self._writer = writer
        self._side = side
        self._compaction = compaction
        self._on_checkpoint = on_checkpoint

    def __repr__(self) -> str:
        return f"<StoreWriter {self._writer.url}: epoch {self.epoch}>"

    def __enter__(self) -> StoreWriter:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "a StoreWriter belongs to the process that opened it and is not pickled: have other processes write their "
            "subtasks with store.subtask_writer(uid, subtask), and commit their handles here"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held open: what was committed stays, what was not is not there."""

    @property
    def epoch(self) -> int:
        """The writer's epoch; a newer writer has a higher one."""
        return self._writer.epoch

    def checkpoint(
        self,
        operators: Mapping[str, Sequence[KeyedStateBackend]],
        *,
        operator_states: Mapping[str, Sequence[OperatorStateBackend]] | None = None,
        properties: Mapping[str, Any] | None = None,
        watermark: int | None = None,
        format: RunFormat = "arrow",
        allow_dropped_state: bool = False,
    ) -> Snapshot:
        """Freeze the backends, write what the store lacks, and commit.

        Parameters
        ----------
        operators
            By operator uid the backends of its subtasks, in the order of their key groups.
        operator_states
            By operator uid the operator state of its subtasks. An operator may have keyed state, operator state, or
            both for equally many subtasks.
        properties
            JSON values of the caller, such as source offsets.
        watermark
            Milliseconds since 1970; by default the lowest watermark of the backends, if all have one.
        format
            The format of new run files: `arrow` (mapped by readers), `parquet`, or `lance` (needs the extra
            `arrowstate[lance]`).
        allow_dropped_state
            Whether the checkpoint may lack operators, states and rows of the one before.

        Returns
        -------
        Snapshot
            The checkpoint that was committed, to be read and restored from.

        Raises
        ------
        FencedError
            If a newer writer has opened the store, or the store was deleted; nothing was committed.
        InvalidInputError
            If subtasks do not cover each key group once, differ in key, states or max parallelism, an operator
            or its operator state is missing, a keyed state and an operator state share a name, or the process was
            forked from the one that opened the writer.
        StorageFullError, StorageError
            If a file cannot be written; nothing was committed, and what was written is deleted.
        CollectedError
            If files that it would refer to were collected; nothing was committed, and the next attempt writes them.
        CommitUnknownError
            If it cannot be told whether the checkpoint was committed. The next checkpoint takes its number if it was
            not committed, or else the number after it.

        Warns
        -----
        RuntimeWarning
            If backends that were never restored take the place of an operator that has more rows in the checkpoint
            before, and `allow_dropped_state` is false.
        """
        operators = backends_by_uid("operators", operators, KeyedStateBackend)
        if self._compaction is not None:
            compact_backends(operators, self._writer.store_key, self._compaction)
        entry = self._writer.checkpoint(
            operators,
            operator_states=operator_states,
            properties=properties,
            watermark=watermark,
            format=format,
            allow_dropped_state=allow_dropped_state,
        )
        return self._committed(entry)

    def commit(
        self,
        handles: Iterable[SubtaskHandle],
        *,
        properties: Mapping[str, Any] | None = None,
        watermark: int | None = None,
        allow_dropped_state: bool = False,
    ) -> Snapshot:
        """Commit what other processes have written; return the checkpoint.

        Parameters
        ----------
        handles
            One of each subtask of each operator, from a `SubtaskWriter`, in any order.
        properties, watermark, allow_dropped_state
            As for `checkpoint`.

        Returns
        -------
        Snapshot
            The checkpoint that was committed, to be read and restored from.

        Raises
        ------
        InvalidInputError
            If the handles do not cover each key group of each operator once, are of another store, differ in key,
            states or max parallelism, something of the checkpoint before is missing, or the process was forked from
            the one that opened the writer; nothing was committed.
        FencedError, CollectedError, CommitUnknownError, StorageFullError, StorageError
            As for `checkpoint`; the files stay until they are discarded, or a collection takes them.
        """
        writer = self._writer
        with recorded("checkpoint", writer.url, writer.clock_ms(), listener=self._on_checkpoint) as recording:
            with recording.committing():
                entry = commit_handles(
                    writer,
                    writer.store_id,
                    handles,
                    properties=properties,
                    watermark=watermark,
                    allow_dropped_state=allow_dropped_state,
                    started_at_ms=recording.started_at_ms,
                )
            recording.checkpoint_id = entry.checkpoint_id
        return self._committed(entry)

    def _committed(self, entry: LogEntryDocument) -> Snapshot:
        if self._publisher is not None:
            self._publisher.wake()
        return self._side.snapshot_of(entry)

    def coordinator(
        self,
        operators: Mapping[str, Sequence[KeyedStateBackend]],
        *,
        operator_states: Mapping[str, Sequence[OperatorStateBackend]] | None = None,
        options: CheckpointOptions | None = None,
        format: RunFormat = "arrow",
        allow_dropped_state: bool = False,
        on_complete: Callable[[int, Kind], None] | None = None,
        on_abort: Callable[[int, Kind, str], None] | None = None,
        retention: RetentionPolicy | None = DEFAULT_RETENTION,
    ) -> CheckpointCoordinator[Snapshot]:
        """Return a `CheckpointCoordinator`, which takes checkpoints of these backends while they are in use.

        Parameters
        ----------
        operators, operator_states, format, allow_dropped_state
            As for `checkpoint`.
        options
            When checkpoints are taken, and when one is given up.
        on_complete, on_abort
            Called when a checkpoint or savepoint was committed, and when one ended without a commit. The
            `on_checkpoint` of the writer is called after either.
        retention
            Which checkpoints stay: by default the newest 10, and the newest of each of the last 24 hours, and always
            savepoints and checkpoints with a tag or a lease. None keeps all. The others are deleted beside the job, as
            by `StateStore.collect` with its grace period of a day, in a thread that no checkpoint waits for; the
            end of the `with` block waits for the last collection. A collection that fails is logged as a warning, and
            the next goes on. When a newer writer has opened the store, nothing is deleted any more.

        Returns
        -------
        CheckpointCoordinator[Snapshot]
            To be used in a `with` block, whose end waits for checkpoints in flight.

        Raises
        ------
        InvalidInputError
            If a name, a list of backends or the retention is not what it should be.
        """
        writer = self._writer
        collector = collector_of_writer(
            writer.storage,
            check_retention(retention),
            epoch=writer.epoch,
            clock_ms=writer.clock_ms,
            new_id=writer.new_id,
        )
        publisher = publisher_of_writer(
            writer.storage, writer.store_id, self._publish, clock_ms=writer.clock_ms, new_id=writer.new_id
        )
        after_commits = tuple(item for item in (publisher, collector) if item is not None)
        return CheckpointCoordinator(
            replace(self._side, after_commits=after_commits),
            self._writer,
            operators,
            operator_states=operator_states,
            options=options,
            format=format,
            allow_dropped_state=allow_dropped_state,
            on_complete=on_complete,
            on_abort=on_abort,
            on_checkpoint=self._on_checkpoint,
            compaction=self._compaction,
        )
