"""The files of one database: its tables by column family, with what its MANIFEST says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.sst.files import RangeFile, StoredFile
from arrowstate.foreign.flink.sst.manifest import read_manifest
from arrowstate.foreign.flink.sst.merging import Batch, merged
from arrowstate.foreign.flink.sst.table import Table
from arrowstate.storage import in_parallel

_TABLE = re.compile(r"(\d+)\.sst")


class Database:
    """The live tables of a database, opened.

    The MANIFEST of the same moment is needed where ranges of keys were deleted or tables were written apart.
    """

    def __init__(self, tables: Mapping[str, RangeFile], manifest: RangeFile | None = None) -> None:
        live = None if manifest is None else read_manifest(manifest)
        numbers = {name: int(match[1]) for name in tables if (match := _TABLE.fullmatch(name))}
        if manifest is not None and live is not None:
            for number in sorted(live.keys() - numbers.values()):
                raise CorruptDataError(
                    manifest.name, f"it names the table {number:06}.sst, which is not among the {len(tables)} given"
                )
            for name in sorted(name for name in tables if numbers.get(name) not in live):
                raise CorruptDataError(manifest.name, f"it does not name the table {name}, which was given")
        self._tables: dict[str, list[Table]] = {}

        def opened(name: str) -> Table:
            return Table(tables[name], None if live is None else live[numbers[name]])

        stored = next((file.storage for file in tables.values() if isinstance(file, StoredFile)), None)
        names = list(tables)
        for table in map(opened, names) if stored is None else in_parallel(stored, opened, names, small=True):
            self._tables.setdefault(table.column_family or "default", []).append(table)

    @property
    def column_families(self) -> list[str]:
        """The names of the column families that have tables; Flink names them after the states."""
        return list(self._tables)

    def row_bound(self, column_family: str) -> int:
        """Return how many entries the tables of a column family have, of which not all need be live."""
        return sum(table.entry_count for table in self._tables.get(column_family, []))

    def entries(self, column_family: str, *, key_groups: range, prefix_bytes: int) -> Iterator[Batch]:
        """Yield the live keys of a column family and what they hold, in the order of the keys."""
        if not key_groups:
            return iter(())
        first = key_groups.start.to_bytes(prefix_bytes, "big") if key_groups.start else b""
        end = key_groups.stop.to_bytes(prefix_bytes, "big") if key_groups.stop < 1 << 8 * prefix_bytes else None
        return merged(self._tables.get(column_family, []), first=first, end=end)
