"""What libraries do not promise to keep, each claim by itself: a test that fails here names what an upgrade changed."""

import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import duckdb
import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrowstate
import arrowstate_formats
from arrowstate.query.duckdb.duckdb_internals import (
    Scannable,
    aggregate_names,
    arguments_of,
    text_of,
    tokens_of,
    tree_of,
)
from arrowstate.query.duckdb.pyarrow_internals import parts_of
from arrowstate.storage.clients import Failure, classify, make_client
from arrowstate_formats import numba_internals
from processes import python

ROOMS = [Path(arrowstate.__file__).parent, Path(arrowstate_formats.__file__).parent]


def test_what_libraries_keep_to_themselves_is_used_in_modules_of_that_name_alone():
    private = re.compile(r"noqa: SLF001|(?:get|set|has)attr\([^()]+, \"_[a-z]\w*\"")
    found = [
        f"{path}:{number}"
        for room in ROOMS
        for path in room.rglob("*.py")
        if not path.name.endswith("_internals.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if private.search(line)
    ]

    assert found == []


# pyarrow


def test_pyarrow_pickles_an_expression_as_literals_and_the_names_of_its_parts():
    expression = (pc.field("user") == "ann") & ~(pc.field("at", "day") > 3)

    literals, parts = parts_of(expression)

    assert parts == [
        ("call", "and_kleene"),
        ("call", "equal"),
        ("field_ref", "user"),
        ("literal", "0"),
        ("end", "equal"),
        ("call", "invert"),
        ("call", "greater"),
        ("nested_field_ref", "2"),
        ("field_ref", "at"),
        ("field_ref", "day"),
        ("literal", "1"),
        ("end", "greater"),
        ("end", "invert"),
        ("end", "and_kleene"),
    ]
    assert [column.to_pylist() for column in literals.columns] == [["ann"], [3]]


def test_pyarrow_pickles_the_values_of_is_in_among_its_options():
    literals, parts = parts_of(pc.field("user").isin(["ann", "bob"]))

    (options,) = [text for kind, text in parts if kind == "options"]
    assert literals.column(int(options))[0]["value_set"].values.to_pylist() == ["ann", "bob"]


# DuckDB


def test_duckdb_asks_a_dataset_for_a_scanner_with_columns_and_filter_and_reads_its_stream():
    asked = []

    class Rows(Scannable):
        def scan(self, columns, filter):
            asked.append((columns, str(filter)))
            rows = pa.table({"k": [1, 2], "v": ["a", "b"]}, schema=self.schema)
            yield from rows.filter(filter).select(columns).to_batches()

    connection = duckdb.connect()
    connection.register("rows", Rows(pa.schema([("k", pa.int64()), ("v", pa.string())])))

    found = connection.sql("select v from rows where k = 2").fetchall()

    assert found == [("b",)]
    ((columns, filter),) = asked
    assert "v" in columns
    assert "k" in filter
    assert "2" in filter


@pytest.mark.parametrize("one", ["a", "+", "12", "'it''s -- /*'", "e'\\' -- '", '"-- "', "$$ -- $$", "$x$ $$ -- $x$"])
@pytest.mark.parametrize("comment", ["-- it's\n", "/* b */ -- c\n", "--", ""])
def test_a_comment_behind_a_token_is_no_part_of_it(one, comment):
    tokens = tokens_of(f"select {one} {comment}, b")

    assert [token.text for token in tokens][:2] == ["select", one]


def test_duckdb_tells_where_each_token_of_a_text_begins_in_bytes():
    text = "from \"ü\".v /* at (1) */ at (version => ?) -- é\nwhere x = 'at (2)' and y = $$;$$"

    tokens = tokens_of(text)

    assert [token.text for token in tokens] == [
        *("from", '"ü"', ".", "v", "at", "(", "version", "=>", "?", ")"),
        *("where", "x", "=", "'at (2)'", "and", "y", "=", "$$;$$"),
    ]
    assert [text[token.start : token.end] for token in tokens] == [token.text for token in tokens]
    assert [token.name for token in tokens[:5]] == ["from", "ü", None, "v", "at"]


def test_duckdb_gives_the_tree_of_a_select_and_makes_text_of_it_again():
    tree = tree_of(
        "select a + ? as b from s.t o at (version => 'gold'), f.g(1, n => 2) where a in (select max(c) from t)"
    )

    (statement,) = tree["statements"]
    node = statement["node"]
    left, right = node["from_table"]["left"], node["from_table"]["right"]
    assert node["select_list"][0]["alias"] == "b"
    parts = [expression for _, expression in arguments_of(node["select_list"][0])]
    assert [part["class"] for part in parts] == ["COLUMN_REF", "PARAMETER"]
    assert parts[1]["identifier"] == "1"
    assert (left["type"], left["schema_name"], left["table_name"], left["alias"]) == ("BASE_TABLE", "s", "t", "o")
    assert left["at_clause"]["unit"] == "VERSION"
    # DuckDB 1.4 has no such name, and overlooks it in a tree that becomes a text.
    assert left.get("qualified_name", {"path": ["s", "t"]}) == {"path": ["s", "t"]}
    assert (right["type"], right["function"]["schema"], right["function"]["function_name"]) == (
        "TABLE_FUNCTION",
        "f",
        "g",
    )
    assert [name for name, _ in arguments_of(right["function"])] == ["", "n"]
    assert (node["where_clause"]["class"], "subquery" in node["where_clause"]) == ("SUBQUERY", True)
    assert text_of(tree).startswith("SELECT (a + $1) AS b FROM s.t AS o AT (VERSION => 'gold') ")


@pytest.mark.parametrize("text", ["update t set a = 1", "select 1)", "pivot a on b using sum(c)", "select 1 /*"])
def test_duckdb_gives_no_tree_of_what_is_no_select(text):
    tree = tree_of(text)

    assert tree["error"]
    assert tree["error_message"]


@pytest.mark.parametrize(("text", "kind"), [("*", "STAR"), ("columns('a')", "STAR"), ("rank() over ()", "WINDOW")])
def test_duckdb_says_what_kind_of_expression_something_is(text, kind):
    (chosen,) = tree_of(f"select {text}")["statements"][0]["node"]["select_list"]

    assert chosen["class"] == kind


def test_the_number_of_a_parameter_is_a_token_beside_its_sign():
    assert [token[:] for token in tokens_of("ä >$12, $b")] == [
        ("ä", 0, 1),
        (">", 2, 3),
        ("$", 3, 4),
        ("12", 4, 6),
        (",", 6, 7),
        ("$", 8, 9),
        ("b", 9, 10),
    ]


def test_duckdb_says_which_arguments_a_function_has_in_either_form():
    function = tree_of("from f('a', expired => $x)")["statements"][0]["node"]["from_table"]["function"]
    earlier = {"children": [{"class": "CONSTANT", "alias": ""}, {"class": "PARAMETER", "alias": "expired"}]}

    for each in (function, earlier):
        assert [(name, expression["class"]) for name, expression in arguments_of(each)] == [
            ("", "CONSTANT"),
            ("expired", "PARAMETER"),
        ]


def test_duckdb_knows_its_aggregates():
    assert {"sum", "max", "count", "arg_max", "list"} <= aggregate_names()
    assert aggregate_names().isdisjoint({"abs", "greatest", "list_sum"})


# numba and llvmlite


class Kept:
    """What a dispatcher takes for its cache."""

    cache_path = ""

    def __init__(self, data=None):
        self.data = data
        self.loaded = 0

    def load_overload(self, _signature, target_context):
        self.loaded += 1
        return None if self.data is None else numba_internals.rebuilt(target_context, self.data)

    def save_overload(self, _signature, compiled):
        self.data = numba_internals.dumped(compiled)

    def enable(self): ...


def twice(number):
    return 2 * number


def test_numba_asks_the_cache_of_a_dispatcher_and_runs_what_it_rebuilds():
    first, kept = numba.njit(twice), Kept()
    numba_internals.keep_in(first, kept)
    first.compile((numba.types.int64,))
    second, again = numba.njit(twice), Kept(kept.data)
    numba_internals.keep_in(second, again)
    again.save_overload = None

    second.compile((numba.types.int64,))

    assert (kept.loaded, again.loaded) == (1, 1)
    assert (first(21), second(21)) == (42, 42)


def test_llvm_has_an_instruction_to_prefetch():
    prefetch = numba.extending.intrinsic(numba_internals.prefetcher())

    @numba.njit
    def ask(address):
        prefetch(address)
        return address

    assert ask(np.uint64(12345)) == 12345
    assert "@llvm.prefetch" in next(iter(ask.inspect_llvm().values()))


@pytest.mark.parametrize("bits", [8, 32, 64])
def test_llvm_loads_and_stores_at_any_address(bits):
    load, store = (numba.extending.intrinsic(make(bits)) for make in (numba_internals.loader, numba_internals.storer))
    kind = np.dtype(f"uint{bits}").type

    @numba.njit
    def move(source, target):
        store(target, load(source))

    place = np.arange(32, dtype=np.uint8)
    move(np.uint64(place.ctypes.data + 1), np.uint64(place.ctypes.data + 17))

    width = bits // 8
    assert place[17 : 17 + width].tobytes() == bytes(range(1, 1 + width))
    assert place[17 : 17 + width].view(kind)[0] == int.from_bytes(bytes(range(1, 1 + width)), "little")


def test_llvm_rotates():
    rotate = numba.extending.intrinsic(numba_internals.rotator())

    @numba.njit
    def rotated(value, bits):
        return rotate(value, bits)

    assert rotated(np.uint64(0x8000000000000001), np.uint64(4)) == 0x18


# s3fs, gcsfs, adlfs


@pytest.fixture
def busy_server():
    """A service that has no time for anybody, and what it was asked for."""
    asked = []

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            # In the words of S3, for which s3fs has an ear.
            text = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            self.send_response(503)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815

        def log_message(self, *_): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def options_of(protocol, url):
    if protocol == "s3":
        return {"key": "key", "secret": "secret", "endpoint_url": url}
    if protocol == "gs":
        return {"token": "anon", "endpoint_url": url}
    account = "AccountName=devstoreaccount1;AccountKey=a2V5"
    return {"connection_string": f"DefaultEndpointsProtocol=http;{account};BlobEndpoint={url}/devstoreaccount1;"}


@pytest.mark.parametrize(("library", "protocol"), [("s3fs", "s3"), ("gcsfs", "gs"), ("adlfs", "abfs")])
def test_a_request_that_is_refused_for_a_moment_is_made_once(library, protocol, busy_server):
    url, asked = busy_server
    client = make_client(protocol, f"{protocol}://bucket/store", options_of(protocol, url))

    with pytest.raises(Exception) as refused:
        client.pipe_file("bucket/store/file", b"some bytes")

    assert classify(refused.value) is Failure.TRANSIENT
    assert len(asked) == 1, f"{library} asked {len(asked)} times"


# threading


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 2), reason="these start no thread at their end (python/cpython#113964)"
)
def test_what_is_done_at_the_end_of_the_interpreter_comes_before_executors_refuse_work():
    script = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from arrowstate.runtime.drivers.threading_internals import before_executors_end\n"
        "pool = ThreadPoolExecutor(1)\n"
        "before_executors_end(lambda: print(pool.submit(lambda: 'worked').result()))\n"
    )

    done = python("-c", script, timeout=300)

    assert (done.stdout, done.stderr) == ("worked\n", "")
