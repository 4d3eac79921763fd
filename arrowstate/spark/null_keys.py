"""Null keys as a group of their own, made before a stream is keyed: keys of a store are never null."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from arrowstate.errors import InvalidInputError

__all__ = ["group_null_keys"]

_NUMBERS = (st.IntegralType, st.FractionalType, st.BooleanType)
_DAYS = (st.DateType, st.TimestampNTZType)


def group_null_keys(frame: DataFrame, key: Sequence[str]) -> tuple[DataFrame, list[str]]:
    """Return a stream whose rows with a null in the key are groups like others, and the key to give with it.

    A key column `user` is joined by `user_is_null`, which is part of the key, and where it is true `user` has the
    lowest of its kind in the place of null: 0, an empty text, 1970-01-01, which as a timestamp is 00:00 in UTC,
    whatever the time zone of the session. So null and 0 are two groups, as in SQL's `group by`, and the state shows
    which is which. Columns that cannot be null stay as they are. Spark computes all of it.

    Parameters
    ----------
    frame
        The stream, or a table.
    key
        The key columns: numbers, text, binary, booleans, dates or timestamps.

    Returns
    -------
    tuple of DataFrame and list
        For `stateful` or `keyed_sink`, and for their `key`.

    Raises
    ------
    InvalidInputError
        If a column is not there or has another type, or the name of a new one is taken.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> from arrowstate.spark import group_null_keys, keyed_sink
    >>> clicks = arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="count")
    >>> def start(stream, folder):
    ...     rows, key = group_null_keys(stream, ["user"])  # key is ["user", "user_is_null"]
    ...     sink = keyed_sink(rows, store=folder + "/store", uid="counter", key=key, states=[clicks])
    ...     return sink.option("checkpointLocation", folder + "/spark").start()
    """
    fields = {field.name: field for field in frame.schema}
    keys: list[str] = []
    for name in key:
        field = fields.get(name)
        if field is None:
            raise InvalidInputError(f"the stream has no column {name!r}; it has {', '.join(fields)}")
        keys.append(name)
        if not field.nullable:
            continue
        told = f"{name}_is_null"
        if told.lower() in (other.lower() for other in fields):
            raise InvalidInputError(
                f"the stream has a column {told!r}, which is to say where {name!r} is null; rename it"
            )
        frame = frame.withColumn(told, sf.col(_quoted(name)).isNull())
        frame = frame.withColumn(name, sf.coalesce(sf.col(_quoted(name)), _lowest(name, field.dataType)))
        keys.append(told)
    return frame, keys


def _lowest(name: str, kind: st.DataType) -> Column:
    if isinstance(kind, _NUMBERS):
        return sf.lit(0).cast(kind)
    if isinstance(kind, (st.StringType, st.BinaryType)):
        return sf.lit("").cast(kind)
    if isinstance(kind, st.TimestampType):
        # A text would be a time in the zone of the session.
        return sf.timestamp_seconds(sf.lit(0))
    if isinstance(kind, _DAYS):
        return sf.lit("1970-01-01").cast(kind)
    raise InvalidInputError(
        f"the key column {name!r} is {kind.simpleString()}; where it is null nothing stands for it: give its parts as "
        "key columns, or leave such rows out"
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
