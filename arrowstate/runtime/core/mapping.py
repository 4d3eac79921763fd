"""Functions of `map_batches` that are opened and closed, and what functions are told of checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

import pyarrow as pa

from arrowstate.functions.checkpointed import OperatorContext
from arrowstate.runtime.core.explaining import explained
from arrowstate.runtime.functions import MapFunction
from arrowstate.runtime.graph import MapNode
from arrowstate.state.backend.operator import OperatorStateBackend
from arrowstate.state.transaction import Transactions


@contextmanager
def closed_if_not_opened(function: Any) -> Iterator[None]:
    """Let go of what an `open` has made that raised."""
    try:
        yield
    except BaseException:
        # Why it could not be opened says more.
        with suppress(Exception):
            function.close()
        raise


_TAKEN = frozenset({"pending", "rows", "splits"})
"""By these a store tells sinks, output tables and sources from functions."""


class Checkpointed(Protocol):
    """A function that is told of checkpoints."""

    uid: str | None
    operator_states: OperatorStateBackend | None

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Have it put into its states what a checkpoint is to hold."""

    def completed(self, checkpoint_id: int) -> None:
        """Tell it that a checkpoint was committed."""

    def aborted(self, checkpoint_id: int) -> None:
        """Tell it that a checkpoint was given up."""


class MapBody:
    """Runs a function of `map_batches` that is opened and closed."""

    def __init__(self, node: MapNode, task: str, operator_states: OperatorStateBackend | None) -> None:
        assert isinstance(node.function, MapFunction)
        self.uid = node.uid
        self.operator_states = operator_states
        self._named = node.uid or task
        # Each subtask has one of its own, as if it were pickled.
        self._function = copy.deepcopy(node.function)
        self._transactions = Transactions()
        self._context = OperatorContext(operator_states, _TAKEN)
        with explained(self._named, "open"), closed_if_not_opened(self._function):
            self._function.open(self._context)

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Table | None:
        """Return what becomes of a batch; if it raises, the operator state stays as it was."""
        with self._transaction():
            return self._function.process_batch(batch)

    def snapshot_state(self, checkpoint_id: int) -> None:
        with explained(self._named, "snapshot_state"), self._transaction():
            self._function.snapshot_state(checkpoint_id, self._context)

    def completed(self, checkpoint_id: int) -> None:
        with explained(self._named, "on_checkpoint_complete"):
            self._function.on_checkpoint_complete(checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        with explained(self._named, "on_checkpoint_aborted"):
            self._function.on_checkpoint_aborted(checkpoint_id)

    def close(self) -> None:
        with explained(self._named, "close"):
            self._function.close()

    def _transaction(self) -> AbstractContextManager[None]:
        return self._transactions.begun(() if self.operator_states is None else self.operator_states.states)
