"""A source of an Iceberg table: its rows as of a snapshot, and the rows that later snapshots append."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.runtime.iceberg_catalog import IcebergTable
from arrowstate.runtime.sources.open_tables import (
    FILE_AND_ROW,
    Follower,
    OpenTableSource,
    Position,
    Step,
    Unreadable,
)
from arrowstate_formats.integers import check_integer

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot


class IcebergSource(OpenTableSource):
    """The rows of an Iceberg table as of a snapshot, and then the rows that later snapshots append.

    A snapshot that only joins or moves rows (`replace`) gives nothing. A snapshot that deletes or overwrites rows is an
    error, or is passed over, as you choose.

    Parameters
    ----------
    table : str
        The table with its namespace, such as `shop.orders`.
    catalog : str, default "default"
        The name of the catalog, as PyIceberg knows it from its configuration.
    catalog_options : mapping, optional
        Properties of the catalog, such as `type`, `uri` and `warehouse`, besides those of the configuration. They are
        sent to the processes of the job.
    snapshot_id : int, optional
        The snapshot to begin with; by default the newest one when the job starts for the first time.
    snapshot : bool, default True
        Whether the rows of that snapshot come first. Otherwise only what later snapshots append.
    on_change : {"error", "skip"}, default "error"
        What happens at a snapshot that deletes or overwrites rows: reading fails, or nothing of that snapshot is read,
        neither what it removes nor what it adds.
    columns : sequence of str, optional
        The columns to read, all by default.
    is_bounded : bool, default False
        Whether it ends with the rows of that snapshot. Otherwise it waits for later snapshots for ever.
    splits : int, default 1
        How many splits there are, each of which is read by one subtask and has every n-th file of a snapshot.
    discovery_ms : int, default 1_000
        How often it looks for a new snapshot, in milliseconds.
    clock : callable, default time.monotonic
        Where the time in seconds comes from.

    Raises
    ------
    MissingDependencyError
        If PyIceberg is not installed: `pip install 'arrowstate[iceberg]'`.
    UnavailableError
        If the catalog cannot be reached, or has no answer now.
    InvalidInputError
        If an argument is wrong, there is no such catalog, table, snapshot or column, or the catalog refuses the table.
        Reading raises a `SourceError` if a snapshot that was not read is expired, if the table was rolled back or made
        anew, at deletes and overwrites as said above, and if a column that is read is gone or has another type.

    Notes
    -----
    A position is a struct: `step` int64, how many snapshots were read; `after_id` int64, the newest of them, null for
    none; `snapshot_id` int64, the one that is being read, null between two; `file` and `row` int64, the number of the
    next file in it, and of the next row in that file; `is_snapshot` bool, whether all rows as of that snapshot are
    read, or what it appends. Snapshots must be kept for longer than the job may be stopped.

    Only the main branch is read. Deletes of rows, by position and by deletion vector, are applied to the first
    snapshot; deletes by equality are an error of PyIceberg. Columns are known by their field ids, so a column that was
    renamed is read on; new columns are passed over until the source is declared again. A file is read as a whole.
    Texts, bytes and lists have their usual types, not the large ones.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> from arrowstate.runtime import IcebergSource
    >>> from pyiceberg.catalog import load_catalog
    >>> folder = tempfile.TemporaryDirectory()
    >>> options = {"type": "sql", "uri": f"sqlite:///{folder.name}/catalog", "warehouse": f"file://{folder.name}"}
    >>> catalog = load_catalog("default", **options)
    >>> rows = pa.table({"user": ["ann"], "total": [3]})
    >>> catalog.create_namespace("shop"); table = catalog.create_table("shop.totals", rows.schema)
    >>> table.append(rows)
    >>> source = IcebergSource("shop.totals", catalog_options=options, discovery_ms=0)
    >>> reader = source.reader()
    >>> reader.add(source.discover(known=()))
    >>> reader.read(max_rows=100).rows.to_pylist(), reader.read(max_rows=100)
    ([{'user': 'ann', 'total': 3}], None)
    >>> table.append(pa.table({"user": ["bob"], "total": [5]}))
    >>> batch = reader.read(max_rows=100)
    >>> batch.rows.to_pylist(), batch.position["step"]
    ([{'user': 'bob', 'total': 5}], 2)
    >>> reader.close(); catalog.close(); folder.cleanup()
    """

    begins = "snapshot_id="
    position_type = pa.struct(
        {
            "step": pa.int64(),
            "after_id": pa.int64(),
            "snapshot_id": pa.int64(),
            **FILE_AND_ROW,
            "is_snapshot": pa.bool_(),
        }
    )

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        catalog_options: Mapping[str, str] | None = None,
        snapshot_id: int | None = None,
        snapshot: bool = True,
        on_change: Literal["error", "skip"] = "error",
        columns: Sequence[str] | None = None,
        is_bounded: bool = False,
        splits: int = 1,
        discovery_ms: int = 1_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place = IcebergTable("IcebergSource", table, catalog, catalog_options)
        super().__init__(
            is_bounded=is_bounded, on_change=on_change, splits=splits, discovery_ms=discovery_ms, clock=clock
        )
        if is_bounded and not snapshot:
            raise InvalidInputError("is_bounded=True ends with the rows of a snapshot, so it needs snapshot=True")
        self.snapshot_id = check_integer("snapshot_id", snapshot_id, 0, 2**63 - 1, optional=True)
        self.snapshot = snapshot
        newest = self.place.load()
        if self.snapshot_id is not None and newest.snapshot_by_id(self.snapshot_id) is None:
            raise InvalidInputError(
                f"the Iceberg table {table!r} has no snapshot {self.snapshot_id}; it was never there, or is expired"
            )
        names = [field.name for field in newest.schema().fields]
        for column in columns or ():
            if column not in names:
                raise InvalidInputError(
                    f"the Iceberg table {table!r} has no column {column!r}; it has {', '.join(names)}"
                )
        self.fields: Schema = newest.schema().select(*(names if columns is None else columns))
        self.schema = pa.schema([_small_field(field) for field in self.fields.as_arrow()])
        self.place.close()

    def __repr__(self) -> str:
        # Without what may have a password.
        return f"IcebergSource({self.place.table!r}, catalog={self.place.catalog!r})"

    def start(self) -> Position:
        """Return the snapshot to begin with, or the place after it."""
        newest = self.place.load().current_snapshot()
        self.place.close()
        begin = self.snapshot_id if self.snapshot_id is not None else newest and newest.snapshot_id
        # A table without a snapshot has no rows, and its first snapshot is what comes after that.
        own = {"after_id": None, "snapshot_id": begin} if self.snapshot else {"after_id": begin, "snapshot_id": None}
        return {"step": 0, **own, "is_snapshot": self.snapshot}

    def follower(self) -> Follower:
        """Return what reads the table."""
        return _IcebergFollower(self)


class _IcebergFollower(Follower):
    """Reads snapshots of a table, of which it knows those ahead."""

    def __init__(self, source: IcebergSource) -> None:
        self._source = source
        # A catalog of its own, for it may be in use by another thread.
        self._place = IcebergTable("IcebergSource", source.place.table, source.place.catalog, source.place.options)
        self._table: Table | None = None
        self._ahead: list[Snapshot] = []

    def check(self, position: Position) -> None:
        """Look for the snapshots that are read next."""
        table = self._loaded()
        if position["snapshot_id"] is not None:
            self._snapshot(table, position["snapshot_id"])
        elif not position["is_snapshot"]:
            self._after(table, position["after_id"])

    def step(self, position: Position) -> Step | None:
        """Return the files of the snapshot that is read, or of the next one."""
        after_id, snapshot_id = position["after_id"], position["snapshot_id"]
        if position["is_snapshot"]:
            tasks = [] if snapshot_id is None else self._all_files(self._snapshot(self._loaded(), snapshot_id))
            return Step(tasks, _here(position, snapshot_id), _next(position, snapshot_id))
        if snapshot_id is not None:
            snapshot = self._snapshot(self._loaded(), snapshot_id)
        else:
            if not self._ahead or self._ahead[-1].parent_snapshot_id != after_id:
                self._ahead = self._after(self._loaded(), after_id)
            if not self._ahead:
                return None
            snapshot = self._ahead.pop()
        tasks = self._appended(snapshot)
        return Step(tasks, _here(position, snapshot.snapshot_id), _next(position, snapshot.snapshot_id))

    def read(self, file: FileScanTask, row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, in the columns of the source."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        assert self._table is not None
        schema = self._source.schema
        scan = ArrowScan(self._table.metadata, self._table.io, self._source.fields, AlwaysTrue())
        try:
            for batch in scan.to_record_batches([file]):
                # A checkpoint with a text that is not UTF-8 would be one that is damaged.
                batch.validate(full=True)
                rest = batch.slice(min(row, batch.num_rows))
                row = max(0, row - batch.num_rows)
                if rest.num_rows:
                    columns = [column.cast(field.type) for column, field in zip(rest.columns, schema, strict=True)]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
        except FileNotFoundError as error:
            raise Unreadable(
                f"the file {file.file.file_path!r} is gone; its snapshot was expired before it was read: {error}"
            ) from None
        except (pa.ArrowException, OSError) as error:
            raise Unreadable(f"file {file.file.file_path!r}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close the catalog."""
        self._place.close()

    def _loaded(self) -> Table:
        """Return the table as it is now."""
        try:
            self._table = self._place.load()
        except InvalidInputError as error:
            raise Unreadable(str(error)) from None
        self._check_columns(self._table.schema())
        return self._table

    def _check_columns(self, now: Schema) -> None:
        """Refuse a schema in which a column that is read is gone or another one."""
        there = {field.field_id: field for field in now.fields}
        for field in self._source.fields.fields:
            found = there.get(field.field_id)
            if found is None:
                raise Unreadable(f"the table has no column {field.name!r} any more, which the source was declared with")
            if found.field_type != field.field_type:
                raise Unreadable(
                    f"column {field.name!r} of the table is {found.field_type} now, and the source was declared with "
                    f"{field.field_type}; declare it again"
                )

    def _snapshot(self, table: Table, snapshot_id: int) -> Snapshot:
        found = table.snapshot_by_id(snapshot_id)
        if found is None:
            raise Unreadable(
                f"snapshot {snapshot_id} is gone, which was not read to its end: it is expired, or the table was made "
                "anew; keep snapshots for longer than the job may be stopped, and begin anew under another uid"
            )
        return found

    def _after(self, table: Table, after_id: int | None) -> list[Snapshot]:
        """Return the snapshots after one, the newest first."""
        found: list[Snapshot] = []
        snapshot = table.current_snapshot()
        while snapshot is not None and snapshot.snapshot_id != after_id:
            found.append(snapshot)
            if snapshot.parent_snapshot_id == after_id:
                return found
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        if snapshot is not None or (after_id is None and not found):
            return []
        if after_id is not None and table.snapshot_by_id(after_id) is not None:
            raise Unreadable(
                f"the table was rolled back: snapshot {after_id}, up to which it was read, is not one of those that "
                "led to its newest; begin anew under another uid"
            )
        raise Unreadable(
            f"snapshots after {after_id or 'the first'} are gone that were not read: they are expired, or the table "
            "was made anew; keep snapshots for longer than the job may be stopped, and begin anew under another uid"
        )

    def _all_files(self, snapshot: Snapshot) -> list[FileScanTask]:
        """Return the files of the table as of a snapshot, with what is deleted of them."""
        assert self._table is not None
        tasks = self._table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
        return sorted(tasks, key=lambda task: task.file.file_path)

    def _appended(self, snapshot: Snapshot) -> list[FileScanTask]:
        """Return the files that a snapshot adds to the table."""
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
        from pyiceberg.table import FileScanTask
        from pyiceberg.table.snapshots import Operation

        assert self._table is not None
        operation = None if snapshot.summary is None else snapshot.summary.operation
        if operation == Operation.REPLACE:
            return []
        if operation != Operation.APPEND:
            if self._source.on_change == "skip":
                return []
            what = "unknown" if operation is None else operation.value
            raise Unreadable(
                f"snapshot {snapshot.snapshot_id} deletes or overwrites rows (its operation is {what}), and only "
                "appends are read; pass over such snapshots with on_change='skip'"
            )
        files = [
            entry.data_file
            for manifest in snapshot.manifests(self._table.io)
            if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id
            for entry in manifest.fetch_manifest_entry(self._table.io)
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
        ]
        return [FileScanTask(file) for file in sorted(files, key=lambda file: file.file_path)]


def _here(position: Position, snapshot_id: int | None) -> dict[str, Any]:
    own = {name: value for name, value in position.items() if name not in FILE_AND_ROW}
    return {**own, "snapshot_id": snapshot_id}


def _next(position: Position, snapshot_id: int | None) -> dict[str, Any]:
    return {
        "step": position["step"] + 1,
        "after_id": snapshot_id,
        "snapshot_id": None,
        "file": 0,
        "row": 0,
        "is_snapshot": False,
    }


def _small_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _small(field.type), nullable=field.nullable)


def _small(type: pa.DataType) -> pa.DataType:
    """Return a type without large ones."""
    if pa.types.is_large_string(type):
        return pa.string()
    if pa.types.is_large_binary(type):
        return pa.binary()
    if pa.types.is_large_list(type) or pa.types.is_list(type):
        return pa.list_(_small_field(type.value_field))
    if pa.types.is_struct(type):
        return pa.struct([_small_field(field) for field in type])
    if pa.types.is_map(type):
        return pa.map_(_small_field(type.key_field), _small_field(type.item_field))
    return type
