"""How the built-in aggregates compute, over columns of accumulators."""

from __future__ import annotations

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.schema.aggregates import (
    Aggregate,
    BuiltIn,
    CountDistinct,
    Mean,
    Quantiles,
    StoredAggregate,
    TopK,
    Variance,
)
from arrowstate.state.folds.aggregates.numbers import MeanAggregate, VarianceAggregate
from arrowstate.state.folds.aggregates.sketches import CountDistinctAggregate, QuantilesAggregate
from arrowstate.state.folds.aggregates.top import TopKAggregate

__all__ = ["aggregate_of"]


def aggregate_of(given: BuiltIn | Aggregate | StoredAggregate, kind: pa.DataType) -> Aggregate:
    """Return what computes an aggregate of values of a type."""
    if isinstance(given, Mean):
        return MeanAggregate(given, kind)
    if isinstance(given, Variance):
        return VarianceAggregate(given, kind)
    if isinstance(given, CountDistinct):
        return CountDistinctAggregate(given, kind)
    if isinstance(given, Quantiles):
        return QuantilesAggregate(given, kind)
    if isinstance(given, TopK):
        return TopKAggregate(given, kind)
    if isinstance(given, (BuiltIn, StoredAggregate)):
        raise InvalidInputError(
            f"the aggregate {given.name!r} is not stored in a snapshot, only its name and its columns are; "
            "ask the backend for the state with the descriptor that has it"
        )
    return given
