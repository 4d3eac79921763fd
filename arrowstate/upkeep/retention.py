"""Which checkpoints of a store are kept: by count, by age, by the hour, by tags and leases, and the newest always.

Pure: entries and pins go in, a decision comes out. What is kept by count and age is the newest part of the log, from
a boundary on without a gap. Below it stand single checkpoints: those that a tag or a lease holds, savepoints, which
belong to whoever made them, and the newest of an hour, which a collection holds by a lease of its own.
A clock decides only how long a checkpoint is kept beyond the count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from arrowstate.clock import utc_text
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.integers import check_integer

_HOUR_MS = 3600 * 1000
_MOST_HOURS = 31 * 24
"""Each hour is a lease, which every collection reads."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Which checkpoints a store keeps: the newest by count, younger ones by age, and one of each hour.

    Checkpoints with a tag or a lease, savepoints and the newest checkpoint are always kept.

    Raises
    ------
    InvalidInputError
        If count is below 1, age_ms is negative, or hours is not 0 to 744.

    Examples
    --------
    The newest three, those of the last ten minutes, and one for each hour of the last week:

    >>> RetentionPolicy(count=3, age_ms=10 * 60 * 1000, hours=7 * 24)
    RetentionPolicy(count=3, age_ms=600000, hours=168)
    """

    count: int = 1
    """The newest so many checkpoints, at least 1; savepoints do not count, and a compaction counts in the place of the
    checkpoint that it repeats."""
    age_ms: int | None = None
    "Also checkpoints committed less than so many milliseconds ago; None: none by age."
    hours: int = 0
    """Also the newest checkpoint of each of the last so many hours, 0 to 744. An hour begins at the full hour of UTC;
    the present hour is the first of them."""

    def __post_init__(self) -> None:
        count = check_integer("count, the checkpoints that a retention keeps,", self.count, 1)
        age_ms = check_integer("age_ms", self.age_ms, 0, unit="milliseconds", optional=True)
        hours = check_integer("hours, of which a retention keeps the newest checkpoint,", self.hours, 0, _MOST_HOURS)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "age_ms", age_ms)
        object.__setattr__(self, "hours", hours)

    def __str__(self) -> str:
        kept = [f"the newest {self.count}" if self.count > 1 else "the newest"]
        kept += [] if self.age_ms is None else [f"those younger than {self.age_ms} ms"]
        kept += [f"the newest of each of the last {self.hours} hours"] if self.hours else []
        return f"{', '.join(kept[:-1])} and {kept[-1]}" if len(kept) > 1 else kept[0]


DEFAULT_RETENTION = RetentionPolicy(count=10, hours=24)
"""What jobs and queries keep that are told nothing else."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What a policy says of a log."""

    boundary: int
    "Every entry from this number on is kept."
    kept: dict[int, tuple[str, ...]]
    "Why, by the number of the entry; empty for a fence between checkpoints that are kept."
    dropped: tuple[int, ...]
    "Numbers of entries that go, ascending."


def retain(
    entries: Iterable[LogEntryDocument],
    pins: Sequence[tuple[int, str]],
    policy: RetentionPolicy,
    *,
    now_ms: int,
    floor: int,
    in_doubt: Collection[int] = (),
    grace_ms: int = 0,
    followed: Sequence[tuple[int, str]] = (),
    hourly: Collection[int] = (),
) -> Retention:
    """Decide which entries of a log are kept."""
    documents = list(entries)
    choice = RetentionChoice(policy, now_ms=now_ms, floor=floor, grace_ms=grace_ms)
    for document in documents:
        choice.add(document, in_doubt=document.number in in_doubt, is_hourly=document.number in hourly)
    boundary, reasons = choice.made(pins, followed)
    kept = {
        document.number: reasons.get(document.number, ())
        for document in documents
        if document.number >= boundary or document.number in reasons
    }
    dropped = tuple(document.number for document in documents if document.number not in kept)
    return Retention(boundary, kept, dropped)


class RetentionChoice:
    """Decides which entries of a log are kept, which are told one after the other; what is dropped is not held.

    Parameters as for `retain`.
    """

    def __init__(self, policy: RetentionPolicy, *, now_ms: int, floor: int, grace_ms: int) -> None:
        self._policy = policy
        self._now_ms = now_ms
        self._floor = floor
        self._grace_ms = grace_ms
        self._first: int | None = None
        self._last: int | None = None
        self._certain: int | None = None
        "The last checkpoint that is not in doubt."
        self._counted: deque[int] = deque(maxlen=policy.count)
        self._repeated: list[int] = []
        "The checkpoints that the last compactions repeat, as long as these are young."
        self._young: list[int] = []
        self._savepoints: list[int] = []
        self._hourly: dict[int, int] = {}
        "The newest checkpoint of each of the last hours, by the number of the hour since 1970."
        self._is_doubtful = False

    @property
    def hourly(self) -> dict[int, int]:
        """The numbers of the entries that are the newest of their hours, with the time until which they are kept."""
        return {number: (hour + self._policy.hours) * _HOUR_MS for hour, number in self._hourly.items()}

    def add(self, document: LogEntryDocument, *, in_doubt: bool = False, is_hourly: bool = False) -> None:
        """Take note of an entry, whose number is above those before.

        `in_doubt` as for `retain`; `is_hourly` says of an entry below the floor that it is held as one of `hourly`.
        """
        if document.kind == "savepoint":
            self._savepoints.append(document.number)
        if document.number < self._floor:
            if is_hourly:
                self._note_hour(document)
            return
        self._first = document.number if self._first is None else self._first
        self._last = document.number
        self._is_doubtful |= in_doubt
        if document.kind not in ("checkpoint", "compaction"):
            return
        if self._policy.age_ms is not None and document.committed_at_ms > self._now_ms - self._policy.age_ms:
            self._young.append(document.number)
        if in_doubt:
            return
        self._note_hour(document)
        # A compaction holds what the checkpoint before it does: the two are one, and the later one needs fewer files.
        before, self._certain = self._certain, document.number
        if before is None:
            return
        if document.kind != "compaction":
            self._counted.append(before)
            self._repeated.clear()
        elif document.committed_at_ms <= self._now_ms - self._grace_ms:
            self._repeated.clear()
        else:
            self._repeated.append(before)

    def _note_hour(self, document: LogEntryDocument) -> None:
        # What a clock that was wrong dates into the future is of the present hour.
        hour, present = min(document.committed_at_ms, self._now_ms) // _HOUR_MS, self._now_ms // _HOUR_MS
        if hour > present - self._policy.hours:
            self._hourly[hour] = document.number

    def made(
        self, pins: Iterable[tuple[int, str]], followed: Iterable[tuple[int, str]] = ()
    ) -> tuple[int, dict[int, tuple[str, ...]]]:
        """Return the boundary, and why entries are kept, by number; those from the boundary on without a reason are."""
        policy = self._policy
        reasons: dict[int, list[str]] = {}

        def keep(number: int, reason: str) -> None:
            reasons.setdefault(number, []).append(reason)

        assert self._first is not None, "there is an entry from the floor on"
        assert self._last is not None, "there is an entry from the floor on"
        counted = [*self._counted, *([] if self._certain is None else [self._certain])][-policy.count :]
        if self._is_doubtful and len(counted) < policy.count:
            keep(self._first, "a newer checkpoint is in doubt")
        for number in counted:
            keep(number, f"one of the newest {policy.count}")
        for number in reversed(self._repeated):
            keep(number, f"its compaction is younger than {self._grace_ms} ms, its writer may go on from it")
        for number in self._young:
            keep(number, f"younger than {policy.age_ms} ms")
        keep(self._last, "the newest entry")
        for number, holder in followed:
            keep(number, holder)
        boundary = max(self._floor, min(reasons))
        for number in self._savepoints:
            keep(number, "a savepoint")
        for hour, number in self._hourly.items():
            start = utc_text(hour * 3_600_000, "minutes").replace("T", " ").replace("+00:00", " UTC")
            keep(number, f"the newest of its hour, {start}")
        for number, holder in pins:
            keep(number, holder)
        return boundary, {number: tuple(reasons[number]) for number in reasons}
