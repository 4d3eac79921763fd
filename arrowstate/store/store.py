"""A store: the entry point of the Python API.

The classes of this room join the layers below and hold no logic of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from arrowstate.checkpoints.compaction import CompactionPolicy
from arrowstate.checkpoints.handles import SubtaskWriter
from arrowstate.checkpoints.importing import ClaimMode, import_checkpoint
from arrowstate.checkpoints.pending import StoreSide
from arrowstate.checkpoints.writer import CheckpointWriter
from arrowstate.clock import new_id, now_ms
from arrowstate.files.disposal import dispose_savepoint
from arrowstate.files.validation import Validation, check_validation
from arrowstate.log.entries import create_store, open_store_document
from arrowstate.storage.registry import open_storage, options_beside
from arrowstate.store.loading import FilledStore
from arrowstate.store.reading import ReadableStore
from arrowstate.store.snapshot import Snapshot
from arrowstate.store.writer import StoreWriter
from arrowstate.telemetry.records import Listener, recorded
from arrowstate_formats.run_files import RunFormat


class StateStore(FilledStore):
    """A store of checkpoints. Open one with `open_store`.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://store-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
    >>> with store.writer() as writer:
    ...     checkpoints = [writer.checkpoint({"people": [backend]}, properties={"offset": n}) for n in (17, 23)]
    >>> store.latest().properties, store.snapshot(1).properties
    ({'offset': 23}, {'offset': 17})
    >>> store.verify().problems
    []
    """

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
            their ids are given again. By default this is refused, since an acknowledged checkpoint is among them.
        on_checkpoint
            Called once for each checkpoint of the writer that ended, committed or not, with an
            `arrowstate.telemetry.OperationRecord`: what it took, and why it failed; for savepoints of a coordinator
            too. What it raises is logged, and changes nothing.

        Returns
        -------
        StoreWriter
            Takes checkpoints; use it in a `with` block.

        Raises
        ------
        CorruptDataError
            If the log is damaged, or has lost its newest entries and `accept_loss` is false; nobody is fenced.
        """
        writer = CheckpointWriter(
            self.storage,
            self.store_id,
            clock_ms=self.clock_ms,
            new_id=self.new_id,
            properties=properties,
            accept_loss=accept_loss,
            on_checkpoint=on_checkpoint,
        )
        side = StoreSide(
            snapshot_of=self.snapshot_of,
            savepoint_of=lambda target, entry: Snapshot(
                target, open_store_document(target).store_id, entry, clock_ms=self.clock_ms
            ),
            open_place=lambda place, options: self._open_beside(self._savepoint_place(place), options, create=True),
        )
        return StoreWriter(writer, side, compaction, on_checkpoint)

    def subtask_writer(self, uid: str, subtask: int, *, format: RunFormat = "arrow") -> SubtaskWriter:
        """Return what writes one subtask of an operator, for a process whose state another process commits.

        Parameters
        ----------
        uid
            The operator.
        subtask
            Its number among those of the operator, from 0.
        format
            The format of new run files: `arrow`, `parquet` or `lance`.

        Returns
        -------
        SubtaskWriter
            Its handles go to `StoreWriter.commit`.
        """
        return SubtaskWriter(self.storage, self.store_id, uid, subtask, format=format, new_id=self.new_id)

    def import_savepoint(
        self,
        source: str | Path | Snapshot,
        *,
        operators: Collection[str] | None = None,
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
        operators
            The uids of those to take, such as the operators with state of a job whose sources and sinks stay behind;
            all by default.
        claim_mode
            `NO_CLAIM` only reads the source. `CLAIM` disposes of it once the import is committed, as
            `dispose_savepoint` does; a source that is not only a savepoint is refused.
        storage_options
            As in `open_store`; by default those of this store for a place in the same object storage.
        progress
            Called with (files copied, files to copy) after each file, one call at a time.

        Returns
        -------
        Snapshot
            The checkpoint that was committed to this store.

        Raises
        ------
        StoreNotFoundError, CheckpointNotFoundError
            If there is no savepoint there.
        InvalidInputError
            If it is a checkpoint of this very store, or may not be claimed, or `operators` are none; nothing was
            changed.
        OperatorNotFoundError
            If it lacks one of the operators; nothing was changed.
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
            source = ReadableStore(storage, open_store_document(storage).store_id).latest()
        with recorded("import", self.url, self.clock_ms()) as recording:
            entry = import_checkpoint(
                self.storage,
                self.store_id,
                source.storage,
                source.store_id,
                source.entry,
                operators=operators,
                claim_mode=claim_mode,
                clock_ms=self.clock_ms,
                new_id=self.new_id,
                progress=progress,
            )
            recording.checkpoint_id = entry.checkpoint_id
        return self.snapshot_of(entry)

    def dispose_savepoint(
        self, name_or_path: str | Path, *, storage_options: Mapping[str, Any] | None = None
    ) -> tuple[str, ...]:
        """Delete a savepoint, named as in `savepoint`; see `arrowstate.dispose_savepoint`.

        Returns
        -------
        tuple[str, ...]
            The paths of the files that were deleted.
        """
        place = self._savepoint_place(name_or_path)
        options = options_beside(self.storage, place) if storage_options is None else storage_options
        return dispose_savepoint(place, storage_options=options, clock_ms=self.clock_ms)


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

    Returns
    -------
    StateStore
        The store; nothing of its state is read yet.

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
