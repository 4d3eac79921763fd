"""Which checkpoints of a store are whole, and what can be done about those that are not.

Nothing here changes a store: what is damaged may still be needed, and only whoever owns it can tell. What would work
is proposed, as calls and commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from arrowstate.errors import ArrowStateError
from arrowstate.files.verification import LogCheck, Verification, verify_checkpoint, verify_log
from arrowstate.html import table_html
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry, path_of
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument


class CheckedCheckpoint(Struct, frozen=True):
    """A checkpoint and what a look at it found."""

    entry: CommittedEntry
    verification: Verification

    @property
    def checkpoint_id(self) -> int:
        """The id to ask the store for it."""
        assert self.entry.document.checkpoint_id is not None, "a fence is no checkpoint"
        return self.entry.document.checkpoint_id


class NewestWhole(Struct, frozen=True):
    """The newest checkpoint without a problem, and what was found on the way to it."""

    entry: LogEntryDocument | None
    "None if there is none."
    problems: list[str]
    "Of the log, and of newer checkpoints."


class StoreVerification(Struct, frozen=True):
    """What a look at a whole store found."""

    log: LogCheck
    checkpoints: tuple[CheckedCheckpoint, ...]
    "Newest first."

    def _repr_html_(self) -> str:
        rows = [
            (item.checkpoint_id, item.verification.files, item.verification.bytes, len(item.verification.problems))
            for item in self.checkpoints
        ]
        title = f"{self.log.entries} log entries: {len(self.problems)} problems"
        checkpoints = table_html(title, ["checkpoint", "files", "bytes", "problems"], rows)
        return checkpoints + table_html("what is wrong", ["problem"], [(problem,) for problem in self.problems])

    @property
    def problems(self) -> list[str]:
        """All problems; those of a checkpoint say which."""
        return [*self.log.problems, *self.log.beside] + [
            f"checkpoint {item.checkpoint_id}: {problem}"
            for item in self.checkpoints
            for problem in item.verification.problems
        ]

    @property
    def failures(self) -> list[ArrowStateError]:
        """Why some of the problems may be none of the store, see `Verification`."""
        return self.log.failures + [failure for item in self.checkpoints for failure in item.verification.failures]

    @property
    def newest_whole(self) -> CheckedCheckpoint | None:
        """The newest checkpoint without a problem."""
        return next((item for item in self.checkpoints if item.verification.ok), None)


def verify_store(
    storage: Storage, store_id: str, *, deep: bool, advance: Callable[[], None] = lambda: None
) -> StoreVerification:
    """Look at the log and at every checkpoint; `advance` is called after each run."""
    log = verify_log(storage)
    return StoreVerification(
        log, tuple(checked_checkpoints(storage, store_id, log.checkpoints, deep=deep, advance=advance))
    )


def checked_checkpoints(
    storage: Storage,
    store_id: str,
    entries: list[CommittedEntry],
    *,
    deep: bool,
    advance: Callable[[], None] = lambda: None,
) -> Iterator[CheckedCheckpoint]:
    """Look at checkpoints one after another, each when it is asked for; those collected meanwhile are left out."""
    log = CommitLog(storage)
    for entry in entries:
        found = verify_checkpoint(storage, store_id, entry.document, deep=deep, advance=advance)
        if found.ok or log.holds(entry.document):
            yield CheckedCheckpoint(entry, found)


def proposals(found: StoreVerification, url: str) -> list[str]:
    """Return what would work, most important first; empty if nothing is damaged."""
    if not found.problems:
        return []
    if found.failures:
        return [f"not everything could be looked at ({found.failures[0]}); mend that first, then look again"]
    whole = found.newest_whole
    if whole is None:
        return [
            "no checkpoint is whole; put missing files back from a copy of the store, then look again",
            f"do not write to {url}, and collect nothing in it, before that",
        ]
    said = []
    number = whole.checkpoint_id
    if found.log.problems:
        said.append(
            f"the log is damaged: continue in a new store, made by "
            f"`arrowstate savepoint {url} NEW_FOLDER --checkpoint {number}`"
        )
    if found.log.lost is not None:
        said.append(
            f"the newest log entries are lost, up to {path_of(found.log.lost)}: nobody writes to {url} unless it is "
            "opened with writer(accept_loss=True), which gives their names again; what they held is lost for good then"
        )
    if found.log.beside:
        said.append(
            "tags, leases or statements of collections are damaged: while no collection runs, move the files that the "
            "problems name out of the store; what only they kept can be collected then"
        )
    damaged = [item.checkpoint_id for item in found.checkpoints if not item.verification.ok]
    newer = [checkpoint_id for checkpoint_id in damaged if checkpoint_id > number]
    if newer:
        said.append(
            f"checkpoint {number} is the newest that is whole: restore with store.snapshot({number}).restore(...) or "
            "store.latest_whole(), replay the sources from its offsets, and take a new checkpoint"
        )
    if damaged:
        said.append(
            f"checkpoint {', '.join(map(str, damaged))} cannot be restored as a whole; the problems name the files to "
            "put back from a copy of the store"
        )
    return said


def find_newest_whole(storage: Storage, store_id: str, *, deep: bool) -> NewestWhole:
    """Return the newest checkpoint that is whole, beside writers and collections."""
    log = CommitLog(storage)
    while True:
        boundary = log.boundary()
        check = verify_log(storage)
        for failure in check.failures:
            raise failure
        problems = [*check.problems, *check.beside]
        looked_at = enumerate(checked_checkpoints(storage, store_id, check.checkpoints, deep=deep))
        for position, item in looked_at:
            if item.verification.ok and item.entry is check.checkpoints[position]:
                return NewestWhole(item.entry.document, problems)
            if item.verification.ok:
                # A newer one was left out.
                break
            for failure in item.verification.failures:
                raise failure
            problems += [f"checkpoint {item.checkpoint_id}: {problem}" for problem in item.verification.problems]
        else:
            if log.boundary() == boundary:
                return NewestWhole(None, problems)
        # What was looked at has been collected meanwhile, because there are newer ones.
