"""Rows into a state of a subtask: written, or removed, whatever the kind of state.

An edit sets what is stored: the value of a value state, the accumulator of a reducing or aggregating one, an entry of a
map, an element of a list, a timer. So it works on the table below the state: no reducer is called, no time to live is
looked at, and what is not named stays as it is, bit by bit.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from arrowstate.editing.forms import SEQUENCE, Rows
from arrowstate.errors import InvalidInputError, MissingDependencyError
from arrowstate.schema.aggregates import StoredAggregate
from arrowstate.schema.descriptors import AggregatingStateDescriptor
from arrowstate.state.base import KeyedState
from arrowstate.state.folds.aggregates import aggregate_of
from arrowstate.state.folds.aggregates.sketches import CountDistinctAggregate, QuantilesAggregate
from arrowstate.table import kernels
from arrowstate.table.columns import columns_equal, take
from arrowstate.table.key_batch import KeyBatch
from arrowstate.table.run import Run
from arrowstate.table.table import Table, gather

_PLACES = 1 << 62
"""Elements of a list have places below it, so that others find room behind them."""

Ints = npt.NDArray[np.int64]
Rule = Literal["update", "insert", "upsert"]
"""Whether the rows must be there, must not be there, or may."""


def exchange_rows(state: KeyedState[Any], gone: Rows | None, rows: Rows | None, rule: Rule, now_ms: int | None) -> None:
    """Remove rows, and then write others."""
    if gone is not None:
        remove_rows(state, gone)
    if rows is not None:
        put_rows(state, rows, rule, now_ms)


def put_rows(state: KeyedState[Any], rows: Rows, rule: Rule, now_ms: int | None) -> None:
    """Write rows, each of which replaces the one with its key and entry."""
    if not len(rows):
        return
    if state.layout.is_list:
        _put_elements(state, rows, rule, now_ms)
        return
    keys = state.grouped(rows.key, rows.entry)
    _refuse_twice(state, keys, rows)
    # Nobody sees a row that has expired; one that a statement found may have expired since.
    found = state.find_unexpired(keys) if rule == "insert" else state.table.find(keys)
    there = np.ones(len(keys), dtype=np.bool_)
    there[found.absent] = False
    order = keys.order
    _check_rule(state, rows, rule, there[keys.groups()])
    fields, first = state.layout.value_fields, state.layout.first_value
    columns = []
    for number, field in enumerate(fields, first):
        given = rows.values.get(field.name)
        stays = _stays(rows, field.name, order, there)
        if given is not None and not stays.any():
            columns.append(take(given, order))
            continue
        stored = found.column(number, field.type)
        columns.append(stored if given is None else _chosen(stays, stored, take(given, order)))
    _check_sketches(state, columns)
    if rows.updated_at is not None:
        columns.append(_times(state, take(rows.updated_at, order), now_ms))
    state.table.put(found, keys, columns)


def remove_rows(state: KeyedState[Any], rows: Rows) -> None:
    """Remove rows; one that is not there is passed over."""
    if not len(rows):
        return
    if not state.layout.is_list:
        state.table.remove(state.table.find(state.grouped(rows.key, rows.entry)))
        return
    assert rows.sequence is not None
    for element in _elements(state, rows.key, rows.entry, rows.sequence):
        state.table.kill(element.run, element.rows)


def _check_sketches(state: KeyedState[Any], columns: list[pa.Array]) -> None:
    """Refuse accumulators whose sketch is none, or not that of the numbers beside it."""
    if not isinstance(state.descriptor, AggregatingStateDescriptor):
        return
    if isinstance(state.descriptor.declared, StoredAggregate):
        # Of a class of somebody's own, which has no sketch that is known here.
        return
    names = [field.name for field in state.layout.value_fields]
    try:
        aggregate = aggregate_of(state.descriptor.declared, state.descriptor.type)
    except MissingDependencyError:
        return
    if not isinstance(aggregate, CountDistinctAggregate | QuantilesAggregate):
        return
    try:
        said = aggregate.of_sketches(columns[names.index("sketch")]).flatten()
    except (ValueError, RuntimeError) as error:
        raise InvalidInputError(f"a sketch of {state.descriptor.name!r} is none: {error}") from error
    for name, given, own in zip(names, columns, said, strict=True):
        if name != "sketch" and not columns_equal(given, own).all():
            raise InvalidInputError(
                f"{name!r} of {state.descriptor.name!r} is not what the sketch beside it says; whole rows are copied, "
                "and their parts not changed"
            )


def _stays(rows: Rows, name: str, order: Ints, there: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return for each key whether the stored value of a column stays."""
    kept = rows.kept.get(name)
    if kept is None:
        return np.zeros(order.size, dtype=np.bool_) if name in rows.values else there
    stays: npt.NDArray[np.bool_] = take(kept, order).to_numpy(zero_copy_only=False) & there
    return stays


def _chosen(first: npt.NDArray[np.bool_], yes: pa.Array, no: pa.Array) -> pa.Array:
    """Return for each row the value of one of two columns, of any type."""
    rows = np.arange(first.size, dtype=np.int64)
    return take(pa.concat_arrays([yes, no]), np.where(first, rows, rows + first.size))


def _times(state: KeyedState[Any], given: pa.Array, now_ms: int | None) -> pa.Array:
    if given.null_count and now_ms is None:
        raise InvalidInputError(
            f"state {state.descriptor.name!r} expires by event time, and the checkpoint has no watermark: give each "
            "new row its _updated_at, in milliseconds"
        )
    return given.fill_null(now_ms) if given.null_count else given


def _refuse_twice(state: KeyedState[Any], keys: KeyBatch, rows: Rows) -> None:
    if len(keys) < keys.row_count:
        group = int(np.flatnonzero(np.diff(keys.starts) > 1)[0])
        row = int(keys.order[keys.starts[group]])
        raise InvalidInputError(
            f"two rows have {_shown(state, rows, row)}; a statement may write a row of {state.descriptor.name!r} once"
        )


def _check_rule(state: KeyedState[Any], rows: Rows, rule: Rule, there: npt.NDArray[np.bool_]) -> None:
    if rule == "insert" and there.any():
        row = int(np.flatnonzero(there)[0])
        raise InvalidInputError(
            f"{state.descriptor.name!r} has a row of {_shown(state, rows, row)} already; upsert replaces it"
        )
    if rule == "update" and not there.all():
        row = int(np.flatnonzero(~there)[0])
        raise InvalidInputError(f"{state.descriptor.name!r} has no row of {_shown(state, rows, row)}; upsert makes one")


def _shown(state: KeyedState[Any], rows: Rows, row: int) -> str:
    layout = state.layout
    shown = dict(
        zip([*layout.key.names, *(field.name for field in layout.entry_fields)], [*rows.key, *rows.entry], strict=True)
    )
    if rows.sequence is not None:
        shown[SEQUENCE] = rows.sequence
    return ", ".join(f"{name}={column[row].as_py()!r}" for name, column in shown.items())


class _Found(Struct, frozen=True):
    """Elements of a list in one run."""

    run: Run
    rows: Ints
    given: Ints
    "The row of what was given that each is."


def _elements(state: KeyedState[Any], key: list[pa.Array], entry: list[pa.Array], sequence: pa.Array) -> list[_Found]:
    """Find elements by their key, their namespace and their place."""
    keys = state.grouped(key, entry)
    found = state.table.find_all(keys)
    wanted = sequence.to_numpy(zero_copy_only=False)
    places = [gather([part], 1, pa.int64()).to_numpy() for part in found]
    every, codes = np.unique(np.concatenate([wanted, *places]), return_inverse=True)
    groups = keys.groups() * every.size + codes[: wanted.size]
    order = np.argsort(groups, kind="stable")
    out, start = [], wanted.size
    for (run, numbers, rows), own in zip(found, places, strict=True):
        code = numbers * every.size + codes[start : start + own.size]
        start += own.size
        at = np.searchsorted(groups[order], code)
        hit = (at < order.size) & (groups[order][np.minimum(at, order.size - 1)] == code)
        if hit.any():
            out.append(_Found(run, rows[hit], order[at[hit]]))
    return out


def _put_elements(state: KeyedState[Any], rows: Rows, rule: Rule, now_ms: int | None) -> None:
    """Write elements in their places, and append those that have none, in the order given."""
    assert rows.sequence is not None
    known = np.flatnonzero(rows.sequence.is_valid().to_numpy(zero_copy_only=False))
    places = rows.sequence.drop_null().to_numpy()
    if ((places < 0) | (places >= _PLACES)).any():
        raise InvalidInputError(f"the _seq of an element of {state.descriptor.name!r} is 0 to 2^62 - 1, or null")
    old = rows.take(known)
    assert old.sequence is not None
    there = np.zeros(len(old), dtype=np.bool_)
    found = _elements(state, old.key, old.entry, old.sequence) if len(old) else []
    if rule == "insert":
        unexpired = state.find_unexpired_rows([(part.run, part.given, part.rows) for part in found])
        found = [_Found(run, rows_of_run, given) for run, given, rows_of_run in unexpired]
    for part in found:
        there[part.given] = True
    pairs = state.grouped([*old.key], [*old.entry, old.sequence]) if len(old) else None
    if pairs is not None:
        _refuse_twice(state, pairs, old)
    _check_rule(state, old, rule, there)
    if rule == "update" and known.size < len(rows):
        raise InvalidInputError(f"an element of {state.descriptor.name!r} is updated by its _seq; one row has none")
    table = state.table
    following = max((run.segments.highest_seq for run in table.runs), default=-1) + 1
    replaced = [_replaced(state, part, old, now_ms) for part in found]
    for part in found:
        table.kill(part.run, part.rows)
    for batch in replaced:
        _append(table, batch)
    fresh = np.concatenate([known[~there], np.flatnonzero(rows.sequence.is_null().to_numpy(zero_copy_only=False))])
    if not fresh.size:
        return
    added = rows.take(fresh)
    assert added.sequence is not None
    sequence = added.sequence.fill_null(-1).to_numpy().copy()
    placed = int(np.count_nonzero(~there))
    following = max(following, int(sequence.max(initial=-1)) + 1)
    sequence[placed:] = following + np.arange(fresh.size - placed)
    columns = [*added.key, *added.entry, *(added.values[field.name] for field in state.layout.value_fields)]
    if added.updated_at is not None:
        columns.append(_times(state, added.updated_at, now_ms))
    hashes = pa.array(state.hashes_of(added.key))
    _append(table, pa.RecordBatch.from_arrays([hashes, pa.array(sequence), *columns], schema=state.layout.schema))


def _replaced(state: KeyedState[Any], part: _Found, old: Rows, now_ms: int | None) -> pa.RecordBatch:
    """Return the rows of elements with what is written of them."""
    layout = state.layout
    where = [(part.run, part.rows, part.rows)]
    columns = [gather(where, number, field.type) for number, field in enumerate(layout.schema)]
    for number, field in enumerate(layout.value_fields, layout.first_value):
        given = old.values.get(field.name)
        if given is None:
            continue
        given = take(given, part.given)
        kept = old.kept.get(field.name)
        if kept is not None:
            given = _chosen(take(kept, part.given).to_numpy(zero_copy_only=False), columns[number], given)
        columns[number] = given
    if old.updated_at is not None:
        columns[-1] = _times(state, take(old.updated_at, part.given), now_ms)
    return pa.RecordBatch.from_arrays(columns, schema=layout.schema)


def _append(table: Table, batch: pa.RecordBatch) -> None:
    """Add rows of a list, in the order that a run has."""
    hashes, places = batch.column(0).to_numpy(), batch.column(1).to_numpy()
    by_place = np.argsort(places, kind="stable")
    _, order = kernels.sort_by_hash(hashes[by_place])
    order = by_place[order]
    columns = [take(column, order) for column in batch.columns]
    table.append(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
