"""What the runners of functions share, whether a function sees records or batches, and what their contexts share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.functions.checkpointed import OperatorContext
from arrowstate.functions.side_outputs import OutputTag, Sides
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend
from arrowstate.state.kinds.timers import TimerState
from arrowstate.state.operator_list import ReadOnlyBroadcastState, find_broadcast


class Context(OperatorContext):
    """What a function knows besides what it is given."""

    def __init__(
        self,
        backend: KeyedStateBackend,
        broadcasts: Mapping[str, ReadOnlyBroadcastState],
        operator_states: OperatorStateBackend | None = None,
    ) -> None:
        super().__init__(operator_states, broadcasts.keys())
        self._backend = backend
        self._broadcasts = broadcasts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._backend!r}>"

    @property
    def watermark(self) -> int | None:
        """The event time, in milliseconds, up to which all rows are expected to have come; None before the first."""
        return self._backend.watermark

    def broadcast(self, name: str) -> ReadOnlyBroadcastState:
        """Return a broadcast state, which is the same in every subtask and cannot be changed here.

        Raises
        ------
        InvalidInputError
            If there is none of this name.
        """
        return find_broadcast(self._broadcasts, name)


C = TypeVar("C", bound=Context)


class _Function(Protocol):
    def open(self, context: Any) -> None: ...

    def snapshot_state(self, checkpoint_id: int, context: Any) -> None: ...

    def close(self) -> None: ...


F = TypeVar("F", bound=_Function)


class Runner(Generic[F, C]):
    """Opens a function, runs it in transactions of its backend, and closes it."""

    def __init__(
        self,
        backend: KeyedStateBackend,
        function: F,
        context: C,
        broadcasts: Mapping[str, ReadOnlyBroadcastState],
        sides: Sides[Any],
        operator_states: OperatorStateBackend | None = None,
    ) -> None:
        self._backend = backend
        self._operator_states = operator_states
        self._sides = sides
        self._function = function
        self._context = context
        self._broadcasts = tuple(broadcasts.values())
        self._closed = False
        function.open(context)

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"<{type(self).__name__} of {type(self._function).__name__}{closed}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def side_output(self, tag: OutputTag) -> pa.Table:
        """Return the rows that the function sent to a side output in the last call; none after a call that failed.

        Returns
        -------
        pa.Table
            The columns of the tag.

        Raises
        ------
        InvalidInputError
            If the function has no such side output.
        """
        return self._sides.last(tag)

    def next_processing_time(self) -> int | None:
        """Return the processing time at which something is due next.

        Returns
        -------
        int or None
            Milliseconds since 1970; None where nothing waits for processing time.
        """
        # Restored timers that nobody has asked for never fire.
        timers = [state for state in self._backend.in_use if isinstance(state, TimerState)]
        times = [state.next_timestamp() for state in timers if state.descriptor.clock == "processing_time"]
        return min((time for time in times if time is not None), default=None)

    def close(self) -> None:
        """Call the function's `close`, once."""
        if not self._closed:
            self._closed = True
            self._function.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInputError(f"{type(self._function).__name__} has been closed; make another runner")

    def snapshot_state(self, checkpoint_id: int) -> None:
        """Have the function put into its states what a checkpoint is to hold; if it raises, they stay as they were."""
        with self._transaction():
            self._function.snapshot_state(checkpoint_id, self._context)

    def _transaction(self) -> AbstractContextManager[None]:
        states = () if self._operator_states is None else self._operator_states.states
        return self._backend.transaction(*self._broadcasts, *states)


def key_columns_of(key: pa.Schema, batch: pa.RecordBatch) -> Any:
    """Return the key columns of a batch, in the form that the verbs of states take."""
    names = key.names
    if not set(names) <= set(batch.schema.names):
        raise InvalidInputError(
            f"a batch must have the key columns {', '.join(names)}; it has {', '.join(batch.schema.names)}"
        )
    for name in names:
        check_once(batch.schema, name)
    return batch.column(names[0]) if len(names) == 1 else batch.select(names)


def check_once(schema: pa.Schema, name: str) -> None:
    """Refuse columns of which several have a name that one is asked for by."""
    count = schema.names.count(name)
    if count > 1:
        raise InvalidInputError(f"a batch must have one column {name}, and this one has {count}; rename all but one")


def batches_of(rows: Any) -> list[pa.RecordBatch]:
    """Return a record batch or table as batches.

    There is one, unless a column holds more text than one array can address, or dictionaries with more values together
    than their index type can tell apart.
    """
    if isinstance(rows, pa.RecordBatch):
        return [rows]
    if not isinstance(rows, pa.Table):
        raise InvalidInputError(f"expected a record batch or a table, got {type(rows).__name__}")
    try:
        return rows.combine_chunks().to_batches()
    except pa.ArrowInvalid:
        # The chunks have dictionaries that cannot be joined.
        return rows.to_batches()
