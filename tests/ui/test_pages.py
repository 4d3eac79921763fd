"""What each page says, as JSON; and that its HTML holds it."""

import re
import time
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.html import graph_svg, strip_svg
from arrowstate.ui.metrics import metrics_text
from stores import OFFSETS, commit

from .conftest import NASTY, Visit

PAGES = "operator=counter&state=pages"
PROFILE = "operator=counter&state=profile"
HTML = [
    "checkpoints",
    "checkpoint",
    "files?before=11",
    "verified",
    f"state?{PAGES}",
    f"state?{PROFILE}&key0=user-1",
    f"state_files?{PAGES}",
    f"strip?{PAGES}",
    f"largest?{PAGES}",
    f"largest?{PROFILE}",
    "largest?operator=counter&state=clicks",
    f"rows?{PROFILE}&checkpoint=5",
    f"state?{PROFILE}&column=city",
    f"facets?{PROFILE}&column=city",
    f"history?{PROFILE}&key0=user-1",
    "sql",
    "sql?q=select+1",
    "diff",
    f"diff?before=nothing&after=2&{PAGES}",
    "counts",
    f"grown?{PAGES}",
    f"changed_rows?{PROFILE}&before=6&after=7",
    "storage",
    "collection",
    "compaction",
    "stores",
    "batches",
]


@pytest.mark.parametrize("path", HTML)
def test_every_page_is_there_as_html_without_markup_or_code_of_a_store(visit, path):
    answer = visit.get(f"/0/{path}")

    assert answer.status_code == 200, answer.text
    assert "<script>alert" not in answer.text
    assert not re.search(r"<[^>]*\s(style|on[a-z]+)=", answer.text)
    assert 'class="fault"' not in answer.text


@pytest.mark.parametrize("path", [*HTML, "amplification", "series", "head"])
def test_every_page_is_there_as_json(visit, path):
    name, _, query = path.partition("?")

    assert isinstance(visit.json(f"/0/{name}.json?{query}"), dict)


def test_a_checkpoint_tells_operators_states_and_its_slowest_subtask(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    key = pa.schema([("n", pa.int64())])
    ranges = [arrowstate.KeyGroupRange(0, 63), arrowstate.KeyGroupRange(64, 127)]
    backends = [arrowstate.KeyedStateBackend(key=key, max_parallelism=128, key_groups=own) for own in ranges]
    groups = arrowstate.key_groups(pa.array(range(5_000)), 128).to_numpy()
    for backend, own in zip(backends, ranges, strict=True):
        keys = np.flatnonzero((groups >= own.start) & (groups <= own.end))
        backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(keys, keys)
    commit(store, {"op": backends})

    found = Visit(store).json("/0/checkpoint.json")

    assert [row["subtask"] for row in found["subtasks"]] in ([0, 1], [1, 0])
    times = [row["sync_us"] + row["async_us"] for row in found["subtasks"]]
    assert times == sorted(times, reverse=True)
    assert found["slowest"]["subtask"] == found["subtasks"][0]["subtask"]
    assert sum(row["rows"] for row in found["subtasks"]) == 5_000


def test_files_are_new_kept_or_dropped(visit, clicks):
    found = visit.json("/0/files.json?checkpoint=12&before=11")
    counts = {row["what"]: row["files"] for row in found["counts"]}
    paths = {row["path"] for row in found["files"] if row["what"] != "dropped"}

    assert counts["new"] + counts["kept"] == len(paths) == clicks.snapshot(12).storage_use().files


def test_every_byte_is_read_when_asked_and_what_is_damaged_is_told(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("n", pa.int64())]), max_parallelism=8)
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(range(30_000), range(30_000))
    commit(store, {"op": [backend]})
    visit = Visit(store)

    def verified():
        assert visit.client.post("/0/verify?checkpoint=1").status_code == 303
        until = time.monotonic() + 30
        while (found := visit.json("/0/verified.json?checkpoint=1")["deep"])["problems"] is None:
            assert time.monotonic() < until
        return found

    whole = verified()
    (path,) = (tmp_path / "store/data").rglob("*.arrow")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    damaged = verified()

    assert (whole["problems"], whole["rows"]) == ([], 30_000)
    assert len(damaged["problems"]) == 1
    assert path.name in damaged["problems"][0]


def test_a_state_tells_what_its_schema_versions_changed(visit):
    found = visit.json(f"/0/state.json?{PROFILE}&checkpoint=7")

    assert [version["changes"] for version in found["versions"]] == [[], ["added plan string"]]
    assert [field["name"] for field in found["key"]] == ["user"]


def test_a_strip_counts_each_row_once_and_says_how_skewed_it_is(visit, clicks):
    found = visit.json(f"/0/strip.json?{PAGES}")
    table = clicks.latest().to_arrow("counter.pages", columns=["_key_group"])
    counts = np.bincount(table.column(0).to_numpy(), minlength=128)

    assert found["counts"] == counts.tolist()
    assert found["most"] == counts.max()
    assert found["skew"] == pytest.approx(counts.max() / counts.mean())
    differences = np.abs(counts[:, None] - counts[None, :]).sum()
    assert found["gini"] == pytest.approx(differences / (2 * 128 * counts.sum()))
    assert found["fullest"][0]["rows"] == counts.max()


def test_the_largest_keys_are_those_with_most_rows_or_the_largest_values(visit, monkeypatch):
    monkeypatch.setattr("arrowstate.ui.largest._STEP_ROWS", 50)
    by_rows = visit.json(f"/0/largest.json?{PAGES}")
    by_size = visit.json(f"/0/largest.json?{PROFILE}&checkpoint=6")
    fixed = visit.json("/0/largest.json?operator=counter&state=clicks")

    assert (by_rows["by"], by_rows["keys"][0]) == ("rows", {"key": ["bot-7"], "size": 600})
    assert by_size["keys"][0]["size"] == len(NASTY.encode())
    assert fixed["by"] == "nothing"


def test_rows_are_browsed_to_the_end_each_once(visit, clicks, monkeypatch):
    monkeypatch.setattr("arrowstate.ui.state._PAGE_ROWS", 90)
    seen, after = [], 0

    while after is not None:
        found = visit.json(f"/0/rows.json?{PAGES}&after={after}")
        seen += [tuple(row) for row in found["rows"]]
        after = found["next"]

    expected = [tuple(row.values()) for row in clicks.latest().to_arrow("counter.pages").to_pylist()]
    assert sorted(seen) == sorted(expected)


def test_rows_of_a_key_group_are_its_own(visit, clicks):
    found = visit.json(f"/0/rows.json?{PAGES}&key_group=5")
    own = arrowstate.KeyGroupRange(5, 5)

    assert len(found["rows"]) == clicks.latest().to_arrow("counter.pages", key_groups=own).num_rows


def test_a_key_is_looked_up_and_its_history_told(visit, clicks):
    rows = visit.json("/0/rows.json?operator=counter&state=clicks&key0=user-37")
    told = visit.json("/0/history.json?operator=counter&state=clicks&key0=user-37")

    assert rows["rows"] == [list(clicks.latest().lookup("counter.clicks", ["user-37"]).to_pylist()[0].values())]
    expected = clicks.latest().history("counter.clicks", ["user-37"]).to_pylist()
    assert [(row["checkpoint_id"], row["values"]) for row in told["changes"]] == [
        (row["_checkpoint_id"], [row["clicks"]]) for row in reversed(expected)
    ]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), -7),
        (pa.string(), NASTY),
        (pa.binary(), b"\xff\x00"),
        (pa.bool_(), True),
        (pa.timestamp("us"), 1_700_000_000_123_456),
        (pa.date32(), 19_000),
        (pa.decimal128(9, 2), None),
        (pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": "x"}),
    ],
)
def test_a_key_of_any_type_is_found_by_the_link_that_names_it(tmp_path, kind, value):
    import decimal

    value = decimal.Decimal("12.50") if value is None else value
    store = arrowstate.open_store(f"memory://ui-{kind}", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", kind)]), max_parallelism=8)
    backend.state(arrowstate.ValueStateDescriptor("v", pa.int64())).update_batch(pa.array([value], kind), [5])
    commit(store, {"op": [backend]})
    visit = Visit(store)
    (key,) = visit.json("/0/rows.json?operator=op&state=v")["keys"]

    found = visit.json("/0/rows.json?operator=op&state=v&" + urlencode({"key0": key[0]}))

    assert [row[-1] for row in found["rows"]] == [5]


def test_a_comparison_tells_which_key_grew_and_what_a_deployment_changed(visit, clicks):
    found = visit.json("/0/diff.json")
    grown = visit.json(f"/0/grown.json?{PAGES}")
    counts = visit.json("/0/counts.json")

    assert (found["before"], found["after"]) == (4, 12)
    assert [row["properties"] for row in found["writers"]] == ['{"release":"42"}']
    assert grown["keys"][0] == {"key": ["bot-7"], "rows": 600, "bytes": grown["keys"][0]["bytes"]}
    expected = clicks.diff(4, 12).to_arrow().to_pylist()
    assert counts["states"] == expected
    assert any("plan" in (row["schema_change"] or "") for row in counts["states"])


def test_a_comparison_tells_of_operator_state():
    store = arrowstate.open_store("memory://ui-operator-state", create=True)
    source = arrowstate.OperatorStateBackend()
    with store.writer() as writer:
        for number in range(2):
            source.state(OFFSETS).update([number, 7])
            writer.checkpoint({}, operator_states={"source": [source]})

    (found,) = Visit(store).json("/0/counts.json?before=1&after=2")["states"]

    assert (found["operator"], found["state"], found["inserted"], found["deleted"]) == ("source", "offsets", 1, 1)


def test_values_that_grow_without_rows_are_told_too(tmp_path):
    store = arrowstate.open_store("memory://ui-grown", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=8)
    text = backend.state(arrowstate.ValueStateDescriptor("text", pa.string()))
    with store.writer() as writer:
        text.update_batch(["a", "b", "c"], ["xx", "yy", "zz"])
        writer.checkpoint({"op": [backend]})
        text.update_batch(["a", "b"], ["x" * 500, ""])
        writer.checkpoint({"op": [backend]})

    found = Visit(store).json("/0/grown.json?before=1&after=2&operator=op&state=text")

    assert found["keys"] == [{"key": ["a"], "rows": 0, "bytes": 498}]


def test_rows_stand_side_by_side(visit):
    found = visit.json(f"/0/changed_rows.json?{PROFILE}&before=6&after=7")

    assert {row["change"] for row in found["rows"]} <= {"insert", "update"}
    assert found["columns"] == ["user", "city", "plan"]


def test_storage_tells_tags_and_what_plans_would_do_and_does_nothing(visit, clicks, tmp_path):
    before = sorted(clicks.storage.list(""))
    page = visit.json("/0/storage.json?count=3")
    plan = visit.json("/0/collection.json?count=3")
    visit.json("/0/compaction.json")
    visit.json("/0/amplification")

    assert page["tags"] == [{"tag": "gold", "checkpoint_id": 3}]
    expected = clicks.collect(arrowstate.RetentionPolicy(3)).plan
    assert (plan["files"], plan["bytes"]) == (len(expected.deletions), expected.bytes)
    assert sorted(clicks.storage.list("")) == before


def test_no_page_writes_to_a_store(clicks):
    class ReadOnly:
        """A storage that only reads."""

        def __getattr__(self, name):
            if name in ("put_if_absent", "put", "put_hint", "delete", "delete_many", "writer", "write", "create"):
                raise AssertionError(f"{name} was called")
            return getattr(clicks.storage, name)

    visit = Visit(arrowstate.StateStore(ReadOnly(), clicks.store_id))

    for path in [*HTML, "amplification", "series"]:
        assert visit.get(f"/0/{path}").status_code == 200, path


def test_several_stores_are_on_one_page(clicks):
    other = arrowstate.open_store("memory://ui-other", create=True)
    visit = Visit(clicks, other)

    found = visit.json("/0/stores.json")["stores"]

    assert visit.get("/").headers["location"] == "/0/stores"
    assert [(row["number"], row.get("checkpoint_id")) for row in found] == [(0, 12), (1, None)]
    assert "problem" in found[1]
    assert visit.get("/1/checkpoints").status_code == 200
    assert visit.get("/2/checkpoints").status_code == 404


def test_metrics_are_as_prometheus_reads_them(visit):
    lines = visit.get("/metrics").text.splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}

    assert {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")} == names
    (newest,) = (value for name, value in samples.items() if name.startswith("arrowstate_checkpoint_id{"))
    assert float(newest) == 12


def test_names_in_metrics_are_quoted():
    text = metrics_text([("arrowstate_up", {"store": 'a"b\\c\nd'}, 1)])

    assert text.splitlines()[-1] == r'arrowstate_up{store="a\"b\\c\nd"} 1'


def test_micro_batches_of_spark_are_told_once_each():
    store = arrowstate.open_store("memory://ui-batches", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=8)
    with store.writer() as writer:
        for batch in range(3):
            metrics = {"rows": 100 * batch, "duration_ms": 50}
            spark = {"query_id": "q", "run_id": "r", "batch_id": batch, "metrics": metrics}
            writer.checkpoint({"op": [backend]}, properties={"spark": spark})

    found = Visit(store).json("/0/batches.json")["batches"]

    assert [(row["batch_id"], row["rows_per_second"]) for row in found] == [(2, 4000.0), (1, 2000.0), (0, 0.0)]


@pytest.mark.parametrize("name", [NASTY, "x" * 10_000, "\u202eabc", "a\x00b"])
def test_names_and_values_of_any_kind_are_shown_as_text(name):
    store = arrowstate.open_store(f"memory://ui-names-{len(name)}-{ord(name[0])}", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=8)
    backend.state(arrowstate.ValueStateDescriptor("v", pa.string())).update_batch([name], [name])
    with store.writer(properties={"who": name}) as writer:
        writer.checkpoint({"op": [backend]}, properties={name: name})
    visit = Visit(store)

    pages = [visit.get(path) for path in ("/0/checkpoints", "/0/checkpoint", "/0/rows?operator=op&state=v", "/0/sql")]

    assert [page.status_code for page in pages] == [200] * 4
    assert not any("<script>alert" in page.text for page in pages)
    assert len(pages[2].text) < 40_000


def test_a_cell_of_a_strip_leads_to_the_fullest_of_its_key_groups():
    counts = [0] * 1_024
    counts[5], counts[1_022] = 3, 9

    strip = strip_svg(counts, label="rows", address=lambda group: f"/rows?a=1&key_group={group}")

    addresses = re.findall('<a href="([^"]*)"', strip)
    assert len(addresses) == 512
    assert (addresses[2], addresses[511]) == ("/rows?a=1&amp;key_group=5", "/rows?a=1&amp;key_group=1022")
    assert "key groups 4 to 5: 1.5 rows on average; 5 has most" in strip


def test_a_graph_is_coloured_by_who_is_busy_and_who_waits():
    graph = graph_svg([("rows", [], 0.1), ("slow", [], 1.0)], [("rows", "slow", "", 0.8)])

    assert re.findall('class="(b[^"]*)"', graph) == ["blocked-3", "busy-0", "busy-4"]


def test_the_values_of_a_column_are_counted_each_with_a_query_for_its_rows(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("order", pa.int64())]), max_parallelism=8)
    kinds = {"text": pa.string(), "real": pa.float64(), "at": pa.timestamp("us", "UTC"), "raw": pa.binary()}
    rows = [
        {"text": "it's", "real": float("nan"), "at": 1, "raw": b"\x00'"},
        {"text": "it's", "real": -0.0, "at": 1_500_000, "raw": b"ab"},
        {"text": None, "real": 0.1, "at": None, "raw": b"x" * 4_000},
    ]
    values = backend.state(arrowstate.ValueStateDescriptor("value", pa.struct(list(kinds.items()))))
    values.update_batch(pa.array(range(6)), pa.array(rows * 2, pa.struct(list(kinds.items()))))
    with store.writer() as writer:
        writer.checkpoint({"op": [backend]})
    visit = Visit(store)

    for column, different in {"text": 2, "real": 3, "at": 3, "raw": 3, "order": 6}.items():
        found = visit.json(f"/0/facets.json?operator=op&state=value&column={column}")
        assert (found["rows"], found["different"], len(found["values"])) == (6, different, different)
        for value in found["values"]:
            if value["query"] is None:
                # It is too long for a query.
                assert value["value"] == "78" * 4_000
                continue
            result = visit.client.post("/0/run.json", data={"q": value["query"]}).json()
            assert len(result["rows"]) == value["rows"]

    wrong = visit.get("/0/facets.json?operator=op&state=value&column=value")
    assert wrong.status_code == 400
    assert "name a column of op.value: order, text, real, at, raw" in wrong.text


def test_pictures_need_no_style_and_no_script():
    strip = strip_svg([0, 1, 5] * 20_000, label=NASTY)
    graph = graph_svg([(NASTY, ["1"], 0.9), ("b", [], 0.0)], [(NASTY, "b", "2", 0.0), ("b", NASTY, "3", 1.0)])

    assert strip.count("<rect") == 512
    for picture in (strip, graph):
        assert "style" not in picture
        assert "<script" not in picture


def test_checkpoints_are_compared_over_a_change_of_schema_and_a_merge(tmp_path):
    store = arrowstate.open_store(tmp_path / "store", create=True)
    backend = arrowstate.KeyedStateBackend(key=pa.schema([("k", pa.string())]), max_parallelism=8)
    old, new = pa.struct([("city", pa.string())]), pa.struct([("city", pa.string()), ("plan", pa.string())])
    values = backend.state(arrowstate.ValueStateDescriptor("v", old))
    with store.writer() as writer:
        values.update_batch(["a", "b", "c"], pa.array([{"city": "Rome"}] * 3, old))
        writer.checkpoint({"op": [backend]})
    backend = store.latest().restore("op")
    values = backend.state(arrowstate.ValueStateDescriptor("v", new))
    with store.writer() as writer:
        values.update_batch(["a"], pa.array([{"city": "Oslo", "plan": "gold"}], new))
        values.update_batch(["b", "c"], pa.array([{"city": "Rome", "plan": None}] * 2, new))
        writer.checkpoint({"op": [backend]})
    visit = Visit(store)
    between = "before=1&after=2&operator=op&state=v"

    found = visit.json(f"/0/changed_rows.json?{between}")
    (counts,) = visit.json(f"/0/counts.json?{between}")["states"]
    history = visit.json("/0/history.json?operator=op&state=v&key0=a")
    pages = [visit.get(f"/0/{name}?{between}") for name in ("diff", "counts", "grown", "changed_rows")]

    assert found["columns"] == ["k", "city", "plan"]
    assert found["rows"] == [{"change": "update", "was": ["a", "Rome", None], "is": ["a", "Oslo", "gold"]}]
    assert "plan" in counts["schema_change"]
    assert [row["values"] for row in history["changes"]] == [["Oslo", "gold"], ["Rome", None], ["Rome", None]]
    assert all(page.status_code == 200 and 'class="fault"' not in page.text for page in pages)
    assert "plan" in pages[1].text
