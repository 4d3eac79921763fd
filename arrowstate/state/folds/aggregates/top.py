"""The best values of each key, sorted for all keys at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.schema.aggregates import TopK
from arrowstate.state.folds.aggregates.groups import BuiltInAggregate, Ints
from arrowstate.table.columns import sort_order


class TopKAggregate(BuiltInAggregate):
    """A list of at most `count` values, best first."""

    def __init__(self, declared: TopK, kind: pa.DataType) -> None:
        super().__init__(declared, kind)
        self._count = declared.count
        self._smallest = declared.smallest

    def create(self, count: int) -> pa.StructArray:
        """Return accumulators without values."""
        empty = pa.array([], self.accumulator_type[0].type.value_type)
        return self._of_lists(np.zeros(count + 1, dtype=np.int64), empty)

    def add(self, accumulators: pa.StructArray, groups: pa.Int64Array, values: pa.Array) -> pa.StructArray:
        """Return the accumulators with values added."""
        have, elements = _elements(accumulators)
        return self._best(len(accumulators), np.concatenate((have, groups.to_numpy())), [elements, values])

    def merge(self, left: pa.StructArray, right: pa.StructArray) -> pa.StructArray:
        """Return the accumulators of all values of both."""
        (have, elements), (other, other_elements) = _elements(left), _elements(right)
        return self._best(len(left), np.concatenate((have, other)), [elements, other_elements])

    def result(self, accumulators: pa.StructArray) -> pa.Array:
        """Return the lists."""
        return accumulators.flatten()[0]

    def _best(self, count: int, groups: Ints, parts: list[pa.Array]) -> pa.StructArray:
        values = pa.concat_arrays(parts)
        by_rank = sort_order(values)
        if not self._smallest:
            by_rank = by_rank[::-1]
        order = by_rank[np.argsort(groups[by_rank], kind="stable")]
        sizes = np.bincount(groups, minlength=count)
        starts = np.concatenate(([0], np.cumsum(sizes)))
        place = np.arange(order.size) - np.repeat(starts[:-1], sizes)
        offsets = np.concatenate(([0], np.cumsum(np.minimum(sizes, self._count))))
        return self._of_lists(offsets, values.take(pa.array(order[place < self._count])))

    def _of_lists(self, offsets: Ints, values: pa.Array) -> pa.StructArray:
        kind = self.accumulator_type[0].type
        return self._struct([pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=kind)])


def _elements(accumulators: pa.StructArray) -> tuple[Ints, pa.Array]:
    """Return (number of the accumulator, value) of all values that are kept."""
    lists = accumulators.flatten()[0]
    lengths = pc.list_value_length(lists).to_numpy()
    return np.repeat(np.arange(len(lists), dtype=np.int64), lengths), lists.flatten()
