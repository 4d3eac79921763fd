"""The events of Nexmark: people, auctions and bids of an auction site, each a function of its number and a seed.

Schema, proportions, hot ratios, id leads and value ranges are those of the generator of nexmark-flink
(https://github.com/nexmark/nexmark, `generator/model`), which took them from Apache Beam's `NexmarkConfiguration`; the
code is new. What differs: every value is drawn from a hash of the seed, the event and the name of the value, so that
any range of events can be made alone, in whole columns; and a bidder is always a person's id (nexmark-flink adds the
first person id twice).
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

__all__ = ["SCHEMA", "SPARK_SCHEMA", "Config", "json_schema", "make_events", "write_files", "write_json"]

Ints = npt.NDArray[np.int64]

FIRST_PERSON_ID = FIRST_AUCTION_ID = 1000
FIRST_CATEGORY_ID, CATEGORIES = 10, 5
LEAD = 10
"How many people or auctions that do not exist yet may be named."
HOT_BATCH = 100
"Of so many people or auctions after one another one is hot."

_TIME = pa.timestamp("us", "UTC")
_PERSON = pa.struct(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("email_address", pa.string()),
        ("credit_card", pa.string()),
        ("city", pa.string()),
        ("state", pa.string()),
        ("date_time", _TIME),
        ("extra", pa.string()),
    ]
)
_AUCTION = pa.struct(
    [
        ("id", pa.int64()),
        ("item_name", pa.string()),
        ("description", pa.string()),
        ("initial_bid", pa.int64()),
        ("reserve", pa.int64()),
        ("date_time", _TIME),
        ("expires", _TIME),
        ("seller", pa.int64()),
        ("category", pa.int64()),
        ("extra", pa.string()),
    ]
)
_BID = pa.struct(
    [
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("channel", pa.string()),
        ("url", pa.string()),
        ("date_time", _TIME),
        ("extra", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("event", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("date_time", _TIME, nullable=False),
        ("person", _PERSON),
        ("auction", _AUCTION),
        ("bid", _BID),
    ]
)
"""`event` counts from 0; `kind` names the one of the last three columns that is not null; `date_time` is event time."""

_SPARK_NAMES = {pa.int64(): "bigint", pa.string(): "string", _TIME: "timestamp"}


def _spark_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {_spark_type(field.type)}' for field in kind)}>"
    return _SPARK_NAMES[kind]


SPARK_SCHEMA = ", ".join(f"{field.name} {_spark_type(field.type)}" for field in SCHEMA)
"""The same schema as Spark's readers take it."""

_CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
_STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
_FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
_LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
_HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
_CHANNELS = 10_000


@dataclass(frozen=True, slots=True)
class Config:
    """What the events depend on; the defaults are those of nexmark-flink.

    Parameters
    ----------
    events_per_second
        How fast event time goes on.
    seed
        Another seed gives other values for the same events.
    base_time_ms
        The event time of event 0, milliseconds since 1970; Beam's is 2015-07-15.
    people, auctions, bids
        How many of each there are in one round of events, in this order.
    hot_auctions, hot_sellers, hot_bidders
        All bids but one of so many go to a hot auction; likewise for sellers and bidders. 1 for none.
    in_flight_auctions
        Bids that do not go to a hot auction go to one of about so many last ones; it sets how long auctions last.
    active_people
        How many of the last people bid and sell.
    out_of_order_group
        Events come in a shuffled order within groups of so many; 1 for the order of time. No multiple of 953.
    """

    events_per_second: int = 10_000
    seed: int = 1
    base_time_ms: int = 1_436_918_400_000
    people: int = 1
    auctions: int = 3
    bids: int = 46
    hot_auctions: int = 2
    hot_sellers: int = 4
    hot_bidders: int = 4
    in_flight_auctions: int = 100
    active_people: int = 1000
    out_of_order_group: int = 1

    @property
    def round(self) -> int:
        """Events in one round."""
        return self.people + self.auctions + self.bids

    def times(self, events: Ints) -> Ints:
        """Return the event time of events, in milliseconds since 1970."""
        return self.base_time_ms + events * 1000 // self.events_per_second

    def last_person(self, events: Ints) -> Ints:
        """Return the number of the last person up to each event, from 0."""
        return events // self.round * self.people + np.minimum(events % self.round, self.people - 1)

    def last_auction(self, events: Ints) -> Ints:
        """Return the number of the last auction up to each event, from 0; -1 before the first."""
        place = np.clip(events % self.round - self.people, -1, self.auctions - 1)
        return events // self.round * self.auctions + place


def make_events(config: Config, start: int, stop: int) -> pa.Table:
    """Return the events that come as number `start` up to, but not with, number `stop`.

    Returns
    -------
    pa.Table
        Columns of `SCHEMA`, a row per event, in the order in which they come.
    """
    numbers = np.arange(start, stop, dtype=np.int64)
    group = config.out_of_order_group
    events = numbers // group * group + numbers * 953 % group
    place = events % config.round
    kinds = np.digitize(place, [config.people, config.people + config.auctions])
    structs = []
    for number, make in enumerate((_people, _auctions, _bids)):
        mine = kinds == number
        rows = np.cumsum(mine) - 1
        made = make(_Draw(config.seed, events[mine]), config, events[mine])
        structs.append(made.take(pa.array(rows, mask=~mine)))
    names = pa.array(["person", "auction", "bid"]).take(pa.array(kinds))
    columns = [pa.array(events), names, _times(config.times(events)), *structs]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def write_files(folder: Path, config: Config, *, files: int, events_per_file: int) -> list[Path]:
    """Write Parquet files of so many events each, with modification times that make Spark take them in order."""
    folder.mkdir(parents=True)
    paths = []
    for number in range(files):
        path = folder / f"events-{number:05}.parquet"
        pq.write_table(make_events(config, number * events_per_file, (number + 1) * events_per_file), path)
        os.utime(path, (1_600_000_000 + number,) * 2)
        paths.append(path)
    return paths


def write_json(folder: Path, files: Sequence[Path], *, parts: int, stop: int, block: int) -> None:
    """Write the first `stop` events of Parquet files again, an object a line, into so many files of equal time.

    Each part has every so many-th block of events, in their order, so that whoever reads the parts at the same time is
    at about the same event time in all of them. Times are milliseconds since 1970.
    """
    folder.mkdir(parents=True)
    connection = duckdb.connect()
    columns = ", ".join(_in_json(field.name, field.type) for field in SCHEMA)
    connection.execute(
        f"""create view events as select *, row_number() over (order by filename, file_row_number) - 1 as place
            from read_parquet({[str(file) for file in files]}, filename = true, file_row_number = true)"""
    )
    for part in range(parts):
        connection.execute(
            f"""copy (select {columns} from events where place < {stop} and place // {block} % {parts} = {part}
                      order by place) to '{folder}/part-{part}.json' (format json)"""
        )


def json_schema(text: str) -> pa.Schema:
    """Return the columns of JSON files, and of structs the fields, that a text names; `date_time` is always there."""
    named = set(re.findall(r"\b\w+(?:\.\w+)?", text)) | {"date_time"}
    fields = []
    for field in SCHEMA:
        kind = _json_type(field.type)
        if pa.types.is_struct(kind):
            kind = pa.struct([inner for inner in kind if f"{field.name}.{inner.name}" in named])
            if not kind.num_fields:
                continue
        elif field.name not in named:
            continue
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _json_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column in JSON; the times within a struct that the event has too are left out."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _json_type(field.type)) for field in kind if field.name != "date_time"])
    return pa.int64() if kind == _TIME else kind


def _in_json(name: str, kind: pa.DataType) -> str:
    """Return SQL that has a column as it is in JSON."""
    if kind == _TIME:
        return f"epoch_ms({name}) as {name.rpartition('.')[2]}"
    if pa.types.is_struct(kind):
        fields = ", ".join(
            f"{field.name} := {_in_json(f'{name}.{field.name}', field.type).partition(' as ')[0]}"
            for field in kind
            if field.name != "date_time"
        )
        return f"case when {name} is not null then struct_pack({fields}) end as {name}"
    return name


class _Draw:
    """Random values of some events: whole numbers, and texts made of them."""

    def __init__(self, seed: int, ids: Ints) -> None:
        self._ids = ids.astype(np.uint64)
        self._seed = seed

    def bits(self, what: str, block: Any = 0) -> Any:
        """Return 64 bits for each event."""
        start = np.uint64(zlib.crc32(f"{self._seed} {what}".encode()) << 32)
        # The step and finaliser of SplitMix64, with the event for the step.
        mixed = (self._ids[:, None] + start) * np.uint64(0x9E3779B97F4A7C15)
        mixed = mixed + np.asarray(block, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return mixed ^ (mixed >> np.uint64(31))

    def below(self, what: str, limit: Any) -> Ints:
        """Return a number from 0 to `limit - 1` for each event; limits are below 2^32."""
        high = self.bits(what)[:, 0] >> np.uint64(32)
        return (high * np.asarray(limit, dtype=np.uint64) >> np.uint64(32)).astype(np.int64)

    def price(self, what: str) -> Ints:
        """Return a price in cents, 100 to 100,000,000, as many in each order of magnitude."""
        unit = (self.bits(what)[:, 0] >> np.uint64(11)).astype(np.float64) / (1 << 53)
        return np.rint(10.0 ** (unit * 6) * 100).astype(np.int64)

    def choice(self, what: str, of: list[str]) -> pa.Array:
        """Return one of some texts for each event."""
        return pa.array(of).take(pa.array(self.below(what, len(of))))

    def text(self, what: str, longest: int) -> pa.Array:
        """Return texts of letters and a few spaces, of 3 characters up to, but not with, the longest."""
        return pc.utf8_trim_whitespace(self._text(what, 3 + self.below(what + " size", longest - 3), _WORDS))

    def extra(self, have: Any, average: int) -> pa.Array:
        """Return letters that bring what an event has to about an average size, in bytes."""
        left = np.maximum(average - np.asarray(have), 0)
        spread = np.rint(left * 0.2).astype(np.int64)
        sizes = left - spread + np.where(spread > 0, self.below("extra size", np.maximum(2 * spread, 1)), 0)
        return self._text("extra", np.broadcast_to(sizes, self._ids.shape), _LETTERS)

    def digits(self, what: str, count: int) -> pa.Array:
        """Return texts of so many digits."""
        return self._text(what, np.full(self._ids.shape, count), _DIGITS)

    def _text(self, what: str, sizes: Ints, alphabet: npt.NDArray[np.uint8]) -> pa.Array:
        width = int(sizes.max(initial=0))
        eights = self.bits(what, np.arange(-(-width // 8)))
        characters = alphabet[np.ascontiguousarray(eights, dtype="<u8").view(np.uint8)]
        used = characters[np.arange(characters.shape[1]) < sizes[:, None]]
        ends = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        return pa.StringArray.from_buffers(sizes.size, pa.py_buffer(ends), pa.py_buffer(used))


def _alphabet(characters: str) -> npt.NDArray[np.uint8]:
    """Return a character for each value of a byte."""
    return np.frombuffer(characters.encode(), np.uint8)[np.arange(256) * len(characters) // 256]


_LETTERS = _alphabet("abcdefghijklmnopqrstuvwxyz")
_DIGITS = _alphabet("0123456789")
# One in thirteen is a space.
_WORDS = _alphabet("abcdefghijklmnopqrstuvwxyz" * 6 + " " * 13)


def _people(draw: _Draw, config: Config, events: Ints) -> pa.StructArray:
    whole = [f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES]
    mail = pc.binary_join_element_wise(draw.text("mailbox", 7), pa.scalar("@"), draw.text("host", 5), pa.scalar(""), "")
    cards = [draw.digits(f"credit card {part}", 4) for part in range(4)]
    columns = [
        pa.array(config.last_person(events) + FIRST_PERSON_ID),
        draw.choice("name", whole),
        pc.binary_join_element_wise(mail, pa.scalar(".com"), ""),
        pc.binary_join_element_wise(*cards, " "),
        draw.choice("city", _CITIES),
        draw.choice("state", _STATES),
    ]
    extra = draw.extra(8 + _bytes(columns[1:]), 200)
    columns += [_times(config.times(events)), extra]
    return pa.StructArray.from_arrays(columns, fields=list(_PERSON))


def _auctions(draw: _Draw, config: Config, events: Ints) -> pa.StructArray:
    times = config.times(events)
    hot = config.last_person(events) // HOT_BATCH * HOT_BATCH
    seller = np.where(draw.below("hot seller", config.hot_sellers) > 0, hot, _some_person(draw, config, events))
    # The mean time until as many auctions as are in flight have come.
    later = events + config.in_flight_auctions * config.round // config.auctions
    lasts = 1 + draw.below("length", np.maximum(2 * (config.times(later) - times), 1))
    initial = draw.price("initial bid")
    item, description = draw.text("item name", 20), draw.text("description", 100)
    columns = [
        pa.array(config.last_auction(events) + FIRST_AUCTION_ID),
        item,
        description,
        pa.array(initial),
        pa.array(initial + draw.price("reserve")),
        _times(times),
        _times(times + lasts),
        pa.array(seller + FIRST_PERSON_ID),
        pa.array(FIRST_CATEGORY_ID + draw.below("category", CATEGORIES)),
        draw.extra(48 + _bytes([item, description]), 500),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(_AUCTION))


def _bids(draw: _Draw, config: Config, events: Ints) -> pa.StructArray:
    last = config.last_auction(events)
    first = np.maximum(last - config.in_flight_auctions, 0)
    some_auction = first + draw.below("auction", last - first + 1 + LEAD)
    auction = np.where(draw.below("hot auction", config.hot_auctions) > 0, last // HOT_BATCH * HOT_BATCH, some_auction)
    # The second of the batch, the first being the hot seller.
    hot = config.last_person(events) // HOT_BATCH * HOT_BATCH + 1
    bidder = np.where(draw.below("hot bidder", config.hot_bidders) > 0, hot, _some_person(draw, config, events))
    names, urls = _channels(config.seed)
    hot_channel = draw.below("hot channel", 2) > 0
    channel = pa.array(
        np.where(hot_channel, draw.below("channel", len(_HOT_CHANNELS)), 4 + draw.below("channel", _CHANNELS))
    )
    columns = [
        pa.array(auction + FIRST_AUCTION_ID),
        pa.array(bidder + FIRST_PERSON_ID),
        pa.array(draw.price("price")),
        names.take(channel),
        urls.take(channel),
        _times(config.times(events)),
        draw.extra(32, 100),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(_BID))


def _some_person(draw: _Draw, config: Config, events: Ints) -> Ints:
    """Return one of the active people, or of those that come next."""
    people = config.last_person(events) + 1
    active = np.minimum(people, config.active_people)
    return people - active + draw.below("person", active + LEAD)


def _channels(seed: int) -> tuple[pa.Array, pa.Array]:
    """Return name and URL of each channel, the hot ones first."""
    numbers = np.arange(len(_HOT_CHANNELS) + _CHANNELS)
    draw = _Draw(seed, numbers)
    others = pa.array(numbers[: -len(_HOT_CHANNELS)]).cast(pa.string())
    names = pc.binary_join_element_wise(pa.scalar("channel"), others, "-")
    folders = [pc.replace_substring(draw.text(f"folder {part}", 6), " ", "_") for part in range(3)]
    pages = pc.binary_join_element_wise(pa.scalar("https://www.nexmark.com"), *folders, "item.htm?query=1", "/")
    ids = pa.array(draw.below("channel id", 1 << 31)).cast(pa.string())
    numbered = pc.binary_join_element_wise(pages, ids, "&channel_id=")
    plain = draw.below("numbered", 10) == 0
    plain[: len(_HOT_CHANNELS)] = True
    return pa.concat_arrays([pa.array(_HOT_CHANNELS), names]), pc.if_else(pa.array(plain), pages, numbered)


def _bytes(columns: list[pa.Array]) -> Any:
    return sum(pc.binary_length(column).to_numpy() for column in columns)


def _times(milliseconds: Ints) -> pa.Array:
    return pa.array(milliseconds * 1000).cast(_TIME)
