"""From what the subtasks wrote to one log entry, and to the sinks what the entry keeps for them."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from arrowstate.checkpoints.committing import Committer, Needs
from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate.files.notes import begun_from
from arrowstate.files.operator import read_part
from arrowstate.files.output_tables import OutputTable as StoredTable
from arrowstate.files.output_tables import appended, merged_parts, write_output
from arrowstate.files.references import operator_state_files
from arrowstate.files.subtasks import lowest_watermark, operator_of, whole_state
from arrowstate.functions.dead_letters import is_dead_letters
from arrowstate.log.commit import Commit
from arrowstate.log.commit_log import CommitLog
from arrowstate.runtime.connectors import PreparingSink, Sink, Token
from arrowstate.runtime.core.explaining import explained
from arrowstate.runtime.core.messages import SplitState, StatePart, TaskHandle
from arrowstate.runtime.core.reading import split_type, splits_to_arrow
from arrowstate.runtime.graph import Graph, SinkNode, SourceNode, StatefulNode
from arrowstate.runtime.lease import JobLease
from arrowstate.runtime.sinks.table import OutputTable
from arrowstate.schema.conversion import rows_of
from arrowstate.storage.base import Storage
from arrowstate.upkeep.beside import Beside
from arrowstate_formats.arrow_types import type_from_json, type_to_json
from arrowstate_formats.documents import (
    LogEntryDocument,
    OperatorDocument,
    OperatorPartDocument,
    OperatorStateDocument,
)

_logger = logging.getLogger("arrowstate.runtime")

PROPERTY = "arrowstate.runtime"
"""The property of a log entry that says of which epoch and subtask the parts are that sinks have not had."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The splits of a source that were read to their end, as far as a checkpoint has recorded them for good."""

    parts: tuple[OperatorPartDocument, ...] = ()
    """Where they are; the last parts of the list state `splits`."""
    splits: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows that a sink is to get, in one part."""

    uid: str
    epoch: int
    subtask: int
    part: OperatorPartDocument
    value_type: Any
    store_id: str
    """By which the sink knows them: that of the job's store, or of the one that its state came from."""

    @property
    def place(self) -> tuple[int, str, int]:
        """Of which rows it is a part."""
        return self.epoch, self.uid, self.subtask


@dataclass(slots=True)
class Entries:
    """Commits checkpoints of a job, and then gives the sinks their rows. One thread at a time uses it."""

    graph: Graph
    storage: Storage
    store_id: str
    committer: Committer
    parallelism: int
    max_parallelism: int
    new_id: Callable[[], str]
    after_commits: Sequence[Beside] = ()
    "What is told of each commit."
    opened: bool = False
    committed_id: int = 0
    "The newest committed checkpoint, whose epochs and those before are done."
    recorded: dict[str, Recorded] = field(default_factory=dict)
    "By source what is recorded of its finished splits, in the newest checkpoint."
    waiting: list[Kept] = field(default_factory=list)
    "What sinks have not had, oldest first."
    begun_from: str | None = None
    "The savepoint, checkpoint or store with which the job has begun."
    lease: JobLease | None = None
    "Looked at before anything is done that others see; None for a job that nobody stands by for."
    on_close: Callable[[], None] | None = None
    "Called when the job needs the sinks no more."

    def restore(self) -> LogEntryDocument | None:
        """Return the newest checkpoint, after the sinks have got what it keeps for them."""
        self._check_lease()
        entry = CommitLog(self.storage).history().checkpoint
        self._open_sinks()
        # A sink that the job no longer declares was let go, and so were its rows.
        declared = {node.uid for node in self._sinks()}
        self.waiting = [] if entry is None else [kept for kept in self._kept(entry) if kept.uid in declared]
        self.committed_id = 0 if entry is None or entry.checkpoint_id is None else entry.checkpoint_id
        self.begun_from = None if entry is None else begun_from(entry.properties)
        names = self._by_sink(self.waiting)
        self.give()
        for node in self._sinks():
            if isinstance(node.sink, PreparingSink):
                rows = [self._rows(kept) for kept in names.get(node.uid, [])]
                table = pa.Table.from_batches(rows) if rows else node.sink.committable_schema.empty_table()
                with explained(node.uid, "recover"):
                    node.sink.recover(self.store_id, node.uid, _committables(node.sink, table))
        return entry

    def commit(self, checkpoint_id: int, handles: Sequence[TaskHandle], *, based_on: int, started_at_ms: int) -> None:
        """Commit a checkpoint all of whose parts are written; their files stay, for whoever ends the checkpoint."""
        with Commit(self.storage) as files:
            paths = files.paths
            found = [
                Kept(part.uid, part.epoch, handle.subtask, part.part, part.value_type, self.store_id)
                for handle in handles
                for part in handle.parts
                if part.epoch is not None and part.epoch > self.committed_id
            ]
            # Several tasks may write to a sink, which gets its rows by epoch.
            new = sorted(found, key=lambda item: (item.epoch, item.subtask))
            tables = {node.sink.name for node in self.graph.sinks if isinstance(node.sink, OutputTable)}
            kept = [*self.waiting, *(item for item in new if item.uid not in tables)]
            finished = self._finished(handles)
            recorded = self._recorded(finished, paths)
            operators = [
                *self._operators(handles, recorded),
                *self._tables(new, tables, paths),
                *self._pending(kept),
            ]
            written_uids = {operator.uid for operator in operators}
            # Dead letters stay in a store, whatever runs.
            operators += [item for item in self._content() if item.uid not in written_uids and is_dead_letters(item)]
            written = {path for handle in handles for path in handle.paths}.union(paths)
            states = [state for operator in operators for state in operator.operator_states]
            needed = {path for handle in handles for path in handle.references}.union(operator_state_files(states))
            self.committer.commit(
                operators,
                properties={
                    PROPERTY: {
                        "pending": self._places(kept),
                        "recorded": {uid: len(item.parts) for uid, item in recorded.items() if item.parts},
                        "sinks": self._sink_places(kept),
                        **({} if self.begun_from is None else {"from": self.begun_from}),
                    }
                },
                watermark=lowest_watermark(
                    item.watermark for handle in handles if (item := handle.document) is not None
                ),
                started_at_ms=started_at_ms,
                checkpoint_id=checkpoint_id,
                needs=Needs(written, based_on, needed),
                statistics=[handle.statistics for handle in handles if handle.statistics is not None],
                files=files,
            )
        self.committed_id = checkpoint_id
        self.waiting = kept
        self.recorded = recorded
        for uid, splits in finished.items():
            recorded[uid].splits.update(split.id for split in splits)
        for told in self.after_commits:
            told.wake()

    def give(self) -> None:
        """Give the sinks what the newest checkpoint keeps for them; what one was given it is not given again."""
        by_uid = {node.uid: node for node in self._sinks()}
        while self.waiting:
            first = self.waiting[0]
            # A token names all rows of an epoch and subtask, in however many parts they were written.
            parts = [item for item in self.waiting if item.place == first.place]
            node = by_uid[first.uid]
            table = pa.Table.from_batches([self._rows(item) for item in parts])
            self._check_lease()
            with explained(first.uid, f"the commit of rows of checkpoint {first.epoch}"):
                if isinstance(node.sink, Sink):
                    token = Token(first.store_id, first.uid, first.epoch, first.subtask)
                    node.sink.commit(table.cast(node.schema), token)
                else:
                    node.sink.commit(_committables(node.sink, table))
            self.waiting = [item for item in self.waiting if item.place != first.place]

    def settle(self) -> None:
        """Note in the log that the sinks have all rows of the newest checkpoint.

        The next start gives them none of these again, whatever sinks it has. That costs one more log entry, once for
        each job that ends.
        """
        checkpoint = self.committer.newest_checkpoint
        noted = None if checkpoint is None else (checkpoint.properties or {}).get(PROPERTY, {})
        if checkpoint is None or not noted or not noted.get("pending") or self.waiting:
            return
        self._check_lease()
        self.committer.commit_again(
            [operator for operator in checkpoint.operators if operator.uid not in noted["pending"]],
            properties={**(checkpoint.properties or {}), PROPERTY: {**noted, "pending": {}, "sinks": {}}},
        )
        for told in self.after_commits:
            told.wake()

    def close(self) -> None:
        """Close the sinks."""
        try:
            self._close_sinks()
        finally:
            if self.on_close is not None:
                self.on_close()

    def _check_lease(self) -> None:
        """Refuse what others see to a job that slept while another took over; tokens are for what is faster."""
        if self.lease is not None:
            self.lease.check()

    def _open_sinks(self) -> None:
        if self.opened:
            return
        self.opened = True
        try:
            for node in self._sinks():
                if isinstance(node.sink, Sink):
                    with explained(node.uid, "open"):
                        node.sink.open(self.store_id, node.uid)
                        node.sink.end_others(self.store_id, node.uid)
        except BaseException:
            # The next attempt opens all of them again.
            self._close_sinks()
            raise

    def _close_sinks(self) -> None:
        if self.opened:
            self.opened = False
            for node in self._sinks():
                if isinstance(node.sink, Sink):
                    try:
                        node.sink.close()
                    except Exception:
                        # Its rows were committed, and the others are to let go of what they have too.
                        _logger.warning("sink %r could not be closed", node.uid, exc_info=True)

    def _sinks(self) -> list[SinkNode]:
        return [node for node in self.graph.sinks if isinstance(node.sink, (Sink, PreparingSink))]

    def _finished(self, handles: Sequence[TaskHandle]) -> dict[str, list[SplitState]]:
        """The splits of each source that are to be recorded: a slot names one until it has heard of the commit."""
        found: dict[str, list[SplitState]] = {node.uid: [] for node in self.graph.sources}
        for handle in handles:
            for split in handle.finished:
                if split.id not in self.recorded.get(handle.task, Recorded()).splits:
                    found[handle.task].append(split)
        return found

    def _operators(self, handles: Sequence[TaskHandle], recorded: Mapping[str, Recorded]) -> list[OperatorDocument]:
        """What the tasks themselves have: keyed state, tables beside it, and splits."""
        by_task: dict[str, list[TaskHandle]] = defaultdict(list)
        for handle in sorted(handles, key=lambda handle: handle.subtask):
            by_task[handle.task].append(handle)
        made = []
        for task in self.graph.tasks:
            own = by_task[task.uid]
            by_uid = _operator_states(own)
            documents = by_uid.pop(task.uid, [])
            if isinstance(task, SourceNode):
                # Those of the slots come first: how many follow stands in a property.
                documents = [replace(item, parts=[*item.parts, *recorded[task.uid].parts]) for item in documents]
            if [handle.subtask for handle in own] != [*range(self.parallelism)]:
                raise InvalidInputError(
                    f"task {task.uid!r} was written by the subtasks {[handle.subtask for handle in own]}, and a "
                    f"checkpoint needs each of {self.parallelism} once"
                )
            if isinstance(task, StatefulNode):
                made.append(operator_of(task.uid, own, documents))
            elif documents:
                by_uid = {task.uid: documents, **by_uid}
            made += [
                OperatorDocument(uid=uid, key=[], max_parallelism=1, states=[], subtasks=[], operator_states=states)
                for uid, states in by_uid.items()
            ]
        return made

    def _recorded(self, finished: Mapping[str, Sequence[SplitState]], paths: list[str]) -> dict[str, Recorded]:
        """The finished splits of each source, which only grow: a checkpoint appends some, and refers to the rest."""
        made = {}
        for node in self.graph.sources:
            before, new = self.recorded.get(node.uid, Recorded()), finished[node.uid]
            parts = before.parts
            if new:
                kind = split_type(node.source.position_type)
                table = StoredTable(node.uid, pa.schema(list(kind)), True, state="splits")
                merged = merged_parts(self.storage, table, list(parts), new_id=self.new_id, paths=paths)
                rows = pa.Table.from_batches([rows_of(splits_to_arrow(new, kind))])
                parts = (*merged, write_output(self.storage, table, rows, new_id=self.new_id, paths=paths))
            made[node.uid] = Recorded(parts, before.splits)
        return made

    def _tables(self, new: Sequence[Kept], names: set[str], paths: list[str]) -> list[OperatorDocument]:
        """The output tables with the rows that are new."""
        before = self._content()
        made = []
        found = {node.sink.name: stored_table(node) for node in self.graph.sinks if isinstance(node.sink, OutputTable)}
        for name in sorted(names):
            table = found[name]
            parts = [item.part for item in new if item.uid == name]
            made.append(appended(self.storage, table, before, parts, new_id=self.new_id, firsts={}, paths=paths))
        return made

    def _content(self) -> Sequence[OperatorDocument]:
        content = self.committer.content
        if isinstance(content, CorruptDataError):
            raise content
        return content.operators

    def _pending(self, kept: Sequence[Kept]) -> list[OperatorDocument]:
        """What sinks have not had."""
        made = []
        for uid, items in self._by_sink(kept).items():
            state = OperatorStateDocument(
                name="pending", kind="list", value_type=items[0].value_type, parts=[item.part for item in items]
            )
            made.append(
                OperatorDocument(uid=uid, key=[], max_parallelism=1, states=[], subtasks=[], operator_states=[state])
            )
        return made

    def _places(self, kept: Sequence[Kept]) -> dict[str, list[list[int]]]:
        return {uid: [[item.epoch, item.subtask] for item in items] for uid, items in self._by_sink(kept).items()}

    def _sink_places(self, kept: Sequence[Kept]) -> dict[str, str]:
        """Return where the sinks write that are still to get rows, as far as they say."""
        waited_for = {item.uid for item in kept}
        return {
            node.uid: node.sink.place
            for node in self._sinks()
            if isinstance(node.sink, Sink) and node.sink.place is not None and node.uid in waited_for
        }

    def _by_sink(self, kept: Sequence[Kept]) -> dict[str, list[Kept]]:
        found: dict[str, list[Kept]] = defaultdict(list)
        for item in kept:
            found[item.uid].append(item)
        return dict(found)

    def _kept(self, entry: LogEntryDocument) -> Iterator[Kept]:
        """Yield what an entry keeps for sinks, in the order of the epochs."""
        noted = (entry.properties or {}).get(PROPERTY, {})
        places: Mapping[str, Sequence[Sequence[int]]] = noted.get("pending", {})
        # An attempt begins when the sinks have had these rows, so no checkpoint of this job keeps those of another.
        store_id = noted.get("origin", self.store_id)
        found = []
        for operator in entry.operators:
            for state in operator.operator_states:
                if operator.uid in places and state.name == "pending":
                    whole = whole_state(self.storage, operator.uid, state)
                    if len(whole.parts) != len(places[operator.uid]):
                        raise CorruptDataError(
                            f"log entry {entry.number}",
                            f"{operator.uid}.pending has {len(whole.parts)} parts, and places for "
                            f"{len(places[operator.uid])}",
                        )
                    for part, (epoch, subtask) in zip(whole.parts, places[operator.uid], strict=True):
                        found.append(Kept(operator.uid, epoch, subtask, part, state.value_type, store_id))
        yield from sorted(found, key=lambda item: (item.epoch, item.subtask))

    def _rows(self, kept: Kept) -> pa.RecordBatch:
        document = OperatorStateDocument(name="pending", kind="list", value_type=kept.value_type, parts=[kept.part])
        structs = read_part(self.storage, document, 0).column(0)
        kind = type_from_json(kept.value_type)
        return pa.RecordBatch.from_arrays(structs.flatten(), schema=pa.schema(list(kind)))


def _operator_states(handles: Sequence[TaskHandle]) -> dict[str, list[OperatorStateDocument]]:
    """Return by uid the operator states that the subtasks of a task have written: its own, and those of its maps."""
    states: dict[tuple[str, str], list[StatePart]] = defaultdict(list)
    for handle in handles:
        for part in handle.parts:
            if part.epoch is None:
                states[part.uid, part.name].append(part)
    found: dict[str, list[OperatorStateDocument]] = {}
    for (uid, name), parts in states.items():
        document = OperatorStateDocument(
            name=name,
            kind=parts[0].kind,
            value_type=parts[0].value_type,
            key_type=parts[0].key_type,
            parts=[part.part for part in parts],
        )
        found.setdefault(uid, []).append(document)
    return found


def stored_table(node: SinkNode) -> StoredTable:
    """Return an output table as a store has it."""
    return StoredTable(node.uid, pa.schema([pa.field(item.name, item.type) for item in node.schema]), True)


def _committables(sink: PreparingSink, rows: pa.Table) -> pa.RecordBatch:
    """Return what names prepared rows, as the sink declared it: a store keeps no word of what may be null."""
    batches = rows.cast(sink.committable_schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=sink.committable_schema)


def stored_splits(storage: Storage, entry: LogEntryDocument | None, uid: str) -> list[SplitState]:
    """Return the splits of a source in a checkpoint, each once, in the order of the source."""
    found: dict[str, SplitState] = {}
    order: dict[str, tuple[float, int, int]] = {}
    whole = _splits(storage, entry, uid)
    if whole is None:
        return []
    first = len(whole.parts) - _recorded_parts(entry, uid)
    for part in range(len(whole.parts)):
        for place, row in enumerate(read_part(storage, whole, part).column(0).to_pylist()):
            # What an edit has put in may have no number: it comes last.
            id, number = row["split"], row.get("number")
            order[id] = math.inf if number is None else number, place, part
            found[id] = SplitState(
                id,
                row["position"],
                row["finished"],
                row["watermark"],
                recorded=part >= first,
                slot=part if part < first else None,
            )
    in_order = sorted(found, key=order.__getitem__)
    return [dataclasses.replace(found[id], number=number) for number, id in enumerate(in_order)]


def stored_slots(storage: Storage, entry: LogEntryDocument | None, uid: str) -> int:
    """Return how many slots a checkpoint has splits of a source of, with or without any."""
    whole = _splits(storage, entry, uid)
    return 0 if whole is None else len(whole.parts) - _recorded_parts(entry, uid)


def stored_position_type(storage: Storage, entry: LogEntryDocument | None, uid: str) -> pa.DataType:
    """Return of which type a checkpoint has the positions of a source that it has splits of."""
    whole = _splits(storage, entry, uid)
    assert whole is not None
    position: pa.DataType = type_from_json(whole.value_type).field("position").type
    return position


def recorded_splits(
    storage: Storage, entry: LogEntryDocument | None, node: SourceNode, splits: Sequence[SplitState]
) -> tuple[list[SplitState], Recorded]:
    """Return the splits of a source in a checkpoint, and what of them stays recorded.

    A checkpoint of before splits were recorded, or with positions of another type, has none that do: all are state of
    the slots. So they are where an edit says of one that it is not read to its end after all.
    """
    whole, count = _splits(storage, entry, node.uid), _recorded_parts(entry, node.uid)
    goes_on = any(split.recorded and not split.finished for split in splits)
    kind = type_to_json(split_type(node.source.position_type))
    if whole is None or not count or whole.value_type != kind or goes_on:
        return [dataclasses.replace(split, recorded=False) for split in splits], Recorded()
    return list(splits), Recorded(tuple(whole.parts[-count:]), {split.id for split in splits if split.recorded})


def _splits(storage: Storage, entry: LogEntryDocument | None, uid: str) -> OperatorStateDocument | None:
    for operator in () if entry is None else entry.operators:
        for state in operator.operator_states:
            if operator.uid == uid and state.name == "splits":
                return whole_state(storage, uid, state)
    return None


def _recorded_parts(entry: LogEntryDocument | None, uid: str) -> int:
    """Return how many of the parts of a source's splits, the last ones, have recorded splits."""
    properties = {} if entry is None else entry.properties or {}
    count: int = properties.get(PROPERTY, {}).get("recorded", {}).get(uid, 0)
    return count
