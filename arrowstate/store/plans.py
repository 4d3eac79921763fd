"""What was planned for a store and can be applied, and the lease on a checkpoint."""

from __future__ import annotations

from arrowstate.html import table_html
from arrowstate.log.entries import CommittedEntry
from arrowstate.log.leases import CheckpointLease
from arrowstate.store.reading import ReadableStore
from arrowstate.store.snapshot import Snapshot
from arrowstate.telemetry.records import recorded
from arrowstate.upkeep.collection import CollectionReport, apply_collection
from arrowstate.upkeep.compaction import StoreCompactionPlan, apply_store_compaction
from arrowstate.upkeep.planned import CollectionPlan

_SHOWN_FILES = 20
"""In a notebook."""


class Lease(CheckpointLease):
    """Keeps a checkpoint from being collected while it is read; see `StateStore.lease`.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://held-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
    >>> with store.writer() as writer:
    ...     checkpoints = [writer.checkpoint({"people": [backend]}) for _ in range(3)]
    >>> with store.lease(2) as lease:
    ...     _ = store.collect(arrowstate.RetentionPolicy(count=1)).apply()
    ...     lease.snapshot.to_arrow("people.city").to_pylist()
    [{'user': 'ann', 'city': 'Rome'}]
    """

    def __init__(
        self, store: ReadableStore, committed: CommittedEntry, *, ttl_ms: int, holder: str, and_later: bool = False
    ) -> None:
        super().__init__(
            store.storage,
            committed,
            ttl_ms=ttl_ms,
            holder=holder,
            clock_ms=store.clock_ms,
            new_id=store.new_id,
            and_later=and_later,
        )
        self._store = store

    def __repr__(self) -> str:
        return f"<Lease on checkpoint {self.entry.checkpoint_id} of {self._store.url} until {self.expires_at_ms}>"

    def __enter__(self) -> Lease:
        return self

    @property
    def snapshot(self) -> Snapshot:
        """The checkpoint that is held."""
        return self._store.snapshot_of(self.entry)


class Collection:
    """A collection that was planned and can be applied; see `StateStore.collect`.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://plan-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
    >>> with store.writer() as writer:
    ...     checkpoints = [writer.checkpoint({"people": [backend]}) for _ in range(3)]
    >>> collection = store.collect(arrowstate.RetentionPolicy(count=2))
    >>> collection
    <Collection memory://plan-example: 2 files to delete, 0 waiting, checkpoints [2, 3] kept>
    >>> len(collection.apply().deleted)
    2
    """

    def __init__(self, store: ReadableStore, plan: CollectionPlan) -> None:
        self.plan = plan
        self._store = store

    def __repr__(self) -> str:
        further = f" and {self.plan.further} checkpoints besides" if self.plan.further else ""
        return (
            f"<Collection {self._store.url}: {len(self.plan.deletions)} files to delete{further}, "
            f"{len(self.plan.waiting)} waiting, checkpoints {[item.checkpoint_id for item in self.plan.kept]} kept>"
        )

    def _repr_html_(self) -> str:
        kept = ", ".join(str(item.checkpoint_id) for item in self.plan.kept)
        rows = [(deletion.path, deletion.bytes, deletion.reason) for deletion in self.plan.deletions[:_SHOWN_FILES]]
        title = f"{self._store.url}: {len(self.plan.deletions)} files to delete; checkpoints {kept} kept"
        return table_html(title, ["file", "bytes", "why"], rows)

    def apply(self) -> CollectionReport:
        """Do what the plan says, except to what has become needed since; see `apply_collection`.

        Returns
        -------
        CollectionReport
            `deleted`, the paths of the files, of which there were `deleted_count` with `deleted_bytes`; and `spared`,
            those of the plan that are needed again.
        """
        store = self._store
        now_ms = store.clock_ms()
        with recorded("collection", store.url, now_ms) as recording:
            report = apply_collection(store.storage, self.plan, now_ms=now_ms, new_id=store.new_id)
            recording.files_deleted = report.deleted_count
            recording.bytes_deleted = report.deleted_bytes
        return report


class Compaction:
    """A compaction that was planned and can be applied; see `StateStore.compact`.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://merges-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=128)
    >>> total = backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
    >>> with store.writer() as writer:
    ...     for keys in [range(10_000), range(8_000)]:
    ...         total.add_batch(keys, [1] * len(keys))
    ...         snapshot = writer.checkpoint({"op": [backend]})
    >>> compaction = store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.1))
    >>> compaction
    <Compaction memory://merges-example: 1 runs of checkpoint 2 to be merged into 1>
    >>> compaction.apply()
    <Snapshot 2 of memory://merges-example: op.total>
    """

    def __init__(self, store: ReadableStore, plan: StoreCompactionPlan) -> None:
        self.plan = plan
        self._store = store

    def __repr__(self) -> str:
        runs = sum(len(merge.runs) for merge in self.plan.merges)
        return (
            f"<Compaction {self._store.url}: {runs} runs of checkpoint {self.plan.checkpoint_id} "
            f"to be merged into {len(self.plan.merges)}>"
        )

    def _repr_html_(self) -> str:
        rows = [(f"{each.uid}.{each.state}", each.subtask, len(each.runs), each.rows) for each in self.plan.merges]
        title = f"{self._store.url}: merges of checkpoint {self.plan.checkpoint_id}"
        return table_html(title, ["state", "subtask", "runs", "rows"], rows)

    def apply(self) -> Snapshot | None:
        """Do what the plan says and return the new checkpoint, None where there was nothing to do.

        See `apply_store_compaction` for the errors; after any of them the store holds what it held.

        Returns
        -------
        Snapshot | None
            The new checkpoint, with the content, properties and watermark of the one before.
        """
        store = self._store
        with recorded("compaction", store.url, store.clock_ms()) as recording:
            report = apply_store_compaction(
                store.storage, store.store_id, self.plan, clock_ms=store.clock_ms, new_id=store.new_id
            )
            recording.checkpoint_id = None if report.entry is None else report.entry.checkpoint_id
            recording.bytes_written, recording.rows = report.bytes_written, report.rows
            recording.is_void = not self.plan.merges
        return None if report.entry is None else store.snapshot_of(report.entry)
