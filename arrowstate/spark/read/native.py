"""Reading a state by Spark's own Parquet reader where that gives the same rows, which is three times as fast.

A run in a Parquet file is a table that Spark reads without Python. What it cannot know are the dead rows of the run:
a bit for each row of the file goes with the plan, and each row looks its own up by its number. Several files are one
scan. Its rows look first whether the row of this number is live in all of them, which most rows are, and only then in
the bits of their own file, for Spark is slow to tell a row its file. Where the files are not Parquet, have another
schema, or are too many with dead rows, the data source of this package reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StructField, StructType

from arrowstate.files.validation import Validation
from arrowstate.query.expiry import EXPIRES_COLUMN, UPDATED_COLUMN
from arrowstate.query.files import QueriedRun, live_bits_in_file
from arrowstate.query.state import CHECKPOINT_COLUMN, KEY_GROUP_COLUMN
from arrowstate.spark.outputs import frame_by_tasks
from arrowstate.spark.places import STORAGE_OPTIONS, storage_options_text
from arrowstate.spark.pyspark_internals import ROW_NUMBER, context_of, has_file
from arrowstate.spark.read.plans import Plan, plan_from_options
from arrowstate.spark.read.states import ReadPlan
from arrowstate.spark.routing import quoted
from arrowstate.spark.schemas import batch_for_spark, schema_for_spark, spark_schema
from arrowstate.spark.source import FORMAT, register
from arrowstate.spark.versions import DATA_SOURCE, has
from arrowstate.storage.base import Storage
from arrowstate.table.segment import HASH_COLUMN
from arrowstate_formats.integers import bit_counts
from arrowstate_formats.key_groups import KeyGroupRange
from arrowstate_formats.statistics import has_floats

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession

__all__ = ["StateScan", "plan_read", "read_state"]

_MOST_BITMAP_ROWS = 1 << 28
"""The files with dead rows may have so many: their bits, 32 MiB then, go to the executors with the plan."""

_FILES_AT_ONCE = 8
"""So many files with dead rows are one scan; of more, too few rows would be live in all of them."""

_SMALL = 8
"""Files without dead rows that have a fraction of the rows of the others are read with those: a scan costs more."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")

_MOST_SCANS = 32
"""How many scans of files with dead rows a plan has at most."""

_READER_OPTIONS = {
    # Columns must not come from the names of folders, nor files be left out in silence, whatever the session says.
    "recursiveFileLookup": "true",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
}

_PLAIN = {
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.date32()),
}


@dataclass(frozen=True, slots=True, repr=False)
class StateScan:
    """How a state is read.

    Examples
    --------
    >>> import tempfile, arrowstate, pyarrow as pa
    >>> from pyspark.sql import SparkSession
    >>> from arrowstate.spark import bootstrap, plan_read
    >>> spark, store = SparkSession.builder.getOrCreate(), tempfile.mkdtemp()
    >>> total = arrowstate.ValueStateDescriptor("total", pa.int64())
    >>> table = spark.range(3).selectExpr("id as k", "id * 10 as total")
    >>> made = bootstrap(table, store=store, uid="totals", key=["k"], states=[total], parallelism=1)
    >>> scan = plan_read(spark, store, operator="totals")
    >>> scan
    <StateScan, read by the data source: ...>
    >>> scan.frame.orderBy("k").toArrow().to_pydict()
    {'k': [0, 1, 2], 'total': [0, 10, 20]}
    """

    frame: DataFrame
    """The rows."""
    native: bool
    """Whether Spark's own Parquet reader reads them."""
    reason: str
    """Why, for people."""

    def __repr__(self) -> str:
        return f"<StateScan, {self.reason}>"


def read_state(
    spark: SparkSession,
    store: str | Path,
    *,
    operator: str,
    state: str | None = None,
    checkpoint: int | str | None = None,
    as_of: str | int | None = None,
    columns: Sequence[str] | None = None,
    key_groups: KeyGroupRange | None = None,
    validate: Validation = "checksums",
    storage_options: Mapping[str, Any] | None = None,
    expired: bool = False,
) -> DataFrame:
    """Return the rows of a state, read by Spark's own Parquet reader if it can read them; `plan_read` says whether.

    The rows are the same as by `spark.read.format("arrowstate")`. Spark's reader does not compare files with the
    checksums of the store; `Snapshot.verify` does.

    Parameters
    ----------
    spark
        The session.
    store
        Where the store or savepoint is.
    operator, state
        The operator's uid, and the state; it may be left out where the operator has one.
    checkpoint
        The id of a checkpoint or the name of a tag; the newest by default. The frame stays with it.
    as_of
        Instead: the newest checkpoint committed at this time or before, in ISO 8601 or milliseconds since 1970.
    columns
        The columns to read, by default all of key and value; you can also name `_key_hash`, `_key_group` and
        `_checkpoint_id`.
    key_groups
        Only the keys of these key groups.
    validate
        "full" also checks offsets and texts, see `open_store`: the rows are then read by the data source.
    storage_options
        As for `arrowstate.open_store`, of values that JSON has. Spark's own reader does not know them: it reads a
        bucket if the session has credentials for it, or else the data source reads it.
    expired
        Whether to return expired rows too, with `_expires_at`. By default rows that have expired when this is called
        are left out, as by `Snapshot.to_arrow`.

    Returns
    -------
    DataFrame
        A row per entry, as `Snapshot.to_arrow` has them, in no particular order.

    Raises
    ------
    NotFoundError
        If there is no such store, checkpoint, operator or state; the message lists the existing ones.
    InvalidInputError
        If there is no such column or key group.

    Examples
    --------
    >>> from arrowstate.spark import read_state
    >>> def busiest(spark, folder):
    ...     clicks = read_state(spark, f"{folder}/store", operator="counter", state="clicks")
    ...     return clicks.orderBy("clicks", ascending=False).limit(10)
    """
    return plan_read(
        spark,
        store,
        operator=operator,
        state=state,
        checkpoint=checkpoint,
        as_of=as_of,
        columns=columns,
        key_groups=key_groups,
        validate=validate,
        storage_options=storage_options,
        expired=expired,
    ).frame


def plan_read(
    spark: SparkSession,
    store: str | Path,
    *,
    operator: str,
    state: str | None = None,
    checkpoint: int | str | None = None,
    as_of: str | int | None = None,
    columns: Sequence[str] | None = None,
    key_groups: KeyGroupRange | None = None,
    validate: Validation = "checksums",
    storage_options: Mapping[str, Any] | None = None,
    expired: bool = False,
) -> StateScan:
    """Return how a state is read, and why; arguments and errors are those of `read_state`.

    Returns
    -------
    StateScan
        `frame`, the rows; `native`, whether Spark's own reader reads them; and `reason`, a text.

    Examples
    --------
    >>> from arrowstate.spark import plan_read
    >>> def explain(spark, folder):
    ...     scan = plan_read(spark, f"{folder}/store", operator="counter")
    ...     return scan.native, scan.reason
    """
    given = {
        "operator": operator,
        "state": state,
        "checkpoint": checkpoint,
        "asOf": as_of,
        "columns": None if columns is None else json.dumps(list(columns)),
        "keyGroups": None if key_groups is None else f"{key_groups.start}-{key_groups.end}",
        "validate": None if validate == "checksums" else validate,
        STORAGE_OPTIONS: storage_options_text(storage_options),
        "expired": "true" if expired else None,
    }
    options = {name: str(value) for name, value in given.items() if value is not None}
    plan = plan_from_options({**options, "path": str(store)})
    if not isinstance(plan, ReadPlan):
        scan: StateScan | str = "it is an operator state"
    elif plan.validate == "full":
        scan = "Spark's reader takes files on trust"
    else:
        scan = _Native(spark, plan).scan()
    if isinstance(scan, StateScan):
        return scan
    if not has(DATA_SOURCE):
        return StateScan(_by_tasks(spark, plan), False, f"read by tasks in Python: {scan}")
    register(spark)
    return StateScan(_by_data_source(spark, plan, options), False, f"read by the data source: {scan}")


def _by_tasks(spark: SparkSession, plan: Plan) -> DataFrame:
    """Read as the data source reads, without one."""
    reader = plan.reader(plan.schema)
    parts = reader.partitions()
    return frame_by_tasks(spark, len(parts), lambda number: reader.read(parts[number]), plan.schema)


def _by_data_source(spark: SparkSession, plan: Plan, options: dict[str, str]) -> DataFrame:
    # The checkpoint that was looked at, not the one that is the newest by now.
    settled = {name: value for name, value in options.items() if name != "asOf"}
    settled["checkpoint"] = str(plan.checkpoint_id)  # type: ignore[attr-defined]
    return spark.read.format(FORMAT).options(**settled).load(plan.store.url)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class _File:
    """A file, and which of its rows are live."""

    place: str
    "As Spark names it."
    rows: int
    bits: npt.NDArray[np.uint8]
    "A bit for each row; those after the last row are 0."

    @property
    def name(self) -> str:
        return self.place.rsplit("/", 1)[1]

    @property
    def dead_rows(self) -> int:
        return self.rows - int(bit_counts(self.bits).sum(dtype=np.int64))

    @property
    def words(self) -> npt.NDArray[np.int64]:
        padded = np.zeros(-(-self.rows // 64) * 8, dtype=np.uint8)
        padded[: self.bits.size] = self.bits
        return padded.view("<i8")


class _Native:
    """Plans a scan by Spark's reader, or says why there is none."""

    def __init__(self, spark: SparkSession, plan: ReadPlan) -> None:
        self.spark = spark
        self.plan = plan
        self.storage = plan.store.open()
        self.state = plan.open()
        self.names = plan.schema.names
        needed = [HASH_COLUMN] if KEY_GROUP_COLUMN in self.names or self._bounds is not None else []
        needed += [] if plan.expired_up_to is None else [UPDATED_COLUMN]
        virtual = (KEY_GROUP_COLUMN, CHECKPOINT_COLUMN, EXPIRES_COLUMN)
        self.stored = list(dict.fromkeys([*(name for name in self.names if name not in virtual), *needed]))

    def scan(self) -> StateScan | str:
        """Return the scan, or the reason why there is none."""
        files = {
            run_id: list(runs)
            for run_id, runs in groupby(
                sorted(self.state.runs, key=lambda run: run.document.id), key=lambda run: run.document.id
            )
        }
        inline = [run for runs in files.values() for run in runs if run.document.path is None]
        files = {run_id: runs for run_id, runs in files.items() if runs[0].document.path is not None}
        refusal = self._refusal([runs[0] for runs in files.values()])
        if refusal is not None:
            return refusal
        whole: list[_File] = []
        parts: list[_File] = []
        for runs in files.values():
            place, rows = _place(self.storage, str(runs[0].document.path)), runs[0].document.rows
            file = _File(place, rows, live_bits_in_file(runs, rows))
            (parts if file.dead_rows else whole).append(file)
        if (parts or inline) and not has(DATA_SOURCE):
            return "it has dead rows or small runs, which PySpark takes from 4.0 on"
        rows = sum(file.rows for file in parts)
        if rows > _MOST_BITMAP_ROWS:
            return f"its files with dead rows have {rows:,} rows, over {_MOST_BITMAP_ROWS:,}"
        names = {file.name for file in (*whole, *parts)}
        # A row is told by the name of its file, which Spark must give as it is.
        are_told = len(names) == len(files) and all(map(_NAME.fullmatch, names))
        at_once = _FILES_AT_ONCE if are_told else 1
        if len(parts) > _MOST_SCANS * at_once:
            return f"{len(parts)} of its files have dead rows, over {_MOST_SCANS * at_once}"
        places = [file.place for file in (*whole, *parts)]
        unreadable = next((place for place in places if not _can_read(self.spark, place)), None)
        if unreadable is not None:
            return f"the session cannot read {unreadable}"
        reason = f"{len(files)} Parquet files read by Spark"
        if parts:
            reason += f", {sum(file.dead_rows for file in parts):,} dead rows left out by their numbers"
        if inline:
            reason += f", {len(inline)} small runs from the manifests"
        is_small = sum(file.rows for file in whole) * _SMALL < rows and len(places) <= at_once
        if is_small:
            parts, whole = [*parts, *whole], []
        frames = [self._chosen(self._reader().parquet(*(file.place for file in whole)))] if whole else []
        # Those of about the same length, which share most of the numbers of their rows.
        parts.sort(key=lambda file: file.rows)
        frames += [self._live(parts[first : first + at_once]) for first in range(0, len(parts), at_once)]
        frames += [self._local(inline)] if inline else []
        frame = frames[0]
        for other in frames[1:]:
            frame = frame.unionAll(other)
        return StateScan(frame, True, reason)

    def _refusal(self, files: Sequence[QueriedRun]) -> str | None:
        """Say why Spark's reader cannot read the files, None if it can."""
        if not files:
            return "it is so small that it has no files"
        if EXPIRES_COLUMN in self.names:
            return f"no file has the column {EXPIRES_COLUMN!r}"
        formats = sorted({run.document.format for run in files} - {"parquet"})
        if formats:
            return f"{' and '.join(formats)} files are not read by Spark itself"
        if any(run.conversion is not None for run in files):
            return "some of its files have an earlier schema"
        odd = [name for name in self.stored if not _spark_reads(self.state.schema.field(name).type)]
        if odd:
            return f"Spark reads column {odd[0]!r}, {self.state.schema.field(odd[0]).type}, from Parquet in another way"
        unsure = [name for name in self.stored if any(_may_hide_nan(run, name, self.state.schema) for run in files)]
        if unsure:
            return f"column {unsure[0]!r} may hold a NaN in files of an early writer, whose bounds Spark would trust"
        if context_of(self.spark) is None:
            return "on Spark Connect the files may be on another machine"
        return None

    @property
    def _bounds(self) -> tuple[int, int] | None:
        groups, maximum = self.plan.key_groups, self.state.max_parallelism
        return None if len(groups) == maximum else groups.hash_bounds(maximum)

    def _reader(self, *more: StructField) -> DataFrameReader:
        schema = spark_schema(pa.schema([self.state.schema.field(name) for name in self.stored]))
        return self.spark.read.schema(StructType([*schema, *more])).options(**_READER_OPTIONS)

    def _live(self, files: Sequence[_File]) -> DataFrame:
        """The rows of files that are live."""
        words = [file.words for file in files]
        if len(files) > 1:
            everywhere = np.full(max(item.size for item in words), -1, dtype=np.int64)
            for item in words:
                everywhere[: item.size] &= item
            words.insert(0, everywhere)
        item = pa.field("item", pa.int64(), nullable=False)
        table = pa.table({"words": pa.array([np.concatenate(words)], pa.list_(item))})
        # A scalar subquery: the array is part of the compiled plan, so a row costs one access to it. A join by the
        # number of the row takes twice as long.
        held, place = self.spark.createDataFrame(table).scalar(), sf.expr(f"cast({ROW_NUMBER} & 63 as int)")

        def is_live(first_word: str) -> Column:
            number = sf.expr(f"cast(shiftright({ROW_NUMBER}, 6) + {first_word} as int)")
            return sf.getbit(sf.get(held, number), place) == 1

        live = is_live("0")
        if len(files) > 1:
            starts = np.cumsum([item.size for item in words])
            cases = (f"when '{file.name}' then {start}" for file, start in zip(files, starts, strict=False))
            live = live | is_live(f"case _metadata.file_name {' '.join(cases)} end")
        numbered = self._reader(StructField(ROW_NUMBER, LongType())).parquet(*(file.place for file in files))
        return self._chosen(numbered.where(live))

    def _local(self, runs: Sequence[QueriedRun]) -> DataFrame:
        """The rows of runs that are part of the manifests, of some kilobytes each."""
        schema = pa.schema([self.state.schema.field(name) for name in self.stored])
        target = schema_for_spark(spark_schema(schema))
        parts = [part for run in runs for part in run.parts()]
        batches = self.state.batches(parts, self.stored)
        table = pa.Table.from_batches([batch_for_spark(batch, target, "a run") for batch in batches], target)
        return self._chosen(self.spark.createDataFrame(table, spark_schema(schema)))

    def _chosen(self, frame: DataFrame) -> DataFrame:
        if self._bounds is not None:
            frame = frame.where(sf.col(HASH_COLUMN).between(*map(sf.lit, self._bounds)))
        if self.plan.expired_up_to is not None:
            frame = frame.where(sf.col(UPDATED_COLUMN) > sf.lit(self.plan.expired_up_to))
        group = f"shiftright((shiftright({HASH_COLUMN}, 32) + 2147483648L) * {self.state.max_parallelism}L, 32)"
        made = {KEY_GROUP_COLUMN: f"CAST({group} AS INT)", CHECKPOINT_COLUMN: f"{self.plan.checkpoint_id}L"}
        # Texts are one request to the JVM each, columns are several.
        return frame.selectExpr(*(f"{made.get(name, quoted(name))} AS {quoted(name)}" for name in self.names))


def _spark_reads(kind: pa.DataType) -> bool:
    """Whether Spark reads a type from Parquet as the data source gives it to Spark."""
    types = pa.types
    if types.is_timestamp(kind):
        return kind.unit != "ns"
    if types.is_struct(kind) or types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind):
        return all(_spark_reads(kind.field(number).type) for number in range(kind.num_fields))
    return kind in _PLAIN or types.is_decimal128(kind)


def _may_hide_nan(run: QueriedRun, column: str, schema: pa.Schema) -> bool:
    """Whether a file may have bounds of a column with a NaN, which they leave out while Spark orders it highest.

    Writers that noted in the manifest whether there is one wrote no bounds of such a column.
    """
    kind = schema.field(column).type
    if not has_floats(kind):
        return False
    noted = next((item for item in run.document.statistics if item.column == column), None)
    return noted is None or (noted.has_nan is None and noted.min is None)


def _place(storage: Storage, path: str) -> str:
    """Return a file as Spark names it."""
    locate = getattr(storage, "local_path", None)
    if locate is not None:
        return f"file:{locate(path)}"
    scheme, _, rest = storage.url.partition("://")
    return f"{'s3a' if scheme == 's3' else scheme}://{rest.rstrip('/')}/{path}"


def _can_read(spark: SparkSession, place: str) -> bool:
    """Whether the session finds a file; it may take the name for a pattern, lack the file system, or credentials."""
    if any(character in place for character in "*?[]{}\\"):
        return False
    if place.startswith("file:"):
        # One that is missing is told by the data source, as the damage that it is.
        return Path(place.removeprefix("file:")).exists()
    try:
        return has_file(spark, place)
    except Exception:  # noqa: BLE001
        # Whatever the file system of the session raises: then it is read in the way that needs none.
        return False
