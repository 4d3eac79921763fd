"""Mean and variance: a few numbers per key, all of a batch at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from arrowstate.schema.aggregates import Variance
from arrowstate.state.aggregates.groups import BuiltInAggregate, Floats, Ints, borders, floats

__all__ = ["MeanAggregate", "VarianceAggregate"]


class MeanAggregate(BuiltInAggregate):
    """Count and sum."""

    def create(self, count: int) -> pa.StructArray:
        """Return accumulators without values."""
        return self._struct([np.zeros(count, dtype=np.int64), np.zeros(count)])

    def add(self, accumulators: pa.StructArray, groups: pa.Int64Array, values: pa.Array) -> pa.StructArray:
        """Return the accumulators with values added."""
        starts = borders(groups, len(accumulators))
        counts, sums = (column.to_numpy() for column in accumulators.flatten())
        return self._struct([counts + np.diff(starts), sums + _sums(floats(values), starts)])

    def merge(self, left: pa.StructArray, right: pa.StructArray) -> pa.StructArray:
        """Return the accumulators of all values of both."""
        (count, total), (other_count, other_total) = _columns(left), _columns(right)
        return self._struct([count + other_count, total + other_total])

    def result(self, accumulators: pa.StructArray) -> pa.Array:
        """Return the means."""
        counts, sums = _columns(accumulators)
        return pa.array(sums / counts)


class VarianceAggregate(BuiltInAggregate):
    """Count, mean and sum of squared distances: what a batch has is found in two passes, and merged."""

    def __init__(self, declared: Variance, kind: pa.DataType) -> None:
        super().__init__(declared, kind)
        self._population = declared.population

    def create(self, count: int) -> pa.StructArray:
        """Return accumulators without values."""
        return self._struct([np.zeros(count, dtype=np.int64), np.zeros(count), np.zeros(count)])

    def add(self, accumulators: pa.StructArray, groups: pa.Int64Array, values: pa.Array) -> pa.StructArray:
        """Return the accumulators with values added."""
        starts, numbers = borders(groups, len(accumulators)), floats(values)
        counts = np.diff(starts)
        # An infinite value makes the variance NaN, as it is.
        with np.errstate(invalid="ignore", over="ignore"):
            means = _sums(numbers, starts) / counts
            distances = _sums((numbers - np.repeat(means, counts)) ** 2, starts)
        return self.merge(accumulators, self._struct([counts, means, distances]))

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


def _sums(numbers: Floats, starts: Ints) -> Floats:
    """Return the sum of each group; none is empty."""
    if starts.size < 2:
        return np.empty(0)
    sums: Floats = np.add.reduceat(numbers, starts[:-1])
    return sums


def _columns(accumulators: pa.StructArray) -> list[Floats]:
    return [column.to_numpy() for column in accumulators.flatten()]
