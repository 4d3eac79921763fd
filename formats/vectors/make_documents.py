"""Write documents.json and documents/: documents that a reader takes, and others that it must refuse, and why.

Run from the root of the repository: `python formats/vectors/make_documents.py`. What is good is written down here, and
each refused one is the good one with one thing changed; checksums are right unless they are what is wrong.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

FOLDER = Path(__file__).with_name("documents")
SUM = "0123456789abcdef" * 2
ZEROS = "0" * 32
Json = dict[str, Any]

HEAD: Json = {"format_version": 1, "features": [], "extensions": {}}
PINNED: Json = {"format_version": 1, "document_xxh3_128": ZEROS, "features": [], "extensions": {}}
FIELD: Json = {"name": "clicks", "type": "int64", "nullable": True, "default": None, "fields": []}
BATCH: Json = {"offset": 240, "bytes": 512, "rows": 3, "xxh3_128": SUM, "min_hash": "-9223372036854775808"}
BATCH |= {"max_hash": "9223372036854775807", "min_time": None, "max_time": None, "max_seq": None}
RUN: Json = {
    "id": "7b3e",
    "format": "arrow",
    "path": "data/counter/clicks/7b3e.arrow",
    "inline": None,
    "bytes": 1400,
    "rows": 3,
    "first_row": 0,
    "last_row": 3,
    "live_rows": 3,
    "xxh3_128": SUM,
    "frame_xxh3_128": SUM,
    "batches": [BATCH],
    "statistics": [{"column": "clicks", "null_count": 0, "min": "-1", "max": "7", "has_nan": None}],
    "schema_version": 1,
    "deletion_vector": None,
    "directory": None,
}
SUBTASK: Json = {
    "subtask": 0,
    "key_groups": [0, 127],
    "manifest": {"path": None, "inline": [{"name": "clicks", "runs": [RUN]}], "bytes": 700, "xxh3_128": None},
    "live_rows": {"clicks": 3},
    "watermark": "9223372036854775807",
    "schema_versions": {"clicks": [1]},
}
STATE: Json = {
    "name": "clicks",
    "kind": "reducing",
    "value_type": "int64",
    "columns": [{"id": 2, **FIELD}],
    "reduce": "sum",
    "schema_version": 1,
    "namespace": [],
    "user_key": None,
    "time_to_live": None,
    "clock": None,
    "aggregate": None,
    "reduce_callable": None,
    "earlier_schemas": [],
    "last_field_id": 0,
}
OPERATOR: Json = {
    "uid": "counter",
    "key": [{"id": 1, **FIELD, "name": "user", "type": "string", "nullable": False}],
    "max_parallelism": 128,
    "states": [STATE],
    "subtasks": [SUBTASK],
    "operator_states": [],
    "subtask_files": [],
}
ENTRY: Json = {
    **PINNED,
    "number": 2,
    "parent": {"number": 1, "xxh3_128": SUM},
    "commit_id": "5d8a",
    "writer_epoch": 1,
    "kind": "checkpoint",
    "checkpoint_id": 1,
    "started_at_ms": 1,
    "committed_at_ms": 2,
    "watermark": "-5",
    "properties": {"offset": 42},
    "operators": [OPERATOR],
    "content": None,
    "last_checkpoint_id": None,
    "statistics": [],
}
FIRST_FENCE: Json = {
    **ENTRY,
    "number": 1,
    "parent": None,
    "kind": "fence",
    "checkpoint_id": None,
    "operators": [],
    "last_checkpoint_id": 0,
}
FENCE: Json = {**FIRST_FENCE, "number": 3, "parent": {"number": 2, "xxh3_128": SUM}}
FENCE |= {"content": FENCE["parent"], "last_checkpoint_id": 1}
STORE: Json = {**PINNED, "format": "arrowstate", "store_id": "3f0c", "created_at_ms": 1700000000000}
STORE["key_hash"] = {"name": "spark-xxhash64", "seed": 42}
MANIFEST: Json = {**HEAD, "operator": "counter", "key_groups": [0, 127], "states": SUBTASK["manifest"]["inline"]}
SUBTASKS: Json = {**HEAD, "operator": "counter", "first": 0, "subtasks": [SUBTASK]}
TAG: Json = {
    **PINNED,
    "name": "gold",
    "tag_id": "5a1c",
    "checkpoint_id": 1,
    "entry": FENCE["parent"],
    "created_at_ms": 5,
}
LEASE: Json = {
    **PINNED,
    "lease_id": "7c3e",
    "checkpoint_id": 1,
    "entry": FENCE["parent"],
    "expires_at_ms": 5,
    "holder": "",
}
JOB: Json = {
    **PINNED,
    "writer_epoch": 3,
    "holder": "",
    "lease_ms": 10000,
    "renewal": 7,
    "state": "running",
    "written_at_ms": 5,
    "report": {"attempt": 2, "of": [{"any": [1.5, None]}]},
}
FOLLOWING: Json = {**LEASE, "features": ["lease.later"]}
GOOD: dict[str, tuple[str, Json]] = {
    "store": ("store", STORE),
    "entry": ("log-entry", ENTRY),
    "fence": ("log-entry", FENCE),
    "first-fence": ("log-entry", FIRST_FENCE),
    "manifest": ("manifest", MANIFEST),
    "subtasks": ("subtasks", SUBTASKS),
    "tag": ("tag", TAG),
    "lease": ("lease", LEASE),
    "lease-of-later": ("lease", FOLLOWING),
    "job": ("job", JOB),
}


def put(*path: str | int, to: Any) -> Callable[[Json], None]:
    """Return what sets a member, wherever it is."""

    def change(document: Any) -> None:
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = to

    return change


def drop(name: str) -> Callable[[Json], None]:
    return lambda document: document.pop(name)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


RUN_OF = ("operators", 0, "subtasks", 0, "manifest", "inline", 0, "runs", 0)
STATE_OF = ("operators", 0, "states", 0)

REFUSED: dict[str, tuple[str, Callable[[Json], object], str]] = {
    "newer-version": ("entry", put("format_version", to=3), "format_version 3 is not known"),
    "version-text": ("entry", put("format_version", to="1"), "format_version is a number"),
    "unknown-feature": ("entry", put("features", to=["encrypted-runs"]), "the feature encrypted-runs is not known"),
    "feature-of-another-kind": (
        "tag",
        put("features", to=["lease.later"]),
        "the feature lease.later is known in leases only",
    ),
    "ill-formed-feature": ("entry", put("features", to=["Encrypted"]), "the name of a feature"),
    "unknown-member": ("entry", put("since", to=3), "the member since is not known"),
    "unknown-member-inside": ("entry", put(*RUN_OF, "priority", to=1), "the member priority of a run is not known"),
    "missing-member": ("entry", drop("commit_id"), "commit_id has no default"),
    "missing-checksum": ("entry", drop("document_xxh3_128"), "document_xxh3_128 has no default"),
    "integer-with-fraction": ("entry", put("number", to=2.0), "an integer has no fraction"),
    "integer-as-text": ("entry", put("number", to="2"), "number is a number"),
    "integer-as-boolean": ("entry", put("writer_epoch", to=True), "an integer is no boolean"),
    "integer-beyond-double": ("entry", put("committed_at_ms", to=1 << 53), "above 2^53 - 1"),
    "watermark-as-number": ("entry", put("watermark", to=5), "an integer of 64 bits is a text"),
    "watermark-beyond-64-bits": ("entry", put("watermark", to="9223372036854775808"), "above 2^63 - 1"),
    "watermark-with-plus": ("entry", put("watermark", to="+5"), "not decimal digits"),
    "watermark-with-zeros": ("entry", put("watermark", to="05"), "not decimal digits"),
    "hash-as-number": ("entry", put(*RUN_OF, "batches", 0, "min_hash", to=7), "an integer of 64 bits is a text"),
    "hashes-out-of-order": ("entry", put(*RUN_OF, "batches", 0, "max_hash", to="-9223372036854775809"), "below -2^63"),
    "bound-as-integer-list": ("entry", put(*RUN_OF, "statistics", 0, "min", to=[1]), "a bound is no list"),
    "both-path-and-inline": ("entry", put(*RUN_OF, "inline", to="YQ=="), "a run has a path or is inline"),
    "absolute-path": ("entry", put(*RUN_OF, "path", to="/etc/passwd"), "a path is relative"),
    "path-upwards": ("entry", put(*RUN_OF, "path", to="data/../x"), "a path has no .."),
    "rows-do-not-add-up": ("entry", put(*RUN_OF, "rows", to=4), "the batches have 3 rows"),
    "fence-with-operators": ("fence", put("operators", to=[OPERATOR]), "a fence repeats nothing"),
    "checkpoint-with-content": ("entry", put("content", to=ENTRY["parent"]), "only a fence names another entry"),
    "checkpoint-of-id-0": ("entry", put("checkpoint_id", to=0), "the first checkpoint of a store is 1"),
    "fence-with-id": ("fence", put("checkpoint_id", to=2), "a fence is no checkpoint"),
    "parent-of-another-number": ("entry", put("parent", "number", to=0), "the parent is the entry before"),
    "earlier-versions-out-of-order": (
        "entry",
        put(*STATE_OF, "earlier_schemas", to=[{"version": 1, "value_type": "int32", "key": [], "columns": []}]),
        "version 1 is not before version 1",
    ),
    "subtasks-and-lists": (
        "entry",
        put(
            "operators",
            0,
            "subtask_files",
            to=[
                {"path": "manifests/a.json", "bytes": 1, "xxh3_128": SUM, "first": 0, "count": 1, "key_groups": [0, 1]}
                | {"live_rows": {}, "schema_versions": None}
            ],
        ),
        "an operator has subtasks or lists of them",
    ),
    "field-id-of-others": (
        "entry",
        put("operators", 0, "key", 0, "id", to=2_147_480_000),
        "ids from 2147480000 on are those of hidden columns and of Apache Iceberg",
    ),
    "gap-in-list": ("subtasks", put("first", to=1), "the first subtask is number 0"),
    "too-deep": ("entry", put("properties", to={"x": nested(70)}), "properties are nested more than 64 levels deep"),
    "ill-formed-name": ("tag", put("name", to="../gold"), "the name of a tag"),
    "another-key-hash": ("store", put("key_hash", "seed", to=7), "the seed is 42"),
}
"""By name the good document, what is changed, and why the result is refused."""


def sealed(text: str) -> bytes:
    """Return the bytes of a document with its own checksum, where it has one."""
    data = text.encode()
    if b'"document_xxh3_128"' not in data:
        return data
    return data.replace(ZEROS.encode(), xxhash.xxh3_128_hexdigest(data).encode(), 1)


def main() -> None:
    """Write the files."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    index: dict[str, list[Json]] = {"taken": [], "refused": []}

    def write(name: str, kind: str, data: bytes, reason: str | None = None) -> None:
        (FOLDER / f"{name}.json").write_bytes(data)
        index["taken" if reason is None else "refused"].append(
            {"file": f"documents/{name}.json", "kind": kind} | ({} if reason is None else {"reason": reason})
        )

    for name, (kind, good) in GOOD.items():
        write(f"good-{name}", kind, sealed(json.dumps(good, indent=1) + "\n"))
    compact = json.dumps(ENTRY | {"extensions": {"x.y": [1.5, None]}}, separators=(",", ":"))
    write("good-extensions", "log-entry", sealed(compact))
    shuffled = {"document_xxh3_128": ZEROS, **dict(reversed(ENTRY.items()))}
    write("good-other-order", "log-entry", sealed(json.dumps(shuffled)))
    for name, (base, change, reason) in REFUSED.items():
        kind, good = GOOD[base]
        document = copy.deepcopy(good)
        change(document)
        write(name, kind, sealed(json.dumps(document, indent=1) + "\n"), reason)
    text = json.dumps(ENTRY, indent=1)
    twice = text.replace('"commit_id": "5d8a",', '"commit_id": "5d8a",\n "commit_id": "5d8b",')
    write("member-twice", "log-entry", sealed(twice), "commit_id occurs twice")
    inside = text.replace('"subtask": 0,', '"subtask": 0, "subtask": 0,')
    write("member-twice-inside", "log-entry", sealed(inside), "subtask occurs twice in one object")
    free = text.replace('"offset": 42', '"offset": 42, "offset": 43')
    write("member-twice-in-properties", "log-entry", sealed(free), "offset occurs twice in one object")
    write("byte-order-mark", "log-entry", b"\xef\xbb\xbf" + sealed(text), "a byte order mark")
    write("no-utf-8", "log-entry", sealed(text).replace(b"5d8a", b"5d\xff\xfe"), "bytes that are no UTF-8")
    write("truncated", "log-entry", sealed(text)[:-20], "the text ends in the middle")
    wrong = re.sub(rb'"number": 2,', b'"number": 2 ,', sealed(text), count=1)
    write("wrong-checksum", "log-entry", wrong, "the bytes are not those of document_xxh3_128")
    upper = re.sub(rb'(?<="document_xxh3_128": ")[0-9a-f]{32}', lambda m: m[0].upper(), sealed(text))
    write("checksum-in-capitals", "log-entry", upper, "a checksum has lower-case digits")
    Path(__file__).with_name("documents.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
