"""A store: the entry point of the Python API. It joins the rooms below."""

from __future__ import annotations

import collections.abc
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowstate.bootstrap.planning import AskedStates
from arrowstate.bootstrap.tables import DEFAULT_BUDGET_BYTES, TableFill, fill_operators, plan_table
from arrowstate.checkpoints.compaction import CompactionPolicy
from arrowstate.checkpoints.handles import SubtaskWriter
from arrowstate.checkpoints.importing import ClaimMode, import_checkpoint
from arrowstate.checkpoints.pending import StoreSide
from arrowstate.checkpoints.rollback import roll_back
from arrowstate.checkpoints.writer import CheckpointWriter
from arrowstate.clock import new_id, now_ms, utc_text
from arrowstate.editing.edit import Edit
from arrowstate.errors import ArrowStateError, CheckpointNotFoundError, CorruptDataError, InvalidInputError
from arrowstate.files.disposal import dispose, dispose_savepoint
from arrowstate.files.references import ReferenceReader
from arrowstate.files.savepoint import check_savepoint, open_savepoint_place, recorded_savepoint, savepoint_place
from arrowstate.files.validation import Validation, check_validation, readable
from arrowstate.html import table_html
from arrowstate.log.choosing import CheckpointReference, choose_checkpoint, tags_of
from arrowstate.log.collected import advise, reading_checkpoint
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry, create_store, given_properties, open_store_document
from arrowstate.log.leases import DEFAULT_LEASE_MS, CheckpointLease, held_while_read
from arrowstate.log.pins import delete_tag, put_tag
from arrowstate.publish.beside import publisher_of_writer
from arrowstate.publish.delta import check_delta, write_delta_logs
from arrowstate.publish.publication import (
    DEFAULT_HISTORY,
    Publication,
    Publish,
    check_publish,
    open_publisher,
)
from arrowstate.publish.types import TableFormat
from arrowstate.query.difference import Difference
from arrowstate.query.health import Health, health_of
from arrowstate.schema.descriptors import StateDescriptor
from arrowstate.schema.row_streams import open_stream
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage, options_beside
from arrowstate.store.follower import Follower
from arrowstate.store.snapshot import Snapshot
from arrowstate.store.writer import StoreWriter
from arrowstate.telemetry.records import Listener, recorded
from arrowstate.ui.serving import Page, open_page
from arrowstate.upkeep.collection import CollectionReport, recorded_collection
from arrowstate.upkeep.collection_plan import check_grace, plan_collection
from arrowstate.upkeep.compaction import StoreCompactionPlan, apply_store_compaction, plan_store_compaction
from arrowstate.upkeep.planned import DEFAULT_GRACE_MS, CollectionPlan
from arrowstate.upkeep.recovery import StoreVerification, find_newest_whole, proposals, verify_store
from arrowstate.upkeep.retention import RetentionPolicy
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.integers import LARGEST_EXACT, check_integer
from arrowstate_formats.run_files import RunFormat

if TYPE_CHECKING:
    import duckdb

_FOLLOWER_LEASE_MS = 60_000
"""A follower that died keeps no checkpoint for longer."""
_SHOWN_CHECKPOINTS = 10
"""In a notebook."""
_SHOWN_FILES = 20
"""In a notebook."""


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
    >>> store.latest().properties, store.snapshot(1).properties
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
        self.clock_ms: Callable[[], int] = clock_ms if clock_ms is now_ms else partial(_time_of, clock_ms)
        self.new_id = new_id
        self._log = CommitLog(storage, store_id=store_id)

    def __repr__(self) -> str:
        return f"<StateStore {self.url}>"

    def _repr_html_(self) -> str:
        newest = list(islice(self._log.backwards(), _SHOWN_CHECKPOINTS))
        rows = [
            (
                entry.checkpoint_id,
                entry.kind,
                utc_text(entry.committed_at_ms).replace("T", " "),
                sum(operator.live_rows(state.name) for operator in entry.operators for state in operator.states),
                ", ".join(operator.uid for operator in entry.operators),
            )
            for entry in newest
        ]
        title = f"{self.url}: the newest {len(rows)} checkpoints" if rows else f"{self.url}: no checkpoint yet"
        return table_html(title, ["checkpoint", "kind", "committed", "rows", "operators"], rows)

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
        StoreNotFoundError
            If the store was deleted, or another one was made at its place: open that one anew.

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

    def snapshot(self, checkpoint_id: CheckpointReference) -> Snapshot:
        """Return a checkpoint.

        Parameters
        ----------
        checkpoint_id
            Its id, the name of a tag, or a time, which means the newest checkpoint that was committed by then: a
            datetime or a text in ISO 8601, in UTC unless it says otherwise. All methods name a checkpoint in this way.

        Returns
        -------
        Snapshot
            As of `latest`.

        Raises
        ------
        CheckpointNotFoundError
            If there is none with this id; the message lists the ids there are.
        NotFoundError
            If there is no such tag, or no checkpoint of that time.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://choosing-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> with store.writer() as writer:
        ...     _ = [writer.checkpoint({"people": [backend]}) for _ in range(3)]
        >>> store.tag("gold", 1)
        >>> [store.snapshot(name).checkpoint_id for name in (3, "gold")]
        [3, 1]
        """
        return self.snapshot_of(choose_checkpoint(self.storage, checkpoint_id, log=self._log))

    def checkpoints(self) -> list[Snapshot]:
        """Return all checkpoints, oldest first.

        Returns
        -------
        list[Snapshot]
            Empty before the first checkpoint, and without checkpoints that were collected. A compaction repeats a
            checkpoint under the same id; of these only the last one is returned.
        """
        newest: dict[int | None, LogEntryDocument] = {}
        for entry in self._log.backwards():
            newest.setdefault(entry.checkpoint_id, entry)
        return [self.snapshot_of(entry) for entry in newest.values()][::-1]

    def show(self, checkpoint: CheckpointReference | None = None) -> dict[str, Any]:
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

    def sql(
        self,
        query: str,
        *,
        checkpoint: CheckpointReference | None = None,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] = MappingProxyType({}),
        expired: bool = False,
    ) -> duckdb.DuckDBPyRelation:
        """Run a query over a checkpoint, the newest by default; see `Snapshot.sql`.

        Parameters
        ----------
        query
            One statement in DuckDB's SQL that has a result; a state may be read `at` another checkpoint.
        checkpoint
            The checkpoint whose states the query reads where it says no other; as for `snapshot`.
        params, tables, expired
            As for `Snapshot.sql`.

        Returns
        -------
        duckdb.DuckDBPyRelation
            The result, which is computed when it is fetched.
        """
        return self._chosen(checkpoint).sql(query, params=params, tables=tables, expired=expired)

    def diff(self, before: CheckpointReference | None, after: CheckpointReference | None = None) -> Difference:
        """Compare two checkpoints: count the rows inserted, updated and deleted in each state, and compare its columns.

        Only files that the two do not share are read. Operator state has no key: its elements come and go, whatever
        their order and their subtask, and an entry of a broadcast state counts once. All elements in the files that the
        two do not share are held in memory together, so the cost is bounded by the operator state of both.

        Parameters
        ----------
        before
            The earlier checkpoint, named as for `snapshot`, or -1 for the one before the later one; None compares with
            an empty store.
        after
            The later one, the newest by default.

        Returns
        -------
        Difference
            The counts by state in `states`; `rows("operator.state")` has the rows of one; `properties` has those of
            the checkpoint that differ.

        Raises
        ------
        NotFoundError
            If there is no such checkpoint.
        InvalidInputError
            If the second is older than the first.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://diff-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
        >>> with store.writer() as writer:
        ...     clicks.add_batch(["ann", "bob"], [1, 2])
        ...     _ = writer.checkpoint({"counter": [backend]})
        ...     clicks.add_batch(["ann", "eve"], [4, 1])
        ...     _ = writer.checkpoint({"counter": [backend]})
        >>> store.diff(1, 2)
        <Difference of checkpoints 1 and 2: counter.clicks +1 ~1 -0>
        """
        return self._chosen(after).diff(before)

    def tags(self) -> dict[str, int]:
        """Return the id of the checkpoint of each tag, by name.

        Returns
        -------
        dict[str, int]
            Empty without tags.
        """
        return tags_of(self.storage)

    def verify(self, *, deep: bool = False, advance: Callable[[], None] = lambda: None) -> StoreVerification:
        """Look at the log and every checkpoint; see `Snapshot.verify`. `advance` is called after each run.

        Returns
        -------
        StoreVerification
            `problems`, a list of sentences that is empty if nothing is damaged; `log` and `checkpoints`, the findings
            for each, newest first; and `newest_whole`, the newest checkpoint without damage.
        """
        return verify_store(self.storage, self.store_id, deep=deep, advance=advance)

    def diagnose(self, *, deep: bool = True, advance: Callable[[], None] = lambda: None) -> list[str]:
        """Verify the store and return what to do about damage; nothing is changed.

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
        """Return the newest checkpoint without damage, with a RuntimeWarning for each newer one that is damaged.

        `latest` never goes back by itself: rows that came after the returned checkpoint are lost unless the sources are
        read again from its offsets.

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
            If there are checkpoints, and all are damaged.
        CheckpointNotFoundError
            If there is none.
        StorageError
            If the storage failed before an undamaged checkpoint was found: the one that could not be read may be
            undamaged. Other errors that do not mean damage, such as a missing package, are raised too.
        """
        found = find_newest_whole(self.storage, self.store_id, deep=deep)
        if found.entry is not None:
            for problem in found.problems:
                warnings.warn(f"{self.url}: {problem}", RuntimeWarning, stacklevel=2)
            return self.snapshot_of(found.entry)
        if found.problems:
            raise CorruptDataError(self.url, f"no checkpoint is whole: {'; '.join(found.problems[:5])}")
        raise CheckpointNotFoundError(None, [])

    def ui(self, *, host: str = "127.0.0.1", port: int = 0, tables: Sequence[str | Path] = ()) -> Page:
        """Show the store in a browser, from this process; see `arrowstate ui`.

        A notebook shows a link. The page only reads. It ends with `close`, or with the process.

        Parameters
        ----------
        host
            The address on which the page listens; by default only this machine can reach it.
        port
            A free one by default.
        tables
            Places to which stores are published. Engines read them by the REST catalog of Iceberg, which is at `/v1` of
            the address, with `Page.bearer` as their token.

        Returns
        -------
        Page
            Its `url` opens the page once; each access returns a new one.

        Raises
        ------
        MissingDependencyError
            If the extra `ui` is not installed.
        InvalidInputError
            If there is no such host, or the port is taken.

        Examples
        --------
        >>> import arrowstate
        >>> store = arrowstate.open_store("memory://ui-example", create=True)
        >>> with store.ui() as page:
        ...     page.address.startswith("http://127.0.0.1:")
        True
        """
        places = [open_storage(place, storage_options=options_beside(self.storage, place)) for place in tables]
        return open_page([self], host=host, port=port, tables=places).start()

    def snapshot_of(self, entry: LogEntryDocument) -> Snapshot:
        """Return the snapshot that a log entry of this store stands for."""
        return self._snapshot_in(self._readable, self.store_id, entry)

    def _snapshot_in(self, storage: Storage, store_id: str, entry: LogEntryDocument) -> Snapshot:
        return Snapshot(storage, store_id, entry, clock_ms=self.clock_ms)

    def _chosen(self, checkpoint: CheckpointReference | None) -> Snapshot:
        return self.latest() if checkpoint is None else self.snapshot(checkpoint)

    def _committed(self, checkpoint: CheckpointReference | None) -> CommittedEntry:
        if checkpoint is not None and (isinstance(checkpoint, int) and checkpoint >= 0):
            return self._log.committed_checkpoint(checkpoint)
        if checkpoint is not None:
            chosen = choose_checkpoint(self.storage, checkpoint, log=self._log).checkpoint_id
            assert chosen is not None, "a fence is no checkpoint"
            return self._log.committed_checkpoint(chosen)
        newest = next(self._log.history().checkpoints(), None)
        if newest is None:
            raise CheckpointNotFoundError(None, [])
        return newest

    # What is kept

    def tag(self, name: str, checkpoint: CheckpointReference | None = None) -> None:
        """Keep a checkpoint, the newest by default, until the tag is removed.

        Parameters
        ----------
        name
            1 to 128 characters out of letters, digits, `_`, `-` and `.`, the first a letter or digit. Digits alone
            are refused: they are the id of a checkpoint.
        checkpoint
            The id of the checkpoint.

        Raises
        ------
        CheckpointNotFoundError
            If there is no such checkpoint, or it is being collected.
        InvalidInputError
            If there is a tag of this name, or the name is not allowed.
        CollectedError
            If a collection deleted files of the checkpoint.
        CorruptDataError
            If files of it are missing for another reason, or are being collected.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://tag-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> with store.writer() as writer:
        ...     _ = [writer.checkpoint({"people": [backend]}) for _ in range(3)]
        >>> store.tag("gold", 1)
        >>> _ = store.collect(arrowstate.RetentionPolicy(count=1)).apply()
        >>> [snapshot.checkpoint_id for snapshot in store.checkpoints()], store.tags()
        ([1, 3], {'gold': 1})
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
                tag_id=self.new_id(),
                now_ms=self.clock_ms(),
            )
        if not is_tagged:
            there = (other.checkpoint_id for other in self._log.backwards())
            ids = sorted(number for number in there if number is not None)
            raise CheckpointNotFoundError(entry.document.checkpoint_id, ids)

    def untag(self, name: str) -> None:
        """Remove a tag; NotFoundError if there is none of this name."""
        delete_tag(self.storage, name)

    def lease(
        self,
        checkpoint: CheckpointReference | None = None,
        *,
        ttl_ms: int = DEFAULT_LEASE_MS,
        holder: str = "",
        and_later: bool = False,
    ) -> Lease:
        """Keep a checkpoint, the newest by default, from being collected during a `with` block.

        A thread renews the lease. If the process dies, the lease ends by itself.

        Parameters
        ----------
        checkpoint
            The id of the checkpoint.
        ttl_ms
            How long the lease lasts without renewal, in milliseconds, at least 1.
        holder
            The name of the reader, for people who look at the store.
        and_later
            Also keep all later checkpoints, for a reader of the changes from one to the next. A program that does not
            know such leases collects nothing while there is one.

        Returns
        -------
        Lease
            Holds the checkpoint until the end of the block; `snapshot` reads it.

        Raises
        ------
        CheckpointNotFoundError
            If there is no such checkpoint, or it is being collected.
        CheckpointsCollectedError
            If, with `and_later`, a later checkpoint was collected or is being collected.

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
        >>> with store.writer() as writer:
        ...     _ = [writer.checkpoint({"people": [backend]}) for _ in range(3)]
        >>> with store.lease(2, and_later=True):
        ...     _ = store.collect(arrowstate.RetentionPolicy(count=1)).apply()
        ...     [snapshot.checkpoint_id for snapshot in store.checkpoints()]
        [2, 3, 4]
        """
        return Lease(self, self._committed(checkpoint), ttl_ms=ttl_ms, holder=holder, and_later=and_later)

    def follow(self, *, poll_ms: int = 200, ttl_ms: int = _FOLLOWER_LEASE_MS, holder: str = "follower") -> Follower:
        """Return a reader that stays on the newest checkpoint, for lookups beside a job that runs.

        A thread looks for a newer checkpoint at intervals, opens those of its states that were looked up before, and
        then goes over to it. What did not change stays mapped. A lease keeps each checkpoint that somebody still has
        the snapshot of, and all after it; if the process dies, the lease ends by itself. Restarts, rescales and
        rollbacks of the job are checkpoints like others. It may begin before the first checkpoint.

        Parameters
        ----------
        poll_ms
            How often to look, in milliseconds, at least 1; each look reads the end of the log.
        ttl_ms
            How long the lease lasts without renewal, in milliseconds, at least 1.
        holder
            The name of the reader, for people who look at the store.

        Returns
        -------
        Follower
            To be used in a `with` block, or closed.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://follow-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
        >>> with store.writer() as writer:
        ...     _ = writer.checkpoint({"people": [backend]})
        >>> with store.follow() as follower:
        ...     follower.lookup("people.city", ["ann"]).value.to_pylist()
        [{'user': 'ann', 'city': 'Rome'}]
        """
        return Follower(
            self.storage,
            self.store_id,
            self.snapshot_of,
            poll_ms=poll_ms,
            ttl_ms=ttl_ms,
            holder=holder,
            clock_ms=self.clock_ms,
            new_id=self.new_id,
        )

    def health(self) -> Health:
        """Return how the job of the store is: up or down, since when and why; also when the job is gone.

        It is judged by what the job last said of itself in the store, which it says several times in the time of its
        lease, and by the log. Nothing is asked of the job, so this can be called from anywhere. The cost does not grow
        with the number of checkpoints.

        Returns
        -------
        Health
            `is_ok` says whether somebody needs to look.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> from arrowstate.runtime import Job, OutputTable, TableSource
        >>> job = Job("memory://health-example")
        >>> job.source(TableSource(pa.table({"n": [1, 2, 3]})), uid="numbers").sink(OutputTable("copy"))
        >>> _ = job.run(mode="threads")
        >>> health = arrowstate.open_store("memory://health-example").health()
        >>> health.status, health.is_ok, health.problems
        ('finished', True, ())
        """
        return health_of(self.storage, now_ms=self.clock_ms())

    def collect(
        self,
        policy: RetentionPolicy | None = None,
        *,
        grace_ms: int = DEFAULT_GRACE_MS,
        allow_short_grace: bool = False,
    ) -> Collection:
        """Plan to delete old checkpoints and files that no kept one needs; `apply()` of the result deletes them.

        Parameters
        ----------
        policy
            Which checkpoints are kept, by default only the newest. Checkpoints with a tag or a lease, and savepoints,
            are kept as well.
        grace_ms
            How long a file that no checkpoint has referred to is kept, counted from the first applied collection that
            saw it, in milliseconds, at least 60,000. It should be longer than any checkpoint takes. The checkpoint that
            the newest compaction repeats is kept as long, so that its writer can go on from it.
        allow_short_grace
            Allow a shorter grace period, from 0. If somebody writes to the store, the collection may then delete files
            of a checkpoint that is being written; that checkpoint fails or is not acknowledged.

        Returns
        -------
        Collection
            `plan` says which files would be deleted and why, which files wait, and which are unknown. `apply()` deletes
            them and returns what was deleted, and what was spared because it was needed again.

        Raises
        ------
        CorruptDataError, FormatVersionError
            If a kept checkpoint is damaged, or the store has something that this version does not know.
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
        ((1,), ['log/00000000000000000001.json', 'log/00000000000000000002.json'])
        >>> len(collection.apply().deleted)
        2
        """
        check_grace(grace_ms, allow_short=allow_short_grace)
        policy = RetentionPolicy() if policy is None else policy
        now_ms = self.clock_ms()
        plan = plan_collection(self.storage, policy, now_ms=now_ms, grace_ms=grace_ms, clock_ms=self.clock_ms)
        return Collection(self, plan)

    def compact(self, policy: CompactionPolicy | None = None) -> Compaction:
        """Plan to write the newest checkpoint in fewer and fuller files; nothing is written before `apply()`.

        Use it for a store, or operators, that nobody writes to: a writer compacts its own state with each checkpoint.
        It fences nobody and waits for nobody. If a checkpoint is committed meanwhile, the plan drops the parts that
        the new checkpoint no longer shares with it. `collect` deletes the old files with the checkpoints that refer to
        them; after the grace period a compaction counts in the place of the checkpoint that it repeats.

        Parameters
        ----------
        policy
            How much more than the live rows a state may take, and in how many small files; by default twice as much.

        Returns
        -------
        Compaction
            `plan` says how much space the checkpoint takes and what would be merged. `apply()` merges it, commits the
            result as a checkpoint with the same content, properties and watermark, and returns this checkpoint.

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
        (2, {'offset': 42}, 6000)
        """
        policy = CompactionPolicy() if policy is None else policy
        return Compaction(self, plan_store_compaction(self.storage, policy))

    # What writes

    def writer(
        self,
        *,
        properties: Mapping[str, Any] | None = None,
        compaction: CompactionPolicy | None = CompactionPolicy(),
        accept_loss: bool = False,
        on_checkpoint: Listener | None = None,
        publish: Publish | str | Path | None = None,
    ) -> StoreWriter:
        """Open the store for writing; every writer opened before is fenced and can no longer commit.

        Parameters
        ----------
        properties
            JSON values kept in the fence entry, for instance the name of the writer.
        compaction
            The limits at which runs are merged, so that a checkpoint takes little more space than its live rows. Runs
            are merged before a checkpoint is taken, or by a coordinator in the background. None never merges.
        accept_loss
            Whether to go on if the newest entries of the log are lost. Their content is then lost for good, and their
            ids are given again. By default this is refused, since an acknowledged checkpoint is among them.
        on_checkpoint
            Called once for each checkpoint of the writer that has ended, committed or not, and for savepoints of a
            coordinator, with an `arrowstate.telemetry.OperationRecord` of its times, sizes and error. If the function
            raises, the error is logged and changes nothing.
        publish
            Where each checkpoint is published as open tables, see `publish`: a folder or URL, or an
            `arrowstate.Publish`. `checkpoint` and `commit` return after it, a coordinator publishes beside the job. A
            publication that fails is logged as a warning, and changes nothing of the commit.

        Returns
        -------
        StoreWriter
            Takes checkpoints; use it in a `with` block.

        Raises
        ------
        CorruptDataError
            If the log is damaged, or has lost its newest entries and `accept_loss` is false; nobody is fenced.
        InvalidInputError
            If `publish` is not what it should be, or its place is inside the store; nobody is fenced.
        """
        # Refused before another writer is fenced.
        asked = check_publish(publish)
        publisher = publisher_of_writer(
            self.storage, self.store_id, asked, clock_ms=self.clock_ms, new_id=self.new_id, is_beside=False
        )
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
            savepoint_of=lambda target, entry: self._snapshot_in(target, open_store_document(target).store_id, entry),
            open_place=partial(open_savepoint_place, self.storage, create=True),
        )
        return StoreWriter(writer, side, compaction, on_checkpoint, publisher, asked)

    def subtask_writer(self, uid: str, subtask: int, *, format: RunFormat = "arrow") -> SubtaskWriter:
        """Return a writer for one subtask of an operator, for a process whose files another process commits.

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
        operators: collections.abc.Collection[str] | None = None,
        claim_mode: ClaimMode = ClaimMode.NO_CLAIM,
        storage_options: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Snapshot:
        """Import a savepoint, or a checkpoint of another store, as the newest checkpoint of this store.

        Its files are copied, and every byte is compared with its checksum. Then earlier writers are fenced, and the
        checkpoint is committed under an id above all others of this store, with its properties and watermark. The
        store does not refer to the source. The fence before the checkpoint has the property `imported_from`.

        Parameters
        ----------
        source
            A name, for the folder `savepoints/<name>` of this store; a path or URL (with a `/`), whose newest
            checkpoint is imported; or a snapshot of another store. A lease holds the checkpoint meanwhile.
        operators
            The uids of the operators to import, for example those with keyed state of a job, without its sources and
            sinks; all by default.
        claim_mode
            `NO_CLAIM` only reads the source. `CLAIM` disposes of it once the import is committed, as
            `dispose_savepoint` does; a source that is not only a savepoint is refused, and so is a claim that would
            leave operators out.
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
            If the source is a checkpoint of this store, cannot be claimed, or `operators` is empty; nothing was
            changed.
        OperatorNotFoundError
            If the source lacks one of the operators; nothing was changed.
        CorruptDataError
            If the source is damaged; nothing was changed, and nobody was fenced.
        FencedError, CollectedError, StorageFullError, StorageError
            If it could not be copied, or another writer or a collection came in between; nothing was committed.
        CommitUnknownError
            If it is unknown whether it was committed; the source stays.

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
            storage = open_savepoint_place(self.storage, source, storage_options)
            source = StateStore(storage, open_store_document(storage).store_id).latest()
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
        place = savepoint_place(self.storage, name_or_path)
        options = options_beside(self.storage, place) if storage_options is None else storage_options
        return dispose_savepoint(place, storage_options=options, clock_ms=self.clock_ms)

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
        """Make keyed states from a table and commit them as one checkpoint.

        The table may be larger than memory: it is read once, from the first row to the last. A job restores from the
        checkpoint as from any other, at any parallelism. Other operators and states of the store stay. Other writers
        of the store are fenced. `arrowstate.spark.bootstrap` does the same on a cluster.

        The values of a state come from the column with its name. For a struct type they may also come from the columns
        that are named after its fields:

        ===========  ==========================================================================================
        kind         content of a row
        ===========  ==========================================================================================
        value        the value of its key; a second row of a key is refused
        reducing     a value to fold in; with `accumulators`, what is stored for its key, once
        aggregating  a value to add; with `accumulators`, what is stored for its key, once
        list         one element; or a list with some of the key's elements, in their order
        map          one entry, with its user key in the column `<state>_key`; or a map with some of the key's
                     entries; a second row of an entry is refused
        timer        the `timestamp`; a state for each clock, `timers_event_time` for example
        ===========  ==========================================================================================

        A row with null there adds nothing to the state, except that an entry of a map may have the value null.
        Namespaces are columns with their names. Rows of one key are taken in the order of the table, or of `order_by`.

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
            The rows have the stored values of reducing and aggregating states, such as a count, not values to add.
        updated_at
            For states with a time to live: the column with the time of the last update of a row, a timestamp or
            milliseconds. Without it, and where it is null, rows count as updated now. A state that expires by event
            time needs it.
        order_by
            Columns by which the rows of each key are sorted before they are written, ascending, nulls first, for lists
            and for the reducers `first` and `last`. A table that does not fit in memory is kept in local files
            meanwhile.
        watermark
            The event time, in milliseconds since 1970, up to which the state is complete.
        format
            The format of the run files: `arrow`, `parquet` or `lance`.
        memory_budget_bytes
            How much of the state all subtasks together hold in memory; the rest is in mapped local files. None for no
            limit. The batches of the table that are being read come on top.
        spill_dir
            The folder of these files, which are deleted in the end; by default the system's temporary folder. If that
            is in memory (a tmpfs), spilling does not help.
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
            may have one. After this and any other error, also one that the table itself raises, nothing is committed
            and no file is left.
        NullKeyError, ValueOverflowError
            If a row does not fit.
        KeyTypeError, ValueTypeError
            If a column has another type than the store's key or the state; a narrower number is widened.
        FencedError
            If another writer committed to the store meanwhile.
        CollectedError, StorageFullError, StorageError
            If it could not be written.
        CommitUnknownError
            If it is unknown whether it was committed; the files stay.

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
        if savepoint is not None:
            # Once the checkpoint is committed it is too late to refuse the place.
            check_savepoint(open_savepoint_place(self.storage, savepoint, create=True), "parquet")
        entry = fill_operators(
            self.storage,
            self.store_id,
            [TableFill(plan, stream.batches([*plan.columns, *order_by]), order_by)],
            properties=given_properties(properties),
            new_id=self.new_id,
            clock_ms=self.clock_ms,
        )
        if savepoint is None:
            return self.snapshot_of(entry)
        return self.savepoint(savepoint, checkpoint=entry.checkpoint_id)

    def edit(
        self,
        checkpoint: CheckpointReference | None = None,
        *,
        to: str | Path | None = None,
        format: RunFormat = "arrow",
        folder: str | Path | None = None,
    ) -> Edit[Snapshot]:
        """Begin to edit a checkpoint, the newest by default: its rows, timers, states, operators and properties.

        Until `commit` of the returned edit, nothing is changed and no writer is stopped. A lease holds the checkpoint
        until the end of the `with` block.

        Parameters
        ----------
        checkpoint
            Its id, a tag or a time, as for `snapshot`. The commit then replaces the checkpoints after it.
        to
            A savepoint that `commit` writes, unless `commit` names another one; the store then stays as it is.
        format
            The format of new run files: `arrow`, `parquet` or `lance`.
        folder
            The folder in which the edit makes its temporary folder; by default the system's folder for such files.

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
        return Edit(
            self.storage,
            self.store_id,
            checkpoint=checkpoint,
            to=to,
            format=format,
            folder=folder,
            clock_ms=self.clock_ms,
            new_id=self.new_id,
            snapshot=self._snapshot_in,
        )

    def savepoint(
        self,
        name_or_path: str | Path,
        *,
        checkpoint: CheckpointReference | None = None,
        format: RunFormat = "parquet",
        delta: bool = False,
        progress: Callable[[int, int], None] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Snapshot:
        """Write a checkpoint as a self-contained folder without dead rows: one file per state and subtask.

        A lease holds the checkpoint meanwhile, so that no collection deletes its files.

        Parameters
        ----------
        name_or_path
            A name, for the folder `savepoints/<name>` of this store; or a path or URL (with a `/`).
        checkpoint
            The checkpoint to write, the newest by default.
        format
            The format of the run files.
        delta
            Whether the folder of each state, `data/<operator>/<state>`, is a table of Delta Lake too; the format must
            be Parquet. The tables move with the savepoint. Delete them when you open the savepoint for writing: they
            stay as they are.
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
            If the place holds files already, or there is no such format; with `delta` if a column has a type or a name
            that Delta lacks, or the format is not Parquet.
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
        if delta:
            if format != "parquet":
                raise InvalidInputError(f"a Delta table has files of Parquet, asked for was the format {format!r}")
            check_delta(snapshot.entry)
        target = open_savepoint_place(self.storage, name_or_path, storage_options, create=True)
        with (
            held_while_read(
                self.storage, snapshot.entry, holder="a savepoint", clock_ms=self.clock_ms, new_id=self.new_id
            ),
            reading_checkpoint(self.storage, snapshot.entry),
        ):
            store_id, written = recorded_savepoint(
                self._readable,
                self.store_id,
                snapshot.entry,
                target,
                format=format,
                new_id=self.new_id,
                clock_ms=self.clock_ms,
                progress=progress,
            )
        if delta:
            try:
                write_delta_logs(target, written)
            except BaseException:
                # The one without the tables is not what was asked for, and would be in the way of another.
                with suppress(ArrowStateError, OSError):
                    dispose(target, now_ms=self.clock_ms())
                raise
        return self._snapshot_in(target, store_id, written)

    def publish(
        self,
        to: str | Path,
        *,
        format: TableFormat = "iceberg",
        version: int = 3,
        states: Sequence[str | tuple[str, str]] | None = None,
        history: int = DEFAULT_HISTORY,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Publication:
        """Publish the newest checkpoint as open tables, which engines read without this package.

        There is a table for each keyed state and each output table, in the folder `<to>/<operator>/<state>`. In a table
        of Iceberg, run files of Parquet are part of it as they are, and others get a twin in Parquet beside the
        metadata. In a table of Delta Lake every run has a twin, so that the folder is whole by itself. A call writes
        what has changed since the one before, and nothing if nothing has. It may be made by any process, as often as
        wanted, by several at once, and again after it failed; the log of the store alone decides what is published.

        Parameters
        ----------
        to
            A folder or URL outside of the store.
        format
            "iceberg", or "delta" for tables of Delta Lake, which need a place of their own.
        version
            3 has deletion vectors, and in Iceberg defaults of columns. 2 is for engines that do not read them: Iceberg
            has position deletes in Parquet then, and Delta writes a file anew when rows of it die.
        states
            "operator.state", or (operator, state), of each table to publish; all by default.
        history
            So many checkpoints the tables list for time travel, 1 or more. Iceberg lists those with a tag, too, and has
            the tags. Delta has no tags; its versions go ten at a time, so there may be up to nine more of them. A
            listed checkpoint is held by a tag `published-...` of the store, so that no
            collection takes its files; the tag is removed when the tables list the checkpoint no more.
        storage_options
            As in `open_store`; by default those of this store for a place in the same object storage.

        Returns
        -------
        Publication
            `tables`, with the URL of the newest metadata of each, or of the folder of a Delta table, as `metadata`.

        Raises
        ------
        CheckpointNotFoundError
            If there is no checkpoint yet.
        NotFoundError
            If a state of `states` is neither in the newest checkpoint nor published.
        InvalidInputError
            If the place is inside the store, or has tables of another store, format or version; or if a column has a
            type that no open table has, or a name that Delta does not take. Nothing is published then.
        StorageError, StorageFullError
            If a file cannot be written. What was published before stays; the next call goes on.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://publish-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
        >>> with store.writer() as writer:
        ...     _ = writer.checkpoint({"people": [backend]})
        >>> store.publish("memory://open-tables")["people.city"].metadata
        'memory://open-tables/people/city/metadata/v1.metadata.json'
        """
        publish = Publish(
            to=to, format=format, version=version, states=states, history=history, storage_options=storage_options
        )
        return open_publisher(
            self.storage, self.store_id, publish, clock_ms=self.clock_ms, new_id=self.new_id
        ).publish()

    def rollback(self, checkpoint: CheckpointReference, *, comment: str | None = None) -> Snapshot:
        """Make an older checkpoint the newest again, without copying a file.

        Its content, properties and watermark are committed once more, under an id above all others of this store, and
        earlier writers are fenced. Later checkpoints can still be read and compared until they are collected. Sources
        must go back to the offsets of its properties; a Spark query needs a checkpoint folder of that time.

        Parameters
        ----------
        checkpoint
            Its id, a tag or a time, as for `snapshot`.
        comment
            The reason, for people who look at the log; kept in the fence, beside `rolled_back_to`.

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
            If it is unknown whether it was committed.

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
            self.snapshot(checkpoint).entry,
            comment=comment,
            clock_ms=self.clock_ms,
            new_id=self.new_id,
        )
        return self.snapshot_of(entry)


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
        self, store: StateStore, committed: CommittedEntry, *, ttl_ms: int, holder: str, and_later: bool = False
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

    def __init__(self, store: StateStore, plan: CollectionPlan) -> None:
        self.plan = plan
        self._store = store
        self._was_applied = False

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
        """Delete the files of the plan, except those that are needed again since; see `apply_collection`.

        After an error it may be called again.

        Returns
        -------
        CollectionReport
            `deleted`, the paths of the deleted files; `deleted_count` and `deleted_bytes`, their number and size; and
            `spared`, the files of the plan that are needed again.

        Raises
        ------
        InvalidInputError
            If it was applied before: what it would report was deleted then.
        """
        if self._was_applied:
            raise InvalidInputError("the collection was applied; plan another with store.collect()")
        store = self._store
        report = recorded_collection(store.storage, self.plan, clock_ms=store.clock_ms, new_id=store.new_id)
        self._was_applied = True
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

    def __init__(self, store: StateStore, plan: StoreCompactionPlan) -> None:
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
        """Carry out the plan and return the new checkpoint, or None if there was nothing to do.

        See `apply_store_compaction` for the errors; after any of them the store is as it was.

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
        Make a store if there is none; the place must be empty then. A bucket is not made.
    storage_options
        Credentials, endpoints and limits of object storages, `max_file_bytes` of `memory://`, as in
        `arrowstate.storage.open_storage`. Most of them can come from the environment instead.
    validate
        What is checked when rows are read. "checksums": the checksums of the bytes, which finds damage, but trusts
        whoever can write to the store. "full": also every offset and text, in a pass over them. A file that somebody
        forged with right checksums then raises `CorruptDataError` instead of ending this process. Savepoints, imports
        and deep verifications are always read in full. The library that reads Lance may still end the process if a
        forged file asks for more memory than there is.

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
        If the URL holds a password, the storage options do not fit, or `validate` has another value.

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
