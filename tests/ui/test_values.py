"""Values are shown as what they are, and within bounds: on pages, as JSON, as CSV."""

import csv
import io
import math
import re
import resource

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrowstate
from arrowstate.ui.shown import Room, as_cell, as_text, cells
from early_versions import is_before
from stores import commit

from .conftest import Visit

WEIRD = ["", " ", "\n", "nul\x00in", "\u200b", "\u202eleft", " ann", "\x07", "\u3164", "ann"]


@pytest.fixture(scope="module")
def odd():
    """A store of odd keys and values, of two checkpoints."""
    store = arrowstate.open_store("memory://ui-odd", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=8)
    number = pa.struct([("x", pa.float64()), ("many", pa.list_(pa.float32())), ("at", pa.timestamp("ns"))])
    values = backend.state(arrowstate.ValueStateDescriptor("v", number))
    words = backend.state(arrowstate.ListStateDescriptor("words", pa.string()))
    with store.writer() as writer:
        for begin in (0.0, 1.0):
            rows = [{"x": begin, "many": [begin], "at": 1}] * (len(WEIRD) - 3)
            rows += [
                {"x": math.nan, "many": [math.inf, None], "at": None},
                {"x": math.inf, "many": [], "at": None},
                {"x": -math.inf, "many": None, "at": None},
            ]
            values.update_batch(WEIRD, pa.array(rows, number))
            words.add_batch(WEIRD, WEIRD)
            writer.checkpoint({"op": [backend]}, properties={"": "", "p\x00": "\x1b[31m"})
    return Visit(store)


PAGES = [
    "checkpoints",
    "checkpoint",
    "state?operator=op&state=v&key0=",
    "rows?operator=op&state=v",
    "rows?operator=op&state=words",
    "largest?operator=op&state=words",
    "history?operator=op&state=v&key0=",
    "grown?operator=op&state=words&before=1&after=2",
    "changed_rows?operator=op&state=v&before=1&after=2",
    "diff?before=1&after=2",
    "sql",
]


@pytest.mark.parametrize("path", PAGES)
def test_every_link_has_a_text_and_no_control_character_is_in_a_page(odd, path):
    html = odd.get(f"/0/{path}").text
    texts = [
        re.sub(r"<[^>]+>|[\s\x00-\x1f\u200b\u3164]", "", link) for link in re.findall(r"<a [^>]*>(.*?)</a>", html, re.S)
    ]

    assert texts
    assert all(texts)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u200b]", html)


@pytest.mark.parametrize("key", WEIRD)
def test_a_key_of_any_text_is_looked_up(odd, key):
    found = odd.get("/0/rows.json", params={"operator": "op", "state": "v", "key0": key}).json()

    assert (found["count"], found["keys"]) == (1, [[key]])


def test_floats_that_are_not_finite_are_told_from_null_everywhere(odd):
    rows = odd.json("/0/rows.json?operator=op&state=v")["rows"]
    history = odd.json("/0/history.json?operator=op&state=v&key0=ann")["changes"][0]["values"]
    changed = odd.json("/0/changed_rows.json?operator=op&state=v&before=nothing&after=2")["rows"]
    query = "select x, many from op.v where not isfinite(x) order by x"
    answer = odd.client.post("/0/run.json", data={"q": query}).json()["rows"]
    table = list(csv.reader(io.StringIO(odd.client.post("/0/run.csv", data={"q": query}).text)))

    by_key = {row[0]: row[1:] for row in rows}
    assert by_key["\x07"] == ["NaN", ["Infinity", None], None]
    assert by_key["ann"] == history == ["-Infinity", None, None]
    assert {row["is"][0]: row["is"][1:] for row in changed} == by_key
    assert answer == [["-Infinity", None], ["Infinity", []], ["NaN", ["Infinity", None]]]
    assert table[1:] == [["-Infinity", ""], ["Infinity", "[]"], ["NaN", '["Infinity", null]']]


@pytest.mark.skipif(is_before("duckdb", (2,)), reason="an early DuckDB takes no zero in a query")
def test_an_empty_cell_of_csv_is_null_and_two_quotes_are_the_empty_text(odd):
    query = "select * from (values (null), (''), (' '), ('\x00')) t(a)"

    assert odd.client.post("/0/run.csv", data={"q": query}).text == 'a\n\n""\n" "\n\x00\n'


@pytest.mark.parametrize(
    ("text", "shown"),
    [("", '""'), ("  ", '"  "'), ("\t", '"\\u0009"'), ("a\x00b", "a\\u0000b"), (" a", '" a"'), ("a b\nc", "a b\nc")],
)
def test_what_is_not_seen_is_written(text, shown):
    # A tab and the end of a line are seen between words.
    expected = '"\t"' if text == "\t" else shown

    assert re.sub("<[^>]+>", "", str(as_text(text))).replace("&#34;", '"') in (shown, expected)


def test_times_that_python_has_not_are_shown(odd):
    query = (
        "select timestamp '99999-01-01' a, [timestamp_ns '2026-01-01 00:00:00.000000001'] b, date '0044-03-15 (BC)' c"
    )
    (row,) = odd.client.post("/0/run.json", data={"q": query}).json()["rows"]

    assert row[0].startswith("99999-01-01")
    assert row[1] == ["2026-01-01 00:00:00.000000001"]
    assert odd.client.post("/0/run.csv", data={"q": query}).status_code == 200


LARGE = {
    "text": "repeat('x', 5_000_000)",
    "bytes": "repeat('x', 5_000_000)::blob",
    "list": "list_transform(range(600_000), lambda x: x)",
    "texts": "[repeat('x', 5_000_000)]",
    "map": "map {'a': repeat('x', 5_000_000)}",
    "struct": "{'a': [repeat('x', 5_000_000)]}",
}


@pytest.mark.parametrize("name", LARGE)
def test_a_value_that_is_large_is_cut_and_says_how_large_it_is(odd, name):
    query = f"select i, {LARGE[name]} as large from range(3) r(i)"

    found = odd.client.post("/0/run.json", data={"q": query})
    page = odd.client.post("/0/run", data={"q": query}, headers={"hx-request": "true"})

    assert [row[0] for row in found.json()["rows"]] == [0, 1, 2]
    assert all(set(row[1]) == {"_cut", "_bytes"} and row[1]["_bytes"] > 4_000_000 for row in found.json()["rows"])
    assert page.text.count(" MB</i>") == 3
    assert max(len(found.content), len(page.content)) < 10_000


def test_rows_end_where_an_answer_has_no_more_room(odd):
    wide = ", ".join(f"repeat('x', 90_000) as c{number}" for number in range(40))
    found = odd.client.post("/0/run.json", data={"q": f"select {wide} from range(20)"})

    assert found.json()["is_cut"]
    assert len(found.json()["rows"]) == 3
    assert len(found.content) < 12_000_000


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet", ""])
@pytest.mark.parametrize(
    "query",
    [
        "select repeat('x', 9_000_000) from range(60)",
        "select repeat('x', 1_000_000_000)",
        "select [repeat('x', 9_000_000)] from range(60)",
        "select string_agg(repeat('x', 1000), '') from range(1_000_000)",
    ],
)
def test_a_result_is_computed_in_the_memory_of_a_query(odd, suffix, query):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    answer = odd.client.post(f"/0/run{suffix}", data={"q": query})

    assert answer.status_code == 400
    assert "Out of Memory" in answer.text or "may make at most" in answer.text
    assert len(answer.content) < 20_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 450 << 10


def test_a_download_is_bounded_in_bytes(odd, limits):
    visit = Visit(odd.site.places[0].store, limits=limits(download_bytes=1_000_000))
    query = "select repeat(i::varchar, 1000) as text from range(5000) r(i)"

    answers = [
        visit.client.post("/0/run.csv", data={"q": query}),
        odd.client.post("/0/run.parquet", data={"q": query}),
    ]

    assert [answer.status_code for answer in answers] == [400, 200]
    assert "more than 1.0 MB" in answers[0].text
    assert pq.read_table(io.BytesIO(answers[1].content)).num_rows == 5000


def test_rows_histories_and_comparisons_are_bounded_as_results_are(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=8)
    values = backend.state(arrowstate.ValueStateDescriptor("v", pa.string()))
    long_key = "k" * 200_000
    with store.writer() as writer:
        for number in range(3):
            values.update_batch(["a", "b", long_key], [str(number) * 2_000_000] * 3)
            writer.checkpoint({"op": [backend]}, properties={"note": "n" * 300_000})
    visit = Visit(store)
    of = "operator=op&state=v"

    paths = ["checkpoint", "diff?before=nothing&after=1", f"largest?{of}", f"grown?{of}&before=nothing"]
    paths += [f"rows?{of}", f"history?{of}&key0=a", f"changed_rows?{of}&before=1&after=2"]
    sizes = {}
    for path in paths:
        name, _, query = path.partition("?")
        answers = [visit.get(f"/0/{path}"), visit.get(f"/0/{name}.json?{query}")]
        assert [answer.status_code for answer in answers] == [200, 200], path
        sizes[name] = max(len(answer.content) for answer in answers)

    assert {name: size for name, size in sizes.items() if size > 60_000} == {}
    ((_, value),) = visit.json(f"/0/rows.json?{of}&key0=a")["rows"]
    assert value["_cut"] == "2" * 500
    assert value["_bytes"] == pytest.approx(2_000_000, abs=100)


def test_rows_that_do_not_fit_come_with_the_next_ones(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.int64())]), max_parallelism=8)
    values = backend.state(arrowstate.ListStateDescriptor("v", pa.string()))
    values.add_batch(list(range(200)), ["x" * 99_000] * 200)
    commit(store, {"op": [backend]})
    visit, seen, after = Visit(store), [], 0

    while after is not None:
        found = visit.get(f"/0/rows.json?operator=op&state=v&after={after}")
        assert len(found.content) < 9_000_000
        seen += [row[0] for row in found.json()["rows"]]
        after = found.json()["next"]

    assert sorted(seen) == list(range(200))


def test_bytes_are_shown_as_the_first_32_and_their_number():
    array = pa.array([b"\x00" * 32, b"\x00" * 31 + b"\xff" * 2_000, b"", None], pa.binary())
    rows = cells(pa.record_batch([array], names=["raw"]), Room())

    assert [str(as_cell(value)) for (value,) in rows] == [
        f"<bdi>{'00' * 32}</bdi>",
        f"<bdi>{'00' * 31}ff</bdi>… <i>2,031 bytes</i>",
        '<bdi><span class="none">""</span></bdi>',
        '<span class="none">null</span>',
    ]
    # JSON has them all.
    assert rows[1][0] == "00" * 31 + "ff" * 2_000


def test_cells_are_those_of_arrow():
    batch = pa.RecordBatch.from_pydict(
        {"a": [1, None], "b": pa.array(["x", "y"]).dictionary_encode(), "c": [[b"\xff"], None]}
    )

    assert cells(batch, Room()) == [[1, "x", ["ff"]], [None, "y", None]]
    assert cells(batch, Room(1)) == [[1, *cells(batch, Room())[0][1:]]]
    assert str(as_cell(None)) == '<span class="none">null</span>'
