"""Rows that are gone leave the files too: whatever run of a file has a row that no checkpoint shows is written again.

What an edit deletes is a bit in a deletion vector, and its bytes stay in the file until a compaction. Where they must
not, every run of such a file is written without them, in every subtask that reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from arrowstate.backend.keyed import KeyedStateBackend
from arrowstate.editing.staging import Staging
from arrowstate.html import table_html
from arrowstate.snapshot.reading import store_key, subtask_runs
from arrowstate.snapshot.subtasks import subtasks_of
from arrowstate.storage.base import Storage
from arrowstate.table.run import Run
from arrowstate_formats.documents import LogEntryDocument, RunDocument

__all__ = ["Holder", "PurgeReport", "rewrite_dead_rows"]


@dataclass(frozen=True, slots=True)
class Holder:
    """A checkpoint that still refers to files with rows that were purged."""

    checkpoint_id: int
    reasons: tuple[str, ...]
    "Why it is kept: tags, leases, savepoints."
    files: int
    "How many of the files."


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a purge did, and what is left to do; see `Edit.purge`."""

    checkpoint_id: int
    "The checkpoint without the rows."
    rewritten: int
    "How many files had rows that are gone, and were written again without them."
    deleted: int
    "How many files the collection after it deleted."
    deleted_bytes: int
    held_by: tuple[Holder, ...]
    "The checkpoints that still have such files; when none does any more, collect once more."
    savepoints: tuple[str, ...]
    "The savepoints inside the store, which are copies: each may hold the rows. Those elsewhere nobody knows."
    unreferenced: int = 0
    """How many files are left that no checkpoint refers to. An attempt that died may have written them: they wait for
    the end of a grace period, see `StateStore.collect`; or nobody knows what they are."""

    @property
    def is_done(self) -> bool:
        """Whether no file of the store can hold the rows any more."""
        return not self.held_by and not self.savepoints and not self.unreferenced

    def __str__(self) -> str:
        done = f"{self.rewritten} files written again, {self.deleted} deleted ({self.deleted_bytes} bytes)"
        lines = [f"checkpoint {self.checkpoint_id}: {done}"]
        lines += [
            f"checkpoint {item.checkpoint_id} still has {item.files} of the old files: {', '.join(item.reasons)}"
            for item in self.held_by
        ]
        lines += [f"savepoint {name} may hold them: it is a copy" for name in self.savepoints]
        if self.unreferenced:
            lines.append(f"{self.unreferenced} files that no checkpoint refers to may hold them; collect later")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows: list[Sequence[object]] = [
            (item.checkpoint_id, ", ".join(item.reasons), item.files) for item in self.held_by
        ]
        rows += [(name, "savepoint, a copy", None) for name in self.savepoints]
        rows += [(None, "no checkpoint refers to them", self.unreferenced)] if self.unreferenced else []
        title = (
            f"purged in checkpoint {self.checkpoint_id}: {self.rewritten} files written again, {self.deleted} deleted"
        )
        return table_html(title, ["still held by", "why", "files"], rows)


def rewrite_dead_rows(staging: Staging) -> set[str]:
    """Write every file with rows that are gone again without them; return the files that were."""
    found = files_with_dead_rows(staging.overlay, staging.entry)
    for operator in staging.entry.operators:
        names = [name for uid, name in found if uid == operator.uid]
        if names:
            staging.rewrite(operator.uid, lambda backend, names=names: _rewrite(staging, backend, set(names)))  # type: ignore[misc]
    return {name for _, name in found}


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
            merge = state.table.begin_merge([run])
            merge.run()
            adopted = state.table.adopt(merge)
            assert adopted, "nothing else changes the table"


def _is_stored_in(run: Run, key: str, names: Collection[str]) -> bool:
    stored = run.stored.get(key)
    return stored is not None and _name(stored[0]) in names


def _name(run: RunDocument) -> str:
    return run.path or run.id
