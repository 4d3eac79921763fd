"""The generator of Nexmark's events: proportions, that an event depends on its number alone, and who may name whom."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from nexmark_queries.events import SCHEMA, Config, make_events, write_files

CONFIG = Config(events_per_second=500)
EVENTS = 20_000


@pytest.fixture(scope="module")
def events():
    return make_events(CONFIG, 0, EVENTS)


def rows(events: pa.Table, kind: str) -> pa.Table:
    """The rows of a kind: its fields, and `event`."""
    mine = events.filter(pc.equal(events["kind"], kind)).combine_chunks()
    fields = mine[kind].combine_chunks().flatten()
    table = pa.Table.from_arrays(fields, names=[field.name for field in SCHEMA.field(kind).type])
    return table.append_column("event", mine["event"])


def last(events: np.ndarray, kind: str) -> np.ndarray:
    """The highest id of a person, or of an auction, up to each event, counted by hand."""
    places = {"person": [0], "auction": [1, 2, 3]}[kind]
    made = np.cumsum(np.isin(np.arange(EVENTS) % 50, places))
    return 1000 + made[events] - 1


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_bids(events):
    kinds = np.array(events["kind"].to_pylist()).reshape(-1, 50)

    assert (kinds[:, 0] == "person").all()
    assert (kinds[:, 1:4] == "auction").all()
    assert (kinds[:, 4:] == "bid").all()
    assert events.schema == SCHEMA
    for kind in ("person", "auction", "bid"):
        assert pc.all(pc.equal(events[kind].is_valid(), pc.equal(events["kind"], kind))).as_py()


def test_any_range_of_events_is_the_same_however_it_is_made(events):
    parts = [make_events(CONFIG, start, start + 2500) for start in range(0, EVENTS, 2500)]

    assert pa.concat_tables(parts).equals(events)
    assert make_events(CONFIG, 12_345, 12_346).equals(events.slice(12_345, 1))


def test_another_seed_gives_other_values_of_the_same_events(events):
    other = make_events(replace(CONFIG, seed=2), 0, EVENTS)

    assert other.select(["event", "kind", "date_time"]).equals(events.select(["event", "kind", "date_time"]))
    same = pc.equal(rows(other, "bid")["price"], rows(events, "bid")["price"])
    assert pc.mean(same.cast(pa.int8())).as_py() < 0.01


def test_event_time_goes_on_at_the_rate_and_is_that_of_the_person_auction_or_bid(events):
    times = events["date_time"].cast(pa.int64()).to_numpy() // 1000

    assert (times - CONFIG.base_time_ms == np.arange(EVENTS) * 2).all()
    for kind in ("person", "auction", "bid"):
        mine = rows(events, kind)
        assert (mine["date_time"].cast(pa.int64()).to_numpy() // 1000 == times[mine["event"].to_numpy()]).all()


def test_people_and_auctions_are_numbered_from_1000_without_gaps(events):
    for kind in ("person", "auction"):
        ids = rows(events, kind)["id"].to_numpy()

        assert (ids == 1000 + np.arange(ids.size)).all()


def test_sellers_and_bidders_are_people_or_come_soon_and_three_of_four_are_hot(events):
    for kind, column, offset in (("auction", "seller", 0), ("bid", "bidder", 1)):
        mine = rows(events, kind)
        named, newest = mine[column].to_numpy(), last(mine["event"].to_numpy(), "person")

        assert named.min() >= 1000
        assert (named <= newest + 10).all()
        assert (named > newest).any(), "some name a person who comes later"
        hot = (newest - 1000) // 100 * 100 + 1000 + offset
        assert 0.73 < np.mean(named == hot) < 0.79


def test_bids_go_to_auctions_in_flight_or_coming_soon_or_to_the_hot_one(events):
    bids = rows(events, "bid")
    named, newest = bids["auction"].to_numpy(), last(bids["event"].to_numpy(), "auction")
    is_hot = named == (newest - 1000) // 100 * 100 + 1000

    assert 0.48 < np.mean(is_hot) < 0.53
    assert named.min() >= 1000
    assert (named[~is_hot] >= newest[~is_hot] - 100).all()
    assert (named <= newest + 10).all()
    assert (named > newest).any()


def test_an_auction_lasts_about_as_long_as_a_hundred_auctions_take(events):
    auctions = rows(events, "auction")
    lasts = pc.subtract(auctions["expires"], auctions["date_time"]).cast(pa.int64()).to_numpy() // 1000
    a_hundred = 100 * 50 // 3 * 2

    assert lasts.min() >= 1
    assert lasts.max() <= 2 * a_hundred
    assert 0.9 < lasts.mean() / a_hundred < 1.1
    assert pc.all(pc.greater(auctions["reserve"], auctions["initial_bid"])).as_py()
    assert set(auctions["category"].to_pylist()) == {10, 11, 12, 13, 14}


def test_prices_are_spread_over_six_orders_of_magnitude(events):
    prices = rows(events, "bid")["price"].to_numpy()
    share = np.histogram(np.log10(prices), bins=6, range=(2, 8))[0] / prices.size

    assert prices.min() >= 100
    assert prices.max() <= 100_000_000
    assert (np.abs(share - 1 / 6) < 0.02).all()


def test_half_of_the_bids_come_by_four_channels_and_a_channel_has_one_url(events):
    bids = rows(events, "bid")
    hot = pc.is_in(bids["channel"], pa.array(["Google", "Facebook", "Baidu", "Apple"]))
    urls = bids.group_by("channel").aggregate([("url", "count_distinct")])
    with_id = pc.match_substring(bids["url"], "&channel_id=")

    assert 0.48 < pc.mean(hot.cast(pa.int8())).as_py() < 0.52
    assert not pc.any(with_id.filter(hot)).as_py()
    assert 0.87 < pc.mean(with_id.filter(pc.invert(hot)).cast(pa.int8())).as_py() < 0.93
    assert pc.max(urls["url_count_distinct"]).as_py() == 1
    assert pc.all(pc.starts_with(bids["url"], "https://www.nexmark.com/")).as_py()


@pytest.mark.parametrize(("kind", "size", "fixed"), [("person", 200, 8), ("auction", 500, 48), ("bid", 100, 32)])
def test_the_size_of_an_event_is_on_average_that_of_nexmark(events, kind, size, fixed):
    mine = rows(events, kind).drop_columns(["channel", "url"] if kind == "bid" else [])
    texts = [column for column in mine.columns if column.type == pa.string()]

    mean = fixed + sum(pc.mean(pc.binary_length(column)).as_py() for column in texts)

    assert 0.97 < mean / size < 1.03


def test_events_out_of_order_are_the_same_events_and_stay_in_their_group(events):
    shuffled = make_events(replace(CONFIG, out_of_order_group=300), 0, EVENTS // 300 * 300)
    order = shuffled["event"].to_numpy()

    assert (order // 300 == np.arange(order.size) // 300).all()
    assert (order != np.arange(order.size)).mean() > 0.9
    assert shuffled.sort_by("event").equals(events.slice(0, order.size))


def test_files_hold_the_events_in_order_and_each_is_newer_than_the_one_before(tmp_path, events):
    files = write_files(tmp_path / "in", CONFIG, files=4, events_per_file=5000)

    assert pa.concat_tables(pq.read_table(file) for file in files).cast(SCHEMA).equals(events)
    times = [file.stat().st_mtime for file in files]
    assert times == sorted(set(times))
