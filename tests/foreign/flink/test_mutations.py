"""Savepoints with damaged bytes give an error of ours or rows, and those under checksums no others than they held."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from arrowstate.errors import ArrowStateError
from arrowstate.foreign.flink.hints import Hints
from arrowstate.foreign.flink.metadata import read_metadata
from arrowstate.foreign.flink.savepoint import FlinkSavepoint, open_flink_savepoint
from flink_mutations import Damaged, mutated, rows_of, trial
from long_form import short_or_long

Folders = Callable[[str], Path]

SMALL = ["small-hashmap-snappy-canonical", "small-hashmap-inline-checkpoint", "v2-forst-checkpoint"]
SMALL += ["pyflink-process-canonical", "small-hashmap-changelog-checkpoint"]
LARGE = [
    "core-hashmap-canonical",
    "core-hashmap-native",
    "sql-rocksdb-checkpoint",
    "small-rocksdb-heaptimers-checkpoint",
]


@pytest.mark.parametrize("name", short_or_long(SMALL, SMALL + LARGE))
def test_damaged_bytes_give_rows_or_an_error_of_ours(savepoint_folder: Folders, name: str) -> None:
    place = savepoint_folder(name) / "savepoint"

    results = {trial(place, seed) for seed in range(short_or_long(12, 2300))}

    assert "CorruptDataError" in results


@pytest.mark.parametrize("name", ["small-hashmap-snappy-canonical", "v2-forst-checkpoint"])
def test_what_is_under_checksums_is_read_as_it_was_or_not_at_all(savepoint_folder: Folders, name: str) -> None:
    place = savepoint_folder(name) / "savepoint"
    whole = open_flink_savepoint(place)
    names = [each for each in whole.states if whole[each].kind in ("value", "map", "list", "reducing")]
    # Text, for a NaN is not equal to itself.
    expected = {each: str(whole[each].to_arrow().to_pylist()) for each in names}
    offset = 13_000 if name.startswith("small") else 0
    changed = 0

    for seed in range(short_or_long(20, 2000)):
        chance = random.Random(seed)
        damaged = Damaged(place)
        path = chance.choice([each for each in damaged.files if not each.endswith("_metadata")])
        data = damaged._mapped(path).data.tobytes()
        # The head of a stream, before the groups of keys, has no checksum.
        if len(data) > offset and (offset or "shared" in path):
            damaged.changed[path] = data[:offset] + mutated(data[offset:], chance)
            changed += damaged.changed[path] != data
        try:
            savepoint = FlinkSavepoint(damaged, read_metadata(damaged.metadata.view), Hints())
            found = dict(rows_of(savepoint, [each for each in names if each in savepoint.states]))
        except ArrowStateError:
            continue
        for each, rows in found.items():
            assert isinstance(rows, Exception) or str(rows.to_pylist()) == expected[each], (seed, path, each)
    assert changed > 2
