"""A store and its snapshots: the entry points of the Python API.

The classes here join the layers below and hold no logic of their own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowstate.backend.keyed import KeyedStateBackend, now_ms, restore_backend
from arrowstate.backend.operator import OperatorStateBackend, restore_operator_backend
from arrowstate.coordinator.writer import CheckpointWriter
from arrowstate.errors import CheckpointNotFoundError
from arrowstate.query.reader import SnapshotReader
from arrowstate.schema.evolution import SchemaEvolution
from arrowstate.snapshot.log import CommitLog, create_store, open_store_document
from arrowstate.snapshot.operator import operator_state_table
from arrowstate.snapshot.savepoint import write_savepoint
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.names import check_savepoint_name
from arrowstate_formats.run_files import RunFormat

if TYPE_CHECKING:
    import duckdb

__all__ = ["Snapshot", "StateStore", "StoreWriter", "new_id", "now_ms", "open_store"]


def new_id() -> str:
    """Return a fresh unique name: 32 hexadecimal digits of a random UUID."""
    return uuid.uuid4().hex


class Snapshot(SnapshotReader):
    """A checkpoint or savepoint: tables to read, and backends to restore.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://snapshot-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
    >>> clicks.add_batch(pa.array(["ann", "bob"]), pa.array([3, 4]))
    >>> with store.writer() as writer:
    ...     snapshot = writer.checkpoint({"counter": [backend]}, properties={"offset": 42})
    >>> snapshot.to_arrow("counter.clicks").sort_by("user").to_pylist()
    [{'user': 'ann', 'clicks': 3}, {'user': 'bob', 'clicks': 4}]
    >>> left = snapshot.restore("counter", parallelism=2, subtask=0)
    >>> left.key_groups
    KeyGroupRange(start=0, end=63)
    """

    def restore(
        self,
        uid: str,
        *,
        parallelism: int = 1,
        subtask: int = 0,
        max_parallelism: int | None = None,
        memory_budget_bytes: int | None = None,
        spill_dir: str | Path | None = None,
        clock_ms: Callable[[], int] = now_ms,
        key: pa.Schema | None = None,
        evolution: SchemaEvolution | None = None,
    ) -> KeyedStateBackend:
        """Return the backend of one subtask, at any parallelism and any max parallelism.

        Parameters
        ----------
        uid
            The operator.
        parallelism, subtask
            The new number of subtasks, and which of them this is, from 0.
        max_parallelism
            The new number of key groups, 1 to 32768; that of the checkpoint by default.
        memory_budget_bytes, spill_dir, clock_ms
            As for `KeyedStateBackend`.
        key
            The key columns from now on; those of the checkpoint by default. Columns that only change their names
            cost nothing. After any other change each row gets the hash of its new key: every subtask reads the whole
            operator, keeps its own rows in memory, and the next checkpoint writes them all.
        evolution
            What the new key means for stored keys; `merge` says what is done with rows whose keys become equal.

        Raises
        ------
        OperatorNotFoundError
            If there is no such operator; the message lists those there are.
        IncompatibleStateError
            If stored keys cannot follow the new key, or keys become equal without a rule to merge their rows.
        InvalidInputError
            If not 1 <= parallelism <= max_parallelism <= 32768, or the subtask is outside 0 to parallelism - 1.
        CorruptDataError
            If a file is missing, truncated or altered.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://restore-example", create=True)
        >>> key = pa.schema([("user", pa.string()), ("device", pa.string())])
        >>> backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=128)
        >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
        >>> backend.state(clicks).add_batch(pa.table({"user": ["ann", "ann"], "device": ["pc", "tv"]}), [3, 4])
        >>> with store.writer() as writer:
        ...     snapshot = writer.checkpoint({"counter": [backend]})
        >>> by_user = arrowstate.SchemaEvolution(dropped=["device"], merge={"clicks": "merge"})
        >>> restored = snapshot.restore("counter", key=pa.schema([("user", pa.string())]), evolution=by_user)
        >>> restored.state(clicks).get_batch(["ann"]).to_pylist()
        [7]
        """
        return restore_backend(
            self.storage,
            self.store_id,
            self.entry,
            uid,
            parallelism=parallelism,
            subtask=subtask,
            max_parallelism=max_parallelism,
            memory_budget_bytes=memory_budget_bytes,
            spill_dir=spill_dir,
            clock_ms=clock_ms,
            key=key,
            evolution=evolution,
        )

    def restore_operator_state(self, uid: str, *, parallelism: int = 1, subtask: int = 0) -> OperatorStateBackend:
        """Return the operator state of one subtask, at any parallelism.

        At the parallelism of the checkpoint a subtask gets the lists that it had. At another one the elements of each
        list state are shared out evenly. Union lists come as a whole, broadcast states as one old subtask had them.

        Parameters
        ----------
        uid
            The operator; one without operator state gives a backend without states.
        parallelism, subtask
            The new number of subtasks, and which of them this is, from 0.

        Raises
        ------
        OperatorNotFoundError
            If there is no such operator; the message lists those there are.
        InvalidInputError
            If not 1 <= parallelism <= 32768, or the subtask is outside 0 to parallelism - 1.
        CorruptDataError
            If a file is missing, truncated or altered.
        """
        return restore_operator_backend(self.storage, self.entry, uid, parallelism=parallelism, subtask=subtask)

    def operator_state(self, uid: str, name: str) -> pa.Table:
        """Return an operator state of all subtasks as a table.

        Returns
        -------
        pa.Table
            `_subtask` int32, not null; for a broadcast state its key `<state>_key`, not null; and `<state>`.

        Raises
        ------
        OperatorNotFoundError, StateNotFoundError
            If there is no such state; the message lists what there is.
        CorruptDataError
            If a file is missing, truncated or altered.
        """
        return operator_state_table(self.storage, self.entry, uid, name)


class StoreWriter:
    """Commits checkpoints; opening it fences every writer opened before. Use it in a `with` block."""

    def __init__(self, store: StateStore, writer: CheckpointWriter) -> None:
        self._store = store
        self._writer = writer

    def __enter__(self) -> StoreWriter:
        return self

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
        """Freeze the backends, write what the store lacks, and commit; return the checkpoint."""
        entry = self._writer.checkpoint(
            operators,
            operator_states=operator_states,
            properties=properties,
            watermark=watermark,
            format=format,
            allow_dropped_state=allow_dropped_state,
        )
        return self._store.snapshot_of(entry)

    checkpoint.__doc__ = CheckpointWriter.checkpoint.__doc__


class StateStore:
    """A store of checkpoints. Open one with `open_store`."""

    def __init__(
        self,
        storage: Storage,
        store_id: str,
        *,
        clock_ms: Callable[[], int] = now_ms,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        self.storage = storage
        self.store_id = store_id
        self._clock_ms = clock_ms
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
        """
        entry = self._log.latest_checkpoint()
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

    def writer(self, *, properties: Mapping[str, Any] | None = None) -> StoreWriter:
        """Open the store for writing; every writer opened before is fenced and can no longer commit.

        Parameters
        ----------
        properties
            JSON values kept in the fence entry, for instance who writes.
        """
        writer = CheckpointWriter(
            self.storage, self.store_id, clock_ms=self._clock_ms, new_id=self._new_id, properties=properties
        )
        return StoreWriter(self, writer)

    def show(self, checkpoint: int | None = None) -> dict[str, Any]:
        """Return what a checkpoint holds, the newest by default, as plain values that JSON can hold.

        Times, watermark and properties of the checkpoint, and its `operators` with their key, key groups and `states`:
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
        progress: Callable[[int, int], None] | None = None,
    ) -> Snapshot:
        """Write a checkpoint as a self-contained folder of plain Parquet files without dead rows.

        Parameters
        ----------
        name_or_path
            A name, for the folder `savepoints/<name>` of this store; or a path or URL (with a `/`).
        checkpoint
            The checkpoint to write, the newest by default.
        progress
            Called with (files written, files to write) after each file.

        Returns
        -------
        Snapshot
            The savepoint, read from its own folder, which is a store of its own.

        Raises
        ------
        CheckpointNotFoundError
            If there is no such checkpoint.
        InvalidInputError
            If the place holds files already.
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
        place = str(name_or_path)
        if "/" not in place:
            place = f"{self.url.rstrip('/')}/savepoints/{check_savepoint_name(place)}"
        target = open_storage(place, create=True)
        entry = write_savepoint(
            self.storage,
            self.store_id,
            snapshot.entry,
            target,
            new_id=self._new_id,
            clock_ms=self._clock_ms,
            progress=progress,
        )
        return Snapshot(target, open_store_document(target).store_id, entry)

    def snapshot_of(self, entry: LogEntryDocument) -> Snapshot:
        """Return the snapshot that a log entry of this store stands for."""
        return Snapshot(self.storage, self.store_id, entry)


def open_store(url: str | Path, *, create: bool = False) -> StateStore:
    """Open a store.

    Parameters
    ----------
    url
        A local path, a `file:` URL, or `memory://name`.
    create
        Make a store where there is none; the place must be empty then.

    Raises
    ------
    StoreNotFoundError
        If there is no store and `create` is false.
    FormatVersionError
        If a newer version of arrowstate wrote it.
    UnsupportedStorageError
        If the URL names a storage on which a commit is not safe.

    Examples
    --------
    >>> import arrowstate
    >>> arrowstate.open_store("memory://open-example", create=True)
    <StateStore memory://open-example>
    """
    storage = open_storage(url, create=create)
    document = create_store(storage, new_id(), now_ms()) if create else open_store_document(storage)
    return StateStore(storage, document.store_id)
