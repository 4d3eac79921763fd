"""What an operator is asked to be, and what its store says of it: uid, key, parallelism and max parallelism.

`keyed_sink`, `stateful` and `bootstrap` ask the same. What does not depend on the store is refused before one is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType

from arrowstate.errors import InvalidInputError, KeyTypeError, UnsupportedStorageError
from arrowstate.log.commit_log import CommitLog
from arrowstate.schema.keys import check_key_schema
from arrowstate.schema.layout import key_documents, key_schema_of
from arrowstate.spark.columns import FrameColumns
from arrowstate.spark.schemas import arrow_type, key_text, spark_type, widens
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import SUPPORTED
from arrowstate.store import open_store
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument
from arrowstate_formats.integers import check_integer
from arrowstate_formats.key_groups import default_max_parallelism, key_group_range
from arrowstate_formats.names import check_operator_uid
from arrowstate_formats.schema_documents import FieldDocument

__all__ = ["Asked", "Opening"]


@dataclass(frozen=True, slots=True)
class Opening:
    """An operator as it is from now on, and what its store has."""

    url: str
    storage: Storage
    checkpoint: LogEntryDocument | None
    """The newest one, None in a store without one."""
    operator: OperatorDocument | None
    """What it has of the operator."""
    key: list[FieldDocument]
    parallelism: int
    max_parallelism: int

    @property
    def key_schema(self) -> pa.Schema:
        return key_schema_of(self.key)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller asks of an operator, checked as far as its store is not needed."""

    store: str | Path
    uid: str
    key: pa.Schema
    """The key columns as they are given."""
    types: Sequence[DataType]
    """Their types in Spark."""
    parallelism: int | None
    max_parallelism: int | None

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
        types = [columns.type_of(name) for name in key]
        schema = check_key_schema(pa.schema([(name, arrow_type(kind)) for name, kind in zip(key, types, strict=True)]))
        if str(store).lower().startswith("memory:"):
            reason = "its files are in the memory of this process, and Spark's tasks run in others"
            raise UnsupportedStorageError(str(store), "memory", SUPPORTED[:-1], reason)
        parallelism = check_integer("parallelism", parallelism, optional=optional)
        max_parallelism = check_integer("max_parallelism", max_parallelism, optional=True)
        if parallelism is not None:
            key_group_range(max_parallelism or default_max_parallelism(parallelism), parallelism=parallelism, subtask=0)
        return cls(store, uid, schema, types, parallelism, max_parallelism)

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
        checkpoint = CommitLog(opened.storage).latest_checkpoint()
        operators = () if checkpoint is None else checkpoint.operators
        operator = next((item for item in operators if item.uid == self.uid), None)
        if operator is not None and not operator.key:
            raise InvalidInputError(
                f"{self.uid!r} in the store {opened.url} has operator state only, or is an output table; use another "
                "uid, or another store"
            )
        key = key_documents(self.key) if operator is None else operator.key
        schema = key_schema_of(key)
        if self.key.names != schema.names or not all(
            widens(given, spark_type(field.type)) for given, field in zip(self.types, schema, strict=True)
        ):
            raise KeyTypeError(key_text(schema), key_text(self.key))
        parallelism = self.parallelism or (1 if operator is None else operator.parallelism)
        maximum = self.max_parallelism
        if maximum is None:
            maximum = default_max_parallelism(parallelism) if operator is None else operator.max_parallelism
        key_group_range(maximum, parallelism=parallelism, subtask=0)
        return Opening(opened.url, opened.storage, checkpoint, operator, list(key), parallelism, maximum)
