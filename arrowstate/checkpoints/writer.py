"""The writer of a store: takes the fence, then commits checkpoints one after another.

A writer opens by committing a fence entry with an epoch one above the newest. Each commit takes the next
number of the log. Whoever finds that number taken was fenced by a newer writer and stops; nothing that it
wrote is referenced. Specification: formats/spec/manifests-and-log.md.

A checkpoint has three steps: freeze, write each part, commit. `checkpoint` takes them one after the other; the
`CheckpointCoordinator` writes parts in the background, several checkpoints at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from arrowstate.checkpoints.committing import Committer, Needs, gone_files
from arrowstate.checkpoints.freezing import (
    FrozenCheckpoint,
    Part,
    check_nothing_dropped,
    freeze_checkpoint,
    warn_of_fresh_start,
)
from arrowstate.errors import (
    CorruptDataError,
    StorageError,
)
from arrowstate.files.operator import write_operator_states
from arrowstate.files.reading import store_key
from arrowstate.files.references import operator_state_files, run_files
from arrowstate.files.subtasks import Content, operator_of
from arrowstate.files.writing import WrittenSubtask, write_subtask
from arrowstate.log.commit import Commit, delete_quietly
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend
from arrowstate.storage.base import Storage
from arrowstate.telemetry.records import Listener, PartRecord, recorded
from arrowstate_formats.documents import (
    LogEntryDocument,
    OperatorDocument,
    OperatorStateDocument,
    SubtaskStatisticsDocument,
)
from arrowstate_formats.integers import check_integer
from arrowstate_formats.run_files import RunFormat, check_format


class WrittenPart(Struct, frozen=True):
    """A part of a checkpoint whose files are written, ready to be named in a log entry."""

    subtask: WrittenSubtask | None
    "Keyed state."
    operator_states: Sequence[OperatorStateDocument]
    "Operator state."
    paths: Sequence[str]
    "The files written for it."
    references: frozenset[str]
    "All files that it refers to."
    statistics: SubtaskStatisticsDocument
    write_after_us: int
    "From the beginning of the checkpoint to that of its write, in microseconds."

    @property
    def record(self) -> PartRecord:
        """What is told of it."""
        rows = None if self.subtask is None else sum(self.subtask.document.live_rows.values())
        return PartRecord.of(self.statistics, rows=rows, write_after_us=self.write_after_us)


class CheckpointAttempt(Struct, frozen=True):
    """A checkpoint that was frozen and is not committed yet."""

    frozen: FrozenCheckpoint
    base: LogEntryDocument
    "The newest entry when it was frozen."
    before: Content
    "What the store held then; what did not change since is not written again."
    started_at_ms: int
    began_ns: int
    "The same on the clock that times are measured with."


class CheckpointWriter(Committer):
    """Writes checkpoints to a store and commits them; only the newest writer of a store may.

    Parts may be written by several threads at once. Parameters and errors as for `Committer`; `on_checkpoint` is called
    once for each checkpoint that ended.
    """

    def __init__(
        self, storage: Storage, store_id: str, *, on_checkpoint: Listener | None = None, **options: Any
    ) -> None:
        super().__init__(storage, store_id=store_id, **options)
        self.store_id = store_id
        self.store_key = store_key(storage, store_id)
        "What runs know the store by."
        self._on_checkpoint = on_checkpoint

    def checkpoint(
        self,
        operators: Mapping[str, Sequence[KeyedStateBackend]],
        *,
        operator_states: Mapping[str, Sequence[OperatorStateBackend]] | None = None,
        properties: Mapping[str, Any] | None = None,
        watermark: int | None = None,
        format: RunFormat = "arrow",
        allow_dropped_state: bool = False,
    ) -> LogEntryDocument:
        """Freeze the backends, write what the store lacks, and commit."""
        # Where nothing is to be written nobody would look at it.
        check_format(format)
        with recorded("checkpoint", self._storage.url, self.clock_ms(), listener=self._on_checkpoint) as recording:
            attempt = self.freeze(
                operators,
                operator_states=operator_states,
                allow_dropped_state=allow_dropped_state,
                started_at_ms=recording.started_at_ms,
            )
            with Commit(self._storage) as files:
                written: list[WrittenPart] = []
                for part in attempt.frozen.parts:
                    written.append(self.write(attempt, part, format=format))
                    files.paths.extend(written[-1].paths)
                    recording.parts.append(written[-1].record)
                with recording.committing():
                    entry = self.commit_parts(attempt, written, properties=properties, watermark=watermark, files=files)
            recording.checkpoint_id = entry.checkpoint_id
            return entry

    def freeze(
        self,
        operators: Mapping[str, Sequence[KeyedStateBackend]],
        *,
        operator_states: Mapping[str, Sequence[OperatorStateBackend]] | None = None,
        allow_dropped_state: bool = False,
        started_at_ms: int | None = None,
    ) -> CheckpointAttempt:
        """Freeze the backends: the first step of a checkpoint, which neither reads nor writes a file.

        Arguments and errors as for `checkpoint`. What the backends are given from now on is not part of it. A
        checkpoint that began before, for who takes it, says so with `started_at_ms`.
        """
        self.check_process()
        self._check_not_fenced()
        started_at_ms = self.clock_ms() if started_at_ms is None else started_at_ms
        began_ns = time.perf_counter_ns()
        frozen = freeze_checkpoint(operators, operator_states or {})
        base, content = self._newest.document, self._content
        if isinstance(content, CorruptDataError):
            # What a checkpoint would drop cannot be told.
            if not allow_dropped_state:
                raise content
            content = Content(self._storage, ())
        if not allow_dropped_state:
            check_nothing_dropped(content.operators, frozen)
            warn_of_fresh_start(content.operators, frozen, operators, operator_states or {})
        for backend in chain.from_iterable(operators.values()):
            backend.was_stored = True
        for own in chain.from_iterable((operator_states or {}).values()):
            own.was_stored = True
        return CheckpointAttempt(frozen, base, content, started_at_ms, began_ns)

    def write(
        self,
        attempt: CheckpointAttempt,
        part: Part,
        *,
        format: RunFormat = "arrow",
        cancelled: Callable[[], bool] = lambda: False,
    ) -> WrittenPart:
        """Write one part of a checkpoint, except for what the store has."""
        began = time.perf_counter_ns()
        before = attempt.before.whole(part.operator)
        if part.subtask is None:
            return self._write_operator_states(attempt, part, before, cancelled, began)
        previous = before.subtasks[part.subtask] if before and part.subtask < len(before.subtasks) else None
        if previous is not None and previous.manifest.path in self._condemned:
            previous = None
        result = write_subtask(
            self._storage,
            self.store_id,
            part.operator,
            part.subtask,
            attempt.frozen.operators[part.operator][part.subtask],
            format=format,
            new_id=self.new_id,
            previous=previous,
            cancelled=cancelled,
        )
        statistics = result.statistics(
            part.operator, sync_us=attempt.frozen.sync_us[part], async_us=(time.perf_counter_ns() - began) // 1000
        )
        after_us = (began - attempt.began_ns) // 1000
        return WrittenPart(result, (), result.paths, result.references, statistics, after_us)

    def _write_operator_states(
        self,
        attempt: CheckpointAttempt,
        part: Part,
        before: OperatorDocument | None,
        cancelled: Callable[[], bool],
        began: int,
    ) -> WrittenPart:
        if before is not None and not self._condemned.isdisjoint(operator_state_files(before.operator_states)):
            before = None
        with Commit(self._storage) as files:
            states = write_operator_states(
                self._storage,
                part.operator,
                attempt.frozen.operator_states[part.operator],
                new_id=self.new_id,
                paths=files.paths,
                previous=before,
                cancelled=cancelled,
            )
        paths = files.paths
        pieces = {piece.xxh3_128: piece.bytes for state in states for piece in state.parts}
        known = {piece.xxh3_128 for state in (before.operator_states if before else ()) for piece in state.parts}
        statistics = SubtaskStatisticsDocument(
            operator=part.operator,
            subtask=None,
            sync_us=attempt.frozen.sync_us[part],
            async_us=(time.perf_counter_ns() - began) // 1000,
            bytes_written=sum(size for digest, size in pieces.items() if digest not in known),
            bytes_total=sum(pieces.values()),
            files_written=len(paths),
        )
        after_us = (began - attempt.began_ns) // 1000
        return WrittenPart(None, states, paths, frozenset(operator_state_files(states)), statistics, after_us)

    def discard(self, written: Iterable[WrittenPart]) -> None:
        """Delete what was written for a checkpoint that no log entry names, and will not."""
        for part in written:
            delete_quietly(self._storage, part.paths)

    def commit_parts(
        self,
        attempt: CheckpointAttempt,
        written: Sequence[WrittenPart],
        *,
        properties: Mapping[str, Any] | None = None,
        watermark: int | None = None,
        checkpoint_id: int | None = None,
        files: Commit | None = None,
    ) -> LogEntryDocument:
        """Commit a checkpoint all of whose parts are written; errors as for `checkpoint`.

        Without `files` those that were written stay whatever happens. After one of `NOT_COMMITTED` they can be
        discarded, since nothing refers to them and will.
        """
        watermark = check_integer("watermark", watermark, optional=True)
        frozen = attempt.frozen
        documents = {
            uid: operator_of(
                uid, [part.subtask for part in written if part.subtask and part.statistics.operator == uid]
            )
            for uid in frozen.operators
        }
        for part in written:
            uid = part.statistics.operator
            if uid in documents and part.operator_states:
                documents[uid] = replace(documents[uid], operator_states=list(part.operator_states))
            elif part.operator_states:
                documents[uid] = OperatorDocument(
                    uid=uid, key=[], max_parallelism=1, states=[], subtasks=[], operator_states=[*part.operator_states]
                )
        needs = Needs(
            {path for part in written for path in part.paths},
            attempt.base.number,
            {path for part in written for path in part.references},
        )
        try:
            entry = self.commit(
                list(documents.values()),
                needs=needs,
                properties=properties,
                watermark=frozen.watermark if watermark is None else watermark,
                started_at_ms=attempt.started_at_ms,
                checkpoint_id=checkpoint_id,
                statistics=[part.statistics for part in written],
                files=files,
            )
        except StorageError as error:
            self._forget(frozen, gone_files(error))
            raise
        for part in written:
            if part.subtask is not None:
                part.subtask.committed(self._storage, self.store_id)
        return entry

    def _forget(self, frozen: FrozenCheckpoint, paths: frozenset[str]) -> None:
        """Let the next attempt write anew what is in files that are gone."""
        for subtask in chain.from_iterable(frozen.operators.values()):
            for run in chain.from_iterable(state.table.runs for state in subtask.states):
                stored = run.run.stored.get(self.store_key)
                if stored is not None and not paths.isdisjoint(run_files([stored[0]])):
                    del run.run.stored[self.store_key]
