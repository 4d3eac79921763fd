"""Rows that are gone leave the files too: whatever run of a file has a row that no checkpoint shows is written again.

What an edit deletes is a bit in a deletion vector, and its bytes stay in the file until a compaction. Where they must
not, every run of such a file is written without them, in every subtask that reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow.compute as pc
from msgspec import Struct

from arrowstate.checkpoints.importing import IMPORTED_FROM
from arrowstate.editing.staging import Staging
from arrowstate.errors import InvalidInputError
from arrowstate.files.output_tables import STATE
from arrowstate.files.reading import store_key, subtask_runs
from arrowstate.files.savepoint_rows import cutoff_of
from arrowstate.files.subtasks import restored_watermark, subtasks_of, whole_operators
from arrowstate.html import table_html
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import STORE_PATH
from arrowstate.log.jobs import drop_reports
from arrowstate.query.expiry import UPDATED_COLUMN
from arrowstate.query.state import StateReader
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.storage.base import Storage, listed_pages
from arrowstate.table.run import Run
from arrowstate.upkeep.collection import recorded_collection
from arrowstate.upkeep.collection_plan import plan_collection
from arrowstate.upkeep.planned import DEFAULT_GRACE_MS
from arrowstate.upkeep.retention import RetentionPolicy
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument, OperatorStateDocument, RunDocument

_DEAD_LETTERS = "_dead_letters"
_EMITTED = (STATE, "pending")
"""The operator states with rows that were emitted: output tables and dead letters, and what sinks have not had yet."""
_OF_AN_EDIT = {"edited_from", "further_statements", "purged", "rolled_back_to", "imported_from"}
"""What a fence says that names nobody."""
_ELSEWHERE = (
    "savepoints and copies outside the store",
    "what sinks wrote, and what was exported, or published to places that no tag of the store names",
    "the input of the job, and Spark's own checkpoint folder",
    "caches of other machines, and other cache folders of this one",
    "older versions of objects that a bucket keeps, snapshots and backups of a disk",
    "temporary folders of other processes, and of those that were killed",
)
_MISSING = object()


class Collected(Struct, frozen=True):
    """What is left of a store after the collection of a purge."""

    deleted: int
    deleted_bytes: int
    kept: Sequence[tuple[LogEntryDocument, tuple[str, ...]]]
    "The checkpoints beside the newest, and why they are kept."
    fences: Sequence[LogEntryDocument]
    unreferenced: int
    "How many files are left that no checkpoint refers to."
    imported_from: tuple[str, ...]
    "Where checkpoints were imported from, as far as the log said so before."


class Holder(Struct, frozen=True):
    """A checkpoint that still has something that the purged one has not."""

    checkpoint_id: int
    reasons: tuple[str, ...]
    "Why it is kept: tags, leases, savepoints."
    files: int
    "How many files of rows it has that the purged checkpoint has not."
    other: tuple[str, ...] = ()
    "What else: `operator state sources.seen`, `property 'vip'`."


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a purge did, and what is left to do; see `Edit.purge`."""

    checkpoint_id: int
    "The checkpoint without the rows."
    rewritten: int
    "How many files had rows that are gone or have expired, and were written again without them."
    deleted: int
    "How many files the collection after it deleted."
    deleted_bytes: int
    held_by: tuple[Holder, ...]
    "The checkpoints that still hold what is gone; when none does any more, purge once more."
    savepoints: tuple[str, ...]
    """The savepoints inside the store, which are copies: each may hold the rows. Those in `savepoints/` are told by
    their names, those in other folders by their places. Savepoints elsewhere nobody knows."""
    unreferenced: int = 0
    """How many files are left that no checkpoint refers to. An attempt that died may have written them: they wait for
    the end of a grace period, see `StateStore.collect`; or nobody knows what they are."""
    tables: tuple[str, ...] = ()
    """Output tables, dead letters and rows that a sink has not had yet, in which the purged checkpoint has rows: copies
    of what went through a job. Look through them, and name those in `checked=` that hold nothing of what is to go."""
    notes: tuple[str, ...] = ()
    "What is left in the log of comments, of statements of earlier edits, and of properties of writers."
    published: tuple[str, ...] = ()
    """The places with published tables that could not be brought to the purged checkpoint, each with the reason. In all
    others that tags of the store name, tables show this checkpoint alone."""
    imported_from: tuple[str, ...] = ()
    "The stores and savepoints that checkpoints were imported from, as far as the log said so. None is looked at."

    @property
    def is_done(self) -> bool:
        """Whether nothing in the store can hold any more what statements deleted, in this edit or before.

        What a purge cannot reach, `not_reached`, is left out of it.
        """
        left = self.held_by or self.savepoints or self.unreferenced or self.tables or self.notes or self.published
        return not left

    @property
    def not_reached(self) -> tuple[str, ...]:
        """What may hold the rows and is not in the store: nobody has looked at it."""
        return (*(f"{url}, which was imported" for url in self.imported_from), *_ELSEWHERE)

    def __str__(self) -> str:
        done = f"{self.rewritten} files written again, {self.deleted} deleted ({self.deleted_bytes} bytes)"
        lines = [f"checkpoint {self.checkpoint_id}: {done}"]
        lines += [
            f"checkpoint {item.checkpoint_id} still has {_and(_content(item))}: {', '.join(item.reasons)}"
            for item in self.held_by
        ]
        lines += [f"savepoint {name} may hold them: it is a copy" for name in self.savepoints]
        lines += [f"{table} may hold them: look through it" for table in self.tables]
        lines += [f"{note} may name them" for note in self.notes]
        lines += [f"published tables may show them: {place}" for place in self.published]
        if self.unreferenced:
            lines.append(f"{self.unreferenced} files that no checkpoint refers to may hold them; collect later")
        lines.append(f"not looked at: {'; '.join(self.not_reached)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows: list[Sequence[object]] = [
            (item.checkpoint_id, ", ".join((*item.reasons, *item.other)), item.files) for item in self.held_by
        ]
        rows += [(name, "savepoint, a copy", None) for name in self.savepoints]
        rows += [(name, "rows that were emitted", None) for name in self.tables]
        rows += [(name, "in the log", None) for name in self.notes]
        rows += [(place, "published tables", None) for place in self.published]
        rows += [(None, "no checkpoint refers to them", self.unreferenced)] if self.unreferenced else []
        rows += [(name, "not looked at", None) for name in self.not_reached]
        title = (
            f"purged in checkpoint {self.checkpoint_id}: {self.rewritten} files written again, {self.deleted} deleted"
        )
        return table_html(title, ["still held by", "why", "files"], rows)


def _content(holder: Holder) -> list[str]:
    return [*([f"{holder.files} of the old files"] if holder.files else []), *holder.other]


def _and(texts: Sequence[str]) -> str:
    return " and ".join([*([", ".join(texts[:-1])] if texts[1:] else []), texts[-1]])


def collect_all(storage: Storage, *, clock_ms: Callable[[], int], new_id: Callable[[], str]) -> Collected:
    """Collect all checkpoints but the newest; return what was deleted, and what is left."""
    log = CommitLog(storage)
    # The job is fenced by now; its report may have the row by which it failed.
    drop_reports(storage)
    imported = (fence.properties.get(IMPORTED_FROM) for fence in _fences(log))
    imported_from = tuple(dict.fromkeys(str(said["url"]) for said in imported if isinstance(said, dict)))
    plan = plan_collection(
        storage, RetentionPolicy(count=1), now_ms=clock_ms(), grace_ms=DEFAULT_GRACE_MS, clock_ms=clock_ms
    )
    report = recorded_collection(storage, plan, clock_ms=clock_ms, new_id=new_id)
    newest = log.latest_checkpoint()
    kept = []
    for item in plan.kept:
        if newest is not None and item.entry_number == newest.number:
            continue
        found = log.get(item.entry_number)
        if found is not None:
            kept.append((found.document, item.reasons or ("others before and after it are kept",)))
    return Collected(
        deleted=report.deleted_count,
        deleted_bytes=report.deleted_bytes,
        kept=kept,
        fences=_fences(log),
        # What was spared somebody has begun to hold meanwhile.
        unreferenced=len(plan.waiting) + len(plan.foreign) + len(report.spared),
        imported_from=imported_from,
    )


def _fences(log: CommitLog) -> list[LogEntryDocument]:
    """Return the entries of the log that say who opened the store, and what was edited."""
    entries = log.many(chain.from_iterable(log.ranges()))
    return [entry.document for _, entry in entries if entry is not None and entry.document.kind == "fence"]


def savepoints_in(storage: Storage) -> tuple[str, ...]:
    """Return the savepoints inside a store: the names of those in `savepoints/`, the places of others."""
    named: set[str] = set()
    stores: set[str] = set()
    for path in chain.from_iterable(listed_pages(storage, "")):
        folder, _, rest = path.partition("/")
        if folder == "savepoints" and "/" in rest:
            named.add(rest.partition("/")[0])
        elif path.endswith(f"/{STORE_PATH}"):
            stores.add(f"{storage.url.rstrip('/')}/{path.removesuffix(f'/{STORE_PATH}')}")
    return (*sorted(named), *sorted(stores))


def holders(
    storage: Storage, purged: LogEntryDocument, kept: Iterable[tuple[LogEntryDocument, tuple[str, ...]]]
) -> Iterator[Holder]:
    """Yield the checkpoints that have rows, operator state or properties that the purged one has not."""
    files, parts = _files_of(storage, purged), set(_parts_of(storage, purged))
    for document, reasons in kept:
        others = _files_of(storage, document) - files
        states = [state for part, state in _parts_of(storage, document).items() if part not in parts]
        properties = [
            name for name, value in document.properties.items() if purged.properties.get(name, _MISSING) != value
        ]
        found = [f"operator state {name}" for name in dict.fromkeys(states)]
        found += [f"property {name!r}" for name in properties]
        if others or found:
            yield Holder(document.checkpoint_id or 0, reasons, len(others), tuple(found))


def _files_of(storage: Storage, entry: LogEntryDocument) -> set[str]:
    """Return the names of the runs that a checkpoint refers to: files, and ids of those that are inline."""
    return {
        _name(run)
        for operator in entry.operators
        for subtask in subtasks_of(storage, operator)
        for runs in subtask_runs(storage, operator, subtask).values()
        for run in runs
    }


def _parts_of(storage: Storage, entry: LogEntryDocument) -> dict[str, str]:
    """Return the parts of operator state of a checkpoint, files and checksums of those inline, and of what they are."""
    return {
        part.path or part.xxh3_128: f"{operator.uid}.{state.name}"
        for operator in whole_operators(storage, entry.operators)
        for state in operator.operator_states
        for part in state.parts
        if part.rows
    }


def notes(fences: Iterable[LogEntryDocument]) -> Iterator[str]:
    """Yield what fences have that people wrote: comments, statements, properties of writers."""
    for fence in fences:
        found = [_noted(name, value) for name, value in fence.properties.items() if _is_said(name, value)]
        if found:
            yield f"{_and(found)} of entry {fence.number} of the log"


def _is_said(name: str, value: Any) -> bool:
    if name == "statements" and isinstance(value, list):
        return any(isinstance(item, Mapping) and "text" in item for item in value)
    return name not in _OF_AN_EDIT


def _noted(name: str, value: Any) -> str:
    if name == "statements" and isinstance(value, list):
        return "the text of statements"
    return "the comment" if name == "comment" else f"the property {name!r}"


def tables_left(storage: Storage, entry: LogEntryDocument, checked: Collection[str]) -> Iterator[str]:
    """Yield the output tables, dead letters and rows kept for sinks that have rows, but for those that were checked."""
    for operator, state in _emitted(storage, entry):
        name, rows = f"{operator.uid}.{state.name}", sum(part.rows for part in state.parts)
        if rows and name not in checked and operator.uid not in checked:
            kind = "dead letters" if operator.uid.endswith(_DEAD_LETTERS) else "output table"
            yield f"{'rows for a sink' if state.name != STATE else kind} {name} ({rows} rows)"


def check_tables(storage: Storage, entry: LogEntryDocument, checked: Collection[str]) -> None:
    """Refuse names of tables that are not there."""
    there = {operator.uid: f"{operator.uid}.{state.name}" for operator, state in _emitted(storage, entry)}
    if isinstance(checked, str):
        raise InvalidInputError(f"checked must be a list of names of tables, got the text {checked!r}")
    for name in checked:
        if name not in there and name not in there.values():
            names = ", ".join(there.values()) or "none"
            raise InvalidInputError(f"checked names {name!r}; output tables, dead letters and rows for sinks: {names}")


def _emitted(storage: Storage, entry: LogEntryDocument) -> Iterator[tuple[OperatorDocument, OperatorStateDocument]]:
    for operator in whole_operators(storage, entry.operators):
        for state in operator.operator_states if not operator.key else ():
            if state.name in _EMITTED:
                yield operator, state


def rewrite_dead_rows(staging: Staging) -> set[str]:
    """Write every file with rows that are gone or have expired again without them; return the files that were."""
    found = files_with_dead_rows(staging.overlay, staging.entry)
    found |= set(_files_with_expired_rows(staging.overlay, staging.entry, staging.clock_ms()))
    for operator in staging.entry.operators:
        names = [name for uid, name in found if uid == operator.uid]
        if names:
            staging.rewrite(operator.uid, lambda backend, names=names: _rewrite(staging, backend, set(names)))  # type: ignore[misc]
    return {name for _, name in found}


def _files_with_expired_rows(storage: Storage, entry: LogEntryDocument, now_ms: int) -> Iterator[tuple[str, str]]:
    """Yield (uid, name) of every file with a live row that has expired; times of update are read where needed."""
    for operator in entry.operators:
        for state in operator.states:
            if state.time_to_live is None:
                continue
            watermark = restored_watermark(entry, subtasks_of(storage, operator))
            cutoff = cutoff_of(state.time_to_live, now_ms, watermark)
            reader = StateReader(storage, entry, operator.uid, state.name)
            if cutoff is None:
                continue
            for run in reader.runs:
                if run.times_of_update[1] > cutoff:
                    continue
                batches = reader.batches(run.parts(), [UPDATED_COLUMN])
                if any(pc.min(batch.column(0)).as_py() <= cutoff for batch in batches):
                    yield operator.uid, _name(run.document)


def files_with_dead_rows(storage: Storage, entry: LogEntryDocument) -> set[tuple[str, str]]:
    """Return (uid, name) of every file of runs with a row that is live in no subtask; of one inline the run's id."""
    live: Counter[tuple[str, str]] = Counter()
    rows: dict[tuple[str, str], int] = {}
    for operator in entry.operators:
        for subtask in subtasks_of(storage, operator):
            for runs in subtask_runs(storage, operator, subtask).values():
                for run in runs:
                    name = (operator.uid, _name(run))
                    live[name] += run.live_rows
                    rows[name] = run.rows
    return {name for name, count in rows.items() if live[name] < count}


def _rewrite(staging: Staging, backend: KeyedStateBackend, names: Collection[str]) -> None:
    key = store_key(staging.overlay, staging.store_id)
    for state in backend.states.values():
        picked = [run for run in state.table.runs if _is_stored_in(run, key, names)]
        for run in picked:
            if not run.live_rows:
                continue
            # What has expired by now is left out.
            merge = state.begin_merge([run])
            merge.run()
            adopted = state.table.adopt(merge)
            assert adopted, "nothing else changes the table"


def _is_stored_in(run: Run, key: str, names: Collection[str]) -> bool:
    stored = run.stored.get(key)
    return stored is not None and _name(stored[0]) in names


def _name(run: RunDocument) -> str:
    return run.path or run.id
