"""Which slot reads which splits of a job's sources, and how far ahead of the slowest a source may be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from arrowstate.clock import has_passed
from arrowstate.errors import SourceError
from arrowstate.runtime.connectors import Split
from arrowstate.runtime.core.assembling import (
    Entries,
    recorded_splits,
    stored_position_type,
    stored_slots,
    stored_splits,
)
from arrowstate.runtime.core.explaining import explained
from arrowstate.runtime.core.messages import SourceTime, SplitState
from arrowstate.runtime.core.valve import MAX_WATERMARK
from arrowstate.runtime.graph import Graph, SourceNode
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument


class Assignment:
    """The splits that are known of each source, and the event time that each slot has told of it."""

    def __init__(self, graph: Graph, slots: Sequence[int]) -> None:
        self._sources = graph.sources
        self._slots = slots
        self._known: dict[str, set[str]] = defaultdict(set)
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
        """Return all splits of each source, in its order: those of a checkpoint, and what is discovered besides."""
        splits = {}
        for node in self._sources:
            known = stored_splits(entries.storage, entry, node.uid)
            known, entries.recorded[node.uid] = recorded_splits(entries.storage, entry, node, known)
            ids = {split.id for split in known}
            with explained(node.uid, "discovering splits"):
                found = [split for split in node.source.discover(ids) if split.id not in ids]
            new = [SplitState(split.id, split.position, number=len(known) + at) for at, split in enumerate(found)]
            splits[node.uid] = self._placed([*known, *new], stored_slots(entries.storage, entry, node.uid))
        return splits

    def _placed(self, splits: Sequence[SplitState], stored: int) -> list[SplitState]:
        """Say which slot has which split; a checkpoint was taken with so many slots, 0 for none."""
        count = len(self._slots)
        if stored in (0, count):
            # What a slot had it gets back: what was not late for it is not late after a failure either.
            return [replace(it, slot=it.number % count if it.slot is None else it.slot) for it in splits]
        left = {split.id: place for place, split in enumerate(split for split in splits if not split.finished)}
        return [replace(split, slot=left.get(split.id, split.number) % count) for split in splits]

    def deal(self, splits: Mapping[str, Sequence[SplitState]], now_ms: int) -> list[dict[str, list[SplitState]]]:
        """Return what each slot is to read, by source."""
        of_slot: list[dict[str, list[SplitState]]] = [defaultdict(list) for _ in self._slots]
        for uid, all_splits in splits.items():
            self._known[uid] = {split.id for split in all_splits}
            self._discovered_ms[uid] = now_ms
            # What was begun is read first. What has ended is state until a checkpoint has recorded it.
            for split in sorted(all_splits, key=lambda split: (split.finished, split.position is None, split.number)):
                if not split.recorded and split.slot is not None:
                    of_slot[split.slot][uid].append(split)
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
            and node.uid in self._discovered_ms
            and has_passed(now_ms, self._discovered_ms[node.uid], node.source.discovery_ms)
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
        known = self._known[uid]
        new = {split.id: split.position for split in found if split.id not in known}
        timed = next(node for node in self._sources if node.uid == uid).watermarks is not None
        # A slot without splits holds no event time back: it gets its first before others get more.
        empty = max(len(self._slots) - len(known), 0) if timed else 0
        for id in list(new)[: empty or None]:
            number, slot = len(known), len(known) % len(self._slots)
            of_slot[slot].append(SplitState(id, new[id], number=number, slot=slot))
            known.add(id)
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


def check_splits(graph: Graph, storage: Storage, entry: LogEntryDocument | None) -> None:
    """Refuse a checkpoint with splits that a source of the job cannot go on with."""
    for node in graph.sources:
        known = stored_splits(storage, entry, node.uid)
        of = {ended: [Split(it.id, it.position) for it in known if it.finished is ended] for ended in (False, True)}
        if known:
            with explained(node.uid, "checking the splits of the checkpoint"):
                had, has = stored_position_type(storage, entry, node.uid), node.source.position_type
                if _shape(had) != _shape(has):
                    raise SourceError(
                        known[0].id,
                        known[0].position,
                        f"the checkpoint has positions of type {had}, and this source has {has}, so it is not the "
                        "source that was read; give it another uid, under which it is read from its beginning",
                    )
                node.source.check_splits(of[False], of[True])


def _shape(kind: pa.DataType) -> object:
    """Return what two types of positions must share: a source may make its integers wider."""
    if pa.types.is_struct(kind):
        return {field.name for field in kind}
    return "integer" if pa.types.is_integer(kind) else kind
