"""What a notebook shows of stores, checkpoints, differences, plans and verifications: none of their text is markup."""

from xml.etree import ElementTree

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.cli import main

KIND = pa.struct([("<script>", pa.int64())])
TAGS = {"all", "table", "caption", "thead", "tbody", "tr", "th", "td"}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = arrowstate.open_store(tmp_path_factory.mktemp("notebooks") / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=4)
    state = backend.state(arrowstate.ValueStateDescriptor("v", KIND))
    with store.writer() as writer:
        for number in range(3):
            state.update_batch(range(6000), [{"<script>": number}] * 6000)
            writer.checkpoint({"op": [backend]})
    return store


def texts(shown):
    """All texts of one or more tables, which must be well-formed."""
    root = ElementTree.fromstring(f"<all>{shown._repr_html_()}</all>")
    assert {element.tag for element in root.iter()} <= TAGS
    return [element.text for element in root.iter() if element.text]


def test_a_store_shows_its_newest_checkpoints(store):
    found = texts(store)

    assert f"{store.url}: the newest 3 checkpoints" in found
    assert [text for text in found if text in "123"] == ["3", "2", "1"]
    assert "no checkpoint yet" in texts(arrowstate.open_store("memory://notebooks", create=True))[0]


def test_a_checkpoint_and_a_difference_show_their_states(store):
    assert {"op.v", "value", str(KIND), "6000"} <= set(texts(store.latest()))
    assert {"op.v", "from checkpoint 1 to 3", "6000"} <= set(texts(store.diff(1)))


def test_plans_show_what_they_would_do(store):
    collection = store.collect(arrowstate.RetentionPolicy(count=1))
    compaction = store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.01, min_bytes=0))

    assert {item.path for item in collection.plan.deletions} <= set(texts(collection))
    assert "merges of checkpoint 3" in texts(compaction)[0]


def test_verifications_show_their_problems(store):
    assert "0 problems" in texts(store.latest().verify())[0]
    found = texts(store.verify())
    assert ("4 log entries: 0 problems" in found, "what is wrong" in found) == (True, True)


def test_a_clock_that_tells_no_date_hides_nothing(tmp_path, capsys):
    made = arrowstate.open_store(tmp_path / "store", create=True)
    # As of `time.time_ns`, taken for milliseconds.
    store = arrowstate.StateStore(made.storage, made.store_id, clock_ms=lambda: 1_800_000_000 * 10**9)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=4)
    with store.writer() as writer:
        for _ in range(3):
            writer.checkpoint({"op": [backend]})

    last = f"{(1 << 53) - 1} ms"
    assert texts(store).count(last) == 3
    with pytest.raises(arrowstate.NotFoundError, match=f"the oldest, 1, was committed at {last}"):
        store.snapshot("2026-01-01")
    assert main(["list", str(tmp_path / "store")]) == 0
    assert capsys.readouterr().out.count(last) == 3
    kept = store.collect(arrowstate.RetentionPolicy(count=1, hours=2)).plan.kept
    assert "the newest entry" in kept[-1].reasons
