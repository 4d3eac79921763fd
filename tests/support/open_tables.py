"""Tables of Delta and Iceberg that a test writes to and reads, through one set of verbs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from arrowstate.runtime import DeltaSink, IcebergSink


class OpenTable(ABC):
    """A table in a folder, which may not be there yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def make(self, schema: pa.Schema, *, partition_by: Sequence[str] = (), **properties: str) -> None:
        """Make the table."""

    @abstractmethod
    def drop(self) -> None:
        """Remove the table."""

    @abstractmethod
    def sink(self) -> Any:
        """Return a sink of the table."""

    @abstractmethod
    def append(self, rows: pa.Table) -> None:
        """Add rows as another writer."""

    @abstractmethod
    def rows(self) -> pa.Table:
        """Return the rows that a reader sees."""

    @abstractmethod
    def commits(self) -> int:
        """Return how many commits have changed rows."""

    @abstractmethod
    def committed(self, name: str) -> int | None:
        """Return the checkpoint that the table has of a sink and subtask."""


class Delta(OpenTable):
    """A table of Delta."""

    @property
    def path(self) -> Path:
        return self.folder / "t"

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    def make(self, schema: pa.Schema, *, partition_by: Sequence[str] = (), **properties: str) -> None:
        DeltaTable.create(
            self.path, schema=schema, partition_by=list(partition_by) or None, configuration=dict(properties)
        )

    def drop(self) -> None:
        self.path.rename(self.folder / "dropped")

    def sink(self) -> DeltaSink:
        return DeltaSink(self.path)

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self.path, rows, mode="append")

    def rows(self) -> pa.Table:
        return pa.table(self.table.to_pyarrow_dataset().to_table())

    def commits(self) -> int:
        return self.table.version()

    def committed(self, name: str) -> int | None:
        return self.table.transaction_version(name)


class Iceberg(OpenTable):
    """A table of Iceberg, in a catalog on SQLite."""

    name = "shop.t"

    @property
    def options(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.folder}/catalog", "warehouse": f"file://{self.folder}"}

    @property
    def catalog(self) -> Catalog:
        return load_catalog("default", **self.options)

    @property
    def table(self) -> Table:
        with self.catalog as catalog:
            return catalog.load_table(self.name)

    def make(self, schema: pa.Schema, *, partition_by: Sequence[str] = (), **properties: str) -> None:
        with self.catalog as catalog:
            catalog.create_namespace_if_not_exists("shop")
            creating = catalog.create_table_transaction(self.name, schema, properties=properties)
            with creating, creating.update_spec() as spec:
                for column in partition_by:
                    spec.add_field(column, IdentityTransform(), column)

    def drop(self) -> None:
        with self.catalog as catalog:
            catalog.drop_table(self.name)

    def sink(self) -> IcebergSink:
        return IcebergSink(self.name, catalog_options=self.options)

    def append(self, rows: pa.Table) -> None:
        self.table.append(rows)

    def rows(self) -> pa.Table:
        return self.table.scan().to_arrow()

    def commits(self) -> int:
        return len(self.table.snapshots())

    def committed(self, name: str) -> int | None:
        found = self.table.properties.get(f"arrowstate.committed.{name}")
        return None if found is None else int(found)


KINDS: dict[str, type[Delta | Iceberg]] = {"delta": Delta, "iceberg": Iceberg}
