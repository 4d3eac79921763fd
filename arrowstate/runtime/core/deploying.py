"""How a slot makes its tasks at the start of an attempt, with the state that a checkpoint has of them."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from arrowstate.files.in_flight import reserved_names
from arrowstate.files.subtasks import whole_state
from arrowstate.log.commit_log import CommitLog
from arrowstate.runtime.connectors import PreparingSink, Sink
from arrowstate.runtime.core.attempt import Attempt, Setting
from arrowstate.runtime.core.barriers import BarrierHandler, ExactlyOnceBarriers, TrackedBarriers
from arrowstate.runtime.core.bodies import Body, FunctionBody, RelayBody
from arrowstate.runtime.core.chain import Chain
from arrowstate.runtime.core.exchange import Exchange
from arrowstate.runtime.core.in_flight import InFlightStates, check_names
from arrowstate.runtime.core.mapping import MapBody
from arrowstate.runtime.core.messages import Deploy, Ended
from arrowstate.runtime.core.reading import SourceSplits
from arrowstate.runtime.core.sinking import DirectTask, KeptRows, PreparedTask, SinkTask
from arrowstate.runtime.core.task import Flight, OperatorTask, SourceTask, TaskHooks
from arrowstate.runtime.graph import Graph, MapNode, RelayNode, SinkNode, SourceNode, StatefulNode
from arrowstate.runtime.sinks.table import OutputTable
from arrowstate.state.backend.broadcast import restored_broadcast
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend, restore_operator_backend
from arrowstate.state.backend.restoring import restore_backend
from arrowstate.state.operator_list import BroadcastState
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument
from arrowstate_formats.key_groups import key_group_range


def deploy(attempt: Attempt, message: Deploy, graph: Graph, setting: Setting, storage: Storage) -> None:
    """Make all tasks of an attempt; what was made before an error is in it, to be closed."""
    outside = attempt.outside
    base = None if message.base is None else CommitLog(storage).read(message.base).document
    hooks = TaskHooks(
        attempt.consumed,
        attempt.snapshots.take,
        attempt.snapshots.captured,
        lambda task: outside.tell(Ended(attempt.number, task.uid, attempt.subtask)),
        outside.now_ms,
        outside.now_us,
    )
    for edge in graph.edges:
        attempt.exchanges[edge.number] = Exchange(
            edge, attempt.subtask, setting.parallelism, setting.max_parallelism, attempt.send
        )
    following = 1 if base is None or base.checkpoint_id is None else base.checkpoint_id + 1
    for node in reversed(graph.in_order()):
        chain = Chain(
            graph,
            node,
            node.uid,
            attempt.exchanges,
            lambda sink: _sink(attempt, sink, setting, storage),
            lambda made, uid=node.uid: _map(attempt, made, uid, base, setting, storage),  # type: ignore[misc]
            following,
        )
        if isinstance(node, SourceNode):
            splits = SourceSplits(node)
            attempt.closes.append((node.uid, splits.close))
            attempt.tasks.append(SourceTask(node.uid, attempt.subtask, chain, hooks, splits))
            splits.add(message.splits.get(node.uid, ()), outside.now_ms())
            splits.no_more = node.uid in message.no_more_splits
            splits.had_splits = splits.had_splits or node.uid in message.had_splits
        else:
            task = _operator(attempt, node, chain, hooks, base, setting, storage)
            attempt.tasks.append(task)
            for edge in node.inputs:
                attempt.operators[edge.number] = task


def _operator(
    attempt: Attempt,
    node: StatefulNode | RelayNode,
    chain: Chain,
    hooks: TaskHooks,
    base: LogEntryDocument | None,
    setting: Setting,
    storage: Storage,
) -> OperatorTask:
    # What only gives rows on hears of event time from what is before it, which may be newer than the checkpoint.
    watermark: int | None = None
    flight = Flight()
    body: Body
    if isinstance(node, StatefulNode):
        stored = None if base is None else next((item for item in base.operators if item.uid == node.uid), None)
        backend = _backend(attempt, node, base, stored, setting, storage)
        attempt.snapshots.backends.append(backend)
        watermark = backend.watermark
        broadcasts = _broadcasts(attempt.subtask, node, stored, storage)
        without = {*broadcasts, *reserved_names(stored)}
        states = _operator_states(attempt, node.uid, base, setting, storage, without=without)
        body = FunctionBody(node, backend, broadcasts, states, chain, attempt.outside.now_ms)
        attempt.closes.append((node.uid, body.close))
        flight = _flight(attempt, node, base, stored, setting, storage)
        operator_states = [*states.state_names, *broadcasts]
        check_names(node.uid, backend.state_names, operator_states, unaligned=setting.unaligned)
    else:
        body = RelayBody(chain)
    channels = [(edge.number, sender) for edge in node.inputs for sender in range(setting.parallelism)]
    barriers: BarrierHandler = TrackedBarriers(len(channels))
    if setting.exactly_once:
        of_edge = {edge.number: edge for edge in node.inputs}
        in_line = [number for number, (edge, _) in enumerate(channels) if of_edge[edge].rule != "keyed"]
        barriers = ExactlyOnceBarriers(len(channels), in_line)
    return OperatorTask(
        node.uid,
        attempt.subtask,
        chain,
        hooks,
        body,
        channels,
        {edge.number: edge.port for edge in node.inputs},
        barriers,
        watermark,
        flight,
    )


def _flight(
    attempt: Attempt,
    node: StatefulNode,
    base: LogEntryDocument | None,
    stored: OperatorDocument | None,
    setting: Setting,
    storage: Storage,
) -> Flight:
    """Return what a task knows of rows in flight, with those of the checkpoint."""
    states = InFlightStates(node)
    recovered = (
        []
        if base is None or stored is None
        else states.restored(
            storage,
            setting.store_id,
            base,
            stored,
            parallelism=setting.parallelism,
            subtask=attempt.subtask,
            max_parallelism=setting.max_parallelism,
        )
    )
    return Flight(
        states if setting.unaligned else None,
        {edge.number: edge.origin.uid for edge in node.inputs if edge.origin is not None},
        recovered,
        setting.max_in_flight_bytes,
    )


def _backend(
    attempt: Attempt,
    node: StatefulNode,
    base: LogEntryDocument | None,
    stored: OperatorDocument | None,
    setting: Setting,
    storage: Storage,
) -> KeyedStateBackend:
    if base is None or stored is None or not stored.key:
        groups = key_group_range(setting.max_parallelism, parallelism=setting.parallelism, subtask=attempt.subtask)
        return KeyedStateBackend(
            key=node.key,
            max_parallelism=setting.max_parallelism,
            key_groups=groups,
            clock_ms=attempt.outside.now_ms,
        )
    return restore_backend(
        storage,
        setting.store_id,
        base,
        node.uid,
        parallelism=setting.parallelism,
        subtask=attempt.subtask,
        max_parallelism=setting.max_parallelism,
        clock_ms=attempt.outside.now_ms,
        drop=[state.name for state in stored.states if state.name in reserved_names(stored)],
    )


def _broadcasts(
    subtask: int, node: StatefulNode, stored: OperatorDocument | None, storage: Storage
) -> dict[str, BroadcastState]:
    documents = {} if stored is None else {state.name: state for state in stored.operator_states}
    backend = OperatorStateBackend()
    for descriptor in node.broadcasts:
        document = documents.get(descriptor.name)
        if document is not None:
            whole = whole_state(storage, node.uid, document)
            # All subtasks had the same.
            backend.hold(restored_broadcast(storage, whole, min(subtask, len(whole.parts) - 1)))
    return {descriptor.name: backend.state(descriptor) for descriptor in node.broadcasts}


def _operator_states(
    attempt: Attempt,
    uid: str,
    base: LogEntryDocument | None,
    setting: Setting,
    storage: Storage,
    *,
    without: Collection[str] = (),
) -> OperatorStateBackend:
    """Return the operator state of a function in this subtask, restored or new."""
    if base is None or all(operator.uid != uid for operator in base.operators):
        return OperatorStateBackend()
    return restore_operator_backend(
        storage, base, uid, parallelism=setting.parallelism, subtask=attempt.subtask, without=without
    )


def _map(
    attempt: Attempt,
    node: MapNode,
    task: str,
    base: LogEntryDocument | None,
    setting: Setting,
    storage: Storage,
) -> MapBody:
    states = None if node.uid is None else _operator_states(attempt, node.uid, base, setting, storage)
    body = MapBody(node, task, states)
    attempt.closes.append((node.uid or task, body.close))
    return body


def _sink(attempt: Attempt, node: SinkNode, setting: Setting, storage: Storage) -> SinkTask:
    """Return what a task writes to: one of its own, for each task ends its epochs by its own barriers."""
    sink = _new_sink(attempt, node, setting, storage)
    attempt.closes.append((node.uid, sink.close))
    return sink


def _new_sink(attempt: Attempt, node: SinkNode, setting: Setting, storage: Storage) -> SinkTask:
    sink = node.sink
    new_id = attempt.outside.new_id
    kept = partial(KeptRows, storage, new_id)
    if isinstance(sink, OutputTable):
        return kept(sink.name, "rows", node.schema, is_table=True)
    if isinstance(sink, Sink):
        return kept(node.uid, "pending", node.schema, is_table=False)
    if isinstance(sink, PreparingSink):
        pending = kept(node.uid, "pending", sink.committable_schema, is_table=False)
        name = f"{setting.store_id}-{attempt.number}-{new_id()}"
        return PreparedTask(sink, setting.store_id, node.uid, attempt.subtask, name, pending)
    if node.uid not in attempt.direct:
        attempt.direct[node.uid] = DirectTask(sink, setting.store_id, node.uid, attempt.subtask)
    return attempt.direct[node.uid]
