"""What the built-in aggregates share: declared types, and values grouped by their accumulators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.schema.aggregates import BuiltIn

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class BuiltInAggregate:
    """A built-in aggregate for one type of values."""

    def __init__(self, declared: BuiltIn, kind: pa.DataType) -> None:
        self.name = declared.name
        self.accumulator_type = declared.accumulator_of(kind)
        self.result_type = declared.result_of(kind)

    def _struct(self, columns: Sequence[npt.NDArray[np.generic] | pa.Array]) -> pa.StructArray:
        fields = list(self.accumulator_type)
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, fields, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=fields)


def borders(groups: pa.Int64Array, count: int) -> Ints:
    """Return where the values of each accumulator start, and where the last one's end."""
    return np.searchsorted(groups.to_numpy(), np.arange(count + 1)).astype(np.int64)


def floats(values: pa.Array) -> Floats:
    """Return numbers without nulls as float64."""
    column = values if pa.types.is_floating(values.type) else values.cast(pa.float64(), safe=False)
    numbers: Floats = column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    return numbers
