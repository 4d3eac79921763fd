"""Going through what a backend holds: its keys, a function for each of them, and sizes.

Nothing here is a table scan of plain Python values: keys come as Arrow columns, and only `apply_to_all_keys` calls
Python once per key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import StateDescriptor
from arrowstate.state.inspection import distinct_keys, distinct_keys_and_namespaces, largest_keys, sizes_by_key_group
from arrowstate_formats.integers import check_integer

if TYPE_CHECKING:
    from arrowstate.state.base import KeyedState
    from arrowstate.state.current_key import KeyContext


class Iteration:
    """The part of a keyed backend that goes through states as a whole; expired rows are left out everywhere.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> clicks = arrowstate.ReducingStateDescriptor(
    ...     "clicks", pa.int64(), reduce="sum", namespace=pa.schema([("day", pa.int32())])
    ... )
    >>> backend.state(clicks).add_batch(["ann", "bob"], [3, 4], namespace=pa.array([1, 2], pa.int32()))
    >>> sorted(backend.keys(clicks)["user"].to_pylist()), backend.keys(clicks, namespace=2)["user"].to_pylist()
    (['ann', 'bob'], ['bob'])
    >>> sorted(backend.keys_and_namespaces(clicks).to_pylist(), key=str)
    [{'user': 'ann', 'day': 1}, {'user': 'bob', 'day': 2}]
    >>> backend.apply_to_all_keys(2, clicks, lambda key, state: state.clear())
    >>> backend.keys(clicks)["user"].to_pylist()
    ['ann']
    """

    _states: dict[str, KeyedState[Any]]
    _context: KeyContext

    def __reduce__(self) -> Any:
        raise TypeError(
            "a KeyedStateBackend is the state of one process and is not pickled: write it there with "
            "store.subtask_writer(uid, subtask).write(backend), and restore it in the other one"
        )

    def keys(self, state: StateDescriptor | str, namespace: Any = None) -> pa.RecordBatch:
        """Return each key that has a row in a state.

        Parameters
        ----------
        state
            The name or descriptor of a state of this backend.
        namespace
            For a state with namespaces: the only one to look at; all of them by default.

        Returns
        -------
        pa.RecordBatch
            The key columns, not null; each key once, in the order of the key hash.

        Raises
        ------
        InvalidInputError
            If there is no such state, or it has no namespaces.
        """
        return distinct_keys(self._state_of(state), namespace)

    def keys_and_namespaces(self, state: StateDescriptor | str) -> pa.RecordBatch:
        """Return each key and namespace that has a row in a state.

        Returns
        -------
        pa.RecordBatch
            The key columns and the namespace columns, not null; each pair once, in the order of the key hash.

        Raises
        ------
        InvalidInputError
            If there is no such state, or it has no namespaces.
        """
        found = self._state_of(state)
        if found.descriptor.namespace is None:
            raise InvalidInputError(f"state {found.descriptor.name!r} has no namespaces; ask for its keys")
        return distinct_keys_and_namespaces(found)

    def apply_to_all_keys(
        self, namespace: Any, descriptor: StateDescriptor, function: Callable[[Any, Any], object]
    ) -> None:
        """Call a function with each key that has a row in a state, and the state with this key as the current one.

        The keys are those at the call, so the function may clear, update and add. If it raises, what it has done
        for keys before stays, and what it did for this one is undone. The current key and namespace are afterwards as
        they were.

        Parameters
        ----------
        namespace
            For a state with namespaces the one to go through, else None.
        descriptor
            The state.
        function
            Called with (key, state): the key as a plain value, or a tuple for several key columns.
        """
        state = self._state_of(descriptor)
        if namespace is None and state.descriptor.namespace is not None:
            raise InvalidInputError(f"state {state.descriptor.name!r} has namespaces; name the one to go through")
        keys = distinct_keys(state, namespace)
        with self._context.kept(), state.kept_namespace():
            if namespace is not None:
                state.current_namespace = namespace
            for row in range(keys.num_rows):
                with self._context.transactions.begun():
                    function(self._context.set_row(keys.columns, row), state)

    def key_group_sizes(self, state: StateDescriptor | str) -> pa.Table:
        """Return how large a state is by key group.

        Returns
        -------
        pa.Table
            `key_group` int32, `rows` int64, `bytes` int64, without nulls; a row per key group that has rows. Bytes
            are those of the columns, before encoding and compression; nested columns count with their average.
        """
        return sizes_by_key_group(self._state_of(state), self._context.max_parallelism)

    def state_sizes(self) -> pa.Table:
        """Return how large each state is.

        Returns
        -------
        pa.Table
            `state` string, `kind` string, `rows` int64, `bytes` int64, without nulls; a row per state.
        """
        sizes = {name: self.key_group_sizes(name) for name in self._states}
        return pa.table(
            [
                pa.array(list(sizes), pa.string()),
                pa.array([state.descriptor.kind for state in self._states.values()], pa.string()),
                pa.array([sum(table["rows"].to_pylist()) for table in sizes.values()], pa.int64()),
                pa.array([sum(table["bytes"].to_pylist()) for table in sizes.values()], pa.int64()),
            ],
            names=["state", "kind", "rows", "bytes"],
        )

    def largest_keys(self, state: StateDescriptor | str, limit: int = 10) -> pa.Table:
        """Return the keys with the most rows in a state: elements, entries and namespaces.

        Returns
        -------
        pa.Table
            The key columns, `_rows` int64 and `_bytes` int64, without nulls; at most `limit` rows, the largest first.
        """
        limit = check_integer("the limit", limit, 0)
        return largest_keys(self._state_of(state), limit)

    def _state_of(self, state: StateDescriptor | str) -> KeyedState[Any]:
        name = str(getattr(state, "name", state))
        found = self._states.get(name)
        if found is None:
            raise InvalidInputError(f"the backend has no state {name!r}; it has {', '.join(self._states) or 'none'}")
        return found
