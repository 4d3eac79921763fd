"""Connections that serve one query after the other: no result is that of another one, whoever holds it."""

import gc
import random

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import InvalidInputError, StateNotFoundError
from long_form import short_or_long
from processes import at_once, python

ROWS = 3_000


@pytest.fixture(scope="module")
def snapshots():
    """Of two stores, in which a number has its square and its double."""
    made = []
    for name, factor in (("first", 1), ("second", 3)):
        store = arrowstate.open_store(f"memory://sessions-{name}", create=True)
        backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=128)
        numbers = pa.array(range(ROWS), pa.int64())
        for state, values in (("square", [n * n * factor for n in range(ROWS)]), ("double", range(ROWS))):
            backend.state(arrowstate.ValueStateDescriptor(state, pa.int64())).update_batch(numbers, values)
        with store.writer() as writer:
            writer.checkpoint({"op": [backend]})
            made.append(writer.checkpoint({"op": [backend]}))
    return made


def asked(snapshots, chance):
    """A relation of a random query, and its rows."""
    number, which = chance.randrange(ROWS + 5), chance.randrange(2)
    snapshot, factor = snapshots[which], (1, 3)[which]
    query, value = chance.choice(
        [
            ("select square from op.square where n = {}", number * number * factor),
            ("select double from op.double where n = {}", number),
            (
                "select square + double from op.square join op.double using (n) where n = {}",
                number * number * factor + number,
            ),
            ("select square from op.square at (version => 1) where n = {}", number * number * factor),
            ("select f.x * double from f join op.double on f.y = n where n = {}", 7 * number),
        ]
    )
    tables = {"f": pa.table({"x": [7], "y": [number]})} if " f " in query else {}
    rows = [(value,)] if number < ROWS else []
    if chance.random() < 0.5:
        return snapshot.sql(query.format(number), tables=tables), rows
    return snapshot.sql(query.format("?"), params=[number], tables=tables), rows


def fetched(relation, chance):
    ways = [
        relation.fetchall,
        lambda: [tuple(row.values()) for row in relation.to_arrow_table().to_pylist()],
        lambda: relation.pl(lazy=True).collect().rows(),
        lambda: relation.limit(5).fetchall(),
        lambda: [tuple(row.values()) for batch in relation.to_arrow_reader(10) for row in batch.to_pylist()],
    ]
    if hasattr(relation, "materialize"):
        ways.append(lambda: relation.materialize().fetchall())
    return chance.choice(ways)()


@pytest.mark.parametrize("seed", range(short_or_long(3, 100)))
def test_results_that_live_beside_each_other_keep_their_own_rows(snapshots, seed):
    chance = random.Random(seed)
    held = []

    for _ in range(60):
        match chance.randrange(4):
            case 0 if held:
                held.pop(chance.randrange(len(held)))
            case 1 if held:
                relation, rows = chance.choice(held)
                assert relation.fetchall() == rows
            case 2:
                with pytest.raises(InvalidInputError):
                    chance.choice(snapshots).sql("select nothing from op.square")
            case _:
                relation, rows = asked(snapshots, chance)
                assert fetched(relation, chance) == rows
                if chance.random() < 0.5:
                    held.append(asked(snapshots, chance))
    for relation, rows in held:
        assert relation.fetchall() == rows


def test_threads_do_not_meet(snapshots):
    def ask(seed):
        chance = random.Random(seed)
        for _ in range(30):
            relation, rows = asked(snapshots, chance)
            assert fetched(relation, chance) == rows

    at_once(ask, range(4))


def test_a_scan_is_told_to_the_snapshot_that_was_asked(snapshots):
    first = snapshots[0]
    again = arrowstate.open_store("memory://sessions-first").latest()
    for snapshot, number in ((first, 7), (again, 8), (first, 9)):
        assert snapshot.sql(f"select double from op.double where n = {number}").fetchall() == [(number,)]
        gc.collect()

        assert f"n == {number}" in str(snapshot.scans[-1].filter)
    assert [f"n == {number}" in str(scan.filter) for scan, number in zip(again.scans, [8], strict=True)] == [True]


def test_a_reader_outlives_its_query(snapshots):
    reader = snapshots[0].sql("select n, square from op.square order by n").to_arrow_reader(100)
    first = reader.read_next_batch().num_rows
    for number in range(5):
        assert snapshots[0].sql(f"select double from op.double where n = {number}").fetchall() == [(number,)]

    rest = reader.read_all()

    assert first + rest.num_rows == ROWS
    assert rest["square"].to_pylist()[-1] == (ROWS - 1) ** 2


def test_a_lazy_frame_outlives_its_query(snapshots):
    frames = []
    for number in range(10):
        relation = snapshots[number % 2].sql(f"select double from op.double where n >= {ROWS - number}")
        frames.append(relation.pl(lazy=True))
        del relation

    assert [frame.collect().height for frame in frames] == list(range(10))


def test_tables_of_one_query_are_not_those_of_the_next(snapshots):
    for _ in range(3):
        assert snapshots[0].sql("from f", tables={"f": pa.table({"x": [1]})}).fetchall() == [(1,)]
        gc.collect()

        with pytest.raises(StateNotFoundError, match="f"):
            snapshots[0].sql("from f")


@pytest.mark.parametrize("before", ["", "summarize ", "explain analyze "])
def test_a_query_with_parameters_ends_while_other_threads_are_busy(before):
    asking = """
import random, sys, threading, time
import pyarrow as pa
import arrowstate

rows, rounds, before = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
store = arrowstate.open_store("memory://busy", create=True)
backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=128)
for state in ("one", "two"):
    backend.state(arrowstate.ValueStateDescriptor(state, pa.int64())).update_batch(range(rows), range(rows))
with store.writer() as writer:
    snapshot = writer.checkpoint({"op": [backend]})

def work():
    while True:
        time.sleep(0)

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
for _ in range(rounds):
    number = random.randrange(rows)
    query = before + "select one + two from op.one join op.two using (n) where n = ?"
    found = snapshot.sql(query, params=[number]).fetchall()
    assert before or found == [(2 * number,)]
print("ended")
"""

    assert python("-c", asking, ROWS, short_or_long(100, 1_000), before, timeout=300).stdout == "ended\n"


def test_an_answer_for_parameters_may_have_structs_without_names(snapshots):
    query = "select row(double, ?) from op.double where n = ?"

    assert snapshots[0].sql(query, params=["a", 7]).fetchall() == [((7, "a"),)]


def test_the_line_of_an_error_is_that_of_the_query_with_parameters(snapshots):
    with pytest.raises(InvalidInputError, match='Referenced column "nothing" not found') as error:
        snapshots[0].sql("select * from op.square\nwhere nothing = ?", params=[1])

    # Early versions of DuckDB say it.
    assert "LINE" not in str(error.value) or "LINE 2: where nothing = ?" in str(error.value)
