"""Checkpoints of backends in several processes: each writes its subtask, and one commits what names all of them.

What a process hands on is small and is pickled: the files are in the store already. They take effect with the commit;
those of a handle that is never committed are taken by a collection, or discarded.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from arrowstate.checkpoints.committing import Committer, Needs
from arrowstate.errors import CorruptDataError, InvalidInputError
from arrowstate.files.subtasks import lowest_watermark, operator_of
from arrowstate.files.writing import FrozenSubtask, WrittenSubtask, write_subtask
from arrowstate.log.commit import delete_quietly
from arrowstate.log.commit_log import CommitLog
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import (
    LogEntryDocument,
    OperatorDocument,
    SubtaskDocument,
    SubtaskStatisticsDocument,
)
from arrowstate_formats.integers import check_integer
from arrowstate_formats.key_groups import KeyGroupRange
from arrowstate_formats.names import check_operator_uid
from arrowstate_formats.run_files import RunFormat, check_format
from arrowstate_formats.schema_documents import FieldDocument, StateDocument


@dataclass(frozen=True, slots=True)
class SubtaskHandle:
    """A subtask whose state is written to a store and waits for the commit that names it. It is pickled."""

    store_id: str
    """The identity of the store."""
    operator: str
    """The operator uid."""
    subtask: int
    key: tuple[FieldDocument, ...]
    max_parallelism: int
    states: tuple[StateDocument, ...]
    document: SubtaskDocument
    """What the log entry will say of it."""
    paths: tuple[str, ...]
    """The files written for it."""
    references: frozenset[str]
    """All files that it refers to."""
    based_on: int
    """The number of the newest log entry before the first of them was written."""
    statistics: SubtaskStatisticsDocument

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups whose state it has."""
        return KeyGroupRange(*self.document.key_groups)

    def intersection(self, key_groups: KeyGroupRange) -> KeyGroupRange | None:
        """Return which of some key groups it has, or None if it has none of them; no file is read.

        Examples
        --------
        >>> import arrowstate, pyarrow as pa
        >>> store = arrowstate.open_store("memory://handle-example", create=True)
        >>> groups = arrowstate.key_group_range(128, parallelism=2, subtask=1)
        >>> key = pa.schema([("user", pa.string())])
        >>> backend = arrowstate.KeyedStateBackend(key=key, max_parallelism=128, key_groups=groups)
        >>> handle = store.subtask_writer("counter", 1).write(backend)
        >>> handle.intersection(arrowstate.KeyGroupRange(100, 127))
        KeyGroupRange(start=100, end=127)
        >>> handle.intersection(arrowstate.KeyGroupRange(0, 63)) is None
        True
        """
        return self.key_groups.intersection(key_groups)

    def __repr__(self) -> str:
        rows = sum(self.document.live_rows.values())
        return f"<SubtaskHandle of {self.operator}: subtask {self.subtask}, {rows} rows>"


def write_handle(
    storage: Storage,
    store_id: str,
    uid: str,
    subtask: int,
    freeze: Callable[[], FrozenSubtask],
    *,
    format: RunFormat,
    new_id: Callable[[], str],
    based_on: int,
    previous: SubtaskDocument | None = None,
) -> tuple[SubtaskHandle, WrittenSubtask]:
    """Freeze a subtask and write what the store lacks of it, and measure both; return its handle."""
    began = time.perf_counter_ns()
    frozen = freeze()
    sync_us = (time.perf_counter_ns() - began) // 1000
    began = time.perf_counter_ns()
    written = write_subtask(storage, store_id, uid, subtask, frozen, format=format, new_id=new_id, previous=previous)
    async_us = (time.perf_counter_ns() - began) // 1000
    handle = SubtaskHandle(
        store_id,
        uid,
        subtask,
        written.key,
        written.max_parallelism,
        written.states,
        written.document,
        written.paths,
        written.references,
        based_on,
        written.statistics(uid, sync_us=sync_us, async_us=async_us),
    )
    return handle, written


class SubtaskWriter:
    """Writes the state of one subtask of an operator, in the process that has it. Made by `StateStore.subtask_writer`.

    It belongs to the thread that writes to the backend.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://subtask-writer-example", create=True)
    >>> schema = pa.schema([("user", pa.string())])
    >>> handles = []
    >>> for subtask, users in enumerate([["ann", "cat"], ["bob"]]):  # each in a process of its own
    ...     groups = arrowstate.key_group_range(128, parallelism=2, subtask=subtask)
    ...     backend = arrowstate.KeyedStateBackend(key=schema, max_parallelism=128, key_groups=groups)
    ...     clicks = backend.state(arrowstate.ReducingStateDescriptor("clicks", pa.int64(), reduce="sum"))
    ...     own = [user for user in users if arrowstate.key_groups(pa.array([user]), 128)[0].as_py() in groups]
    ...     clicks.add_batch(own, [1] * len(own))
    ...     handles.append(store.subtask_writer("counter", subtask).write(backend))
    >>> snapshot = store.writer().commit(handles, properties={"offset": 3})
    >>> snapshot.checkpoint_id, snapshot.properties
    (1, {'offset': 3})
    """

    def __init__(
        self, storage: Storage, store_id: str, uid: str, subtask: int, *, format: RunFormat, new_id: Callable[[], str]
    ) -> None:
        check_operator_uid(uid)
        self._storage = storage
        self._store_id = store_id
        self._uid = uid
        self._subtask = check_integer("subtask", subtask, 0)
        self._format = check_format(format)
        self._new_id = new_id
        self._written: dict[tuple[str, ...], WrittenSubtask] = {}
        self._previous: SubtaskDocument | None = None

    def __repr__(self) -> str:
        return f"<SubtaskWriter of {self._uid}: subtask {self._subtask}>"

    def write(self, backend: KeyedStateBackend) -> SubtaskHandle:
        """Write the runs of the backend that the store does not have yet.

        Returns
        -------
        SubtaskHandle
            For `StoreWriter.commit`, in whatever process.

        Raises
        ------
        StorageFullError, StorageError
            If a file cannot be written; what was written is deleted.
        """
        newest = CommitLog(self._storage).latest()
        handle, written = write_handle(
            self._storage,
            self._store_id,
            self._uid,
            self._subtask,
            backend.freeze,
            format=self._format,
            new_id=self._new_id,
            based_on=0 if newest is None else newest.document.number,
            previous=self._previous,
        )
        self._written[handle.paths] = written
        return handle

    def committed(self, handle: SubtaskHandle) -> None:
        """Take note that a handle of this writer was committed, so that its runs are not written again."""
        written = self._written.pop(handle.paths, None)
        if written is not None:
            written.committed(self._storage, self._store_id)
            self._previous = handle.document
        self._written.clear()

    def discard(self, handle: SubtaskHandle) -> None:
        """Delete the files of a handle that was not committed and will not be."""
        if self._written.pop(handle.paths, None) is not None:
            delete_quietly(self._storage, handle.paths)


def commit_handles(
    committer: Committer,
    store_id: str,
    handles: Iterable[SubtaskHandle],
    *,
    properties: Mapping[str, Any] | None,
    watermark: int | None,
    allow_dropped_state: bool,
    started_at_ms: int,
) -> LogEntryDocument:
    """Commit a checkpoint of subtasks that are written; errors as for `StoreWriter.commit`."""
    by_operator: dict[str, list[SubtaskHandle]] = defaultdict(list)
    for handle in handles:
        if handle.store_id != store_id:
            raise InvalidInputError(
                f"{handle!r} was written to another store; write it to the one that is committed to"
            )
        by_operator[handle.operator].append(handle)
    if not by_operator:
        raise InvalidInputError("a checkpoint needs the handles of all subtasks of an operator at least, got none")
    documents = [operator_of(uid, sorted(given, key=attrgetter("subtask"))) for uid, given in by_operator.items()]
    if not allow_dropped_state:
        _check_nothing_dropped(committer, documents)
    given = [handle for each in by_operator.values() for handle in each]
    lowest = lowest_watermark(handle.document.watermark for handle in given)
    return committer.commit(
        documents,
        properties=properties,
        watermark=lowest if watermark is None else check_integer("watermark", watermark),
        started_at_ms=started_at_ms,
        needs=Needs(
            {path for handle in given for path in handle.paths},
            min(handle.based_on for handle in given),
            {path for handle in given for path in handle.references},
        ),
        statistics=[handle.statistics for handle in given],
    )


def _check_nothing_dropped(committer: Committer, documents: Sequence[OperatorDocument]) -> None:
    content = committer.content
    if isinstance(content, CorruptDataError):
        raise content
    given = {document.uid: {state.name for state in document.states} for document in documents}
    for operator in content.operators:
        missing = {state.name for state in operator.states} - given.get(operator.uid, set())
        if operator.uid not in given or missing or operator.operator_states:
            what = ", ".join(sorted(missing)) or "its operator state" if operator.uid in given else "all of it"
            raise InvalidInputError(
                f"the checkpoint would leave out {what} of operator {operator.uid!r}, which the one before has; "
                "hand it over, or let it go with allow_dropped_state=True"
            )
