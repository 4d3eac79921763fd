"""Functions that have operator state, and are told of checkpoints: what Flink calls a `CheckpointedFunction`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, overload

from arrowstate.errors import InvalidInputError
from arrowstate.schema.operator_state import BroadcastStateDescriptor, OperatorListStateDescriptor
from arrowstate.state.backend.operator import OperatorStateBackend
from arrowstate.state.operator_list import BroadcastState, OperatorListState
from arrowstate.state.shown import Shown


class OperatorContext(Shown):
    """What a function knows of the operator state of its subtask."""

    def __init__(self, operator_states: OperatorStateBackend | None = None, taken: Collection[str] = ()) -> None:
        self._operator_states = operator_states
        self._taken = taken

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @property
    def is_restored(self) -> bool:
        """Whether the function goes on from a checkpoint that has something of it."""
        return self._operator_states is not None and self._operator_states.was_stored

    @overload
    def operator_state(self, descriptor: OperatorListStateDescriptor) -> OperatorListState: ...
    @overload
    def operator_state(self, descriptor: BroadcastStateDescriptor) -> BroadcastState: ...
    def operator_state(self, descriptor: Any) -> OperatorListState | BroadcastState:
        """Return an operator state of the subtask, which belongs to no key; to be called in `open`.

        A list is shared out when the parallelism changes: with the mode `split` each subtask gets a piece of
        all elements, with `union` it gets all of them. A broadcast state must be given the same entries in every
        subtask.

        Raises
        ------
        InvalidInputError
            If the function runs where there is no operator state: `map_batches` without `uid=`, Spark, or a runner that
            was given none; or if the job itself has a state of this name, such as a broadcast stream.
        IncompatibleStateError
            If a state of this name is stored with another kind, mode or type.
        """
        if self._operator_states is None:
            raise InvalidInputError(
                f"there is no operator state here for {getattr(descriptor, 'name', descriptor)!r}: a job has it in "
                "stateful(...) and in map_batches(..., uid=...), and a runner with operator_states=; on Spark "
                "use keyed state whose key is the number of a bucket"
            )
        if descriptor.name in self._taken:
            taken = ", ".join(map(repr, sorted(self._taken)))
            raise InvalidInputError(f"the job itself has states here named {taken}; name {descriptor.name!r} otherwise")
        return self._operator_states.state(descriptor)


class CheckpointedFunction:
    """What a function may do at checkpoints; each does nothing unless it is defined."""

    def snapshot_state(self, checkpoint_id: int, context: Any) -> None:
        """Called right before the state is frozen for a checkpoint: the place to put attributes into states.

        It is called between two batches, so it should be quick. If it raises, the checkpoint is declined.

        Parameters
        ----------
        checkpoint_id
            Of the checkpoint, which may still fail.
        context
            The one that `open` was given.
        """

    def on_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Called after a checkpoint was committed, and with it all before it; at most once in each start of the job.

        A job that fails right after the commit does not call it: what must happen once belongs in a sink.
        """

    def on_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Called after a checkpoint was given up: what it would have held will be in a later one.

        Like `on_checkpoint_complete` it is called at most once for a checkpoint in each start of the job, or never if
        the job fails before.
        """
