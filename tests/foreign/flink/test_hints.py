"""What a savepoint does not say of its state, and a user does: SQL, PyFlink, classes."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrowstate.errors import InvalidInputError
from arrowstate.foreign.flink import Pickled, open_flink_savepoint
from flink_truth import differences, plain, shown

Folders = Callable[[str], Path]

ADDRESS = pa.struct([("street", pa.string()), ("zip", pa.int32())])
VIP = pa.schema(
    {
        "name": pa.string(),
        "age": pa.int32(),
        "score": pa.float64(),
        "active": pa.bool_(),
        "addr": ADDRESS,
        "tags": pa.list_(pa.string()),
        "counts": pa.map_(pa.string(), pa.int64()),
        "hist": pa.list_(pa.int64()),
        "level": pa.int32(),
    }
)


def truth(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "truth.json").read_text())
    return found


@pytest.mark.parametrize(
    "name", ["core-hashmap-canonical", "core-hashmap-native", "small-hashmap-changelog-checkpoint"]
)
def test_a_class_that_is_described_by_a_hint_is_decoded(savepoint_folder: Folders, name: str) -> None:
    folder = savepoint_folder(name)

    savepoint = open_flink_savepoint(folder / "savepoint", hints={"Model$VipPerson": VIP})

    people = savepoint["core-long.v_pojo"]
    assert differences(people, truth(folder)["keyed_state"]["core-long"]["v_pojo"]) == []
    assert "_class" not in savepoint["opstate.op-pojo"].schema.field("value").type.names


def _not_null(**types: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field(name, kind, nullable=False) for name, kind in types.items()])


OF_PYTHON = {
    "py_long": pa.int64(),
    "py_str": pa.string(),
    "py_row": pa.struct([("i", pa.int64()), ("name", pa.string()), ("value", pa.float64())]),
    "py_list": pa.list_(pa.int64()),
    "py_map": pa.schema({"user_key": pa.string(), "value": pa.int64()}),
    "py_reduce": pa.int64(),
    "py_agg": _not_null(total=pa.int64(), count=pa.int64()),
    "py_pickle": Pickled(pa.string()),
}


def test_state_of_pyflink_is_decoded_by_hints(savepoint_folder: Folders) -> None:
    folder = savepoint_folder("pyflink-process-canonical")
    expected = truth(folder)["keyed_state"]["py-keyed"]

    savepoint = open_flink_savepoint(
        folder / "savepoint", hints={f"py-keyed.{name}": hint for name, hint in OF_PYTHON.items()}
    )

    for name in OF_PYTHON:
        found: dict[int, Any] = {}
        for row in savepoint[f"py-keyed.{name}"].to_arrow().to_pylist():
            value = row["value"]
            if name == "py_map":
                found.setdefault(row["key"]["f0"], {})[row["user_key"]] = value
            else:
                found[row["key"]["f0"]] = list(value.values()) if isinstance(value, dict) else value
        assert found == {entry["key"]: entry["value"] for entry in expected[name]}, name
    timers = savepoint["py-keyed._timer_state/processing_user-timers"].to_arrow()
    assert len(timers) == sum(len(entry["value"]) for entry in expected["timers"])


def test_state_of_pyflink_is_bytes_without_a_hint(savepoint_folder: Folders) -> None:
    savepoint = open_flink_savepoint(savepoint_folder("pyflink-process-canonical") / "savepoint")

    assert savepoint["py-keyed.py_pickle"].schema.field("value").type == pa.list_(pa.binary())


def test_rows_of_sql_have_the_names_of_a_hint_and_the_values_of_the_query(savepoint_folder: Folders) -> None:
    folder = savepoint_folder("sql-rocksdb-checkpoint")
    said = truth(folder)
    names = [*said["columns"], "pt"]
    kinds = open_flink_savepoint(folder / "savepoint")["54_deduplicate.deduplicate-state"].schema.field("value").type
    hint = pa.struct([field.with_name(name) for field, name in zip(kinds, names, strict=True)])

    savepoint = open_flink_savepoint(folder / "savepoint", hints={"54_deduplicate.deduplicate-state": hint})

    last = {row[0]: row for row in said["input_rows"]}
    rows = savepoint["54_deduplicate.deduplicate-state"].to_arrow().combine_chunks()
    found = shown(rows["value"].combine_chunks())
    assert list(found[0]) == names
    assert len(found) == len(last)
    for row in found:
        expected = [plain(each) for each in last[row["k"]]]
        for name, value in zip(said["columns"], expected, strict=True):
            mine = row[name]
            if isinstance(mine, Decimal):
                value = Decimal(value)
            if name == "tm":
                mine, value = (mine.hour * 3600 + mine.minute * 60 + mine.second) * 10**9, value
            assert mine == value, name


def test_accumulators_and_joins_of_sql_are_what_the_input_adds_up_to(savepoint_folder: Folders) -> None:
    folder = savepoint_folder("sql-rocksdb-checkpoint")
    rows = truth(folder)["input_rows"]
    savepoint = open_flink_savepoint(folder / "savepoint")

    sums = savepoint["39_group-aggregate.accState"].to_arrow().to_pylist()
    distinct = savepoint["49_group-aggregate.distinctAcc_0"].to_arrow()
    left = savepoint["68_join.left-records"].to_arrow()

    by_key: dict[int, list[Any]] = {}
    for row in rows:
        by_key.setdefault(row[0], []).append(row)
    assert {each["key"]["f0"]: (each["value"]["f0"], each["value"]["f1"]) for each in sums} == {
        key: (len(several), sum(row[3] or 0 for row in several)) for key, several in by_key.items()
    }
    pairs = zip((each["f0"] for each in distinct["key"].to_pylist()), distinct["user_key"].to_pylist(), strict=True)
    assert set(pairs) == {(row[1], row[2]) for row in rows}
    assert pc.sum(left["value"]).as_py() == sum(row[12] < 100 for row in rows)


def test_a_hint_changes_the_type_of_a_column_if_no_value_changes(savepoint_folder: Folders) -> None:
    place = savepoint_folder("core-hashmap-canonical") / "savepoint"

    def opened(name: str, hint: pa.DataType) -> pa.Table:
        return open_flink_savepoint(place, hints={f"core-long.{name}": hint})[f"core-long.{name}"].to_arrow()

    assert opened("v_decimal", pa.decimal128(38, 6))["value"].type == pa.decimal128(38, 6)
    assert set(opened("v_long", pa.binary())["value"].to_pylist()) == {
        each.to_bytes(8, "big") for each in opened("v_long", pa.int64())["value"].to_pylist()
    }
    with pytest.raises(InvalidInputError, match=r"core-long.v_string is of string and cannot be of int64"):
        opened("v_string", pa.int64())


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        ({"core-long.v_lnog": pa.int64()}, "'core-long.v_lnog', which is no state"),
        ({"core-long.v_long": "int64"}, "a hint is a type or a schema of pyarrow, got 'int64'"),
        ({"core-long.v_long": pa.schema({"user_key": pa.int64()})}, "names 'user_key'; it has key, value"),
    ],
)
def test_a_hint_that_fits_nothing_is_refused(savepoint_folder: Folders, hints: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        place = savepoint_folder("small-hashmap-snappy-canonical") / "savepoint"
        _ = open_flink_savepoint(place, hints=hints)["core-long.v_long"].schema
