"""What all kinds of keyed state share: keys and namespaces, and where scalar verbs work.

A state is a table of sorted runs. Rows are told apart by the key, and where there is one by the namespace and
the user key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import InvalidInputError, ValueTypeError
from arrowstate.schema.descriptors import StateDescriptor
from arrowstate.schema.keys import key_columns
from arrowstate.schema.layout import StateLayout
from arrowstate.schema.plain import column_of, plain_value
from arrowstate.schema.types import CONVERSION_ERRORS, as_arrow, python_scalar, shown_misfit
from arrowstate.state.current_key import KeyContext, identity_of
from arrowstate.state.expiry import Expiry, Rows, runs_with_times
from arrowstate.state.pending import Pending, Write, together
from arrowstate.state.shown import Shown
from arrowstate.state.transaction import Transactions, own_verbs
from arrowstate.table.background_merge import BackgroundMerge
from arrowstate.table.columns import canonical_floats, take
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.run import Run
from arrowstate.table.table import Found, FrozenTable, Table, gather

Ints = npt.NDArray[np.int64]
D = TypeVar("D", bound=StateDescriptor)


class KeyedState(Shown, Generic[D]):
    """A named state of one backend."""

    _plumbing = (
        frozenset({"begin", "go_back", "keep", "kept_namespace", "transactions"})
        | {
            "adopt",
            "begin_merge",
            "clear_keys",
            "find_unexpired",
            "find_unexpired_rows",
            "flush",
            "freeze",
            "grouped",
            "hashes_of",
            "layout",
            "live_batches",
            "runs_with_times",
            "table",
        }
        | {"check_time_known", "key_batch", "namespace_columns", "namespaces_of", "runs_with_times", "times_now"}
    )

    def __init__(self, descriptor: D, layout: StateLayout, table: Table, context: KeyContext) -> None:
        self.descriptor = descriptor
        self.layout = layout
        self._table = table
        self._context = context
        self.transactions: Transactions = context.transactions
        "Those of the backend, for what looks after the state."
        self._expiry = Expiry(descriptor, layout, table, context)
        self._namespace: tuple[Any, list[pa.Array]] | None = None
        self._pending: Pending[Any, Any] = Pending()
        "What scalar verbs have written and the table does not have yet."

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own_verbs(cls)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.descriptor.name!r}: {self.descriptor.type}, {len(self)} rows>"

    def __len__(self) -> int:
        """The number of rows: one per key, entry of a map, or element of a list; expired ones count until removed."""
        self._flush()
        return self._table.live_rows

    def begin(self) -> Any:
        """Return a mark of all that the state is, for `arrowstate.state.transaction`."""
        return self._table.begin(), self._pending.begin(), self._namespace

    def keep(self) -> None:
        """Give up the latest mark and stay as it is."""
        self._table.keep()
        self._pending.keep()

    def go_back(self, mark: Any) -> None:
        """Give up the latest mark and be what it was when it was taken."""
        table, pending, self._namespace = mark
        self._table.go_back(table)
        self._pending.go_back(pending)

    @property
    def table(self) -> Table:
        """The rows of the state, for those who share its memory budget."""
        return self._table

    @property
    def memory_bytes(self) -> int:
        """Bytes of rows, directories and live bits in memory; mapped rows do not count."""
        return self._table.memory_bytes

    @property
    def current_namespace(self) -> Any:
        """The namespace that scalar verbs work in: a plain value, or a tuple or mapping for several columns.

        Raises
        ------
        InvalidInputError
            If it is read before it was set, or the state has no namespaces.
        NullKeyError, KeyTypeError
            If it is set to something that is no namespace of this state.
        """
        return self._current_namespace()[0]

    @current_namespace.setter
    def current_namespace(self, value: Any) -> None:
        self._namespace = (value, self._namespace_columns(value, 1))

    @contextmanager
    def kept_namespace(self) -> Iterator[None]:
        """Set the current namespace back afterwards."""
        namespace = self._namespace
        try:
            yield
        finally:
            self._namespace = namespace

    def begin_merge(self, runs: Sequence[Run]) -> BackgroundMerge:
        """Freeze runs of the table for a merge by another thread; what has expired by now is left out of it."""
        return self._table.begin_merge(runs, expired_up_to=self._expiry.cutoff())

    def clear_keys(self, keys: KeyBatch) -> None:
        """Remove all rows of keys that the backend has grouped, in all namespaces."""
        self._flush()
        if self.layout.second is None:
            self._table.remove(self._table.find(keys))
            return
        for run, _, rows in self._table.find_all(keys):
            self._table.kill(run, rows)

    def flush(self) -> None:
        """Move what scalar verbs have written so far into the table."""
        self._flush()

    def _flush(self, *, settle: bool = True) -> None:
        """Move what scalar verbs have written so far into the table, and merge before if `settle`."""
        if self._pending:
            if settle:
                self._expiry.settle()
            self._apply(list(self._pending.values()))
            self._pending.clear()

    def _apply(self, writes: Sequence[Any]) -> None:
        """Make rows of the table of scalar writes, one of each key, namespace and user key."""
        columns = together(write.columns for write in writes)
        count = len(self.layout.key)
        keys = self._context.group(columns[:count], columns[count:])
        rows = keys.last_rows()
        values = column_of([write.values[0] for write in writes], self.layout.value_type)
        updated = together(write.updated for write in writes)
        kept = np.flatnonzero(~np.array([write.removed for write in writes])[rows])
        found = self._table.find(keys)
        times = self._latest(found, [take(column, rows) for column in updated])
        self._table.put(found, keys, [*self.layout.split(take(values, rows)), *times], keep=kept)

    def _latest(self, found: Found, updated: list[pa.Array]) -> list[pa.Array]:
        """Return the times of rows that take the places of those found."""
        # The time of a value is that of its write; only what is folded keeps something of the old row.
        del found
        return updated

    def _note(self, identity: Any, write: Any) -> None:
        """Keep what a scalar verb writes until the next batch verb or snapshot, or until there is much of it."""
        if self._pending.is_full:
            self._flush()
        self._pending[identity] = write

    def _write_one(self, scalar: pa.Scalar | None, user_key: pa.Array | None = None, *, removed: bool) -> None:
        """Set or remove one row of the current key and namespace."""
        identity, keys = self._current(user_key)
        updated = self._expiry.no_times(1) if removed else self._expiry.times(1, None)
        self._note(identity, Write(keys.columns, (scalar,), updated, removed))

    def _noted(self, identity: Any) -> Write | None:
        """Return what a scalar verb has written last and the table does not have yet."""
        if self.descriptor.ttl is not None:
            # A read may renew or remove the row.
            self._flush()
        return self._pending.get(identity)

    def freeze(self) -> FrozenTable:
        """Return the state as it is now; later writes do not change it."""
        # Merging and spilling can wait: freezing must not grow with the state.
        self._flush(settle=False)
        return self._table.freeze()

    def _current_namespace(self) -> tuple[Any, list[pa.Array]]:
        if self._namespace is None:
            if self.descriptor.namespace is None:
                raise InvalidInputError(f"state {self.descriptor.name!r} has no namespaces")
            raise InvalidInputError(
                f"no namespace of state {self.descriptor.name!r} is set; set its current_namespace before a scalar verb"
            )
        return self._namespace

    def _keys(self, keys: Any, namespace: Any, user_keys: pa.Array | None = None) -> KeyBatch:
        """Check, hash, sort and group keys, with namespaces and user keys if the state has them.

        Keys that are grouped by all that the state tells rows apart by are taken as they are.
        """
        if isinstance(keys, KeyBatch) and user_keys is None and namespace is None:
            self._context.check_grouped(keys)
            spaced = self.descriptor.namespace is not None
            if keys.seconds is None and not spaced:
                return keys
            if keys.seconds is not None and spaced and self._has_namespaces(keys):
                return keys
        columns = self._context.columns(keys)
        entry = self._namespace_columns(namespace, len(columns[0]))
        if user_keys is not None:
            if len(user_keys) != len(columns[0]):
                raise InvalidInputError(
                    f"{len(columns[0])} keys need {len(columns[0])} user keys, got {len(user_keys)}"
                )
            entry.append(user_keys)
        return self._context.group(columns, entry)

    def _has_namespaces(self, keys: KeyBatch) -> bool:
        """Whether keys that are grouped with namespaces have those of this state."""
        have = [column.type for column in keys.columns[len(self.layout.key) :]]
        return have == [field.type for field in self.layout.namespace_fields]

    def key_batch(self, keys: Any, namespace: Any = None) -> KeyBatch:
        """Return keys, with namespaces if the state has them, checked and grouped."""
        return self._keys(keys, namespace)

    def grouped(self, key: Sequence[pa.Array], entry: Sequence[pa.Array]) -> KeyBatch:
        """Group checked columns: those of the keys, and those of namespaces, user keys or timestamps."""
        return self._context.group(key, entry)

    def find_unexpired(self, keys: KeyBatch) -> Found:
        """Find the rows of keys in the table; those that have expired count as absent, and are removed."""
        return self._expiry.find(keys)

    def find_unexpired_rows(self, found: Rows) -> Rows:
        """Return these rows of the table; those that have expired count as absent, and are removed."""
        return self._expiry.find_rows(found)

    def hashes_of(self, key: Sequence[pa.Array]) -> Ints:
        """Return the hashes of keys, given as columns that are checked."""
        return self._context.hashes(key)

    def namespaces_of(self, keys: KeyBatch) -> tuple[KeyBatch, Ints]:
        """Return keys with each namespace in which they have a row, and the number of each among the keys given."""
        self._flush()
        found = self._table.find_all(keys)
        numbers = np.concatenate([part for _, part, _ in found]) if found else np.empty(0, dtype=np.int64)
        first = 2 + len(self.layout.key)
        spaces = [gather(found, first + n, field.type) for n, field in enumerate(self.layout.namespace_fields)]
        batch = self._context.group([take(column, numbers) for column in keys.columns], spaces)
        return batch, numbers[batch.order[batch.starts[:-1]]]

    def _current(self, user_key: pa.Array | None = None) -> tuple[Any, KeyBatch]:
        """Return what scalar verbs work on: its identity, equal for equal ones, and the batch of this one key."""
        current = self._context.current
        entry = [] if self.descriptor.namespace is None else list(self._current_namespace()[1])
        if user_key is not None:
            entry.append(user_key)
        identity = (current.identity, tuple(identity_of(column) for column in entry))
        return identity, self._context.current_keys(entry)

    def namespace_columns(self, namespace: Any, rows: int) -> list[pa.Array]:
        """Return one namespace per row, given as columns or as one plain value for all rows."""
        return self._namespace_columns(namespace, rows)

    def _namespace_columns(self, namespace: Any, rows: int) -> list[pa.Array]:
        schema = self.descriptor.namespace
        if schema is None:
            if namespace is not None:
                raise InvalidInputError(f"state {self.descriptor.name!r} has no namespaces, got {namespace!r}")
            return []
        if namespace is None:
            raise InvalidInputError(f"state {self.descriptor.name!r} needs a namespace of {', '.join(schema.names)}")
        namespace = as_arrow(namespace)
        if isinstance(namespace, (pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table)):
            columns = key_columns(namespace, schema)
            if len(columns[0]) != rows:
                raise InvalidInputError(f"{rows} keys need {rows} namespaces, got {len(columns[0])}")
            return [canonical_floats(column) for column in columns]
        values = [namespace] if len(schema) == 1 and not _names_columns(namespace, schema) else namespace
        if isinstance(values, Mapping):
            if set(values) != set(schema.names):
                raise InvalidInputError(
                    f"a namespace has the columns {', '.join(schema.names)}; got {', '.join(values)}"
                )
            values = [values[name] for name in schema.names]
        if not isinstance(values, (tuple, list)) or len(values) != len(schema):
            raise InvalidInputError(f"a namespace has the columns {', '.join(schema.names)}; got {namespace!r}")
        out = []
        for value, field in zip(values, schema, strict=True):
            column = key_columns([value], pa.schema([field]))[0]
            out.append(canonical_floats(column).take(pa.array(np.zeros(rows, dtype=np.int64))))
        return out

    def merge_namespaces_batch(self, keys: Any, targets: Any, sources: Any) -> None:
        """Merge namespaces of keys; kinds of state that cannot refuse.

        Raises
        ------
        InvalidInputError
            Always; the kinds of state that merge namespaces do it in their own way.
        """
        del keys, targets, sources
        raise InvalidInputError(
            f"state {self.descriptor.name!r} is a {self.descriptor.kind} state, whose namespaces do not merge; "
            "list, reducing and aggregating states do"
        )

    def live_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, in the columns of the layout, without those that have expired."""
        for run in self.freeze().runs:
            for batch in run.live_batches():
                fresh = self._expiry.of_batch(batch)
                if fresh.num_rows:
                    yield fresh

    def runs_with_times(self, descriptor: StateDescriptor) -> tuple[Run, ...]:
        """Return the rows in runs as a descriptor with, or without, a time to live has them."""
        now = None if descriptor.ttl is None else self._context.known_time(descriptor.ttl.clock)
        return runs_with_times(self.freeze(), StateLayout.of(self.layout.key, descriptor), now)

    def times_now(self) -> tuple[int | None, int | None]:
        """Return the time that rows written now carry, and the last one that has expired; None what is not known."""
        return self._expiry.time_now(), self._expiry.cutoff()

    def check_time_known(self) -> None:
        """Refuse to write rows that expire by event time where none is known."""
        self._expiry.times(1, None)

    def adopt(self, descriptor: D) -> None:
        """Take another descriptor of the same rows: what was restored knows no default and no callable."""
        self.descriptor = self._expiry.descriptor = descriptor

    def _scalar(self, value: Any, kind: pa.DataType) -> pa.Scalar:
        """Return a plain Python value that is not None as one of the type, or refuse it."""
        try:
            return python_scalar(value, kind)
        except CONVERSION_ERRORS as error:
            raise ValueTypeError(self.descriptor.name, str(kind), shown_misfit(value, kind)) from error

    def _plain(self, scalar: pa.Scalar | None) -> Any:
        return None if scalar is None else plain_value(scalar, f"state {self.descriptor.name!r}")


def _names_columns(namespace: Any, schema: pa.Schema) -> bool:
    """Whether a namespace of one column is given by the name of the column, and is not its value itself."""
    kind = schema.field(0).type
    if not isinstance(namespace, Mapping) or not pa.types.is_struct(kind):
        return isinstance(namespace, Mapping)
    if set(namespace) != set(schema.names):
        return False
    (value,) = namespace.values()
    # A struct may have a field with the name of the column.
    return schema.names[0] not in kind.names or isinstance(value, Mapping)
