"""Which task of a micro-batch gets a row: the rule of the key groups, as an expression that the JVM evaluates.

Spark's `xxhash64` is the key hash of the store, so the row reaches the subtask that owns its key group without
a Python worker having seen it. The expression is `key_groups` of `arrowstate_formats`, and then the key group
times the parallelism over the max parallelism, which is the subtask whose range holds it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StructField, StructType

from arrowstate.errors import InvalidInputError
from arrowstate.spark.workers import own_python, spare_collector

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["divided", "quoted", "run_tasks", "subtask_expression", "values_of_partitions"]

R = TypeVar("R")

_RESULT = StructType([StructField("result", BinaryType())])


class SubtaskCounts(Protocol):
    """How many subtasks a plan has, and how many key groups they share."""

    @property
    def parallelism(self) -> int: ...
    @property
    def max_parallelism(self) -> int: ...


def quoted(name: str) -> str:
    """Return a column name as Spark SQL reads it, whatever characters it has.

    Examples
    --------
    >>> quoted("delay in `min`")
    '`delay in ``min```'
    """
    return "`" + name.replace("`", "``") + "`"


def subtask_expression(key: Sequence[str], parallelism: int, max_parallelism: int) -> str:
    """Return the SQL expression for the subtask of a row: an int from 0 to `parallelism - 1`, never null.

    Parameters
    ----------
    key
        The key columns, in the order of the key schema. A null leaves the hash unchanged.
    parallelism, max_parallelism
        1 <= parallelism <= max_parallelism <= 32768.

    Examples
    --------
    >>> subtask_expression(["id"], 2, 128)
    'CAST((shiftright((shiftright(xxhash64(`id`), 32) + 2147483648L) * 128L, 32) * 2L) DIV 128L AS INT)'
    """
    columns = ", ".join(map(quoted, key))
    # At most 2^32 * 2^15 and 2^15 * 2^15: no product overflows, so the expression is safe under ANSI mode.
    group = f"shiftright((shiftright(xxhash64({columns}), 32) + 2147483648L) * {max_parallelism}L, 32)"
    return f"CAST(({group} * {parallelism}L) DIV {max_parallelism}L AS INT)"


def divided(rows: DataFrame, parallelism: int, subtask: str) -> DataFrame:
    """Return rows of which each partition has those of one subtask, in its place."""
    if hasattr(rows, "repartitionById"):
        return rows.repartitionById(parallelism, sf.expr(subtask))
    # Before PySpark 4.1 a partition can only be named by a value whose hash falls there.
    values = ", ".join(map(str, values_of_partitions(parallelism)))
    return rows.repartition(parallelism, sf.expr(f"element_at(array({values}), {subtask} + 1)"))


@cache
def values_of_partitions(count: int) -> list[int]:
    """Return for each of so many partitions an integer that Spark sends there.

    Spark divides rows by Murmur3 with the seed 42, modulo the number of partitions.

    Examples
    --------
    >>> values_of_partitions(4)
    [12, 6, 2, 0]
    """
    found = np.full(count, -1, dtype=np.int64)
    start, step = 0, max(1 << 10, 4 * count)
    while (found < 0).any():
        values = np.arange(start, start + step, dtype=np.uint32)
        places, first = np.unique(_murmur3(values).view(np.int32) % count, return_index=True)
        found[places] = np.where(found[places] < 0, values[first], found[places])
        start += step
    return [int(value) for value in found]


def _murmur3(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return Spark's hash of integers of 32 bits."""
    with np.errstate(over="ignore"):
        mixed = values * np.uint32(0xCC9E2D51)
        mixed = _rotated(mixed, 15) * np.uint32(0x1B873593)
        hashed = _rotated(np.uint32(42) ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        # The number of bytes.
        hashed ^= np.uint32(4)
        hashed = (hashed ^ hashed >> np.uint32(16)) * np.uint32(0x85EBCA6B)
        hashed = (hashed ^ hashed >> np.uint32(13)) * np.uint32(0xC2B2AE35)
        return hashed ^ hashed >> np.uint32(16)


def _rotated(values: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return values << np.uint32(bits) | values >> np.uint32(32 - bits)


def run_tasks(
    frame: DataFrame,
    columns: Mapping[str, Column],
    key: Sequence[str],
    plan: SubtaskCounts,
    task: Callable[[int, Iterator[pa.RecordBatch]], R | InvalidInputError],
    *,
    order_by: Sequence[str] = (),
) -> list[R]:
    """Send each row to the task of its subtask; return what the tasks did, in no order.

    `columns` are what the tasks get, in this order; `key` and `order_by` are names of them. A task gets the number of
    its subtask and the rows, whose columns have names of no meaning; one without rows runs too. What fails at every
    attempt alike it returns as an error, which is raised here.
    """
    # mapInArrow takes a dot in the name of a column for a field of a struct, so columns go by their place.
    places = {name: f"c{number}" for number, name in enumerate(columns)}
    subtask = subtask_expression([places[name] for name in key], plan.parallelism, plan.max_parallelism)
    rows = frame.select(*(column.alias(places[name]) for name, column in columns.items()))
    rows = divided(rows, plan.parallelism, subtask)
    if order_by:
        rows = rows.sortWithinPartitions(*(places[name] for name in order_by))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_collector()
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        result = pickle.dumps(task(context.partitionId(), batches))
        yield pa.RecordBatch.from_arrays([pa.array([result], pa.binary())], names=["result"])

    def run_without_rows(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Spark does not use a worker again that has left rows unread.
        for _ in numbers:
            pass
        yield from run(iter(()))

    with own_python(frame.sparkSession):
        collected = rows.mapInArrow(run, _RESULT).collect()
        if not collected:
            # Where Spark sees in the plan that there are no rows, it leaves out the partitions, and so the tasks.
            numbers = frame.sparkSession.range(0, plan.parallelism, 1, plan.parallelism)
            collected = numbers.mapInArrow(run_without_rows, _RESULT).collect()
    results: list[R] = []
    for row in collected:
        # What was pickled is the work of this very plan's tasks.
        result = pickle.loads(row["result"])  # noqa: S301
        if isinstance(result, InvalidInputError):
            raise result
        results.append(result)
    return results
