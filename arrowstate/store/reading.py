"""A store as its readers have it: which checkpoints there are, what they hold, and whether they are whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from arrowstate.clock import new_id, now_ms
from arrowstate.errors import CheckpointNotFoundError, CorruptDataError
from arrowstate.log.collected import advise
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry
from arrowstate.log.pins import read_pins
from arrowstate.maintenance.recovery import StoreVerification, find_newest_whole, proposals, verify_store
from arrowstate.snapshot.validation import Validation, readable
from arrowstate.storage.base import Storage
from arrowstate.store.snapshot import Snapshot
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.integers import LARGEST_EXACT, check_integer

if TYPE_CHECKING:
    import duckdb


__all__ = ["ReadableStore"]


def _time_of(clock_ms: Callable[[], int]) -> int:
    # It is a date for people: one that documents have no room for becomes the last one that they have.
    return min(max(check_integer("the time that clock_ms returns", clock_ms()), -LARGEST_EXACT), LARGEST_EXACT)


class ReadableStore:
    """What can be read of a store, and nothing that writes to it."""

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
        self.clock_ms: Callable[[], int] = partial(_time_of, clock_ms)
        self.new_id = new_id
        self._log = CommitLog(storage)

    def __repr__(self) -> str:
        return f"<StateStore {self.url}>"

    @property
    def url(self) -> str:
        """Where the store is."""
        return self.storage.url

    def latest(self) -> Snapshot:
        """Return the newest checkpoint.

        Returns
        -------
        Snapshot
            To be read, restored from and verified.

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
            return self.snapshot_of(self._committed(None).document)
        except CorruptDataError as error:
            advise(error)
            raise

    def snapshot(self, checkpoint_id: int) -> Snapshot:
        """Return a checkpoint.

        Returns
        -------
        Snapshot
            As of `latest`.

        Raises
        ------
        CheckpointNotFoundError
            If there is none with this id; the message lists the ids there are.
        """
        return self.snapshot_of(self._log.checkpoint(checkpoint_id))

    def checkpoints(self) -> list[Snapshot]:
        """Return all checkpoints, oldest first.

        Returns
        -------
        list[Snapshot]
            Empty before the first checkpoint; those that were collected are not among them.
        """
        return [self.snapshot_of(entry) for entry in self._log.backwards()][::-1]

    def show(self, checkpoint: int | None = None) -> dict[str, Any]:
        """Return what a checkpoint holds, the newest by default, as plain values that JSON can hold.

        Times, watermark and properties of the checkpoint; under `storage` what `Snapshot.storage_use` counts, with the
        `space_amplification`; and its `operators` with their key, key groups and `states`:
        kind, type, rows, bytes, each of its `schema_versions` with its columns and the number of runs that are
        stored in it, and its `time_to_live` as `ttl_ms`, `update`, `visibility` and `clock`, or None.

        Returns
        -------
        dict[str, Any]
            What `arrowstate show --json` prints.

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
        return self._chosen(checkpoint).show()

    def sql(self, query: str, *, checkpoint: int | None = None) -> duckdb.DuckDBPyRelation:
        """Run a query over a checkpoint, the newest by default; see `Snapshot.sql`.

        Returns
        -------
        duckdb.DuckDBPyRelation
            The result, which is computed when it is fetched.
        """
        return self._chosen(checkpoint).sql(query)

    def tags(self) -> dict[str, int]:
        """Return the id of the checkpoint of each tag, by name.

        Returns
        -------
        dict[str, int]
            Empty without tags.
        """
        return {pin.tag: pin.checkpoint_id for pin in read_pins(self.storage) if pin.tag is not None}

    def verify(self, *, deep: bool = False, advance: Callable[[], None] = lambda: None) -> StoreVerification:
        """Look at the log and every checkpoint; see `Snapshot.verify`. `advance` is called after each run.

        Returns
        -------
        StoreVerification
            `problems`, a list of sentences that is empty for a whole store; and `log` and `checkpoints`, what was found
            of each, with the newest first, `newest_whole` among them.
        """
        return verify_store(self.storage, self.store_id, deep=deep, advance=advance)

    def diagnose(self, *, deep: bool = True, advance: Callable[[], None] = lambda: None) -> list[str]:
        """Return what would help if the store is damaged; it is looked through, and never changed.

        Parameters
        ----------
        deep
            Read every byte; otherwise only look whether each file is there and has its size.
        advance
            Called after each run.

        Returns
        -------
        list[str]
            What to do, most important first, as sentences with calls and commands; empty if nothing is damaged.
        """
        return proposals(self.verify(deep=deep, advance=advance), self.url)

    def latest_whole(self, *, deep: bool = True) -> Snapshot:
        """Return the newest checkpoint that is whole, with a RuntimeWarning for each newer one that is not.

        `latest` never goes back by itself: what comes after the checkpoint returned here is lost unless the sources are
        replayed from its offsets.

        Parameters
        ----------
        deep
            Read every byte; otherwise only look whether each file is there and has its size.

        Returns
        -------
        Snapshot
            As of `latest`.

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

    def snapshot_of(self, entry: LogEntryDocument) -> Snapshot:
        """Return the snapshot that a log entry of this store stands for."""
        return Snapshot(self._readable, self.store_id, entry)

    def _chosen(self, checkpoint: int | None) -> Snapshot:
        return self.latest() if checkpoint is None else self.snapshot(checkpoint)

    def _committed(self, checkpoint: int | None) -> CommittedEntry:
        if checkpoint is not None:
            return self._log.committed_checkpoint(checkpoint)
        newest = next(self._log.history().checkpoints(), None)
        if newest is None:
            raise CheckpointNotFoundError(None, [])
        return newest
