"""A sink of an Iceberg table: rows and token in one commit of its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.runtime.iceberg_catalog import IcebergTable
from arrowstate.runtime.sinks.open_tables import OpenTableSink

if TYPE_CHECKING:
    from pyiceberg.table import Table

_COMMITTED = "arrowstate.committed."
"""What the property of a table begins with that has the newest checkpoint of a sink and subtask."""


class IcebergSink(OpenTableSink):
    """Adds the rows of each checkpoint to an Iceberg table: exactly once.

    The rows of a checkpoint and subtask are one snapshot. The same commit of the table's metadata sets a property of
    the table, which says which checkpoint that is. Rows of a checkpoint that is not newer than the one that the table
    has are skipped, so each row counts once, also beside other writers, and after snapshots were expired. Readers and
    other writers need nothing of arrowstate.

    Parameters
    ----------
    table : str
        The table with its namespace, such as `shop.orders`. It must exist, with the columns of the rows; it may have
        partitions.
    catalog : str, default "default"
        The name of the catalog, as PyIceberg knows it from its configuration.
    catalog_options : mapping, optional
        Properties of the catalog, such as `type`, `uri` and `warehouse`, besides those of the configuration. They are
        sent to the processes of the job.

    Raises
    ------
    MissingDependencyError
        If PyIceberg is not installed: `pip install 'arrowstate[iceberg]'`.
    UnavailableError
        From `open` and a commit, if the catalog cannot be reached, or has no answer now.
    InvalidInputError
        Where the sink is declared, and from `open` and a commit: if there is no such catalog or table, the catalog
        refuses it, or it has other columns. From a commit, if values do not fit their types. Then nothing of these rows
        is in the table.

    Notes
    -----
    The property is `arrowstate.committed.<store id>/<uid>/<subtask>`; if it is removed, rows may be added twice. The
    summary of each snapshot has `arrowstate.token` and `arrowstate.checkpoint-id`, for whoever wants to know where rows
    came from. Each checkpoint makes a snapshot for each subtask that has rows, so expire snapshots, and join files,
    with the tools of Iceberg.

    Examples
    --------
    >>> import tempfile, pyarrow as pa
    >>> from arrowstate.runtime import IcebergSink, Token
    >>> from pyiceberg.catalog import load_catalog
    >>> folder = tempfile.TemporaryDirectory()
    >>> options = {"type": "sql", "uri": f"sqlite:///{folder.name}/catalog", "warehouse": f"file://{folder.name}"}
    >>> catalog = load_catalog("default", **options)
    >>> rows = pa.table({"user": ["ann"], "total": [3]})
    >>> catalog.create_namespace("shop"); _ = catalog.create_table("shop.totals", rows.schema)
    >>> sink = IcebergSink("shop.totals", catalog_options=options)
    >>> for attempt in (1, 2):
    ...     sink.commit(rows, Token("0b7e", "totals", checkpoint_id=7, subtask=0))
    >>> table = catalog.load_table("shop.totals")
    >>> table.scan().to_arrow().to_pylist(), table.properties["arrowstate.committed.0b7e/totals/0"]
    ([{'user': 'ann', 'total': 3}], '7')
    >>> sink.close(); catalog.close(); folder.cleanup()
    """

    kind = "Iceberg"

    def __init__(
        self, table: str, *, catalog: str = "default", catalog_options: Mapping[str, str] | None = None
    ) -> None:
        self._place = IcebergTable("IcebergSink", table, catalog, catalog_options)
        self.table = table

    def __repr__(self) -> str:
        # Without what may have a password.
        return f"IcebergSink({self.table!r}, catalog={self._place.catalog!r})"

    def opened(self) -> Table:
        """Return the table as it is now."""
        return self._place.load()

    def columns(self, table: Table) -> pa.Schema:
        """Return the columns of the table."""
        return table.schema().as_arrow()

    def committed(self, table: Table, name: str) -> int | None:
        """Return what the table's property says."""
        found = table.properties.get(_COMMITTED + name)
        if found is None:
            return None
        if not found.isdecimal():
            raise InvalidInputError(
                f"the property {_COMMITTED}{name} of the Iceberg table {self.table!r} must be the number of a "
                f"checkpoint, got {found!r}; somebody else has set it, and it says which rows the table has"
            )
        return int(found)

    def add(self, table: Table, rows: pa.Table, name: str, checkpoint_id: int) -> None:
        """Append rows and set the property in one commit, once."""
        # PyIceberg would append the rows again to what another writer has made, which may be the same rows.
        own = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": own})
        summary = {"arrowstate.token": name, "arrowstate.checkpoint-id": str(checkpoint_id)}
        with table.transaction() as transaction:
            transaction.append(rows, snapshot_properties=summary)
            transaction.set_properties({_COMMITTED + name: str(checkpoint_id)})

    def conflicts(self) -> tuple[type[Exception], ...]:
        """Return the error of a commit that another writer had first."""
        from pyiceberg.exceptions import CommitFailedException

        return (CommitFailedException,)

    def close(self) -> None:
        """Close the catalog."""
        self._place.close()
