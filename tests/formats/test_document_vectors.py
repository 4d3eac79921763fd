"""The vectors of documents, checksums and the redistribution of operator state, as others would use them."""

import json
import runpy
from pathlib import Path
from typing import Any

import independent_reader
import pyarrow as pa
import pytest

import arrowstate
from arrowstate_formats import CorruptDataError, FormatVersionError
from arrowstate_formats.document_text import _own_checksum
from arrowstate_formats.documents import (
    Document,
    JobDocument,
    LeaseDocument,
    LogEntryDocument,
    ManifestDocument,
    StoreDocument,
    SubtasksDocument,
    TagDocument,
    decode,
    encode,
)
from arrowstate_formats.run_files import checksum
from stores import commit

VECTORS = Path(__file__).parents[2] / "formats/vectors"
KINDS: dict[str, type[Document]] = {
    "store": StoreDocument,
    "log-entry": LogEntryDocument,
    "manifest": ManifestDocument,
    "subtasks": SubtasksDocument,
    "tag": TagDocument,
    "lease": LeaseDocument,
    "job": JobDocument,
}


def vectors(name: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads((VECTORS / f"{name}.json").read_text())
    return found


DOCUMENTS = vectors("documents")


@pytest.mark.parametrize("case", DOCUMENTS["taken"], ids=lambda case: case["file"])
def test_a_document_is_taken_and_comes_back(case: dict[str, str]) -> None:
    kind = KINDS[case["kind"]]

    found = decode((VECTORS / case["file"]).read_bytes(), kind)

    assert decode(encode(found), kind) == found


@pytest.mark.parametrize("case", DOCUMENTS["refused"], ids=lambda case: case["file"])
def test_a_document_is_refused(case: dict[str, str]) -> None:
    with pytest.raises((CorruptDataError, FormatVersionError)):
        decode((VECTORS / case["file"]).read_bytes(), KINDS[case["kind"]], path=case["file"])


def test_each_file_of_documents_is_listed_once() -> None:
    listed = [case["file"] for cases in DOCUMENTS.values() for case in cases]

    assert sorted(listed) == sorted(f"documents/{path.name}" for path in (VECTORS / "documents").iterdir())


def test_checksums_are_those_of_the_vectors() -> None:
    found = vectors("checksums")

    for case in found["cases"]:
        data = bytes(number * 7 % 251 for number in range(case["length"]))
        assert checksum(data) == independent_reader.checksum(data) == case["xxh3_128"]
    for case in found["documents"]:
        data = case["text"].encode()
        start, end = _own_checksum(data)
        assert data[start:end].decode() == case["document_xxh3_128"]
        assert checksum(data[:start] + b"0" * 32 + data[end:]) == case["document_xxh3_128"]


@pytest.mark.parametrize("case", vectors("redistribution")["cases"], ids=lambda case: f"{case['parts']}")
def test_operator_state_is_shared_out_as_in_the_vectors(case: dict[str, Any]) -> None:
    store = arrowstate.open_store(f"memory://redistribution-{case['parts']}-{case['parallelism']}", create=True)
    backends = []
    for subtask in range(len(case["parts"][0])):
        backend = arrowstate.OperatorStateBackend()
        for number, parts in enumerate(case["parts"]):
            first = sum(parts[:subtask])
            state = backend.state(arrowstate.OperatorListStateDescriptor(f"s{number}", pa.int64()))
            state.add_all(list(range(first, first + parts[subtask])))
        backends.append(backend)
    snapshot = commit(store, {}, operator_states={"source": backends})

    count = case["parallelism"]
    restored = [snapshot.restore_operator_state("source", parallelism=count, subtask=item) for item in range(count)]

    for number, expected in enumerate(case["elements"]):
        descriptor = arrowstate.OperatorListStateDescriptor(f"s{number}", pa.int64())
        assert [list(backend.state(descriptor).get()) for backend in restored] == expected


@pytest.mark.parametrize("name", ["checksums", "documents", "redistribution"])
def test_the_committed_vectors_are_the_generated_ones(name: str, tmp_path: Path) -> None:
    script = tmp_path / f"make_{name}.py"
    script.write_text((VECTORS / f"make_{name}.py").read_text())

    runpy.run_path(str(script), run_name="__main__")

    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert made
    assert made == {path: (VECTORS / path).read_bytes() for path in made}
