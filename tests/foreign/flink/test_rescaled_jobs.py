"""Checkpoints of jobs whose parallelism changed: several handles for a range, tables with key groups of others.

`fixtures/Rescaled.java` wrote them with Flink 2.3, and with older names of some classes with 1.18. There are RocksDB
instances that were clipped, or taken into others; files that belong to the job before; files merged into one;
changelogs in files; key groups of two bytes. How many records the job has taken says what is in them, by a model.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from arrowstate.foreign.flink.savepoint import open_flink_savepoint

TAKEN = {
    "changelog-compressed": 1000,
    "changelog-files": 1000,
    "changelog-materialized": 1000,
    "hashmap-500-canonical": 1500,
    "hashmap-500-native": 1500,
    "rocksdb-500-canonical": 1500,
    "rocksdb-500-native": 1500,
    "rocksdb-claimed-2-2": 3100,
    "rocksdb-clipped-1-2": 4500,
    "rocksdb-clipped-2-3": 3600,
    "rocksdb-clipped-3-1": 4200,
    "rocksdb-ingested-1-2": 4500,
    "rocksdb-ingested-2-3": 3600,
    "rocksdb-ingested-3-1": 4200,
    "rocksdb-merged-files-2-3": 3300,
}
"""Records of each."""

CASES = [
    *(("rescaled", name) for name in TAKEN),
    *(
        ("rescaled-1.18.1", name)
        for name in TAKEN
        if name.startswith("rocksdb-cl") or name in ("changelog-compressed", "hashmap-500-native")
    ),
]
"""Those of Flink 2.3, and what differs most in 1.18."""

Rows = set[tuple[object, ...]]


def _model(taken: int) -> dict[str, Rows]:
    """The states after so many records, as the function of the job makes them."""
    sums: dict[int, int] = {}
    texts: dict[int, tuple[str, ...]] = {}
    lasts: dict[tuple[int, str], int] = {}
    timers: Rows = set()
    for number in range(taken):
        turn, key = divmod(number, 97)
        sums[key] = sums.get(key, 0) + number
        if (key + turn) % 7 == 0:
            texts.pop(key, None)
        else:
            texts[key] = (*texts.get(key, ()), f"text {number}")
        name = f"part {turn % 5}"
        if (key + turn) % 11 == 0:
            lasts.pop((key, name), None)
        else:
            lasts[key, name] = number
        if number % 3 == 0:
            timers.add((key, 1_000_000 + number))
    return {
        "sum": set(sums.items()),
        "texts": set(texts.items()),
        "lasts": {(key, name, number) for (key, name), number in lasts.items()},
        "_timer_state/event_user-timers": timers,
    }


@pytest.mark.parametrize(("archive", "name"), CASES)
def test_every_state_is_what_the_records_made(archive: str, name: str, savepoint_folder: Callable[[str], Path]) -> None:
    folder = savepoint_folder(archive) / name
    if name.startswith("rocksdb-claimed"):
        # The folders of both jobs are in it; the checkpoint is that of the second.
        (folder,) = (path.parent for path in folder.glob("*/chk-*"))
    savepoint = open_flink_savepoint(folder)

    for state, expected in _model(TAKEN[name]).items():
        table = savepoint[f"states.{state}"].to_arrow().drop_columns("_key_group")
        rows = [tuple(tuple(v) if isinstance(v, list) else v for v in row.values()) for row in table.to_pylist()]
        assert len(rows) == len(set(rows))
        assert set(rows) == expected, state
