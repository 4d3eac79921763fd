"""Every state of savepoints that Flink wrote is, value by value, what its job said it was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from arrowstate.errors import StateNotFoundError, StoreNotFoundError
from arrowstate.foreign.flink.savepoint import FlinkSavepoint, open_flink_savepoint
from flink_truth import differences, operator_differences

Folders = Callable[[str], Path]

UNKNOWN_CLASS = "objects of a subclass that the snapshot does not describe are bytes"
OF_KRYO = "Kryo wrote it, the bytes are kept"

JOBS = ["core-hashmap-canonical", "core-rocksdb-native", "small-hashmap-snappy-canonical", "v2-forst-checkpoint"]
JOBS += ["small-hashmap-changelog-checkpoint", "core-hashmap-native", "small-hashmap-inline-checkpoint"]
JOBS += ["small-rocksdb-filemerging-checkpoint", "small-rocksdb-heaptimers-checkpoint"]

OF_OTHERS = ["flink-1.20-core-hashmap-canonical", "flink-1.20-small-rocksdb-filemerging-checkpoint"]
OF_OTHERS += ["flink-1.18-small-hashmap-snappy-native", "flink-1.18-small-rocksdb-full-checkpoint"]
# 300 key groups, whose numbers take two bytes.
OF_OTHERS += ["flink-2.2-wide-small-hashmap-snappy-native", "flink-2.2-wide-small-rocksdb-full-checkpoint"]

LISTS_OF_KRYO = "before Flink 2.0 Kryo wrote the lists and maps of an object"
NOT_DECODED = {
    # In one key group nothing tells them apart.
    ("flink-1.18-small-hashmap-snappy-native", "core-long.v_pojo"): (LISTS_OF_KRYO, 25),
    ("flink-1.18-small-rocksdb-full-checkpoint", "core-long.v_pojo"): (LISTS_OF_KRYO, 24),
    ("flink-1.20-core-hashmap-canonical", "core-long.v_pojo"): (LISTS_OF_KRYO, 24),
    ("flink-1.20-small-rocksdb-filemerging-checkpoint", "core-long.v_pojo"): (LISTS_OF_KRYO, 24),
    ("flink-1.20-core-hashmap-canonical", "types-int.t_kryo_bitset"): (OF_KRYO, 40),
    ("flink-2.2-wide-small-hashmap-snappy-native", "core-long.v_pojo"): (UNKNOWN_CLASS, 5),
    ("core-hashmap-canonical", "core-long.v_pojo"): (UNKNOWN_CLASS, 5),
    ("small-hashmap-snappy-canonical", "core-long.v_pojo"): (UNKNOWN_CLASS, 5),
    ("small-hashmap-changelog-checkpoint", "core-long.v_pojo"): (UNKNOWN_CLASS, 5),
    ("core-hashmap-native", "core-long.v_pojo"): (UNKNOWN_CLASS, 5),
    ("small-hashmap-inline-checkpoint", "core-long.v_pojo"): (UNKNOWN_CLASS, 5),
    # Two entries of one key group cannot be told apart: their keys are missing, and there is one that is none.
    ("core-hashmap-native", "types-int.t_kryo_bitset"): (OF_KRYO, 41),
    ("core-hashmap-canonical", "types-int.t_kryo_bitset"): (OF_KRYO, 40),
    ("core-rocksdb-native", "types-int.t_kryo_bitset"): (OF_KRYO, 40),
}
"""States that differ from their truth: why, and in how many rows."""


def opened(folders: Folders, name: str) -> tuple[FlinkSavepoint, dict[str, Any]]:
    folder = folders(name)
    return open_flink_savepoint(folder / "savepoint"), json.loads((folder / "truth.json").read_text())


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", JOBS + OF_OTHERS)
def test_every_state_is_what_the_job_said(savepoint_folder: Folders, name: str) -> None:
    savepoint, truth = opened(savepoint_folder, name)

    found = {}
    for operator, states in truth["keyed_state"].items():
        for state, expected in states.items():
            if expected["kind"] != "note":
                contents = savepoint["win-session.merging-window-set"] if operator == "win-session" else None
                found[f"{operator}.{state}"] = differences(savepoint[f"{operator}.{state}"], expected, contents)
    for operator, states in truth["operator_state"].items():
        for state, expected in states.items():
            found[f"{operator}.{state}"] = operator_differences(savepoint[f"{operator}.{state}"], expected)

    for state, wrong in found.items():
        reason, rows = NOT_DECODED.get((name, state), ("", 0))
        assert len(wrong) == rows, (state, reason, wrong[:3])


def test_what_could_not_be_decoded_is_there_as_bytes(savepoint_folder: Folders) -> None:
    savepoint, _ = opened(savepoint_folder, "core-hashmap-canonical")

    people = savepoint["core-long.v_pojo"].to_arrow()
    sets = savepoint["types-int.t_kryo_bitset"]

    unread = people.filter(people["value"].is_null())
    assert [each[:19] for each in unread["_raw"].to_pylist()] == [b"\x04\x00\x0fModel$VipPerson\x02"] * 5
    assert people["_raw"].null_count == 19
    assert sets.opaque == ("java.util.BitSet",)
    assert sets.schema.field("value").metadata == {b"flink.class": b"java.util.BitSet"}
    assert sets.to_arrow()["value"].type == pa.binary()


def test_a_state_that_is_not_there_is_an_error_with_those_that_are(savepoint_folder: Folders) -> None:
    savepoint, _ = opened(savepoint_folder, "v2-forst-checkpoint")

    with pytest.raises(StateNotFoundError, match=r"no state named 'v2.v2_lnog' in checkpoint 3; it has .*'v2.v2_long'"):
        savepoint["v2.v2_lnog"]


@pytest.mark.parametrize("place", ["savepoint", "savepoint/chk-3", "savepoint/chk-3/", "savepoint/chk-3/_metadata"])
def test_a_checkpoint_is_opened_by_its_folder_its_file_and_the_folder_of_its_job(
    savepoint_folder: Folders, place: str
) -> None:
    savepoint = open_flink_savepoint(f"{savepoint_folder('v2-forst-checkpoint')}/{place}")

    assert savepoint["v2.v2_long"].to_arrow().num_rows == 24


def test_a_folder_without_metadata_is_no_savepoint(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "gone", tmp_path / "gone" / "chk-7"):
        with pytest.raises(StoreNotFoundError, match=f"no savepoint or checkpoint of Flink at {place}; .*`_metadata`"):
            open_flink_savepoint(place)


def test_an_operator_is_found_by_its_uid_where_the_savepoint_has_none(savepoint_folder: Folders) -> None:
    savepoint, _ = opened(savepoint_folder, "flink-1.20-small-rocksdb-filemerging-checkpoint")

    assert savepoint.metadata.version < 5
    assert savepoint["core-long.v_long"] is savepoint["a01d33dbe8fd0631e9b9336719098a98.v_long"]
    assert savepoint.operator("core-long").id == "a01d33dbe8fd0631e9b9336719098a98"
