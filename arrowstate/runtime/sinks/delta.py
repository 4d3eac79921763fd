"""A sink of a Delta table: rows and token in one commit of its log."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowstate.errors import InvalidInputError, MissingDependencyError
from arrowstate.runtime.sinks.open_tables import OpenTableSink
from arrowstate.storage.registry import options_of

if TYPE_CHECKING:
    from deltalake import DeltaTable


class DeltaSink(OpenTableSink):
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
        Where the sink is declared, and from `open` and a commit: if there is no such table, or it has other columns.
        From a commit, if values do not fit their types. Then nothing of these rows is in the table.

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

    kind = "Delta"

    def __init__(self, table: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError("DeltaSink", "deltalake", "delta") from error
        path = os.fspath(table)
        self.table = path if "://" in path else os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
        self.storage_options = options_of("storage_options", storage_options) or None

    def __repr__(self) -> str:
        # Without what may have a password.
        return f"DeltaSink({self.table!r})"

    def opened(self) -> DeltaTable:
        """Return the table as it is now."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.table, storage_options=self.storage_options)
        except TableNotFoundError:
            raise InvalidInputError(
                f"there is no Delta table {self.table!r}; make it first, with deltalake.DeltaTable.create"
            ) from None

    def columns(self, table: DeltaTable) -> pa.Schema:
        """Return the columns of the table."""
        return pa.schema(table.schema().to_arrow())

    def committed(self, table: DeltaTable, name: str) -> int | None:
        """Return the version of a transaction."""
        return table.transaction_version(name)

    def add(self, table: DeltaTable, rows: pa.Table, name: str, checkpoint_id: int) -> None:
        """Write rows and the version of their transaction."""
        from deltalake import CommitProperties, Transaction, write_deltalake

        properties = CommitProperties(app_transactions=[Transaction(name, checkpoint_id)])
        write_deltalake(table, rows, mode="append", commit_properties=properties)

    def conflicts(self) -> tuple[type[Exception], ...]:
        """Return the error of a transaction that another writer had first."""
        from deltalake.exceptions import CommitFailedError

        return (CommitFailedError,)
