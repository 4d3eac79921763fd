"""The queries: which events they read, which operators they are made of, and their results in SQL over all events.

Numbers and meaning are those of nexmark-flink. Of its other queries 0, 1, 2, 14, 21 and 22 keep no state, 10 writes
files, 13 joins with a table at rest, and Flink does not run 6 (FLINK-19059); 9 and 20 are joins like the first half of
4, and 15, 16 and 17 aggregations by key, like its second half.

Flink's query 4 revises its means with every bid; here an auction counts once, with its winning bid, when it expires.

The truth of a query is what DuckDB finds in the same files. `last_watermark` is the watermark that the last
micro-batch saw: windows that end up to it have fired. Queries without a window emit a row again when it changes, so
of the rows of a key the last one is the result. On the runtime all windows have fired in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from arrowstate import ReducingStateDescriptor
from arrowstate.windows import EventTimeSessionWindows, SlidingEventTimeWindows, WindowFunction
from nexmark_queries import operators

__all__ = ["GAP_MS", "OUTPUT", "SLIDE_MS", "WINDOW_MS", "Query", "Step", "all_queries"]

OUTPUT = "result"
"""The name of the output table in the store of each query."""

WINDOW_MS, SLIDE_MS, GAP_MS = 10_000, 2_000, 10_000
_BIDS = ReducingStateDescriptor("bids", pa.int64(), reduce="count")


@dataclass(frozen=True, slots=True)
class Step:
    """One stateful operator of a query."""

    uid: str
    key: list[str]
    make: Callable[[], Any]
    "Returns the function."
    output: str
    "What it emits, as Spark writes schemas."
    order_by: list[str] = field(default_factory=list)
    by_watermark: Callable[[], Any] | None = None
    "Returns the function where the rows of a window come in several batches; None where it is the same one."


@dataclass(frozen=True, slots=True)
class Query:
    """One query."""

    name: str
    title: str
    where: str
    "Which events it reads; SQL that Spark and DuckDB both know."
    select: list[str]
    "What it reads of them."
    steps: list[Step]
    truth: str
    "The result in DuckDB's SQL, over the views `person`, `auction` and `bid`."
    latest_by: list[str] = field(default_factory=list)
    "Of the rows emitted with the same values here only the last one counts; all rows count where there is none."

    @property
    def text(self) -> str:
        """What names all columns that it reads."""
        return " ".join([self.where, *self.select, "date_time"])

    @property
    def emitted(self) -> dict[str, str]:
        """The columns of the result with their types, as Spark writes them."""
        return dict(column.split() for column in self.steps[-1].output.split(", "))


def all_queries(*, period_ms: int = 10_000) -> dict[str, Query]:
    """Return the queries by name; `period_ms` is the period of processing time of query 12."""
    return {query.name: query for query in _QUERIES} | {"q12": _bids_of_periods(period_ms)}


def _sliding_counts() -> WindowFunction:
    return WindowFunction(SlidingEventTimeWindows(WINDOW_MS, SLIDE_MS), _BIDS, timestamp="t")


def _sessions() -> WindowFunction:
    return WindowFunction(EventTimeSessionWindows(GAP_MS), _BIDS, timestamp="t")


def _highest_bids() -> operators.HighestBids:
    return operators.HighestBids(WINDOW_MS)


def _new_sellers() -> operators.NewSellers:
    return operators.NewSellers(WINDOW_MS)


def _bids_of_periods(period_ms: int) -> Query:
    return Query(
        "q12",
        "bids of each bidder in a period of processing time",
        "kind = 'bid'",
        ["bid.bidder as bidder"],
        [Step("q12", ["bidder"], lambda: operators.BidsPerPeriod(period_ms),
              "bidder long, window_start long, window_end long, bids long")],
        f"""select bidder, time - time % {period_ms} as window_start,
                   time - time % {period_ms} + {period_ms} as window_end, count(*) as bids
            from bid where time - time % {period_ms} + {period_ms} <= last_time() group by all""",
    )  # fmt: skip


_TIME = "unix_millis(date_time) as t"
_QUERIES = (
    Query(
        "q3",
        "local items: who sells in OR, ID or CA in category 10",
        "kind = 'person' or (kind = 'auction' and auction.category = 10)",
        ["kind", "coalesce(person.id, auction.seller) as seller", "person.name as name", "person.city as city",
         "person.state as state", "auction.id as auction"],
        [Step("q3", ["seller"], operators.LocalItems, "name string, city string, state string, auction long")],
        """select name, city, state, auction.id as auction from auction join person on seller = person.id
           where category = 10 and state in ('OR', 'ID', 'CA')""",
    ),
    Query(
        "q4",
        "mean price of the winning bids of each category",
        "kind = 'auction' or kind = 'bid'",
        ["kind", "coalesce(auction.id, bid.auction) as auction", _TIME,
         "unix_millis(auction.expires) as expires", "auction.category as category", "bid.price as price"],
        [
            Step("q4_winning", ["auction"], operators.WinningBids, "auction long, category long, price long"),
            Step("q4_average", ["category"], operators.AveragePrices, "category long, auctions long, average long"),
        ],
        """with winning as (
               select auction.id, category, max(price) as price from auction join bid on bid.auction = auction.id
               where bid.t between auction.t and epoch_ms(expires) and epoch_ms(expires) <= last_watermark()
               group by all)
           select category, count(*) as auctions, sum(price)::bigint // count(*) as average
           from winning group by category""",
        latest_by=["category"],
    ),
    Query(
        "q5",
        "auctions with the most bids in a sliding window",
        "kind = 'bid'",
        ["bid.auction as auction", _TIME, "bid.price as bids"],
        [
            Step("q5_counts", ["auction"], _sliding_counts,
                 "auction long, window_start long, window_end long, bids long"),
            Step("q5_hottest", ["window_start", "window_end"], operators.HottestItems,
                 "auction long, window_start long, window_end long, bids long",
                 by_watermark=operators.HottestItemsByWatermark),
        ],
        f"""with counts as (
                select auction, window_start, count(*) as bids
                from (select auction, unnest(range(t - t % {SLIDE_MS} - {WINDOW_MS - SLIDE_MS},
                                                   t - t % {SLIDE_MS} + 1, {SLIDE_MS})) as window_start from bid)
                where window_start + {WINDOW_MS} - 1 <= last_watermark() group by all)
            select auction, window_start, window_start + {WINDOW_MS} as window_end, bids from counts
            qualify bids = max(bids) over (partition by window_start)""",
    ),
    Query(
        "q7",
        "highest bids of a window",
        "kind = 'bid'",
        [f"unix_millis(date_time) - unix_millis(date_time) % {WINDOW_MS} as window_start", "bid.auction as auction",
         "bid.bidder as bidder", "bid.price as price"],
        [Step("q7", ["window_start"], _highest_bids,
              "window_start long, window_end long, price long, auction long, bidder long")],
        f"""select t - t % {WINDOW_MS} as window_start, t - t % {WINDOW_MS} + {WINDOW_MS} as window_end,
                   price, auction, bidder
            from bid where t - t % {WINDOW_MS} + {WINDOW_MS} - 1 <= last_watermark()
            qualify price = max(price) over (partition by t - t % {WINDOW_MS})""",
    ),
    Query(
        "q8",
        "people who came and sold in one window",
        "kind = 'person' or kind = 'auction'",
        ["coalesce(person.id, auction.seller) as id", _TIME, "person.name as name", "auction.id as auctions"],
        [Step("q8", ["id"], _new_sellers, "id long, name string, window_start long, window_end long")],
        f"""select distinct person.id, name, person.t - person.t % {WINDOW_MS} as window_start,
                   person.t - person.t % {WINDOW_MS} + {WINDOW_MS} as window_end
            from person join auction on seller = person.id and person.t // {WINDOW_MS} = auction.t // {WINDOW_MS}
            where person.t - person.t % {WINDOW_MS} + {WINDOW_MS} - 1 <= last_watermark()""",
    ),
    Query(
        "q11",
        "bids of each bidder in a session",
        "kind = 'bid'",
        ["bid.bidder as bidder", _TIME, "bid.price as bids"],
        [Step("q11", ["bidder"], _sessions, "bidder long, window_start long, window_end long, bids long")],
        # A session that the watermark has passed takes no more bids, not even one at its very end.
        f"""with starts as (
                select *, coalesce(t > before + {GAP_MS} or watermark >= before + {GAP_MS} - 1, true) as starts
                from (select *, lag(t) over (partition by bidder order by t, event) as before from bid)),
            sessions as (
                select *, count_if(starts) over (partition by bidder order by t, event rows unbounded preceding)
                    as session from starts)
            select bidder, min(t) as window_start, max(t) + {GAP_MS} as window_end, count(*) as bids
            from sessions group by bidder, session having max(t) + {GAP_MS} - 1 <= last_watermark()""",
    ),
    _bids_of_periods(10_000),
    Query(
        "q18",
        "last bid of each bidder on each auction",
        "kind = 'bid'",
        ["event", "date_time", "bid.auction as auction", "bid.bidder as bidder", "bid.price as price",
         "bid.channel as channel", "bid.url as url", "bid.extra as extra"],
        [Step("q18", ["bidder", "auction"], operators.LastBids,
              "event long, date_time timestamp, auction long, bidder long, price long, channel string, url string, "
              "extra string", ["date_time", "event"])],
        """select event, date_time, auction, bidder, price, channel, url, extra from bid
           qualify row_number() over (partition by bidder, auction order by date_time desc, event desc) = 1""",
        latest_by=["bidder", "auction"],
    ),
    Query(
        "q19",
        "ten highest bids of each auction",
        "kind = 'bid'",
        ["event", "date_time", "bid.auction as auction", "bid.bidder as bidder", "bid.price as price",
         "bid.channel as channel", "bid.url as url", "bid.extra as extra"],
        [Step("q19", ["auction"], operators.TopBids,
              "auction long, rank_number long, event long, bidder long, price long, channel string, url string, "
              "date_time timestamp, extra string")],
        """select auction, row_number() over (partition by auction order by price desc, date_time, event)
                      as rank_number, event, bidder, price, channel, url, date_time, extra
           from bid qualify rank_number <= 10""",
        latest_by=["auction", "rank_number"],
    ),
)  # fmt: skip
