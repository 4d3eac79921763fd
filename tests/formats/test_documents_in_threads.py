"""The first documents of a process may be read and written by several threads at once."""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from arrowstate_formats.documents import (
    BoundaryDocument,
    DeletionVectorDocument,
    DirectoryDocument,
    Document,
    JobDocument,
    LeaseDocument,
    LogEntryDocument,
    ManifestDocument,
    OperatorPartDocument,
    OperatorPartsDocument,
    StoreDocument,
    SubtasksDocument,
    SubtaskStatisticsDocument,
    TagDocument,
    decode,
    encode,
)
from arrowstate_formats.schema_documents import SchemaDocument
from long_form import short_or_long

FORMATS = Path(__file__).parents[2] / "formats"
KINDS: dict[str, type[Document]] = {
    "store": StoreDocument,
    "log-entry": LogEntryDocument,
    "manifest": ManifestDocument,
    "subtasks": SubtasksDocument,
    "tag": TagDocument,
    "lease": LeaseDocument,
    "job": JobDocument,
}

# Each round is a process that has imported everything and has read nothing: a fork costs far less than a start.
CHILD = """
import os, pickle, sys, threading
from arrowstate_formats.documents import decode, encode
from arrowstate_formats.manifest_text import RunsOfState, decode_manifest
documents, rounds = pickle.load(sys.stdin.buffer)
sys.setswitchinterval(1e-6)

def one_round():
    start, failures = threading.Barrier(8), []

    def use(first):
        start.wait()
        try:
            for document, data in documents[first:] + documents[:first]:
                if first % 2:
                    assert encode(document) == data
                assert decode(data, type(document)) == document
                if "Manifest" in type(document).__name__ and hasattr(document, "operator"):
                    assert decode_manifest(data) == document
                    RunsOfState(document.states[0].name).decode(data)
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=use, args=(number * len(documents) // 8,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return failures

for number in range(rounds):
    child = os.fork()
    if not child:
        failures = one_round()
        sys.stderr.write("".join(failures[:1]))
        sys.stderr.flush()
        os._exit(bool(failures))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        sys.exit(f"round {number} ended with {code}; -11 is SIGSEGV")
"""


def kinds_of(kind: type[Document]) -> Iterator[type[Document]]:
    """Yield the kinds of documents that are written: those that no other is made from."""
    heirs = kind.__subclasses__()
    if not heirs:
        yield kind
    for heir in heirs:
        yield from kinds_of(heir)


def parts_of(value: Any) -> Iterator[Document]:
    """Yield a document and the documents in it."""
    if isinstance(value, Document):
        yield value
        for field in msgspec.structs.fields(value):
            yield from parts_of(getattr(value, field.name))
    elif isinstance(value, list):
        for item in value:
            yield from parts_of(item)


def one_of_each_kind() -> list[Document]:
    vectors = json.loads((FORMATS / "vectors/documents.json").read_text())["taken"]
    whole = [decode((FORMATS / "vectors" / case["file"]).read_bytes(), KINDS[case["kind"]]) for case in vectors]
    whole += [decode(path.read_bytes(), LogEntryDocument) for path in FORMATS.glob("golden/**/log/*.json")]
    part = OperatorPartDocument(rows=2, inline="YWJj", bytes=3, xxh3_128="0" * 32)
    whole += [
        OperatorPartsDocument(operator="feed", state="offsets", first=0, parts=[part]),
        BoundaryDocument(
            boundary=2, swept=3, collection_id="9e8d", written_at_ms=5, condemned=["log/1.json"], waiting={"a": 4}
        ),
        SubtaskStatisticsDocument(operator="feed", subtask=3, bytes_written=1, bytes_total=2, files_written=1),
        DeletionVectorDocument(inline="YWJj", bytes=3, dead_rows=1, xxh3_128="0" * 32),
        DirectoryDocument(path="data/counter/clicks/7b3e.directory", bytes=700, xxh3_128="0" * 32),
        SchemaDocument(version=1, value_type="int64", key=[], columns=[]),
    ]
    found = {type(document): document for each in whole for document in parts_of(each)}
    assert set(found) == {kind for kind in kinds_of(Document) if kind.__module__.startswith("arrowstate_formats")}
    return list(found.values())


@pytest.mark.parametrize("first", ["whole documents", "parts"])
def test_eight_threads_read_and_write_the_first_documents_of_a_process(first: str) -> None:
    documents = [(document, encode(document)) for document in one_of_each_kind()]
    if first == "parts":
        documents.reverse()
    given = pickle.dumps((documents, short_or_long(2, 50)))

    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", CHILD], input=given, capture_output=True, check=False
    )

    assert (done.returncode, done.stderr.decode()) == (0, "")
