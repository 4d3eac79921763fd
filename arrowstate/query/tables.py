"""A checkpoint or savepoint as tables: what it holds, its rows as Arrow and Polars, and lookups of keys."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowstate.clock import now_ms
from arrowstate.files.storage_use import SMALL_FILE_BYTES, StorageUse, storage_use
from arrowstate.files.validation import is_validated
from arrowstate.html import table_html
from arrowstate.log.collected import reading_checkpoint
from arrowstate.query.catalog import resolve
from arrowstate.query.describe import overview
from arrowstate.query.expiry import Seen
from arrowstate.query.kept_reads import Recent
from arrowstate.query.state import StateReader
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, pack, unpack
from arrowstate_formats.key_groups import KeyGroupRange

if TYPE_CHECKING:
    import polars

    from arrowstate.query.duckdb.dataset import ScanStatistics

_KEPT_SCANS = 64
_STATES: Recent[StateReader] = Recent(64)


class TableReader:
    """Reads one checkpoint or savepoint; safe to use from several threads.

    Parameters
    ----------
    storage
        Where the store is.
    store_id
        Its identity.
    entry
        The log entry of the checkpoint.
    clock_ms
        Returns the time in milliseconds since 1970, by which rows with a time to live expire. A snapshot that was
        pickled goes by the time of day.
    """

    def __init__(
        self, storage: Storage, store_id: str, entry: LogEntryDocument, *, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        self.storage = storage
        self.store_id = store_id
        self.entry = entry
        self.clock_ms = clock_ms
        self._lock = threading.Lock()
        self._states: dict[tuple[str, str], StateReader] = {}
        self._scans: deque[ScanStatistics] = deque(maxlen=_KEPT_SCANS)

    def __reduce__(self) -> tuple[Any, ...]:
        # The document as its text: it has exact numbers, and structs of several classes.
        return _unpickled, (type(self), self.storage, self.store_id, pack(self.entry))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.checkpoint_id} of {self.storage.url}: {', '.join(self.states())}>"

    def _repr_html_(self) -> str:
        states = [
            (f"{operator['uid']}.{state['name']}", state["kind"], state["type"], state["rows"], state["bytes"])
            for operator in self.show()["operators"]
            for state in operator["states"]
        ]
        title = f"{self.entry.kind} {self.checkpoint_id} of {self.storage.url}"
        return table_html(title, ["state", "kind", "type", "rows", "bytes"], states)

    @property
    def checkpoint_id(self) -> int:
        """The id to ask the store for this checkpoint; the first of a store has 1."""
        assert self.entry.checkpoint_id is not None, "a fence is no checkpoint"
        return self.entry.checkpoint_id

    @property
    def properties(self) -> dict[str, Any]:
        """What the writer noted with the checkpoint, for instance source offsets."""
        return copy.deepcopy(self.entry.properties)

    @property
    def watermark(self) -> int | None:
        """The watermark at the checkpoint, in milliseconds since 1970."""
        return self.entry.watermark

    @property
    def operators(self) -> dict[str, list[str]]:
        """The names of the states by operator uid."""
        return {operator.uid: [state.name for state in operator.states] for operator in self.entry.operators}

    def states(self) -> list[str]:
        """Return `<operator uid>.<state>` of each state."""
        return [f"{uid}.{name}" for uid, names in self.operators.items() for name in names]

    def show(self) -> dict[str, Any]:
        """Return what it holds as plain values, as `arrowstate show --json` prints them; see `StateStore.show`.

        Returns
        -------
        dict[str, Any]
            Times, properties, operators and states.
        """
        with reading_checkpoint(self.storage, self.entry):
            return overview(self.storage, self.entry)

    def storage_use(self, *, small_file_bytes: int = SMALL_FILE_BYTES) -> StorageUse:
        """Return how many files and bytes it refers to, how many of them are live, and how many files are small.

        The manifests are read, nothing else.

        Parameters
        ----------
        small_file_bytes
            A run file with fewer bytes is small.

        Returns
        -------
        StorageUse
            `files`, `bytes`, `live_bytes`, `small_files`; and `space_amplification`, bytes over live bytes.

        Raises
        ------
        CorruptDataError
            If a manifest is missing or damaged.
        """
        with reading_checkpoint(self.storage, self.entry):
            return storage_use(self.storage, self.entry, small_file_bytes=small_file_bytes)

    def to_arrow(
        self,
        state: str | tuple[str, str],
        *,
        columns: Sequence[str] | None = None,
        key_groups: KeyGroupRange | None = None,
        expired: bool = False,
    ) -> pa.Table:
        """Return the rows of a state, in no particular order.

        A value or reducing state has one row per key and namespace, a map one per entry, a list one per element, and
        within a list `_seq` rises in the order of the elements. Of a state with a time to live it has the rows that the
        state itself would return: not those that have expired, by processing time now, by event time at the watermark
        that a restore begins with; unless its visibility is `return_until_cleaned_up`.

        Parameters
        ----------
        state
            `<operator uid>.<state>`, or a tuple of both.
        columns
            Which columns, in this order; those of key, namespace, user key and value by default, in a list `_seq`
            (int64) too. `_key_hash` (int64), `_key_group` (int32, at the max parallelism of the checkpoint), and with
            a time to live `_updated_at` (int64, milliseconds) and `_expires_at` (timestamp("ms"), null after the year
            9999) are there by name.
        key_groups
            Only the keys of these key groups; record batches without such keys are not read.
        expired
            Whether to return rows that have expired, too; without `columns`, `_expires_at` comes with them.

        Returns
        -------
        pa.Table
            The key columns, the namespace columns and the user key of a map, named `<state>_key`, all without nulls;
            then one column named after the state, or for a struct value one column per field.

        Raises
        ------
        OperatorNotFoundError, StateNotFoundError
            If there is no such state; the message lists what there is.
        InvalidInputError
            If there is no such column or key group; the message lists the columns there are.
        CorruptDataError, CollectedError
            If a file is missing, truncated or altered; or a collection took it.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://to-arrow-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
        >>> clicks.add_batch(pa.array(["ann"]), pa.array([3]))
        >>> with store.writer() as writer:
        ...     snapshot = writer.checkpoint({"counter": [backend]})
        >>> snapshot.to_arrow("counter.clicks", columns=["clicks", "_key_group"]).to_pylist()
        [{'clicks': 3, '_key_group': 113}]
        """
        reader = self._state(state)
        names = reader.check_columns(columns, expired=expired)
        return reader.table(names, key_groups, reader.expired_up_to(self._seen(expired=expired)))

    def to_polars(
        self,
        state: str | tuple[str, str],
        *,
        columns: Sequence[str] | None = None,
        key_groups: KeyGroupRange | None = None,
        expired: bool = False,
    ) -> polars.DataFrame:
        """Return the rows of a state as a Polars data frame; arguments, columns and errors as for `to_arrow`.

        Returns
        -------
        polars.DataFrame
            The columns of `to_arrow`.
        """
        import polars

        frame = polars.from_arrow(self.to_arrow(state, columns=columns, key_groups=key_groups, expired=expired))
        assert isinstance(frame, polars.DataFrame)
        return frame

    def lookup(self, state: str | tuple[str, str], keys: Any, *, expired: bool = False) -> pa.Table:
        """Return the rows of some keys.

        Only the record batches that can hold one of the keys are read.

        Parameters
        ----------
        state
            `<operator uid>.<state>`, or a tuple of both.
        keys
            An Arrow array or a sequence of the key's type; for a key of several columns a RecordBatch, Table or
            StructArray with them.
        expired
            Whether to return rows that have expired, too, with `_expires_at`.

        Returns
        -------
        pa.Table
            Columns as `to_arrow`; the rows of each of the given keys, in the order given, and the elements of a list
            in theirs.

        Raises
        ------
        KeyTypeError, NullKeyError
            If the keys do not fit the key schema; other errors are those of `to_arrow`.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://lookup-example", create=True)
        >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
        >>> clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
        >>> clicks.add_batch(pa.array(["ann", "bob"]), pa.array([3, 4]))
        >>> with store.writer() as writer:
        ...     snapshot = writer.checkpoint({"counter": [backend]})
        >>> snapshot.lookup("counter.clicks", ["bob", "eve", "ann"]).to_pylist()
        [{'user': 'bob', 'clicks': 4}, {'user': 'ann', 'clicks': 3}]
        """
        reader = self._state(state)
        hidden = reader.expired_up_to(self._seen(expired=expired))
        return reader.lookup(keys, reader.shown_columns(expired=expired), expired_up_to=hidden)[0]

    def _seen(self, *, expired: bool) -> Seen:
        return Seen(self.clock_ms(), expired)

    def _state(self, reference: str | tuple[str, str]) -> StateReader:
        return self._reader(*resolve(self.entry, reference))

    def _reader(self, uid: str, name: str) -> StateReader:
        with self._lock:
            reader = self._states.get((uid, name))
            if reader is None:
                key = (*self._identity, uid, name)
                reader = _STATES.get(key, lambda: StateReader(self.storage, self.entry, uid, name))
                self._states[uid, name] = reader
            return reader

    @property
    def _identity(self) -> tuple[str, str, str]:
        return self.storage.url, self.store_id, f"{self.entry.commit_id} {is_validated(self.storage)}"


def _unpickled(kind: type[TableReader], storage: Storage, store_id: str, entry: bytes) -> TableReader:
    return kind(storage, store_id, unpack(entry, LogEntryDocument))
