"""The MANIFEST of a database: of each live table its column family, its first and last key, its largest number.

It is a log of edits. Most of what it says the tables say themselves; two things are known to it alone: how far the
deletions of ranges in a table go, for one that was cut in two stands whole in both, and the sequence number of tables
that were written apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arrowstate.errors import CorruptDataError
from arrowstate.foreign.flink.sst.checksums import masked_crc32c
from arrowstate.foreign.flink.sst.files import RangeFile, read_exactly
from arrowstate.foreign.flink.sst.footer import varint

_LOG_BLOCK_BYTES = 1 << 15
_HEADER_BYTES, _LONG_HEADER_BYTES = 7, 11
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_RECYCLED = range(5, 9)
_IGNORABLE = 1 << 13
_TAG_BYTES = 8
_WITH_NUMBER = (2, 3, 4, 9, 10, 203, 300)
"""Tags of edits that one number follows."""
_WITH_TEXT = (1,)
_COMPACT_POINTER, _DELETED_FILE, _NEW_FILE, _NEW_FILES = 5, 6, 7, (100, 102, 103)
_FAMILY, _FAMILY_ADDED, _FAMILY_DROPPED = 200, 201, 202
_LARGEST_NUMBER = (1 << 56) - 1
_RANGE_DELETION = 15


@dataclass(frozen=True, slots=True)
class LiveTable:
    """What the MANIFEST says of a table."""

    family: int
    "The number of its column family."
    smallest: bytes
    "Its first key, with the tag behind it."
    largest: bytes
    "Its last key, with the tag behind it; a deletion of a range may reach beyond its entries."
    largest_number: int
    "The largest sequence number in it; of a table that was written apart that of all its entries."

    def clipped(self, start: bytes, end: bytes) -> tuple[bytes, bytes]:
        """Return the part of a deletion of a range of keys that belongs to this table."""
        last, tag = self.largest[:-_TAG_BYTES], int.from_bytes(self.largest[-_TAG_BYTES:], "little")
        # The end of a deletion is no entry, and a last entry without a number has none behind it to be deleted.
        ends_before = tag == (_LARGEST_NUMBER << 8 | _RANGE_DELETION) or tag >> 8 == 0
        return max(start, self.smallest[:-_TAG_BYTES]), min(end, last if ends_before else last + b"\0")


def read_manifest(file: RangeFile) -> dict[int, LiveTable]:
    """Return the live tables by their numbers."""
    live: dict[tuple[int, int], LiveTable] = {}
    for place, record in _records(file):
        try:
            _apply(record, live)
        except (ValueError, IndexError) as error:
            raise CorruptDataError(file.name, f"the edit that ends at byte {place}: {error}") from None
    return {number: table for (_, number), table in live.items()}


def _records(file: RangeFile) -> Iterator[tuple[int, bytes]]:
    """Yield each record and where it ends; one may lie in pieces in several blocks."""
    data = bytes(read_exactly(file, 0, file.size_bytes))
    place, pieces, is_open = 0, b"", False
    while place < len(data):
        left = _LOG_BLOCK_BYTES - place % _LOG_BLOCK_BYTES
        if left < _HEADER_BYTES:
            place += left
            continue
        header = data[place : place + _HEADER_BYTES]
        length, kind = int.from_bytes(header[4:6], "little"), header[6] if len(header) == _HEADER_BYTES else 0
        header_bytes = _LONG_HEADER_BYTES if kind in _RECYCLED else _HEADER_BYTES
        end = place + header_bytes + length
        if kind == 0 and not any(header):
            place += left
            continue
        if kind in _RECYCLED:
            kind -= 4
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or end > len(data) or length > left - header_bytes:
            raise CorruptDataError(file.name, f"no record begins at byte {place}")
        stored = int.from_bytes(header[:4], "little")
        if masked_crc32c(data[place + 6 : end]) != stored:
            raise CorruptDataError(file.name, f"the record at byte {place} does not match its checksum")
        if (kind in (_MIDDLE, _LAST)) != is_open:
            raise CorruptDataError(file.name, f"the record at byte {place} is a piece of none")
        pieces += data[place + header_bytes : end]
        is_open = kind in (_FIRST, _MIDDLE)
        place = end
        if not is_open:
            yield place, pieces
            pieces = b""
    if is_open:
        raise CorruptDataError(file.name, "its last record is not whole")


class _Edit:
    """The numbers and texts of one record, one after the other."""

    def __init__(self, record: bytes) -> None:
        self._record, self.place = record, 0

    def has_more(self) -> bool:
        return self.place < len(self._record)

    def number(self) -> int:
        number, self.place = varint(self._record, self.place)
        return number

    def text(self) -> bytes:
        size = self.number()
        start, self.place = self.place, self.place + size
        if self.place > len(self._record):
            raise ValueError(f"{size} bytes at byte {start} of it do not fit")
        return self._record[start : self.place]


def _apply(record: bytes, live: dict[tuple[int, int], LiveTable]) -> None:
    edit = _Edit(record)
    family = 0
    deleted: list[int] = []
    added: list[tuple[int, bytes, bytes, int]] = []
    while edit.has_more():
        tag = edit.number()
        if tag in _WITH_NUMBER:
            edit.number()
        elif tag in _WITH_TEXT or tag & _IGNORABLE:
            edit.text()
        elif tag == _COMPACT_POINTER:
            edit.number(), edit.text()
        elif tag == _DELETED_FILE:
            edit.number()
            deleted.append(edit.number())
        elif tag == _NEW_FILE or tag in _NEW_FILES:
            added.append(_new_file(edit, tag))
        elif tag == _FAMILY:
            family = edit.number()
        elif tag == _FAMILY_ADDED:
            edit.text()
        elif tag == _FAMILY_DROPPED:
            for dropped in [key for key in live if key[0] == family]:
                del live[dropped]
        else:
            raise ValueError(f"it has the unknown tag {tag}")
    for number in deleted:
        live.pop((family, number), None)
    for number, smallest, largest, largest_number in added:
        live[family, number] = LiveTable(family, smallest, largest, largest_number)


def _new_file(edit: _Edit, tag: int) -> tuple[int, bytes, bytes, int]:
    edit.number()
    number = edit.number()
    if tag == 102:
        edit.number()
    edit.number()
    smallest, largest = edit.text(), edit.text()
    if min(len(smallest), len(largest)) < _TAG_BYTES:
        raise ValueError(f"a key of the table {number} has no sequence number")
    largest_number = 0
    if tag in _NEW_FILES:
        edit.number()
        largest_number = edit.number()
    if tag == 103:
        while edit.number() != 1:
            edit.text()
    return number, smallest, largest, largest_number
