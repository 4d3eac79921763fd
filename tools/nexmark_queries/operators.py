"""What the queries do with each micro-batch, as functions over whole Arrow batches with state per key.

A function sees times as milliseconds since 1970, in the column `t`. By the rules of Spark a micro-batch has the
watermark of those before it, so a row that is not late is later than the watermark that its function sees.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate import (
    BatchContext,
    BatchFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    ReducingStateDescriptor,
    TimeToLive,
    ValueStateDescriptor,
)
from arrowstate.windows import TumblingEventTimeWindows, WindowFunction

__all__ = [
    "AveragePrices",
    "BidsPerPeriod",
    "HighestBids",
    "HottestItems",
    "HottestItemsByWatermark",
    "LastBids",
    "LocalItems",
    "NewSellers",
    "TopBids",
    "WinningBids",
]

_INT = pa.int64()
_WINDOW = pa.schema([("window_start", _INT), ("window_end", _INT)])
_LOCAL = ("OR", "ID", "CA")
_BID = pa.struct(
    [
        ("event", _INT),
        ("bidder", _INT),
        ("price", _INT),
        ("channel", pa.string()),
        ("url", pa.string()),
        ("date_time", pa.timestamp("us", "UTC")),
        ("extra", pa.string()),
    ]
)


class LocalItems(KeyedProcessFunction):
    """Joins people and their auctions, whichever come first; emits the auctions of those who live in three states."""

    def open(self, context: Any) -> None:
        person = pa.struct([("name", pa.string()), ("city", pa.string()), ("state", pa.string())])
        self.person = context.state(ValueStateDescriptor("person", person))
        self.waiting = context.state(ListStateDescriptor("waiting", _INT))

    def process_element(self, value: Any, context: Any, out: Any) -> None:  # noqa: ARG002
        if value.kind == "person":
            person = {"name": value.name, "city": value.city, "state": value.state}
            self.person.update(person)
            auctions = self.waiting.get()
            self.waiting.clear()
        else:
            person = self.person.value()
            auctions = [value.auction]
            if person is None:
                self.waiting.add(value.auction)
                return
        if person["state"] in _LOCAL:
            for auction in auctions:
                out.collect({**person, "auction": auction})


class WinningBids(BatchFunction):
    """Emits the highest bid of each auction when it expires, if it has one.

    A bid counts from the opening of its auction up to its expiry, and may come before the auction does: then it waits
    until the watermark has passed it, after which no auction can come that it belongs to.
    """

    def open(self, context: BatchContext) -> None:
        auction = pa.struct([("opens", _INT), ("expires", _INT), ("category", _INT)])
        waiting = pa.struct([("t", _INT), ("price", _INT)])
        self.auction = context.state(ValueStateDescriptor("auction", auction))
        self.highest = context.state(ReducingStateDescriptor("highest", _INT, reduce="max"))
        self.waiting = context.state(ListStateDescriptor("waiting", waiting, ttl=TimeToLive(1, clock="event_time")))
        self.expiries = context.timers()

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> None:  # noqa: ARG002
        is_auction = pc.equal(batch["kind"], "auction")
        opened, came = batch.filter(is_auction), batch.filter(pc.invert(is_auction))
        keys = opened["auction"]
        self.auction.update_batch(keys, _structs(opened["t"], opened["expires"], opened["category"], of=self.auction))
        self.expiries.register_batch(keys, opened["expires"])
        waited = self.waiting.get_batch(keys)
        self.waiting.clear_batch(keys)
        bids = pa.concat_batches(
            [
                _flat({"auction": keys}, waited).select(["auction", "t", "price"]),
                came.select(["auction", "t", "price"]),
            ]
        )
        opens, expires, _ = self.auction.get_batch(bids["auction"]).flatten()
        early = bids.filter(opens.is_null())
        self.waiting.add_batch(
            early["auction"], _structs(early["t"], early["price"], of=self.waiting), timestamps=early["t"]
        )
        counts = bids.filter(pc.and_(pc.greater_equal(bids["t"], opens), pc.less_equal(bids["t"], expires)))
        self.highest.add_batch(counts["auction"], counts["price"])

    def on_timers(self, timers: pa.RecordBatch, context: BatchContext) -> pa.RecordBatch:  # noqa: ARG002
        keys = timers["auction"]
        category = self.auction.get_batch(keys).field("category")
        price = self.highest.get_batch(keys)
        self.auction.clear_batch(keys)
        self.highest.clear_batch(keys)
        return pa.record_batch({"auction": keys, "category": category, "price": price}).filter(price.is_valid())


class AveragePrices(BatchFunction):
    """Emits number and mean of the prices so far of each category that has got some."""

    def open(self, context: BatchContext) -> None:
        prices = pa.struct([("auctions", _INT), ("total", _INT)])
        self.prices = context.state(
            ReducingStateDescriptor("prices", prices, reduce={"auctions": "count", "total": "sum"})
        )

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> pa.RecordBatch:  # noqa: ARG002
        self.prices.add_batch(batch["category"], _structs(batch["price"], batch["price"], of=self.prices))
        categories = batch["category"].unique()
        auctions, total = self.prices.get_batch(categories).flatten()
        return pa.record_batch({"category": categories, "auctions": auctions, "average": pc.divide(total, auctions)})


class HottestItems(BatchFunction):
    """Emits, of the counts of each window, those that no other exceeds.

    All counts of a window come in the micro-batch in which the window fires. The highest stays for a minute of event
    time, for those who look into the state.
    """

    kept_ms = 60_000

    def open(self, context: BatchContext) -> None:
        self.most = context.state(ReducingStateDescriptor("most", _INT, reduce="max"))
        self.ends = context.timers()

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> pa.RecordBatch:
        windows = context.key_columns(batch)
        self.most.add_batch(windows, batch["bids"])
        self.ends.register_batch(windows, pc.add(batch["window_end"], self.kept_ms))
        return batch.filter(pc.equal(batch["bids"], self.most.get_batch(windows)))

    def on_timers(self, timers: pa.RecordBatch, context: BatchContext) -> None:
        self.most.clear_batch(context.key_columns(timers))


class HottestItemsByWatermark(BatchFunction):
    """Emits the same where the counts of a window come in several batches: once the watermark says that all came."""

    def open(self, context: BatchContext) -> None:
        self.most = context.state(ReducingStateDescriptor("most", _INT, reduce="max"))
        self.auctions = context.state(ListStateDescriptor("auctions", _INT))
        self.ends = context.timers()

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> None:
        windows = context.key_columns(batch)
        before = self.most.get_batch(windows)
        self.most.add_batch(windows, batch["bids"])
        most = self.most.get_batch(windows)
        self.auctions.clear_batch(windows.filter(pc.greater(most, before)))
        leading = batch.filter(pc.equal(batch["bids"], most))
        self.auctions.add_batch(context.key_columns(leading), leading["auction"])
        # A window fires when the watermark reaches its last millisecond.
        self.ends.register_batch(windows, pc.subtract(batch["window_end"], 1))

    def on_timers(self, timers: pa.RecordBatch, context: BatchContext) -> pa.RecordBatch:
        windows = context.key_columns(timers)
        auctions = self.auctions.get_batch(windows)
        rows = pc.list_parent_indices(auctions)
        fired = windows.append_column("bids", self.most.get_batch(windows)).take(rows)
        self.most.clear_batch(windows)
        self.auctions.clear_batch(windows)
        return pa.record_batch(
            {"auction": auctions.flatten()} | dict(zip(fired.schema.names, fired.columns, strict=True))
        )


class HighestBids(BatchFunction):
    """Emits the highest bids of each window, which is the key, when the watermark passes its end."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms

    def open(self, context: BatchContext) -> None:
        self.price = context.state(ReducingStateDescriptor("price", _INT, reduce="max"))
        self.bids = context.state(ListStateDescriptor("bids", pa.struct([("auction", _INT), ("bidder", _INT)])))
        self.ends = context.timers()

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> None:  # noqa: ARG002
        windows = batch["window_start"]
        before = self.price.get_batch(windows)
        self.price.add_batch(windows, batch["price"])
        price = self.price.get_batch(windows)
        self.bids.clear_batch(windows.filter(pc.greater(price, before)))
        leading = batch.filter(pc.equal(batch["price"], price))
        self.bids.add_batch(leading["window_start"], _structs(leading["auction"], leading["bidder"], of=self.bids))
        started = windows.unique()
        self.ends.register_batch(started, pc.add(started, self.window_ms - 1))

    def on_timers(self, timers: pa.RecordBatch, context: BatchContext) -> pa.RecordBatch:  # noqa: ARG002
        windows = timers["window_start"]
        columns = {
            "window_start": windows,
            "window_end": pc.add(windows, self.window_ms),
            "price": self.price.get_batch(windows),
        }
        fired = _flat(columns, self.bids.get_batch(windows))
        self.price.clear_batch(windows)
        self.bids.clear_batch(windows)
        return fired


class NewSellers(WindowFunction):
    """Emits the people who came and opened auctions in one window."""

    def __init__(self, window_ms: int) -> None:
        new = pa.struct([("name", pa.string()), ("auctions", _INT)])
        descriptor = ReducingStateDescriptor("new", new, reduce={"name": "first", "auctions": "count"})
        super().__init__(TumblingEventTimeWindows(window_ms), descriptor, timestamp="t")

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> pa.RecordBatch:
        return self._sellers(super().process_batch(batch, context))

    def on_watermark(self, watermark: int, context: BatchContext) -> pa.RecordBatch:
        return self._sellers(super().on_watermark(watermark, context))

    @staticmethod
    def _sellers(fired: pa.RecordBatch) -> pa.RecordBatch:
        name, auctions = fired["new"].flatten()
        ids, starts, ends, _ = fired.columns
        people = pa.record_batch({"id": ids, "name": name, "window_start": starts, "window_end": ends})
        return people.filter(pc.and_(name.is_valid(), pc.greater(auctions, 0)))


class BidsPerPeriod(BatchFunction):
    """Emits how many bids came from each bidder in a period of processing time, after the period."""

    def __init__(self, period_ms: int) -> None:
        self.period_ms = period_ms

    def open(self, context: BatchContext) -> None:
        self.bids = context.state(ReducingStateDescriptor("bids", _INT, reduce="count", namespace=_WINDOW))
        self.ends = context.timers(namespace=_WINDOW)

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> None:
        start = context.processing_time // self.period_ms * self.period_ms
        window = (start, start + self.period_ms)
        self.bids.add_batch(batch["bidder"], batch["bidder"], namespace=window)
        bidders = batch["bidder"].unique()
        ends = np.full(len(bidders), start + self.period_ms)
        self.ends.register_batch(bidders, ends, namespace=window, clock="processing_time")

    def on_timers(self, timers: pa.RecordBatch, context: BatchContext) -> pa.RecordBatch:  # noqa: ARG002
        windows = timers.select(_WINDOW.names)
        counts = self.bids.get_batch(timers["bidder"], namespace=windows)
        self.bids.clear_batch(timers["bidder"], namespace=windows)
        return timers.select(["bidder", *_WINDOW.names]).append_column("bids", counts)


class LastBids(BatchFunction):
    """Keeps the last bid of each bidder on each auction, by time and then by number; emits those that are new.

    The rows of a batch come in this order.
    """

    def open(self, context: BatchContext) -> None:
        last = pa.struct([field for field in _BID if field.name != "bidder"])
        self.last = context.state(ValueStateDescriptor("last", last))

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> pa.RecordBatch:
        known = self.last.get_batch(context.key_columns(batch))
        later = pc.greater(batch["date_time"], known.field("date_time"))
        same = pc.equal(batch["date_time"], known.field("date_time"))
        newer = pc.or_(later, pc.and_(same, pc.greater(batch["event"], known.field("event"))))
        batch = batch.filter(pc.or_kleene(known.is_null(), newer))
        rows = pa.table(
            [*batch.select(context.key.names).columns, np.arange(batch.num_rows)], [*context.key.names, "row"]
        )
        last = rows.group_by(context.key.names, use_threads=False).aggregate([("row", "max")])["row_max"]
        batch = batch.take(last.combine_chunks())
        self.last.update_batch(context.key_columns(batch), _structs(batch, of=self.last))
        return batch


class TopBids(BatchFunction):
    """Keeps the ten highest bids of each auction, of equal ones the earlier; emits them anew when one is new."""

    count = 10

    def open(self, context: BatchContext) -> None:
        self.top = context.state(ListStateDescriptor("top", _BID))

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext) -> pa.RecordBatch | None:  # noqa: ARG002
        auctions = batch["auction"].unique()
        known = _flat({"auction": auctions}, self.top.get_batch(auctions))
        bids = pa.concat_batches([known, batch.select(known.schema.names).cast(known.schema)])
        keys = pc.index_in(bids["auction"], auctions).to_numpy()
        order = np.lexsort((bids["event"].to_numpy(), _micros(bids["date_time"]), -bids["price"].to_numpy(), keys))
        starts = np.searchsorted(keys[order], np.arange(len(auctions)))
        ranks = np.arange(order.size) - starts[keys[order]]
        changed = np.zeros(len(auctions), dtype=np.bool_)
        changed[keys[order[(ranks < self.count) & (order >= known.num_rows)]]] = True
        kept = (ranks < self.count) & changed[keys[order]]
        if not kept.any():
            return None
        top = bids.take(pa.array(order[kept]))
        places = np.flatnonzero(ranks[kept] == 0)
        offsets = pa.array(np.append(places, top.num_rows), pa.int32())
        lists = pa.ListArray.from_arrays(offsets, _structs(top, of=self.top))
        self.top.update_batch(top["auction"].take(pa.array(places)), lists)
        return top.append_column("rank_number", pa.array(ranks[kept] + 1))


def _structs(*columns: Any, of: Any) -> pa.StructArray:
    """Return the values of a state, from its fields in their order or from a batch that has them."""
    fields = list(of.descriptor.type)
    if isinstance(columns[0], pa.RecordBatch):
        columns = tuple(columns[0][field.name] for field in fields)
    arrays = [column.cast(field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _flat(columns: dict[str, pa.Array], lists: pa.ListArray) -> pa.RecordBatch:
    """Return a row for each element of the lists: what the columns have beside its list, and its fields."""
    parents = pc.list_parent_indices(lists)
    elements = lists.flatten()
    repeated = {name: column.take(parents) for name, column in columns.items()}
    fields = {field.name: elements.field(number) for number, field in enumerate(elements.type)}
    return pa.record_batch(repeated | fields)


def _micros(times: pa.Array) -> Any:
    return times.cast(pa.timestamp("us", "UTC")).cast(_INT).to_numpy()
