"""The JSON documents of a store: identity, manifests, log entries, tags, leases, boundaries and jobs.

One frozen struct per document or part of one; `encode` writes it in a stable form and `decode` reads
it strictly. An unknown field is an error, because ignoring it could mean to overlook a file that is
still referenced or a rule that changes what the rows mean; a newer `format_version` is told apart
from damage before the shape is looked at. Specification: formats/spec/manifests-and-log.md and
formats/spec/collection.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from arrowstate_formats.document_base import (
    FORMAT_VERSION,
    Checksum,
    Count,
    Document,
    Int64,
    KeyGroup,
    Milliseconds,
    Name,
    PinnedDocument,
    Statistic,
    StoredPath,
    Text,
    TypeForm,
    Version,
    VersionedDocument,
    check_key_groups,
    check_place,
    plain_json,
)
from arrowstate_formats.document_text import decode, decode_inline, encode, encode_inline, pack, unpack
from arrowstate_formats.kept_documents import BoundaryDocument, JobDocument, LeaseDocument, ParentDocument, TagDocument
from arrowstate_formats.key_groups import MAX_PARALLELISM
from arrowstate_formats.run_documents import (
    BatchDocument,
    ColumnStatistics,
    DeletionVectorDocument,
    DirectoryDocument,
    ManifestDocument,
    ManifestHandle,
    RunDocument,
    StateRunsDocument,
)
from arrowstate_formats.schema_documents import FieldDocument, StateDocument, check_types

__all__ = [
    "FORMAT_VERSION",
    "MAX_ENTRY_BYTES",
    "BatchDocument",
    "BoundaryDocument",
    "ColumnStatistics",
    "DeletionVectorDocument",
    "DirectoryDocument",
    "Document",
    "JobDocument",
    "KeyHashDocument",
    "LeaseDocument",
    "LogEntryDocument",
    "ManifestDocument",
    "ManifestHandle",
    "OperatorDocument",
    "OperatorPartDocument",
    "OperatorPartsDocument",
    "OperatorStateDocument",
    "ParentDocument",
    "PartFileDocument",
    "PinnedDocument",
    "RunDocument",
    "StateRunsDocument",
    "Statistic",
    "StatisticsDocument",
    "StoreDocument",
    "SubtaskDocument",
    "SubtaskFileDocument",
    "SubtaskStatisticsDocument",
    "SubtasksDocument",
    "TagDocument",
    "decode",
    "decode_inline",
    "encode",
    "encode_inline",
    "pack",
    "plain_json",
    "unpack",
]


MAX_ENTRY_BYTES = 4 << 20
"""The largest log entry. What grows with the subtasks of an operator goes to files before it gets there."""


class KeyHashDocument(Document, frozen=True, kw_only=True):
    """Which key hash the store was written with."""

    name: Literal["spark-xxhash64"] = "spark-xxhash64"
    seed: Literal[42] = 42


class StoreDocument(PinnedDocument, frozen=True, kw_only=True):
    """`arrowstate.json`: what makes a folder a store; written once."""

    is_read_again: ClassVar[bool] = True

    format: Literal["arrowstate"] = "arrowstate"
    store_id: Text
    key_hash: KeyHashDocument = KeyHashDocument()
    created_at_ms: Milliseconds


class SubtaskDocument(Document, frozen=True, kw_only=True):
    """One subtask of an operator: its key groups, its manifest, and the live rows of each state.

    `schema_versions` are the versions that its runs have, by state; null where nobody noted them.
    """

    subtask: Count
    key_groups: tuple[KeyGroup, KeyGroup]
    manifest: ManifestHandle
    live_rows: dict[str, Count]
    watermark: Int64 | None = None
    schema_versions: dict[str, list[Version]] | None = None

    def check(self) -> None:
        check_key_groups(self.key_groups)
        self.manifest.check()


class SubtasksDocument(VersionedDocument, frozen=True, kw_only=True):
    """`manifests/<uuid>.json` of several subtasks: neighbours of one operator, where an entry has no room for them."""

    what: ClassVar[str] = "list of subtasks"

    operator: Name
    first: Count
    subtasks: Annotated[list[SubtaskDocument], msgspec.Meta(min_length=1)]

    def check(self) -> None:
        numbers = [subtask.subtask for subtask in self.subtasks]
        if numbers != list(range(self.first, self.first + len(numbers))):
            raise ValueError(f"the subtasks from {self.first} on are numbered {numbers[:3]}...")
        for subtask in self.subtasks:
            subtask.check()


class SubtaskFileDocument(Document, frozen=True, kw_only=True):
    """Where neighbouring subtasks are, and what they have in sum."""

    path: StoredPath
    bytes: Version
    xxh3_128: Checksum
    first: Count
    count: Version
    key_groups: tuple[KeyGroup, KeyGroup]
    live_rows: dict[str, Count]
    schema_versions: dict[str, list[Version]] | None = None

    def check(self) -> None:
        check_key_groups(self.key_groups)


class OperatorPartDocument(Document, frozen=True, kw_only=True):
    """What one subtask had of an operator state: an Arrow IPC file with one row per element, so element n is row n.

    A part without rows has no file.
    """

    rows: Count
    path: StoredPath | None = None
    inline: str | None = None
    bytes: Count
    xxh3_128: Checksum

    def check(self) -> None:
        if self.rows:
            check_place(self.path, self.inline)
        elif self.path is not None or self.inline is not None or self.bytes:
            raise ValueError("a part without rows has a file")


class OperatorPartsDocument(VersionedDocument, frozen=True, kw_only=True):
    """`manifests/<uuid>.json` of several parts of an operator state, where an entry has no room for them."""

    what: ClassVar[str] = "list of parts"

    operator: Name
    state: Name
    first: Count
    parts: Annotated[list[OperatorPartDocument], msgspec.Meta(min_length=1)]

    def check(self) -> None:
        for part in self.parts:
            part.check()


class PartFileDocument(Document, frozen=True, kw_only=True):
    """Where neighbouring parts of an operator state are, and how many rows they have."""

    path: StoredPath
    bytes: Version
    xxh3_128: Checksum
    first: Count
    count: Version
    rows: Count


class OperatorStateDocument(Document, frozen=True, kw_only=True):
    """A state of an operator's subtasks rather than of keys, and how a restore shares it out."""

    name: Name
    kind: Literal["list", "union", "broadcast"]
    value_type: TypeForm
    key_type: TypeForm | None = None
    parts: list[OperatorPartDocument]
    part_files: list[PartFileDocument] = []

    def check(self) -> None:
        if bool(self.parts) == bool(self.part_files):
            raise ValueError(f"operator state {self.name!r} must have either parts or files of parts")
        _check_consecutive(self.part_files)
        if (self.key_type is None) == (self.kind == "broadcast"):
            raise ValueError(f"a {self.kind} state with key type {self.key_type}")
        for part in self.parts:
            part.check()

    @property
    def part_count(self) -> int:
        """How many parts it has, in the entry or in files."""
        return len(self.parts) + sum(file.count for file in self.part_files)


class OperatorDocument(Document, frozen=True, kw_only=True):
    """One operator: key schema, states and subtasks; and the states of the subtasks themselves."""

    uid: Name
    key: list[FieldDocument]
    max_parallelism: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARALLELISM)]
    states: list[StateDocument]
    subtasks: list[SubtaskDocument]
    operator_states: list[OperatorStateDocument] = []
    subtask_files: list[SubtaskFileDocument] = []

    def check(self) -> None:
        if self.subtasks and self.subtask_files:
            raise ValueError(f"operator {self.uid!r} has subtasks and files of subtasks; it must have one of both")
        _check_consecutive(self.subtask_files)
        if not self.key and (self.states or self.parallelism or not self.operator_states):
            raise ValueError(f"operator {self.uid!r} has no key; only an operator without keyed state may")
        counts = {state.part_count for state in self.operator_states}
        if self.parallelism:
            counts.add(self.parallelism)
        if len(counts) > 1:
            raise ValueError(f"the states of operator {self.uid!r} are of {sorted(counts)} subtasks")
        check_types(self.key)
        for part in (*self.states, *self.operator_states):
            part.check()
        held: list[SubtaskDocument | SubtaskFileDocument] = [*self.subtasks, *self.subtask_files]
        for subtask in held:
            subtask.check()
            if subtask.key_groups[1] >= self.max_parallelism:
                raise ValueError(f"key group {subtask.key_groups[1]} at max parallelism {self.max_parallelism}")

    @property
    def parallelism(self) -> int:
        """How many subtasks have keyed state, in the entry or in files."""
        return len(self.subtasks) + sum(file.count for file in self.subtask_files)

    def live_rows(self, state: str) -> int:
        """Return the live rows of a state in all subtasks."""
        held: list[SubtaskDocument | SubtaskFileDocument] = [*self.subtasks, *self.subtask_files]
        return sum(item.live_rows.get(state, 0) for item in held)


def _check_consecutive(files: Iterable[SubtaskFileDocument | PartFileDocument]) -> None:
    following = 0
    for file in files:
        if file.first != following:
            raise ValueError(f"a file begins with number {file.first}, expected {following}")
        following += file.count


class SubtaskStatisticsDocument(Document, frozen=True, kw_only=True):
    """What it took to write one subtask of a checkpoint; `subtask` is null for the operator state of all subtasks.

    Times are in microseconds, and null where nobody measured them. `bytes_total` is what the part refers to, and
    `bytes_written` and `files_written` what of that was written for this checkpoint.
    """

    operator: Name
    subtask: Count | None
    sync_us: Count | None = None
    async_us: Count | None = None
    alignment_us: Count | None = None
    bytes_written: Count
    bytes_total: Count
    files_written: Count


class StatisticsDocument(Document, frozen=True, kw_only=True):
    """What it took to write each part of one operator, number by number; see `SubtaskStatisticsDocument`.

    Item i of each list is of the part `subtasks[i]`.
    """

    operator: Name
    subtasks: list[Count | None]
    sync_us: list[Count | None]
    async_us: list[Count | None]
    alignment_us: list[Count | None]
    bytes_written: list[Count]
    bytes_total: list[Count]
    files_written: list[Count]

    def check(self) -> None:
        if len({len(getattr(self, name)) for name in ("subtasks", *_MEASURED)}) > 1:
            raise ValueError(f"the statistics of operator {self.operator!r} are lists of different lengths")

    @classmethod
    def of(cls, items: Iterable[SubtaskStatisticsDocument]) -> list[StatisticsDocument]:
        """Return the statistics of parts, operator by operator."""
        by_operator: dict[str, list[SubtaskStatisticsDocument]] = {}
        for item in items:
            by_operator.setdefault(item.operator, []).append(item)
        return [
            cls(
                operator=operator,
                subtasks=[item.subtask for item in parts],
                **{name: [getattr(item, name) for item in parts] for name in _MEASURED},
            )
            for operator, parts in by_operator.items()
        ]

    def rows(self) -> Iterator[SubtaskStatisticsDocument]:
        """Yield what it took to write each part."""
        columns = [getattr(self, name) for name in _MEASURED]
        for subtask, *values in zip(self.subtasks, *columns, strict=True):
            yield SubtaskStatisticsDocument(
                operator=self.operator, subtask=subtask, **dict(zip(_MEASURED, values, strict=True))
            )


_MEASURED = ("sync_us", "async_us", "alignment_us", "bytes_written", "bytes_total", "files_written")


class LogEntryDocument(PinnedDocument, frozen=True, kw_only=True):
    """`log/<20 digits>.json`: one commit.

    The newest entry tells the state of the store: by its `operators`, or as a fence by those of the entry that
    `content` names. `statistics` are measurements without a meaning for readers.
    """

    what: ClassVar[str] = "log entry"
    max_bytes: ClassVar[int | None] = MAX_ENTRY_BYTES
    is_read_again: ClassVar[bool] = True
    free_form: ClassVar[tuple[str, ...]] = ("properties", "extensions")

    number: Count
    parent: ParentDocument | None
    commit_id: Text
    writer_epoch: Count
    kind: Literal["fence", "checkpoint", "compaction", "savepoint"]
    checkpoint_id: Count | None
    started_at_ms: Milliseconds
    committed_at_ms: Milliseconds
    watermark: Int64 | None = None
    properties: dict[str, Any] = {}
    operators: list[OperatorDocument]
    content: ParentDocument | None = None
    last_checkpoint_id: Count | None = None
    statistics: list[StatisticsDocument] = []

    def check(self) -> None:
        if self.parent is not None and self.parent.number != self.number - 1:
            raise ValueError(f"entry {self.number} has parent {self.parent.number}")
        if (self.checkpoint_id is None) != (self.kind == "fence"):
            raise ValueError(f"a {self.kind} entry with checkpoint id {self.checkpoint_id}")
        if self.checkpoint_id == 0:
            raise ValueError("a checkpoint with the id 0, the first of a store is 1")
        if self.operators if self.kind == "fence" else self.content is not None:
            raise ValueError(f"a {self.kind} entry with {len(self.operators)} operators and content {self.content}")
        if self.content is not None and self.content.number >= self.number:
            raise ValueError(f"entry {self.number} has the content of entry {self.content.number}")
        for part in (*self.operators, *self.statistics):
            part.check()
