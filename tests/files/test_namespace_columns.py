"""Namespace columns that are named like a key column, the state or its value keep apart, on disk and in SQL."""

import pyarrow as pa
import pytest

import arrowstate
from stores import backend_of

KEY = pa.schema([("user", pa.string())])
INT = pa.int64()
USERS = ["ann", "bob", "eve"]


def spaces(*names):
    return pa.schema([(name, INT) for name in names])


PAIR = pa.struct([("user", INT), ("page", INT)])
STATES = {
    "named like the key": (
        arrowstate.ValueStateDescriptor("v", INT, namespace=spaces("user")),
        ["user", "v_user", "v"],
    ),
    "named like the state": (arrowstate.ValueStateDescriptor("w", INT, namespace=spaces("w")), ["user", "w", "w_w"]),
    "both, in another case": (
        arrowstate.ReducingStateDescriptor("r", INT, reduce="sum", namespace=spaces("User", "R")),
        ["user", "r_User", "R", "r_r"],
    ),
    "named like a field": (
        arrowstate.ListStateDescriptor("l", PAIR, namespace=spaces("page", "day")),
        ["user", "page", "day", "l_user", "l_page"],
    ),
    "named like the state, of a map": (
        arrowstate.MapStateDescriptor("m", pa.string(), INT, namespace=spaces("user", "m")),
        ["user", "m_user", "m", "m_key", "m_m"],
    ),
    "named like a part of the accumulator": (
        arrowstate.AggregatingStateDescriptor("a", INT, aggregate="mean", namespace=spaces("count", "user")),
        ["user", "count", "a_user", "a_count", "sum"],
    ),
}


def fill(state, namespace):
    if state.descriptor.kind == "map":
        state.put_batch(USERS, ["x", "y", "z"], [5, 6, 7], namespace=namespace)
    elif state.descriptor.kind == "value":
        state.update_batch(USERS, [5, 6, 7], namespace=namespace)
    else:
        values = [{"user": n, "page": 9} for n in range(3)] if state.descriptor.kind == "list" else [5, 6, 7]
        state.add_batch(USERS, values, namespace=namespace)


def held(state, namespace):
    """What each user has in a namespace."""
    read = state.entries_batch if state.descriptor.kind == "map" else state.get_batch
    return read(USERS, namespace=namespace).to_pylist()


@pytest.mark.parametrize(("descriptor", "columns"), STATES.values(), ids=STATES)
def test_a_namespace_keeps_apart_from_what_has_its_name(descriptor, columns, tmp_path):
    here, there = ((1, 2), (2, 1)) if len(descriptor.namespace) == 2 else (1, 2)
    backend = backend_of(KEY)
    state = backend.state(descriptor)
    for namespace in (here, there):
        fill(state, namespace)
    state.clear_batch(["eve"], namespace=there)
    expected = [held(state, namespace) for namespace in (here, there)]
    store = arrowstate.open_store(tmp_path / "store", create=True)
    with store.writer() as writer:
        first = writer.checkpoint({"op": [backend]})
        # Once as a state that nobody asks for, and once in two subtasks.
        untouched = writer.checkpoint({"op": [first.restore("op")]})
        parts = [untouched.restore("op", parallelism=2, subtask=number) for number in range(2)]
        for part in parts:
            part.state(descriptor)
        last = writer.checkpoint({"op": parts})
    savepoint = store.savepoint("copy")

    for snapshot in (first, untouched, last, savepoint):
        table = snapshot.to_arrow(f"op.{descriptor.name}")
        restored = snapshot.restore("op").state(descriptor)
        in_sql = snapshot.sql(f"select count(distinct {columns[1]}) from op.{descriptor.name} where {columns[1]} = 1")
        assert [name for name in table.column_names if name != "_seq"] == columns
        assert table.column(columns[1]).to_pylist().count(1) == len(USERS)
        assert in_sql.fetchall() == [(1,)]
        assert [held(restored, namespace) for namespace in (here, there)] == expected


@pytest.mark.parametrize(
    "descriptor",
    [
        arrowstate.ValueStateDescriptor("user", INT, namespace=spaces("user")),
        arrowstate.ListStateDescriptor("l", PAIR, namespace=spaces("user")),
        arrowstate.MapStateDescriptor("m", pa.string(), INT, namespace=spaces("m_key")),
        arrowstate.ValueStateDescriptor("v", INT, namespace=spaces("user", "v_user")),
    ],
    ids=["state and key", "field and key", "user key", "each other"],
)
def test_names_that_clash_even_with_the_name_of_the_state_before_them_are_refused_at_once(descriptor):
    backend = backend_of(KEY)

    with pytest.raises(arrowstate.InvalidInputError, match=f"the columns of state '{descriptor.name}' clash"):
        backend.state(descriptor)

    assert backend.state_names == ()
