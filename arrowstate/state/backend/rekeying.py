"""Rows under a new key: hashed again, cut to a subtask, and merged where keys became equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.errors import IncompatibleStateError, InvalidInputError
from arrowstate.schema.aggregates import StoredAggregate
from arrowstate.schema.descriptors import (
    REDUCERS,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    TimerStateDescriptor,
    ValueStateDescriptor,
)
from arrowstate.schema.layout import StateLayout, descriptor_of
from arrowstate.schema.versions import RunSchemas
from arrowstate.state.folds.aggregates import aggregate_of
from arrowstate.state.folds.reducers import reduce_by_callable, reduce_column
from arrowstate.table import pair_kernels
from arrowstate.table.columns import canonical_floats, take
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.run import Run
from arrowstate_formats.key_hash import hash_columns
from arrowstate_formats.schema_documents import FieldDocument, StateDocument

ALL_HASHES = (-(1 << 63), (1 << 63) - 1)

Ints = npt.NDArray[np.int64]

_ORDERED = ("first", "last", "count")


def moves_keys(before: Sequence[FieldDocument], after: Sequence[FieldDocument]) -> bool:
    """Whether keys have other hashes after the change; names alone do not matter."""
    return [(item.id, item.type) for item in before] != [(item.id, item.type) for item in after]


MergeRule = str | Callable[[Any, Any], Any]


def check_merge_rules(merge: Mapping[str, MergeRule], states: Sequence[StateDocument]) -> None:
    """Refuse a rule for a state that is not there, or that the kind of state has no use for."""
    by_name = {state.name: state for state in states}
    for name, rule in merge.items():
        if name not in by_name:
            raise InvalidInputError(f"merge names the state {name!r}; there are {', '.join(by_name) or 'none'}")
        descriptor = descriptor_of(by_name[name])
        allowed = _rules(descriptor)
        if rule not in allowed and not (callable(rule) and _takes_callable(descriptor)):
            raise InvalidInputError(
                f"state {name!r}: rows of keys that become equal are merged by {' or '.join(allowed) or 'no rule'}, "
                f"got {rule!r}"
            )


def rekeyed(
    before: RunSchemas,
    schemas: RunSchemas,
    runs: Sequence[Run],
    bounds: tuple[int, int],
    rule: MergeRule | None,
    expired: int | None,
) -> tuple[Run, ...]:
    """Return the live rows of the runs under their new keys and the hashes of these."""
    layout = schemas.layout
    descriptor = descriptor_of(schemas.document)
    _, convert = schemas.of_version(before.document.schema_version)
    assert convert is not None, "another key is another version"
    batches, old = [], []
    for run in runs:
        for batch in run.freeze().live_batches():
            inside, moved = _own(convert(batch), layout, bounds, expired)
            if inside.size:
                batches.append(moved)
                if layout.is_list and rule is None:
                    old.append(batch.select(_old_keys(before.layout)).take(pa.array(inside)))
    if not batches:
        return ()
    rows = pa.concat_batches(batches)
    first = layout.first_value
    start = 1 + (layout.second is not None)
    key = rows.columns[start : start + len(layout.key)]
    entry = rows.columns[start + len(layout.key) : first]
    seconds = hash_columns(entry) if entry else None
    keys = KeyBatch.of(rows.column(0).to_numpy(), [*key, *entry], seconds=seconds)
    if layout.is_list:
        if old and _meet(pa.concat_batches(old), keys):
            raise _refused(descriptor)
        return (Run.of([_list_rows(rows)]),)
    values = [take(column, keys.order) for column in rows.columns[first:]]
    kept = None
    if len(keys) < rows.num_rows:
        values, kept = _merged(descriptor, layout, keys, values, rule)
    sort_columns = [pa.array(keys.hashes), *([] if keys.seconds is None else [pa.array(keys.seconds)])]
    moved = pa.RecordBatch.from_arrays([*sort_columns, *keys.columns, *values], schema=rows.schema)
    if kept is not None:
        moved = moved.filter(kept)
    return (Run.of([moved]),) if moved.num_rows else ()


def _own(
    batch: pa.RecordBatch, layout: StateLayout, bounds: tuple[int, int], expired: int | None
) -> tuple[Ints, pa.RecordBatch]:
    """Return which rows have not expired and have a new hash in the bounds, and these rows with it."""
    start = 1 + (layout.second is not None)
    columns = list(batch.columns)
    for number in range(start, start + len(layout.key)):
        columns[number] = canonical_floats(columns[number])
    hashes = hash_columns(columns[start : start + len(layout.key)])
    columns[0] = pa.array(hashes)
    own = (hashes >= bounds[0]) & (hashes <= bounds[1])
    if expired is not None:
        own &= columns[-1].to_numpy() > expired
    inside = np.flatnonzero(own)
    return inside, pa.RecordBatch.from_arrays(columns, schema=batch.schema).take(pa.array(inside))


def _list_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the elements under their new keys; those of one old key keep their order."""
    # Numbers of different subtasks may be equal, and a key may have elements of both now.
    order = np.argsort(rows.column(1).to_numpy(), kind="stable")
    seconds = np.empty(order.size, dtype=np.int64)
    seconds[order] = np.arange(order.size)
    sorted_rows = rows.set_column(1, rows.schema.field(1), pa.array(seconds))
    return sorted_rows.take(pa.array(pair_kernels.sort_by_pair(rows.column(0).to_numpy(), seconds)))


def _old_keys(layout: StateLayout) -> list[int]:
    """Return the numbers of the columns of the hash and the key."""
    first = 1 + (layout.second is not None)
    return [0, *range(first, first + len(layout.key))]


def _meet(old: pa.RecordBatch, keys: KeyBatch) -> bool:
    """Whether rows of different old keys have one new key."""
    hashes, *columns = old.columns
    grouped = KeyBatch.of(hashes.to_numpy(), columns).groups()[keys.order]
    same = grouped[1:] == grouped[:-1]
    # The first row of a group may differ from the last of the one before.
    same[keys.starts[1:-1] - 1] = True
    return not bool(same.all())


def _merged(
    descriptor: StateDescriptor, layout: StateLayout, keys: KeyBatch, values: list[pa.Array], rule: MergeRule | None
) -> tuple[list[pa.Array], pa.BooleanArray | None]:
    """Return one row of values per key, and which rows stay (None: all); the rows of a key are given side by side."""
    if isinstance(descriptor, TimerStateDescriptor):
        return values, None
    if rule is None:
        raise _refused(descriptor)
    fields = layout.value_fields
    kept: pa.BooleanArray | None = None
    begins = keys.starts[:-1]
    if isinstance(descriptor, AggregatingStateDescriptor):
        accumulators = layout.join(values[: len(fields)], np.empty(0, dtype=np.int64))
        out = layout.split(_merged_accumulators(descriptor, accumulators, keys.starts))
    elif not isinstance(rule, str):
        joined = layout.join(values[: len(fields)], np.empty(0, dtype=np.int64))
        absent = pa.nulls(len(keys), joined.type)
        order = np.arange(keys.row_count, dtype=np.int64)
        merged, anew = reduce_by_callable(rule, joined, order, keys.starts, absent, descriptor.name)
        if not isinstance(descriptor, MapStateDescriptor):
            # A value of None is no value; an entry of a map may be null.
            kept = merged.is_valid()
        out = layout.split(merged)
        # What comes after a None starts anew, in time too. Where nothing does, the row goes.
        begins = begins.copy()
        begins[list(anew)] = [min(place, keys.starts[group + 1] - 1) for group, place in anew.items()]
    else:
        order = np.arange(keys.row_count, dtype=np.int64)
        out = [
            reduce_column(
                reducer, column, order, keys.starts, pa.nulls(len(keys), field.type), field.type, descriptor.name
            )
            for reducer, column, field in zip(_reducers(descriptor, rule), values, fields, strict=False)
        ]
    if layout.has_ttl:
        pieces = np.stack([begins, keys.starts[1:]], axis=1).ravel()
        # reduceat takes what is between a pair of borders at each even place; the last border is the end.
        out.append(pa.array(np.maximum.reduceat(values[-1].to_numpy(), pieces[:-1])[::2]))
    return out, kept


def _merged_accumulators(
    descriptor: AggregatingStateDescriptor, accumulators: pa.StructArray, starts: Ints
) -> pa.StructArray:
    aggregate = aggregate_of(descriptor.declared, descriptor.type)
    sizes = np.diff(starts)
    merged = accumulators.take(pa.array(starts[:-1]))
    # The second row of every key that has one, then the third, and so on.
    for turn in range(1, int(sizes.max())):
        groups = np.flatnonzero(sizes > turn)
        others = accumulators.take(pa.array(starts[groups] + turn))
        both = pa.concat_arrays([merged, aggregate.merge(merged.take(pa.array(groups)), others)])
        rows = np.arange(sizes.size, dtype=np.int64)
        rows[groups] = sizes.size + np.arange(groups.size)
        merged = both.take(pa.array(rows))
    return merged


def _reducers(descriptor: StateDescriptor, rule: str) -> list[str]:
    """Return the reducer of each value column."""
    own = descriptor.reduce if isinstance(descriptor, ReducingStateDescriptor) else None
    if rule != "merge":
        return [rule] * (descriptor.type.num_fields if pa.types.is_struct(descriptor.type) else 1)
    each = list(own.values()) if isinstance(own, Mapping) else [own]
    # What was counted apart is counted together by adding.
    return ["sum" if reducer == "count" else str(reducer) for reducer in each]


def _rules(descriptor: StateDescriptor) -> list[str]:
    """Return the rules that a state may have: those that need no order, which rows of different keys have not."""
    if isinstance(descriptor, ListStateDescriptor):
        return ["merge"]
    if isinstance(descriptor, AggregatingStateDescriptor):
        return [] if isinstance(descriptor.declared, StoredAggregate) else ["merge"]
    if isinstance(descriptor, TimerStateDescriptor):
        return []
    kinds = [item.type for item in descriptor.type] if pa.types.is_struct(descriptor.type) else [descriptor.type]
    rules = [name for name in REDUCERS if name not in _ORDERED and all(_reduces(name, kind) for kind in kinds)]
    if isinstance(descriptor, ReducingStateDescriptor) and descriptor.callable_name is None:
        own = descriptor.reduce.values() if isinstance(descriptor.reduce, Mapping) else [descriptor.reduce]
        if not {"first", "last"}.intersection(map(str, own)):
            rules.insert(0, "merge")
    return rules


def _takes_callable(descriptor: StateDescriptor) -> bool:
    return isinstance(descriptor, (ValueStateDescriptor, MapStateDescriptor, ReducingStateDescriptor))


def _reduces(reducer: str, kind: pa.DataType) -> bool:
    """Whether a reducer takes values of a type."""
    try:
        ReducingStateDescriptor("state", kind, reduce=reducer)
    except InvalidInputError:
        return False
    return True


def _refused(descriptor: StateDescriptor) -> IncompatibleStateError:
    rules = _rules(descriptor)
    if rules:
        remedy = f"say SchemaEvolution(merge={{{descriptor.name!r}: {rules[0]!r}}})"
        remedy += f", or one of {', '.join(rules[1:])}" if rules[1:] else ""
    elif _takes_callable(descriptor):
        remedy = f"say SchemaEvolution(merge={{{descriptor.name!r}: a callable of two values}})"
    else:
        remedy = "there is no rule that could merge its rows: keep the columns that tell these keys apart"
    return IncompatibleStateError(
        descriptor.name, "rows of different keys that become equal", "one row per key, with no rule to merge", remedy
    )
