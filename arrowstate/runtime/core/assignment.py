"""Which slot reads which splits of a job's sources, and how far ahead of the slowest a source may be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from arrowstate.runtime.connectors import Split
from arrowstate.runtime.core.assembling import Entries, recorded_splits, stored_splits
from arrowstate.runtime.core.explaining import explained
from arrowstate.runtime.core.messages import SourceTime, SplitState
from arrowstate.runtime.core.reading import MAX_WATERMARK
from arrowstate.runtime.graph import Graph, SourceNode
from arrowstate_formats.documents import LogEntryDocument

__all__ = ["Assignment"]


class Assignment:
    """The splits that are known of each source, and the event time that each slot has told of it."""

    def __init__(self, graph: Graph, slots: Sequence[int]) -> None:
        self._sources = graph.sources
        self._slots = slots
        self._known: dict[str, set[str]] = defaultdict(set)
        self._assigned = 0
        self._discovered_ms: dict[str, int] = {}
        self._discovering: set[str] = set()
        self._times: dict[tuple[str, int], tuple[int | None, bool]] = {}
        self._limits: dict[str, int] = {}

    @property
    def bounded(self) -> frozenset[str]:
        """The sources that get no splits besides those of the first discovery."""
        return frozenset(node.uid for node in self._sources if node.source.is_bounded)

    def forget_times(self) -> None:
        """Begin an attempt, in which nobody has told anything."""
        self._times.clear()
        self._limits.clear()

    def find(self, entries: Entries, entry: LogEntryDocument | None) -> dict[str, list[SplitState]]:
        """Return all splits of each source: those of a checkpoint, and those that are discovered besides."""
        splits = {}
        for node in self._sources:
            known = stored_splits(entries.storage, entry, node.uid)
            known, entries.recorded[node.uid] = recorded_splits(entries.storage, entry, node, known)
            with explained(node.uid, "discovering splits"):
                found = node.source.discover({split.id for split in known})
            splits[node.uid] = [*known, *(SplitState(split.id, split.position) for split in found)]
        return splits

    def deal(self, splits: Mapping[str, Sequence[SplitState]], now_ms: int) -> list[dict[str, list[SplitState]]]:
        """Return what each slot is to read, by source."""
        of_slot: list[dict[str, list[SplitState]]] = [defaultdict(list) for _ in self._slots]
        for uid, all_splits in splits.items():
            self._known[uid] = {split.id for split in all_splits}
            self._discovered_ms[uid] = now_ms
            # What was read to its end is spread too, for it is state until a checkpoint has recorded it.
            for number, split in enumerate(sorted(all_splits, key=lambda split: split.finished)):
                if not split.recorded:
                    of_slot[number % len(self._slots)][uid].append(split)
            self._assigned = len(all_splits)
        return [dict(of_source) for of_source in of_slot]

    def had_splits(self, slot: int) -> frozenset[str]:
        """Return the sources of which a slot has had splits, if those that are known are dealt as ever."""
        return frozenset(uid for uid, known in self._known.items() if len(known) > slot)

    def due(self, now_ms: int) -> list[str]:
        """Return the sources to ask for more splits now."""
        return [
            node.uid
            for node in self._sources
            if not node.source.is_bounded
            and now_ms - self._discovered_ms.get(node.uid, now_ms) >= node.source.discovery_ms
            and node.uid not in self._discovering
        ]

    def discovery(self, uid: str) -> Callable[[], Sequence[Split]]:
        """Return the work that asks a source for more splits; `discovered` takes what it finds."""
        self._discovering.add(uid)
        source = next(node.source for node in self._sources if node.uid == uid)
        known = frozenset(self._known[uid])

        def work() -> Sequence[Split]:
            with explained(uid, "discovering splits"):
                return source.discover(known)

        return work

    def asked(self, uid: str, now_ms: int) -> None:
        """Take note that a discovery has ended, with whatever result."""
        self._discovering.discard(uid)
        self._discovered_ms[uid] = now_ms

    def discovered(self, uid: str, found: Sequence[Split]) -> dict[int, list[SplitState]]:
        """Return what each slot is to read besides, of the splits that were found."""
        of_slot: dict[int, list[SplitState]] = defaultdict(list)
        for split in found:
            if split.id not in self._known[uid]:
                self._known[uid].add(split.id)
                of_slot[self._assigned % len(self._slots)].append(SplitState(split.id, split.position))
                self._assigned += 1
        return of_slot

    def heard(self, told: SourceTime) -> dict[str, int]:
        """Take note of the event time of a source in a slot; return the limits of sources that are others by it."""
        self._times[told.uid, told.slot] = told.watermark, told.is_idle
        groups: dict[str, list[SourceNode]] = defaultdict(list)
        for node in self._sources:
            if node.watermarks is not None and node.watermarks.group is not None:
                groups[node.watermarks.group].append(node)
        changed = {}
        for nodes in groups.values():
            times = [self._times.get((node.uid, slot), (None, False)) for node in nodes for slot in self._slots]
            waiting = [watermark for watermark, is_idle in times if not is_idle]
            for node in nodes:
                assert node.watermarks is not None and node.watermarks.max_drift_ms is not None
                if any(watermark is None for watermark in waiting):
                    limit = -MAX_WATERMARK
                else:
                    lowest = min((w for w in waiting if w is not None), default=MAX_WATERMARK)
                    limit = min(lowest + node.watermarks.max_drift_ms, MAX_WATERMARK)
                if self._limits.get(node.uid) != limit:
                    self._limits[node.uid] = changed[node.uid] = limit
        return changed
