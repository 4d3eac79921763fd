"""`keyed_sink` with every kind of state, streams of changes, namespaces and times to live, in a real Spark session."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.schema.types import is_but_for_zones

VISITS = "k long, at long, v long, page string, ratio double"
VALUE = arrowstate.ValueStateDescriptor("last", pa.string())
FIRST = arrowstate.ReducingStateDescriptor("first", pa.string(), reduce="first")
LIST = arrowstate.ListStateDescriptor("pages", pa.string())
MAP = arrowstate.MapStateDescriptor("seen", pa.string(), pa.int64())


def visits(seed: int, count: int = 400) -> pa.Table:
    """Random rows; `at` is unique and not in the order of the rows, one `page` in ten is null."""
    random = np.random.default_rng(seed)
    pages = pa.array([f"p{n}" for n in random.integers(0, 12, count)], mask=random.random(count) < 0.1)
    return pa.table(
        {
            "k": random.integers(0, 40, count),
            "at": seed * count + random.permutation(count),
            "v": pa.array(random.integers(-100, 100, count), mask=random.random(count) < 0.1),
            "page": pages,
            "ratio": random.normal(size=count),
        }
    )


def in_order(batches: list[pa.Table]) -> list[dict[str, Any]]:
    """All rows in the order in which a sink with the sequence `at` counts them."""
    return [row for rows in batches for row in rows.sort_by("at").to_pylist()]


def by_key(store: Any, state: str, *columns: str) -> dict[Any, Any]:
    """A state of the newest checkpoint: {key: value, or tuple of values}."""
    table = arrowstate.open_store(store).latest().to_arrow(f"counter.{state}")
    return {
        row["k"]: row[columns[0]] if len(columns) == 1 else tuple(map(row.get, columns)) for row in table.to_pylist()
    }


def backends(store: Any, *descriptors: Any) -> Any:
    """The states of the newest checkpoint, as an operator would read them."""
    backend = arrowstate.open_store(store).latest().restore("counter", parallelism=1, subtask=0)
    return [backend.state(descriptor) for descriptor in descriptors]


def test_every_kind_equals_a_recomputation_over_a_restart_with_another_parallelism(stream: Any) -> None:
    import duckdb

    sketches = [
        arrowstate.AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean"),
        arrowstate.AggregatingStateDescriptor("spread", pa.float64(), aggregate="variance"),
        arrowstate.AggregatingStateDescriptor("distinct", pa.string(), aggregate="count_distinct"),
        arrowstate.AggregatingStateDescriptor("middle", pa.float64(), aggregate=arrowstate.Quantiles(at=(0.0, 0.5))),
        arrowstate.AggregatingStateDescriptor("best", pa.int64(), aggregate=arrowstate.TopK(3)),
    ]
    states = [VALUE, FIRST, LIST, MAP, *sketches]
    columns = {
        **dict.fromkeys(["last", "first", "pages", "distinct"], "page"),
        **dict.fromkeys(["mean", "best"], "v"),
        **dict.fromkeys(["spread", "middle"], "ratio"),
        "seen": ["user_page", "at"],
    }
    stream.schema = VISITS
    stream.add(visits(0), visits(1))
    frame = stream.frame().selectExpr("*", "coalesce(page, 'none') as user_page")
    arguments = {"frame": frame, "states": states, "columns": columns, "sequence": "at"}
    stream.run(parallelism=2, max_parallelism=128, **arguments)
    stream.add(visits(2), visits(3))

    stream.run(parallelism=3, max_parallelism=192, **arguments)

    rows = in_order(stream.rows)
    last, first, entries = {}, {}, {}
    lists: dict[int, list[str]] = defaultdict(list)
    for row in rows:
        last[row["k"]] = row["page"]
        entries[row["k"], row["page"] or "none"] = row["at"]
        if row["page"] is not None:
            first.setdefault(row["k"], row["page"])
            lists[row["k"]].append(row["page"])
    keys = pa.array(sorted({row["k"] for row in rows}))
    in_list, *aggregates = backends(stream.store, LIST, *sketches)
    found = [dict(zip(keys.to_pylist(), state.get_batch(keys).to_pylist(), strict=True)) for state in aggregates]
    by_duckdb = duckdb.sql(
        "select k, avg(v), var_samp(ratio), count(distinct page), min(ratio), max(v, 3) "
        f"from '{stream.folder}/in/*.parquet' group by k"
    ).fetchall()
    assert by_key(stream.store, "last", "last") == {key: page for key, page in last.items() if page is not None}
    assert by_key(stream.store, "first", "first") == first
    assert dict(zip(keys.to_pylist(), in_list.get_batch(keys).to_pylist(), strict=True)) == lists
    table = arrowstate.open_store(stream.store).latest().to_arrow("counter.seen")
    assert {(row["k"], row["seen_key"]): row["seen"] for row in table.to_pylist()} == entries
    for key, mean, variance, distinct, least, best in by_duckdb:
        assert found[0][key] == pytest.approx(mean)
        assert found[1][key] == pytest.approx(variance)
        assert found[2][key] == distinct
        assert found[3][key][0] == least
        assert found[4][key] == best


def test_namespaces_are_columns_of_the_stream(stream: Any) -> None:
    import duckdb

    space = pa.schema([("page", pa.string())])
    states = [
        arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum", namespace=space),
        arrowstate.ReducingStateDescriptor("visits", pa.int64(), reduce="count", namespace=space),
        arrowstate.ValueStateDescriptor("last", pa.int64(), namespace=space),
        arrowstate.ListStateDescriptor("all", pa.int64(), namespace=space),
        arrowstate.MapStateDescriptor("entries", pa.int64(), pa.int64(), namespace=space),
        arrowstate.AggregatingStateDescriptor("best", pa.int64(), aggregate=arrowstate.TopK(1), namespace=space),
    ]
    columns = {"total": "v", "visits": "v", "last": "at", "all": "v", "entries": ["at", "v"], "best": "v"}
    stream.schema = VISITS
    stream.add(visits(0))
    frame = stream.frame().filter("page is not null")
    stream.run(frame=frame, states=states, columns=columns, sequence="at")
    stream.add(visits(1))

    stream.run(frame=frame, states=states, columns=columns, sequence="at", parallelism=3)

    def query(what: str, condition: str = "v is not null") -> set[Any]:
        rows = f"'{stream.folder}/in/*.parquet' where page is not null and {condition}"
        return set(duckdb.sql(f"select k, page, {what} from {rows} group by k, page").fetchall())

    snapshot = arrowstate.open_store(stream.store).latest()
    assert set(snapshot.sql("select k, page, total from counter.total").fetchall()) == query("sum(v)")
    assert set(snapshot.sql("select k, page, visits from counter.visits").fetchall()) == query("count(v)")
    assert set(snapshot.sql("select k, page, last from counter.last").fetchall()) == query('max("at")', "true")
    assert set(snapshot.sql("select k, page, top[1] from counter.best").fetchall()) == query("max(v)")
    in_lists = snapshot.sql('select k, page, sum("all") from counter."all" group by k, page')
    assert set(in_lists.fetchall()) == query("sum(v)")
    entries = set(snapshot.sql("select k, page, entries_key, entries from counter.entries").fetchall())
    assert entries == {(row["k"], row["page"], row["at"], row["v"]) for row in in_order(stream.rows) if row["page"]}


def test_processing_time_is_that_of_the_micro_batch(stream: Any) -> None:
    hour = arrowstate.TimeToLive(3_600_000)
    states = [
        arrowstate.ValueStateDescriptor("last", pa.string(), ttl=hour),
        arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum", ttl=hour),
    ]
    arguments = {"states": states, "columns": {"last": "page", "total": "v"}, "sequence": "at"}
    stream.schema = VISITS
    stream.add(visits(0), visits(1))
    stream.run(**arguments)
    first = arrowstate.open_store(stream.store).latest().to_arrow("counter.last")
    times = [
        json.loads((stream.checkpoint / "offsets" / str(batch)).read_text().splitlines()[1])["batchTimestampMs"]
        for batch in range(2)
    ]
    written = {
        state.descriptor.name: {
            time for batch in state.live_batches() for time in batch.column("_updated_at").to_pylist()
        }
        for state in backends(stream.store, *states)
    }

    assert first.num_rows
    assert written["last"] | written["total"] <= set(times)
    assert times[1] in written["last"]


def test_event_time_is_that_of_the_rows_and_follows_the_watermark(stream: Any) -> None:
    delay, ttl = 500, arrowstate.TimeToLive(2_000, clock="event_time")
    total = arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum", ttl=ttl)
    last = arrowstate.ValueStateDescriptor("last", pa.int64(), ttl=ttl)
    batches = []
    for number in range(4):
        random = np.random.default_rng(number)
        times = 1_500 * number + random.permutation(1_500)[:40]
        rows = {"k": random.integers(0, 60, 40), "v": random.integers(1, 100, 40)}
        batches.append(pa.table(rows | {"at": pa.array(times * 1000, pa.timestamp("us", tz="UTC"))}))
    stream.schema = "k long, v long, at timestamp"
    stream.add(*batches[:2])
    frame = stream.frame().withWatermark("at", f"{delay} milliseconds")
    arguments = {"frame": frame, "states": [total, last], "columns": {"last": "v"}, "timestamp": "at", "sequence": "at"}
    zone = stream.spark.conf.get("spark.sql.session.timeZone")
    stream.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        stream.run(parallelism=2, **arguments)
        stream.add(*batches[2:])
        stream.run(parallelism=3, **arguments)
    finally:
        stream.spark.conf.set("spark.sql.session.timeZone", zone)

    sums: dict[int, tuple[int, int]] = {}
    lasts: dict[int, tuple[int, int]] = {}
    watermark, expired = -(1 << 62), 0
    for rows in batches:
        times = rows["at"].cast(pa.int64()).to_numpy() // 1000
        for key in set(rows["k"].to_pylist()):
            mine = rows["k"].to_numpy() == key
            old, updated = sums.get(key, (0, watermark))
            expired += key in sums and updated + 2_000 <= watermark
            old = 0 if updated + 2_000 <= watermark else old
            sums[key] = old + int(rows["v"].to_numpy()[mine].sum()), max(updated, int(times[mine].max()))
            newest = int(np.flatnonzero(mine)[times[mine].argmax()])
            lasts[key] = rows["v"][newest].as_py(), int(times[newest])
        watermark = max(watermark, int(times.max()) - delay)
    backend = arrowstate.open_store(stream.store).latest().restore("counter", parallelism=1, subtask=0)
    backend.advance_watermark(watermark)
    keys = pa.array(sorted(sums))
    for descriptor, model in ((total, sums), (last, lasts)):
        expected = [None if model[key][1] + 2_000 <= watermark else model[key][0] for key in keys.to_pylist()]
        assert None in expected
        assert backend.state(descriptor).get_batch(keys).to_pylist() == expected
    assert expired > 5
    operator = arrowstate.open_store(stream.store).latest().entry.operators[0]
    assert max(subtask.watermark for subtask in operator.subtasks) == watermark


def test_keys_and_user_keys_may_be_times_in_any_zone_of_the_session(stream: Any) -> None:
    utc = pa.timestamp("us", tz="UTC")
    times = pa.array([0, 1_000_000, 0], utc)
    stream.schema = "k timestamp, user_key timestamp, v int"
    stream.add(pa.table({"k": times, "user_key": times, "v": pa.array([1, 2, 3], pa.int32())}))
    states = [
        arrowstate.MapStateDescriptor("by_time", utc, pa.uint8()),
        arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum", namespace=pa.schema([("user_key", utc)])),
    ]
    zone = stream.spark.conf.get("spark.sql.session.timeZone")
    stream.spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        stream.run(
            frame=stream.frame().selectExpr("k", "user_key", "v", "cast(v as smallint) small"),
            states=states,
            columns={"by_time": ["user_key", "small"]},
            sequence="v",
        )
    finally:
        stream.spark.conf.set("spark.sql.session.timeZone", zone)

    found = by_key(stream.store, "by_time", "by_time_key", "by_time")
    assert found == {times[1].as_py(): (times[1].as_py(), 2), times[0].as_py(): (times[0].as_py(), 3)}
    assert by_key(stream.store, "v", "v") == {times[1].as_py(): 2, times[0].as_py(): 4}


TIME, HERE = pa.timestamp("us", tz="UTC"), pa.timestamp("us", tz="Europe/Berlin")


@pytest.mark.parametrize(
    ("given", "kind", "expected"),
    [
        (HERE, TIME, True),
        (pa.timestamp("us"), TIME, False),
        (pa.timestamp("ms", tz="UTC"), TIME, False),
        (pa.list_(pa.struct([("at", HERE)])), pa.list_(pa.struct([("at", TIME)])), True),
        (pa.struct([pa.field("at", HERE, nullable=False)]), pa.struct([("at", TIME)]), True),
        (pa.struct([("at", HERE)]), pa.struct([pa.field("at", TIME, nullable=False)]), False),
        (pa.struct([("at", HERE)]), pa.struct([("since", TIME)]), False),
        (pa.struct([("at", HERE), ("n", pa.int32())]), pa.struct([("at", TIME), ("n", pa.int64())]), False),
        (pa.struct([("at", HERE)]), pa.list_(TIME), False),
    ],
)
def test_types_that_differ_but_for_time_zones_are_told_apart(
    given: pa.DataType, kind: pa.DataType, expected: bool
) -> None:
    assert is_but_for_zones(given, kind) == expected


def test_keys_may_hold_times_in_any_zone_of_the_session_and_no_row_is_set_aside(stream: Any) -> None:
    utc = pa.timestamp("us", tz="UTC")
    times = pa.array([0, 1_000_000, 0, None], utc)
    stream.schema = "at timestamp, v long"
    stream.add(pa.table({"at": times, "v": pa.array([1, 2, 4, 8])}))
    zone = stream.spark.conf.get("spark.sql.session.timeZone")
    stream.spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        stream.run(
            frame=stream.frame().selectExpr("struct(at, 7 as n) as k", "array(at) as l", "v"),
            key=["k", "l"],
            states=[arrowstate.ReducingStateDescriptor("v", pa.int64(), reduce="sum")],
            on_error="dead_letter",
        )
    finally:
        stream.spark.conf.set("spark.sql.session.timeZone", zone)

    found = arrowstate.open_store(stream.store).latest().to_arrow("counter.v")
    assert found.schema.field("k").type == pa.struct([("at", utc), ("n", pa.int32())])
    assert found.schema.field("l").type == pa.list_(utc)
    assert {(row["k"]["at"], *row["l"]): row["v"] for row in found.to_pylist()} == {
        (times[1].as_py(),) * 2: 2,
        (times[0].as_py(),) * 2: 5,
        (None, None): 8,
    }


def test_a_struct_column_is_the_value_of_a_struct_state(stream: Any) -> None:
    place = pa.struct([("seen", pa.timestamp("us", tz="UTC")), ("Size", pa.int64())])
    given = pa.struct([("size", pa.int32()), ("more", pa.string()), ("seen", pa.timestamp("us", tz="UTC"))])
    values = [{"size": 1, "more": "a", "seen": 5}, None, {"size": 3, "more": "b", "seen": None}, {"size": 4}]
    stream.schema = "k long, n long, place struct<size: int, more: string, seen: timestamp>"
    stream.add(pa.table({"k": [1, 1, 2, 3], "n": [1, 2, 3, 4], "place": pa.array(values, given)}))
    counts = pa.struct([("size", pa.int64()), ("more", pa.int64())])
    states = [
        arrowstate.ValueStateDescriptor("place", place),
        arrowstate.MapStateDescriptor("places", pa.int64(), place),
        arrowstate.ReducingStateDescriptor("sums", counts, reduce={"size": "sum", "more": "count"}),
        arrowstate.ListStateDescriptor("wholes", pa.struct([("place", pa.struct([("size", pa.int32())]))])),
    ]
    frame = stream.frame().selectExpr("*", "named_struct('size', place.size) as narrow")

    stream.run(
        frame=frame,
        states=states,
        columns={"places": ["n", "place"], "sums": "place", "wholes": "narrow"},
        sequence="n",
    )

    assert by_key(stream.store, "place", "Size") == {2: 3, 3: 4}
    found = arrowstate.open_store(stream.store).latest().to_arrow("counter.places").to_pylist()
    assert {(row["k"], row["places_key"]): (row["seen"] and row["seen"].microsecond, row["Size"]) for row in found} == {
        (1, 1): (5, 1),
        (1, 2): (None, None),
        (2, 3): (None, 3),
        (3, 4): (None, 4),
    }
    assert by_key(stream.store, "sums", "size", "more") == {1: (1, 1), 2: (3, 1), 3: (4, 0)}
    # A struct that is the value of the one field is no struct with that field.
    rows = arrowstate.open_store(stream.store).latest().to_arrow("counter.wholes")
    assert [row["place"] for row in rows.to_pylist()] == [{"size": 1}, {"size": None}, {"size": 3}, {"size": 4}]
