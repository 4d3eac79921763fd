"""Documents: stable text, strict reading, and newer versions told apart from damage."""

import datetime
import json
import runpy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from arrowstate_formats import CorruptDataError, FormatVersionError, InvalidInputError
from arrowstate_formats.document_base import Int64
from arrowstate_formats.documents import (
    FORMAT_VERSION,
    BatchDocument,
    BoundaryDocument,
    ColumnStatistics,
    DeletionVectorDocument,
    DirectoryDocument,
    Document,
    JobDocument,
    LeaseDocument,
    LogEntryDocument,
    ManifestDocument,
    ManifestHandle,
    OperatorDocument,
    OperatorPartDocument,
    OperatorStateDocument,
    ParentDocument,
    RunDocument,
    StateRunsDocument,
    StoreDocument,
    SubtaskDocument,
    TagDocument,
    decode,
    decode_inline,
    encode,
    encode_inline,
)
from arrowstate_formats.schema_documents import FieldDocument, StateDocument
from early_versions import is_before

SUM = "0123456789abcdef" * 2

BATCHES = [
    BatchDocument(offset=240, bytes=512, rows=3, xxh3_128=SUM, min_hash=Int64(-(2**63)), max_hash=Int64(-1)),
    BatchDocument(offset=752, bytes=256, rows=2, xxh3_128=SUM, min_hash=Int64(0), max_hash=Int64(2**63 - 1)),
]
RUN = RunDocument(
    id="7b3e",
    format="arrow",
    path="data/counter/clicks/7b3e.arrow",
    bytes=1400,
    rows=5,
    first_row=1,
    last_row=5,
    live_rows=3,
    xxh3_128=SUM,
    frame_xxh3_128=SUM,
    batches=BATCHES,
    statistics=[
        ColumnStatistics(column="user", null_count=0, min="a", max="z"),
        ColumnStatistics(column="clicks", null_count=1, min=-1.5, max=7.0),
        ColumnStatistics(column="seen", null_count=5),
    ],
    deletion_vector=DeletionVectorDocument(inline="YWJj", bytes=3, dead_rows=1, xxh3_128=SUM),
    directory=DirectoryDocument(path="data/counter/clicks/7b3e.directory", bytes=700, xxh3_128=SUM),
)
MANIFEST = ManifestDocument(
    operator="counter", key_groups=(0, 63), states=[StateRunsDocument(name="clicks", runs=[RUN])]
)
OFFSETS = OperatorStateDocument(
    name="offsets",
    kind="list",
    value_type="int64",
    parts=[
        OperatorPartDocument(rows=2, inline="YWJj", bytes=3, xxh3_128="0" * 32),
        OperatorPartDocument(rows=0, bytes=0, xxh3_128="0" * 32),
    ],
)
OPERATOR = OperatorDocument(
    uid="counter",
    key=[FieldDocument(id=1, name="user", type="string", nullable=False)],
    max_parallelism=128,
    states=[
        StateDocument(
            name="clicks",
            kind="reducing",
            value_type={"type": "struct", "fields": [{"name": "n", "type": "int64", "nullable": True}]},
            columns=[FieldDocument(id=2, name="n", type="int64")],
            reduce={"n": "sum"},
        )
    ],
    subtasks=[
        SubtaskDocument(
            subtask=0,
            key_groups=(0, 127),
            manifest=ManifestHandle(path="manifests/9c.json", bytes=900, xxh3_128=SUM),
            live_rows={"clicks": 3},
        )
    ],
)
ENTRY = LogEntryDocument(
    number=2,
    parent=ParentDocument(number=1, xxh3_128=SUM),
    commit_id="5d8a",
    writer_epoch=1,
    kind="checkpoint",
    checkpoint_id=1,
    started_at_ms=1,
    committed_at_ms=2,
    watermark=Int64(-5),
    properties={"offset": 42, "nested": {"b": [1.5, None, True], "a": "ä"}},
    operators=[OPERATOR],
)
STORE = StoreDocument(store_id="3f0c", created_at_ms=1_700_000_000_000)
TAG = TagDocument(
    name="gold", tag_id="5a1c", checkpoint_id=2, entry=ParentDocument(number=2, xxh3_128=SUM), created_at_ms=5
)
LEASE = LeaseDocument(
    lease_id="7c3e", checkpoint_id=2, entry=ParentDocument(number=2, xxh3_128=SUM), expires_at_ms=9, holder="ä"
)
BOUNDARY = BoundaryDocument(
    boundary=2,
    swept=3,
    collection_id="9e8d",
    written_at_ms=5,
    condemned=["log/1.json"],
    waiting={"data/a/b/c.arrow": 4},
)
JOB = JobDocument(
    writer_epoch=3, holder="ä", lease_ms=10_000, renewal=7, state="running", written_at_ms=5, report={"attempt": 2}
)
DOCUMENTS: list[Document] = [STORE, MANIFEST, ENTRY, TAG, LEASE, BOUNDARY, JOB]
VERSIONED = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: type(document).__name__)


def changed(document: Document, **values: Any) -> bytes:
    """Return the JSON of a document with top-level fields replaced or added."""
    return json.dumps({**json.loads(encode(document)), **values}).encode()


@VERSIONED
def test_a_document_comes_back_as_it_was(document: Document) -> None:
    data = encode(document)

    found = decode(data, type(document))

    assert found == document
    assert encode(found) == data


@VERSIONED
def test_a_document_is_indented_json_with_every_field_in_declared_order(document: Document) -> None:
    text = encode(document).decode()

    found = json.loads(text)

    assert list(found) == [field.name for field in msgspec.structs.fields(type(document))]
    assert text.startswith('{\n  "')
    assert text.endswith("}\n")


def test_equal_properties_in_another_order_give_the_same_bytes() -> None:
    reordered = msgspec.structs.replace(ENTRY, properties={"nested": {"a": "ä", "b": [1.5, None, True]}, "offset": 42})

    assert encode(reordered) == encode(ENTRY)


@VERSIONED
def test_a_newer_version_is_refused_before_its_shape_is_looked_at(document: Document) -> None:
    newer = changed(document, format_version=FORMAT_VERSION + 1, operators="another shape", extra=1)

    with pytest.raises(FormatVersionError) as refused:
        decode(newer, type(document), path="log/1.json")

    assert (refused.value.path, refused.value.found, refused.value.supported) == (
        "log/1.json",
        FORMAT_VERSION + 1,
        FORMAT_VERSION,
    )


@VERSIONED
@pytest.mark.parametrize("version", [0, -1, "1", None, 1.5])
def test_an_ill_formed_version_is_damage(document: Document, version: Any) -> None:
    with pytest.raises(CorruptDataError):
        decode(changed(document, format_version=version), type(document))


@VERSIONED
def test_an_unknown_field_is_refused(document: Document) -> None:
    with pytest.raises(CorruptDataError, match="unknown field `since`"):
        decode(changed(document, since=3), type(document))


def test_an_unknown_field_inside_is_refused() -> None:
    text = encode(MANIFEST).replace(b'"live_rows"', b'"priority": 1, "live_rows"')

    with pytest.raises(CorruptDataError, match="unknown field `priority`"):
        decode(text, ManifestDocument)


@VERSIONED
def test_a_missing_field_is_refused(document: Document) -> None:
    required = [field.name for field in msgspec.structs.fields(type(document)) if field.required]
    values = json.loads(encode(document))
    for name in required:
        without = json.dumps({key: value for key, value in values.items() if key != name}).encode()

        with pytest.raises(CorruptDataError, match=f"missing required field `{name}`"):
            decode(without, type(document))


@VERSIONED
def test_every_truncation_is_damage(document: Document) -> None:
    data = encode(document)

    # Only the newline at the end may be missing.
    for length in range(len(data) - 1):
        with pytest.raises(CorruptDataError):
            decode(data[:length], type(document), path="log/1.json")


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, b"{}{}", b'"\xed\xa0\x80"'])
def test_what_is_no_document_is_damage(data: bytes) -> None:
    with pytest.raises(CorruptDataError) as damage:
        decode(data, LogEntryDocument, path="log/1.json")
    assert damage.value.path == "log/1.json"


@pytest.mark.parametrize(
    ("document", "values", "message"),
    [
        (STORE, {"format": "other"}, "other"),
        (STORE, {"key_hash": {"name": "murmur", "seed": 42}}, "murmur"),
        (STORE, {"key_hash": {"name": "spark-xxhash64", "seed": 7}}, "7"),
        (MANIFEST, {"operator": "../x"}, "at `$.operator`"),
        (MANIFEST, {"key_groups": [5, 4]}, "are empty"),
        (MANIFEST, {"key_groups": [0, 32768]}, "<= 32767"),
        (MANIFEST, {"key_groups": [0]}, "length 2"),
        (RUN, {"path": "/etc/passwd"}, "at `$.path`"),
        (RUN, {"path": "../x"}, "at `$.path`"),
        (RUN, {"path": None}, "exactly one of path and inline"),
        (RUN, {"inline": "YQ=="}, "exactly one of path and inline"),
        (RUN, {"format": "orc"}, "orc"),
        (RUN, {"xxh3_128": "x"}, "[0-9a-f]"),
        (RUN, {"first_row": 6}, "outside a file of 5 rows"),
        (RUN, {"last_row": 6}, "outside a file of 5 rows"),
        (RUN, {"live_rows": 5}, "5 live rows in 4 rows"),
        (RUN, {"rows": 6}, "do not add up to 6"),
        (RUN, {"bytes": 1000}, "end at byte 1008"),
        (RUN, {"bytes": 0}, ">= 1"),
        (BATCHES[0], {"min_hash": "0"}, "is above max_hash"),
        (BATCHES[0], {"offset": -1}, ">= 0"),
        (OPERATOR, {"key": []}, "has no key"),
        (OPERATOR, {"operator_states": [msgspec.to_builtins(OFFSETS)]}, "are of [1, 2] subtasks"),
        (OFFSETS, {"key_type": "string"}, "a list state with key type string"),
        (OFFSETS, {"kind": "broadcast"}, "a broadcast state with key type None"),
        (OFFSETS, {"kind": "set"}, "set"),
        (OFFSETS, {"parts": []}, "must have either parts or files of parts"),
        (OFFSETS.parts[0], {"rows": 0}, "a part without rows has a file"),
        (OFFSETS.parts[0], {"path": "data/source/offsets/a.arrow"}, "exactly one of path and inline"),
        (OFFSETS.parts[0], {"inline": None, "path": "../a"}, "at `$.path`"),
        (OPERATOR, {"max_parallelism": 100}, "key group 127 at max parallelism 100"),
        (ENTRY, {"kind": "branch"}, "branch"),
        (ENTRY, {"number": 3}, "has parent 1"),
        (ENTRY, {"checkpoint_id": None}, "checkpoint entry with checkpoint id None"),
        (ENTRY, {"kind": "fence"}, "fence entry with checkpoint id 1"),
        (ENTRY, {"number": "2"}, "got `str`"),
        (TAG, {"name": "../gold"}, "at `$.name`"),
        (BOUNDARY, {"condemned": ["../x"]}, "at `$.condemned[0]`"),
        (BOUNDARY, {"waiting": {"/x": 1}}, "at `key` in `$.waiting`"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Document) else str(value),
)
def test_values_that_contradict_each_other_are_damage(document: Document, values: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptDataError) as damage:
        decode(changed(document, **values), type(document))

    assert message in str(damage.value)


def test_batches_out_of_order_are_damage() -> None:
    batches = json.loads(encode(RUN))["batches"]

    with pytest.raises(CorruptDataError, match="begins inside the one before it"):
        decode(changed(RUN, batches=batches[::-1]), RunDocument)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        b"bytes",
        datetime.date(2024, 1, 1),
        {1: 2},
        2**64,
        -(2**63) - 1,
        object(),
        {"a": [1, {"b": float("nan")}]},
        "\ud800",
    ],
    ids=lambda value: type(value).__name__ if type(value) is object else repr(value),
)
def test_properties_that_json_would_change_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError):
        encode(msgspec.structs.replace(ENTRY, properties={"value": value}))


def test_the_message_says_where_in_the_properties_the_value_is() -> None:
    with pytest.raises(InvalidInputError, match=r"properties\.a\[1\]\.b must be"):
        encode(msgspec.structs.replace(ENTRY, properties={"a": [1, {"b": float("nan")}]}))


HOSTILE: list[Any] = [
    *(True, 1.0, 0.5, float("nan"), float("inf"), 2**53, 2**63, 2**70, -(2**70), -1, None, "", "5", b"5", [], {}, [[]]),
    *(np.int64(5), np.float64(5), np.bool_(True), object(), datetime.date(2024, 1, 1), "\ud800", "../x", {"a": 2**70}),
]


def variants(document: Any, value: Any) -> Iterator[Any]:
    """Yield a document once for each place in it that a value can stand at, with the value there."""
    for field in msgspec.structs.fields(document):
        have = getattr(document, field.name)
        yield value
        if isinstance(have, msgspec.Struct):
            replacements: Iterable[Any] = variants(have, value)
        elif isinstance(have, list) and have and isinstance(have[0], msgspec.Struct):
            replacements = ([item, *have[1:]] for item in variants(have[0], value))
        elif isinstance(have, tuple):
            replacements = ((value, *have[1:]), (*have[:-1], value))
        elif isinstance(have, dict):
            replacements = ({**have, "clicks": value},)
        else:
            replacements = ()
        for replacement in (value, *replacements):
            # As a writer makes it: nothing is checked but what the struct checks itself.
            try:
                yield msgspec.structs.replace(document, **{field.name: replacement})
            except (ValueError, TypeError, AttributeError, LookupError):
                continue


@VERSIONED
def test_no_document_is_written_that_no_reader_takes(document: Document) -> None:
    written = 0
    for value in HOSTILE:
        for variant in variants(document, value):
            if not isinstance(variant, type(document)):
                continue
            try:
                data = encode(variant)
            except InvalidInputError:
                continue
            decode(data, type(document))
            written += 1

    assert written


def test_an_entry_that_is_read_again_is_as_it_was_whatever_a_reader_did_with_its_properties() -> None:
    data = encode(ENTRY)
    for _ in range(2):
        found = decode(data, LogEntryDocument)
        assert found == ENTRY
        found.properties["nested"]["b"].append("mine")
        found.properties["other"] = 1

    assert encode(ENTRY) == data


def test_a_text_that_is_kept_says_nothing_of_one_that_differs_in_a_byte() -> None:
    data = encode(ENTRY)
    assert decode(data, LogEntryDocument) == ENTRY

    with pytest.raises(CorruptDataError, match="does not match its checksum"):
        decode(data.replace(b'"writer_epoch": 1', b'"writer_epoch": 2'), LogEntryDocument)


def test_documents_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        ENTRY.number = 5  # type: ignore[misc]


def test_inline_bytes_come_back_and_damage_is_found() -> None:
    assert decode_inline(encode_inline(bytes(range(256)))) == bytes(range(256))
    with pytest.raises(CorruptDataError, match="no base64"):
        decode_inline("YW*j", path="log/1.json")
    with pytest.raises(CorruptDataError, match="no base64"):
        decode_inline("YWJ")


SCHEMAS = Path(__file__).parents[2] / "formats/schemas"
SCHEMA_FILES: list[tuple[str, Document]] = [
    ("store.json", STORE),
    ("manifest.json", MANIFEST),
    ("log-entry.json", ENTRY),
]
SCHEMA_FILES += [("tag.json", TAG), ("lease.json", LEASE), ("boundary.json", BOUNDARY)]


@pytest.mark.skipif(is_before("msgspec", (0, 22)), reason="an earlier msgspec writes the same schemas in another form")
@pytest.mark.parametrize("name", [name for name, _ in SCHEMA_FILES])
def test_the_committed_schema_is_the_generated_one(name: str) -> None:
    script = runpy.run_path(str(SCHEMAS / "make_schemas.py"))

    assert (SCHEMAS / name).read_text() == script["schema_text"](script["SCHEMAS"][name])


@pytest.mark.parametrize(("name", "document"), SCHEMA_FILES)
def test_a_document_is_valid_by_its_schema_and_with_an_unknown_field_it_is_not(name: str, document: Document) -> None:
    validator = jsonschema.Draft202012Validator(json.loads((SCHEMAS / name).read_text()))

    validator.validate(json.loads(encode(document)))

    with pytest.raises(jsonschema.ValidationError, match="since"):
        validator.validate(json.loads(changed(document, since=3)))


def test_the_schema_refuses_what_it_can_say() -> None:
    validator = jsonschema.Draft202012Validator(json.loads((SCHEMAS / "log-entry.json").read_text()))
    wrong = [{"kind": "branch"}, {"number": -1}, {"commit_id": ""}, {"operators": [{}]}, {"parent": {"number": 1}}]

    assert [validator.is_valid(json.loads(changed(ENTRY, **values))) for values in wrong] == [False] * len(wrong)


@pytest.mark.parametrize("document", [STORE, ENTRY], ids=["store", "log entry"])
def test_a_flipped_bit_of_a_document_that_nothing_else_pins_is_found_or_harmless(document):
    data = encode(document)

    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            try:
                read = decode(bytes(damaged), type(document))
            except (CorruptDataError, FormatVersionError):
                continue
            assert read == document


@pytest.mark.parametrize("document", [STORE, ENTRY], ids=["store", "log entry"])
def test_a_document_without_its_own_checksum_is_refused(document):
    data = json.loads(encode(document))
    del data["document_xxh3_128"]

    with pytest.raises(CorruptDataError, match="document_xxh3_128"):
        decode(json.dumps(data).encode(), type(document))


def test_a_log_entry_of_a_development_version_says_which_version_wrote_it() -> None:
    draft = changed(ENTRY, watermark=1_000)
    statistics = changed(ENTRY, statistics=[{"operator": "counter", "subtask": 0, "sync_us": 1}])
    second = changed(ENTRY, format_version=2)

    for text in (draft, statistics):
        with pytest.raises(FormatVersionError, match=r"draft of format version 1.*development versions"):
            decode(text, type(ENTRY))
    with pytest.raises(FormatVersionError, match=r"format version 2.*up to 1.*development version before 0\.1\.0"):
        decode(second, type(ENTRY))
