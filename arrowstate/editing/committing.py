"""The commit of an edit: its files go to the store, a fence stops who writes there, and one entry names them.

Until that entry nothing of the store has changed, and what was copied for it is named by nothing. After it, the
checkpoint before has a tag, under which a rollback finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import chain, count
from typing import Any

from arrowstate.checkpoints.committing import Committer, Needs, with_given_ids
from arrowstate.editing.overlay import Overlay
from arrowstate.errors import (
    ArrowStateError,
    CheckpointNotFoundError,
    EditConflictError,
    FencedError,
    InvalidInputError,
)
from arrowstate.files.notes import of_stopped_query
from arrowstate.files.references import ReferenceReader
from arrowstate.files.subtasks import read_states, whole_operators
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.commit import NOT_COMMITTED, Commit
from arrowstate.log.commit_log import CommitLog, refuse_loss
from arrowstate.log.entries import CommittedEntry, content_of
from arrowstate.log.pins import delete_tag, put_tag, read_tag
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import in_parallel
from arrowstate_formats.documents import LogEntryDocument, ParentDocument

_PIECE = 1 << 20


def commit_edit(
    storage: Storage,
    overlay: Overlay,
    base: CommittedEntry,
    found: CommittedEntry,
    entry: LogEntryDocument,
    *,
    store_id: str,
    keeps_base: bool,
    properties: Mapping[str, Any],
    started_at_ms: int,
    clock_ms: Callable[[], int],
    new_id: Callable[[], str],
) -> LogEntryDocument:
    """Commit a checkpoint that was made of `base`, while `found` was the newest entry.

    With `keeps_base` the checkpoint that was edited gets a tag; `properties` are those of the fence.
    """
    log = CommitLog(storage, on_loss=refuse_loss, known=found, store_id=store_id)
    content = content_of(found)
    assert content is not None, "there is a checkpoint to edit"

    def check(newest: CommittedEntry | None) -> None:
        if content_of(newest) != content:
            raise _conflict(log, base, content)

    operators = whole_operators(overlay, entry.operators)
    files = set(ReferenceReader(overlay).files(operators))
    written = sorted(files & overlay.written)
    tag = None
    commit = Commit(storage, written)
    try:
        with commit:
            in_parallel(storage, lambda path: _copy(overlay.own, storage, path), written, name="uploads", writes=True)
            committer = Committer(
                storage,
                clock_ms=clock_ms,
                new_id=new_id,
                properties=properties,
                known=found,
                once=True,
                check=check,
                store_id=store_id,
            )
            if keeps_base:
                # Those that the new checkpoint has too are looked for when it is committed.
                gone = set(ReferenceReader(storage).files(base.document.operators)) - files
                tag = _tagged(storage, log, base, _id_of(entry), files=gone, tag_id=new_id(), now_ms=clock_ms())
            return committer.commit(
                operators if content == base.as_parent else with_given_ids(storage, operators, base.document.number),
                properties=of_stopped_query(entry.properties, new_id),
                watermark=entry.watermark,
                started_at_ms=started_at_ms,
                needs=Needs(written, content.number, files),
                files=commit,
            )
    except Exception as error:
        if commit.entry is not None and not isinstance(error, NOT_COMMITTED):
            # The entry may be there, and the checkpoint before it is found under the tag.
            raise
        # Whoever fenced this edit may be another one of the same checkpoint, which found the tag there.
        if tag is not None and not isinstance(error, FencedError):
            # One that stays behind keeps a checkpoint, and nothing is lost.
            with suppress(ArrowStateError, OSError):
                delete_tag(storage, tag)
        if isinstance(error, FencedError):
            raise _conflict(log, base, content) from error
        raise


def _tagged(
    storage: Storage,
    log: CommitLog,
    base: CommittedEntry,
    made: int,
    *,
    files: Collection[str],
    tag_id: str,
    now_ms: int,
) -> str | None:
    """Tag a checkpoint `before-edit-<id>`; return the name, None if an attempt that died did so already."""
    checkpoint_id = _id_of(base.document)
    for name in chain([f"before-edit-{made}"], (f"before-edit-{made}-{number}" for number in count(2))):
        try:
            with reading_checkpoint(storage, base.document):
                is_tagged = put_tag(
                    storage, name, checkpoint_id, base.as_parent, files=files, tag_id=tag_id, now_ms=now_ms
                )
        except InvalidInputError:
            known = read_tag(storage, name)
            if known is not None and known.entry == base.as_parent:
                return None
            continue
        if not is_tagged:
            ids = (other.checkpoint_id for other in log.backwards())
            raise CheckpointNotFoundError(checkpoint_id, sorted(number for number in ids if number is not None))
        return name
    raise AssertionError("there are more names than tags")


def _copy(own: Storage, to: Storage, path: str) -> None:
    with to.write_file(path) as file:
        data = own.open_buffer(path)
        for start in range(0, data.size, _PIECE):
            file.write(data[start : start + _PIECE])


def _conflict(log: CommitLog, base: CommittedEntry, content: ParentDocument) -> EditConflictError:
    newest, held = log.latest_checkpoint(), content_of(log.latest())
    is_fenced = held is not None and held == content
    return EditConflictError(_id_of(base.document), 0 if newest is None else _id_of(newest), is_fenced)


def new_files(overlay: Overlay, entry: LogEntryDocument) -> dict[str, int]:
    """Return the files of a checkpoint that the store does not have, with their sizes in bytes."""
    files = ReferenceReader(overlay).files(whole_operators(overlay, entry.operators))
    return {path: size for path, size in files.items() if path in overlay.written}


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
