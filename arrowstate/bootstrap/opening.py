"""What an operator is asked to be, and what its store says of it: uid, key, parallelism and max parallelism.

Whoever fills states asks this, with a table of Arrow or of Spark, and so do the sink and the operators of Spark.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from msgspec import Struct

from arrowstate.errors import InvalidInputError, KeyTypeError
from arrowstate.log.commit_log import CommitLog
from arrowstate.schema.keys import check_key_schema, described
from arrowstate.schema.layout import key_documents, key_schema_of
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument
from arrowstate_formats.integers import check_integer
from arrowstate_formats.key_groups import default_max_parallelism, key_group_range
from arrowstate_formats.names import check_operator_uid
from arrowstate_formats.schema_documents import FieldDocument


class Opening(Struct, frozen=True):
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


class AskedOperator(Struct, frozen=True):
    """What a caller asks of an operator, checked as far as its store is not needed."""

    uid: str
    key: pa.Schema
    """The key columns as they are given."""
    parallelism: int | None
    max_parallelism: int | None

    @classmethod
    def of(
        cls, uid: str, key: pa.Schema, parallelism: int | None, max_parallelism: int | None, *, optional: bool
    ) -> AskedOperator:
        """Check what is asked; `optional` says whether the parallelism may be left to the store."""
        check_operator_uid(uid)
        schema = check_key_schema(key)
        parallelism = check_integer("parallelism", parallelism, optional=optional)
        max_parallelism = check_integer("max_parallelism", max_parallelism, optional=True)
        if parallelism is not None:
            key_group_range(max_parallelism or default_max_parallelism(parallelism), parallelism=parallelism, subtask=0)
        return cls(uid, schema, parallelism, max_parallelism)

    def settled(self, storage: Storage, fits: Callable[[str, pa.DataType], bool]) -> Opening:
        """Settle what the caller has left to the store.

        `fits` says whether a key column has values of a type, or narrower ones.
        """
        checkpoint = CommitLog(storage).latest_checkpoint()
        operators = () if checkpoint is None else checkpoint.operators
        operator = next((item for item in operators if item.uid == self.uid), None)
        if operator is not None and not operator.key:
            raise InvalidInputError(
                f"{self.uid!r} in the store {storage.url} has operator state only, or is an output table; use another "
                "uid, or another store"
            )
        key = key_documents(self.key) if operator is None else operator.key
        schema = key_schema_of(key)
        if self.key.names != schema.names or not all(fits(field.name, field.type) for field in schema):
            raise KeyTypeError(described(schema), described(self.key))
        parallelism = self.parallelism or (1 if operator is None else operator.parallelism)
        maximum = self.max_parallelism
        if maximum is None:
            maximum = default_max_parallelism(parallelism) if operator is None else operator.max_parallelism
        key_group_range(maximum, parallelism=parallelism, subtask=0)
        return Opening(storage.url, storage, checkpoint, operator, list(key), parallelism, maximum)
