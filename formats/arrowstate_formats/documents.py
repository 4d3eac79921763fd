"""The JSON documents of a store: identity, manifests, log entries, tags, leases and boundaries.

One frozen struct per document or part of one; `encode` writes it in a stable form and `decode` reads
it strictly. An unknown field is an error, because ignoring it could mean to overlook a file that is
still referenced or a rule that changes what the rows mean; a newer `format_version` is told apart
from damage before the shape is looked at. Specification: formats/spec/manifests-and-log.md and
formats/spec/collection.md.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from itertools import count
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import xxhash

from arrowstate_formats.errors import CorruptDataError, FormatVersionError, InvalidInputError
from arrowstate_formats.integers import INT64_MAX, INT64_MIN, LARGEST_EXACT
from arrowstate_formats.key_groups import MAX_PARALLELISM
from arrowstate_formats.names import check_operator_uid, check_relative_path, check_state_name, check_tag_name

__all__ = [
    "FORMAT_VERSION",
    "AggregateDocument",
    "BatchDocument",
    "BoundaryDocument",
    "ColumnStatistics",
    "DeletionVectorDocument",
    "DirectoryDocument",
    "FieldDocument",
    "KeyHashDocument",
    "LeaseDocument",
    "LogEntryDocument",
    "ManifestDocument",
    "ManifestHandle",
    "NestedFieldDocument",
    "OperatorDocument",
    "OperatorPartDocument",
    "OperatorStateDocument",
    "ParentDocument",
    "PinnedDocument",
    "RunDocument",
    "SchemaDocument",
    "StateDocument",
    "StateRunsDocument",
    "StoreDocument",
    "SubtaskDocument",
    "SubtaskStatisticsDocument",
    "TagDocument",
    "TimeToLiveDocument",
    "check_json",
    "decode",
    "decode_inline",
    "encode",
    "encode_inline",
]

FORMAT_VERSION = 1
"""The version that this package writes, and the newest it reads."""

Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_EXACT)]
Version = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_EXACT)]
Milliseconds = Annotated[int, msgspec.Meta(ge=-LARGEST_EXACT, le=LARGEST_EXACT)]
Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
Duration = Annotated[int, msgspec.Meta(ge=1, le=INT64_MAX)]
Checksum = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$", description="xxh3_128, 32 hexadecimal digits")]
KeyGroup = Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARALLELISM)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
TypeForm = str | dict[str, Any]
Statistic = str | int | float | bool | None


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=False, kw_only=True):
    """What every document and every part of one has in common: frozen, strict, keyword-only."""


NO_CHECKSUM = "0" * 32
"""What stands for the checksum of a document while that checksum is computed."""

_OWN_CHECKSUM = re.compile(rb'"document_xxh3_128"\s*:\s*"([0-9a-f]{32})"')


class PinnedDocument(Document, frozen=True, kw_only=True):
    """A document that nothing else pins, so it carries the checksum of its own bytes.

    `encode` fills `document_xxh3_128` in and `decode` compares it; in memory it is always zeros. The fields before it
    hold no free text, so the first place in the file that looks like it is the field.
    """

    format_version: Version = FORMAT_VERSION
    document_xxh3_128: Checksum = NO_CHECKSUM


class KeyHashDocument(Document, frozen=True, kw_only=True):
    """Which key hash the store was written with."""

    name: Literal["spark-xxhash64"] = "spark-xxhash64"
    seed: Literal[42] = 42


class StoreDocument(PinnedDocument, frozen=True, kw_only=True):
    """`arrowstate.json`: what makes a folder a store; written once.

    Examples
    --------
    >>> document = StoreDocument(store_id="3f0c", created_at_ms=1700000000000)
    >>> decode(encode(document), StoreDocument) == document
    True
    """

    format: Literal["arrowstate"] = "arrowstate"
    store_id: Text
    key_hash: KeyHashDocument = KeyHashDocument()
    created_at_ms: Milliseconds


class NestedFieldDocument(Document, frozen=True, kw_only=True):
    """The identity of a field inside a column, whose type tells its name and type."""

    id: Count
    default: str | None = None
    fields: list[NestedFieldDocument] = []


class FieldDocument(Document, frozen=True, kw_only=True):
    """A key column or value column; `id` stays the same when the column is renamed.

    `default` is what rows have that were written before the column was there, as `encode_default` writes it; None for
    null. `fields` are the fields inside a nested type, in its order, once the schema of the state has changed.
    """

    id: Count
    name: Text
    type: TypeForm
    nullable: bool = True
    default: str | None = None
    fields: list[NestedFieldDocument] = []


class TimeToLiveDocument(Document, frozen=True, kw_only=True):
    """When the rows of a state expire: `ttl_ms` after `_updated_at`, by the clock named."""

    ttl_ms: Duration
    update: Literal["on_create_and_write", "on_read_and_write"]
    visibility: Literal["never_return_expired", "return_until_cleaned_up"]
    clock: Literal["processing_time", "event_time"]


class AggregateDocument(Document, frozen=True, kw_only=True):
    """What an aggregating state computes: a built-in aggregate with its parameters, or the name of another.

    `accumulator_type` is a struct; its fields are the columns of the state.
    """

    name: Text
    parameters: dict[str, Any]
    accumulator_type: TypeForm


class SchemaDocument(Document, frozen=True, kw_only=True):
    """The columns that runs of an earlier schema version have."""

    version: Version
    value_type: TypeForm
    key: list[FieldDocument]
    namespace: list[FieldDocument] = []
    user_key: FieldDocument | None = None
    columns: list[FieldDocument]


class StateDocument(Document, frozen=True, kw_only=True):
    """A state as its descriptor declared it, and the columns its values are stored in."""

    name: str
    kind: Literal["value", "reducing", "list", "map", "timer", "aggregating"]
    value_type: TypeForm
    columns: list[FieldDocument]
    reduce: str | dict[str, str] | None = None
    schema_version: Version = 1
    namespace: list[FieldDocument] = []
    user_key: FieldDocument | None = None
    time_to_live: TimeToLiveDocument | None = None
    clock: Literal["event_time", "processing_time"] | None = None
    aggregate: AggregateDocument | None = None
    reduce_callable: str | None = None
    earlier_schemas: list[SchemaDocument] = []

    def __post_init__(self) -> None:
        check_state_name(self.name)
        versions = [schema.version for schema in self.earlier_schemas]
        if len(versions) != self.schema_version - 1 or any(map(int.__ne__, versions, count(1))):
            raise ValueError(f"schema version {self.schema_version} with the earlier versions {versions}")


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

    def __post_init__(self) -> None:
        if self.min_hash > self.max_hash:
            raise ValueError(f"min_hash {self.min_hash} is above max_hash {self.max_hash}")
        if (self.min_time is None) != (self.max_time is None):
            raise ValueError(f"min_time {self.min_time} with max_time {self.max_time}")
        if self.min_time is not None and self.max_time is not None and self.min_time > self.max_time:
            raise ValueError(f"min_time {self.min_time} is above max_time {self.max_time}")


class ColumnStatistics(Document, frozen=True, kw_only=True):
    """Nulls and bounds of one column of a run; a bound is null where it is not known.

    `has_nan` says whether a float in it is NaN, at any depth; None where it has no floats, or a writer did not look.
    """

    column: Text
    null_count: Count
    min: Statistic = None
    max: Statistic = None
    has_nan: bool | None = None


class DeletionVectorDocument(Document, frozen=True, kw_only=True):
    """The dead rows of a run file, as a Roaring bitmap of row numbers of the file."""

    path: str | None = None
    inline: str | None = None
    bytes: Version
    dead_rows: Count
    xxh3_128: Checksum

    def __post_init__(self) -> None:
        _check_place(self.path, self.inline)


class DirectoryDocument(Document, frozen=True, kw_only=True):
    """The bucket directory beside a run file."""

    path: str
    bytes: Version
    xxh3_128: Checksum

    def __post_init__(self) -> None:
        check_relative_path(self.path)


class RunDocument(Document, frozen=True, kw_only=True):
    """A run: a file of sorted rows, and the half-open range of its rows that this subtask owns."""

    id: Text
    format: Literal["arrow", "parquet", "lance"]
    path: str | None = None
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

    def __post_init__(self) -> None:
        _check_place(self.path, self.inline)
        if not self.first_row <= self.last_row <= self.rows:
            raise ValueError(f"rows {self.first_row} to {self.last_row} are outside a file of {self.rows} rows")
        if self.live_rows > self.last_row - self.first_row:
            raise ValueError(f"{self.live_rows} live rows in {self.last_row - self.first_row} rows")
        if sum(batch.rows for batch in self.batches) != self.rows:
            raise ValueError(f"the batches do not add up to {self.rows} rows")
        end = 0
        for batch in self.batches:
            if batch.offset < end:
                raise ValueError(f"the batch at byte {batch.offset} begins inside the one before it")
            end = batch.offset + batch.bytes
        if end > self.bytes:
            raise ValueError(f"the batches end at byte {end} of a file of {self.bytes} bytes")


class StateRunsDocument(Document, frozen=True, kw_only=True):
    """The runs of one state, oldest first."""

    name: str
    runs: list[RunDocument]

    def __post_init__(self) -> None:
        check_state_name(self.name)


class ManifestDocument(Document, frozen=True, kw_only=True):
    """`manifests/<uuid>.json`: everything one subtask of an operator has stored."""

    format_version: Version = FORMAT_VERSION
    operator: str
    key_groups: tuple[KeyGroup, KeyGroup]
    states: list[StateRunsDocument]

    def __post_init__(self) -> None:
        check_operator_uid(self.operator)
        _check_key_groups(self.key_groups)


class ManifestHandle(Document, frozen=True, kw_only=True):
    """Where a manifest is: its path, or its text inline; never both."""

    path: str | None = None
    inline: str | None = None
    bytes: Version
    xxh3_128: Checksum

    def __post_init__(self) -> None:
        _check_place(self.path, self.inline)


class SubtaskDocument(Document, frozen=True, kw_only=True):
    """One subtask of an operator: its key groups, its manifest, and the live rows of each state."""

    subtask: Count
    key_groups: tuple[KeyGroup, KeyGroup]
    manifest: ManifestHandle
    live_rows: dict[str, Count]
    watermark: Int64 | None = None

    def __post_init__(self) -> None:
        _check_key_groups(self.key_groups)


class OperatorPartDocument(Document, frozen=True, kw_only=True):
    """What one subtask had of an operator state: an Arrow IPC file with one row per element, so element n is row n.

    A part without rows has no file.
    """

    rows: Count
    path: str | None = None
    inline: str | None = None
    bytes: Count
    xxh3_128: Checksum

    def __post_init__(self) -> None:
        if self.rows:
            _check_place(self.path, self.inline)
        elif self.path is not None or self.inline is not None or self.bytes:
            raise ValueError("a part without rows has a file")


class OperatorStateDocument(Document, frozen=True, kw_only=True):
    """A state of an operator's subtasks rather than of keys, and how a restore shares it out."""

    name: str
    kind: Literal["list", "union", "broadcast"]
    value_type: TypeForm
    key_type: TypeForm | None = None
    parts: Annotated[list[OperatorPartDocument], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        check_state_name(self.name)
        if (self.key_type is None) == (self.kind == "broadcast"):
            raise ValueError(f"a {self.kind} state with key type {self.key_type}")


class OperatorDocument(Document, frozen=True, kw_only=True):
    """One operator: key schema, states and subtasks; and the states of the subtasks themselves."""

    uid: str
    key: list[FieldDocument]
    max_parallelism: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARALLELISM)]
    states: list[StateDocument]
    subtasks: list[SubtaskDocument]
    operator_states: list[OperatorStateDocument] = []

    def __post_init__(self) -> None:
        check_operator_uid(self.uid)
        if not self.key and (self.states or self.subtasks or not self.operator_states):
            raise ValueError(f"operator {self.uid!r} has no key; only an operator without keyed state may")
        counts = {len(state.parts) for state in self.operator_states}
        if self.subtasks:
            counts.add(len(self.subtasks))
        if len(counts) > 1:
            raise ValueError(f"the states of operator {self.uid!r} are of {sorted(counts)} subtasks")
        for subtask in self.subtasks:
            if subtask.key_groups[1] >= self.max_parallelism:
                raise ValueError(f"key group {subtask.key_groups[1]} at max parallelism {self.max_parallelism}")


class ParentDocument(Document, frozen=True, kw_only=True):
    """The log entry before this one, pinned by the checksum of its bytes."""

    number: Count
    xxh3_128: Checksum


class SubtaskStatisticsDocument(Document, frozen=True, kw_only=True):
    """What it took to write one subtask of a checkpoint; `subtask` is null for the operator state of all subtasks.

    Times are in microseconds, and null where nobody measured them. `bytes_total` is what the part refers to, and
    `bytes_written` and `files_written` what of that was written for this checkpoint.
    """

    operator: str
    subtask: Count | None
    sync_us: Count | None = None
    async_us: Count | None = None
    alignment_us: Count | None = None
    bytes_written: Count
    bytes_total: Count
    files_written: Count

    def __post_init__(self) -> None:
        check_operator_uid(self.operator)


class LogEntryDocument(PinnedDocument, frozen=True, kw_only=True):
    """`log/<20 digits>.json`: one commit. The newest entry alone tells the state of the store."""

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
    last_checkpoint_id: Count | None = None
    statistics: list[SubtaskStatisticsDocument] = []

    def __post_init__(self) -> None:
        if self.parent is not None and self.parent.number != self.number - 1:
            raise ValueError(f"entry {self.number} has parent {self.parent.number}")
        if (self.checkpoint_id is None) != (self.kind == "fence"):
            raise ValueError(f"a {self.kind} entry with checkpoint id {self.checkpoint_id}")


class TagDocument(PinnedDocument, frozen=True, kw_only=True):
    """`tags/<name>.json`: a checkpoint that is kept, whatever the retention, until the tag is removed."""

    name: str
    tag_id: Text
    checkpoint_id: Count
    entry: ParentDocument
    created_at_ms: Milliseconds

    def __post_init__(self) -> None:
        check_tag_name(self.name)


class LeaseDocument(PinnedDocument, frozen=True, kw_only=True):
    """`leases/<lease id>.json`: a checkpoint that is kept until a time, because somebody reads it."""

    lease_id: Text
    checkpoint_id: Count
    entry: ParentDocument
    expires_at_ms: Milliseconds
    holder: str = ""


class BoundaryDocument(PinnedDocument, frozen=True, kw_only=True):
    """How far the log has been collected, and what goes now.

    `gc/condemned-<boundary>-<swept>-<collection id>.json`, or `gc/boundary-...` if it condemns nothing. `condemned`
    are the paths that a collection may be deleting. `waiting` are files that nothing refers to, by the
    time at which a collection first saw them. `taken` are files that collections deleted, by the number of an entry
    that was there then: a later one that refers to them was never acknowledged.
    """

    boundary: Count
    swept: Count
    collection_id: Text
    written_at_ms: Milliseconds
    condemned: list[str]
    waiting: dict[str, Milliseconds]
    taken: dict[str, Count] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in (*self.condemned, *self.waiting, *self.taken):
            check_relative_path(path)


D = TypeVar("D", bound=Document)


class _Versioned(msgspec.Struct):
    format_version: Version = FORMAT_VERSION


def encode(document: Document) -> bytes:
    """Return the UTF-8 JSON text of a document: two-space indent, declared field order, newline at the end.

    Equal documents give equal bytes; members of free-form objects are sorted by name.

    Raises
    ------
    InvalidInputError
        If a reader would refuse the result, or `properties` holds something that JSON cannot keep exactly (NaN, an
        integer outside 64 bits, bytes, a date, a name that is no text).

    Examples
    --------
    >>> encode(ParentDocument(number=3, xxh3_128="0" * 32))[:17]
    b'{\\n  "number": 3,\\n'
    """
    if isinstance(document, LogEntryDocument):
        check_json("properties", document.properties)
    try:
        text = msgspec.json.encode(document, order="deterministic")
        # By the rules of the reader: what it would refuse must never be committed.
        msgspec.json.decode(text, type=type(document))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInputError(
            f"the {_name_of(document)} cannot be written, no reader would take it: {error}"
        ) from error
    data = msgspec.json.format(text, indent=2) + b"\n"
    if isinstance(document, PinnedDocument):
        start, end = _own_checksum(data)
        digest = xxhash.xxh3_128_hexdigest(data[:start] + NO_CHECKSUM.encode() + data[end:])
        data = data[:start] + digest.encode() + data[end:]
    return data


def decode(data: bytes, document_type: type[D], *, path: str = "") -> D:
    """Return the document that `encode` wrote.

    Parameters
    ----------
    data
        The JSON text.
    document_type
        The struct to read it as.
    path
        Where the text comes from, for messages.

    Raises
    ------
    FormatVersionError
        If `format_version` is newer than `FORMAT_VERSION`, whatever the rest of the document looks like.
    CorruptDataError
        If the text is no JSON, or has a missing, unknown or ill-formed field.

    Examples
    --------
    >>> decode(b'{"number": 3, "xxh3_128": "00000000000000000000000000000000"}', ParentDocument).number
    3
    """
    try:
        version = msgspec.json.decode(data, type=_Versioned).format_version
        if version > FORMAT_VERSION:
            raise FormatVersionError(path, version, FORMAT_VERSION)
        document = msgspec.json.decode(data, type=document_type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptDataError(path, str(error)) from error
    if not isinstance(document, PinnedDocument):
        return document
    try:
        start, end = _own_checksum(data)
    except LookupError:
        raise CorruptDataError(path, "the document has no document_xxh3_128") from None
    if xxhash.xxh3_128_hexdigest(data[:start] + NO_CHECKSUM.encode() + data[end:]) != document.document_xxh3_128:
        raise CorruptDataError(path, "the document does not match its checksum")
    return msgspec.structs.replace(document, document_xxh3_128=NO_CHECKSUM)


def _name_of(document: Document) -> str:
    return re.sub("(?<!^)(?=[A-Z])", " ", type(document).__name__).lower()


def _own_checksum(data: bytes) -> tuple[int, int]:
    """Return where in a pinned document the digits of its checksum begin and end."""
    match = _OWN_CHECKSUM.search(data)
    if match is None:
        raise LookupError("document_xxh3_128")
    return match.span(1)


def encode_inline(data: bytes) -> str:
    """Return bytes as the text of an `inline` field (base64).

    Examples
    --------
    >>> encode_inline(b"abc")
    'YWJj'
    """
    return base64.b64encode(data).decode("ascii")


def decode_inline(text: str, *, path: str = "") -> bytes:
    """Return the bytes of an `inline` field.

    Raises
    ------
    CorruptDataError
        If the text is no base64.

    Examples
    --------
    >>> decode_inline("YWJj")
    b'abc'
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CorruptDataError(path, f"an inline field is no base64: {error}") from error


def _check_place(path: str | None, inline: str | None) -> None:
    if (path is None) == (inline is None):
        raise ValueError("exactly one of path and inline must be given")
    if path is not None:
        check_relative_path(path)


def _check_key_groups(key_groups: tuple[int, int]) -> None:
    if key_groups[0] > key_groups[1]:
        raise ValueError(f"key groups {key_groups[0]} to {key_groups[1]} are empty")


def check_json(where: str, value: object) -> None:
    """Refuse what the JSON encoder would quietly change: NaN to null, dates and bytes to text."""
    if value is None or isinstance(value, (str, bool)):
        return
    if isinstance(value, int) and INT64_MIN <= value < 1 << 64:
        return
    if isinstance(value, float) and math.isfinite(value):
        return
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            check_json(f"{where}[{index}]", item)
        return
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise InvalidInputError(f"{where} must have text as names, got {name!r}")
            check_json(f"{where}.{name}", item)
        return
    raise InvalidInputError(
        f"{where} must be null, a boolean, a text, a 64-bit integer, a finite number, a list or an object, "
        f"got {value!r} ({type(value).__name__})"
    )
