"""What an aggregating state computes: the built-in aggregates as declarations, and the protocol of others.

An aggregate folds values into an accumulator, one per key, which is what is stored: a struct, one column per field.
The result is computed from it on each read. A declaration here says what an aggregate is called, what it stores and
what it returns; how the built-in ones compute is in `arrowstate.state.folds.aggregates`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa
from msgspec import Struct

from arrowstate.errors import InvalidInputError
from arrowstate.schema.types import is_text
from arrowstate_formats.integers import check_integer
from arrowstate_formats.key_hash import check_key_type


@runtime_checkable
class Aggregate(Protocol):
    """The attributes and methods of an aggregate that you write. All data is in Arrow arrays, one entry per key.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa, pyarrow.compute as pc
    >>> class Spread:
    ...     name = "spread"
    ...     accumulator_type = pa.struct([("low", pa.int64()), ("high", pa.int64())])
    ...     result_type = pa.int64()
    ...
    ...     def create(self, count):
    ...         return pa.array([{}] * count, self.accumulator_type)
    ...
    ...     def add(self, accumulators, groups, values):
    ...         low, high = accumulators.flatten()
    ...         added = pa.table({"group": groups, "value": values}).group_by("group", use_threads=False)
    ...         added = added.aggregate([("value", "min"), ("value", "max")]).sort_by("group")
    ...         low = pc.min_element_wise(low, added["value_min"].combine_chunks())
    ...         high = pc.max_element_wise(high, added["value_max"].combine_chunks())
    ...         return pa.StructArray.from_arrays([low, high], fields=list(self.accumulator_type))
    ...
    ...     def merge(self, left, right):
    ...         (low, high), (other_low, other_high) = left.flatten(), right.flatten()
    ...         columns = [pc.min_element_wise(low, other_low), pc.max_element_wise(high, other_high)]
    ...         return pa.StructArray.from_arrays(columns, fields=list(self.accumulator_type))
    ...
    ...     def result(self, accumulators):
    ...         low, high = accumulators.flatten()
    ...         return pc.subtract(high, low)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> spread = backend.state(arrowstate.AggregatingStateDescriptor("spread", pa.int64(), aggregate=Spread()))
    >>> spread.add_batch(["ann", "bob", "ann"], [3, 5, 10])
    >>> spread.get_batch(["ann", "bob", "eve"]).to_pylist()
    [7, 0, None]
    """

    name: str
    "The name that is stored with the state. Keep it while accumulators mean the same. No built-in aggregate has it."
    accumulator_type: pa.DataType
    "The type of what is stored per key: a struct."
    result_type: pa.DataType
    "The type of what a read returns."

    def create(self, count: int) -> pa.StructArray:
        """Return `count` accumulators without values."""

    def add(self, accumulators: pa.StructArray, groups: pa.Int64Array, values: pa.Array) -> pa.StructArray:
        """Return the accumulators with values added.

        `groups` has the place of the accumulator of each value, ascending. Each accumulator gets at least one value.
        The values of one accumulator are in the order in which they were added. No value is null.
        """

    def merge(self, left: pa.StructArray, right: pa.StructArray) -> pa.StructArray:
        """Return for each row one accumulator of the values of `left` and `right`."""

    def result(self, accumulators: pa.StructArray) -> pa.Array:
        """Return the result of each accumulator."""


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """What the declarations of built-in aggregates share."""

    name: ClassVar[str]

    @property
    def parameters(self) -> dict[str, Any]:
        """What the declaration was made with, as JSON has it."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @property
    def identity(self) -> str:
        """What must stay the same for stored accumulators to be of use."""
        return self.name

    def accumulator_of(self, kind: pa.DataType) -> pa.DataType:
        """Return what is stored for values of a type."""
        raise TypeError(f"{type(self).__name__} does not say what it stores for {kind}")

    def result_of(self, kind: pa.DataType) -> pa.DataType:
        """Return what a read returns for values of a type."""
        raise TypeError(f"{type(self).__name__} does not say what it returns for {kind}")

    def check(self, kind: pa.DataType, where: str) -> None:
        """Refuse a type of values that the aggregate cannot take."""
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise InvalidInputError(f"{where}: {self.name} needs numbers, got {kind}; choose another aggregate")


@dataclass(frozen=True, slots=True)
class Mean(BuiltIn):
    """The mean of the values, float64. The accumulator has a `count` (int64) and a `sum` (float64).

    Examples
    --------
    >>> Mean().accumulator_of(pa.int64())
    StructType(struct<count: int64, sum: double>)
    """

    name: ClassVar[str] = "mean"

    def accumulator_of(self, kind: pa.DataType) -> pa.DataType:  # noqa: ARG002
        return pa.struct([("count", pa.int64()), ("sum", pa.float64())])

    def result_of(self, kind: pa.DataType) -> pa.DataType:  # noqa: ARG002
        return pa.float64()


@dataclass(frozen=True, slots=True)
class Variance(BuiltIn):
    """The variance of the values, float64.

    The accumulator has a `count` (int64), a `mean` (float64) and `m2` (float64), the sum of the squared distances from
    the mean.

    Parameters
    ----------
    population
        If true, the sum is divided by the count. By default it is divided by the count less one, so a key with one
        value has no variance and a read returns null.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> variance = arrowstate.Variance()
    >>> spread = backend.state(arrowstate.AggregatingStateDescriptor("spread", pa.int64(), aggregate=variance))
    >>> spread.add_batch(["ann", "ann", "bob"], [1, 3, 5])
    >>> spread.get_batch(["ann", "bob"]).to_pylist()
    [2.0, None]
    """

    name: ClassVar[str] = "variance"
    population: bool = False

    def accumulator_of(self, kind: pa.DataType) -> pa.DataType:  # noqa: ARG002
        return pa.struct([("count", pa.int64()), ("mean", pa.float64()), ("m2", pa.float64())])

    def result_of(self, kind: pa.DataType) -> pa.DataType:  # noqa: ARG002
        return pa.float64()


@dataclass(frozen=True, slots=True)
class CountDistinct(BuiltIn):
    """An estimate of the number of different values, int64: a HyperLogLog sketch of Apache DataSketches.

    The sketch gets the key hash of each value. The accumulator has the `estimate` (float64) and the `sketch` (binary).
    The extra `arrowstate[sketches]` is needed. On restore the type may become wider only where the hashes of values
    stay: integers up to int32, and texts.

    Parameters
    ----------
    precision
        The sketch has 2^precision registers; 4 to 21. The standard error is about 0.83 / sqrt(registers): 1.3 % at 12.

    Raises
    ------
    InvalidInputError
        If `precision` is not a whole number from 4 to 21.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("page", pa.string())]), max_parallelism=128)
    >>> distinct = arrowstate.CountDistinct(precision=14)
    >>> users = backend.state(arrowstate.AggregatingStateDescriptor("users", pa.string(), aggregate=distinct))
    >>> users.add_batch(["home", "home", "home"], ["ann", "bob", "ann"])
    >>> round(users.get_batch(["home"])[0].as_py())
    2
    """

    name: ClassVar[str] = "count_distinct"
    precision: int = 12

    def __post_init__(self) -> None:
        _keep_whole(self, "precision", "the precision of count_distinct", 4, 21)

    @property
    def identity(self) -> str:
        return f"{self.name} of precision {self.precision}"

    def accumulator_of(self, kind: pa.DataType) -> pa.DataType:  # noqa: ARG002
        return pa.struct([("estimate", pa.float64()), ("sketch", pa.binary())])

    def result_of(self, kind: pa.DataType) -> pa.DataType:  # noqa: ARG002
        return pa.int64()

    def check(self, kind: pa.DataType, where: str) -> None:
        try:
            check_key_type(kind)
        except InvalidInputError as error:
            raise InvalidInputError(f"{where}: {self.name} needs values that can be hashed: {error}") from None


@dataclass(frozen=True, slots=True)
class Quantiles(BuiltIn):
    """Approximate quantiles, a list of float64: a KLL sketch of Apache DataSketches.

    Each quantile is one of the values that were added. NaN is skipped. The accumulator has the `count` (int64), the
    `minimum` and the `maximum` (float64), and the `sketch` (binary). The extra `arrowstate[sketches]` is needed.

    Parameters
    ----------
    at
        The quantiles, each from 0 to 1. A read returns a list with one number for each. They may change on restore.
    k
        The size of the sketch, 8 to 65535. The error of a rank is about 1.3 % at 200.

    Raises
    ------
    InvalidInputError
        If `at` is empty or has a number outside 0 to 1, or `k` is not a whole number in its range.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("page", pa.string())]), max_parallelism=128)
    >>> times = arrowstate.AggregatingStateDescriptor("times", pa.int64(), aggregate=arrowstate.Quantiles((0.5, 0.99)))
    >>> backend.state(times).add_batch(["home"] * 100, range(100))
    >>> backend.state(times).get_batch(["home"]).to_pylist()
    [[49.0, 98.0]]
    """

    name: ClassVar[str] = "quantiles"
    at: tuple[float, ...] = (0.5,)
    k: int = 200

    def __post_init__(self) -> None:
        _keep_whole(self, "k", "the k of quantiles", 8, 65535)
        object.__setattr__(self, "at", tuple(self.at))
        if not self.at or not all(0 <= q <= 1 for q in self.at):
            raise InvalidInputError(f"quantiles need one or more numbers from 0 to 1 in `at`, got {self.at!r}")

    @property
    def identity(self) -> str:
        return f"{self.name} of k {self.k}"

    def accumulator_of(self, kind: pa.DataType) -> pa.DataType:  # noqa: ARG002
        numbers = [("count", pa.int64()), ("minimum", pa.float64()), ("maximum", pa.float64())]
        return pa.struct([*numbers, ("sketch", pa.binary())])

    def result_of(self, kind: pa.DataType) -> pa.DataType:  # noqa: ARG002
        return pa.list_(pa.float64())


@dataclass(frozen=True, slots=True)
class TopK(BuiltIn):
    """The largest values, a list of the type of the values, the largest first.

    Equal values are kept as often as they were added. NaN is larger than every number.

    Parameters
    ----------
    count
        How many values are kept, 1 to 2^31.
    smallest
        If true, the smallest values are kept, the smallest first.

    Raises
    ------
    InvalidInputError
        If `count` is not a whole number in its range.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> best = backend.state(arrowstate.AggregatingStateDescriptor("best", pa.int64(), aggregate=arrowstate.TopK(2)))
    >>> best.add_batch(["ann", "ann", "ann"], [3, 9, 5])
    >>> best.get_batch(["ann"]).to_pylist()
    [[9, 5]]
    """

    name: ClassVar[str] = "top_k"
    count: int = 10
    smallest: bool = False

    def __post_init__(self) -> None:
        _keep_whole(self, "count", "the count of top_k", 1, 1 << 31)

    @property
    def identity(self) -> str:
        return f"{self.name} of {self.count} {'smallest' if self.smallest else 'largest'}"

    def accumulator_of(self, kind: pa.DataType) -> pa.DataType:
        return pa.struct([("top", pa.list_(kind))])

    def result_of(self, kind: pa.DataType) -> pa.DataType:
        return pa.list_(kind)

    def check(self, kind: pa.DataType, where: str) -> None:
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        other = (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)) or pa.types.is_boolean(kind)
        text = is_text(kind)
        binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        if not (number or other or text or binary):
            raise InvalidInputError(f"{where}: {self.name} needs a type with an order, got {kind}")


class StoredAggregate(Struct, frozen=True):
    """An aggregate of the user's as a snapshot knows it: without its code, enough to read and move its columns."""

    name: str
    accumulator_type: pa.DataType


BUILT_IN: dict[str, type[BuiltIn]] = {each.name: each for each in (Mean, Variance, CountDistinct, Quantiles, TopK)}
"""The declarations by name; as a string, an aggregate is one of these with its defaults."""


def _keep_whole(declared: BuiltIn, name: str, what: str, least: int, most: int) -> None:
    object.__setattr__(declared, name, check_integer(what, getattr(declared, name), least, most))
