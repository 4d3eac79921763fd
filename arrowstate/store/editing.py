"""A store whose checkpoints are edited, and gone back to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from arrowstate.checkpoints.importing import IMPORTED_FROM
from arrowstate.checkpoints.rollback import roll_back
from arrowstate.editing.committing import EditCommit
from arrowstate.editing.edit import Beginning, Edit, EditSide
from arrowstate.editing.purging import Collected
from arrowstate.files.savepoint import write_savepoint
from arrowstate.log.choosing import CheckpointReference
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.entries import content_of, open_store_document
from arrowstate.log.leases import held_while_read
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage, options_beside
from arrowstate.store.keeping import KeptStore
from arrowstate.store.snapshot import Snapshot
from arrowstate.telemetry.records import recorded
from arrowstate.upkeep.retention import RetentionPolicy
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.names import check_savepoint_name
from arrowstate_formats.run_files import RunFormat


class EditableStore(KeptStore):
    """A store whose checkpoints are edited, gone back to, and written as savepoints."""

    def edit(
        self,
        checkpoint: CheckpointReference | None = None,
        *,
        to: str | Path | None = None,
        format: RunFormat = "arrow",
        folder: str | Path | None = None,
    ) -> Edit[Snapshot]:
        """Begin to change a checkpoint, the newest by default: rows, timers, states, operators, properties.

        Nothing is changed before `commit` of what is returned, and no writer is stopped. A lease holds the checkpoint
        until the end of the `with` block.

        Parameters
        ----------
        checkpoint
            Its id, a tag or a time, as for `snapshot`. What is committed then takes the place of what came after it.
        to
            The savepoint that `commit` writes, unless it is told of another place: then the store stays as it is.
        format
            The format of new run files: `arrow`, `parquet` or `lance`.
        folder
            Where the temporary folder is made in which the edit keeps what it writes; the system's place by default.

        Returns
        -------
        Edit[Snapshot]
            Takes statements; use it in a `with` block.

        Raises
        ------
        NotFoundError
            If there is no such checkpoint.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://store-edit-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rmoe"])
        >>> with store.writer() as writer:
        ...     _ = writer.checkpoint({"people": [backend]})
        >>> with store.edit() as edit:
        ...     _ = edit.update("people.city", set={"city": "'Rome'"}, where="city = 'Rmoe'")
        ...     edit.commit(comment="a typo").to_arrow("people.city").to_pylist()
        [{'user': 'ann', 'city': 'Rome'}]
        """
        commit = EditCommit(
            self.storage, self.store_id, self.clock_ms, self.new_id, tag=self.tag, untag=self.untag, tags=self.tags
        )
        side = EditSide(
            commit=commit,
            snapshot_of=self.snapshot_of,
            savepoint_of=lambda overlay, entry, place: self._write_savepoint(
                overlay, entry, self._open_beside(self._savepoint_place(place), None, create=True), "parquet"
            ),
            collect=self._collect_all,
            is_newest=lambda entry: entry.number == self.latest().entry.number,
            savepoints=self._own_savepoints,
            free_tag=self._free_tag,
            begin_again=self._beginning if checkpoint is None and to is None else None,
        )
        return Edit(side, self._beginning(checkpoint), to=to, format=format, folder=folder)

    def _beginning(self, checkpoint: CheckpointReference | None = None) -> Beginning:
        """Return what an edit of a checkpoint begins with, by default of the newest."""
        while True:
            base = self._chosen(checkpoint).entry
            newest = self._log.latest()
            content = content_of(newest)
            assert newest is not None, "there is a checkpoint"
            assert content is not None, "there is a checkpoint"
            # What was committed between the two looks must not lose its place to an edit that has not seen it.
            if checkpoint is not None or base.number == content.number:
                return Beginning(base, newest, content.number)

    def savepoint(
        self,
        name_or_path: str | Path,
        *,
        checkpoint: CheckpointReference | None = None,
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
        snapshot = self._chosen(checkpoint)
        target = self._open_beside(self._savepoint_place(name_or_path), storage_options, create=True)
        with (
            held_while_read(
                self.storage, snapshot.entry, holder="a savepoint", clock_ms=self.clock_ms, new_id=self.new_id
            ),
            reading_checkpoint(self.storage, snapshot.entry),
        ):
            return self._write_savepoint(self._readable, snapshot.entry, target, format, progress)

    def rollback(self, checkpoint: CheckpointReference, *, comment: str | None = None) -> Snapshot:
        """Make an older checkpoint the newest again, without copying a file.

        Its content, properties and watermark are committed once more, under an id above all of this store, and every
        writer opened before is fenced. What came after it stays, to be read and compared, until it is collected.
        Sources go back to the offsets of its properties; a Spark query needs a checkpoint folder that does so too.

        Parameters
        ----------
        checkpoint
            Its id, a tag or a time, as for `snapshot`.
        comment
            Why, for those who look at the log; kept in the fence, beside `rolled_back_to`.

        Returns
        -------
        Snapshot
            The checkpoint that was committed.

        Raises
        ------
        NotFoundError
            If there is no such checkpoint.
        FencedError, CollectedError, StorageError, StorageFullError
            If another writer or a collection came in between, or the storage failed; nothing was committed.
        CommitUnknownError
            If it cannot be told whether it was committed.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://rollback-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> city = backend.state(arrowstate.ValueStateDescriptor("city", pa.string()))
        >>> with store.writer() as writer:
        ...     for name in ("Rome", "nowhere"):
        ...         city.update_batch(["ann"], [name])
        ...         _ = writer.checkpoint({"people": [backend]})
        >>> back = store.rollback(1, comment="the cities of the second are wrong")
        >>> back.checkpoint_id, back.to_arrow("people.city").to_pylist()
        (3, [{'user': 'ann', 'city': 'Rome'}])
        """
        entry = roll_back(
            self.storage,
            self.store_id,
            self.snapshot(checkpoint).entry,
            comment=comment,
            clock_ms=self.clock_ms,
            new_id=self.new_id,
        )
        return self.snapshot_of(entry)

    def _write_savepoint(
        self,
        storage: Storage,
        entry: LogEntryDocument,
        target: Storage,
        format: RunFormat,
        progress: Callable[[int, int], None] | None = None,
    ) -> Snapshot:
        """Write a checkpoint whose files are read from a storage as a savepoint."""
        with recorded("savepoint", self.url, self.clock_ms(), checkpoint_id=entry.checkpoint_id) as recording:
            written = write_savepoint(
                storage,
                self.store_id,
                entry,
                target,
                format=format,
                new_id=self.new_id,
                clock_ms=self.clock_ms,
                progress=progress,
                wrote=recording.parts.append,
            )
        return Snapshot(target, open_store_document(target).store_id, written, clock_ms=self.clock_ms)

    def _savepoint_place(self, name_or_path: str | Path) -> str:
        place = str(name_or_path)
        return place if "/" in place else f"{self.url.rstrip('/')}/savepoints/{check_savepoint_name(place)}"

    def _open_beside(self, place: str, storage_options: Mapping[str, Any] | None, *, create: bool = False) -> Storage:
        options = options_beside(self.storage, place) if storage_options is None else storage_options
        return open_storage(place, create=create, storage_options=options)

    def _collect_all(self) -> Collected:
        """Collect all checkpoints but the newest; return what was deleted, and what is left."""
        imported = (fence.properties.get(IMPORTED_FROM) for fence in self._fences())
        imported_from = tuple(dict.fromkeys(str(said["url"]) for said in imported if isinstance(said, dict)))
        collection = self.collect(RetentionPolicy(count=1))
        report = collection.apply()
        newest = self.latest().entry.number
        kept = []
        for item in collection.plan.kept:
            if item.entry_number == newest:
                continue
            found = self._log.get(item.entry_number)
            if found is not None:
                kept.append((found.document, item.reasons or ("others before and after it are kept",)))
        plan = collection.plan
        return Collected(
            deleted=report.deleted_count,
            deleted_bytes=report.deleted_bytes,
            kept=kept,
            fences=self._fences(),
            # What was spared somebody has begun to hold meanwhile.
            unreferenced=len(plan.waiting) + len(plan.foreign) + len(report.spared),
            imported_from=imported_from,
        )

    def _fences(self) -> list[LogEntryDocument]:
        """Return the entries of the log that say who opened the store, and what was edited."""
        entries = self._log.many(chain.from_iterable(self._log.ranges()))
        return [entry.document for _, entry in entries if entry is not None and entry.document.kind == "fence"]

    def _own_savepoints(self) -> tuple[str, ...]:
        """Return the names of the savepoints inside the store."""
        paths = self.storage.list("savepoints/")
        return tuple(sorted({path.split("/")[1] for path in paths if path.count("/") >= 2}))

    def _free_tag(self, edited: int, made: int) -> str:
        """Return the name under which an edited checkpoint is kept; that of an attempt that died serves again."""
        have = self.tags()
        names = [f"before-edit-{made}", *(f"before-edit-{made}-{number}" for number in range(2, len(have) + 3))]
        return next(name for name in names if have.get(name, edited) == edited)
