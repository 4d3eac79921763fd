"""The commit of an edit: its files go to the store, a fence stops who writes there, and one entry names them.

Until that entry nothing of the store has changed, and what was copied for it is named by nothing. After it, the
checkpoint before has a tag, under which a rollback finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from arrowstate.checkpoints.committing import Committer, Needs, with_given_ids
from arrowstate.checkpoints.notes import of_stopped_query
from arrowstate.editing.overlay import Overlay
from arrowstate.errors import (
    ArrowStateError,
    EditConflictError,
    FencedError,
    InvalidInputError,
)
from arrowstate.files.references import ReferenceReader
from arrowstate.files.subtasks import read_states, whole_operators
from arrowstate.log.commit import NOT_COMMITTED, Commit
from arrowstate.log.commit_log import CommitLog, refuse_loss
from arrowstate.log.entries import CommittedEntry, content_of
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import in_parallel
from arrowstate_formats.documents import LogEntryDocument

_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class EditCommit:
    """What commits edits to a store."""

    storage: Storage
    store_id: str
    clock_ms: Callable[[], int]
    new_id: Callable[[], str]
    tag: Callable[[str, int], None]
    "Keeps a checkpoint under a name."
    untag: Callable[[str], None]
    tags: Callable[[], Mapping[str, int]]

    def __call__(
        self,
        overlay: Overlay,
        base: LogEntryDocument,
        content: int,
        entry: LogEntryDocument,
        *,
        tag: str | None,
        audit: dict[str, Any],
        started_at_ms: int,
    ) -> LogEntryDocument:
        """Commit a checkpoint that was made of `base`."""
        log = CommitLog(self.storage, on_loss=refuse_loss)

        def check(newest: CommittedEntry | None) -> None:
            held = content_of(newest)
            if held is None or held.number != content:
                raise self._conflict(log, base, content)

        check(log.latest())
        operators = whole_operators(overlay, entry.operators)
        files = set(ReferenceReader(overlay).files(operators))
        written = sorted(path for path in files if overlay.own.exists(path))
        tagged = False
        commit = Commit(self.storage, written)
        try:
            with commit:
                in_parallel(
                    self.storage, lambda path: self._copy(overlay.own, path), written, name="uploads", writes=True
                )
                committer = Committer(
                    self.storage,
                    clock_ms=self.clock_ms,
                    new_id=self.new_id,
                    properties=audit,
                    once=True,
                    check=check,
                )
                tagged = tag is not None and self._keep(tag, _id_of(base))
                return committer.commit(
                    operators if content == base.number else with_given_ids(self.storage, operators, base.number),
                    properties=of_stopped_query(entry.properties, self.new_id),
                    watermark=entry.watermark,
                    started_at_ms=started_at_ms,
                    needs=Needs(written, content, files),
                    files=commit,
                )
        except Exception as error:
            if commit.entry is not None and not isinstance(error, NOT_COMMITTED):
                # The entry may be there, and the checkpoint before it is found under the tag.
                raise
            # Whoever fenced this edit may be another one of the same checkpoint, which found the tag there.
            if tag is not None and tagged and not isinstance(error, FencedError):
                self._untag_quietly(tag)
            if isinstance(error, FencedError):
                raise self._conflict(log, base, content) from error
            raise

    def _keep(self, tag: str, checkpoint_id: int) -> bool:
        """Keep a checkpoint under a name; False where it is kept under that already."""
        if tag in self.tags():
            return False
        try:
            self.tag(tag, checkpoint_id)
        except InvalidInputError:
            # Another edit of the checkpoint may have put it there meanwhile; one of the two is fenced then.
            if self.tags().get(tag) != checkpoint_id:
                raise
            return False
        return True

    def _copy(self, own: Storage, path: str) -> None:
        with self.storage.write_file(path) as file:
            data = own.open_buffer(path)
            for start in range(0, data.size, _PIECE):
                file.write(data[start : start + _PIECE])

    def _conflict(self, log: CommitLog, base: LogEntryDocument, content: int) -> EditConflictError:
        newest, held = log.latest_checkpoint(), content_of(log.latest())
        is_fenced = held is not None and held.number == content
        return EditConflictError(_id_of(base), 0 if newest is None else _id_of(newest), is_fenced)

    def _untag_quietly(self, tag: str) -> None:
        # One that stays behind keeps a checkpoint, and nothing is lost.
        with suppress(ArrowStateError, OSError):
            self.untag(tag)


def new_files(overlay: Overlay, entry: LogEntryDocument) -> dict[str, int]:
    """Return the files of a checkpoint that the store does not have, with their sizes in bytes."""
    files = ReferenceReader(overlay).files(whole_operators(overlay, entry.operators))
    return {path: size for path, size in files.items() if overlay.own.exists(path)}


def new_inline_bytes(overlay: Overlay, before: LogEntryDocument, entry: LogEntryDocument) -> int:
    """Return the bytes of what an entry holds itself, of runs and operator state, and the one before it does not."""
    return sum((_inline(overlay, entry) - _inline(overlay, before)).values())


def _inline(overlay: Overlay, entry: LogEntryDocument) -> Counter[str]:
    """Return what an entry holds itself, by its checksum: the bytes of each."""
    found: Counter[str] = Counter()
    for operator in whole_operators(overlay, entry.operators):
        for part in (part for state in operator.operator_states for part in state.parts):
            if part.inline is not None:
                found[part.xxh3_128] = part.bytes
        for subtask in operator.subtasks:
            for state in read_states(overlay, subtask.manifest, operator.uid):
                for item in (item for run in state.runs for item in (run, run.deletion_vector) if item is not None):
                    if item.inline is not None:
                        found[item.xxh3_128] = item.bytes
    return found


def _id_of(entry: LogEntryDocument) -> int:
    assert entry.checkpoint_id is not None, "a fence is no checkpoint"
    return entry.checkpoint_id
