"""Scripts read other checkpoints, and the functions and tables of `arrowstate`, in every form that a query knows."""

import itertools

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, NotFoundError

_names = itertools.count()
VALUE = arrowstate.ValueStateDescriptor("v", pa.int64())


@pytest.fixture
def store():
    """Checkpoints 1, 2 and 3 of values 1 and 2, then 10 and 2, then 100 and 2; the first is tagged."""
    store = arrowstate.open_store(f"memory://scripts-{next(_names)}", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    value = backend.state(VALUE)
    other = backend.state(arrowstate.ValueStateDescriptor("at", pa.int64()))
    mine = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    mine.state(VALUE).update_batch([1, 2], [1, 2])
    with store.writer() as writer:
        for number in (1, 10, 100):
            value.update_batch([1, 2], [number, 2])
            other.update_batch([1, 2], [number, 2])
            writer.checkpoint({"op": [backend], "my-op": [mine]})
    store.tag("gold", 1)
    return store


def after(store, script, state="op.v", **tables):
    with store.edit() as edit:
        edit.execute(script, tables=tables)
        name = state.rpartition(".")[2]
        return edit.snapshot.sql(f"select k, {name} from {state} order by k").fetchall()


SET_BACK = "update op.v set v = o.v from {} where o.k = v.k"


@pytest.mark.parametrize(
    "table",
    [
        "op.v o at (version => 1)",
        "op.v as o at (version => 1)",
        "op.v at (version => 1) o",
        "op.v at (version => 1) as o",
        "op.v o at (version => 'gold')",
        "op.v o at (version => -3)",
        "op.v o at (timestamp => (select committed_at from t))",
        "op.v o /* at (version => 2) */ at -- x\n (version => 3 - 2)",
        '"op"."v" o at (version => 1)',
        '"op.v" o at (version => 1)',
        "OP.V o AT (VERSION => 1)",
        '"my-op".v o at (version => 1)',
        "(select k, v from op.v at (version => 1)) o",
        "(select * from op.v at (version => 1) union all select * from op.v at (version => 2) where false) o",
        "(from op.v where false union all by name from op.v at (version => 1)) o",
        "op.v o(k, v) at (version => 1)",
        "arrowstate.state('op.v') at (version => 1) o",
        "(select k, v from arrowstate.changes('op.v', 1, 2) where _change_type = 'update_preimage') o",
        (
            "(select changes.k, changes.v from arrowstate.changes('op.v', 1, 2) where changes._change_type "
            "= 'update_preimage') o"
        ),
        "(select k, v from \"arrowstate\" . history('op.v', [1]) where _checkpoint_id = 1) o",
    ],
)
def test_a_script_puts_back_what_rows_were(store, table):
    if "timestamp" in table:
        committed = store.sql("select committed_at from arrowstate.checkpoints where checkpoint_id = 1").fetchall()[0][
            0
        ]
        table = f"op.v o at (timestamp => timestamp '{committed}')"
    if "state(" in table:
        with pytest.raises(InvalidInputError, match="syntax error"):
            after(store, SET_BACK.format(table))
        return

    assert after(store, SET_BACK.format(table)) == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("script", "rows"),
    [
        ("with o as (from op.v at (version => 1)) update op.v set v = o.v from o where o.k = v.k", [(1, 1), (2, 2)]),
        ("update op.v set v = (select o.v from op.v o at (version => 2) where o.k = v.k)", [(1, 10), (2, 2)]),
        (
            (
                "update op.v set v = a.v + b.v from op.v a at (version => 1) join op.v b at (version => 2) using (k) "
                "where a.k = v.k"
            ),
            [(1, 11), (2, 4)],
        ),
        (
            (
                "merge into op.v using op.v o at (version => 2) on o.k = v.k and o.k = 1 "
                "when matched then update set v = o.v when not matched then insert values (o.k + 10, o.v)"
            ),
            [(1, 10), (2, 2), (12, 2)],
        ),
        ("insert into op.v select k + 5, v from op.v at (version => -2)", [(1, 100), (2, 2), (6, 10), (7, 2)]),
        ("delete from op.v using op.v at (version => 1) o where o.k = v.k and o.v = v.v", [(1, 100)]),
        ("delete from op.v where v in (select v from arrowstate.changes('op.v', 2))", [(2, 2)]),
        ("delete from op.v where exists (from arrowstate.change_counts(1, 2) c where c.updated = 1)", []),
        ("update op.v set v = (select count(*) from arrowstate.states)", [(1, 3), (2, 3)]),
        (
            "update op.v set v = (select count(*) from arrowstate.tags at (version => 1) t where t.tag = 'gold')",
            [(1, 1), (2, 1)],
        ),
        (
            "create temp table o as from op.v at (version => 1); update op.v set v = o.v from o where o.k = v.k",
            [(1, 1), (2, 2)],
        ),
        (
            (
                "create temp table p as pivot (from op.v at (version => 1)) on k using sum(v); "
                'update op.v set v = (select sum("1") from p)'
            ),
            [(1, 1), (2, 1)],
        ),
        ("update op.v set v = length('from op.v at (version => 9)')", [(1, 27), (2, 27)]),
    ],
)
def test_statements_of_every_kind_read_other_checkpoints(store, script, rows):
    assert after(store, script) == rows


@pytest.mark.parametrize(
    "script",
    ["update op.v set v = 7; from op.v", "describe op.v; update op.v set v = 7; select * from op.v, range(50000)"],
)
def test_a_script_may_end_with_a_query_whose_rows_are_nobody_s(store, script):
    assert after(store, script) == [(1, 7), (2, 7)]


def test_a_state_may_be_named_at(store):
    script = 'update op."at" set "at" = o."at" from op."at" o at (version => 1) where o.k = "at".k'

    assert after(store, script, 'op."at"') == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        (SET_BACK.format("op.v o at (version => 9)"), NotFoundError, "9"),
        (SET_BACK.format("op.v o at (version => 'nobody')"), NotFoundError, "nobody"),
        (SET_BACK.format("op.v o at (version => null)"), InvalidInputError, "needs a checkpoint, got null"),
        (SET_BACK.format("op.v o at (version => k)"), InvalidInputError, "no column and no subquery"),
        (SET_BACK.format("op.nope o at (version => 1)"), NotFoundError, "op.nope"),
        ("delete from op.v where k in (select k from arrowstate.nope(1))", InvalidInputError, "no function"),
        ("delete from op.v where k in (select k from arrowstate.changes(1))", InvalidInputError, "has 1 arguments"),
        ("update op.v at (version => 1) set v = 1", InvalidInputError, "statement 1"),
        ("update op.v set v = at (version => 1)", InvalidInputError, "the script|syntax"),
        ("delete from op.v where k = 'x", InvalidInputError, "unterminated"),
        ("", InvalidInputError, "no statement"),
    ],
)
def test_what_a_script_cannot_read_is_an_error_and_changes_nothing(store, script, error, message):
    with store.edit() as edit:
        with pytest.raises(error, match=message):
            edit.execute(script)

        assert edit.plan().is_empty
