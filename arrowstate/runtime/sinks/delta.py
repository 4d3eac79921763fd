"""A sink of a Delta table: rows and token in one commit of its log."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowstate.errors import InvalidInputError, MissingDependencyError
from arrowstate.runtime.connectors import Sink, Token

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ATTEMPTS = 5


class DeltaSink(Sink):
    """Adds the rows of each checkpoint to a Delta table: exactly once.

    The rows of a checkpoint and subtask are one commit of the table, which also says in its transaction (`txn`) which
    checkpoint that is. Rows of a checkpoint that is not newer than the one that the table has are skipped, so each row
    counts once, also beside other writers. Readers and other writers need nothing of arrowstate.

    Parameters
    ----------
    table : str or PathLike
        The table, a path or a URL of delta-rs. It must exist, with the columns of the rows; it may have partitions.
    storage_options : mapping, optional
        Options of the storage, as delta-rs takes them. They are sent to the processes of the job.

    Raises
    ------
    MissingDependencyError
        If deltalake is not installed: `pip install 'arrowstate[delta]'`.
    InvalidInputError
        From `open` and from a commit, if there is no such table; from a commit, if the table has other columns, or
        values do not fit their types. Then nothing of these rows is in the table.

    Notes
    -----
    A table forgets transactions after `delta.setTransactionRetentionDuration`, where that is set. It must be longer
    than the job may be stopped. Each checkpoint makes a file for each subtask and partition that has rows; delta-rs
    joins them with `DeltaTable(...).optimize.compact()`, and removes old ones with `vacuum()`.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> from arrowstate.runtime import DeltaSink, Token
    >>> from deltalake import DeltaTable
    >>> folder = tempfile.TemporaryDirectory()
    >>> rows = pa.table({"user": ["ann"], "total": [3]})
    >>> table = DeltaTable.create(folder.name, schema=rows.schema)
    >>> sink = DeltaSink(folder.name)
    >>> for attempt in (1, 2):
    ...     sink.commit(rows, Token("0b7e", "totals", checkpoint_id=7, subtask=0))
    >>> table.update_incremental(); table.version(), table.transaction_version("0b7e/totals/0")
    (1, 7)
    >>> folder.cleanup()
    """

    def __init__(self, table: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError("DeltaSink", "deltalake", "delta") from error
        path = os.fspath(table)
        self.table = path if "://" in path else os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
        self.storage_options = None if storage_options is None else dict(storage_options)

    def __repr__(self) -> str:
        # Without what may have a password.
        return f"DeltaSink({self.table!r})"

    def open(self, store_id: str, uid: str) -> None:  # noqa: ARG002
        """Look for the table."""
        self._opened()

    def commit(self, rows: pa.Table, token: Token) -> None:
        """Add rows, and their token, unless it is there."""
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError

        if not rows.num_rows:
            return
        name = f"{token.store_id}/{token.uid}/{token.subtask}"
        properties = CommitProperties(app_transactions=[Transaction(name, token.checkpoint_id)])
        for attempt in range(1, _ATTEMPTS + 1):
            table = self._opened()
            had = table.transaction_version(name)
            if had is not None and had >= token.checkpoint_id:
                return
            try:
                write_deltalake(table, self._fitting(rows, table), mode="append", commit_properties=properties)
            except CommitFailedError:
                # Another writer was faster, maybe with the same token; what the table has now tells.
                if attempt == _ATTEMPTS:
                    raise
            else:
                return

    def _opened(self) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.table, storage_options=self.storage_options)
        except TableNotFoundError:
            raise InvalidInputError(
                f"there is no Delta table {self.table!r}; make it first, with deltalake.DeltaTable.create"
            ) from None

    def _fitting(self, rows: pa.Table, table: DeltaTable) -> pa.Table:
        """Return rows in the columns of the table."""
        schema = pa.schema(table.schema().to_arrow())
        if set(schema.names) != set(rows.column_names):
            raise InvalidInputError(
                f"the Delta table {self.table!r} has the columns {', '.join(schema.names)}, and the rows have "
                f"{', '.join(rows.column_names)}; both must have the same"
            )
        columns = []
        for field in schema:
            if not field.nullable and rows[field.name].null_count:
                raise InvalidInputError(
                    f"column {field.name!r} has nulls, which the Delta table {self.table!r} does not allow"
                )
            try:
                columns.append(rows[field.name].cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InvalidInputError(
                    f"column {field.name!r} of the rows is {rows.schema.field(field.name).type}, and has values that "
                    f"{field.type} of the Delta table {self.table!r} cannot hold: {error}"
                ) from None
        return pa.Table.from_arrays(columns, schema=schema)
