"""The tables of the schema `arrowstate` that tell what a checkpoint consists of."""

import datetime

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, StateNotFoundError
from arrowstate.query.kept_reads import forget_checkpoints
from arrowstate.store import StateStore
from arrowstate.testing.faults import FaultyStorage
from stores import backend_of


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two checkpoints of two subtasks: the second has half of the keys twice, another column, a state more, a tag."""
    store = arrowstate.open_store(tmp_path_factory.mktemp("about") / "store", create=True)
    ranges = (arrowstate.KeyGroupRange(0, 63), arrowstate.KeyGroupRange(64, 127))
    schema = pa.schema([("n", pa.int64())])
    backends = [arrowstate.KeyedStateBackend(key=schema, max_parallelism=128, key_groups=own) for own in ranges]
    numbers = pa.array(range(4000), pa.int64())
    groups = arrowstate.key_groups(numbers, 128).to_numpy()
    source = arrowstate.OperatorStateBackend()
    source.state(arrowstate.OperatorListStateDescriptor("offsets", pa.int64())).add(17)
    day = arrowstate.TimeToLive(86_400_000)
    with store.writer() as writer:
        for rows in (4000, 2000):
            for backend, own in zip(backends, (groups < 64, groups >= 64), strict=True):
                mine = numbers.slice(0, rows).filter(pa.array(own[:rows]))
                backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(mine, mine)
                if rows == 2000:
                    backend.state(arrowstate.ValueStateDescriptor("t", pa.string(), ttl=day)).update_batch(
                        mine.slice(0, 1), ["x"]
                    )
            writer.checkpoint({"op": backends}, operator_states={"source": [source]})
    store.tag("gold", 1)
    return store


def one(store, query):
    (row,) = store.sql(query).fetchall()
    return row


def test_operators_and_states_are_told(store):
    operators = store.sql("select operator, key, max_parallelism, parallelism, states, rows from arrowstate.operators")
    states = store.sql("select state, kind, type, rows, ttl_ms from arrowstate.states order by all")

    assert sorted(operators.fetchall()) == [
        ("op", "n int64", 128, 2, 2, 4002),
        ("source", None, None, 0, 0, 0),
    ]
    assert states.fetchall() == [("t", "value", "string", 2, 86_400_000), ("v", "value", "int64", 4000, None)]


def test_they_are_of_the_checkpoint_that_is_read(store):
    assert one(store, "select count(*) from arrowstate.states at (version => 1)") == (1,)
    assert one(store, "select count(*) from arrowstate.states at (version => 'gold')") == (1,)
    assert store.snapshot(1).sql("select count(*) from arrowstate.states").fetchall() == [(1,)]
    both = """
        select n.state from arrowstate.states n anti join arrowstate.states o at (version => -1) using (operator, state)
    """
    assert store.sql(both).fetchall() == [("t",)]


def test_columns_and_versions_are_told(store):
    columns = store.sql('select state, "column", of, type from arrowstate.columns order by state, position').fetchall()
    versions = store.sql("select state, schema_version, columns, is_current from arrowstate.schema_versions").fetchall()

    assert columns == [
        ("t", "n", "key", "int64"),
        ("t", "t", "value", "string"),
        ("v", "n", "key", "int64"),
        ("v", "v", "value", "int64"),
    ]
    assert sorted(versions) == [("t", 1, "n int64, t string", True), ("v", 1, "n int64, v int64", True)]


def test_files_have_their_rows_and_the_store_its_bytes(store):
    live, dead, files = one(
        store,
        "select sum(live_rows), sum(rows - live_rows), count(distinct run) from arrowstate.files where state = 'v'",
    )
    use = one(store, "select bytes, live_bytes, space_amplification from arrowstate.storage where state = 'v'")

    assert (live, dead, files) == (4000, 2000, 4)
    assert 1 < use[2] == use[0] / use[1]
    paths = store.sql("select path from arrowstate.files where path is not null").fetchall()
    assert all(store.storage.exists(path) for (path,) in paths)


def test_key_groups_have_the_rows_of_the_state(store):
    told = dict(store.sql("select key_group, rows from arrowstate.key_groups where state = 'v'").fetchall())
    counted = dict(store.sql("select _key_group, count(*) from op.v group by all").fetchall())

    assert told == counted


def test_tags_and_leases_are_those_of_the_store(store):
    with store.lease(2, holder="somebody"):
        assert store.sql("from arrowstate.tags").fetchall() == [("gold", 1)]
        holder, checkpoint, later = one(store, "select holder, checkpoint_id, and_later from arrowstate.leases")
    assert ("somebody" in holder, checkpoint, later) == (True, 2, False)


def test_checkpoints_tell_what_keeps_them_and_how_far_event_time_was(tmp_path):
    store = arrowstate.open_store(tmp_path / "kept", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=128)
    with store.writer() as writer:
        for watermark in (None, 1_767_225_600_042, (1 << 63) - 1):
            writer.checkpoint({"op": [backend]}, watermark=watermark)
    query = "select checkpoint_id, tag, is_kept_by, watermark_at from arrowstate.checkpoints order by checkpoint_id"
    at = datetime.datetime(2026, 1, 1, 0, 0, 0, 42_000)
    store.tag("gold", 1)
    store.tag("first", 1)

    with store.lease(2, holder="somebody", and_later=True):
        first, second, third = store.sql(query).fetchall()
    assert first == (1, "first, gold", "tag 'first', tag 'gold'", None)
    assert (second[:2], "somebody" in second[2], second[3]) == ((2, None), True, at)
    assert (third[:3], third[3]) == ((3, None, second[2]), None)
    assert store.sql("select tag from arrowstate.checkpoints where is_kept_by is null").fetchall() == [(None,)] * 2
    assert store.sql("select checkpoint_id from arrowstate.checkpoints where tag = 'gold'").fetchall() == []
    assert store.sql("select checkpoint_id from arrowstate.checkpoints where tag like '%gold'").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("query", "entries", "manifests"),
    [
        ("select count(*) from arrowstate.checkpoints where checkpoint_id = 30", 10, 0),
        ("select count(*) from arrowstate.checkpoints where checkpoint_id in (39, 40)", 6, 0),
        ("select count(*) from arrowstate.subtasks where checkpoint_id = 40", 5, 1),
        ("select count(*) from arrowstate.subtasks where checkpoint_id > 39", 44, 1),
        ("select rows from arrowstate.states where operator = 'small'", 2, 0),
        ("select rows from arrowstate.states where state = 'v' and operator <> 'small'", 2, 128),
        ("select rows from arrowstate.key_groups where operator = 'nobody'", 2, 0),
        ("select count(*) from arrowstate.files where operator = 'wide' and rows > 1", 2, 128),
        ("select states from arrowstate.operators where operator = 'small'", 2, 0),
    ],
)
def test_of_what_a_filter_leaves_out_nothing_is_read(crowded, query, entries, manifests):
    calls = []
    storage = FaultyStorage(crowded.storage, lambda call: calls.append(call))
    forget_checkpoints()

    StateStore(storage, crowded.store_id).sql(query).fetchall()

    read = [call.path for call in calls if call.verb == "read"]
    assert sum(path.startswith("log/") for path in read) <= entries
    assert sum(path.startswith("manifests/") for path in read) <= manifests + 2


@pytest.fixture(scope="module")
def crowded():
    """40 checkpoints of an operator with 128 subtasks, which have manifests of their own, and one with one subtask."""
    store = arrowstate.open_store("memory://about-crowded", create=True)
    schema = pa.schema([("n", pa.int64())])
    backends = {
        uid: [
            backend_of(schema, key_groups=arrowstate.key_group_range(128, parallelism=parallelism, subtask=subtask))
            for subtask in range(parallelism)
        ]
        for uid, parallelism in (("small", 1), ("wide", 128))
    }
    numbers = pa.array(range(40), pa.int64())
    groups = arrowstate.key_groups(numbers, 128).to_numpy()
    for own in backends.values():
        for backend in own:
            mine = numbers.filter(pa.array([group in backend.key_groups for group in groups]))
            backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(mine, mine)
    with store.writer() as writer:
        for _ in range(40):
            writer.checkpoint(backends)
    return store


def test_the_list_of_tables_is_of_states_and_history_alone(store):
    names = {name for (name,) in store.sql("show tables").fetchall()}

    assert names == {"arrowstate.checkpoints", "arrowstate.subtasks", "op.v", "op.t", "source.offsets"}


def test_a_table_that_is_not_there_is_refused(store):
    with pytest.raises(StateNotFoundError, match="arrowstate"):
        store.sql("from arrowstate.file")
    with pytest.raises(InvalidInputError, match="no function arrowstate"):
        store.sql("from arrowstate.differences(1, 2)")
