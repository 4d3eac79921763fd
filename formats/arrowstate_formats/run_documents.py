"""The documents of runs: what a manifest says of the run files of one subtask.

Specification: formats/spec/manifests-and-log.md and formats/spec/run-files.md.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from arrowstate_formats.cached_properties import cached_property
from arrowstate_formats.document_base import (
    Checksum,
    Count,
    Document,
    Int64,
    KeyGroup,
    Name,
    Statistic,
    StoredPath,
    Text,
    Version,
    VersionedDocument,
    check_key_groups,
    check_place,
)


class BatchDocument(Document, frozen=True, kw_only=True):
    """Consecutive rows of a run file: a byte range of the file, and what is in it.

    `min_time` and `max_time` are of the timestamps of timers or the ends of windows, `max_seq` is of the elements of a
    list; None where the state has no such column, or a writer did not note it.
    """

    offset: Count
    bytes: Version
    rows: Version
    xxh3_128: Checksum
    min_hash: Int64
    max_hash: Int64
    min_time: Int64 | None = None
    max_time: Int64 | None = None
    max_seq: Int64 | None = None

    def check(self) -> None:
        if self.min_hash > self.max_hash:
            raise ValueError(f"min_hash {self.min_hash} is above max_hash {self.max_hash}")
        if (self.min_time is None) != (self.max_time is None):
            raise ValueError(f"min_time {self.min_time} with max_time {self.max_time}")
        if self.min_time is not None and self.max_time is not None and self.min_time > self.max_time:
            raise ValueError(f"min_time {self.min_time} is above max_time {self.max_time}")


class BatchList(list[BatchDocument]):
    """The batches of a run, which are checked once however many documents have them."""

    @cached_property
    def ends(self) -> tuple[int, int]:
        """How many rows there are, and where the last batch ends."""
        end = 0
        for batch in self:
            batch.check()
            if batch.offset < end:
                raise ValueError(f"the batch at byte {batch.offset} begins inside the one before it")
            end = batch.offset + batch.bytes
        return sum(batch.rows for batch in self), end


class ColumnStatistics(Document, frozen=True, kw_only=True):
    """Nulls and bounds of one column of a run; a bound is null where it is not known.

    An integer, and a time as the integer that Arrow stores, is a text of decimal digits; the type of the column tells.
    `has_nan` says whether a float in it is NaN, at any depth; None where it has no floats, or a writer did not look.
    """

    column: Text
    null_count: Count
    min: Statistic = None
    max: Statistic = None
    has_nan: bool | None = None


class DeletionVectorDocument(Document, frozen=True, kw_only=True):
    """The dead rows of a run file, as a Roaring bitmap of row numbers of the file."""

    path: StoredPath | None = None
    inline: str | None = None
    bytes: Version
    dead_rows: Count
    xxh3_128: Checksum


class DirectoryDocument(Document, frozen=True, kw_only=True):
    """The bucket directory beside a run file."""

    path: StoredPath
    bytes: Version
    xxh3_128: Checksum


class RunDocument(Document, frozen=True, kw_only=True):
    """A run: a file of sorted rows, and the half-open range of its rows that this subtask owns."""

    id: Text
    format: Literal["arrow", "parquet", "lance"]
    path: StoredPath | None = None
    inline: str | None = None
    bytes: Version
    rows: Count
    first_row: Count
    last_row: Count
    live_rows: Count
    xxh3_128: Checksum
    frame_xxh3_128: Checksum
    batches: list[BatchDocument]
    statistics: list[ColumnStatistics]
    schema_version: Version = 1
    deletion_vector: DeletionVectorDocument | None = None
    directory: DirectoryDocument | None = None

    def check(self) -> None:
        check_place(self.path, self.inline)
        if not self.first_row <= self.last_row <= self.rows:
            raise ValueError(f"rows {self.first_row} to {self.last_row} are outside a file of {self.rows} rows")
        if self.live_rows > self.last_row - self.first_row:
            raise ValueError(f"{self.live_rows} live rows in {self.last_row - self.first_row} rows")
        batches = self.batches if isinstance(self.batches, BatchList) else BatchList(self.batches)
        rows, end = batches.ends
        if rows != self.rows:
            raise ValueError(f"the batches do not add up to {self.rows} rows")
        if end > self.bytes:
            raise ValueError(f"the batches end at byte {end} of a file of {self.bytes} bytes")
        if self.deletion_vector is not None:
            check_place(self.deletion_vector.path, self.deletion_vector.inline)


class StateRunsDocument(Document, frozen=True, kw_only=True):
    """The runs of one state, oldest first."""

    name: Name
    runs: list[RunDocument]

    def check(self) -> None:
        for run in self.runs:
            run.check()


class ManifestDocument(VersionedDocument, frozen=True, kw_only=True):
    """`manifests/<uuid>.json`: everything one subtask of an operator has stored."""

    what: ClassVar[str] = "manifest"

    operator: Name
    key_groups: tuple[KeyGroup, KeyGroup]
    states: list[StateRunsDocument]

    def check(self) -> None:
        check_key_groups(self.key_groups)
        for state in self.states:
            state.check()


class ManifestHandle(Document, frozen=True, kw_only=True):
    """Where a manifest is: the path of a file, or inline its states; never both.

    `bytes` is its size, as a file or as the text of its states. Only a file has a checksum: what is inline is part of
    the document around it.
    """

    path: StoredPath | None = None
    inline: list[StateRunsDocument] | None = None
    bytes: Version
    xxh3_128: Checksum | None = None

    def check(self) -> None:
        check_place(self.path, self.inline)
        if (self.path is None) != (self.xxh3_128 is None):
            raise ValueError("a manifest has a checksum if, and only if, it is a file")
        for state in self.inline or ():
            state.check()
