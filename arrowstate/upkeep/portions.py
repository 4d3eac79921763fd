"""A collection in portions: what goes is condemned, deleted and forgotten a portion at a time, however much it is.

All log entries that go are condemned before the first file is deleted, in as many documents as they need: nobody can
pin one of them any more, so what they refer to may go with the lowest of them although others need it too. Then, from
the lowest on, as many as refer to a number of files are read, their files condemned, what was committed meanwhile
looked at, and the files deleted, at last the entries. What is kept was read once, after the entries were condemned;
later only what has been added to the log since. Specification: formats/spec/collection.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

from msgspec import Struct, field
from msgspec.structs import replace

from arrowstate.files.references import ReferenceReader
from arrowstate.log.boundary import Boundary, put_boundary, read_boundaries
from arrowstate.log.commit_log import CommitLog, ranges_of
from arrowstate.log.entries import CommittedEntry, path_of
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import delete_all
from arrowstate.upkeep.collection_plan import files_at_risk, settled_look
from arrowstate.upkeep.planned import CollectionPlan, Portions
from arrowstate.upkeep.roots import chained, entries_ahead, mark, read_roots
from arrowstate.upkeep.stored_files import MANIFEST
from arrowstate_formats.documents import BoundaryDocument

_ENTRIES_TOGETHER = 1000


class PortionsReport(Struct):
    """What a collection in portions has done."""

    first: list[str] = field(default_factory=list)
    "What was deleted with the first portion, in order."
    deleted: int = 0
    "How many files were deleted."
    bytes: int = 0
    "How many bytes they had, as far as documents tell."
    spared: list[str] = field(default_factory=list)
    "Files of the plan that had come to be needed since it was made."
    left: set[Boundary] = field(default_factory=set)
    "The documents that say which files were taken."


def collect_portions(
    storage: Storage, plan: CollectionPlan, portions: Portions, *, now_ms: int, new_id: Callable[[], str]
) -> PortionsReport:
    """Delete the checkpoints that a plan drops, and those that would go after them; errors as `apply_collection`."""
    return _Portions(storage, plan, portions, now_ms, new_id).collect()


def delete_entries(storage: Storage, paths: list[str]) -> None:
    """Delete log entries from the lowest on."""
    for start in range(0, len(paths), _ENTRIES_TOGETHER):
        delete_all(storage, paths[start : start + _ENTRIES_TOGETHER])


class _Portions:
    """A collection in portions; parameters as for `collect_portions`."""

    def __init__(
        self, storage: Storage, plan: CollectionPlan, portions: Portions, now_ms: int, new_id: Callable[[], str]
    ) -> None:
        self._storage = storage
        self._portions = portions
        self._now_ms = now_ms
        self._new_id = new_id
        self._boundary = plan.boundary
        self._planned = plan.deletions
        self._kept_below = {item.entry_number for item in plan.kept if item.entry_number < plan.boundary}
        self._log = CommitLog(storage)
        self._report = PortionsReport()
        others = read_boundaries(storage)
        self._statement = BoundaryDocument(
            boundary=max([plan.boundary, *(other.boundary for other in others)]),
            swept=max([0, *(other.swept for other in others)]),
            collection_id="",
            written_at_ms=now_ms,
            condemned=[],
            waiting={},
        )
        self._said: list[Boundary] = []
        "The own documents that condemn log entries."
        self._last: Boundary | None = None
        "The own document that says which files of the portion before were taken."
        self._taken_at = 0
        "The newest entry when they were gone."
        self._taken: deque[frozenset[str]] = deque([frozenset()], maxlen=2)
        "The files of the last two portions."
        self._head = 0
        "The newest entry that was looked at."
        self._needed: set[str] = set()
        "The files that what is kept refers to."

    def collect(self) -> PortionsReport:
        """Do it."""
        doomed = self._doomed()
        self._condemn_entries(doomed)
        pinned = settled_look(self._look_at_roots)
        held = sorted(number for number in pinned if any(number in part for part in doomed))
        if held:
            self._report.spared += [path_of(number) for number in held]
            # What is spared must not be condemned any longer: who holds it may hold it anew.
            condemned = self._said
            self._said = []
            doomed = ranges_of(number for number in chain.from_iterable(doomed) if number not in held)
            self._condemn_entries(doomed)
            self._withdraw(condemned)
        entries = self._references(chain.from_iterable(doomed))
        while self._collect_portion(entries):
            pass
        self._withdraw(self._said)
        self._report.spared += [item.path for item in self._planned if item.path in self._needed]
        return self._report

    def _doomed(self) -> list[range]:
        """Return the numbers of the entries that go."""
        below = chain.from_iterable(range(part.start, min(part.stop, self._boundary)) for part in self._log.ranges())
        return ranges_of(number for number in below if number not in self._kept_below)

    def _condemn_entries(self, doomed: list[range]) -> None:
        """Say which log entries go; durable before anything does."""
        left = chain.from_iterable(doomed)
        while numbers := list(islice(left, self._portions.entries)):
            self._said.append(self._say(condemned=[path_of(number) for number in numbers]))

    def _withdraw(self, statements: list[Boundary]) -> None:
        """Take documents away that condemn entries; the boundary stays what they say."""
        if self._last is None:
            self._last = self._say(condemned=[])
            self._report.left.add(self._last)
        for statement in statements:
            self._storage.delete(statement.path)

    def _say(self, *, condemned: list[str], taken: dict[str, int] | None = None) -> Boundary:
        return put_boundary(
            self._storage,
            replace(self._statement, collection_id=self._new_id(), condemned=condemned, taken=taken or {}),
        )

    def _look_at_roots(self) -> set[int]:
        """Note what is kept refers to, and return which entries tags and leases hold."""
        roots = read_roots(self._storage, now_ms=self._now_ms, floor=self._boundary, below=self._kept_below)
        entries = chained(roots.entries(chain.from_iterable(roots.numbers)), roots.floor)
        self._needed = set(mark(self._storage, ReferenceReader(self._storage), entries, self._at_risk()))
        self._head = roots.newest
        return roots.pinned

    def _look_again(self) -> None:
        """Note what the entries refer to that have come to the log since."""
        reader = ReferenceReader(self._storage)
        while (entry := self._log.get(self._head + 1)) is not None:
            self._needed.update(mark(self._storage, reader, [entry], self._at_risk()))
            self._head = entry.document.number

    def _at_risk(self) -> set[str]:
        """Return the files that entries read before this call may lack: collections have said so, this one too."""
        # Asked after the entries: another collection may have taken since what an entry that came too late refers to.
        statements = read_boundaries(self._storage, without=self._said).values()
        return files_at_risk(statements).union(*self._taken)

    def _references(self, numbers: Iterable[int]) -> Iterator[tuple[CommittedEntry, dict[str, int]]]:
        """Yield entries, but for those that have gone already, and which files each of them refers to."""
        reader = ReferenceReader(self._storage)
        there = (entry for _, entry in self._log.many(numbers) if entry is not None)
        for entry in entries_ahead(reader, there):
            # A manifest may be gone since an earlier collection was interrupted; the data went before it.
            yield entry, reader.files(entry.document.operators, unreadable=[])

    def _collect_portion(self, entries: Iterator[tuple[CommittedEntry, dict[str, int]]]) -> bool:
        """Delete the files of some entries and then these; False if there were none."""
        files: dict[str, int] = {}
        paths: list[str] = []
        for entry, of_entry in entries:
            paths.append(path_of(entry.document.number))
            self._report.bytes += entry.bytes
            files.update(of_entry)
            if len(files) >= self._portions.files or len(paths) == self._portions.entries:
                break
        condemned = [path for path in files if path not in self._needed]
        gone: list[str] = []
        if condemned:
            statement = self._say(condemned=condemned)
            # Only now: a commit that came before this is seen, and a later one sees what was said.
            settled_look(self._look_again)
            gone = sorted((path for path in condemned if path not in self._needed), key=_is_manifest)
            manifests = bisect_left(gone, True, key=_is_manifest)
            delete_all(self._storage, gone[:manifests])
            delete_all(self._storage, gone[manifests:])
            self._remember(gone)
            self._storage.delete(statement.path)
        # All files are gone by now.
        delete_entries(self._storage, paths)
        self._report.deleted += len(gone) + len(paths)
        self._report.bytes += sum(files[path] for path in gone)
        self._report.first = self._report.first or [*gone, *paths]
        return bool(paths)

    def _remember(self, gone: list[str]) -> None:
        """Say which files were taken, and forget those of portions before if the log has gone on since."""
        self._taken.append(frozenset(gone))
        settled_look(self._look_again)
        # Whoever was committing when they went had looked before, so only the next entry can refer to them.
        is_past = self._last is not None and self._head > self._taken_at
        still = {path: self._taken_at for path in self._taken[0] if is_past and path in self._needed}
        before, self._taken_at = self._last, self._head
        self._last = self._say(condemned=[], taken={**still, **dict.fromkeys(gone, self._head)})
        self._report.left.add(self._last)
        if before is not None and is_past:
            self._storage.delete(before.path)
            self._report.left.remove(before)


def _is_manifest(path: str) -> bool:
    return MANIFEST.fullmatch(path) is not None
