"""State descriptors: the name, type and rule of a state, given by the operator that uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
from msgspec import Struct

from arrowstate.errors import InvalidInputError
from arrowstate.schema.aggregates import BUILT_IN, Aggregate, BuiltIn, StoredAggregate
from arrowstate.schema.evolution import SchemaEvolution
from arrowstate.schema.keys import check_key_schema
from arrowstate.schema.types import CONVERSION_ERRORS, check_type, is_text, python_scalar
from arrowstate_formats.integers import check_integer
from arrowstate_formats.names import check_column_name, check_state_name

REDUCERS = ("sum", "product", "min", "max", "count", "first", "last", "any", "all", "bit_and", "bit_or")


def _check_type(name: str, kind: pa.DataType) -> None:
    check_type(kind, f"state {name!r}")
    if pa.types.is_struct(kind):
        names = [check_column_name(item.name) for item in kind]
        if len({item.lower() for item in names}) < len(names):
            raise InvalidInputError(
                f"the fields of state {name!r} must differ in more than case, got {', '.join(names)}; rename one"
            )


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """When the rows of a state expire.

    As in Flink, a row expires when `ttl_ms` milliseconds have passed since its last update.

    Parameters
    ----------
    ttl_ms
        How long a row lives after its last update, in milliseconds: 1 to 2^63 - 1.
    update
        What counts as an update: with `on_create_and_write` a write, with `on_read_and_write` a read too.
    visibility
        With `never_return_expired` no read returns an expired row. With `return_until_cleaned_up` the first read of an
        expired row still returns it, and removes it.
    clock
        With `processing_time` the clock of the backend tells the time. With `event_time` the time of a row is the
        timestamp that it is written with, and the time now is the watermark.

    Raises
    ------
    InvalidInputError
        If `ttl_ms` is not a whole number in its range, or another argument is none of the values named here.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> clock = [0]
    >>> backend = arrowstate.KeyedStateBackend(
    ...     key=pa.schema([("user", pa.string())]), max_parallelism=128, clock_ms=lambda: clock[0]
    ... )
    >>> day = arrowstate.TimeToLive(86_400_000)
    >>> city = backend.state(arrowstate.ValueStateDescriptor("city", pa.string(), ttl=day))
    >>> city.update_batch(["ann"], ["Rome"])
    >>> clock[0] = 86_400_000
    >>> city.get_batch(["ann"]).to_pylist()
    [None]
    """

    ttl_ms: int
    update: Literal["on_create_and_write", "on_read_and_write"] = "on_create_and_write"
    visibility: Literal["never_return_expired", "return_until_cleaned_up"] = "never_return_expired"
    clock: Literal["processing_time", "event_time"] = "processing_time"

    def __post_init__(self) -> None:
        object.__setattr__(self, "ttl_ms", check_integer("a time to live", self.ttl_ms, 1, unit="milliseconds"))
        for name, value, allowed in (
            ("update", self.update, ("on_create_and_write", "on_read_and_write")),
            ("visibility", self.visibility, ("never_return_expired", "return_until_cleaned_up")),
            ("clock", self.clock, ("processing_time", "event_time")),
        ):
            if value not in allowed:
                raise InvalidInputError(f"the {name} of a time to live is one of {', '.join(allowed)}; got {value!r}")


@dataclass(frozen=True, slots=True)
class _Descriptor:
    """What all kinds have: a name, perhaps namespaces, a time to live, and what the type means for stored rows."""

    name: str
    "Unique within the operator."
    namespace: pa.Schema | None = field(default=None, kw_only=True)
    "Columns beside the key: each key then has a state of its own in each namespace, for instance in each window."
    ttl: TimeToLive | None = field(default=None, kw_only=True)
    "When rows expire; by default they stay."
    evolution: SchemaEvolution | None = field(default=None, kw_only=True, compare=False)
    "How values that were stored with another type become values of this one."

    def _check_common(self) -> None:
        check_state_name(self.name)
        if self.namespace is not None:
            if not isinstance(self.namespace, pa.Schema) or not len(self.namespace):
                raise InvalidInputError(
                    f"the namespace of state {self.name!r} must be a schema with a column, got {self.namespace!r}"
                )
            object.__setattr__(self, "namespace", check_key_schema(self.namespace))
        if self.ttl is not None and not isinstance(self.ttl, TimeToLive):
            raise InvalidInputError(f"the ttl of state {self.name!r} must be a TimeToLive, got {self.ttl!r}")
        if self.evolution is not None and not isinstance(self.evolution, SchemaEvolution):
            raise InvalidInputError(
                f"the evolution of state {self.name!r} must be a SchemaEvolution, got {self.evolution!r}"
            )


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor(_Descriptor):
    """A state with one value per key.

    Parameters
    ----------
    type
        The Arrow type of the value. A struct becomes one column per field.
    default
        What a read returns for a key without a value: a plain Python value, which each read copies. None by default.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> arrowstate.ValueStateDescriptor("last_seen", pa.timestamp("us", tz="UTC")).name
    'last_seen'
    """

    type: pa.DataType
    default: Any = None
    kind: Literal["value"] = field(default="value", init=False)

    def __post_init__(self) -> None:
        self._check_common()
        _check_type(self.name, self.type)
        if self.default is not None:
            try:
                python_scalar(self.default, self.type)
            except CONVERSION_ERRORS as error:
                raise InvalidInputError(
                    f"the default of state {self.name!r} must be of type {self.type}, got {self.default!r}: {error}"
                ) from None


class StoredCallable(Struct, frozen=True):
    """A reducer of the user's as a snapshot knows it: by its name alone."""

    name: str

    def __call__(self, *_: Any) -> Any:
        raise InvalidInputError(
            f"the reducer {self.name} is not stored in a snapshot, only its name is; ask the backend for the state "
            "with the descriptor that has it"
        )


@dataclass(frozen=True, slots=True)
class ReducingStateDescriptor(_Descriptor):
    """A state with one value per key, into which each added value is folded.

    Parameters
    ----------
    type
        The Arrow type of the value; int64 for `count`.
    reduce
        How two values become one. A built-in reducer is `sum`, `product`, `min`, `max`, `count`, `first` or `last`;
        `any` or `all` for booleans; `bit_and` or `bit_or` for integers.

        A struct type also takes a mapping of each field to a built-in reducer. Then each field is reduced by itself,
        and a null field is skipped.

        A Python function takes the old value and the added value, both plain values, and returns the new value. It is
        called for every value but the first of a key, so a batch is about ten times slower than with a built-in
        reducer. A snapshot stores only the name of the function, so a restored state needs its descriptor before values
        can be added.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    >>> delays = arrowstate.ReducingStateDescriptor(
    ...     "delays",
    ...     pa.struct([("flights", pa.int64()), ("longest", pa.float64())]),
    ...     reduce={"flights": "count", "longest": "max"},
    ... )
    >>> longest = arrowstate.ReducingStateDescriptor("longest", pa.string(), reduce=lambda a, b: max(a, b, key=len))
    """

    type: pa.DataType
    reduce: str | Mapping[str, str] | Callable[[Any, Any], Any] = field(kw_only=True)
    kind: Literal["reducing"] = field(default="reducing", init=False)

    def __post_init__(self) -> None:
        self._check_common()
        _check_type(self.name, self.type)
        if isinstance(self.reduce, str):
            self._check(self.reduce, self.type, f"state {self.name!r}")
            return
        if not isinstance(self.reduce, Mapping):
            if not callable(self.reduce):
                raise InvalidInputError(
                    f"state {self.name!r}: the reducer must be one of {', '.join(REDUCERS)}, a mapping of fields to "
                    f"them, or a callable; got {self.reduce!r}"
                )
            return
        if not pa.types.is_struct(self.type):
            raise InvalidInputError(
                f"state {self.name!r} has one reducer per field but its type is {self.type}; declare a struct type"
            )
        fields = {item.name: item.type for item in self.type}
        if set(fields) != set(self.reduce):
            raise InvalidInputError(
                f"the reducers of state {self.name!r} must name each field once: fields {', '.join(fields)}; "
                f"given {', '.join(self.reduce)}"
            )
        object.__setattr__(self, "reduce", {name: self.reduce[name] for name in fields})
        for name, kind in fields.items():
            self._check(self.reduce[name], kind, f"field {name!r} of state {self.name!r}")

    def __hash__(self) -> int:
        return hash((self.name, self.type, str(self.reduce)))

    @property
    def callable_name(self) -> str | None:
        """What a snapshot calls a reducer that is a Python callable; None for a built-in one."""
        if isinstance(self.reduce, (str, Mapping)):
            return None
        if isinstance(self.reduce, StoredCallable):
            return self.reduce.name
        named = self.reduce if hasattr(self.reduce, "__qualname__") else type(self.reduce)
        return f"{named.__module__}.{named.__qualname__}"

    @staticmethod
    def _check(reduce: str, kind: pa.DataType, where: str) -> None:
        if reduce not in REDUCERS:
            raise InvalidInputError(f"{where}: the reducer must be one of {', '.join(REDUCERS)}; got {reduce!r}")
        if reduce == "count" and kind != pa.int64():
            raise InvalidInputError(f"{where}: count needs the type int64, got {kind}; declare pa.int64()")
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        needs = {
            "sum": ("a number or a duration", number or pa.types.is_duration(kind)),
            "product": ("a number", number),
            "any": ("the type bool", pa.types.is_boolean(kind)),
            "all": ("the type bool", pa.types.is_boolean(kind)),
            "bit_and": ("an integer", pa.types.is_integer(kind)),
            "bit_or": ("an integer", pa.types.is_integer(kind)),
        }
        needed, fits = needs.get(reduce, ("", True))
        if not fits:
            raise InvalidInputError(f"{where}: {reduce} needs {needed}, got {kind}; choose another reducer")
        ordered = number or pa.types.is_temporal(kind) or pa.types.is_boolean(kind)
        text = is_text(kind)
        binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        if reduce in ("min", "max") and (not (ordered or text or binary) or pa.types.is_interval(kind)):
            raise InvalidInputError(f"{where}: {reduce} needs a type with an order, got {kind}; use first or last")


@dataclass(frozen=True, slots=True)
class AggregatingStateDescriptor(_Descriptor):
    """A state with an accumulator per key: values are added to it, and each read computes the result from it.

    Parameters
    ----------
    type
        The Arrow type of the values.
    aggregate
        A built-in aggregate by name, with its default parameters: `mean`, `variance`, `count_distinct`, `quantiles` or
        `top_k`. Or one with parameters: `Mean`, `Variance`, `CountDistinct`, `Quantiles` or `TopK`. Or an `Aggregate`
        of your own.
        `count_distinct` and `quantiles` need the extra `arrowstate[sketches]`.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> delay = arrowstate.AggregatingStateDescriptor("delay", pa.float64(), aggregate="mean")
    >>> delay.accumulator_type
    StructType(struct<count: int64, sum: double>)
    >>> best = arrowstate.AggregatingStateDescriptor("best", pa.int64(), aggregate=arrowstate.TopK(3))
    """

    type: pa.DataType
    aggregate: str | BuiltIn | Aggregate | StoredAggregate = field(kw_only=True)
    kind: Literal["aggregating"] = field(default="aggregating", init=False)

    def __post_init__(self) -> None:
        self._check_common()
        _check_type(self.name, self.type)
        where = f"state {self.name!r}"
        given = self.aggregate
        if isinstance(given, str):
            if given not in BUILT_IN:
                raise InvalidInputError(f"{where}: the aggregate must be one of {', '.join(BUILT_IN)}; got {given!r}")
            given = BUILT_IN[given]()
            object.__setattr__(self, "aggregate", given)
        if isinstance(given, BuiltIn):
            given.check(self.type, where)
            return
        if not isinstance(given, (Aggregate, StoredAggregate)):
            raise InvalidInputError(
                f"{where}: an aggregate has name, accumulator_type, result_type, create, add, merge and result; "
                f"got {given!r}"
            )
        # Nothing but the protocol says that these are what they should be.
        name, kind = (getattr(given, attribute) for attribute in ("name", "accumulator_type"))
        if not isinstance(name, str) or not name or name in BUILT_IN:
            raise InvalidInputError(f"{where}: an aggregate needs a name that no built-in one has, got {name!r}")
        if not isinstance(kind, pa.DataType) or not pa.types.is_struct(kind) or not kind.num_fields:
            raise InvalidInputError(f"{where}: the accumulator_type must be a struct with a field, got {kind!r}")
        _check_type(self.name, kind)

    @property
    def declared(self) -> BuiltIn | Aggregate | StoredAggregate:
        """The aggregate; a name has become the declaration it stands for."""
        assert not isinstance(self.aggregate, str)
        return self.aggregate

    @property
    def accumulator_type(self) -> pa.DataType:
        """What is stored per key: a struct, one column per field."""
        given = self.declared
        return given.accumulator_of(self.type) if isinstance(given, BuiltIn) else given.accumulator_type

    @property
    def result_type(self) -> pa.DataType:
        """What a read returns."""
        given = self.declared
        assert not isinstance(given, StoredAggregate)
        return given.result_of(self.type) if isinstance(given, BuiltIn) else given.result_type

    @property
    def rule(self) -> str:
        """What must stay the same for stored accumulators to be of use, their type aside."""
        given = self.declared
        return given.identity if isinstance(given, BuiltIn) else given.name

    @property
    def identity(self) -> str:
        """What must stay the same while the state is in use."""
        given = self.declared
        return given.identity if isinstance(given, BuiltIn) else f"{given.name} in {given.accumulator_type}"


@dataclass(frozen=True, slots=True)
class ListStateDescriptor(_Descriptor):
    """A state with a list of elements per key, in the order in which they were added.

    Parameters
    ----------
    type
        The Arrow type of an element. A struct becomes one column per field.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> arrowstate.ListStateDescriptor("visits", pa.timestamp("us", tz="UTC")).kind
    'list'
    """

    type: pa.DataType
    kind: Literal["list"] = field(default="list", init=False)

    def __post_init__(self) -> None:
        self._check_common()
        _check_type(self.name, self.type)


@dataclass(frozen=True, slots=True)
class MapStateDescriptor(_Descriptor):
    """A state with a map per key: any number of entries, each a value under a user key.

    Parameters
    ----------
    key_type
        The Arrow type of the user keys. `key_hash` must support it.
    type
        The Arrow type of the values, which may be null. A struct becomes one column per field.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> arrowstate.MapStateDescriptor("carts", pa.string(), pa.int64()).kind
    'map'
    """

    key_type: pa.DataType
    type: pa.DataType
    kind: Literal["map"] = field(default="map", init=False)

    def __post_init__(self) -> None:
        self._check_common()
        _check_type(self.name, self.type)
        check_key_schema(pa.schema([("user key", self.key_type)]))


@dataclass(frozen=True, slots=True)
class TimerStateDescriptor(_Descriptor):
    """A state with the timers of one clock: any number of different timestamps per key.

    `backend.timers(name)` makes the timers of both clocks, the states `<name>_event_time` and `<name>_processing_time`.
    The descriptor is for code that reads and writes them as states, such as `StateStore.bootstrap`.

    Parameters
    ----------
    clock
        With `event_time` timers fire by the watermark, with `processing_time` by the clock of the backend.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://timer-descriptor-example", create=True)
    >>> due = pa.table({"user": ["ann", "bob"], "timestamp": [1000, 2000]})
    >>> timers = arrowstate.TimerStateDescriptor("timers_event_time", clock="event_time")
    >>> backend = store.bootstrap("reminders", ["user"], [timers], due).restore("reminders")
    >>> backend.timers().pop_due(1500).to_pylist()
    [{'timestamp': 1000, 'user': 'ann'}]
    """

    clock: Literal["event_time", "processing_time"]
    kind: Literal["timer"] = field(default="timer", init=False)
    type: pa.DataType = field(default=pa.null(), init=False)

    def __post_init__(self) -> None:
        self._check_common()
        if self.clock not in ("event_time", "processing_time"):
            raise InvalidInputError(f"the clock of a timer must be event_time or processing_time, got {self.clock!r}")
        if self.ttl is not None or self.evolution is not None:
            raise InvalidInputError(
                f"the timers {self.name!r} take no ttl and no evolution: a timer lasts until it fires or is deleted, "
                "and has no value; leave them out"
            )


StateDescriptor = (
    ValueStateDescriptor
    | ReducingStateDescriptor
    | AggregatingStateDescriptor
    | ListStateDescriptor
    | MapStateDescriptor
    | TimerStateDescriptor
)
