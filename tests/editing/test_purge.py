"""A purge leaves no byte of what was deleted in any file of the store, and says what still holds it."""

import json

import pyarrow as pa
import pytest

import arrowstate
from arrowstate_formats.documents import decode_inline
from every_kind import small_files
from stores import USER, texts_of

VALUE = arrowstate.ValueStateDescriptor("v", pa.string())
LIST = arrowstate.ListStateDescriptor("l", pa.string())
SEEN = arrowstate.OperatorListStateDescriptor("seen", pa.string())
SECRET = "SECRET-ann"
USERS = pa.array([*(f"user-{number}" for number in range(60)), SECRET])


def step(backends, number, users=USERS):
    groups = arrowstate.key_groups(users, 8).to_numpy()
    for backend in backends:
        own = users.filter(pa.array((groups >= backend.key_groups.start) & (groups <= backend.key_groups.end)))
        texts = [f"{user}:{number}" for user in own.to_pylist()]
        backend.state(VALUE).update_batch(own, texts)
        backend.state(LIST).add_batch(own, texts)
        backend.timers().register_batch(own, pa.array([100 + number] * len(own)))


def fill(url):
    """Four checkpoints of two subtasks, the last one of three: runs with dead rows, and files that subtasks share."""
    store = arrowstate.open_store(url, create=True)
    ranges = (arrowstate.KeyGroupRange(0, 3), arrowstate.KeyGroupRange(4, 7))
    backends = [arrowstate.KeyedStateBackend(key=USER, max_parallelism=8, key_groups=own) for own in ranges]
    source = arrowstate.OperatorStateBackend()
    source.state(SEEN).add_all(["user-1", SECRET])
    with store.writer() as writer:
        for number in range(3):
            step(backends, number)
            writer.checkpoint({"op": backends}, operator_states={"source": [source]}, properties={"offset": number})
        three = [store.latest().restore("op", parallelism=3, subtask=subtask) for subtask in range(3)]
        step(three, 3, USERS.slice(0, 20))
        writer.checkpoint({"op": three}, operator_states={"source": [source]})
    return store


def holders(store):
    """The files of the store that hold the name of the user, as they are or inline in a document."""
    found = []
    for path in store.storage.list(""):
        data = store.storage.read(path)
        parts = [data]
        for text in texts_of(json.loads(data)) if data.startswith(b"{") else ():
            try:
                parts.append(decode_inline(text, path=path))
            except arrowstate.errors.CorruptDataError:
                parts.append(text.encode())
        found += [path] if any(SECRET.encode() in part for part in parts) else []
    return found


def delete(edit):
    edit.delete_key("op", [SECRET])
    edit.delete("source.seen", where=f"seen = '{SECRET}'")


@pytest.fixture(params=["inline", "files"])
def store(request):
    url = f"memory://purge-{request.node.name}"
    if request.param == "inline":
        yield fill(url)
    else:
        with small_files():
            yield fill(url)


def test_no_file_holds_what_was_purged(store):
    kept = {name: store.latest().to_arrow(name).num_rows for name in store.latest().states()}
    assert len(holders(store)) > 4

    with store.edit() as edit:
        delete(edit)
        report = edit.purge(comment="a user left")

    assert holders(store) == []
    assert report.is_done, report
    assert report.rewritten > 0
    assert store.verify(deep=True).problems == []
    rows = {name: store.latest().to_arrow(name).num_rows for name in store.latest().states()}
    assert rows == {
        name: count - {"op.v": 1, "op.l": 3, "op.timers_event_time": 3}.get(name, 0) for name, count in kept.items()
    }
    assert store.latest().operator_state("source", "seen").column("seen").to_pylist() == ["user-1"]


def test_what_still_holds_it_is_named_and_goes_by_a_second_purge(store):
    store.tag("gold", 2)
    lease = store.lease(3, holder="a report", and_later=True)
    store.savepoint("copy")

    with store.edit() as edit:
        delete(edit)
        report = edit.purge()

    assert not report.is_done
    assert {item.checkpoint_id for item in report.held_by} == {2, 3, 4}
    assert ["tag 'gold'" in str(report), "a report" in str(report), "copy" in str(report)] == [True] * 3
    assert holders(store) != []
    # The fence is kept with them, and must not say whose rows went.
    fences = [path for path in store.storage.list("log/") if path > "log/00000000000000000006"]
    assert len(fences) == 2
    assert not {*fences}.intersection(holders(store))

    store.untag("gold")
    lease.release()
    store.dispose_savepoint("copy")
    with store.edit() as edit:
        again = edit.purge()

    assert again.is_done, again
    assert holders(store) == []
    assert store.verify(deep=True).problems == []


def test_rows_that_were_deleted_before_are_purged_too():
    with small_files():
        store = fill("memory://purge-before")
        with store.edit() as edit:
            delete(edit)
            edit.commit()
        assert holders(store) != []
        store.untag("before-edit-5")

        with store.edit() as edit:
            report = edit.purge()

    assert report.is_done, report
    assert holders(store) == []


def test_an_older_checkpoint_that_is_purged_takes_the_place_of_the_newest():
    store = fill("memory://purge-older")
    with store.edit() as edit:
        delete(edit)
        edit.commit()

    with store.edit(checkpoint=2) as edit:
        report = edit.purge()

    assert store.latest().checkpoint_id == report.checkpoint_id == 6
    assert store.latest().properties == {"offset": 1}
    assert {row["v"][-1] for row in store.latest().to_arrow("op.v").to_pylist()} == {"1"}


def test_files_of_an_attempt_that_died_are_reported():
    store = fill("memory://purge-attempt")
    store.storage.put_if_absent("data/op/v/0123456789abcdef.arrow", SECRET.encode(), "ann")

    with store.edit() as edit:
        delete(edit)
        report = edit.purge()

    assert report.unreferenced == 1
    assert not report.is_done
    assert "no checkpoint refers to" in str(report)
    assert holders(store) == ["data/op/v/0123456789abcdef.arrow"]
