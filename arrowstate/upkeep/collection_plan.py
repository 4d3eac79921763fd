"""What a collection would delete, and why the rest stays: a look at the store that changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import TypeVar

from msgspec import Struct, field

from arrowstate.errors import ArrowStateError, CorruptDataError, InvalidInputError
from arrowstate.files.references import ReferenceReader
from arrowstate.log.boundary import Boundary, highest_boundary, read_boundaries
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry, hinted_number, open_store_document, path_of
from arrowstate.log.pins import Pin
from arrowstate.storage.base import Storage, listed_pages
from arrowstate.upkeep.planned import (
    DEFAULT_PORTIONS,
    ORDER,
    CollectionPlan,
    Deletion,
    Hourly,
    Kept,
    Kind,
    Portions,
    Waiting,
)
from arrowstate.upkeep.retention import RetentionChoice, RetentionPolicy
from arrowstate.upkeep.roots import Roots, chained, entries_ahead, mark, read_roots
from arrowstate.upkeep.stored_files import MANIFEST, StoredFiles
from arrowstate_formats.documents import BoundaryDocument
from arrowstate_formats.integers import check_integer

_logger = logging.getLogger("arrowstate.upkeep")
SHORTEST_GRACE_MS = 60_000
"""A shorter grace period takes an explicit word."""


_Looked = TypeVar("_Looked")


def plan_collection(
    storage: Storage,
    policy: RetentionPolicy,
    *,
    now_ms: int,
    grace_ms: int,
    portions: Portions | None = None,
    up_to: int | None = None,
    without: frozenset[Boundary] = frozenset(),
    clock_ms: Callable[[], int] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> CollectionPlan:
    """Find out what a collection would delete. Nothing is written.

    `advance` is called after each entry that is read. The entries of a long log are read twice: to choose which are
    kept, and for the files that they refer to.
    """
    grace_ms = _grace(grace_ms)
    open_store_document(storage)
    portions = portions or DEFAULT_PORTIONS
    holds_all = _droppable(storage, policy, now_ms, up_to) <= portions.entries
    look = _Look(storage, policy, now_ms, grace_ms, portions, up_to, without, clock_ms or (lambda: now_ms), advance)
    plan = settled_look(lambda: look.plan(holds_all=holds_all))
    if plan is None:
        # Less goes than was to be expected.
        plan = settled_look(lambda: look.plan(holds_all=True))
    assert plan is not None, "all files were held"
    if plan.foreign:
        fields = {"store": storage.url, "files": len(plan.foreign), "example": plan.foreign[0]}
        text = "%(store)s: %(files)d files are of no kind that is known, and are left alone; %(example)s is one"
        _logger.info(text, fields, extra=fields)
    return plan


def _grace(grace_ms: int) -> int:
    return check_integer("grace_ms, the grace period,", grace_ms, 0, unit="milliseconds")


def check_grace(grace_ms: int, *, allow_short: bool) -> None:
    """Refuse a grace period that is shorter than a checkpoint may take, unless it is allowed."""
    if not allow_short and _grace(grace_ms) < SHORTEST_GRACE_MS:
        raise InvalidInputError(
            f"the grace period must be at least {SHORTEST_GRACE_MS} ms, got {grace_ms}: a shorter one may take the "
            "files of a checkpoint that is being written; where nobody writes to the store, allow it with "
            "allow_short_grace=True (`arrowstate gc --allow-short-grace`)"
        )


def settled_look(look: Callable[[], _Looked]) -> _Looked:
    """Return what a look at the store returns, although other collections, tags and leases come in between.

    What is damaged is found by the next look too. What another collection took in the middle of the look is not: the
    boundary or the pins have changed, and nothing that counts refers to it any more.
    """
    seen = None
    while True:
        try:
            return look()
        except CorruptDataError as error:
            if str(error) == seen:
                raise
            seen = str(error)


def _droppable(storage: Storage, policy: RetentionPolicy, now_ms: int, up_to: int | None) -> int:
    """Return about how many entries a policy drops, by the hint, the boundary and a few times; nothing rests on it."""
    if up_to is not None:
        return 0
    log = CommitLog(storage)
    low = max(log.boundary(), 1)
    high = (hinted_number(storage) or 0) + 1 - policy.count
    if policy.age_ms is None:
        return high - low
    first, last = low, high
    while first < last:
        middle = (first + last) // 2
        with suppress(ArrowStateError):
            entry = log.get(middle)
            if entry is not None and entry.document.committed_at_ms <= now_ms - policy.age_ms:
                first = middle + 1
                continue
        last = middle
    return first - low


class _Look(Struct, frozen=True):
    """What a plan is made by; parameters as for `plan_collection`."""

    storage: Storage
    policy: RetentionPolicy
    now_ms: int
    grace_ms: int
    portions: Portions
    up_to: int | None
    without: frozenset[Boundary]
    clock_ms: Callable[[], int]
    advance: Callable[[], None]

    def plan(self, *, holds_all: bool) -> CollectionPlan | None:
        """Plan a collection; CorruptDataError where another one came in between, too.

        `holds_all` is whether the paths of all files may be in memory; None if they must be and may not.
        """
        storage = self.storage
        # Before any root is read: what is written from here on is not considered at all.
        unfinished = storage.list_unfinished()
        files = StoredFiles.of(storage, holds_own=holds_all)
        listed_at_ms = max(self.now_ms, self.clock_ms())
        roots = read_roots(storage, now_ms=self.now_ms, floor=highest_boundary(files.statements), advance=self.advance)
        # After the log: whoever may be deleting files of an entry in it has said so before the entry was made.
        read = read_boundaries(storage, without=self.without)
        seen = _first_seen(read.values(), self.now_ms)
        taken = all_taken(read.values())
        risked = files_at_risk(read.values())
        if not roots.numbers:
            # All files of a store that has no entry yet are of attempts.
            return self._of_empty(files, unfinished, seen, listed_at_ms)
        reader = ReferenceReader(storage)
        choice, boundary, reasons = self._retention(
            roots, reader if roots.known else ReferenceReader(storage), read.values()
        )
        hourly = {number: until_ms for number, until_ms in choice.hourly.items() if number < boundary}
        kept: list[Kept] = []
        marked = mark(storage, reader, _noting_kept(roots, boundary, reasons, kept), risked)
        _check_whole(storage, {path: found for path, found in marked.items() if path not in risked})
        dropped = _Dropped.of(roots, _dropped(roots, boundary, reasons), reader, self.portions)
        leases = [Deletion(pin.path, "lease", f"ended at {pin.expires_at_ms}", None) for pin in roots.ended]
        leases += [
            Deletion(pin.path, "lease", "the policy keeps the checkpoint by its hour no more", None)
            for pin in roots.held
            if pin.is_of_retention and not _fits(pin, hourly)
        ]
        waiting: tuple[Waiting, ...] = ()
        if dropped.further:
            deletions = [item for item in dropped.of_files() if item.path not in marked]
        elif holds_all:
            waiting, deletions = self._unreferenced(files, unfinished, marked, dropped.files, seen, listed_at_ms)
        else:
            return None
        kept_ids = {item.checkpoint_id for item in kept}
        return CollectionPlan(
            head=roots.newest,
            boundary=boundary,
            kept=tuple(kept),
            # Of a checkpoint and its compactions the last may stay.
            dropped=tuple(dict.fromkeys(id for id in dropped.checkpoint_ids if id not in kept_ids)),
            deletions=_in_order([*leases, *deletions, *dropped.entries]),
            waiting=waiting,
            foreign=files.foreign,
            further=dropped.further,
            grace_ms=self.grace_ms,
            policy=self.policy,
            hourly=_to_lease(roots, hourly),
            # Whoever was committing when they went had looked before, so only the next entry can refer to them.
            # An entry that goes is spared where a lease on it comes before it is condemned.
            taken={
                path: number
                for path, number in taken.items()
                if number >= roots.newest or path in marked or path in dropped.files
            },
            statements=frozenset(read),
        )

    def _of_empty(
        self, files: StoredFiles, unfinished: list[str], seen: dict[str, int], listed_at_ms: int
    ) -> CollectionPlan | None:
        if not files.holds_own:
            return None
        waiting, deletions = self._unreferenced(files, unfinished, {}, {}, seen, listed_at_ms)
        return CollectionPlan(0, 0, (), (), _in_order(deletions), waiting, files.foreign, grace_ms=self.grace_ms)

    def _retention(
        self, roots: Roots, reader: ReferenceReader, statements: Collection[BoundaryDocument]
    ) -> tuple[RetentionChoice, int, dict[int, tuple[str, ...]]]:
        """Return the choice, the boundary and why entries are kept; reads the whole log, and holds few of it."""
        risked = files_at_risk(statements)
        # An entry that refers to what went before it was made is the next one after that, see the specification.
        last = max((number for statement in statements for number in statement.taken.values()), default=0) + 1
        if any(statement.condemned for statement in statements):
            last = roots.newest
        choice = RetentionChoice(self.policy, now_ms=self.now_ms, floor=roots.floor, grace_ms=self.grace_ms)
        hourly = {pin.entry.number for pin in roots.held if pin.is_of_retention}
        for entry in chained(roots.entries(chain.from_iterable(roots.numbers)), roots.floor):
            may_lack = bool(risked) and roots.floor <= entry.document.number <= last
            # What cannot be read is found when it is marked.
            in_doubt = may_lack and not risked.isdisjoint(reader.files(entry.document.operators, unreadable=[]))
            choice.add(entry.document, in_doubt=in_doubt, is_hourly=entry.document.number in hourly)
        single = [pin for pin in roots.held if not pin.and_later and not pin.is_of_retention]
        pins = [(number, pin.holder) for pin in single for number in roots.held_by(pin)]
        followed = [(number, pin.holder) for pin in roots.held if pin.and_later for number in roots.held_by(pin)]
        boundary, reasons = choice.made(pins, followed)
        if self.up_to is not None:
            boundary = min(boundary, max(self.up_to, roots.floor))
        return choice, boundary, reasons

    def _unreferenced(
        self,
        files: StoredFiles,
        unfinished: list[str],
        marked: Mapping[str, tuple[int, int]],
        known: Mapping[str, tuple[int | None, str]],
        seen: Mapping[str, int],
        listed_at_ms: int,
    ) -> tuple[tuple[Waiting, ...], list[Deletion]]:
        """Tell the files that go from those that wait."""
        waiting: list[Waiting] = []
        orphans: list[Deletion] = []
        attributed: dict[str, Deletion] = {}
        kinds: dict[str, Kind] = dict.fromkeys(unfinished, "unfinished")
        kinds |= {path: _kind(path) for path in files.own}
        for path, kind in kinds.items():
            if path in marked:
                continue
            if path in known:
                size, reason = known[path]
                attributed[path] = Deletion(path, kind, reason, size)
                continue
            first = seen.get(path, listed_at_ms)
            if listed_at_ms - first >= self.grace_ms:
                reason = "nothing refers to it" if kind != "unfinished" else "it was not finished"
                orphans.append(Deletion(path, kind, f"{reason}, first seen at {first}", None, orphan=True))
            else:
                waiting.append(Waiting(path, first, first + self.grace_ms))
        oldest_first = [attributed[path] for path in known if path in attributed]
        return tuple(waiting), [*orphans, *oldest_first]


def _kind(path: str) -> Kind:
    return "manifest" if MANIFEST.fullmatch(path) else "data"


def _fits(pin: Pin, hourly: Mapping[int, int]) -> bool:
    """Whether a lease of the retention keeps what the policy keeps by its hour, and for as long."""
    return pin.entry.number in hourly and (pin.expires_at_ms or 0) >= hourly[pin.entry.number]


def _to_lease(roots: Roots, hourly: Mapping[int, int]) -> tuple[Hourly, ...]:
    """Return those of the newest checkpoints of their hours that no lease keeps."""
    leased = {pin.entry.number for pin in roots.held if pin.is_of_retention and _fits(pin, hourly)}
    found = []
    for entry in roots.entries(sorted(hourly.keys() - leased)):
        number, checkpoint_id = entry.document.number, entry.document.checkpoint_id
        assert checkpoint_id is not None, "a fence is of no hour"
        found.append(Hourly(checkpoint_id, entry.as_parent, hourly[number]))
    return tuple(found)


def _noting_kept(
    roots: Roots, boundary: int, reasons: Mapping[int, tuple[str, ...]], kept: list[Kept]
) -> Iterator[CommittedEntry]:
    """Yield the entries that are kept, and note the checkpoints among them."""
    numbers = (number for part in roots.numbers for number in part if number >= boundary or number in reasons)
    for entry in roots.entries(numbers):
        number, checkpoint_id = entry.document.number, entry.document.checkpoint_id
        if checkpoint_id is not None:
            kept.append(Kept(number, checkpoint_id, reasons.get(number, ())))
        yield entry


def _dropped(roots: Roots, boundary: int, reasons: Collection[int]) -> list[range]:
    """Return the numbers of the entries that go."""
    below = [range(part.start, min(part.stop, boundary)) for part in roots.numbers if part.start < boundary]
    ends = sorted(number for number in reasons if number < boundary)
    found = []
    for part in below:
        start = part.start
        for number in [*(number for number in ends if number in part), part.stop]:
            if number > start:
                found.append(range(start, number))
            start = number + 1
    return found


class _Dropped(Struct):
    """The entries that go, as many of the first as are one portion."""

    entries: list[Deletion] = field(default_factory=list)
    checkpoint_ids: list[int] = field(default_factory=list)
    files: dict[str, tuple[int | None, str]] = field(default_factory=dict)
    "Bytes and reason of the files that they refer to, oldest entry first."
    further: int = 0
    "How many entries there are besides."

    @classmethod
    def of(cls, roots: Roots, numbers: list[range], reader: ReferenceReader, portions: Portions) -> _Dropped:
        found, total = cls(), sum(map(len, numbers))
        portion = islice(chain.from_iterable(numbers), portions.entries)
        for count, entry in enumerate(entries_ahead(reader, roots.entries(portion)), 1):
            found._add(entry, reader)
            if len(found.files) >= portions.files:
                found.further = total - count
                return found
        found.further = max(total - portions.entries, 0)
        return found

    def _add(self, entry: CommittedEntry, reader: ReferenceReader) -> None:
        document = entry.document
        what = "a fence"
        if document.checkpoint_id is not None:
            what = f"checkpoint {document.checkpoint_id}"
            self.checkpoint_ids.append(document.checkpoint_id)
        # A manifest may be gone since an earlier collection was interrupted; the data went before it.
        for path, size in reader.files(document.operators, unreadable=[]).items():
            self.files.setdefault(path, (size, f"of {what}, which is dropped"))
        reason = "older than what is kept, and nothing holds it"
        self.entries.append(Deletion(path_of(document.number), "log entry", reason, entry.bytes))

    def of_files(self) -> Iterator[Deletion]:
        """Yield the deletions of the files."""
        for path, (size, reason) in self.files.items():
            yield Deletion(path, _kind(path), reason, size)


def all_taken(statements: Iterable[BoundaryDocument]) -> dict[str, int]:
    """Return the files that collections took, by the number of an entry that was there when they went."""
    found: dict[str, int] = {}
    for statement in statements:
        for path, number in statement.taken.items():
            found[path] = max(number, found.get(path, 0))
    return found


def files_at_risk(statements: Iterable[BoundaryDocument]) -> set[str]:
    """Return the files that collections took, and those that one which is not known to be done may be deleting."""
    return {path for statement in statements for path in (*statement.condemned, *statement.taken)}


def _check_whole(storage: Storage, marked: dict[str, tuple[int, int]]) -> None:
    """Refuse to go on where a checkpoint that is kept lacks a file: an older one may be needed in its place."""
    # Listed anew: of a collection that is done since the statements were read, all files are gone.
    missing = set(marked)
    for folder in ("data/", "manifests/"):
        for page in listed_pages(storage, folder):
            missing.difference_update(page)
    for path in sorted(missing):
        raise CorruptDataError(
            path,
            f"it is missing, and {path_of(marked[path][1])}, which is kept, refers to it; nothing is collected until "
            "newer checkpoints have taken its place, `diagnose` says which checkpoints are whole",
        )


def _in_order(deletions: list[Deletion]) -> tuple[Deletion, ...]:
    """Sort by kind, and leave data in the order of the checkpoints that it was of, log entries by number."""
    return tuple(sorted(deletions, key=lambda deletion: ORDER.index(deletion.kind)))


def _first_seen(statements: Iterable[BoundaryDocument], now_ms: int) -> dict[str, int]:
    """Return when a collection first saw each file that waits."""
    seen: dict[str, int] = {}
    for statement in statements:
        for path, first in statement.waiting.items():
            # A time in the future would have a file wait for a clock that was wrong.
            seen[path] = min(first, seen.get(path, now_ms), now_ms)
    return seen
