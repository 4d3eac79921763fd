"""A snapshot of a store: tables to read, and backends to restore."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from arrowstate.checkpoints.importing import ClaimMode, import_checkpoint
from arrowstate.clock import new_id, now_ms
from arrowstate.errors import InvalidInputError
from arrowstate.files.in_flight import has_rows_in_flight, without_rows_in_flight
from arrowstate.files.operator import operator_state_table
from arrowstate.files.reading import find_operator
from arrowstate.files.verification import Verification, verify_checkpoint
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.entries import create_store
from arrowstate.query.reader import SnapshotReader
from arrowstate.schema.evolution import SchemaEvolution
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend, restore_operator_backend
from arrowstate.state.backend.restoring import restore_backend
from arrowstate.storage.registry import open_storage, options_beside
from arrowstate.telemetry.records import PartRecord, recorded


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
        drop: Collection[str] = (),
        rename: Mapping[str, str] = MappingProxyType({}),
    ) -> KeyedStateBackend:
        """Return the backend of one subtask, at any parallelism and any max parallelism.

        Parameters
        ----------
        uid
            The operator.
        parallelism, subtask
            The new number of subtasks, and the number of this one, from 0. The backend has only the rows of this
            subtask. A later checkpoint must have the backends of all subtasks.
        max_parallelism
            The new number of key groups, 1 to 32768; that of the checkpoint by default.
        memory_budget_bytes, spill_dir, clock_ms
            As for `KeyedStateBackend`.
        key
            The key columns from now on; those of the checkpoint by default. Columns that only change their names
            cost nothing. After any other change each row gets the hash of its new key: every subtask reads the whole
            operator, keeps its own rows in memory, and the next checkpoint writes them all.
        evolution
            How the stored keys become the new key; `merge` says how rows whose keys become equal are merged.
        drop
            States to drop: the backend and the next checkpoint do not have them, and need no `allow_dropped_state`.
            Earlier checkpoints keep them.
        rename
            New names of states, by stored name; no file is written again. Restore every subtask with the same names.

        Returns
        -------
        KeyedStateBackend
            With all states of the operator but the dropped ones; `state` returns one by its descriptor.

        Raises
        ------
        OperatorNotFoundError
            If there is no such operator; the message lists the existing ones.
        IncompatibleStateError
            If stored keys cannot follow the new key, or keys become equal without a rule to merge their rows.
        StateNotFoundError
            If there is no state of a name to be dropped or renamed.
        InvalidInputError
            If not 1 <= parallelism <= max_parallelism <= 32768, or the subtask is outside 0 to parallelism - 1; or if
            two states would have one name.
        CorruptDataError, CollectedError
            If a file is missing, truncated or altered; or a collection deleted it.

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
        with (
            recorded("restore", self.storage.url, now_ms(), checkpoint_id=self.checkpoint_id) as recording,
            reading_checkpoint(self.storage, self.entry),
        ):
            backend = restore_backend(
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
                drop=drop,
                rename=rename,
            )
            runs = [run for state in backend.states.values() for run in state.table.runs]
            rows, size = sum(run.live_rows for run in runs), sum(run.segments.stored_bytes for run in runs)
            recording.parts.append(PartRecord(operator=uid, subtask=subtask, bytes_total=size, rows=rows))
            return backend

    def restore_operator_state(self, uid: str, *, parallelism: int = 1, subtask: int = 0) -> OperatorStateBackend:
        """Return the operator state of one subtask, at any parallelism.

        At the parallelism of the checkpoint each subtask gets its own lists back. At another one the elements of each
        list state are divided evenly. Every subtask gets the whole of a union list, and the broadcast state of one old
        subtask.

        Parameters
        ----------
        uid
            The operator; one without operator state gives a backend without states.
        parallelism, subtask
            As for `restore`, and so are the errors.

        Returns
        -------
        OperatorStateBackend
            With all operator states; `state` returns one by its descriptor.
        """
        with (
            recorded("restore", self.storage.url, now_ms(), checkpoint_id=self.checkpoint_id) as recording,
            reading_checkpoint(self.storage, self.entry),
        ):
            backend = restore_operator_backend(self.storage, self.entry, uid, parallelism=parallelism, subtask=subtask)
            recording.parts.append(PartRecord(operator=uid, subtask=None, bytes_total=backend.restored_bytes))
            return backend

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
        CorruptDataError, CollectedError
            If a file is missing, truncated or altered; or a collection deleted it.
        """
        with reading_checkpoint(self.storage, self.entry):
            return operator_state_table(self.storage, self.entry, uid, name)

    def for_spark(
        self,
        store: str | Path,
        *,
        operators: Collection[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Snapshot:
        """Copy the keyed state of a job of `arrowstate.runtime` into a store from which a Spark query goes on.

        A query has a store of its own, without the sources and sinks of the job. You tell the query where its input
        goes on; `operator_state(uid, "splits")` of each source has the positions. Use the snapshot that `stop()` has
        returned, whose rows the sinks have accepted. The copy is made as by `StateStore.import_savepoint`. States for
        rows in flight are left out.

        Parameters
        ----------
        store
            Where the store of the query is; made if there is none.
        operators
            The uids of the operators; by default all with keyed state.
        storage_options
            As in `open_store`; by default those of this store for a place in the same object storage.

        Returns
        -------
        Snapshot
            The checkpoint that was committed to that store.

        Raises
        ------
        InvalidInputError
            If there is no keyed state, rows are in flight to one of the operators, or `store` is this store itself;
            nothing was changed.
        OperatorNotFoundError
            If it lacks one of the operators; nothing was changed.
        CorruptDataError
            If the snapshot is damaged; nothing was changed.
        FencedError, CollectedError, StorageFullError, StorageError
            If it could not be copied, or another writer or a collection came in between; nothing was committed.
        CommitUnknownError
            If it is unknown whether it was committed.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> from arrowstate.runtime import Job, TableSource
        >>> class Counts(arrowstate.BatchFunction):
        ...     def open(self, context):
        ...         self.count = context.state(arrowstate.ReducingStateDescriptor("count", pa.int64(), reduce="sum"))
        ...
        ...     def process_batch(self, batch, context):
        ...         self.count.add_batch(batch["user"], pa.array([1] * batch.num_rows))
        >>> job = Job("memory://for-spark-example/job")
        >>> clicks = job.source(TableSource(pa.table({"user": ["ann", "bob", "ann"]})), uid="clicks")
        >>> _ = clicks.stateful(Counts(), key=["user"], uid="counts")
        >>> snapshot = job.run(mode="inline")
        >>> query = snapshot.for_spark("memory://for-spark-example/query")
        >>> [operator.uid for operator in query.entry.operators], query.to_arrow("counts.count").num_rows
        (['counts'], 2)
        """
        uids = [operator.uid for operator in self.entry.operators if operator.key] if operators is None else operators
        if not uids:
            raise InvalidInputError(
                "the snapshot has no keyed state, so there is nothing that a query could go on with"
            )
        if isinstance(uids, str):
            raise InvalidInputError(f"operators is a collection of uids, got the text {uids!r}")
        chosen = [find_operator(self.entry, uid) for uid in dict.fromkeys(uids)]
        stuck = ", ".join(repr(operator.uid) for operator in chosen if has_rows_in_flight(operator))
        if stuck:
            raise InvalidInputError(
                f"in checkpoint {self.checkpoint_id} rows are in flight to {stuck}, which a query would never process; "
                "start the job once more, stop it, and use the snapshot that stop() returns"
            )
        entry = replace(self.entry, operators=[without_rows_in_flight(self.storage, operator) for operator in chosen])
        options = options_beside(self.storage, str(store)) if storage_options is None else storage_options
        target = open_storage(store, create=True, storage_options=options)
        store_id = create_store(target, new_id(), now_ms()).store_id
        with recorded("import", target.url, now_ms()) as recording:
            entry = import_checkpoint(
                target,
                store_id,
                self.storage,
                self.store_id,
                entry,
                claim_mode=ClaimMode.NO_CLAIM,
                clock_ms=now_ms,
                new_id=new_id,
            )
            recording.checkpoint_id = entry.checkpoint_id
        return Snapshot(target, store_id, entry)

    def verify(self, *, deep: bool = False) -> Verification:
        """Verify that nothing of the checkpoint is damaged or missing; problems are returned, not raised.

        Parameters
        ----------
        deep
            Read every file, and compare its checksum and its rows with the manifest. Otherwise only documents are read,
            and files are only checked for existence and size.

        Returns
        -------
        Verification
            `problems`, a list of sentences, and `ok`, whether the list is empty; and the number of `files`, `bytes`,
            `runs` and `rows` that were checked.
        """
        return verify_checkpoint(self.storage, self.store_id, self.entry, deep=deep)
