"""A table file: what it says about itself, what it deletes by ranges, and where its blocks of data lie.

The blocks are found by an index, or by an index of indexes. Both are walked in order and never twice, and blocks that
do not lie one behind the other are an error, so no index leads in a circle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate.foreign.flink.sst.block_entries import entries_of, handle_of, handles_of
from arrowstate.foreign.flink.sst.blocks import BlockReader
from arrowstate.foreign.flink.sst.files import RangeFile, WithTail
from arrowstate.foreign.flink.sst.footer import Handle, read_footer
from arrowstate.foreign.flink.sst.manifest import LiveTable

_PROPERTIES, _OLD_PROPERTIES = b"rocksdb.properties", b"rocksdb.stats"
_INDEX, _RANGE_DELETIONS, _DICTIONARY = b"rocksdb.index", b"rocksdb.range_del", b"rocksdb.compression_dict"
_GLOBAL_NUMBER, _EXTERNAL_VERSION = b"rocksdb.external_sst_file.global_seqno", b"rocksdb.external_sst_file.version"
_COMPARATOR = "leveldb.BytewiseComparator"
_TWO_LEVELS, _WITH_FIRST_KEY = 2, 3
_INDEX_TYPES = range(4)
_RANGE_DELETION = 15
_TAIL_BYTES = 1 << 14
TAG_BYTES = 8
"""Behind each key: its sequence number and the kind of its entry."""


@dataclass(frozen=True, slots=True)
class RangeDeletion:
    """What deletes the older entries of a range of keys."""

    start: bytes
    "The first key."
    end: bytes
    "The key behind the last."
    number: int
    "Entries with a smaller sequence number are deleted."


class Table:
    """A table file, of which footer, properties and range deletions were read."""

    def __init__(self, file: RangeFile, facts: LiveTable | None = None) -> None:
        file = WithTail(file, _TAIL_BYTES)
        self.file, self._facts = file, facts
        footer = read_footer(file)
        self.blocks = BlockReader(file, footer)
        about = dict(self._entries(footer.metaindex))
        index = self._handle(about, _INDEX) if footer.index is None else footer.index
        if index is None:
            raise CorruptDataError(file.name, f"the block at byte {footer.metaindex.offset} names no index")
        self._index = index
        properties = self._handle(about, _PROPERTIES) or self._handle(about, _OLD_PROPERTIES)
        self.properties: dict[bytes, bytes] = {} if properties is None else self._properties(properties)
        self._check_order()
        self._index_type = self._number(b"rocksdb.block.based.table.index.type", 0, fixed=True)
        if self._index_type not in _INDEX_TYPES:
            raise CorruptDataError(file.name, f"its index has the type {self._index_type}, and there is 0 to 3")
        self._is_delta = self._number(b"rocksdb.index.value.is.delta.encoded", 0) == 1
        self._has_user_keys = self._number(b"rocksdb.index.key.is.user.key", 0) == 1
        self.blocks.has_dictionary = _DICTIONARY in about
        self._range_deletion_count = 0
        deletions = self._handle(about, _RANGE_DELETIONS)
        self.range_deletions = [] if deletions is None else self._range_deletions(deletions)

    @property
    def column_family(self) -> str | None:
        """The name of the column family, which Flink names after the state; None if the file does not say it."""
        return self._text(b"rocksdb.column.family.name")

    @property
    def merge_operator(self) -> str | None:
        """The name of what joins operands to a value."""
        return self._text(b"rocksdb.merge.operator")

    @property
    def entry_count(self) -> int:
        """How many entries the file says it has, deletions and operands of merges included, those of ranges not."""
        return max(0, self._number(b"rocksdb.num.entries", 0) - self._range_deletion_count)

    @property
    def global_number(self) -> int | None:
        """The sequence number of all entries of a file that was written apart and taken in, else None."""
        if not self._is_external:
            return None
        number = self._number(_GLOBAL_NUMBER, 0, fixed=True) or None
        if self._facts is None:
            return number
        # No checksum is over the number, which was written into the file later.
        if number not in (None, self._facts.largest_number):
            raise CorruptDataError(
                self.file.name,
                f"it was taken in with the number {number}, by the MANIFEST with {self._facts.largest_number}",
            )
        return self._facts.largest_number

    @property
    def is_unnumbered(self) -> bool:
        """Whether it was written apart, and does not say the sequence number of its entries."""
        return self._is_external and self.global_number is None

    @property
    def is_whole(self) -> bool:
        """Whether it is known how far its deletions of ranges go; what was cut in two stands whole in both."""
        return self._facts is not None or not self.range_deletions

    @property
    def _is_external(self) -> bool:
        return self._number(_EXTERNAL_VERSION, 0, fixed=True) >= 2

    def data_blocks(self, first: bytes = b"", end: bytes | None = None) -> Iterator[Handle]:
        """Yield where the blocks lie that may have keys from `first` to before `end`, in their order."""
        behind = 0
        levels = self._handles(self._index)
        for last, handle in levels:
            if self._user_key(last) < first:
                continue
            leaves = iter([(last, handle)]) if self._index_type != _TWO_LEVELS else self._handles(handle)
            for leaf_last, leaf in leaves:
                if leaf.offset < behind:
                    self.blocks.fail(leaf.offset, f"is named after one that ends at byte {behind}")
                behind = leaf.offset + leaf.size
                if self._user_key(leaf_last) >= first:
                    self.blocks.check(leaf)
                    yield leaf
            if end is not None and self._user_key(last) >= end:
                return

    def _handles(self, index: Handle) -> Iterator[tuple[bytes, Handle]]:
        content = self.blocks.read(index)
        has_first_key = self._index_type == _WITH_FIRST_KEY
        try:
            yield from handles_of(content, is_delta=self._is_delta, has_first_key=has_first_key)
        except ValueError as error:
            self.blocks.fail(index.offset, f"is no index: {error}")

    def _user_key(self, key: bytes) -> bytes:
        return key if self._has_user_keys else key[:-TAG_BYTES]

    def _entries(self, handle: Handle) -> Iterator[tuple[bytes, bytes]]:
        return self._plain_entries(handle, self.blocks.read(handle))

    def _handle(self, about: dict[bytes, bytes], name: bytes) -> Handle | None:
        if name not in about:
            return None
        try:
            return handle_of(about[name])[0]
        except ValueError as error:
            raise CorruptDataError(self.file.name, f"no block is named by {name.decode()}: {error}") from None

    def _properties(self, handle: Handle) -> dict[bytes, bytes]:
        stored = self.blocks.read_stored(handle)
        if not self.blocks.is_intact(stored, 0, handle):
            # Whoever takes in a file writes the sequence number into it, and leaves the checksum as it is.
            block = memoryview(stored)[: handle.size]
            found = dict(self._plain_entries(handle, block))
            number = found.get(_GLOBAL_NUMBER, b"")
            # The number stands alone as a value of eight bytes; where its bytes occur once more this is not believed.
            before, _, behind = bytes(stored).rpartition(b"file.global_seqno" + number)
            if len(number) != 8 or not self.blocks.is_intact(
                before + b"file.global_seqno" + bytes(8) + behind, 0, handle
            ):
                self.blocks.fail(handle.offset, "does not match its checksum")
            return found
        return dict(self._entries(handle))

    def _plain_entries(self, handle: Handle, block: memoryview) -> Iterator[tuple[bytes, bytes]]:
        try:
            for key, value in entries_of(block):
                yield key, bytes(value)
        except ValueError as error:
            self.blocks.fail(handle.offset, f"is damaged: {error}")

    def _check_order(self) -> None:
        comparator = self._text(b"rocksdb.comparator")
        if comparator not in (None, _COMPARATOR):
            raise InvalidInputError(f"{self.file.name} is ordered by {comparator}; what is read is {_COMPARATOR}")

    def _text(self, name: bytes) -> str | None:
        value = self.properties.get(name)
        return None if value is None else value.decode("utf-8", "replace")

    def _number(self, name: bytes, default: int, *, fixed: bool = False) -> int:
        value = self.properties.get(name)
        if value is None:
            return default
        if fixed:
            return int.from_bytes(value, "little")
        number = 0
        for place, byte in enumerate(value[:10]):
            number |= (byte & 127) << 7 * place
        return number

    def _range_deletions(self, handle: Handle) -> list[RangeDeletion]:
        found = []
        number = self.global_number
        for key, end in self._entries(handle):
            tag = int.from_bytes(key[-TAG_BYTES:], "little")
            if len(key) < TAG_BYTES or tag & 255 != _RANGE_DELETION:
                self.blocks.fail(handle.offset, f"has an entry of kind {tag & 255}, and deletions of ranges have 15")
            self._range_deletion_count += 1
            start = key[:-TAG_BYTES]
            if self._facts is not None:
                start, end = self._facts.clipped(start, end)
            if start < end:
                found.append(RangeDeletion(start, end, tag >> 8 if number is None else number))
        return found
