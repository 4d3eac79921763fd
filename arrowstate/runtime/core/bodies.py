"""What a task does with its rows: run a function with state, or give them on."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa

from arrowstate.errors import InvalidInputError, NullKeyError, UserFunctionError
from arrowstate.files.writing import FrozenSubtask
from arrowstate.functions.batch_function import BatchFunction, BatchRunner
from arrowstate.functions.dead_letters import DeadLetters
from arrowstate.functions.keyed_process import KeyedProcessRunner
from arrowstate.functions.runner import batches_of
from arrowstate.functions.setting_aside import process_apart
from arrowstate.functions.windows.function import WindowFunction
from arrowstate.runtime.core.chain import Chain
from arrowstate.runtime.core.explaining import explained
from arrowstate.runtime.core.mapping import closed_if_not_opened
from arrowstate.runtime.core.valve import MAX_WATERMARK
from arrowstate.runtime.functions import CoBatchFunction, KeyedCoProcessFunction, OneOfTwo
from arrowstate.runtime.graph import StatefulNode
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend
from arrowstate.state.operator_list import BroadcastState

_logger = logging.getLogger("arrowstate.runtime")

Given = tuple[pa.Table | pa.Array, list[tuple[str, pa.Table]]]
"""What a function emitted, and what it handed to side outputs."""


class Body(Protocol):
    """What a task with input channels does."""

    broadcasts: Mapping[str, BroadcastState]

    def rows(self, port: int | str, rows: pa.Table) -> None:
        """Process rows of an input."""

    def watermark(self, watermark: int) -> None:
        """Let event time pass."""

    def tick(self, now_ms: int) -> None:
        """Let processing time pass."""

    def next_timer_ms(self) -> int | None:
        """The earliest processing time at which something is due."""

    def freeze(self) -> FrozenSubtask | None:
        """Return the keyed state as it is now."""

    @property
    def late_rows(self) -> int:
        """How many rows were left out because they came too late for their windows."""

    def close(self) -> None:
        """Let go of everything."""


class RelayBody:
    """Gives rows on."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.broadcasts: Mapping[str, BroadcastState] = {}
        self.late_rows = 0

    def rows(self, port: int | str, rows: pa.Table) -> None:  # noqa: ARG002
        self._chain.rows(rows)

    def watermark(self, watermark: int) -> None:
        pass

    def tick(self, now_ms: int) -> None:
        pass

    def next_timer_ms(self) -> int | None:
        return None

    def freeze(self) -> FrozenSubtask | None:
        return None

    def close(self) -> None:
        pass


@contextmanager
def _named(uid: str, rows: pa.Table) -> Iterator[None]:
    """Say of rows that were refused before a function saw them, or of what it emitted, which operator it was."""
    try:
        yield
    except InvalidInputError as error:
        place = "a batch"
        if isinstance(error, NullKeyError) and error.row < rows.num_rows:
            place = f"the row {rows.slice(error.row, 1).to_pylist()[0]}"
        raise UserFunctionError(uid, f"{type(error).__name__}: {error}", place, "", "step") from error


class FunctionBody:
    """Runs a function with keyed state, of records or of batches."""

    def __init__(
        self,
        node: StatefulNode,
        backend: KeyedStateBackend,
        broadcasts: Mapping[str, BroadcastState],
        operator_states: OperatorStateBackend,
        chain: Chain,
        now_ms: Callable[[], int],
    ) -> None:
        self._node = node
        self.uid: str | None = node.uid
        self.operator_states: OperatorStateBackend | None = operator_states
        self._backend = backend
        self.broadcasts = broadcasts
        self._chain = chain
        self._output = node.schema
        shown = {name: state.read_only() for name, state in broadcasts.items()}
        # Each subtask has one of its own, as if it were pickled.
        operator: Any = copy.deepcopy(node.operator)
        self._two: OneOfTwo | None = None
        if isinstance(operator, (CoBatchFunction, KeyedCoProcessFunction)):
            operator = self._two = operator.one_of_two()
        self._operator = operator
        self._windows = operator if isinstance(operator, WindowFunction) and operator.late is None else None
        self._tags = operator.side_outputs
        self._runner: BatchRunner | KeyedProcessRunner
        with explained(node.uid, "open"), closed_if_not_opened(operator):
            if isinstance(operator, BatchFunction):
                output = node.schema if node.schema.names else None
                self._runner = BatchRunner(
                    backend,
                    operator,
                    output=output,
                    broadcasts=shown,
                    now_ms=now_ms,
                    operator_states=operator_states,
                )
            else:
                fields = list(node.schema)
                kind = None if not fields else pa.struct(fields) if len(fields) > 1 else fields[0].type
                self._runner = KeyedProcessRunner(
                    backend,
                    operator,
                    output=kind,
                    timestamp=node.timestamp,
                    broadcasts=shown,
                    operator_states=operator_states,
                )
        self._is_past_the_end = backend.watermark == MAX_WATERMARK
        "Whether all input had ended when the checkpoint was taken, and nobody was told that rows come too late."
        self._names = node.key.names
        self._dead = None if node.dead_letters is None else DeadLetters(node.dead_letters, chain.next_checkpoint)

    def rows(self, port: int | str, rows: pa.Table) -> None:
        if isinstance(port, str):
            with _named(self._node.uid, rows), explained(self._node.uid, f"broadcast state {port!r}"):
                for batch in batches_of(rows):
                    self.broadcasts[port].put_batch(batch.column(0), batch.column(1))
            return
        if self._is_past_the_end and self._goes_by_event_time():
            self._is_past_the_end = False
            _logger.warning(
                "all input of operator %r had ended at the checkpoint that it began with, and event time with it: "
                "further rows come too late for its windows, or expire at once. Give it and its sources other uids, "
                "under which they begin anew; a job that is to go on with further rows reads with is_bounded=False, "
                "and ends by stop()",
                self._node.uid,
            )
        if self._two is not None:
            self._two.port = port
        if self._dead is not None:
            self._apart(rows, self._dead)
            return
        # A batch function may call its states with rows of its own making: their numbers say nothing of these.
        shown = None if isinstance(self._runner, BatchRunner) else rows
        with _named(self._node.uid, rows), explained(self._node.uid, "a batch", key=self._names, rows=shown):
            emitted = self._runner.process(rows)
        self._give(emitted, self._sides())

    def _goes_by_event_time(self) -> bool:
        """Whether rows that come after all event time are left out, or expire at once."""
        if isinstance(self._operator, WindowFunction):
            return self._operator.timestamp is not None and self._operator.late is None
        ttls = [state.descriptor.ttl for state in self._backend.in_use]
        return any(ttl is not None and ttl.clock == "event_time" for ttl in ttls)

    def _apart(self, rows: pa.Table, dead: DeadLetters) -> None:
        """Process the rows that do not fail; the others are set aside."""
        dead.batch_id = self._chain.next_checkpoint
        given: list[Given] = []

        def process(part: pa.RecordBatch) -> None:
            given.append((self._runner.process(part), self._sides()))

        with explained(self._node.uid, "a batch"):
            process_apart(
                process,
                rows,
                dead,
                key=self._names,
                timestamp=self._node.timestamp,
                names_rows=isinstance(self._runner, KeyedProcessRunner),
            )
        # What follows here may fail for other reasons.
        for emitted, sides in given:
            self._give(emitted, sides)
        self._chain.aside(dead)

    def watermark(self, watermark: int) -> None:
        with explained(self._node.uid, f"watermark {watermark}"):
            emitted = self._runner.advance_watermark(watermark)
        self._give(emitted, self._sides())

    def tick(self, now_ms: int) -> None:
        with explained(self._node.uid, f"processing time {now_ms}"):
            emitted = self._runner.advance_processing_time(now_ms)
        self._give(emitted, self._sides())

    def next_timer_ms(self) -> int | None:
        return self._runner.next_processing_time()

    def snapshot_state(self, checkpoint_id: int) -> None:
        with explained(self._node.uid, "snapshot_state"):
            self._runner.snapshot_state(checkpoint_id)

    def completed(self, checkpoint_id: int) -> None:
        with explained(self._node.uid, "on_checkpoint_complete"):
            self._operator.on_checkpoint_complete(checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        with explained(self._node.uid, "on_checkpoint_aborted"):
            self._operator.on_checkpoint_aborted(checkpoint_id)

    def freeze(self) -> FrozenSubtask | None:
        return self._backend.freeze()

    @property
    def late_rows(self) -> int:
        return 0 if self._windows is None else self._windows.late_rows

    def close(self) -> None:
        with explained(self._node.uid, "close"):
            self._runner.close()

    def _sides(self) -> list[tuple[str, pa.Table]]:
        return [(tag.name, self._runner.side_output(tag)) for tag in self._tags]

    def _give(self, emitted: pa.Table | pa.Array, sides: list[tuple[str, pa.Table]]) -> None:
        if isinstance(emitted, pa.Array) and len(self._output) > 1:
            emitted = pa.Table.from_arrays(emitted.flatten(), schema=self._output)
        elif isinstance(emitted, pa.Array):
            emitted = pa.Table.from_arrays([emitted][: len(self._output)], schema=self._output)
        if emitted.num_rows and self._node.consumers:
            self._chain.rows(emitted)
        for name, rows in sides:
            self._chain.side(name, rows)
