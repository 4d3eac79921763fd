"""`arrowstate edit`: scripts, keys and properties; as a plan, for good, into a savepoint, and gone back from."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate.cli.app import main
from arrowstate.store import Edit
from stores import TOTAL, commit

SCRIPT = """
update shop.total set total = total * 2 where "user" = 'ann';
delete from shop.total where "user" like 'bot-%';
insert into shop.total values ('zoe', 3);
"""


@pytest.fixture
def store(tmp_path):
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    backend.state(TOTAL).add_batch(["ann", "bob", "bot-1"], [10, 20, 30])
    backend.timers().register_batch(["ann", "bob"], [5, 6])
    made = arrowstate.open_store(tmp_path / "store", create=True)
    commit(made, {"shop": [backend]}, properties={"offset": 17})
    (tmp_path / "fix.sql").write_text(SCRIPT)
    return made


def content(store):
    return {row["user"]: row["total"] for row in store.latest().to_arrow("shop.total").to_pylist()}


def test_a_plan_says_what_would_change_and_changes_nothing(store, tmp_path, capsys):
    before = sorted(store.storage.list(""))

    assert main(["edit", store.url, str(tmp_path / "fix.sql"), "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    assert told["states"] == [
        {"operator": "shop", "state": "total", "inserted": 1, "updated": 1, "deleted": 1, "schema_change": None}
    ]
    assert {"user": "ann", "total": 20, "_change_type": "update_postimage"} in told["samples"][0]["rows"]
    assert content(store) == {"ann": 10, "bob": 20, "bot-1": 30}
    assert sorted(store.storage.list("data/")) == [path for path in before if path.startswith("data/")]
    assert store.latest().checkpoint_id == 1


def test_an_applied_edit_is_the_newest_checkpoint_and_is_gone_back_from(store, tmp_path, capsys):
    arguments = ["edit", store.url, str(tmp_path / "fix.sql"), "--set-property", "offset", "16", "--apply"]
    assert main([*arguments, "--comment", "ticket 4711"]) == 0

    printed = capsys.readouterr().out
    assert "checkpoint 2 was committed" in printed
    assert "before-edit-2" in printed
    assert content(store) == {"ann": 20, "bob": 20, "zoe": 3}
    assert store.latest().properties == {"offset": 16}
    assert store.verify(deep=True).problems == []
    assert main(["rollback", store.url, "before-edit-2"]) == 0
    assert content(store) == {"ann": 10, "bob": 20, "bot-1": 30}


@pytest.mark.parametrize("more", [[], ["--checkpoint", "1"]])
def test_an_edit_that_changes_nothing_says_that_nothing_was_committed(store, capsys, more):
    commit(store, {"shop": [store.latest().restore("shop")]}, properties={"offset": 17})
    arguments = ["edit", store.url, "--delete-key", "shop", "nobody", "--apply", *more]

    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)

    assert "nothing was committed, no writer was fenced, and checkpoint 2 stays the newest" in said
    assert "was committed\n" not in said
    assert (told["committed"], told["checkpoint_id"], told["before"]) == (False, 2, None)
    assert store.latest().checkpoint_id == 2
    assert main(["edit", store.url, "--delete-key", "shop", "ann", "--apply", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["committed"] is True


def test_a_script_comes_from_a_pipe_and_goes_to_a_savepoint(store, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("delete from shop.timers_event_time where timestamp < 6"))

    assert main(["edit", store.url, "-", "--to", str(tmp_path / "saved"), "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    saved = arrowstate.open_store(tmp_path / "saved").latest()
    assert told["savepoint"] == str(tmp_path / "saved")
    assert saved.to_arrow("shop.timers_event_time").to_pylist() == [{"user": "bob", "timestamp": 6}]
    assert store.latest().to_arrow("shop.timers_event_time").num_rows == 2
    assert store.tags() == {}


def test_a_purged_key_is_in_no_file_and_what_holds_it_is_named(store, tmp_path, capsys):
    store.tag("gold")
    assert main(["edit", store.url, "--delete-key", "shop", "bot-1", "--apply", "--purge", "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["purged"]["is_done"]
    assert main(["edit", store.url, "--apply", "--purge"]) == 1
    said = capsys.readouterr().out
    assert "tag 'gold'" in said
    assert "the purge is not done" in said
    store.untag("gold")

    assert main(["edit", store.url, "--delete-key", "shop", "bot-1", "--apply", "--purge", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["purged"]["held_by"] == []
    files = [path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert files
    assert not [data for data in files if b"bot-1" in data and b"delete 1 keys" not in data]
    assert content(store) == {"ann": 10, "bob": 20}


def test_a_key_of_several_columns_is_deleted_as_it_is_written_or_not_at_all(tmp_path, capsys):
    store = arrowstate.open_store(tmp_path / "pairs", create=True)
    key = pa.schema([("number", pa.int64()), ("day", pa.string())])
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=8)
    keys = pa.table({"number": [5, 6], "day": ["mon", "mon"]})
    backend.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")).add_batch(keys, [1, 2])
    commit(store, {"pairs": [backend]})

    def delete(text):
        return main(["edit", store.url, "--delete-key", "pairs", text, "--apply"])

    assert delete('{"number": 5.5, "day": "mon"}') == 1
    assert "the key column number is int64, got 5.5" in capsys.readouterr().err
    assert main(["lookup", store.url, "pairs.total", '{"number": 6.5, "day": "mon"}']) == 1
    assert store.latest().checkpoint_id == 1
    assert delete('{"number": 5, "day": "mon"}') == 0
    assert store.latest().to_arrow("pairs.total")["number"].to_pylist() == [6]


def test_a_purge_without_statements_takes_what_was_deleted_before_and_tables_that_were_checked(store, tmp_path, capsys):
    rows = arrowstate.OperatorStateBackend()
    kind = pa.struct({"user": pa.string()})
    rows.state(arrowstate.OperatorListStateDescriptor("rows", kind)).extend(pa.array([("ann",)], kind))
    commit(store, {"shop": [store.latest().restore("shop")]}, operator_states={"totals": [rows]})
    with store.edit() as edit:
        edit.delete_key("shop", ["bot-1"])
        edit.commit()
    store.untag("before-edit-3")

    assert main(["edit", store.url, "--apply", "--purge"]) == 1
    assert "output table totals.rows (1 rows) may hold them" in capsys.readouterr().out
    assert main(["edit", store.url, "--apply", "--purge", "--checked", "totals", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["purged"]["is_done"]
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file() and b"bot-1" in path.read_bytes()]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to do: name a script"),
        (["absent.sql"], "absent.sql cannot be read"),
        (["fix.sql", "--purge"], "give it with --apply"),
        (["fix.sql", "--apply", "--checked", "totals"], "give it with --purge"),
        (["--set-property", "offset", "{"], "takes a JSON value"),
        (["--delete-key", "shop2", "ann"], "no operator"),
        (["broken.sql"], "statement 2 of the script"),
        (["fix.sql", "--to", "saved", "--comment", "why"], "a savepoint is not in it"),
    ],
)
def test_what_does_not_fit_is_told_and_changes_nothing(store, tmp_path, capsys, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.sql").write_text("delete from shop.total; update shop.nothing set a = 1")

    assert main(["edit", store.url, *arguments]) == 1

    assert said in capsys.readouterr().err
    assert store.latest().checkpoint_id == 1
    assert content(store) == {"ann": 10, "bob": 20, "bot-1": 30}


def test_a_script_reads_a_state_as_it_was(store, tmp_path):
    (tmp_path / "back.sql").write_text(
        "update shop.total set total = o.total from (from shop.total at (version => 'good')) o\n"
        """where o."user" = shop.total."user" and o.total <> shop.total.total; -- at (version => 9)\n"""
    )
    store.tag("good")
    assert main(["edit", store.url, str(tmp_path / "fix.sql"), "--apply"]) == 0
    assert content(store) == {"ann": 20, "bob": 20, "zoe": 3}

    assert main(["edit", store.url, str(tmp_path / "back.sql"), "--apply"]) == 0

    assert content(store) == {"ann": 10, "bob": 20, "zoe": 3}


def test_an_edit_that_is_to_be_a_savepoint_says_so_at_its_beginning(store, tmp_path):
    with store.edit(to=tmp_path / "saved") as edit:
        edit.upsert("shop.total", f"select * from '{_parquet(tmp_path)}'")
        with pytest.raises(arrowstate.InvalidInputError, match="begin one without"):
            edit.purge()
        edit.commit()

    saved = arrowstate.open_store(tmp_path / "saved")
    assert content(saved) == {"ann": 1, "bob": 20, "bot-1": 30, "new": 2}
    assert store.latest().checkpoint_id == 1


def _parquet(folder):
    pq.write_table(pa.table({"user": ["ann", "new"], "total": [1, 2]}), folder / "fix.parquet")
    return folder / "fix.parquet"


def test_an_edit_that_was_overtaken_is_planned_again_and_says_so(store, capsys, monkeypatch):
    plan = Edit.plan

    def overtaken(edit):
        found = plan(edit)
        monkeypatch.setattr(Edit, "plan", plan)
        with store.edit() as other:
            other.properties["other"] = 1
            other.commit()
        return found

    monkeypatch.setattr(Edit, "plan", overtaken)
    options = ["--set-property", "mine", "2", "--apply", "--retries", "2", "--json"]

    assert main(["edit", store.url, *options]) == 0

    done = json.loads(capsys.readouterr().out)
    newest = store.latest()
    assert (done["planned_again_on"], done["checkpoint_id"]) == (newest.checkpoint_id - 1, newest.checkpoint_id)
    assert newest.properties["other"] == 1
    assert newest.properties["mine"] == 2


def test_retries_without_a_commit_are_refused(store, capsys):
    for more in (["--to", "kept"], [], ["--apply", "--purge"]):
        assert main(["edit", store.url, "--set-property", "mine", "2", "--retries", "2", *more]) == 1
        assert "--retries is of a commit" in capsys.readouterr().err
