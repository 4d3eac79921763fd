"""The log of a store as the page shows it: a line for each entry, the newest at once, the older ones as they are read.

Each entry is read once and let go; what is kept of it takes some 300 bytes. The newest hundred are read when they are
asked for, the others by a thread in the background, so that the page opens at once however long the log is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from arrowstate.errors import ArrowStateError, CorruptDataError, FormatVersionError
from arrowstate.log.commit_log import CommitLog, History
from arrowstate.log.entries import FIRST, CommittedEntry
from arrowstate.query.catalog import HISTORY_NAMES
from arrowstate.query.duckdb.history import HISTORY_TABLES
from arrowstate.storage.base import Storage

_DAMAGES = (CorruptDataError, FormatVersionError)
_AT_ONCE = 100
"""Entries that are read while somebody waits."""
_PROPERTIES_CHARACTERS = 300
_MEASURED = ("sync_us", "async_us", "alignment_us", "bytes_written", "bytes_total", "files_written", "watermark")


@dataclass(frozen=True, slots=True)
class LogLine:
    """What the page keeps of an entry of the log."""

    number: int
    kind: str
    "`checkpoint`, `compaction`, `savepoint`, `fence`; `damaged` where it cannot be read."
    commit_id: str
    checkpoint_id: int | None
    writer_epoch: int
    started_at_ms: int
    committed_at_ms: int
    rows: int
    subtasks: int
    properties: str
    "As JSON, cut."
    sync_us: int | None = None
    async_us: int | None = None
    alignment_us: int | None = None
    bytes_written: int | None = None
    bytes_total: int | None = None
    files_written: int | None = None
    watermark: int | None = None
    batch: dict[str, Any] | None = None
    "The micro-batch of Spark that it committed: `query_id`, `batch_id` and its figures."
    problem: str | None = None
    "Why it cannot be read."

    @property
    def duration_ms(self) -> int:
        """From the trigger to the commit."""
        return self.committed_at_ms - self.started_at_ms

    @property
    def watermark_lag_ms(self) -> int | None:
        """How far the watermark was behind the clock at the commit; None without one, or after its end."""
        if self.watermark is None or not 0 <= self.watermark < 1 << 53:
            return None
        return self.committed_at_ms - self.watermark

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is a checkpoint, a compaction of one, or a savepoint."""
        return self.checkpoint_id is not None


class LogView:
    """What is known of the log of a store; safe to use from several threads."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._log = CommitLog(storage, on_loss=self._note_loss)
        self._lines: dict[int, LogLine] = {}
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._boundary = 0
        self._changes = 0
        self._loader: threading.Thread | None = None
        self._is_stale = False
        self.damage: str | None = None
        "Which of the newest entries is damaged."
        self.loss: str | None = None
        "What is lost of the newest entries."
        self.total = 0
        "How many entries there are, as far as known."
        self.problem: str | None = None
        "Why older entries could not be read."

    def _note_loss(self, error: CorruptDataError) -> None:
        self.loss = str(error)

    def refresh(self) -> None:
        """Take up what was committed and collected since; an entry that is damaged is a line that says so."""
        with self._refreshing:
            self.loss = None
            try:
                self._follow(self._log.history())
                self.damage = None
            except _DAMAGES as error:
                self.damage = str(error)
                self._read_newest()

    def _follow(self, history: History) -> None:
        """Take up the newest entries, down to one that is known."""
        found: list[LogLine] = []
        meets = history.newest is None
        for committed in islice(history.entries(), _AT_ONCE):
            line = _line(self._storage, committed)
            known = self._lines.get(line.number)
            if known is not None and known.commit_id == line.commit_id:
                meets = True
                break
            found.append(line)
            meets = line.number == FIRST
        if self._lines and (not meets or (found and found[-1].number == FIRST)):
            # More was committed than is read at once, or the log is another one: all is read again.
            with self._lock:
                self._lines = {}
        with self._lock:
            self._lines.update((line.number, line) for line in found)
            self.total = max(self.total, len(self._lines))
            self._changes += bool(found)
        if history.boundary > self._boundary:
            self._boundary = history.boundary
            self._drop_collected()
        if history.newest is None:
            with self._lock:
                self._lines, self.total = {}, 0
        elif not meets:
            self._read_older()

    def _read_newest(self) -> None:
        """Take up the newest entries that are there, each by itself; what is known and whole stays."""
        self._boundary = max(self._boundary, self._log.boundary())
        numbers = self._numbers()
        newest = numbers[-_AT_ONCE:][::-1]
        with self._lock:
            whole = {number for number, line in self._lines.items() if line.problem is None}
        found = list(self._read([number for number in newest if number not in whole]))
        with self._lock:
            changed = [line for line in found if self._lines.get(line.number) != line]
            self._lines.update((line.number, line) for line in changed)
            self.total = len(numbers)
            self._changes += bool(changed)
        if any(number not in self._lines for number in numbers if number >= self._boundary):
            self._read_older()

    def _numbers(self) -> list[int]:
        """Return the numbers of all entries, ascending, and those between them that are missing."""
        listed = self._log.numbers()
        kept = [number for number in listed if number < self._boundary]
        own = listed[len(kept) :]
        return [*kept, *range(own[0], own[-1] + 1)] if own else kept

    def lines(self) -> list[LogLine]:
        """Return what is known, oldest first."""
        with self._lock:
            known = dict(self._lines)
        return [known[number] for number in sorted(known)]

    @property
    def is_loading(self) -> bool:
        """Whether older entries are still being read."""
        return self._loader is not None and self._loader.is_alive()

    @property
    def version(self) -> str:
        """Another text after each change."""
        with self._lock:
            newest = max(self._lines, default=0)
            return f"{newest}-{len(self._lines)}-{self._changes}{'-' if self.is_loading else ''}"

    def wait(self, seconds: float) -> None:
        """Wait until older entries are read, at most so long."""
        if self._loader is not None:
            self._loader.join(seconds)

    def _drop_collected(self) -> None:
        below = [number for number in self._lines if number < self._boundary]
        there = set(self._log.numbers()) if below else set()
        with self._lock:
            for number in below:
                if number not in there:
                    del self._lines[number]
            self._changes += 1

    def _read_older(self) -> None:
        self._is_stale = True
        if not self.is_loading:
            self._loader = threading.Thread(target=self._load, name="arrowstate-ui-log", daemon=True)
            self._loader.start()

    def _load(self) -> None:
        """Read all entries that are not known, newest first."""
        while self._is_stale:
            self._is_stale = False
            try:
                numbers = self._numbers()
                self.total = len(numbers)
                with self._lock:
                    missing = [number for number in reversed(numbers) if number not in self._lines]
                for line in self._read(missing):
                    with self._lock:
                        self._lines[line.number] = line
                        self._changes += 1
                self.problem = None
            except (ArrowStateError, OSError) as error:
                self.problem = f"older checkpoints could not be read: {error}"

    def _read(self, numbers: list[int]) -> Iterator[LogLine]:
        for start in range(0, len(numbers), _AT_ONCE):
            some = numbers[start : start + _AT_ONCE]
            try:
                found: Iterable[tuple[int, CommittedEntry | None]] = list(self._log.many(some))
            except _DAMAGES:
                # One by one, so that only what is damaged is shown as such.
                yield from map(self._readable, some)
                continue
            for number, committed in found:
                if committed is None:
                    if number >= self._boundary:
                        yield _damaged(number, "the log entry is missing")
                elif number >= self._boundary or self._log.is_kept(committed):
                    yield _line(self._storage, committed)

    def _readable(self, number: int) -> LogLine:
        try:
            return _line(self._storage, self._log.read(number))
        except _DAMAGES as error:
            return _damaged(number, str(error))


def _damaged(number: int, problem: str) -> LogLine:
    return LogLine(number, "damaged", "", None, 0, 0, 0, 0, 0, "", problem=problem)


def _line(storage: Storage, committed: CommittedEntry) -> LogLine:
    entry = committed.document
    row = next(iter(HISTORY_TABLES[HISTORY_NAMES[0]][1](storage, entry, ())))
    text = row["properties"]
    return LogLine(
        number=entry.number,
        kind=entry.kind,
        commit_id=entry.commit_id,
        checkpoint_id=entry.checkpoint_id,
        writer_epoch=entry.writer_epoch,
        started_at_ms=entry.started_at_ms,
        committed_at_ms=entry.committed_at_ms,
        rows=row["rows"],
        subtasks=row["subtasks"],
        properties=text if len(text) <= _PROPERTIES_CHARACTERS else text[:_PROPERTIES_CHARACTERS] + "…",
        batch=_batch(entry.properties),
        **{name: row[name] for name in _MEASURED},
    )


def _batch(properties: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the log says of a micro-batch of Spark, None where it says nothing that can be shown."""
    record = properties.get("spark")
    if not isinstance(record, dict) or not isinstance(record.get("batch_id"), int):
        return None
    metrics = record.get("metrics")
    figures = (
        {key: value for key, value in metrics.items() if isinstance(value, int)} if isinstance(metrics, dict) else {}
    )
    return {"query_id": str(record.get("query_id")), "batch_id": record["batch_id"], **figures}
