"""Tables of Delta and Iceberg that a test writes to and reads, through one set of verbs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake import Field as DeltaField
from deltalake.schema import PrimitiveType
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

from arrowstate.runtime import DeltaSink, DeltaSource, IcebergSink, IcebergSource


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
    def source(self, **options: Any) -> Any:
        """Return a source of the table that looks each time."""

    @abstractmethod
    def newest(self) -> dict[str, int]:
        """Return the option of a source that begins with the table as it is now."""

    @abstractmethod
    def delete(self, predicate: str) -> None:
        """Delete rows as another writer."""

    @abstractmethod
    def compact(self) -> None:
        """Join the files."""

    @abstractmethod
    def add_column(self, name: str) -> None:
        """Add a column of int64."""

    @abstractmethod
    def forget(self) -> None:
        """Let go of all but the newest version and its files."""

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

    def source(self, **options: Any) -> DeltaSource:
        return DeltaSource(self.path, **{"discovery_ms": 0, **options})

    def newest(self) -> dict[str, int]:
        return {"version": self.table.version()}

    def delete(self, predicate: str) -> None:
        self.table.delete(predicate)

    def compact(self) -> None:
        self.table.optimize.compact()

    def add_column(self, name: str) -> None:
        self.table.alter.add_columns([DeltaField(name, PrimitiveType("long"))])

    def forget(self) -> None:
        table = self.table
        newest = table.version()
        table.vacuum(0, enforce_retention_duration=False, dry_run=False)
        self.table.create_checkpoint()
        for version in range(newest):
            self.log(version).unlink(missing_ok=True)

    def log(self, version: int) -> Path:
        return self.path / "_delta_log" / f"{version:020}.json"

    def append(self, rows: pa.Table) -> None:
        # A log that was cut by hand stays as it is.
        hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        write_deltalake(self.path, rows, mode="append", post_commithook_properties=hooks)

    def rows(self) -> pa.Table:
        return pa.table(self.table.to_pyarrow_dataset().to_table())

    def commits(self) -> int:
        return self.table.version()

    def committed(self, name: str) -> int | None:
        return self.table.transaction_version(name)


class _ReplaceFiles(_OverwriteFiles):
    """Other files with the same rows, for which PyIceberg has no verb."""

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        return Summary(operation=Operation.REPLACE)


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

    def source(self, **options: Any) -> IcebergSource:
        return IcebergSource(self.name, catalog_options=self.options, **{"discovery_ms": 0, **options})

    def newest(self) -> dict[str, int]:
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        return {"snapshot_id": snapshot.snapshot_id}

    def delete(self, predicate: str) -> None:
        self.table.delete(predicate)

    def compact(self) -> None:
        table = self.table
        rows = table.scan().to_arrow()
        with table.transaction() as transaction:
            replacing = _ReplaceFiles(operation=Operation.REPLACE, transaction=transaction, io=table.io)
            with replacing as files:
                for task in table.scan().plan_files():
                    files.delete_data_file(task.file)
                for file in _dataframe_to_data_files(table.metadata, rows, table.io):
                    files.append_data_file(file)

    def add_column(self, name: str) -> None:
        with self.table.update_schema() as update:
            update.add_column(name, LongType())

    def forget(self) -> None:
        table = self.table
        newest = table.current_snapshot()
        expiring = table.maintenance.expire_snapshots()
        expiring.by_ids([it.snapshot_id for it in table.snapshots() if it != newest]).commit()

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
