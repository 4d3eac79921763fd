"""A source of a Delta table: its rows as of a version, and what later versions added or changed.

A version is one file of the table's log, a line for each action: files that were added and removed, files of the change
data feed, a new schema. The files are read here and not by delta-rs, which gives rows in no certain order.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs

from arrowstate.errors import InvalidInputError, MissingDependencyError
from arrowstate.runtime.sources.file_formats import Misfit, ParquetRows
from arrowstate.runtime.sources.open_tables import (
    FILE_AND_ROW,
    Follower,
    OpenTableSource,
    Position,
    Step,
    Unreadable,
)
from arrowstate.storage.registry import options_of
from arrowstate_formats.integers import check_integer

if TYPE_CHECKING:
    from deltalake import DeltaTable

CHANGE_TYPE, COMMIT_VERSION = "_change_type", "_commit_version"

_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "columnMapping", "deletionVectors"}
"""What a table may ask of its readers; the last two are looked for where they are used."""

_BARE_ROWS = 65_536

_FEED = "delta.enableChangeDataFeed"
_MAPPING = "delta.columnMapping.mode"


@dataclass(frozen=True, slots=True)
class _File:
    """A file, and the columns that are not in it."""

    path: str
    constants: Mapping[str, pa.Scalar]
    live: pa.BooleanArray | None = None
    """Which rows count, where a deletion vector says it; rows beyond its end do."""


class DeltaSource(OpenTableSource):
    """The rows of a Delta table as of a version, and then the rows that later versions add.

    A version that only joins or moves rows, such as `optimize`, gives nothing. A version that updates or deletes rows
    is an error, is passed over, or gives its changes, as you choose.

    Parameters
    ----------
    table : str or PathLike
        The table, a path or a URL of delta-rs.
    version : int, optional
        The version to begin with; by default the newest one when the job starts for the first time.
    snapshot : bool, default True
        Whether the rows of that version come first. Otherwise only what later versions add.
    changes : {"appends", "feed"}, default "appends"
        `feed` gives every change, by the change data feed of the table, with two more columns: `_change_type`, one of
        `insert`, `update_preimage`, `update_postimage` and `delete`; and `_commit_version` int64. It needs the property
        `delta.enableChangeDataFeed` of the table, and `splits=1`.
    on_change : {"error", "skip"}, default "error"
        What happens at a version that updates, deletes, overwrites or restores rows, where `changes` is `appends`:
        reading fails, or nothing of that version is read, neither what it removes nor what it adds.
    columns : sequence of str, optional
        The columns to read, all by default.
    is_bounded : bool, default False
        Whether it ends with the rows of that version. Otherwise it waits for later versions for ever.
    splits : int, default 1
        How many splits there are, each of which is read by one subtask and has every n-th file of a version.
    discovery_ms : int, default 1_000
        How often it looks for a new version, in milliseconds.
    storage_options : mapping, optional
        Options of the storage, as delta-rs takes them. They are sent to the processes of the job.
    clock : callable, default time.monotonic
        Where the time in seconds comes from.

    Raises
    ------
    MissingDependencyError
        If deltalake is not installed: `pip install 'arrowstate[delta]'`.
    InvalidInputError
        If an argument is wrong, there is no such table, version or column, the table has no change data feed, maps its
        columns to other names (column mapping), or asks for a feature that is not known here. Reading raises a
        `SourceError` if a version or a file that was not read is gone (`vacuum`, an old log), if the table was restored
        or made anew, at changes as said above, if a column that is read is gone or has another type, and at a file with
        a deletion vector that a later version adds.

    Notes
    -----
    A position is a struct: `version` int64, the version that is read; `file` and `row` int64, the number of the next
    file in it, and of the next row in that file; `is_snapshot` bool, whether all rows as of the version are read, or
    what it adds; `table_id` string, the identity of the table. Versions are kept by `delta.logRetentionDuration`, and
    files that were removed by the `retention_hours` of `vacuum`; both must be longer than the job may be stopped.

    Deletion vectors of the first version are applied. New columns are passed over until the source is declared again.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> from arrowstate.runtime import DeltaSource
    >>> from deltalake import write_deltalake
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_deltalake(folder.name, pa.table({"user": ["ann"], "total": [3]}))
    >>> source = DeltaSource(folder.name, discovery_ms=0)
    >>> reader = source.reader()
    >>> reader.add(source.discover(known=()))
    >>> reader.read(max_rows=100).rows.to_pylist(), reader.read(max_rows=100)
    ([{'user': 'ann', 'total': 3}], None)
    >>> write_deltalake(folder.name, pa.table({"user": ["bob"], "total": [5]}), mode="append")
    >>> batch = reader.read(max_rows=100)
    >>> batch.rows.to_pylist(), batch.position["version"]
    ([{'user': 'bob', 'total': 5}], 2)
    >>> reader.close(); folder.cleanup()
    """

    begins = "version="
    position_type = pa.struct(
        {"version": pa.int64(), **FILE_AND_ROW, "is_snapshot": pa.bool_(), "table_id": pa.string()}
    )

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        version: int | None = None,
        snapshot: bool = True,
        changes: Literal["appends", "feed"] = "appends",
        on_change: Literal["error", "skip"] = "error",
        columns: Sequence[str] | None = None,
        is_bounded: bool = False,
        splits: int = 1,
        discovery_ms: int = 1_000,
        storage_options: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError("DeltaSource", "deltalake", "delta") from error
        super().__init__(
            is_bounded=is_bounded, on_change=on_change, splits=splits, discovery_ms=discovery_ms, clock=clock
        )
        if changes not in ("appends", "feed"):
            raise InvalidInputError(f"changes must be 'appends' or 'feed', got {changes!r}")
        if changes == "feed" and splits != 1:
            raise InvalidInputError(f"changes='feed' needs splits=1, for changes have one order; got splits={splits}")
        if is_bounded and not snapshot:
            raise InvalidInputError("is_bounded=True ends with the rows of a version, so it needs snapshot=True")
        path = os.fspath(table)
        self.table = path if "://" in path else os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
        self.storage_options = options_of("storage_options", storage_options) or None
        self.version = check_integer("version", version, 0, 2**63 - 1, optional=True)
        self.snapshot, self.is_feed = snapshot, changes == "feed"
        newest = self.opened()
        if self.version is not None and self.version != newest.version():
            self.opened(self.version)
        self.declared_version = newest.version()
        try:
            check_features(newest.protocol().reader_features or ())
            check_properties(newest.metadata().configuration, is_feed=self.is_feed)
        except Unreadable as error:
            raise InvalidInputError(f"the Delta table {self.table!r} cannot be read: {error}") from None
        self.columns = self._chosen(pa.schema(newest.schema().to_arrow()).remove_metadata(), columns)
        own = [pa.field(CHANGE_TYPE, pa.string(), nullable=False), pa.field(COMMIT_VERSION, pa.int64(), nullable=False)]
        self.schema = pa.schema([*self.columns, *(own if self.is_feed else [])])

    def __repr__(self) -> str:
        # Without what may have a password.
        return f"DeltaSource({self.table!r})"

    def _chosen(self, schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
        for column in columns or ():
            if column not in schema.names:
                raise InvalidInputError(
                    f"the Delta table {self.table!r} has no column {column!r}; it has {', '.join(schema.names)}"
                )
        return schema if columns is None else pa.schema([schema.field(column) for column in columns])

    def opened(self, version: int | None = None) -> DeltaTable:
        """Return the table as of a version, or as it is now."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return DeltaTable(self.table, version=version, storage_options=self.storage_options)
        except DeltaError as error:
            if version is not None:
                problem = f"the Delta table {self.table!r} has no version {version}, or its log is gone: {error}"
            elif isinstance(error, TableNotFoundError):
                problem = f"there is no Delta table {self.table!r}; make it first, with deltalake.DeltaTable.create"
            else:
                raise
            raise InvalidInputError(problem) from None

    def start(self) -> Position:
        """Return the version to begin with, or the one after it."""
        table = self.opened(self.version)
        version = table.version() + (not self.snapshot)
        return {"version": version, "is_snapshot": self.snapshot, "table_id": str(table.metadata().id)}

    def follower(self) -> Follower:
        """Return what reads the table."""
        return _DeltaFollower(self)


def check_features(features: Sequence[str]) -> None:
    """Refuse what a table asks of its readers and is not known here."""
    unknown = sorted(set(features) - _FEATURES)
    if unknown:
        raise Unreadable(f"it asks its readers for {', '.join(unknown)}, which this source does not know")


def check_properties(properties: Mapping[str, str], *, is_feed: bool) -> None:
    """Refuse a table that maps its columns, or has no feed where it is asked for."""
    if properties.get(_MAPPING, "none") != "none":
        raise Unreadable(
            f"its columns have other names in its files ({_MAPPING} is {properties[_MAPPING]!r}), which this source "
            "does not read; copy it to a table without column mapping"
        )
    if is_feed and properties.get(_FEED, "false").lower() != "true":
        raise Unreadable(f"it has no change data feed; set its property {_FEED} to true, or read changes='appends'")


class _DeltaFollower(Follower):
    """Reads versions of a table."""

    def __init__(self, source: DeltaSource) -> None:
        from deltalake.fs import DeltaStorageHandler

        self._source = source
        handler = DeltaStorageHandler(source.table, source.storage_options)
        self._files = pyarrow.fs.PyFileSystem(handler)
        self._file: pa.NativeFile | None = None

    def check(self, position: Position) -> None:
        """Compare the table with the one that was read, and look for the version."""
        table = self._table()
        version, newest = position["version"], table.version()
        if str(table.metadata().id) != position["table_id"]:
            raise Unreadable(
                f"there is another table at {self._source.table!r} now: it has the id {table.metadata().id}, and the "
                f"one that was read {position['table_id']}; read it from its beginning under another uid"
            )
        if newest < version - 1:
            raise Unreadable(f"the newest version of the table is {newest}, before what was read of it")
        if version <= newest and not position["is_snapshot"] and self._log(version) is None:
            raise Unreadable(_log_gone(version, newest))

    def step(self, position: Position) -> Step | None:
        """Return the files of a version."""
        version = position["version"]
        here = {name: value for name, value in position.items() if name not in FILE_AND_ROW}
        after = {**here, "version": version + 1, "file": 0, "row": 0, "is_snapshot": False}
        if position["is_snapshot"]:
            return Step(self._all_files(version, position["table_id"]), here, after)
        actions = self._log(version)
        if actions is not None:
            return Step(self._files_of(version, position["table_id"], actions), here, after)
        # The version before it was read, so it is there as long as the log was not shortened or made anew.
        if not self._has_log(version - 1):
            self.check(position)
        return None

    def read(self, file: _File, row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, in the columns of the source."""
        try:
            self._file = self._files.open_input_file(file.path)
        except FileNotFoundError:
            raise Unreadable(
                f"the file {file.path!r} is gone; it was removed by vacuum, or by hand, before it was read"
            ) from None
        try:
            yield from self._columns_of(file, row)
        except Misfit as error:
            raise Unreadable(f"file {file.path!r}: {error.detail}") from error.__cause__
        except (pa.ArrowException, OSError) as error:
            raise Unreadable(f"file {file.path!r}: {type(error).__name__}: {error}") from error
        finally:
            self._file.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _columns_of(self, file: _File, row: int) -> Iterator[pa.RecordBatch]:
        rows = ParquetRows(self._file, file.path)
        schema = self._source.schema
        inside = [field for field in schema if field.name not in file.constants and field.name in rows.schema.names]
        asked = pa.schema([_as_written(field, rows.schema.field(field.name).type) for field in inside])
        begins = 0 if file.live is not None else row
        batches = rows.batches(asked, begins) if inside else _bare(rows.row_count - begins)
        # A deletion vector counts the rows of the file, a position those that are left.
        passed = row if file.live is not None else 0
        number = 0
        for batch in batches:
            if file.live is not None:
                live = file.live.slice(number, batch.num_rows)
                number += batch.num_rows
                rest = pa.repeat(True, batch.num_rows - len(live))
                kept = batch.filter(pa.concat_arrays([live, rest]))
                batch = kept.slice(min(passed, kept.num_rows))
                passed = max(0, passed - kept.num_rows)
            if batch.num_rows:
                yield _whole(batch, schema, file.constants)

    def _table(self, version: int | None = None) -> DeltaTable:
        try:
            return self._source.opened(version)
        except InvalidInputError as error:
            raise Unreadable(str(error)) from None

    def _all_files(self, version: int, table_id: str) -> list[_File]:
        """Return the files of the table as of a version."""
        table = self._table(version)
        self._check_id(str(table.metadata().id), table_id)
        self._check(check_features, table.protocol().reader_features or ())
        # Properties of the feed may have been set later than this.
        self._check(check_properties, table.metadata().configuration, is_feed=False)
        dead = _live_rows(table)
        files = []
        added = pa.table(table.get_add_actions())
        wanted = [name for name in ("path", "partition") if name in added.schema.names]
        # The log gives them in no certain order; so rows come about as they were written.
        order = [("modification_time", "ascending"), ("path", "ascending")]
        for action in added.sort_by(order).select(wanted).to_pylist():
            constants = {**self._partition(action.get("partition") or {}), **self._kind("insert", version)}
            files.append(_File(_path(action["path"]), constants, dead.pop(action["path"], None)))
        if dead:
            raise Unreadable(f"deletion vectors are of files that version {version} has not: {', '.join(dead)}")
        return files

    def _files_of(self, version: int, table_id: str, actions: Sequence[Mapping[str, Any]]) -> list[_File]:
        """Return what is read of a version's actions, in their order."""
        found: dict[str, list[Mapping[str, Any]]] = {name: [] for name in ("add", "remove", "cdc")}
        for action in actions:
            for name, value in action.items():
                if name in found and (name == "cdc" or value.get("dataChange", True)):
                    found[name].append(value)
                elif name == "protocol":
                    self._check(check_features, value.get("readerFeatures") or ())
                elif name == "metaData":
                    self._check_id(value["id"], table_id)
                    self._check(check_properties, value.get("configuration") or {}, is_feed=self._source.is_feed)
                    self._check_columns(version, value["schemaString"])
        if not self._source.is_feed:
            if not found["remove"]:
                return [self._changed(file, "insert", version) for file in found["add"]]
            if self._source.on_change == "skip":
                return []
            raise Unreadable(
                f"version {version} of the table updates, deletes or overwrites rows ({_operation(actions)}), and only "
                "appends are read; pass over such versions with on_change='skip', or give the table a change data feed "
                "and read changes='feed'"
            )
        if found["cdc"]:
            return [self._changed(file, None, version) for file in found["cdc"]]
        return [
            self._changed(file, kind, version)
            for kind, files in (("delete", found["remove"]), ("insert", found["add"]))
            for file in files
        ]

    def _changed(self, action: Mapping[str, Any], kind: str | None, version: int) -> _File:
        """Return a file of an action of the log; the files of the feed have their kinds themselves."""
        if action.get("deletionVector"):
            raise Unreadable(
                f"version {version} has the file {action['path']!r} with a deletion vector, which this source applies "
                "only to the version that it begins with; begin anew under another uid"
            )
        partition = action.get("partitionValues")
        if partition is None:
            raise Unreadable(f"version {version} does not say of which partition the file {action['path']!r} was")
        return _File(_path(action["path"]), {**self._partition(partition), **self._kind(kind, version)})

    def _kind(self, kind: str | None, version: int) -> dict[str, pa.Scalar]:
        if not self._source.is_feed:
            return {}
        own = {} if kind is None else {CHANGE_TYPE: pa.scalar(kind)}
        return {**own, COMMIT_VERSION: pa.scalar(version)}

    def _partition(self, values: Mapping[str, Any]) -> dict[str, pa.Scalar]:
        names = self._source.columns.names
        return {
            name: _partition_value(name, value, self._source.columns.field(name).type)
            for name, value in values.items()
            if name in names
        }

    def _check_id(self, found: str, expected: str) -> None:
        if found != expected:
            raise Unreadable(
                f"the table was replaced: it has the id {found}, and the one that was read {expected}; read it from "
                "its beginning under another uid"
            )

    def _check(self, check: Callable[..., None], *given: Any, **named: Any) -> None:
        try:
            check(*given, **named)
        except Unreadable as error:
            raise Unreadable(f"the table was changed: {error}") from None

    def _check_columns(self, version: int, schema: str) -> None:
        """Refuse a schema that the source was not declared with; an earlier one may lack columns."""
        from deltalake import Schema

        if version <= self._source.declared_version:
            return
        now = pa.schema(Schema.from_json(schema).to_arrow())
        for field in self._source.columns:
            if field.name not in now.names:
                raise Unreadable(f"version {version} of the table has no column {field.name!r} any more")
            found = now.field(field.name).type
            if not found.equals(field.type):
                raise Unreadable(
                    f"version {version} of the table has column {field.name!r} as {found}, and the source was declared "
                    f"with {field.type}"
                )

    def _log(self, version: int) -> list[Mapping[str, Any]] | None:
        """Return the actions of a version, None if it is not there."""
        try:
            with self._files.open_input_file(_log_path(version)) as file:
                text = file.read()
        except FileNotFoundError:
            return None
        return [json.loads(line) for line in text.splitlines() if line.strip()]

    def _has_log(self, version: int) -> bool:
        return bool(self._files.get_file_info(_log_path(version)).type == pyarrow.fs.FileType.File)


def _log_path(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def _log_gone(version: int, newest: int) -> str:
    return (
        f"version {version} of the table's log is gone, which was not read, and the newest is {newest}; keep the log "
        "for longer than the job may be stopped (delta.logRetentionDuration), and begin anew under another uid"
    )


def _live_rows(table: DeltaTable) -> dict[str, pa.BooleanArray]:
    """Return which rows count, of the files that have deletion vectors, by the path that the log gives them."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    if not hasattr(table, "deletion_vectors"):
        raise Unreadable(
            "it may have deletion vectors, for which a newer deltalake is needed: pip install -U deltalake"
        )
    paths = pa.table(table.get_add_actions())["path"].to_pylist()
    found = {}
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for uri, live in zip(batch["filepath"].to_pylist(), batch["selection_vector"], strict=True):
            path = next((path for path in paths if uri.endswith(f"/{path}")), uri)
            found[path] = live.values
    return found


def _path(path: str) -> str:
    """Return the path of a file below the folder of the table."""
    if path.startswith("/") or re.match("[A-Za-z][A-Za-z0-9+.-]*:", path):
        raise Unreadable(
            f"the file {path!r} is outside of the table (a shallow clone), which this source does not read"
        )
    return unquote(path)


def _operation(actions: Sequence[Mapping[str, Any]]) -> str:
    return next((str(action["commitInfo"].get("operation")) for action in actions if "commitInfo" in action), "unknown")


def _partition_value(name: str, value: Any, type: pa.DataType) -> pa.Scalar:
    """Return the value of a partition; the log has texts, in which an empty one is null."""
    if value is None or value == "":
        return pa.scalar(None, type)
    if pa.types.is_binary(type) or pa.types.is_large_binary(type):
        return pa.scalar(_partition_bytes(value), type)
    if not isinstance(value, str):
        return pa.scalar(value, type)
    try:
        if pa.types.is_timestamp(type):
            naive = pa.scalar(value.removesuffix("Z")).cast(pa.timestamp(type.unit))
            return naive.cast(type)
        return pa.scalar(value).cast(type)
    except pa.ArrowInvalid as error:
        raise Unreadable(f"the log has {value!r} for the partition {name!r}, which is no {type}: {error}") from None


def _partition_bytes(value: str | bytes) -> bytes:
    """Return the bytes of a partition: the log has each as an escape of four digits, or Spark's has them as text."""
    raw = value.encode() if isinstance(value, str) else value
    codes = re.findall(rb"\\u00([0-9A-Fa-f]{2})", raw)
    return bytes(int(code, 16) for code in codes) if len(raw) == 6 * len(codes) else raw


def _as_written(field: pa.Field, written: pa.DataType) -> pa.Field:
    """Return a column as it is asked of a file: Spark writes times in UTC without saying it."""
    if pa.types.is_timestamp(field.type) and pa.types.is_timestamp(written) and written.tz is None:
        return field.with_type(pa.timestamp(field.type.unit))
    return field


def _bare(count: int) -> Iterator[pa.RecordBatch]:
    """Yield rows of a file from which no column is read."""
    for first in range(0, count, _BARE_ROWS):
        yield pa.record_batch({"": pa.nulls(min(_BARE_ROWS, count - first))})


def _whole(batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
    """Return the columns of the source: those of the file, those of its partition, and nulls where it has none."""
    columns = []
    for field in schema:
        if field.name in constants:
            columns.append(pa.repeat(constants[field.name], batch.num_rows))
        elif field.name in batch.schema.names:
            columns.append(batch[field.name].cast(field.type))
        elif field.nullable:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            raise Misfit(f"the file has no column {field.name!r}, which is never null")
    return pa.RecordBatch.from_arrays(columns, schema=schema)
