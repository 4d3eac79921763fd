"""The commit of filled states: one checkpoint with all of them, made from the one that the fill started from.

Other operators of that checkpoint stay as they are. The fence before it stops whoever writes to the store. A query
of Spark that had written goes on after its last batch when it is started again, and its offsets stay known: the
properties of the checkpoint are taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from arrowstate.bootstrap.plan import FillPlan
from arrowstate.checkpoints.committing import Committer, Needs
from arrowstate.checkpoints.handles import SubtaskHandle
from arrowstate.errors import FencedError
from arrowstate.files.notes import of_stopped_query
from arrowstate.files.subtasks import operator_of, whole_operators
from arrowstate.log.commit import Commit
from arrowstate.log.entries import CommittedEntry, content_of
from arrowstate.storage.base import Storage
from arrowstate.telemetry.records import PartRecord, recorded
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument, OperatorStateDocument


class FilledOperator(Struct, frozen=True):
    """An operator whose subtasks are written."""

    plan: FillPlan
    subtasks: Sequence[SubtaskHandle]


class FilledStates(Struct, frozen=True):
    """Operator states of an operator, written; others that it has stay."""

    uid: str
    states: Sequence[OperatorStateDocument]
    paths: Sequence[str]


def commit_filled(
    storage: Storage,
    fill: Callable[[], Sequence[FilledOperator]],
    properties: Callable[[Sequence[FilledOperator]], Mapping[str, Any]],
    *,
    operator_states: Callable[[], Sequence[FilledStates]] = tuple,
    abandon: Callable[[], None],
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
) -> tuple[LogEntryDocument, Sequence[FilledOperator]]:
    """Fill operators and commit them as one checkpoint, as an operation that is told of; errors as of `commit_fill`.

    `properties` is asked when all is written, and `abandon` deletes what was written where there is no commit to try.
    `operator_states` writes what operators have of it.
    """
    started_at_ms = clock_ms()
    with recorded("import", storage.url, started_at_ms) as recording:
        try:
            filled = fill()
            beside = operator_states()
            kept = properties(filled)
        except BaseException:
            abandon()
            raise
        with recording.committing():
            entry = commit_fill(
                storage,
                filled,
                beside,
                properties=kept,
                started_at_ms=started_at_ms,
                new_id=new_id,
                clock_ms=clock_ms,
            )
        recording.checkpoint_id = entry.checkpoint_id
        recording.parts.extend(
            PartRecord.of(item.statistics, rows=sum(item.document.live_rows.values()))
            for operator in filled
            for item in operator.subtasks
        )
    return entry, filled


def commit_fill(
    storage: Storage,
    operators: Sequence[FilledOperator],
    operator_states: Sequence[FilledStates] = (),
    *,
    properties: Mapping[str, Any],
    started_at_ms: int,
    new_id: Callable[[], str],
    clock_ms: Callable[[], int],
) -> LogEntryDocument:
    """Commit operators whose subtasks are written as the newest checkpoint."""
    paths = [path for operator in operators for item in operator.subtasks for path in item.paths]
    paths += [path for item in operator_states for path in item.paths]

    def check(newest: CommittedEntry | None) -> None:
        held = content_of(newest)
        base = None if held is None else held.number
        if any(operator.plan.base != base for operator in operators):
            raise FencedError(None, None if newest is None else newest.document.writer_epoch)

    with Commit(storage, paths) as files:
        committer = Committer(
            storage,
            clock_ms=clock_ms,
            # Under the names of the fill, so that they are found where it fails.
            new_id=operators[0].plan.id_maker(new_id) if operators else new_id,
            properties=properties,
            once=True,
            check=check,
        )
        checkpoint = committer.newest_checkpoint
        kept = {} if checkpoint is None else {operator.uid: operator for operator in checkpoint.operators}
        for operator in operators:
            uid = operator.plan.uid
            own = () if uid not in kept else kept[uid].operator_states
            kept[uid] = operator_of(uid, sorted(operator.subtasks, key=attrgetter("subtask")), own)
        for states in operator_states:
            kept[states.uid] = _with_states(states, kept.get(states.uid))
        content = whole_operators(storage, kept.values())
        watermarks = [operator.plan.watermark for operator in operators if operator.plan.watermark is not None]
        return committer.commit(
            content,
            needs=Needs(paths, 0 if checkpoint is None else checkpoint.number),
            started_at_ms=started_at_ms,
            watermark=min(watermarks, default=None if checkpoint is None else checkpoint.watermark),
            properties={**of_stopped_query({} if checkpoint is None else checkpoint.properties, new_id), **properties},
            statistics=[item.statistics for operator in operators for item in operator.subtasks],
            files=files,
        )


def _with_states(given: FilledStates, operator: OperatorDocument | None) -> OperatorDocument:
    states = list(given.states)
    if operator is not None:
        names = {state.name for state in states}
        others = [state for state in operator.operator_states if state.name not in names]
        return replace(operator, operator_states=[*others, *states])
    return OperatorDocument(uid=given.uid, key=[], max_parallelism=1, states=[], subtasks=[], operator_states=states)
