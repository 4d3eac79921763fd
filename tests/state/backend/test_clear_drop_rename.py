"""All of a key is removed at once; states are dropped and renamed when they are restored, and never by accident."""

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, KeyOutOfRangeError, StateNotFoundError
from arrowstate.windows import TumblingEventTimeWindows, WindowOperator
from stores import CITY, USER

SPACES = pa.schema([("n", pa.int64())])
KINDS = {
    "city": CITY,
    "point": arrowstate.ValueStateDescriptor("point", pa.struct([("x", pa.int64()), ("y", pa.int64())])),
    "total": arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum", namespace=SPACES),
    "mean": arrowstate.AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean"),
    "some": arrowstate.ListStateDescriptor("some", pa.int64(), ttl=arrowstate.TimeToLive(1 << 50)),
    "entries": arrowstate.MapStateDescriptor("entries", pa.string(), pa.int64(), namespace=SPACES),
}


def filled(name="memory://clear-drop-rename"):
    """A store with every kind of state, for the users ann and bob."""
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=4)
    users = ["ann", "bob"]
    state = {kind: backend.state(descriptor) for kind, descriptor in KINDS.items()}
    state["city"].update_batch(users, ["Rome", "Oslo"])
    state["point"].update_batch(users, [{"x": 1, "y": 2}] * 2)
    for n in (1, 2):
        state["total"].add_batch(users, [n, n], namespace=n)
        state["entries"].put_batch(users, ["x", "x"], [n, n], namespace=n)
        state["some"].add_batch(users, [n, n])
    state["mean"].add_batch(users, [1, 2])
    windows = WindowOperator(
        backend, TumblingEventTimeWindows(10), arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum")
    )
    windows.process(["ann", "bob", "ann"], [1, 2, 11], [1, 1, 1])
    backend.timers().register_batch(["ann", "ann", "bob"], [99, 100, 99])
    return backend, windows


@pytest.mark.parametrize("restored", [False, True])
def test_clear_key_leaves_nothing_of_the_keys_and_all_of_the_others(restored):
    backend, windows = filled()
    if restored:
        store = arrowstate.open_store(f"memory://clear-{restored}", create=True)
        backend = store.writer().checkpoint({"op": [backend]}).restore("op")
    before = {name: len(state) for name, state in backend.states.items()}

    backend.clear_key(["ann", "ann", "eve"])

    for name, state in backend.states.items():
        users = {row["user"] for batch in state.live_batches() for row in batch.to_pylist()}
        assert users == ({"bob"} if before[name] else set()), name
    assert backend.timers().pop_due(100)["user"].to_pylist() == ["bob"]
    if not restored:
        assert windows.advance_watermark(50)["user"].to_pylist() == ["bob"]


def test_clear_key_takes_what_scalar_verbs_have_just_written_and_several_key_columns():
    key = pa.schema([("user", pa.string()), ("device", pa.int64())])
    backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=4)
    city, some = backend.state(CITY), backend.state(KINDS["some"])
    for backend.current_key in (("ann", 1), ("ann", 2)):
        city.update("Rome")
        some.add(1)

    backend.clear_key(pa.table({"user": ["ann"], "device": [1]}))

    assert [len(city), len(some)] == [1, 1]
    assert backend.keys(CITY).to_pylist() == [{"user": "ann", "device": 2}]


def test_clear_key_of_another_subtask_is_refused_and_clears_nothing():
    users = pa.array([f"u{number}" for number in range(20)])
    mine = users.filter(pa.compute.less(arrowstate.key_groups(users, 4), 2))
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=4, key_groups=arrowstate.KeyGroupRange(0, 1))
    backend.state(CITY).update_batch(mine, ["Rome"] * len(mine))

    with pytest.raises(KeyOutOfRangeError):
        backend.clear_key(users)

    assert len(backend.states["city"]) == len(mine) > 0


def test_an_evolution_that_no_stored_state_has_use_for_is_refused():
    store = arrowstate.open_store("memory://evolution-of-nothing", create=True)
    change = arrowstate.SchemaEvolution(renamed={"city": "home"})
    home = arrowstate.ValueStateDescriptor("home", pa.string(), evolution=change)
    restored = store.writer().checkpoint({"op": [filled()[0]]}).restore("op")

    with pytest.raises(InvalidInputError, match=r"'home'.*'city'.*rename="):
        restored.state(home)

    assert "home" not in restored.state_names
    # In a job that starts anew there is nothing to evolve.
    new = arrowstate.KeyedStateBackend(key=USER, max_parallelism=4)
    assert new.state(home).get_batch(["ann"]).to_pylist() == [None]


def test_a_rename_of_a_field_that_becomes_none_of_the_declared_is_refused():
    store = arrowstate.open_store("memory://rename-to-nowhere", create=True)
    restored = store.writer().checkpoint({"op": [filled()[0]]}).restore("op")
    change = arrowstate.SchemaEvolution(renamed={"z": "w"})

    with pytest.raises(InvalidInputError, match="no field 'w'"):
        restored.state(arrowstate.ValueStateDescriptor("point", KINDS["point"].type, evolution=change))


def test_an_evolution_of_the_key_that_drops_a_state_or_a_field_of_one_is_refused():
    store = arrowstate.open_store("memory://drop-in-key", create=True)
    snapshot = store.writer().checkpoint({"op": [filled()[0]]})

    for path in ("city", "point.x"):
        with pytest.raises(InvalidInputError, match=f"'{path}'.*columns user;.*is a state: drop it by restore"):
            snapshot.restore("op", key=USER, evolution=arrowstate.SchemaEvolution(dropped=[path]))

    # What was a column of the key, or may have been one, is passed over.
    change = arrowstate.SchemaEvolution(renamed={"user": "city_of"}, dropped=["device"])
    assert snapshot.restore("op", key=pa.schema([("city_of", pa.string())]), evolution=change).state_names


def test_an_evolution_that_no_stored_operator_state_has_use_for_is_refused():
    def offsets(name, **hints):
        return arrowstate.OperatorListStateDescriptor(name, pa.int64(), evolution=arrowstate.SchemaEvolution(**hints))

    store = arrowstate.open_store("memory://operator-evolution-of-nothing", create=True)
    backend = arrowstate.OperatorStateBackend()
    backend.state(offsets("offsets", dropped=["a"])).add_all([1])
    snapshot = store.writer().checkpoint({}, operator_states={"op": [backend]})
    restored = snapshot.restore_operator_state("op")

    with pytest.raises(InvalidInputError, match="no stored operator state is named 'ofsets'.*stored are 'offsets'"):
        restored.state(offsets("ofsets", dropped=["a"]))
    with pytest.raises(InvalidInputError, match="no field 'b' to have a default"):
        restored.state(offsets("offsets", defaults={"b": 1}))
    with pytest.raises(InvalidInputError, match="'offsets' has no keys that could become equal"):
        restored.state(offsets("offsets", merge={"offsets": "sum"}))
    assert restored.state_names == ("offsets",)
    assert restored.state(offsets("offsets", dropped=["a"])).get() == [1]


@pytest.mark.parametrize("name", KINDS)
def test_a_state_of_any_kind_is_renamed_with_its_rows_and_checkpointed_without_a_word(name):
    import dataclasses

    store = arrowstate.open_store(f"memory://rename-{name}", create=True)
    writer = store.writer()
    backend, _ = filled()
    first = writer.checkpoint({"op": [backend]})
    old = [
        row for batch in backend.states[name].live_batches() for row in batch.drop_columns(["_key_hash"]).to_pylist()
    ]

    restored = first.restore("op", rename={name: "new"})
    state = restored.state(dataclasses.replace(KINDS[name], name="new"))
    rows = [row for batch in state.live_batches() for row in batch.drop_columns(["_key_hash"]).to_pylist()]
    second = writer.checkpoint({"op": [restored]})
    again = second.restore("op").state(dataclasses.replace(KINDS[name], name="new"))
    state.clear_batch(["ann"], **({"namespace": 1} if KINDS[name].namespace else {}))

    assert [list(row.values()) for row in rows] == [list(row.values()) for row in old]
    assert name not in restored.state_names
    assert {each.name for each in second.entry.operators[0].states} == set(restored.state_names)
    assert len(again) == len(old)
    assert second.to_arrow("op.new").num_rows == len(old)
    assert first.to_arrow(f"op.{name}").num_rows == len(old)


def test_a_dropped_state_is_gone_from_the_next_checkpoint_and_others_are_not_dropped_by_it():
    store = arrowstate.open_store("memory://drop", create=True)
    writer = store.writer()
    first = writer.checkpoint({"op": [filled()[0]]})

    restored = first.restore("op", drop=["city", "some"], rename={"point": "city"})
    second = writer.checkpoint({"op": [restored]})

    assert not {"some", "point"} & {state.name for state in second.entry.operators[0].states}
    assert second.to_arrow("op.city")["x"].to_pylist() == [1, 1]
    assert first.to_arrow("op.city")["city"].to_pylist() is not None
    fewer = second.restore("op", drop=["mean"])
    del fewer._states["total"]
    with pytest.raises(InvalidInputError, match="drop the state total of op"):
        writer.checkpoint({"op": [fewer]})


@pytest.mark.parametrize(
    ("error", "given"),
    [
        (StateNotFoundError, {"drop": ["nothing"]}),
        (StateNotFoundError, {"rename": {"nothing": "new"}}),
        (InvalidInputError, {"drop": "city"}),
        (InvalidInputError, {"drop": ["city"], "rename": {"city": "home"}}),
        (InvalidInputError, {"rename": {"city": "Total"}}),
        (InvalidInputError, {"rename": {"city": ""}}),
    ],
)
def test_what_can_be_neither_dropped_nor_renamed_is_refused(error, given):
    store = arrowstate.open_store("memory://no-such-rename", create=True)
    snapshot = store.writer().checkpoint({"op": [filled()[0]]})

    with pytest.raises(error):
        snapshot.restore("op", **given)
