"""What a Spark query keeps in its checkpoint folder, put into the form of keyed states.

Spark reads its own state, with its sources `state-metadata` and `statestore`, whichever provider wrote it. Each kind
of operator keeps its state in another form; here they all become parts: key columns, and a value, elements,
entries or timers. What has no such form is left out, and said why.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, DataType, StructField, StructType

from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    TimerStateDescriptor,
    TimeToLive,
    ValueStateDescriptor,
)
from arrowstate.schema.keys import check_key_schema
from arrowstate.schema.layout import StateLayout
from arrowstate.spark.load.report import LeftOut
from arrowstate.spark.schemas import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["BatchLog", "Part", "StatefulOperator", "Wishes", "parts_of", "stateful_operators"]

_AGGREGATION = "stateStoreSave"
_DEDUPLICATION = "dedupe"
_DEDUPLICATION_WITHIN_WATERMARK = "dedupeWithinWatermark"
_JOIN = "symmetricHashJoin"
_VARIABLES = "transformWithState"
_OF_JOIN = ("index", "__event_time")
"""What Spark puts after the join key into the key of its state stores; the columns of the key itself have numbers."""

_ARBITRARY = "the state of an arbitrary function has the form that the function gave it; write it out and bootstrap it"
_UNSUPPORTED = {
    "sessionWindowStateStoreSaveExec": "session windows change their keys with each row; compute them anew",
    "globalLimit": "a limit keeps one number for the whole query, under no key",
    "flatMapGroupsWithState": _ARBITRARY,
    "applyInPandasWithState": _ARBITRARY,
}


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller says of the states of an operator."""

    key: Sequence[str] | None
    state: str | None
    columns: Sequence[str] | None
    reduce: str | Mapping[str, str] | None
    time_to_live: Mapping[str, TimeToLive]


@dataclass(frozen=True, slots=True)
class Part:
    """One state of an operator, and its rows."""

    source: str
    """The state store or variable it comes from."""
    descriptor: StateDescriptor
    key: tuple[str, ...]
    frame: DataFrame
    """The key columns, and of `value`, `user_key`, `updated` and `position` those that the state needs."""


@dataclass(slots=True)
class StatefulOperator:
    """One stateful operator of a Spark query."""

    id: int
    name: str
    stores: list[str]
    properties: Mapping[str, Any]
    spark: SparkSession
    location: str
    batch_id: int
    left_out: list[LeftOut] = field(default_factory=list)

    def read(self, **options: Any) -> DataFrame:
        """Return what Spark keeps for it after the micro-batch."""
        reader = self.spark.read.format("statestore").option("operatorId", self.id).option("batchId", self.batch_id)
        return reader.options(**options).load(self.location)

    def leave_out(self, source: str, reason: str) -> None:
        """Note that something is not taken."""
        self.left_out.append(LeftOut(self.id, self.name, source, reason))


@dataclass(frozen=True, slots=True)
class BatchLog:
    """What the logs of a query say of one micro-batch."""

    query_id: str | None
    watermark_ms: int | None
    offsets: tuple[str, ...]

    @classmethod
    def read(cls, spark: SparkSession, location: str, batch_id: int) -> BatchLog:
        """Read the logs of a query; what the folder does not tell stays None or empty."""

        def lines(name: str) -> list[str]:
            try:
                rows = spark.read.text(f"{location}/{name}", wholetext=True).collect()
            except PySparkException:
                return []
            return [line for row in rows for line in row.value.splitlines()]

        offsets = lines(f"offsets/{batch_id}")
        committed: dict[str, Any] = next((json.loads(line) for line in lines(f"commits/{batch_id}")[1:2]), {})
        query: dict[str, Any] = next((json.loads(line) for line in lines("metadata")[:1]), {})
        # Spark has no watermark at 0; the one after a batch is in its commit.
        return cls(query.get("id"), committed.get("nextBatchWatermarkMs") or None, tuple(offsets[2:]))


def stateful_operators(
    spark: SparkSession, location: str, operator_id: int | None, batch_id: int | None
) -> list[StatefulOperator]:
    """Return the stateful operators of a query, by number, or the one asked for, at one micro-batch.

    Raises
    ------
    InvalidInputError
        If there is no state in the folder, no such operator, or not this batch.
    """
    no_state = f"{location} is no checkpoint folder of a Spark query with state"
    try:
        rows = spark.read.format("state-metadata").load(location).collect()
    except PySparkException as error:
        raise InvalidInputError(f"{no_state}: {str(error).splitlines()[0]}") from error
    if not rows:
        raise InvalidInputError(no_state)
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(row.operatorId, []).append(row)
    if operator_id is not None and operator_id not in found:
        has = ", ".join(f"{number} ({of[0].operatorName})" for number, of in sorted(found.items()))
        raise InvalidInputError(f"the query in {location} has no stateful operator {operator_id}; it has {has}")
    first, last = max(row.minBatchId for row in rows), min(row.maxBatchId for row in rows)
    batch = last if batch_id is None else batch_id
    if not first <= batch <= last:
        raise InvalidInputError(f"Spark keeps the state after the micro-batches {first} to {last}, got {batch_id}")
    return [
        StatefulOperator(
            id=number,
            name=of[0].operatorName,
            stores=[row.stateStoreName for row in of],
            properties=json.loads(of[0].operatorProperties or "{}"),
            spark=spark,
            location=location,
            batch_id=batch,
        )
        for number, of in sorted(found.items())
        if operator_id in (None, number)
    ]


def parts_of(operator: StatefulOperator, wishes: Wishes) -> list[Part]:
    """Return what can be taken of an operator; what cannot is noted in it."""
    if operator.name == _AGGREGATION:
        parts = _aggregation(operator, wishes)
    elif operator.name in (_DEDUPLICATION, _DEDUPLICATION_WITHIN_WATERMARK):
        parts = _deduplication(operator, wishes)
    elif operator.name == _JOIN:
        parts = _join(operator, wishes)
    elif operator.name.startswith(_VARIABLES):
        parts = _variables(operator, wishes)
    else:
        reason = _UNSUPPORTED.get(operator.name, "operators of this sort are not known")
        for store in operator.stores:
            operator.leave_out(store, reason)
        parts = []
    return [part for part in parts if _fits(operator, part)]


def _aggregation(operator: StatefulOperator, wishes: Wishes) -> list[Part]:
    frame = operator.read()
    buffers = list(_struct(frame, "value"))
    names = _distinct([item.name for item in buffers])
    if wishes.columns is not None:
        if len(wishes.columns) != len(names):
            raise InvalidInputError(
                f"the aggregation has the buffers {', '.join(names)}; columns must name each, got "
                f"{', '.join(wishes.columns)}"
            )
        names = list(wishes.columns)
    # Several buffers may have one name, and Spark prunes the fields of a struct by name: it would take one for the
    # other. A cast goes by place.
    places = [f"buffer {number}" for number in range(len(names))]
    unique = StructType([StructField(place, item.dataType) for place, item in zip(places, buffers, strict=True)])
    frame = frame.select("key", sf.col("value").cast(unique).alias("value"))
    kept = {}
    for name, place, buffer in zip(names, places, buffers, strict=True):
        if isinstance(buffer.dataType, BinaryType) and buffer.name == "buf":
            operator.leave_out(
                f"default.{name}", "collect_list, collect_set and the like keep their values in a form of Spark's own"
            )
        elif (kind := _arrow_type(operator, f"default.{name}", buffer.dataType)) is not None:
            kept[name] = (place, kind)
    if not kept:
        return []
    state = wishes.state or "buffers"
    if isinstance(wishes.reduce, str):
        if len(kept) > 1:
            raise InvalidInputError(
                f"the aggregation has the buffers {', '.join(kept)}; reduce must say the reducer of each, got "
                f"{wishes.reduce!r}"
            )
        place, kind = next(iter(kept.values()))
        return _part(
            operator,
            "default",
            ReducingStateDescriptor(state, kind, reduce=wishes.reduce),
            wishes,
            frame.select("key", sf.col("value").getField(place).alias("value")),
        )
    value = pa.struct([(name, kind) for name, (_, kind) in kept.items()])
    descriptor: StateDescriptor = (
        ValueStateDescriptor(state, value)
        if wishes.reduce is None
        else ReducingStateDescriptor(state, value, reduce=wishes.reduce)
    )
    fields = [sf.col("value").getField(place).alias(name) for name, (place, _) in kept.items()]
    return _part(operator, "default", descriptor, wishes, frame.select("key", sf.struct(*fields).alias("value")))


def _deduplication(operator: StatefulOperator, wishes: Wishes) -> list[Part]:
    frame = operator.read()
    if operator.name == _DEDUPLICATION:
        descriptor = ValueStateDescriptor(wishes.state or "seen", pa.bool_())
        value = sf.lit(True)
    else:
        descriptor = ValueStateDescriptor(wishes.state or "expires_at", pa.timestamp("us", tz="UTC"))
        value = sf.timestamp_micros(sf.col("value.expiresAtMicros"))
    return _part(operator, "default", descriptor, wishes, frame.select("key", value.alias("value")))


def _join(operator: StatefulOperator, wishes: Wishes) -> list[Part]:
    parts = []
    for side in ("left", "right"):
        try:
            # The rows with their places among those of their key, and whether they have been joined.
            frame = operator.read(storeName=f"{side}-keyWithIndexToValue")
            others = [sf.col("key.index").alias("position")]
        except PySparkException:
            frame, others = operator.read(joinSide=side), []
            operator.leave_out(
                f"{side}: order and matched",
                "this state format of Spark tells neither the order of the rows of a key nor whether an outer join has "
                "emitted them; the rows are taken without",
            )
        names = [item.name for item in _struct(frame, "key") if item.name not in _OF_JOIN]
        frame = frame.select(
            sf.struct(*(sf.col("key").getField(name).alias(name) for name in names)).alias("key"), "value", *others
        )
        kind = _arrow_type(operator, side, frame.schema["value"].dataType)
        if kind is not None and _may_be_named(operator, side, kind):
            parts += _part(operator, side, ListStateDescriptor(side, kind), wishes, frame)
    return parts


def _variables(operator: StatefulOperator, wishes: Wishes) -> list[Part]:
    variables = operator.properties.get("stateVariables", [])
    expiring = {item["stateName"] for item in variables if item["ttlEnabled"]}
    wrong = sorted(set(wishes.time_to_live) - expiring)
    if wrong:
        raise InvalidInputError(
            f"time_to_live is for variables that expire, and {', '.join(wrong)} is none of them; those that do: "
            f"{', '.join(sorted(expiring)) or 'none'}"
        )
    parts = []
    for item in variables:
        name = item["stateName"]
        if item["stateVariableType"] == "TimerState":
            clock: Literal["event_time", "processing_time"] = (
                "event_time" if operator.properties.get("timeMode") == "EventTime" else "processing_time"
            )
            frame = operator.read(readRegisteredTimers=True)
            frame = frame.select("key", sf.col("expiration_timestamp_ms").alias("user_key"))
            parts += _part(operator, "timers", TimerStateDescriptor(f"timers_{clock}", clock), wishes, frame)
        elif name in expiring and name not in wishes.time_to_live:
            operator.leave_out(
                name, f"its rows expire, and Spark does not keep after what time; give time_to_live={{{name!r}: ...}}"
            )
        else:
            parts += _variable(operator, name, item["stateVariableType"], wishes)
    return parts


def _variable(operator: StatefulOperator, name: str, kind: str, wishes: Wishes) -> list[Part]:
    """Read a variable: one row for each value, list or entry; for each element where elements expire."""
    ttl = wishes.time_to_live.get(name)
    element: Any
    if kind == "ListState":
        frame = operator.read(stateVarName=name, flattenCollectionTypes=False)
        value, columns = sf.col("list_value"), []
        if ttl is not None:
            frame = frame.select("key", sf.posexplode("list_value").alias("position", "element"))
            value, columns = sf.col("element"), [sf.col("position")]
        element = _struct(frame, "list_value").elementType if ttl is None else frame.schema["element"].dataType
    elif kind == "MapState":
        frame = operator.read(stateVarName=name)
        value, element = sf.col("user_map_value"), frame.schema["user_map_value"].dataType
        user_key, user_type = sf.col("user_map_key"), frame.schema["user_map_key"].dataType
        if isinstance(user_type, StructType) and len(user_type) == 1:
            user_key, user_type = user_key.getField(user_type[0].name), user_type[0].dataType
        columns = [user_key.alias("user_key")]
    elif kind == "ValueState":
        frame = operator.read(stateVarName=name)
        value, element, columns = sf.col("value"), frame.schema["value"].dataType, []
    else:
        operator.leave_out(name, f"variables of the kind {kind} are not known")
        return []
    if ttl is not None:
        columns.append((value.getField("ttlExpirationMs") - sf.lit(ttl.ttl_ms)).alias("updated"))
        value, element = value.getField("value"), element["value"].dataType
    value_type = _arrow_type(operator, name, element)
    user_key_type = _arrow_type(operator, name, user_type) if kind == "MapState" else None
    if value_type is None or (kind == "MapState" and user_key_type is None):
        return []
    if not _may_be_named(operator, name, value_type, user_key_type):
        return []
    descriptor: StateDescriptor
    if kind == "ListState":
        descriptor = ListStateDescriptor(name, value_type, ttl=ttl)
    elif user_key_type is not None:
        descriptor = MapStateDescriptor(name, user_key_type, value_type, ttl=ttl)
    else:
        descriptor = ValueStateDescriptor(name, value_type, ttl=ttl)
    return _part(operator, name, descriptor, wishes, frame.select("key", value.alias("value"), *columns))


def _part(
    operator: StatefulOperator, source: str, descriptor: StateDescriptor, wishes: Wishes, frame: DataFrame
) -> list[Part]:
    """Put the key into columns of its own; a struct in it becomes one for each of its fields."""
    columns: list[Column] = []
    names: list[str] = []
    for item in _struct(frame, "key"):
        column = sf.col("key").getField(item.name)
        if isinstance(item.dataType, StructType):
            for inner in item.dataType:
                names.append(f"{item.name}_{inner.name}")
                columns.append(column.getField(inner.name))
        else:
            names.append(item.name)
            columns.append(column)
    if not names:
        operator.leave_out(source, "it has no key: it is one for the whole query")
        return []
    if wishes.key is not None:
        if len(wishes.key) != len(names):
            raise InvalidInputError(
                f"operator {operator.id} ({operator.name}) has the key columns {', '.join(names)}; key must name each, "
                f"got {', '.join(wishes.key)}"
            )
        names = list(wishes.key)
    key = [column.alias(name) for column, name in zip(columns, names, strict=True)]
    others = [name for name in ("value", "user_key", "updated", "position") if name in frame.columns]
    return [Part(source, descriptor, tuple(names), frame.select(*key, *map(sf.col, others)))]


def _fits(operator: StatefulOperator, part: Part) -> bool:
    """Whether a part can be a state; what is in the way is noted."""
    try:
        key = pa.schema([(name, arrow_type(part.frame.schema[name].dataType)) for name in part.key])
        _ = StateLayout.of(check_key_schema(key), part.descriptor).schema
    except InvalidInputError as error:
        operator.leave_out(part.source, str(error))
        return False
    return True


def _arrow_type(operator: StatefulOperator, source: str, kind: DataType) -> pa.DataType | None:
    """Return the Arrow type of a value; None if there is none, which is noted."""
    try:
        return arrow_type(kind)
    except InvalidInputError as error:
        operator.leave_out(source, str(error))
        return None


def _may_be_named(
    operator: StatefulOperator, name: str, kind: pa.DataType, user_key_type: pa.DataType | None = None
) -> bool:
    """Whether there can be a state of this name and type; what is in the way is noted."""
    try:
        if user_key_type is None:
            ValueStateDescriptor(name, kind)
        else:
            MapStateDescriptor(name, user_key_type, kind)
    except InvalidInputError as error:
        operator.leave_out(name, str(error))
        return False
    return True


def _struct(frame: DataFrame, name: str) -> Any:
    return frame.schema[name].dataType


def _distinct(names: Iterable[str]) -> list[str]:
    """Return the names with numbers added where one occurs again, in whatever case."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        count = seen[name.lower()] = seen.get(name.lower(), 0) + 1
        out.append(name if count == 1 else f"{name}_{count}")
    return out
