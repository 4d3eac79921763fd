"""Engines that read open tables, each as a function from the URL of the metadata and a snapshot to rows.

Those of Delta take the URL of the folder and a version.

Also a program: `python table_readers.py READER < requests`, for engines that need an environment of their own. It reads
a line of JSON for each request, and answers each by a line.
"""

import datetime
import functools
import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = list[str]


def plain(value: Any) -> Any:
    """Return a value in a form that is the same from every engine."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [plain(item) for item in value]
        if items and all(isinstance(item, dict) and item.keys() == {"key", "value"} for item in items):
            return sorted((str(item["key"]), str(item["value"])) for item in items)
        return items
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).isoformat()
    if isinstance(value, datetime.datetime | datetime.time | datetime.date):
        return value.isoformat()
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def rows_of(columns: Mapping[str, Sequence[Any]], names: Sequence[str]) -> Rows:
    """Return rows as texts in an order of their own."""
    return sorted(repr([plain(value) for value in row]) for row in zip(*(columns[name] for name in names), strict=True))


def by_arrow(table: Any) -> Rows:
    """Return the rows of an Arrow table, of a map what a list of its entries is."""
    import pyarrow as pa

    columns = {}
    for name in table.column_names:
        values = table[name].to_pylist()
        if pa.types.is_map(table.schema.field(name).type):
            values = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in values]
        columns[name] = values
    return rows_of(columns, table.column_names)


def by_pyiceberg(metadata: str, snapshot: int | None) -> Rows:
    from pyiceberg.table import StaticTable

    return by_arrow(StaticTable.from_metadata(metadata).scan(snapshot_id=snapshot).to_arrow())


def by_polars(metadata: str, snapshot: int | None) -> Rows:
    import polars as pl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = pl.scan_iceberg(metadata, snapshot_id=snapshot).collect()
    return by_arrow(frame.to_arrow())


@functools.cache
def _duckdb() -> Any:
    import duckdb

    connection = duckdb.connect()
    for name in ("avro", "iceberg", "delta"):
        folder = Path(__import__(f"duckdb_extension_{name}").__file__).parent
        (file,) = folder.rglob("*.duckdb_extension")
        connection.execute(f"INSTALL '{file}'; LOAD {name}")
    return connection


def by_duckdb(metadata: str, snapshot: int | None) -> Rows:
    at = "" if snapshot is None else f", snapshot_from_id = {snapshot}::UBIGINT"
    relation = _duckdb().execute(f"SELECT * FROM iceberg_scan('{metadata.removeprefix('file://')}'{at})")
    return by_arrow(relation.to_arrow_table())


def by_clickhouse(metadata: str, snapshot: int | None) -> Rows:
    import chdb
    import pyarrow as pa

    # A path outside of where the process was started is refused.
    folder = metadata.removeprefix("file://").partition("/metadata/")[0]
    at = "" if snapshot is None else f" SETTINGS iceberg_snapshot_id = {snapshot}"
    answer = chdb.query(f"SELECT * FROM icebergLocal('{folder}'){at}", "ArrowTable")
    return by_arrow(answer if isinstance(answer, pa.Table) else answer.to_arrow())


def by_daft(metadata: str, snapshot: int | None) -> Rows:
    import daft
    from pyiceberg.table import StaticTable

    frame = daft.read_iceberg(StaticTable.from_metadata(metadata), snapshot_id=snapshot)
    return by_arrow(frame.to_arrow())


def by_deltalake(folder: str, version: int | None) -> Rows:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    query = QueryBuilder().register("t", DeltaTable(folder, version=version)).execute("SELECT * FROM t")
    return by_arrow(pa.table(query))


def by_polars_delta(folder: str, version: int | None) -> Rows:
    import polars as pl

    return by_arrow(pl.scan_delta(folder, version=version).collect().to_arrow())


def by_duckdb_delta(folder: str, version: int | None) -> Rows:
    at = "" if version is None else f", version = {version}"
    return by_arrow(_duckdb().execute(f"SELECT * FROM delta_scan('{folder}'{at})").to_arrow_table())


def by_clickhouse_delta(folder: str, version: int | None) -> Rows:
    import chdb
    import pyarrow as pa

    at = "" if version is None else f" SETTINGS delta_lake_snapshot_version = {version}"
    answer = chdb.query(f"SELECT * FROM deltaLakeLocal('{folder.removeprefix('file://')}'){at}", "ArrowTable")
    return by_arrow(answer if isinstance(answer, pa.Table) else answer.to_arrow())


def by_daft_delta(folder: str, version: int | None) -> Rows:
    import daft

    return by_arrow(daft.read_deltalake(folder, version=version).to_arrow())


READERS: dict[str, Callable[[str, int | None], Rows]] = {
    "pyiceberg": by_pyiceberg,
    "polars": by_polars,
    "duckdb": by_duckdb,
    "clickhouse": by_clickhouse,
    "daft": by_daft,
    "deltalake": by_deltalake,
    "polars-delta": by_polars_delta,
    "duckdb-delta": by_duckdb_delta,
    "clickhouse-delta": by_clickhouse_delta,
    "daft-delta": by_daft_delta,
}


if __name__ == "__main__":
    read = READERS[sys.argv[1]]
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer: dict[str, Any] = {"rows": read(asked["metadata"], asked["snapshot"])}
        except Exception as error:  # noqa: BLE001 (whatever an engine raises is its answer)
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(answer), flush=True)
