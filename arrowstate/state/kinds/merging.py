"""Namespaces that become one: which of which keys go where, and the verbs that list, reducing and aggregating share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from arrowstate.errors import InvalidInputError
from arrowstate.schema.descriptors import AggregatingStateDescriptor, ListStateDescriptor, ReducingStateDescriptor
from arrowstate.state.base import KeyedState
from arrowstate.state.transaction import atomic
from arrowstate.table.columns import take
from arrowstate.table.key_batch import KeyBatch

Ints = npt.NDArray[np.int64]
D = TypeVar("D", bound=ListStateDescriptor | ReducingStateDescriptor | AggregatingStateDescriptor)


class MergePlan(Struct, frozen=True):
    """Which namespaces of which keys are merged into which others."""

    sources: KeyBatch
    "Distinct keys and namespaces; none is a target."
    targets: KeyBatch
    target_of: Ints
    "The number of the target of each source."
    first_rows: Ints
    "The row of the batch in which each source comes first."


class MergingState(KeyedState[D]):
    """A state whose namespaces can be merged."""

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Merge namespaces of the current key into the namespace `target`, in the order given.

        The sources are empty afterwards. A source without values is skipped, and so is one equal to the target.
        """
        given = list(sources)
        if self.descriptor.namespace is None:
            raise InvalidInputError(f"state {self.descriptor.name!r} has no namespaces to merge")
        current = self._context.current.columns
        rows = pa.array(np.zeros(len(given), dtype=np.int64))
        keys = pa.RecordBatch.from_arrays([column.take(rows) for column in current], schema=self.layout.key)
        parts = [self._namespace_columns(source, 1) for source in given]
        into = self._namespace_columns(target, 1)
        if not given:
            return
        schema = self.descriptor.namespace
        columns = [pa.concat_arrays(column) for column in zip(*parts, strict=True)]
        self.merge_namespaces_batch(
            keys,
            pa.RecordBatch.from_arrays([column.take(rows) for column in into], schema=schema),
            pa.RecordBatch.from_arrays(columns, schema=schema),
        )

    @atomic
    def merge_namespaces_batch(self, keys: Any, targets: Any, sources: Any) -> None:
        """Merge each source namespace into its target namespace, in the order of the rows.

        Elements are appended to the list, values are folded, and accumulators are merged. If the state has a time to
        live, the merged value has the latest time of the values that went into it.

        Parameters
        ----------
        keys
            One key per row, without nulls: an Array for one key column, else a RecordBatch or StructArray with the key
            schema. A key occurs once for each of its sources.
        targets, sources
            One namespace per row as columns, or one plain value for all rows.

        Raises
        ------
        KeyTypeError, NullKeyError, KeyOutOfRangeError, InvalidInputError
            If a key or namespace does not fit, or if a namespace of a key has two targets or is both a source and a
            target. The state is unchanged then.
        ValueOverflowError
            If a sum does not fit its type. The state is unchanged then.
        """
        self._flush()
        plan = self._merge_plan(keys, targets, sources)
        if len(plan.sources):
            self._expiry.settle()
            self._merge(plan)

    def _merge(self, plan: MergePlan) -> None:
        raise NotImplementedError  # Abstract: each kind moves what its namespaces hold in its own way.

    def _merge_plan(self, keys: Any, targets: Any, sources: Any) -> MergePlan:
        """Return which namespace of which key goes where, after checking that it can."""
        columns = self._context.columns(keys)
        rows = len(columns[0])
        # A reader can be read once.
        to, given = self._merged_namespaces(targets, rows), self._merged_namespaces(sources, rows)
        into, away = self._context.group(columns, to), self._context.group(columns, given)
        both = [pa.concat_arrays(pair) for pair in zip(into.columns, away.columns, strict=True)]
        count = len(self.layout.key)
        one = self._context.group(both[:count], both[count:])
        # The number of each target and source in one numbering.
        number = one.groups()
        targets_of_rows, sources_of_rows = number[: len(into)][into.groups()], number[len(into) :][away.groups()]
        moved = np.flatnonzero(targets_of_rows != sources_of_rows)
        pairs = np.unique(np.stack([sources_of_rows[moved], targets_of_rows[moved]]), axis=1)
        if np.unique(pairs[0]).size < pairs.shape[1] or np.isin(pairs[0], pairs[1]).any():
            raise InvalidInputError(
                f"state {self.descriptor.name!r}: a namespace of a key can be merged into one other, which is no "
                "source itself; merge in several calls"
            )
        # A row whose source is its target is skipped: that namespace may be the source of another row.
        keys, to, given = ([take(column, moved) for column in part] for part in (columns, to, given))
        chosen, into = self._context.group(keys, given), self._context.group(keys, to)
        first = chosen.order[chosen.starts[:-1]]
        return MergePlan(chosen, into, into.groups()[first], moved[first])

    def _merged_namespaces(self, namespaces: Any, rows: int) -> list[pa.Array]:
        if self.descriptor.namespace is None:
            raise InvalidInputError(f"state {self.descriptor.name!r} has no namespaces to merge")
        return self._namespace_columns(namespaces, rows)
