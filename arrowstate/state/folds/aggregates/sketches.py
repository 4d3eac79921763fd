"""Sketches of Apache DataSketches: one small binary per key, which any of its languages reads.

Each key of a batch has its sketch read, updated and written, at some microseconds a key; the values of a key go in
by one call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.errors import MissingDependencyError
from arrowstate.schema.aggregates import CountDistinct, Quantiles
from arrowstate.state.folds.aggregates.groups import BuiltInAggregate, borders, floats
from arrowstate.table.columns import canonical_floats
from arrowstate_formats.key_hash import hash_columns


def _datasketches(name: str) -> Any:
    try:
        import datasketches
    except ImportError:
        raise MissingDependencyError(f"the aggregate {name}", "datasketches", "sketches") from None
    return datasketches


class CountDistinctAggregate(BuiltInAggregate):
    """HyperLogLog over the hashes of values, four bits per register."""

    def __init__(self, declared: CountDistinct, kind: pa.DataType) -> None:
        super().__init__(declared, kind)
        self._library = _datasketches(self.name)
        self._precision = declared.precision

    def create(self, count: int) -> pa.StructArray:
        """Return accumulators without values."""
        return self._struct([np.zeros(count), pa.nulls(count, pa.binary())])

    def add(self, accumulators: pa.StructArray, groups: pa.Int64Array, values: pa.Array) -> pa.StructArray:
        """Return the accumulators with values added."""
        numbers, hashes = groups.to_numpy(), hash_columns([canonical_floats(values)])
        order = np.lexsort((hashes, numbers))
        numbers, hashes = numbers[order], hashes[order]
        new = np.ones(order.size, dtype=np.bool_)
        new[1:] = (numbers[1:] != numbers[:-1]) | (hashes[1:] != hashes[:-1])
        starts = borders(pa.array(numbers[new]), len(accumulators)).tolist()
        distinct = hashes[new].tolist()
        sketches = []
        for number, stored in enumerate(accumulators.flatten()[1].to_pylist()):
            sketch = self._sketch(stored)
            # A deque of length 0 runs the iterator in C.
            deque(map(sketch.update, distinct[starts[number] : starts[number + 1]]), maxlen=0)
            sketches.append(sketch)
        return self._stored(sketches)

    def merge(self, left: pa.StructArray, right: pa.StructArray) -> pa.StructArray:
        """Return the accumulators of all values of both."""
        sketches = []
        for one, other in zip(left.flatten()[1].to_pylist(), right.flatten()[1].to_pylist(), strict=True):
            union = self._library.hll_union(self._precision)
            union.update(self._sketch(one))
            union.update(self._sketch(other))
            sketches.append(union.get_result(self._library.tgt_hll_type.HLL_4))
        return self._stored(sketches)

    def result(self, accumulators: pa.StructArray) -> pa.Array:
        """Return the estimates as whole numbers."""
        return pa.array(np.rint(accumulators.flatten()[0].to_numpy()).astype(np.int64))

    def _sketch(self, stored: bytes | None) -> Any:
        if stored is None:
            return self._library.hll_sketch(self._precision, self._library.tgt_hll_type.HLL_4)
        return self._library.hll_sketch.deserialize(stored)

    def of_sketches(self, sketches: pa.BinaryArray) -> pa.StructArray:
        """Return accumulators with these sketches; ValueError, as the library raises it, for what is none."""
        return self._stored(map(self._sketch, sketches.to_pylist()))

    def _stored(self, sketches: Iterable[Any]) -> pa.StructArray:
        pairs = [(sketch.get_estimate(), sketch.serialize_compact()) for sketch in sketches]
        return self._struct(
            [pa.array([pair[0] for pair in pairs], pa.float64()), pa.array([pair[1] for pair in pairs], pa.binary())]
        )


class QuantilesAggregate(BuiltInAggregate):
    """KLL over float64."""

    def __init__(self, declared: Quantiles, kind: pa.DataType) -> None:
        super().__init__(declared, kind)
        self._library = _datasketches(self.name)
        self._k = declared.k
        self._at = list(declared.at)

    def create(self, count: int) -> pa.StructArray:
        """Return accumulators without values."""
        nothing = pa.nulls(count, pa.float64())
        return self._struct([np.zeros(count, dtype=np.int64), nothing, nothing, pa.nulls(count, pa.binary())])

    def add(self, accumulators: pa.StructArray, groups: pa.Int64Array, values: pa.Array) -> pa.StructArray:
        """Return the accumulators with values added."""
        starts = borders(groups, len(accumulators)).tolist()
        # The library takes no read-only arrays, which views of Arrow data are.
        numbers = np.array(floats(values))
        sketches = []
        for number, stored in enumerate(accumulators.flatten()[3].to_pylist()):
            sketch = self._sketch(stored)
            sketch.update(numbers[starts[number] : starts[number + 1]])
            sketches.append(sketch)
        return self._stored(sketches)

    def merge(self, left: pa.StructArray, right: pa.StructArray) -> pa.StructArray:
        """Return the accumulators of all values of both."""
        sketches = []
        for one, other in zip(left.flatten()[3].to_pylist(), right.flatten()[3].to_pylist(), strict=True):
            sketch = self._sketch(one)
            sketch.merge(self._sketch(other))
            sketches.append(sketch)
        return self._stored(sketches)

    def result(self, accumulators: pa.StructArray) -> pa.Array:
        """Return a list of quantiles each; null where there were only NaNs."""
        found = []
        for stored in accumulators.flatten()[3].to_pylist():
            sketch = self._sketch(stored)
            found.append(None if sketch.is_empty() else sketch.get_quantiles(self._at, True))
        return pa.array(found, self.result_type)

    def _sketch(self, stored: bytes | None) -> Any:
        if stored is None:
            return self._library.kll_doubles_sketch(self._k)
        return self._library.kll_doubles_sketch.deserialize(stored)

    def of_sketches(self, sketches: pa.BinaryArray) -> pa.StructArray:
        """Return accumulators with these sketches; ValueError, as the library raises it, for what is none."""
        return self._stored(map(self._sketch, sketches.to_pylist()))

    def _stored(self, sketches: Iterable[Any]) -> pa.StructArray:
        rows = [
            (0, None, None, sketch.serialize())
            if sketch.is_empty()
            else (sketch.n, sketch.get_min_value(), sketch.get_max_value(), sketch.serialize())
            for sketch in sketches
        ]
        return self._struct(
            [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(self.accumulator_type)]
        )
