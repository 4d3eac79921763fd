"""Edits that commit at once: the later one is told of a conflict, or is planned again, and no change is lost."""

import itertools
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.editing.committing import commit_edit
from arrowstate.errors import EditConflictError, InvalidInputError
from arrowstate.log.commit_log import CommitLog
from arrowstate.store import StateStore
from long_form import short_or_long
from storages import Hooked

_names = itertools.count()
VALUE = arrowstate.ValueStateDescriptor("v", pa.int64())
EVERY = short_or_long(9, 1)
"""Of how many calls of a commit one is tried."""


def fill(url=None):
    store = arrowstate.open_store(url or f"memory://racing-edits-{next(_names)}", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    backend.state(VALUE).update_batch([1, 2], [1, 2])
    with store.writer() as writer:
        writer.checkpoint({"op": [backend]}, properties={"offset": 1, "other": 1})
    return store


def add(edit, number):
    edit.update("op.v", set={"v": f"v + {number}"})


def values(store):
    return store.latest().to_arrow("op.v").sort_by("k")["v"].to_pylist()


def raced(place, retries=0):
    """Let one edit commit before a call of the other's commit; return the store, and what each was told."""
    store = fill()
    storage = Hooked(store.storage)
    told = {}

    def commit(name, edit, **options):
        try:
            edit.commit(**options)
            told[name] = None
        except EditConflictError as error:
            told[name] = error

    with StateStore(storage, store.store_id).edit() as slow, store.edit() as quick:
        add(slow, 1)
        add(quick, 10)
        began = len(storage.calls)
        storage.act_at(began + place, lambda: commit("quick", quick))
        commit("slow", slow, retries=retries)
        reached = len(storage.calls) >= began + place
        # What is called when both are closed is no place of a commit.
        storage.at.clear()
    return store, told, reached


def test_of_two_edits_one_is_committed_wherever_the_other_comes_in_between():
    seen = set()
    for place in itertools.count(1, EVERY):
        store, told, reached = raced(place)
        if not reached:
            break
        won = [name for name, error in told.items() if error is None]
        seen.add(*won)

        assert len(won) == 1, f"before call {place}: {told}"
        assert values(store) == ([11, 12] if won == ["quick"] else [2, 3])
        assert store.tags() == {"before-edit-2": 1}
        assert store.verify(deep=True).problems == []
    assert "quick" in seen
    assert place > 10


def test_an_edit_that_is_planned_again_loses_neither_change():
    for place in itertools.count(1, EVERY):
        store, told, reached = raced(place, retries=2)
        if not reached:
            break

        assert told["slow"] is None, f"before call {place}: {told}"
        assert values(store) == ([2, 3] if told["quick"] else [12, 13])
        assert store.verify(deep=True).problems == []


def test_processes_that_edit_at_once_lose_no_change(tmp_path):
    place = str(tmp_path / "store")
    fill(place)
    script = textwrap.dedent(
        """
        import sys, arrowstate
        store = arrowstate.open_store(sys.argv[1])
        sys.stdin.readline()
        for _ in range(2):
            with store.edit() as edit:
                edit.execute("update op.v set v = v + 1")
                edit.update("op.v", set={"v": "v + ?"}, params=[10])
                edit.commit(retries=50)
        """
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, place], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate(timeout=100)[1] for process in processes]

    assert [process.returncode for process in processes] == [0, 0], told
    assert values(arrowstate.open_store(place)) == [1 + 2 * 2 * 11, 2 + 2 * 2 * 11]


def meanwhile(store, number=100, **properties):
    with store.edit() as other:
        add(other, number)
        other.properties.update(properties)
        other.commit()


def test_statements_of_every_kind_are_done_again_on_the_newer_checkpoint():
    store = fill()
    given = pa.table({"k": [7], "v": [70]})
    with store.edit() as edit:
        add(edit, 1)
        edit.update("op.v", set={"v": "v * $n"}, params={"n": 2})
        edit.upsert("op.v", pa.RecordBatchReader.from_batches(given.schema, given.to_batches()))
        edit.upsert("op.v", "select k + 1 as k, v from given", tables={"given": iter(given.to_batches())})
        edit.execute("insert into op.v select k + 2, v from given", tables={"given": iter(given.to_batches())})
        edit.delete_key("op", iter(pa.table({"k": [2]}).to_batches()))
        edit.rename_operator("op", "op2")
        edit.properties["offset"] = 5
        del edit.properties["other"]
        meanwhile(store)

        snapshot = edit.commit(retries=1, comment="both")

    assert edit.checkpoint_id == 2
    assert snapshot.to_arrow("op2.v").sort_by("k").to_pydict() == {"k": [1, 7, 8, 9], "v": [204, 70, 70, 70]}
    assert snapshot.properties == {"offset": 5}
    assert store.tags() == {"before-edit-2": 1, "before-edit-3": 2}
    assert store.rollback("before-edit-3").to_arrow("op.v").sort_by("k")["v"].to_pylist() == [101, 102]


@pytest.mark.parametrize(
    ("do", "why"),
    [
        (lambda edit, read: edit.upsert("op.v", read), "upsert into op.v from a table"),
        (
            lambda edit, read: edit.update("op.v", set={"v": "?"}, params=[read["v"][0].as_py()]),
            "update op.v set v = ?",
        ),
        (lambda edit, read: edit.delete_key("op", read["k"]), "delete 2 keys of op"),
        (lambda edit, read: edit.execute("insert into op.v select k + 5, v from r", tables={"r": read}), "insert into"),
    ],
)
def test_what_may_be_made_of_what_was_read_is_not_planned_again(do, why):
    store = fill()
    with store.edit() as edit:
        do(edit, edit.snapshot.to_arrow("op.v"))
        meanwhile(store)
        with pytest.raises(EditConflictError) as told:
            edit.commit(retries=3)

    assert why in told.value.not_again
    assert "cannot be planned again" in str(told.value)
    assert values(store) == [101, 102]


def test_a_property_that_both_changed_is_not_changed_again():
    store = fill()
    with store.edit() as edit:
        edit.properties["offset"] -= 1
        meanwhile(store, offset=9)
        with pytest.raises(EditConflictError, match="the property 'offset' was changed meanwhile"):
            edit.commit(retries=3)

    assert store.latest().properties["offset"] == 9


def test_a_statement_that_fails_on_the_newer_checkpoint_leaves_that_as_it_is():
    store = fill()
    with store.edit() as edit:
        edit.insert("op.v", pa.table({"k": [7], "v": [70]}))
        with store.edit() as other:
            other.insert("op.v", pa.table({"k": [7], "v": [71]}))
            other.commit()
        with pytest.raises(InvalidInputError, match="has a row of k=7 already"):
            edit.commit(retries=3)
        with pytest.raises(InvalidInputError, match="the edit is closed"):
            edit.commit()

    assert values(store) == [1, 2, 71]
    assert store.storage.list("leases") == []


def test_after_the_last_try_it_is_a_conflict(monkeypatch):
    store = fill()
    tries = []

    def try_to_commit(*arguments, **options):
        tries.append(None)
        if len(tries) % 2:
            # The other edit is committed in this way too.
            meanwhile(store)
        return commit_edit(*arguments, **options)

    monkeypatch.setattr("arrowstate.editing.edit.commit_edit", try_to_commit)
    with store.edit() as edit:
        add(edit, 1)
        with pytest.raises(EditConflictError, match="checkpoint 4 was committed while checkpoint 3 was edited"):
            edit.commit(retries=2)

    assert values(store) == [301, 302]


@pytest.mark.parametrize("retries", [-1, 1.5, "many", True])
def test_retries_are_a_number(retries):
    store = fill()
    with store.edit() as edit:
        add(edit, 1)
        with pytest.raises(InvalidInputError, match="retries"):
            edit.commit(retries=retries)

    assert store.latest().checkpoint_id == 1


def test_neither_a_savepoint_nor_an_edit_of_an_older_checkpoint_is_retried():
    store = fill()
    with store.edit() as edit, store.edit(1) as older, store.edit(to="kept") as saved:
        for made, options in ((edit, {"to": "kept"}), (older, {}), (saved, {})):
            add(made, 1)
            with pytest.raises(InvalidInputError, match="retries are of edits of the newest checkpoint"):
                made.commit(retries=1, **options)

    assert store.latest().checkpoint_id == 1


def test_what_is_committed_while_an_edit_begins_does_not_lose_its_place(monkeypatch):
    store = fill()
    plain = CommitLog.history
    left = [1]

    def history(self):
        found = plain(self)
        if left and left.pop():
            meanwhile(store)
        return found

    monkeypatch.setattr(CommitLog, "history", history)
    with store.edit() as edit:
        add(edit, 1)
        edit.commit(retries=1)

    assert values(store) == [102, 103]


def test_of_the_statements_of_several_threads_none_is_lost():
    keys = range(40)
    store = arrowstate.open_store(f"memory://racing-edits-{next(_names)}", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    backend.state(VALUE).update_batch(keys, [0] * len(keys))
    with store.writer() as writer:
        writer.checkpoint({"op": [backend]})

    with store.edit() as edit, ThreadPoolExecutor(4) as threads:
        changed = list(threads.map(lambda key: edit.update("op.v", set={"v": 1}, where=f"k = {key}"), keys))
        planned = threads.submit(edit.plan).result()
        edit.commit()

    assert changed == [statement.rows for statement in planned.statements] == [1] * len(keys)
    assert values(store) == [1] * len(keys)
