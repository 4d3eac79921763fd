"""What an operator is asked to be, and what its store says of it: uid, key, parallelism and max parallelism.

`keyed_sink`, `stateful` and `bootstrap` ask the same, and `arrowstate.bootstrap.opening` settles it. What does not
depend on the store is refused before one is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType

from arrowstate.bootstrap.opening import AskedOperator, Opening
from arrowstate.errors import InvalidInputError, UnsupportedStorageError
from arrowstate.schema.keys import check_key_schema
from arrowstate.spark.columns import FrameColumns
from arrowstate.spark.schemas import arrow_type, spark_type, widens
from arrowstate.storage.registry import SUPPORTED
from arrowstate.store import open_store
from arrowstate_formats.names import check_operator_uid

__all__ = ["Asked"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller asks of an operator, checked as far as its store is not needed."""

    store: str | Path
    operator: AskedOperator
    types: Mapping[str, DataType]
    """The types of the key columns in Spark."""

    @property
    def key(self) -> pa.Schema:
        """The key columns as they are given."""
        return self.operator.key

    @classmethod
    def of(
        cls,
        columns: FrameColumns,
        *,
        store: str | Path,
        uid: str,
        key: Sequence[str],
        parallelism: int | None,
        max_parallelism: int | None,
        optional: bool = False,
    ) -> Asked:
        """Check what is asked; `optional` says whether the parallelism may be left to the store.

        Raises
        ------
        InvalidInputError
            If an argument is out of range, or there is no such column.
        UnsupportedStorageError
            If the store cannot be shared with Spark's workers.
        """
        check_operator_uid(uid)
        if isinstance(key, str) or not key:
            raise InvalidInputError(f"key must be a list of at least one column, got {key!r}")
        types = {name: columns.type_of(name) for name in key}
        schema = check_key_schema(pa.schema([(name, arrow_type(types[name])) for name in key]))
        if str(store).lower().startswith("memory:"):
            reason = "its files are in the memory of this process, and Spark's tasks run in others"
            raise UnsupportedStorageError(str(store), "memory", SUPPORTED[:-1], reason)
        return cls(store, AskedOperator.of(uid, schema, parallelism, max_parallelism, optional=optional), types)

    def open(self, storage_options: Mapping[str, Any] | None = None) -> Opening:
        """Open the store, make it if there is none, and settle what the caller has left to it.

        Raises
        ------
        InvalidInputError
            If the store has this uid for something without keyed state, or the parallelism is above the stored maximum.
        KeyTypeError
            If the key has other columns than that of the store, or one that is not to be widened.
        """
        opened = open_store(self.store, create=True, storage_options=storage_options)
        return self.operator.settled(opened.storage, lambda name, kind: widens(self.types[name], spark_type(kind)))
