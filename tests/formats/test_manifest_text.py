"""Manifests whose lists of batches were decoded before: as strict as any other, and the same documents."""

import tracemalloc
from typing import Any

import pytest
from msgspec.structs import replace

from arrowstate_formats import manifest_text
from arrowstate_formats.document_base import Int64
from arrowstate_formats.documents import decode, encode
from arrowstate_formats.errors import ArrowStateError, CorruptDataError
from arrowstate_formats.kept_texts import KeptTexts
from arrowstate_formats.manifest_text import RunsOfState, decode_manifest
from arrowstate_formats.run_documents import BatchDocument, ManifestDocument, RunDocument, StateRunsDocument


def manifest(batches: int, **changes: Any) -> ManifestDocument:
    documents = [
        BatchDocument(
            offset=8 + 64 * n, bytes=64, rows=10, xxh3_128=f"{n:032x}", min_hash=Int64(n * 9), max_hash=Int64(n * 9 + 8)
        )
        for n in range(batches)
    ]
    given: dict[str, Any] = {
        "id": "a",
        "format": "arrow",
        "path": "data/op/s/a.arrow",
        "bytes": 64 * batches + 8,
        "rows": 10 * batches,
        "first_row": 0,
        "last_row": 10 * batches,
        "live_rows": min(3, 10 * batches),
        "xxh3_128": "0" * 32,
        "frame_xxh3_128": "1" * 32,
        "batches": documents,
        "statistics": [],
    }
    run = RunDocument(**(given | changes))
    return ManifestDocument(operator="op", key_groups=(0, 127), states=[StateRunsDocument(name="s", runs=[run, run])])


@pytest.mark.parametrize("batches", [0, 1, 40, 200, 400])
def test_it_is_the_document_that_decode_returns_at_any_time(batches: int) -> None:
    data = encode(manifest(batches))

    first, again = decode_manifest(data), decode_manifest(data)

    assert first == again == decode(data, ManifestDocument) == manifest(batches)
    assert encode(again) == data


def test_a_list_that_was_there_before_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(manifest(300))
    first = decode_manifest(data)
    monkeypatch.setattr(manifest_text, "decode", None)

    other = decode_manifest(data.replace(b'"live_rows":3', b'"live_rows":2'))

    assert other.states[0].runs[0].live_rows == 2
    assert other.states[0].runs[0].batches is first.states[0].runs[0].batches


def outcome(read: Any, data: bytes) -> Any:
    try:
        return read(data)
    except ArrowStateError as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"rows":10,', b'"rows":11,'),
        (b'"rows":10,', b'"rows":10,"rows":10,'),
        (b'"rows":10,', b'"rows":10, '),
        (b'"rows":10,', b'"rows":10,"more":1,'),
        (b'"min_hash":"0"', b'"min_hash":0'),
        (b'"min_hash":"0"', b'"min_hash":"9"'),
        (b'"min_hash":"0"', b'"min_hash":"00"'),
        (b'"offset":72', b'"offset":71'),
        (b'"live_rows":3', b'"live_rows":99999'),
        (b'"live_rows":3', b'"live_rows":3,"live_rows":3'),
        (b'"name":"s"', b'"name":"s","name":"s"'),
        (b'"features":[]', b'"features":["new"]'),
        (b'"format_version":1', b'"format_version":3'),
        (b'"operator":"op"', b'"operator":"'),
        (b'"path":"data', b'"path":"../data'),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_what_decode_refuses_or_takes_it_refuses_or_takes_too(
    monkeypatch: pytest.MonkeyPatch, before: bytes, after: bytes, known: bool
) -> None:
    monkeypatch.setattr(manifest_text, "_KEPT", KeptTexts(1 << 20))
    data = encode(manifest(300))
    assert before in data
    if known:
        decode_manifest(data)
    changed = data.replace(before, after)

    assert outcome(decode_manifest, changed) == outcome(lambda text: decode(text, ManifestDocument), changed)


@pytest.mark.parametrize("batches", [1, 20, 300])
def test_no_more_memory_is_kept_than_is_said(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    most = 1 << 20
    monkeypatch.setattr(manifest_text, "_KEPT", KeptTexts(most))
    data, last = encode(manifest(batches)), b'"%d"'
    decode_manifest(data)
    tracemalloc.start()
    try:
        before, held = tracemalloc.get_traced_memory()[0], []
        # Lists that differ in their last hash, of more text than there is room for.
        for number in range(2 * most // (200 * batches)):
            decode_manifest(data.replace(last % (9 * batches - 1), last % (1 << 40 | number)))
            held.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()

    assert most / 2 < max(held) < most * 1.2


def test_what_is_no_text_of_a_manifest_is_corrupt() -> None:
    for data in (b"", b"\xff", b"[]", b"{", b"{" * 100_000):
        with pytest.raises(CorruptDataError):
            decode_manifest(data, path="m")
        with pytest.raises(CorruptDataError):
            RunsOfState("s").decode(data, path="m")


@pytest.mark.parametrize("batches", [1, 300])
def test_the_runs_of_one_state_are_those_of_the_whole_manifest(batches: int) -> None:
    reader, chosen = RunsOfState("t"), RunsOfState("t", lambda run: run == "b")
    for live_rows in (3, 3, 2):
        (state,) = manifest(batches, live_rows=live_rows).states
        other = StateRunsDocument(name="t", runs=[state.runs[0], replace(state.runs[0], id="b")])
        data = encode(replace(manifest(batches), states=[state, other]))

        assert reader.decode(data).states == [other]
        assert [run.id for run in chosen.decode(data).states[0].runs] == ["b"]
    assert reader.decode(encode(manifest(batches))).states == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"live_rows":3', b'"live_rows":99999'),
        (b'"offset":72', b'"offset":71'),
        (b'"path":"data', b'"path":"../data'),
        (b'"format_version":1', b'"format_version":3'),
        (b'"features":[]', b'"features":["new"]'),
    ],
)
def test_the_runs_of_one_state_are_refused_as_the_whole_manifest_is(before: bytes, after: bytes) -> None:
    changed = encode(manifest(300)).replace(before, after)

    assert outcome(RunsOfState("s").decode, changed) == outcome(decode_manifest, changed)
