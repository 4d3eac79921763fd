"""The messages of `pgoutput`, the output of PostgreSQL's logical replication, as arrays of rows.

Many messages are taken apart at once, column by column. Transactions come one after the other, in the order of their
commits; a row is known by the commit of its transaction and its number in it, which are the same whenever it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]

DATA, KEEPALIVE = ord("w"), ord("k")
"""What a server sends: a message of the output, or only how far it is."""

RELATION = ord("R")
INSERT, PREIMAGE, POSTIMAGE, DELETE = range(4)
"""What a row is."""

ABSENT, UNCHANGED = -1, -2
"""The length of a value that is null, and of one that an update has left as it was and that is not sent."""

_OF_TRANSACTION = ("commits", "committed_us", "xids")
_HEADER = 25
"""Bytes before a message: what it is, where it begins and ends in the log, and when it was sent."""
_UNSIGNED = 0xFFFF_FFFF
_UNIX_MICROSECONDS = 946_684_800_000_000
"""Times count from the year 2000."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it was when its rows were changed."""

    id: int
    name: tuple[str, str]
    """The schema and the table."""
    identity: str
    """What old rows have: `f` for all columns, `d` those of the primary key, `i` those of an index, `n` nothing."""
    columns: dict[str, tuple[int, int]]
    """The number and the modifier of the type of each column, in the order of the values."""
    key: frozenset[str]
    """The columns that old rows have."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far the messages were read."""

    done: int
    """The place in the log after the last transaction of which all was read."""
    transaction: int = 0
    """The place of the commit of the transaction that is being read; 0 for none."""
    rows: int = 0
    """How many rows of it were read."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What the beginning of a transaction says of it."""

    commit: int
    committed_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table in the order in which they were changed: an update has two where the old one was sent."""

    data: npt.NDArray[np.uint8]
    starts: Integers
    """Where the text of each value begins: a row of the array for each column."""
    lengths: Integers
    kinds: Integers
    has_whole_old: npt.NDArray[np.bool_]
    """Whether this is an old row with all of its columns, or the new row after one."""
    commits: Integers
    committed_us: Integers
    xids: Integers
    done: Integers
    numbers: Integers
    """The number of the row in its transaction."""

    def text(self, column: int, *, filled: bool = True) -> pa.StringArray:
        """Return the texts of a column; those that an update has left as they were are those of the row before."""
        starts, lengths = self.starts[column], self.lengths[column]
        count = len(starts)
        if not count:
            return pa.array([], pa.string())
        # Every second element is what lies between two values.
        ends = starts + np.maximum(lengths, 0)
        offsets = np.stack([starts, ends], axis=1).astype(np.int32).ravel()
        texts = pa.StringArray.from_buffers(2 * count - 1, pa.py_buffer(offsets), pa.py_buffer(self.data))
        chosen = 2 * np.arange(count)
        if filled:
            chosen = np.where(lengths == UNCHANGED, chosen - 2, chosen)
            # The first row has none before it.
            lengths = np.where(lengths == UNCHANGED, np.concatenate([[ABSENT], lengths[:-1]]), lengths)
        return texts.take(pa.array(chosen, mask=lengths < 0))


def relation(message: bytes) -> Relation:
    """Return the table that a message describes."""
    names = message[_HEADER + 5 :].split(b"\0", 2)
    rest = names[2]
    columns, key, at = {}, set(), 3
    for _ in range(int.from_bytes(rest[1:3], "big")):
        end = rest.index(b"\0", at + 1)
        kind = int.from_bytes(rest[end + 1 : end + 5], "big")
        modifier = int.from_bytes(rest[end + 5 : end + 9], "big", signed=True)
        name = rest[at + 1 : end].decode()
        columns[name] = kind, modifier
        if rest[at] & 1:
            key.add(name)
        at = end + 9
    return Relation(
        int.from_bytes(message[_HEADER + 1 : _HEADER + 5], "big"),
        (names[0].decode(), names[1].decode()),
        chr(rest[0]),
        columns,
        frozenset(key),
    )


@dataclass(slots=True)
class Decoder:
    """Takes messages apart, and knows the transaction that goes on in the next ones."""

    table: int
    """The number of the table whose rows are wanted."""
    place: Place
    open: Transaction | None = None
    count: int = 0
    """How many rows of the open transaction have come."""
    truncated: Transaction | None = None
    """A transaction that has emptied the table."""

    def passed(self, lsn: int) -> None:
        """Take note that the server has sent all that was committed up to a place in the log."""
        if self.open is None:
            self.place = replace(self.place, done=max(lsn, self.place.done))

    def decode(self, messages: Sequence[bytes], columns: int) -> Rows:
        """Return the rows in messages, of a table of so many columns."""
        # A length that follows no value may be looked at beyond the end.
        data = np.frombuffer(b"".join(messages) + bytes(8), np.uint8)
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        at = np.cumsum(sizes) - sizes + _HEADER
        kinds = data[at]
        begins, commits = np.flatnonzero(kinds == ord("B")), np.flatnonzero(kinds == ord("C"))
        carried = self.open or Transaction(0, 0, 0)
        of = {
            "commits": np.concatenate([[carried.commit], _integers(data, at[begins] + 1, 8)]),
            "committed_us": np.concatenate(
                [[carried.committed_us], _integers(data, at[begins] + 9, 8) + _UNIX_MICROSECONDS]
            ),
            "xids": np.concatenate([[carried.xid], _integers(data, at[begins] + 17, 4) & _UNSIGNED]),
        }
        done = np.concatenate([[self.place.done], _integers(data, at[commits] + 10, 8)])
        transaction = np.cumsum(kinds == ord("B"))
        self._look_for_truncation(data, at, kinds, of, transaction)

        is_row = np.isin(kinds, [ord("I"), ord("U"), ord("D")])
        numbers = np.flatnonzero(is_row)
        numbers = numbers[_integers(data, at[numbers] + 1, 4) & _UNSIGNED == self.table]
        found, starts, lengths, row_kinds, whole = _tuples(data, at[numbers], kinds[numbers], columns)
        message = numbers[found]
        transactions = transaction[message]
        counted = np.arange(len(message)) - np.searchsorted(transactions, transactions)
        counted += np.where(transactions == 0, self.count, 0)
        rows = Rows(
            data=data,
            starts=starts,
            lengths=lengths,
            kinds=row_kinds,
            has_whole_old=whole,
            done=done[np.cumsum(kinds == ord("C"))[message]],
            numbers=counted,
            **{name: values[transactions] for name, values in of.items()},
        )
        self._go_on(of, begins, commits, int(done[-1]), rows)
        return rows

    def _go_on(self, of: dict[str, Integers], begins: Integers, commits: Integers, done: int, rows: Rows) -> None:
        """Take note of how far the messages were read."""
        if len(begins) and (not len(commits) or begins[-1] > commits[-1]):
            self.open = Transaction(*(int(of[name][-1]) for name in _OF_TRANSACTION))
            self.count = 0
        elif len(commits):
            self.open, self.count = None, 0
        before = self.place if self.place.transaction >= done else Place(done)
        if self.open is None:
            self.place = replace(before, done=done)
            return
        self.count = max([self.count, *(rows.numbers[rows.commits == self.open.commit][-1:] + 1).tolist()])
        # The first rows of a transaction that was begun before come once more.
        had = before.rows if before.transaction == self.open.commit else 0
        if self.count > had:
            before = Place(done, self.open.commit, self.count)
        self.place = replace(before, done=done)

    def _look_for_truncation(
        self,
        data: npt.NDArray[np.uint8],
        at: Integers,
        kinds: npt.NDArray[np.uint8],
        of: dict[str, Integers],
        transaction: Integers,
    ) -> None:
        self.truncated = None
        for number in np.flatnonzero(kinds == ord("T")):
            start = at[number : number + 1]
            (count,) = _integers(data, start + 1, 4)
            if self.table in _integers(data, start + 6 + 4 * np.arange(count), 4) & _UNSIGNED:
                self.truncated = Transaction(*(int(of[name][transaction[number]]) for name in _OF_TRANSACTION))


def _tuples(
    data: npt.NDArray[np.uint8], at: Integers, kinds: npt.NDArray[np.uint8], columns: int
) -> tuple[Integers, Integers, Integers, Integers, npt.NDArray[np.bool_]]:
    """Return for each row the number of its message, its values, and what it is, in the order of the messages."""
    marker = data[at + 5]
    has_old = marker != ord("N")
    old = np.flatnonzero(has_old)
    old_starts, old_lengths, old_ends = _values(data, at[old] + 6, columns)
    new_at = at + 6
    new_at[old] = old_ends + 1
    new = np.flatnonzero(kinds != ord("D"))
    new_starts, new_lengths, _ = _values(data, new_at[new], columns)
    order = np.argsort(np.concatenate([old * 2, new * 2 + 1]), kind="stable")
    message = np.concatenate([old, new])[order]
    is_new = np.concatenate([np.zeros(len(old), bool), np.ones(len(new), bool)])[order]
    updated = kinds[message] == ord("U")
    row_kinds = np.where(updated, np.where(is_new, POSTIMAGE, PREIMAGE), np.where(is_new, INSERT, DELETE))
    return (
        message,
        np.concatenate([old_starts, new_starts], axis=1)[:, order],
        np.concatenate([old_lengths, new_lengths], axis=1)[:, order],
        row_kinds,
        marker[message] == ord("O"),
    )


def _values(data: npt.NDArray[np.uint8], at: Integers, columns: int) -> tuple[Integers, Integers, Integers]:
    """Return where the values of rows begin, how long they are, and where each row ends."""
    starts, lengths = (np.empty((columns, len(at)), np.int64) for _ in range(2))
    place = at + 2
    for column in range(columns):
        kind = data[place]
        lengths[column] = np.where(kind == ord("n"), ABSENT, UNCHANGED)
        is_text = np.flatnonzero(kind == ord("t"))
        lengths[column, is_text] = _integers(data, place[is_text] + 1, 4)
        place = place + 1
        place[is_text] += 4
        starts[column] = place
        place[is_text] += lengths[column, is_text]
    return starts, lengths, place


def _integers(data: npt.NDArray[np.uint8], at: Integers, width: int) -> Integers:
    """Return integers of 4 or 8 bytes, the highest first."""
    found = data[at[:, None] + np.arange(width)]
    return np.ascontiguousarray(found).view(f">i{width}").ravel().astype(np.int64)
