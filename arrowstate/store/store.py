"""A store: the entry point of the Python API.

The classes here join the layers below and hold no logic of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arrowstate.checkpoints.compaction import CompactionPolicy
from arrowstate.checkpoints.driver import StoreSide
from arrowstate.checkpoints.writer import CheckpointWriter
from arrowstate.clock import new_id, now_ms
from arrowstate.errors import CheckpointNotFoundError, CorruptDataError
from arrowstate.log.collected import advise, reading_checkpoint
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry, create_store, open_store_document
from arrowstate.log.pins import delete_tag, put_tag, read_pins
from arrowstate.maintenance.collection_plan import DEFAULT_GRACE_MS, check_grace, plan_collection
from arrowstate.maintenance.compaction import (
    StoreCompactionReport,
    apply_store_compaction,
    plan_store_compaction,
)
from arrowstate.maintenance.importing import ClaimMode, import_checkpoint
from arrowstate.maintenance.leases import DEFAULT_LEASE_MS, held_while_read
from arrowstate.maintenance.recovery import StoreVerification, find_newest_whole, proposals, verify_store
from arrowstate.maintenance.retention import RetentionPolicy
from arrowstate.snapshot.disposal import dispose_savepoint
from arrowstate.snapshot.references import ReferenceReader
from arrowstate.snapshot.savepoint import write_savepoint
from arrowstate.snapshot.validation import Validation, check_validation, readable
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage, options_beside
from arrowstate.store.plans import Collection, Compaction, Lease
from arrowstate.store.snapshot import Snapshot
from arrowstate.store.writer import StoreWriter
from arrowstate.telemetry.records import Listener, recorded
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.integers import LARGEST_EXACT, check_integer
from arrowstate_formats.names import check_savepoint_name
from arrowstate_formats.run_files import RunFormat

if TYPE_CHECKING:
    import duckdb


__all__ = ["StateStore", "open_store"]


def _time_of(clock_ms: Callable[[], int]) -> int:
    # It is a date for people: one that documents have no room for becomes the last one that they have.
    return min(max(check_integer("the time that clock_ms returns", clock_ms()), -LARGEST_EXACT), LARGEST_EXACT)


class StateStore:
    """A store of checkpoints. Open one with `open_store`.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://store-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
    >>> with store.writer() as writer:
    ...     checkpoints = [writer.checkpoint({"people": [backend]}, properties={"offset": n}) for n in (17, 23)]
    >>> store.latest().properties, store.snapshot(2).properties
    ({'offset': 23}, {'offset': 17})
    >>> store.verify().problems
    []
    """

    def __init__(
        self,
        storage: Storage,
        store_id: str,
        *,
        clock_ms: Callable[[], int] = now_ms,
        new_id: Callable[[], str] = new_id,
        validate: Validation = "checksums",
    ) -> None:
        self.storage = storage
        self._readable = readable(storage, validate)
        self.store_id = store_id
        self._clock_ms: Callable[[], int] = partial(_time_of, clock_ms)
        self._new_id = new_id
        self._log = CommitLog(storage)

    def __repr__(self) -> str:
        return f"<StateStore {self.url}>"

    @property
    def url(self) -> str:
        """Where the store is."""
        return self.storage.url

    def latest(self) -> Snapshot:
        """Return the newest checkpoint.

        Raises
        ------
        CheckpointNotFoundError
            If there is none yet.
        CorruptDataError
            If the log is damaged, or the entry that it must begin with is lost.

        Warns
        -----
        RuntimeWarning
            If `_latest` names an entry that is not there: newer checkpoints are lost.
        """
        try:
            entry = self._log.latest_checkpoint()
        except CorruptDataError as error:
            advise(error)
            raise
        if entry is None:
            raise CheckpointNotFoundError(None, [])
        return self.snapshot_of(entry)

    def snapshot(self, checkpoint_id: int) -> Snapshot:
        """Return a checkpoint.

        Raises
        ------
        CheckpointNotFoundError
            If there is none with this id; the message lists the ids there are.
        """
        return self.snapshot_of(self._log.checkpoint(checkpoint_id))

    def checkpoints(self) -> list[Snapshot]:
        """Return all checkpoints, oldest first."""
        return [self.snapshot_of(entry) for entry in self._log.backwards()][::-1]

    def writer(
        self,
        *,
        properties: Mapping[str, Any] | None = None,
        compaction: CompactionPolicy | None = CompactionPolicy(),
        accept_loss: bool = False,
        on_checkpoint: Listener | None = None,
    ) -> StoreWriter:
        """Open the store for writing; every writer opened before is fenced and can no longer commit.

        Parameters
        ----------
        properties
            JSON values kept in the fence entry, for instance who writes.
        compaction
            When runs are merged so that a checkpoint needs little more room than its live rows: before a checkpoint
            is taken, or by a coordinator in the background. None for never.
        accept_loss
            Whether to go on where the newest entries of the log are lost: what they held is lost for good then, and
            their numbers are given again. By default this is refused, since an acknowledged checkpoint is among them.
        on_checkpoint
            Called once for each checkpoint of the writer that ended, committed or not, with an
            `arrowstate.telemetry.OperationRecord`: what it took, and why it failed; for savepoints of a coordinator
            too. What it raises is logged, and changes nothing.

        Raises
        ------
        CorruptDataError
            If the log is damaged, or has lost its newest entries and `accept_loss` is false; nobody is fenced.
        """
        writer = CheckpointWriter(
            self.storage,
            self.store_id,
            clock_ms=self._clock_ms,
            new_id=self._new_id,
            properties=properties,
            accept_loss=accept_loss,
            on_checkpoint=on_checkpoint,
        )
        side = StoreSide(
            snapshot_of=self.snapshot_of,
            savepoint_of=lambda target, entry: Snapshot(target, open_store_document(target).store_id, entry),
            open_place=lambda place, options: self._open_beside(self._savepoint_place(place), options, create=True),
            clock_ms=self._clock_ms,
            new_id=self._new_id,
            url=self.url,
        )
        return StoreWriter(writer, side, compaction, on_checkpoint)

    def show(self, checkpoint: int | None = None) -> dict[str, Any]:
        """Return what a checkpoint holds, the newest by default, as plain values that JSON can hold.

        Times, watermark and properties of the checkpoint; under `storage` what `Snapshot.storage_use` counts, with the
        `space_amplification`; and its `operators` with their key, key groups and `states`:
        kind, type, rows, bytes, and each of its `schema_versions` with its columns and the number of runs that are
        stored in it.

        Raises
        ------
        CheckpointNotFoundError
            If there is no such checkpoint.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://show-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
        >>> with store.writer() as writer:
        ...     _ = writer.checkpoint({"people": [backend]})
        >>> state = store.show()["operators"][0]["states"][0]
        >>> state["rows"], state["schema_versions"][0]["runs"]
        (1, 1)
        """
        return (self.latest() if checkpoint is None else self.snapshot(checkpoint)).show()

    def sql(self, query: str, *, checkpoint: int | None = None) -> duckdb.DuckDBPyRelation:
        """Run a query over a checkpoint, the newest by default; see `Snapshot.sql`."""
        snapshot = self.latest() if checkpoint is None else self.snapshot(checkpoint)
        return snapshot.sql(query)

    def savepoint(
        self,
        name_or_path: str | Path,
        *,
        checkpoint: int | None = None,
        format: RunFormat = "parquet",
        progress: Callable[[int, int], None] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Snapshot:
        """Write a checkpoint as a self-contained folder without dead rows: one file per state and subtask.

        A lease holds the checkpoint meanwhile, so that no collection takes its files.

        Parameters
        ----------
        name_or_path
            A name, for the folder `savepoints/<name>` of this store; or a path or URL (with a `/`).
        checkpoint
            The checkpoint to write, the newest by default.
        format
            The format of the run files.
        progress
            Called with (states of subtasks written, states of subtasks to write) after each of them.
        storage_options
            As in `open_store`; by default those of this store for a place in the same object storage.

        Returns
        -------
        Snapshot
            The savepoint, read from its own folder, which is a store of its own.

        Raises
        ------
        CheckpointNotFoundError
            If there is no such checkpoint.
        InvalidInputError
            If the place holds files already, or there is no such format.
        CorruptDataError
            If the checkpoint cannot be read; nothing is left at the place.
        StorageFullError, StorageError
            If it cannot be written; nothing is left there.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://savepoint-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
        >>> with store.writer() as writer:
        ...     _ = writer.checkpoint({"people": [backend]})
        >>> store.savepoint("before-upgrade").to_arrow("people.city").to_pylist()
        [{'user': 'ann', 'city': 'Rome'}]
        """
        snapshot = self.latest() if checkpoint is None else self.snapshot(checkpoint)
        target = self._open_beside(self._savepoint_place(name_or_path), storage_options, create=True)
        with (
            recorded("savepoint", self.url, self._clock_ms(), checkpoint_id=snapshot.checkpoint_id),
            held_while_read(
                self.storage, snapshot.entry, holder="a savepoint", clock_ms=self._clock_ms, new_id=self._new_id
            ),
            reading_checkpoint(self.storage, snapshot.entry),
        ):
            entry = write_savepoint(
                self._readable,
                self.store_id,
                snapshot.entry,
                target,
                format=format,
                new_id=self._new_id,
                clock_ms=self._clock_ms,
                progress=progress,
            )
        return Snapshot(target, open_store_document(target).store_id, entry)

    def import_savepoint(
        self,
        source: str | Path | Snapshot,
        *,
        claim_mode: ClaimMode = ClaimMode.NO_CLAIM,
        storage_options: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Snapshot:
        """Bring a savepoint, or a checkpoint of another store, into this store as its newest checkpoint.

        Its files are copied, and every byte compared with its checksum. Then every writer opened before is fenced, and
        the checkpoint is committed under an id above all of this store, with its properties and watermark. Nothing
        refers to the source afterwards. The fence before the checkpoint has the property `imported_from`.

        Parameters
        ----------
        source
            A name, for the folder `savepoints/<name>` of this store; a path or URL (with a `/`), whose newest
            checkpoint is taken; or a snapshot of another store. A lease holds a checkpoint that may be collected.
        claim_mode
            `NO_CLAIM` only reads the source. `CLAIM` disposes of it once the import is committed, as
            `dispose_savepoint` does; a source that is not only a savepoint is refused.
        storage_options
            As in `open_store`; by default those of this store for a place in the same object storage.
        progress
            Called with (files copied, files to copy) after each file, one call at a time.

        Raises
        ------
        StoreNotFoundError, CheckpointNotFoundError
            If there is no savepoint there.
        InvalidInputError
            If it is a checkpoint of this very store, or may not be claimed; nothing was changed.
        CorruptDataError
            If the source is damaged; nothing was changed, and nobody fenced.
        FencedError, CollectedError, StorageFullError, StorageError
            If it could not be copied, or another writer or a collection came in between; nothing was committed.
        CommitUnknownError
            If it cannot be told whether it was committed; the source stays.

        Warns
        -----
        RuntimeWarning
            If it was committed, and a claimed savepoint could not be disposed of.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> old = arrowstate.open_store("memory://import-example/old", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
        >>> with old.writer() as writer:
        ...     _ = writer.checkpoint({"people": [backend]}, properties={"offset": 42})
        >>> place = old.savepoint("move").storage.url
        >>> new = arrowstate.open_store("memory://import-example/new", create=True)
        >>> imported = new.import_savepoint(place, claim_mode=arrowstate.ClaimMode.CLAIM)
        >>> imported.properties, imported.to_arrow("people.city").to_pylist()
        ({'offset': 42}, [{'user': 'ann', 'city': 'Rome'}])
        """
        if not isinstance(source, Snapshot):
            storage = self._open_beside(self._savepoint_place(source), storage_options)
            source = StateStore(storage, open_store_document(storage).store_id).latest()
        with recorded("import", self.url, self._clock_ms()) as recording:
            entry = import_checkpoint(
                self.storage,
                self.store_id,
                source.storage,
                source.store_id,
                source.entry,
                claim_mode=claim_mode,
                clock_ms=self._clock_ms,
                new_id=self._new_id,
                progress=progress,
            )
            recording.checkpoint_id = entry.checkpoint_id
        return self.snapshot_of(entry)

    def dispose_savepoint(
        self, name_or_path: str | Path, *, storage_options: Mapping[str, Any] | None = None
    ) -> tuple[str, ...]:
        """Delete a savepoint, named as in `savepoint`; see `arrowstate.dispose_savepoint`."""
        place = self._savepoint_place(name_or_path)
        options = options_beside(self.storage, place) if storage_options is None else storage_options
        return dispose_savepoint(place, storage_options=options, clock_ms=self._clock_ms)

    def _savepoint_place(self, name_or_path: str | Path) -> str:
        place = str(name_or_path)
        return place if "/" in place else f"{self.url.rstrip('/')}/savepoints/{check_savepoint_name(place)}"

    def _open_beside(self, place: str, storage_options: Mapping[str, Any] | None, *, create: bool = False) -> Storage:
        options = options_beside(self.storage, place) if storage_options is None else storage_options
        return open_storage(place, create=create, storage_options=options)

    def tag(self, name: str, checkpoint: int | None = None) -> None:
        """Keep a checkpoint, the newest by default, until the tag is removed.

        Parameters
        ----------
        name
            1 to 128 characters out of letters, digits, `_`, `-` and `.`, the first a letter or digit.
        checkpoint
            The id of the checkpoint.

        Raises
        ------
        CheckpointNotFoundError
            If there is no such checkpoint, or it is being collected.
        InvalidInputError
            If there is a tag of this name, or it cannot be one.
        CollectedError
            If a collection took files of the checkpoint.
        CorruptDataError
            If files of it are missing for another reason, or are being collected.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://tag-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> with store.writer() as writer:
        ...     _ = [writer.checkpoint({"people": [backend]}) for _ in range(3)]
        >>> store.tag("gold", 2)
        >>> _ = store.collect(arrowstate.RetentionPolicy(count=1)).apply()
        >>> [snapshot.checkpoint_id for snapshot in store.checkpoints()], store.tags()
        ([2, 4], {'gold': 2})
        """
        entry = self._committed(checkpoint)
        assert entry.document.checkpoint_id is not None, "a fence is no checkpoint"
        with reading_checkpoint(self.storage, entry.document):
            is_tagged = put_tag(
                self.storage,
                name,
                entry.document.checkpoint_id,
                entry.as_parent,
                files=ReferenceReader(self.storage).files(entry.document.operators),
                tag_id=self._new_id(),
                now_ms=self._clock_ms(),
            )
        if not is_tagged:
            raise CheckpointNotFoundError(entry.document.checkpoint_id, self._ids())

    def untag(self, name: str) -> None:
        """Remove a tag; NotFoundError if there is none of this name."""
        delete_tag(self.storage, name)

    def tags(self) -> dict[str, int]:
        """Return the id of the checkpoint of each tag, by name."""
        return {pin.tag: pin.checkpoint_id for pin in read_pins(self.storage) if pin.tag is not None}

    def lease(self, checkpoint: int | None = None, *, ttl_ms: int = DEFAULT_LEASE_MS, holder: str = "") -> Lease:
        """Keep a checkpoint, the newest by default, from being collected while it is read, in a `with` block.

        A thread renews the lease. A process that dies leaves one that ends by itself.

        Parameters
        ----------
        checkpoint
            The id of the checkpoint.
        ttl_ms
            How long it lasts without renewal, in milliseconds, at least 1.
        holder
            Who reads, for those who look at the store.

        Raises
        ------
        CheckpointNotFoundError
            If there is no such checkpoint, or it is being collected.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://lease-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
        >>> with store.writer() as writer:
        ...     _ = writer.checkpoint({"people": [backend]})
        >>> with store.lease() as lease:
        ...     rows = lease.snapshot.to_arrow("people.city").num_rows
        >>> rows
        1
        """
        return Lease(
            self,
            self.storage,
            self._committed(checkpoint),
            ttl_ms=ttl_ms,
            holder=holder,
            clock_ms=self._clock_ms,
            new_id=self._new_id,
        )

    def collect(
        self,
        policy: RetentionPolicy | None = None,
        *,
        grace_ms: int = DEFAULT_GRACE_MS,
        allow_short_grace: bool = False,
    ) -> Collection:
        """Plan to delete what no checkpoint that is kept needs; nothing is deleted before `apply()` of the result.

        Parameters
        ----------
        policy
            Which checkpoints are kept, the newest only by default. Tags, leases and savepoints keep theirs besides.
        grace_ms
            How long a file that no checkpoint has referred to waits, counted from the first applied collection that
            saw it, in milliseconds, at least 60,000. It should be longer than any checkpoint takes. The checkpoint that
            the newest compaction repeats is kept as long, for its writer to go on from it.
        allow_short_grace
            Take a shorter grace period, from 0. Where somebody writes to the store, a collection may then take the
            files of a checkpoint that is being written, which fails or is not acknowledged.

        Returns
        -------
        Collection
            `plan` says what would go and why, what waits, and what nobody knows; `apply()` does it and returns what was
            deleted and what was spared because it had become needed meanwhile.

        Raises
        ------
        CorruptDataError, FormatVersionError
            If a checkpoint that is kept is damaged, or something is there that this version does not know.
        InvalidInputError
            If the grace period is below a minute and `allow_short_grace` is false.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://collect-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> with store.writer() as writer:
        ...     _ = [writer.checkpoint({"people": [backend]}) for _ in range(3)]
        >>> collection = store.collect(arrowstate.RetentionPolicy(count=2))
        >>> collection.plan.dropped, [deletion.path for deletion in collection.plan.deletions]
        ((2,), ['log/00000000000000000001.json', 'log/00000000000000000002.json'])
        >>> len(collection.apply().deleted)
        2
        """
        check_grace(grace_ms, allow_short=allow_short_grace)
        policy = RetentionPolicy() if policy is None else policy
        plan = plan_collection(self.storage, policy, now_ms=self._clock_ms(), grace_ms=grace_ms)
        return Collection(self.storage, plan, self._clock_ms, self._new_id)

    def compact(self, policy: CompactionPolicy | None = None) -> Compaction:
        """Plan to write the newest checkpoint in fewer and fuller files; nothing is written before `apply()`.

        For a store that nobody writes to, or a part of it that nobody writes to: a writer compacts its own state with
        each checkpoint. Nobody is fenced or waited for; a checkpoint that is committed meanwhile stands, and what it no
        longer shares with the plan is dropped from it. The old files go with the checkpoints that refer to them, see
        `collect`: after the grace period a compaction counts in the place of the checkpoint that it repeats.

        Parameters
        ----------
        policy
            How much more than the live rows a state may take, and in how many small files; by default twice as much.

        Returns
        -------
        Compaction
            `plan` says what the checkpoint takes and what would be merged. `apply()` does it, commits the result as a
            checkpoint with the same content, properties and watermark, and returns it.

        Raises
        ------
        CheckpointNotFoundError
            If there is no checkpoint yet.
        CorruptDataError
            If the log or a manifest is damaged.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://compact-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=128)
        >>> total = backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum"))
        >>> total.add_batch(range(10_000), [1] * 10_000)
        >>> with store.writer() as writer:
        ...     _ = writer.checkpoint({"op": [backend]})
        ...     total.clear_batch(range(4_000))
        ...     before = writer.checkpoint({"op": [backend]}, properties={"offset": 42})
        >>> compaction = store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.5))
        >>> after = compaction.apply()
        >>> before.storage_use().space_amplification > 1.5 > after.storage_use().space_amplification
        True
        >>> after.checkpoint_id, after.properties, after.to_arrow("op.total").num_rows
        (3, {'offset': 42}, 6000)
        """
        plan = plan_store_compaction(self.storage, CompactionPolicy() if policy is None else policy)

        def apply() -> StoreCompactionReport:
            with recorded("compaction", self.url, self._clock_ms()) as recording:
                report = apply_store_compaction(
                    self.storage, self.store_id, plan, clock_ms=self._clock_ms, new_id=self._new_id
                )
                recording.checkpoint_id = None if report.entry is None else report.entry.checkpoint_id
                recording.bytes_written, recording.rows = report.bytes_written, report.rows
                recording.is_void = not plan.merges
            return report

        return Compaction(self, plan, apply)

    def verify(self, *, deep: bool = False, advance: Callable[[], None] = lambda: None) -> StoreVerification:
        """Look at the log and every checkpoint; see `Snapshot.verify`. `advance` is called after each run."""
        return verify_store(self.storage, self.store_id, deep=deep, advance=advance)

    def repair(self, *, deep: bool = True, advance: Callable[[], None] = lambda: None) -> list[str]:
        """Return what would help if the store is damaged; it is looked through, and never changed."""
        return proposals(self.verify(deep=deep, advance=advance), self.url)

    def latest_whole(self, *, deep: bool = True) -> Snapshot:
        """Return the newest checkpoint that is whole, with a RuntimeWarning for each newer one that is not.

        `latest` never goes back by itself: what comes after the checkpoint returned here is lost unless the sources are
        replayed from its offsets.

        Parameters
        ----------
        deep
            Read every byte; otherwise only look whether each file is there and has its size.

        Raises
        ------
        CorruptDataError
            If there are checkpoints, and none is whole.
        CheckpointNotFoundError
            If there is none.
        StorageError
            If something could not be looked at before a whole checkpoint was found, here because the storage failed:
            it may be whole. So does every other error that tells of no damage, such as a missing package.
        """
        found = find_newest_whole(self.storage, self.store_id, deep=deep)
        if found.entry is not None:
            for problem in found.problems:
                warnings.warn(f"{self.url}: {problem}", RuntimeWarning, stacklevel=2)
            return self.snapshot_of(found.entry)
        if found.problems:
            raise CorruptDataError(self.url, f"no checkpoint is whole: {'; '.join(found.problems[:5])}")
        raise CheckpointNotFoundError(None, [])

    def _committed(self, checkpoint: int | None) -> CommittedEntry:
        if checkpoint is None:
            newest = self.latest().checkpoint_id
            assert newest is not None, "a fence is no checkpoint"
            checkpoint = newest
        return self._log.committed_checkpoint(checkpoint)

    def _ids(self) -> list[int]:
        return sorted(entry.checkpoint_id for entry in self._log.backwards() if entry.checkpoint_id is not None)

    def snapshot_of(self, entry: LogEntryDocument) -> Snapshot:
        """Return the snapshot that a log entry of this store stands for."""
        return Snapshot(self._readable, self.store_id, entry)


def open_store(
    url: str | Path,
    *,
    create: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    validate: Validation = "checksums",
) -> StateStore:
    """Open a store.

    Parameters
    ----------
    url
        A local path, a `file:` URL, `s3://bucket/prefix`, `gs://bucket/prefix`, `abfs://container/prefix`, or
        `memory://name`.
    create
        Make a store where there is none; the place must be empty then. A bucket is not made.
    storage_options
        Credentials, endpoints and limits of object storages, `max_file_bytes` of `memory://`, as in
        `arrowstate.storage.open_storage`. Most of them can come from the environment instead.
    validate
        What is compared when rows are read. "checksums": bytes with their checksums, which finds damage; whoever can
        write to the store is trusted. "full": every offset and text besides, so that files that somebody forged, with
        checksums made right, raise `CorruptDataError` in the place of ending this process; it takes a pass over the
        offsets and texts of what is read. Savepoints, imports and deep looks are always read in full. The library that
        reads Lance may still end the process, where a forged file asks for more memory than there is.

    Raises
    ------
    StoreNotFoundError
        If there is no store and `create` is false.
    FormatVersionError
        If a newer version of arrowstate wrote it.
    UnsupportedStorageError
        If the URL names a storage on which a commit is not safe.
    MissingDependencyError
        If the package of an object storage is not installed.
    InvalidInputError
        If the URL holds a password, the storage options do not fit, or `validate` is something else.

    Examples
    --------
    >>> import arrowstate
    >>> arrowstate.open_store("memory://open-example", create=True)
    <StateStore memory://open-example>
    """
    check_validation(validate)
    storage = open_storage(url, create=create, storage_options=storage_options)
    document = create_store(storage, new_id(), now_ms()) if create else open_store_document(storage)
    return StateStore(storage, document.store_id, validate=validate)
