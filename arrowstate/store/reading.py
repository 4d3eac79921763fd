"""A store as its readers have it: which checkpoints there are, what they hold, and whether they are whole."""

from __future__ import annotations

import datetime
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from arrowstate.clock import new_id, now_ms
from arrowstate.errors import CheckpointNotFoundError, CorruptDataError
from arrowstate.files.validation import Validation, readable
from arrowstate.html import table_html
from arrowstate.log.choosing import CheckpointReference, choose_checkpoint, tags_of
from arrowstate.log.collected import advise
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry
from arrowstate.query.difference import Difference
from arrowstate.storage.base import Storage
from arrowstate.store.snapshot import Snapshot
from arrowstate.upkeep.recovery import StoreVerification, find_newest_whole, proposals, verify_store
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.integers import LARGEST_EXACT, check_integer

if TYPE_CHECKING:
    import duckdb


class Page(Protocol):
    """A page that is served; `arrowstate.ui.serving.Page`."""

    @property
    def address(self) -> str:
        """Where it is, without what opens it."""

    @property
    def url(self) -> str:
        """An address that opens the page once, another one each time it is asked for."""

    def close(self) -> None:
        """End it."""

    def __enter__(self) -> Page:
        """Return it."""

    def __exit__(self, *_: object) -> None:
        """End it."""


_SHOWN_CHECKPOINTS = 10
"""In a notebook."""


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

    def _repr_html_(self) -> str:
        newest = list(islice(self._log.backwards(), _SHOWN_CHECKPOINTS))
        rows = [
            (
                entry.checkpoint_id,
                entry.kind,
                datetime.datetime.fromtimestamp(entry.committed_at_ms / 1000, datetime.UTC).isoformat(" ", "seconds"),
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
            Its id, or the name of a tag, or a time: a datetime or a text in ISO 8601, in UTC unless it says otherwise,
            for the newest checkpoint that was committed by then. So it is wherever a checkpoint is named.

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
            Empty before the first checkpoint; those that were collected are not among them. Of a checkpoint and the
            compactions that repeat it, which share an id and the content, the last compaction.
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
        """Compare two checkpoints: how many rows of each state came, changed and went, and what became of its columns.

        Only what the two do not share is read.

        Parameters
        ----------
        before
            The earlier checkpoint, named as for `snapshot`, or -1 for the one before the later one; None for a store in
            which nothing is yet.
        after
            The later one, the newest by default.

        Returns
        -------
        Difference
            The counts by state in `states`; `rows("operator.state")` has the rows of one.

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

    def ui(self, *, host: str = "127.0.0.1", port: int = 0) -> Page:
        """Show the store in a browser, from this process; see `arrowstate ui`.

        A notebook shows a link. The page only reads. It ends with `close`, or with the process.

        Parameters
        ----------
        host
            Where the page listens; by default for this machine alone.
        port
            A free one by default.

        Returns
        -------
        Page
            Its `url` opens the page once, and is another one each time it is asked for.

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
        # The page stands above the store; it is looked up by its name when somebody wants it.
        serving = importlib.import_module("arrowstate.ui.serving")
        page: Page = serving.open_page([self], host=host, port=port).start()
        return page

    def snapshot_of(self, entry: LogEntryDocument) -> Snapshot:
        """Return the snapshot that a log entry of this store stands for."""
        return Snapshot(self._readable, self.store_id, entry, clock_ms=self.clock_ms)

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
