"""`arrowstate compact`: what it prints, and that only --apply changes anything."""

import json

import pyarrow as pa
import pytest

import arrowstate
from stores import TOTAL, files, run


@pytest.fixture
def folder(tmp_path):
    """A store in which four rows of ten are dead."""
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=128)
    backend.state(TOTAL).add_batch(range(5000), [1] * 5000)
    with store.writer() as writer:
        writer.checkpoint({"op": [backend]})
        backend.state(TOTAL).clear_batch(range(2000))
        writer.checkpoint({"op": [backend]}, properties={"offset": 42})
    return tmp_path / "store"


@pytest.mark.parametrize("mode", [[], ["--plan"]])
def test_a_plan_says_what_would_be_merged_and_changes_nothing(folder, capsys, mode):
    before = files(folder)

    code, out, _ = run(capsys, "compact", folder, *mode, "--max-amplification", "1.3")

    assert code == 0
    assert files(folder) == before
    assert "1 files (1 small), " in out
    assert "1.7" in out
    assert "op.total" in out
    assert "nothing was changed" in out


def test_an_application_commits_a_checkpoint_with_the_same_content(folder, capsys):
    code, out, _ = run(capsys, "compact", folder, "--apply", "--max-amplification", "1.3")

    assert code == 0
    assert "checkpoint 2 was compacted and takes 1 files" in out
    latest = arrowstate.open_store(folder).latest()
    assert (latest.entry.kind, latest.properties) == ("compaction", {"offset": 42})
    assert latest.to_arrow("op.total").num_rows == 3000


def test_within_the_limits_nothing_is_done(folder, capsys):
    before = files(folder)

    code, out, _ = run(capsys, "compact", folder, "--apply")

    assert code == 0
    assert "within the limits" in out
    assert files(folder) == before


def test_as_json_it_is_the_plan_and_what_became_of_it(folder, capsys):
    code, out, _ = run(capsys, "compact", folder, "--apply", "--json", "--max-amplification", "1.3")

    found = json.loads(out)
    assert code == 0
    assert found["merges"] == [{"state": "op.total", "subtask": 0, "runs": 1, "rows": 3000}]
    assert found["applied"]
    assert found["checkpoint_id"] == arrowstate.open_store(folder).latest().checkpoint_id == 2
    assert found["storage"]["space_amplification"] > 1.6 > 1.1 > found["storage_after"]["space_amplification"]
    assert found["bytes_read"] > found["bytes_written"] > 0


def test_a_limit_that_cannot_be_is_an_error(folder, capsys):
    code, _, err = run(capsys, "compact", folder, "--max-amplification", "0.5")

    assert code == 1
    assert "max_space_amplification must be above 1" in err


def test_show_says_what_a_checkpoint_takes(folder, capsys):
    code, out, _ = run(capsys, "show", folder)

    assert code == 0
    assert "storage     1 files (1 small)" in out
    assert "times the live rows" in out
