"""Some operators of a checkpoint, brought into another store."""

import pyarrow as pa
import pytest

import arrowstate
from stores import USER, commit


@pytest.fixture
def stores(tmp_path):
    old, new = (arrowstate.open_store(tmp_path / name, create=True) for name in ("old", "new"))
    backends = {}
    for uid in ("people", "visits"):
        backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=128)
        backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], [uid])
        backends[uid] = [backend]
    commit(old, backends)
    return old, new


def test_the_operators_that_are_named_come_and_no_other(stores):
    old, new = stores

    imported = new.import_savepoint(old.latest(), operators=["visits"])

    assert [operator.uid for operator in imported.entry.operators] == ["visits"]
    assert imported.to_arrow("visits.city").to_pylist() == [{"user": "ann", "city": "visits"}]
    assert new.verify(deep=True).problems == []


@pytest.mark.parametrize(
    ("operators", "error"),
    [
        ([], arrowstate.InvalidInputError),
        (["vists"], arrowstate.OperatorNotFoundError),
        ("visits", arrowstate.InvalidInputError),
    ],
)
def test_operators_that_are_not_there_are_refused_and_nobody_is_fenced(stores, operators, error):
    old, new = stores
    writer = new.writer()

    with pytest.raises(error):
        new.import_savepoint(old.latest(), operators=operators)

    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=128)
    backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["bob"], ["Rome"])
    assert writer.checkpoint({"people": [backend]}).checkpoint_id == 1


def test_a_claim_that_would_lose_operators_is_refused_and_the_savepoint_stays(stores):
    old, new = stores
    place = old.savepoint("both").storage.url

    with pytest.raises(arrowstate.InvalidInputError, match="the state of 'people' would be lost"):
        new.import_savepoint(place, operators=["visits"], claim_mode=arrowstate.ClaimMode.CLAIM)

    assert new.checkpoints() == []
    imported = new.import_savepoint(place, operators=["visits", "people"], claim_mode=arrowstate.ClaimMode.CLAIM)
    assert sorted(imported.states()) == ["people.city", "visits.city"]
    assert old.storage.list("savepoints/") == []
