"""Disposing of a savepoint: its own files go, and nothing else ever does.

`arrowstate.json` goes first, so that a disposal that was interrupted leaves no store, and nothing that could be
taken for a whole savepoint. The log entry goes last: it tells what else belongs to the savepoint, so a second disposal
goes on where the first one stopped. Specification: formats/spec/savepoints.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arrowstate.clock import now_ms
from arrowstate.errors import InvalidInputError, StoreNotFoundError
from arrowstate.files.references import ReferenceReader
from arrowstate.log.boundary import Boundary, number_of
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import HINT_PATH, STORE_PATH, open_store_document, path_of
from arrowstate.log.pins import read_pins
from arrowstate.storage.base import Storage, many_deletions
from arrowstate.storage.registry import open_storage

DELTA_LOG = "_delta_log/00000000000000000000.json"
"""Beside the files of a state, where it was written as a Delta table too."""
_SHOWN = 5


def dispose_savepoint(
    place: str | Path,
    *,
    storage_options: Mapping[str, Any] | None = None,
    clock_ms: Callable[[], int] = now_ms,
) -> tuple[str, ...]:
    """Delete a savepoint, and nothing that is not part of it.

    Nobody may be reading or restoring it, or opening it for writing. If the disposal is interrupted, what is left is
    no savepoint any more, and a second call deletes the rest. The folders that are empty then are removed, too.

    Parameters
    ----------
    place
        A path or URL, as in `open_store`.
    storage_options
        As in `open_store`.
    clock_ms
        Returns milliseconds since 1970; leases that have ended by it hold nothing.

    Returns
    -------
    tuple of str
        The files that were deleted, in order, relative to the place.

    Raises
    ------
    StoreNotFoundError
        If there is no savepoint, and none whose disposal was interrupted.
    InvalidInputError
        If it is not only a savepoint: it was opened for writing, somebody holds a tag or a lease, or there are files
        that do not belong to it. The message names them, and nothing was deleted.
    CorruptDataError, FormatVersionError
        If its log entry cannot be read, or is of a newer version; nothing was deleted.
    StorageError
        If a file cannot be deleted; those before it are, and a second call goes on.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://dispose-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
    >>> with store.writer() as writer:
    ...     _ = writer.checkpoint({"people": [backend]})
    >>> place = store.savepoint("before-upgrade").storage.url
    >>> [path.split("/")[0] for path in arrowstate.dispose_savepoint(place)]
    ['arrowstate.json', 'data', '_latest', 'log']
    """
    return dispose(open_storage(place, storage_options=storage_options), now_ms=clock_ms())


def dispose(storage: Storage, *, now_ms: int) -> tuple[str, ...]:
    """Delete the savepoint that a storage holds; see `dispose_savepoint`."""
    paths = files_to_dispose(storage, now_ms=now_ms)
    # What makes it a store is gone for good before the first of the others, the entry that names them after the last.
    first = [path for path in paths if path == STORE_PATH]
    last = [path for path in paths if number_of(path) is not None]
    for group in (first, [path for path in paths if path not in (*first, *last)], last):
        with many_deletions(storage):
            for path in group:
                storage.delete(path)
    # A bucket has no folders.
    getattr(storage, "remove_empty_folders", lambda: None)()
    return paths


def files_to_dispose(storage: Storage, *, now_ms: int) -> tuple[str, ...]:
    """Return the files of a savepoint in the order in which a disposal deletes them, or refuse; see `dispose`."""
    there = storage.list("")
    log = CommitLog(storage)
    numbers = log.numbers()
    if STORE_PATH in there:
        # Also refuses what this version does not know.
        open_store_document(storage)
    elif not numbers:
        raise StoreNotFoundError(storage.url)
    if len(numbers) != 1:
        raise _refused(storage, f"its log has {len(numbers)} entries, that of a savepoint has one")
    entry = log.read(numbers[0]).document
    if entry.kind != "savepoint":
        raise _refused(storage, f"its only log entry is of kind {entry.kind}")
    held = [pin.holder for pin in read_pins(storage, strict=True) if pin.holds(now_ms)]
    if held:
        raise _refused(storage, f"{', '.join(held)} holds it; remove that first")
    # What is left of an interrupted disposal may have no manifests; then it has no data either.
    references = ReferenceReader(storage).files(entry.operators, unreadable=[])
    passing = [path for path in there if path.startswith(("leases/", "tags/")) or Boundary.of(path) is not None]
    tables = {
        f"data/{operator.uid}/{state.name}/{DELTA_LOG}" for operator in entry.operators for state in operator.states
    }
    data = [path for path in there if path in tables or (path in references and path.startswith("data/"))]
    manifests = [path for path in there if path in references and path.startswith("manifests/")]
    ends = [path for path in (HINT_PATH, path_of(entry.number)) if path in there]
    own = [*(path for path in there if path == STORE_PATH), *passing, *data, *manifests, *ends]
    foreign = sorted(set(there).difference(own))
    if foreign:
        shown = ", ".join(foreign[:_SHOWN]) + (f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else "")
        raise _refused(storage, f"it holds files that the savepoint does not refer to: {shown}; move them out first")
    return tuple(own)


def _refused(storage: Storage, reason: str) -> InvalidInputError:
    return InvalidInputError(f"{storage.url} is no savepoint that can be disposed of: {reason}; nothing was deleted")
