"""Mean and variance: a few numbers per key, all of a batch at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.schema.aggregates import Variance
from arrowstate.state.folds.aggregates.groups import BuiltInAggregate, Floats, borders, floats
from arrowstate.state.folds.reducers import reduce_column
from arrowstate_formats.compiled import kernel


class MeanAggregate(BuiltInAggregate):
    """Count and sum."""

    def create(self, count: int) -> pa.StructArray:
        """Return accumulators without values."""
        return self._struct([np.zeros(count, dtype=np.int64), np.zeros(count)])

    def add(self, accumulators: pa.StructArray, groups: pa.Int64Array, values: pa.Array) -> pa.StructArray:
        """Return the accumulators with values added."""
        starts = borders(groups, len(accumulators))
        counts, sums = accumulators.flatten()
        # One after the other, on from the old sum: where a batch ends makes no difference to the last bit.
        numbers = pa.array(floats(values))
        added = reduce_column("sum", numbers, np.arange(len(numbers)), starts, sums, sums.type, self.name)
        return self._struct([counts.to_numpy() + np.diff(starts), added])

    def with_amounts(
        self, accumulators: pa.StructArray, groups: pa.Int64Array, values: pa.Array, retracted: pa.BooleanArray
    ) -> pa.StructArray:
        """Return the accumulators with values added or taken back; null where nothing is left of one.

        Where values were taken back before they came, the count and the sum wait for them below zero.
        """
        starts = borders(groups, len(accumulators))
        away = retracted.to_numpy(zero_copy_only=False)
        numbers = floats(values)
        total, ones = pa.array(np.where(away, -numbers, numbers)), pa.array(np.where(away, -1, 1))
        order = np.arange(len(numbers))
        counts, sums = (
            reduce_column("sum", amounts, order, starts, old, old.type, self.name).to_numpy()
            for amounts, old in zip((ones, total), accumulators.flatten(), strict=True)
        )
        # No value that comes later makes a number again of a sum that is none.
        empty = (counts == 0) & ((sums == 0) | ~np.isfinite(sums))
        return pa.StructArray.from_arrays(
            [pa.array(counts), pa.array(sums)], fields=list(accumulators.type), mask=pa.array(empty)
        )

    def merge(self, left: pa.StructArray, right: pa.StructArray) -> pa.StructArray:
        """Return the accumulators of all values of both."""
        (count, total), (other_count, other_total) = _columns(left), _columns(right)
        return self._struct([count + other_count, total + other_total])

    def result(self, accumulators: pa.StructArray) -> pa.Array:
        """Return the means; null where as much was taken back as was added."""
        counts, sums = _columns(accumulators)
        return pa.array(sums / np.maximum(counts, 1), mask=counts < 1)


class VarianceAggregate(BuiltInAggregate):
    """Count, mean and sum of squared distances, kept up to date value by value as Welford does."""

    def __init__(self, declared: Variance, kind: pa.DataType) -> None:
        super().__init__(declared, kind)
        self._population = declared.population

    def create(self, count: int) -> pa.StructArray:
        """Return accumulators without values."""
        return self._struct([np.zeros(count, dtype=np.int64), np.zeros(count), np.zeros(count)])

    def add(self, accumulators: pa.StructArray, groups: pa.Int64Array, values: pa.Array) -> pa.StructArray:
        """Return the accumulators with values added."""
        counts, means, distances = (column.copy() for column in _columns(accumulators))
        _welford(floats(values), borders(groups, len(accumulators)), counts, means, distances)
        return self._struct([counts, means, distances])

    def merge(self, left: pa.StructArray, right: pa.StructArray) -> pa.StructArray:
        """Return the accumulators of all values of both."""
        (count, mean, distance), (other_count, other_mean, other_distance) = _columns(left), _columns(right)
        total = count + other_count
        with np.errstate(invalid="ignore", over="ignore"):
            delta = other_mean - mean
            share = other_count / np.maximum(total, 1)
            # The mean of accumulators without values is 0 and means nothing.
            merged_mean = np.where(count == 0, other_mean, mean + delta * share)
            merged = distance + other_distance + np.where(count * other_count == 0, 0.0, delta**2 * count * share)
        return self._struct([total, merged_mean, merged])

    def result(self, accumulators: pa.StructArray) -> pa.Array:
        """Return the variances; null where there are too few values for one."""
        counts, _, distances = _columns(accumulators)
        divisor = counts if self._population else counts - 1
        return pa.array(distances / np.maximum(divisor, 1), mask=divisor < 1)


def _columns(accumulators: pa.StructArray) -> list[Floats]:
    return [column.to_numpy() for column in accumulators.flatten()]


@kernel("float64[], int64[], out int64[], out float64[], out float64[]")
def _welford(numbers: Any, starts: Any, counts: Any, means: Any, distances: Any) -> None:
    for group in range(counts.size):
        mean = means[group]
        for row in range(starts[group], starts[group + 1]):
            counts[group] += 1
            delta = numbers[row] - mean
            mean += delta / counts[group]
            distances[group] += delta * (numbers[row] - mean)
        means[group] = mean
