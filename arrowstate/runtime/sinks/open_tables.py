"""What the sinks of Delta and Iceberg share: rows and their token are one commit of the table.

The table itself keeps the newest checkpoint of each sink and subtask, beside its rows. A commit builds on the state of
the table in which the token was looked for. Where another writer was faster, maybe with the same rows, the library
refuses it, and the token is looked for again.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.runtime.connectors import Sink, Token
from arrowstate.schema.types import CONVERSION_ERRORS, check_values, safe_cast

_ATTEMPTS = 5


class OpenTableSink(Sink):
    """Adds rows to a table that exists; `kind` and `table` name it."""

    kind: str
    table: str

    def check_schema(self, uid: str, schema: pa.Schema) -> None:
        """Refuse other columns than the table has, and types that it cannot take."""
        columns = self.columns(self.opened())
        self._check_names(schema.names, columns, f"sink {uid!r}: ")
        for field in columns:
            given = schema.field(field.name).type
            try:
                safe_cast(pa.nulls(0, given), _storage_type(field.type))
            except CONVERSION_ERRORS as error:
                raise InvalidInputError(
                    f"sink {uid!r}: column {field.name!r} of the rows is {given}, which cannot become the "
                    f"{field.type} of {self._name}: {error}"
                ) from None

    def open(self, store_id: str, uid: str) -> None:  # noqa: ARG002
        """Look for the table."""
        self.opened()

    def commit(self, rows: pa.Table, token: Token) -> None:
        """Add rows, and their token, unless it is there."""
        if not rows.num_rows:
            return
        name = f"{token.store_id}/{token.uid}/{token.subtask}"
        for attempt in range(1, _ATTEMPTS + 1):
            table = self.opened()
            had = self.committed(table, name)
            if had is not None and had >= token.checkpoint_id:
                return
            fitting = self._fitting(rows, self.columns(table))
            try:
                self.add(table, fitting, name, token.checkpoint_id)
            except self.conflicts():
                # Another writer was faster, maybe with the same token; what the table has now tells.
                if attempt == _ATTEMPTS:
                    raise
            else:
                return

    @abstractmethod
    def opened(self) -> Any:
        """Return the table as it is now, or raise an `InvalidInputError` if there is none."""

    @abstractmethod
    def columns(self, table: Any) -> pa.Schema:
        """Return the columns that the table takes."""

    @abstractmethod
    def committed(self, table: Any, name: str) -> int | None:
        """Return the newest checkpoint of a sink and subtask whose rows the table has, None for none."""

    @abstractmethod
    def add(self, table: Any, rows: pa.Table, name: str, checkpoint_id: int) -> None:
        """Add rows, and the checkpoint of a name, in one commit that fails if the table is another by now."""

    @abstractmethod
    def conflicts(self) -> tuple[type[Exception], ...]:
        """Return what is raised where another writer was faster, and nothing was committed."""

    @property
    def _name(self) -> str:
        return f"the {self.kind} table {self.table!r}"

    def _check_names(self, given: list[str], columns: pa.Schema, about: str) -> None:
        if sorted(given) != sorted(columns.names):
            raise InvalidInputError(
                f"{about}{self._name} has the columns {', '.join(columns.names)}, and the rows have "
                f"{', '.join(given)}; both must have the same"
            )

    def _fitting(self, rows: pa.Table, columns: pa.Schema) -> pa.Table:
        """Return rows in the columns of the table."""
        self._check_names(rows.column_names, columns, "")
        arrays = []
        for field in columns:
            if not field.nullable and rows[field.name].null_count:
                raise InvalidInputError(f"column {field.name!r} has nulls, which {self._name} does not allow")
            type = _storage_type(field.type)
            try:
                chunks = [check_values(safe_cast(chunk, type)) for chunk in rows[field.name].chunks]
                arrays.append(pa.chunked_array(chunks, type))
            except CONVERSION_ERRORS as error:
                raise InvalidInputError(
                    f"column {field.name!r} of the rows is {rows.schema.field(field.name).type}, and has values that "
                    f"{field.type} of {self._name} cannot hold: {error}"
                ) from None
        return pa.Table.from_arrays(arrays, schema=columns)


def _storage_type(type: pa.DataType) -> pa.DataType:
    return type.storage_type if isinstance(type, pa.BaseExtensionType) else type
