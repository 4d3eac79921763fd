"""Random types and random changes of them, against plain Python: one conversion, and many through a store."""

import datetime
import itertools
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrowstate
from arrowstate.schema.conversion import Conversion, converter
from arrowstate.schema.evolution import evolve, widens
from arrowstate.schema.fields import documents_of, fields_of, fresh_field
from arrowstate.storage import clear_memory_storage
from early_versions import HALVES, NARROW_DECIMALS
from stores import backend_of, commit

INTEGERS = [getattr(pa, f"{sign}int{bits}")() for bits in (8, 16, 32, 64) for sign in ("", "u")]
FLOATS = [*HALVES, pa.float32(), pa.float64()]
DECIMALS = [*NARROW_DECIMALS, pa.decimal128(6, 3), pa.decimal128(20, 4), pa.decimal256(40, 4)]
TIMES = [pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns")]
TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(2)]
FLAT = [*INTEGERS, *FLOATS, *DECIMALS, *TIMES, *TEXTS, pa.bool_()]
NAMES = "abcdef"


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type without a null at the top."""
    types = pa.types
    if types.is_struct(kind):
        return st.fixed_dictionaries({item.name: _maybe(item.type, item.nullable) for item in kind})
    if types.is_map(kind):
        keys = values_of(kind.key_type)
        return st.lists(st.tuples(keys, _maybe(kind.item_type)), max_size=3)
    if types.is_fixed_size_list(kind):
        return st.lists(_maybe(kind.value_type), min_size=kind.list_size, max_size=kind.list_size)
    if types.is_nested(kind):
        return st.lists(_maybe(kind.value_type), max_size=3)
    if types.is_integer(kind):
        low = 0 if types.is_unsigned_integer(kind) else -(1 << kind.bit_width - 1)
        high = low + (1 << kind.bit_width) - 1
        return st.sampled_from([low, high]) | st.integers(low, high)
    if types.is_decimal(kind):
        digits = 10 ** min(kind.precision, 12)
        return st.integers(1 - digits, digits - 1).map(lambda number: Decimal(number).scaleb(-kind.scale))
    if types.is_date(kind):
        return st.dates()
    if types.is_timestamp(kind):
        seconds = st.integers(-9_000_000_000, 9_000_000_000)
        start = datetime.datetime.fromisoformat("1970-01-01")
        return seconds.map(lambda number: start + datetime.timedelta(seconds=number))
    if types.is_string(kind) or types.is_large_string(kind):
        return st.text("ab\0ü", max_size=3)
    if types.is_fixed_size_binary(kind):
        return st.binary(min_size=2, max_size=2)
    if types.is_boolean(kind):
        return st.booleans()
    return st.binary(max_size=3) if not types.is_floating(kind) else st.sampled_from([0.0, -1.5, 2.0**10, float("inf")])


def _maybe(kind: pa.DataType, nullable: bool = True) -> st.SearchStrategy[Any]:
    return st.none() | values_of(kind) if nullable else values_of(kind)


@st.composite
def types(draw: st.DrawFn, depth: int = 3) -> pa.DataType:
    shape = draw(st.sampled_from(["flat", "flat", "struct", "struct", "list", "large_list", "pair", "map"]))
    if shape == "flat" or not depth:
        return draw(st.sampled_from(FLAT))
    inner = types(depth=depth - 1)
    if shape == "struct":
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        return pa.struct([_field(draw, name, draw(inner)) for name in names])
    if shape == "map":
        return pa.map_(draw(st.sampled_from(FLAT)), draw(inner))
    element = draw(inner)
    if shape == "pair" and pa.types.is_fixed_size_list(element):
        shape = "list"
    return {"list": pa.list_, "large_list": pa.large_list, "pair": lambda kind: pa.list_(kind, 2)}[shape](element)


def _field(draw: st.DrawFn, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=draw(st.booleans()))


class Change:
    """A random change of a type: what the type is then, the hints for it, and what becomes of a plain value."""

    def __init__(self, draw: st.DrawFn, kind: pa.DataType) -> None:
        self._draw = draw
        self.renamed: dict[str, str] = {}
        self.defaults: dict[str, Any] = {}
        self.dropped: list[str] = []
        self.takes_names = False
        self.type, self.convert = self._changed(kind, "", "")

    @property
    def evolution(self) -> arrowstate.SchemaEvolution:
        return arrowstate.SchemaEvolution(self.renamed, self.defaults, self.dropped)

    def _changed(self, kind: pa.DataType, old: str, new: str) -> tuple[pa.DataType, Any]:
        if pa.types.is_struct(kind):
            return self._changed_struct(kind, old, new)
        if pa.types.is_map(kind):
            keys, key = self._changed(kind.key_type, f"{old}key", f"{new}key")
            items, item = self._changed(kind.item_type, f"{old}value.", f"{new}value.")
            return pa.map_(keys, items), _through(lambda rows: [(key(k), item(v)) for k, v in rows])
        if pa.types.is_nested(kind):
            inner, element = self._changed(kind.value_type, f"{old}element.", f"{new}element.")
            wider = [pa.large_list] if pa.types.is_large_list(kind) else [pa.list_, pa.large_list]
            make: Any = self._draw(st.sampled_from(wider))
            changed = pa.list_(inner, kind.list_size) if pa.types.is_fixed_size_list(kind) else make(inner)
            return changed, _through(lambda rows: [element(row) for row in rows])
        wide = self._draw(st.sampled_from([kind, *(other for other in FLAT if widens(kind, other))]))
        if pa.types.is_date(kind) and pa.types.is_timestamp(wide):
            return wide, _through(lambda day: datetime.datetime.combine(day, datetime.time()))
        return wide, lambda value: value

    def _changed_struct(self, kind: pa.StructType, old: str, new: str) -> tuple[pa.DataType, Any]:
        free = [name for name in NAMES if name not in {item.name for item in kind}]
        fields: list[pa.Field] = []
        sources: dict[str, Any] = {}
        for item in kind:
            fate = self._draw(st.sampled_from(["stay", "stay", "rename", "drop"]))
            if fate == "drop":
                self.dropped.append(old + item.name)
                continue
            name = item.name
            if fate == "rename" and free:
                name = free.pop(0)
                self.renamed[old + item.name] = name
            changed, convert = self._changed(item.type, f"{old}{item.name}.", f"{new}{name}.")
            fields.append(pa.field(name, changed, nullable=item.nullable or self._draw(st.booleans())))
            sources[name] = (item.name, convert)
        moved = [item.name for item in kind if item.name in _last(self.renamed, old)]
        for name in [*free[:1], *moved][: self._draw(st.integers(0, 2)) or not fields]:
            self.takes_names |= name in moved
            added = self._draw(types(depth=1))
            default = self._draw(_maybe(added))
            if default is not None:
                self.defaults[new + name] = default
            fields.append(pa.field(name, added, nullable=default is None or self._draw(st.booleans())))
            sources[name] = (None, default)
        order = self._draw(st.permutations(fields))

        def convert_row(row: dict[str, Any]) -> dict[str, Any]:
            return {
                item.name: sources[item.name][1]
                if sources[item.name][0] is None
                else sources[item.name][1](row[sources[item.name][0]])
                for item in order
            }

        return pa.struct(order), _through(convert_row)


def _last(paths: Any, prefix: str) -> set[str]:
    return {path[len(prefix) :] for path in paths if path.startswith(prefix) and "." not in path[len(prefix) :]}


def _through(convert: Any) -> Any:
    return lambda value: None if value is None else convert(value)


@st.composite
def changed_values(draw: st.DrawFn) -> tuple[pa.DataType, Change, list[Any]]:
    kind = draw(types())
    return kind, Change(draw, kind), draw(st.lists(_maybe(kind), max_size=5))


@given(changed_values(), st.integers(0, 3), st.integers(0, 3))
@settings(max_examples=400)
def test_conversion_is_what_plain_python_makes_of_each_value(case, front, back):
    kind, change, values = case
    ids = itertools.count(1)
    stored = fresh_field(pa.field("v", kind), ids)
    array = pa.array(values, kind)
    array = array.slice(front, max(0, len(values) - front - back))

    current = evolve(stored, change.type, change.evolution, ids, what="state")
    found = converter(stored, current)(array)

    found.validate(full=True)
    assert found.type == change.type
    assert (
        found.to_pylist() == pa.array([change.convert(value) for value in array.to_pylist()], change.type).to_pylist()
    )
    # The same through what a log entry keeps, and through a batch whose other column is new.
    kept_stored, kept = (fields_of(documents_of([item]), itertools.count()) for item in (stored, current))
    assert (kept_stored, kept) == ((stored,), (current,))
    schemas = [pa.schema([("h", pa.int64()), ("v", kind)]), pa.schema([("h", pa.int64()), ("v", change.type)])]
    conversion = Conversion.of(schemas[0], kept_stored, schemas[1], kept)
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(array))), array], schema=schemas[0])
    assert conversion(batch).column("v").equals(found)
    assert conversion.pick(batch, ["v"]).column("v").equals(found)
    assert (conversion.sources_of(["v"]), conversion.same_as("h")) == (["v"], "h")
    assert conversion.same_as("v") is None or (found is array or found.equals(array))
    # Hints that were applied already mean nothing, unless a new field has the name that one of them speaks of.
    assert change.takes_names or evolve(current, change.type, change.evolution, ids, what="state") == current


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[pa.DataType, arrowstate.SchemaEvolution | None, Any, dict[int, Any]]]:
    """Types that follow each other, with what becomes of stored values and the values written under each."""
    kind = draw(types())
    steps = [(kind, None, None, draw(_rows(kind)))]
    for _ in range(draw(st.integers(1, 4))):
        change = Change(draw, kind)
        kind = change.type
        steps.append((kind, change.evolution, change.convert, draw(_rows(kind))))
    return steps


def _rows(kind: pa.DataType) -> st.SearchStrategy[dict[int, Any]]:
    return st.dictionaries(st.integers(0, 5), values_of(kind), max_size=4)


@given(histories(), st.sampled_from(["value", "list", "map"]), st.data())
@settings(max_examples=60)
def test_a_history_of_schemas_equals_a_dict(history, kind, data):
    url = f"memory://{uuid.uuid4().hex}"
    store = arrowstate.open_store(url, create=True)
    policy = data.draw(st.sampled_from([None, arrowstate.MergePolicy(fan_in=2, first_tier_rows=2, segment_bytes=1)]))
    backend = backend_of(pa.schema([("id_", pa.int64())]), merge_policy=policy)
    model: dict[int, list[Any]] = {}
    make: Any = {
        "value": arrowstate.ValueStateDescriptor,
        "list": arrowstate.ListStateDescriptor,
        "map": lambda name, of, **more: arrowstate.MapStateDescriptor(name, pa.int8(), of, **more),
    }[kind]

    try:
        for type, evolution, convert, rows in history:
            if convert is not None:
                # As Arrow gives it back, with the digits of its type.
                converted = {key: [convert(value) for value in values] for key, values in model.items()}
                model = {key: pa.array(values, type).to_pylist() for key, values in converted.items()}
                backend = store.latest().restore(
                    "op",
                    max_parallelism=data.draw(st.sampled_from([1, 128, 32768])),
                    memory_budget_bytes=data.draw(st.sampled_from([None, 0])),
                )
            state = backend.state(make("s", type, evolution=evolution))
            keys = pa.array(rows, pa.int64())
            given = pa.array(list(rows.values()), type)
            for key, value in zip(rows, given.to_pylist(), strict=True):
                model[key] = [*(model.get(key, []) if kind == "list" else []), value]
            if kind == "list":
                state.add_batch(keys, given)
            elif kind == "map":
                state.put_batch(keys, [1] * len(rows), given)
            else:
                state.update_batch(keys, given)
            assert _read(state, kind) == model
            run_format = data.draw(st.sampled_from(["arrow", "parquet", "lance"]))
            snapshot = commit(store, {"op": [backend]}, format=run_format)
            table = snapshot.to_arrow("op.s").to_pylist()
            names = [item.name for item in type] if pa.types.is_struct(type) else ["s"]
            found = sorted((row["id_"], [row[name] for name in names]) for row in table if kind != "list")
            shown = {
                key: [value[name] for name in names] if pa.types.is_struct(type) else [value]
                for key, values in model.items()
                for value in values
            }
            assert kind == "list" or dict(found) == shown
            assert len(table) == sum(map(len, model.values()))
    finally:
        clear_memory_storage(url)


def _read(state: Any, kind: str) -> dict[int, list[Any]]:
    keys = pa.array(range(6))
    if kind == "list":
        found = state.get_batch(keys).to_pylist()
        return {key: values for key, values in enumerate(found) if values}
    values = (state.get_batch(keys, [1] * 6) if kind == "map" else state.get_batch(keys)).to_pylist()
    return {key: [value] for key, value in enumerate(values) if value is not None}


@pytest.mark.parametrize("stored", FLAT, ids=str)
def test_a_type_widens_to_no_type_that_changes_one_of_its_values(stored):
    for declared in filter(lambda other: other != stored and widens(stored, other), FLAT):
        low, high = _ends(stored)
        ends = pa.array([low, high, None], stored)
        wide = converter(fresh_field(pa.field("v", stored), itertools.count(1)), _field_of(declared))(ends)

        # Back again, nothing may be refused and nothing may differ.
        assert wide.cast(stored).equals(ends), declared


def _field_of(kind: pa.DataType) -> Any:
    return fresh_field(pa.field("v", kind), itertools.count(1))


def _ends(kind: pa.DataType) -> tuple[Any, Any]:
    types = pa.types
    if types.is_integer(kind):
        low = 0 if types.is_unsigned_integer(kind) else -(1 << kind.bit_width - 1)
        return low, low + (1 << kind.bit_width) - 1
    if types.is_decimal(kind):
        most = Decimal(10**kind.precision - 1).scaleb(-kind.scale)
        return -most, most
    if types.is_date(kind):
        return datetime.date.min, datetime.date.max
    largest = {pa.float16(): 65504.0, pa.float32(): 2.0**127}
    return (-largest[kind], largest[kind]) if kind in largest else ("", "ü") if types.is_string(kind) else (b"", b"\0")


def test_a_list_that_begins_in_the_middle_keeps_its_elements_under_larger_offsets():
    # Found by the property above: the offsets were counted from the slice, the elements from the whole array.
    lists = pa.array([[1, 2], [3], None, [4, 5]], pa.list_(pa.int32())).slice(1)
    ids = itertools.count(1)
    stored = fresh_field(pa.field("v", lists.type), ids)

    current = evolve(stored, pa.large_list(pa.int64()), arrowstate.SchemaEvolution(), ids, what="state")

    assert converter(stored, current)(lists).to_pylist() == [[3], None, [4, 5]]


@pytest.mark.parametrize("default", [[1], {"x": 1}, [("k", 1)]], ids=str)
def test_a_nested_default_fits_no_rows_too(default):
    kinds = {1: pa.list_(pa.int8()), "x": pa.struct([("x", pa.int8())])}
    kind = kinds.get(next(iter(default)), pa.map_(pa.string(), pa.int8()))
    ids = itertools.count(1)
    stored = fresh_field(pa.field("v", pa.struct([("a", pa.int8())])), ids)
    declared = pa.struct([("a", pa.int8()), ("b", kind)])

    current = evolve(stored, declared, arrowstate.SchemaEvolution(defaults={"b": default}), ids, what="state")

    assert len(converter(stored, current)(pa.array([], stored.type))) == 0
    assert converter(stored, current)(pa.array([{"a": 1}], stored.type)).to_pylist() == [{"a": 1, "b": default}]


def test_documents_that_do_not_fit_their_type_are_corrupt():
    ids = itertools.count(1)
    kind = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])
    (document,) = documents_of([fresh_field(pa.field("v", kind), ids)])

    from msgspec.structs import replace

    with pytest.raises(arrowstate.CorruptDataError, match="1 fields inside struct"):
        fields_of([replace(document, fields=document.fields[:1])], ids)
    for text in ("no base64!", "YWJj", ""):
        with pytest.raises(arrowstate.CorruptDataError, match="v"):
            fields_of([replace(document, default=text)], ids)


def test_an_error_of_the_state_is_told_by_its_path():
    ids = itertools.count(1)
    stored = fresh_field(pa.field("v", pa.list_(pa.struct([("a", pa.int64())]))), ids)

    with pytest.raises(arrowstate.IncompatibleStateError) as caught:
        evolve(stored, pa.list_(pa.struct([("a", pa.int8())])), arrowstate.SchemaEvolution(), ids, what="orders")

    assert (caught.value.state, caught.value.stored, caught.value.declared) == ("orders.element.a", "int64", "int8")
    assert caught.value.remedy == "declare int64 or something wider; int8 would lose values"


def test_a_default_has_all_of_the_nanoseconds_that_it_was_given_with():
    stored = fresh_field(pa.field("state", pa.struct([("a", pa.int64())])), itertools.count(1))
    declared = pa.struct([("a", pa.int64()), ("at", pa.time64("ns"))])

    current = evolve(stored, declared, arrowstate.SchemaEvolution(defaults={"at": 5}), itertools.count(3), what="state")

    assert current.children[1].default.view(pa.int64()).to_pylist() == [5]


def test_a_map_of_widened_keys_is_put_together_with_others():
    stored = pa.map_(pa.int16(), pa.list_(pa.int32()))
    current = pa.map_(pa.int32(), pa.large_list(pa.int64()))
    widen = converter(fresh_field(pa.field("v", stored), itertools.count(1)), _field_of(current))
    maps = pa.array([[(1, [2, None]), (-3, None)], [], None], stored)

    # An early PyArrow ends the process where it does not know that keys have no nulls.
    both = pa.concat_arrays([widen(maps), widen(maps.slice(1))])

    assert both.to_pylist() == [*maps.to_pylist(), *maps.to_pylist()[1:]]
