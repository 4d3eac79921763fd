"""What differs between any two checkpoints, whatever became of the schema in between: compared with a model in dicts.

The model knows each field by a number of its own, so it tells what a row is in the newer of two schemas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate import SchemaEvolution
from arrowstate.errors import IncompatibleStateError
from arrowstate.query.changes import StateChanges, reader_between
from long_form import short_or_long
from stores import backend_of, commit

EVERY_HASH = (-(1 << 63), (1 << 63) - 1)
TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
MAPS = arrowstate.MapStateDescriptor
VALUES = arrowstate.ValueStateDescriptor


@dataclass(frozen=True)
class Field:
    number: int
    name: str
    width: int
    default: int | None = None


@dataclass(frozen=True)
class Model:
    """A checkpoint: the schema of its state, and its rows by key and what tells the rows of a key apart."""

    version: int
    key: Field
    fields: tuple[Field, ...]
    has_ttl: bool
    rows: dict[tuple[int, Any], dict[int, int | None]]

    def read_as(self, other: Model) -> dict[tuple[int, Any], dict[str, int | None]]:
        return {
            row: {field.name: values.get(field.number, field.default) for field in other.fields}
            for row, values in self.rows.items()
        }

    def follows(self, other: Model) -> bool:
        """Whether its rows can be read in the schema of another."""
        widths = {field.number: field.width for field in (other.key, *other.fields)}
        return all(field.width <= widths.get(field.number, field.width) for field in (self.key, *self.fields))


class History:
    """A store of one state whose schema changes by chance, and the model of each of its checkpoints."""

    def __init__(self, place: Any, kind: str, seed: int, *, branches: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.kind = kind
        self.store = arrowstate.open_store(place, create=True)
        self.numbers = iter(range(1, 1000))
        self.models: dict[int, Model] = {}
        key = Field(next(self.numbers), "k", 2)
        self.now = Model(1, key, (Field(next(self.numbers), "a", 1), Field(next(self.numbers), "b", 1)), False, {})
        self.backends = [arrowstate.KeyedStateBackend(key=self.key_schema(), max_parallelism=8)]
        self.renamed: dict[str, str] = {}
        self.dropped: list[str] = []
        self.defaults: dict[str, int] = {}
        self.went_back = False
        self.branches = branches
        "Whether the schema may change after the store went back, which others have seen go another way."

    def key_schema(self) -> pa.Schema:
        return pa.schema([(self.now.key.name, TYPES[self.now.key.width])])

    def chance(self, part: float) -> bool:
        return bool(self.random.random() < part)

    def evolve(self) -> None:
        """Change the schema by chance, and restore under it."""
        now, fields = self.now, list(self.now.fields)
        self.renamed, self.dropped, self.defaults = {}, [], {}
        renamed_key: dict[str, str] = {}
        if self.chance(0.4):
            number = next(self.numbers)
            default = int(self.random.integers(1, 9)) if self.chance(0.5) else None
            fields.insert(int(self.random.integers(0, len(fields) + 1)), Field(number, f"f{number}", 1, default))
            self.defaults = {} if default is None else {f"f{number}": default}
        if self.chance(0.3):
            place = int(self.random.integers(0, len(fields)))
            fields[place] = replace(fields[place], width=min(3, fields[place].width + 1))
        if self.chance(0.3):
            stored = [field for field in fields if field in now.fields]
            if stored:
                name = f"r{next(self.numbers)}"
                self.renamed = {stored[0].name: name}
                fields[fields.index(stored[0])] = replace(stored[0], name=name)
        if self.chance(0.3) and len(fields) > 2:
            stored = [field for field in fields if field in now.fields]
            if stored:
                self.dropped = [stored[-1].name]
                fields.remove(stored[-1])
        key = now.key
        if self.chance(0.2):
            key = replace(key, name=f"k{next(self.numbers)}")
            renamed_key = {now.key.name: key.name}
        if self.chance(0.15):
            key = replace(key, width=3)
        has_ttl = now.has_ttl != self.chance(0.15)
        changes = (key != now.key) + (tuple(fields) != now.fields)
        self.now = replace(now, key=key, fields=tuple(fields), version=now.version + changes, has_ttl=has_ttl)
        parallelism = int(self.random.integers(1, 3))
        changed = (
            {"key": self.key_schema(), "evolution": SchemaEvolution(renamed=renamed_key)} if key != now.key else {}
        )
        self.backends = [
            self.store.latest().restore("op", parallelism=parallelism, subtask=number, **changed)
            for number in range(parallelism)
        ]

    def descriptor(self) -> Any:
        kind = pa.struct([(field.name, TYPES[field.width]) for field in self.now.fields])
        common = {
            "evolution": SchemaEvolution(renamed=self.renamed, dropped=self.dropped, defaults=self.defaults),
            "ttl": arrowstate.TimeToLive(10**12) if self.now.has_ttl else None,
        }
        if self.kind == "map":
            return MAPS("s", pa.string(), kind, **common)
        return VALUES("s", kind, **common)

    def change_rows(self) -> None:
        states = [backend.state(self.descriptor()) for backend in self.backends]
        rows = {row: self.full(values) for row, values in self.now.rows.items()}
        keys = self.random.choice(30, 6, replace=False).tolist()
        groups = arrowstate.key_groups(pa.array(keys, TYPES[self.now.key.width]), 8).to_pylist()
        for key, group in zip(keys, groups, strict=True):
            state, *_ = [
                state
                for backend, state in zip(self.backends, states, strict=True)
                if backend.key_groups.start <= group <= backend.key_groups.end
            ]
            mine = {row: values for row, values in rows.items() if row[0] == key}
            one = pa.array([key], TYPES[self.now.key.width])
            if mine and self.chance(0.3):
                state.clear_batch(one)
                rows = {row: values for row, values in rows.items() if row[0] != key}
                continue
            value = {field.number: int(self.random.integers(0, 4)) for field in self.now.fields}
            named = [{field.name: value[field.number] for field in self.now.fields}]
            if self.kind == "value":
                state.update_batch(one, named)
                rows[key, None] = value
            else:
                user_key = "xyz"[int(self.random.integers(0, 3))]
                state.put_batch(one, [user_key], named)
                rows[key, user_key] = value
        self.now = replace(self.now, rows=rows)

    def full(self, values: dict[int, int | None]) -> dict[int, int | None]:
        return {field.number: values.get(field.number, field.default) for field in self.now.fields}

    def run(self, checkpoints: int) -> None:
        for number in range(checkpoints):
            if number and self.chance(0.6) and (self.branches or not self.went_back):
                self.evolve()
            self.change_rows()
            with self.store.writer() as writer:
                made = writer.checkpoint({"op": self.backends}).checkpoint_id
            self.models[made] = self.now
            self.renamed, self.dropped, self.defaults = {}, [], {}
            if self.chance(0.3):
                self.store.compact(arrowstate.CompactionPolicy(max_space_amplification=1.01)).apply()
            if len(self.models) > 2 and self.chance(0.15):
                back = int(self.random.choice(list(self.models)))
                self.models[self.store.rollback(back).checkpoint_id] = self.now = self.models[back]
                self.backends = [self.store.latest().restore("op")]
                self.went_back = True


def expected(before: Model, after: Model, newer: Model) -> set[str]:
    old, new = before.read_as(newer), after.read_as(newer)
    found = set()
    for row in old.keys() | new.keys():
        if old.get(row) != new.get(row):
            kinds = ("delete", "update_preimage")[row in new], ("insert", "update_postimage")[row in old]
            found |= {repr((kinds[0], row, old[row]))} if row in old else set()
            found |= {repr((kinds[1], row, new[row]))} if row in new else set()
    return found


def told(rows: list[dict[str, Any]], kind: str, newer: Model) -> set[str]:
    beside = "s_key" if kind == "map" else None
    return {
        repr(
            (
                row["_change_type"],
                (row[newer.key.name], None if beside is None else row[beside]),
                {field.name: row[field.name] for field in newer.fields},
            )
        )
        for row in rows
    }


@pytest.mark.parametrize("kind", ["value", "map"])
@pytest.mark.parametrize("seed", range(short_or_long(2, 100)))
def test_the_changes_between_any_two_checkpoints_are_those_of_the_rows_in_the_newer_schema(
    tmp_path: Any, kind: str, seed: int
) -> None:
    history = History(tmp_path / "store", kind, seed)
    history.run(8)
    store, models = history.store, history.models
    seen = 0

    for first, last in combinations(sorted(models), 2):
        before, after = models[first], models[last]
        newer = before if before.version > after.version else after
        entries = store.snapshot(first).entry, store.snapshot(last).entry
        reader = reader_between(store.storage, *entries, "op.s")
        if not (before.follows(newer) and after.follows(newer)):
            with pytest.raises(IncompatibleStateError):
                StateChanges(store.storage, reader, *entries)
            continue
        changes = StateChanges(store.storage, reader, *entries)
        rows = [row for batch in changes.batches(reader.columns, EVERY_HASH) for row in batch.to_pylist()]
        wanted = expected(before, after, newer)
        assert told(rows, kind, newer) == wanted, (first, last)
        assert len(rows) == len(wanted)
        found = store.diff(first, last).states[0]
        assert found.inserted + 2 * found.updated + found.deleted == len(rows)
        seen += 1
    assert seen > 5


@pytest.mark.parametrize("kind", ["value", "map"])
@pytest.mark.parametrize("seed", range(short_or_long(3, 300)))
def test_no_field_is_taken_for_another_where_the_schema_went_another_way_after_a_rollback(
    tmp_path: Any, kind: str, seed: int
) -> None:
    history = History(tmp_path / "store", kind, seed, branches=True)
    history.run(12)
    store, models = history.store, history.models

    for first, last in combinations(sorted(models), 2):
        entries = store.snapshot(first).entry, store.snapshot(last).entry
        reader = reader_between(store.storage, *entries, "op.s")
        try:
            changes = StateChanges(store.storage, reader, *entries)
        except IncompatibleStateError:
            # Of two schemas that went different ways neither need be one that the rows of the other can have.
            continue
        newer = models[reader.entry.checkpoint_id]
        sides = [models[number].read_as(newer) for number in (first, last)]
        for row in (row for batch in changes.batches(reader.columns, EVERY_HASH) for row in batch.to_pylist()):
            side = sides[row["_change_type"] in ("insert", "update_postimage")]
            values = side[row[newer.key.name], row["s_key"] if kind == "map" else None]
            # Where neither side knows a common version any more, a field that was renamed is one that was not there.
            for field in newer.fields:
                assert row[field.name] in (values[field.name], field.default), (first, last, field, row, values)


@pytest.mark.parametrize("goes_back", ["rollback", "edit"])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_field_that_is_added_after_going_back_gets_an_id_that_was_never_given(
    tmp_path: Any, goes_back: str, dropped: bool
) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)

    def write(names: list[str], keys: range) -> arrowstate.Snapshot:
        backend = store.latest().restore("op") if store.checkpoints() else backend_of()
        backend.state(VALUES("s", pa.struct([(name, pa.int64()) for name in names]))).update_batch(
            list(keys), [dict.fromkeys(names, 7)] * len(keys)
        )
        return commit(store, {"op": [backend]})

    write(["a"], range(3))
    seen = write(["a", "b"], range(3))
    if dropped:
        with store.edit() as edit:
            edit.drop_state("op", "s")
            edit.commit()
    if goes_back == "rollback":
        store.rollback(1)
    else:
        with store.edit(1) as edit:
            edit.delete("op.s", where="k = 2")
            edit.commit()
    write(["a", "c"], range(3))
    newest = write(["a", "c", "d"], range(3))

    ids = [{field.name: field.id for field in it.entry.operators[0].states[0].columns} for it in (seen, newest)]
    assert newest.entry.operators[0].states[0].earlier_schemas == []
    assert not {ids[0]["b"]} & {ids[1]["c"], ids[1]["d"]}
    changed = newest.changes("op.s", since=seen.checkpoint_id).to_pylist()
    assert [(row["c"], row["d"]) for row in changed if row["_change_type"] == "update_preimage"] == [(None, None)] * 3


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_a_history_over_a_rollback_has_the_wider_types_while_checkpoints_have_them(tmp_path: Any, kind: str) -> None:
    store = arrowstate.open_store(tmp_path / "store", create=True)

    def write(type: pa.DataType, number: int) -> arrowstate.Snapshot:
        backend = store.latest().restore("op") if store.checkpoints() else backend_of()
        if kind == "map":
            backend.state(arrowstate.MapStateDescriptor("s", pa.string(), type)).put_batch([1], ["x"], [number])
        elif kind == "list":
            backend.state(arrowstate.ListStateDescriptor("s", type)).update_batch([1], [[number]])
        else:
            backend.state(arrowstate.ValueStateDescriptor("s", type)).update_batch([1], [number])
        return commit(store, {"op": [backend]})

    write(pa.int8(), 1)
    write(pa.int16(), 1000)
    store.rollback(1)
    latest = write(pa.int8(), 2)

    found = latest.history("op.s", [1])
    by_sql = latest.sql("select _checkpoint_id, s from arrowstate.history('op.s', 1)").fetchall()

    assert found.schema.field("s").type == pa.int16()
    rows = list(zip(found["_checkpoint_id"].to_pylist(), found["s"].to_pylist(), strict=True))
    assert sorted(rows) == [(1, 1), (2, 1), (2, 1000), (3, 1), (3, 1000), (4, 1), (4, 2)]
    assert sorted(by_sql) == sorted(rows)
    assert store.snapshot(1).history("op.s", [1]).schema.field("s").type == pa.int16()
    for tag in store.tags():
        store.untag(tag)
    store.collect(arrowstate.RetentionPolicy(count=2)).apply()
    assert latest.history("op.s", [1]).schema.field("s").type == pa.int8()
