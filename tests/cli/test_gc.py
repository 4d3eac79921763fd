"""`arrowstate gc`: what it prints, and that only --apply changes anything."""

import json
from pathlib import Path

import pytest

import arrowstate
from stores import copied, files, ids, run, totals_from


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """Checkpoints 2 to 5, each with a file of its own, and a file that belongs to nobody."""
    store = arrowstate.open_store(tmp_path_factory.mktemp("gc") / "store", create=True)
    with store.writer() as writer:
        for start in range(4):
            writer.checkpoint({"op": [totals_from(start)]})
    (Path(store.url) / "data/op/total/orphan.arrow").write_bytes(b"x")
    return Path(store.url)


@pytest.fixture
def folder(pristine, tmp_path):
    return copied(pristine, tmp_path / "store")


@pytest.mark.parametrize("mode", [[], ["--plan"]])
def test_a_plan_says_what_would_go_and_changes_nothing(folder, capsys, mode):
    before = files(folder)

    code, out, _ = run(capsys, "gc", folder, *mode, "--count", 2)

    assert code == 0
    assert files(folder) == before
    assert "one of the newest 2" in out
    assert "checkpoints dropped   1, 2" in out
    assert "files to delete       5 (2 of kind data, 3 of kind log entry)" in out
    assert "would delete log/00000000000000000002.json: older than what is kept, and nothing holds it" in out
    assert "data/op/total/orphan.arrow until" in out
    assert "nothing was changed" in out


def test_an_application_deletes_it(folder, capsys):
    code, out, _ = run(capsys, "gc", folder, "--apply", "--count", 2)

    assert code == 0
    assert "5 files deleted, 0 spared" in out
    store = arrowstate.open_store(folder)
    assert ids(store) == [3, 4]
    assert store.verify(deep=True).problems == []
    assert (folder / "data/op/total/orphan.arrow").exists()


def test_without_grace_files_that_belong_to_nobody_go_at_once(folder, capsys):
    run(capsys, "gc", folder, "--apply", "--count", 9, "--grace", "0s", "--allow-short-grace")

    assert not (folder / "data/op/total/orphan.arrow").exists()
    assert len(arrowstate.open_store(folder).checkpoints()) == 4


def test_young_checkpoints_are_kept_by_age(folder, capsys):
    code, out, _ = run(capsys, "gc", folder, "--age", "7d", "--json")

    assert code == 0
    assert [item["checkpoint_id"] for item in json.loads(out)["kept"]] == [1, 2, 3, 4]


def test_json_has_the_plan_and_what_was_done(folder, capsys):
    before = files(folder)
    _, out, _ = run(capsys, "gc", folder, "--json")
    plan = json.loads(out)
    _, out, _ = run(capsys, "gc", folder, "--apply", "--json")
    applied = json.loads(out)

    gone = set(before) - set(files(folder))
    assert gone == {item["path"] for item in plan["deletions"]} == set(applied["deleted"])
    assert plan["bytes"] == sum(len(before[path]) for path in gone)
    assert (plan["applied"], plan["deleted"], applied["applied"], applied["spared"]) == (False, None, True, [])
    assert plan["dropped"] == [1, 2, 3]
    assert [item["path"] for item in plan["waiting"]] == ["data/op/total/orphan.arrow"]


def test_a_damaged_store_is_not_collected(folder, capsys):
    (folder / "log/00000000000000000005.json").write_text("{}")
    before = files(folder)

    code, out, err = run(capsys, "gc", folder, "--apply")

    assert (code, out) == (1, "")
    assert "log/00000000000000000005.json is damaged" in err
    assert files(folder) == before


@pytest.mark.parametrize("wrong", [["--age", "7"], ["--grace", "1w"], ["--count", "0"], ["--plan", "--apply"]])
def test_wrong_usage_is_refused(folder, capsys, wrong):
    before = files(folder)

    assert run(capsys, "gc", folder, *wrong)[0] == 2

    assert files(folder) == before
