"""Whoever follows a store reads an edit as the changes of its checkpoint, and rows of output tables once each."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from arrowstate.errors import InvalidInputError, SourceError
from arrowstate.runtime import Batch, ChangesSource, Reader, Split
from other_stores import Counts, Output, State, reader_of

Edited = tuple[Callable[[Any], Any], Callable[[State], State]]
"""What is done to a checkpoint, and to a dict."""


@pytest.fixture
def counts(tmp_path: Path) -> Counts:
    """A store of two checkpoints."""
    counts = Counts(tmp_path / "store")
    counts.commit(dict.fromkeys(range(40), 1))
    counts.commit({**dict.fromkeys(range(30, 50), 2), 3: 1}, clear=[0, 1, 2])
    return counts


def edited(counts: Counts, change: Callable[[Any], Any], becomes: Mapping[int, int] | None = None) -> int:
    """Edit the newest checkpoint, and go on from there; `becomes` is what the state is then, if it differs."""
    with counts.opened.edit() as edit:
        change(edit)
        checkpoint_id = edit.commit().checkpoint_id
    assert checkpoint_id is not None
    counts.states[checkpoint_id] = dict(counts.states[checkpoint_id - 1] if becomes is None else becomes)
    operators = [operator.uid for operator in counts.opened.latest().entry.operators]
    if "my.counter" in operators:
        counts.backend = counts.opened.latest().restore("my.counter")
    return checkpoint_id


def read(reader: Reader, *, batches: int = 1_000_000, max_rows: int = 1_000) -> tuple[list[Any], dict[str, Any]]:
    """The rows of so many batches, or of all there are, and the positions after them."""
    rows: list[Any] = []
    positions = {}
    while batches and isinstance(item := reader.read(max_rows), Batch):
        rows += item.rows.to_pylist()
        positions[item.split] = item.position
        batches -= 1
    return rows, positions


def counted(rows: Any) -> Counter[str]:
    return Counter(map(repr, rows))


EDITS: dict[str, Edited] = {
    "update": (
        lambda edit: edit.update("my.counter.counts", set={"counts": "counts + k"}, where="k % 3 = 0"),
        lambda rows: {k: v + k if k % 3 == 0 else v for k, v in rows.items()},
    ),
    "moved": (
        lambda edit: edit.update("my.counter.counts", set={"k": "k + 1000"}, where="k > 44"),
        lambda rows: {k + 1000 if k > 44 else k: v for k, v in rows.items()},
    ),
    "delete_key": (
        lambda edit: edit.delete_key("my.counter", [3, 4]),
        lambda rows: {k: v for k, v in rows.items() if k not in (3, 4)},
    ),
    "upsert": (
        lambda edit: edit.upsert("my.counter.counts", pa.table({"k": [5, 90], "counts": [1, 7]})),
        lambda rows: {**rows, 5: 1, 90: 7},
    ),
    "script": (
        lambda edit: edit.execute(
            'delete from "my.counter".counts where k < 9; update "my.counter".counts set counts = 5'
        ),
        lambda rows: {k: 5 for k in rows if k >= 9},
    ),
    "properties": (lambda edit: edit.properties.update(offset=3), dict),
    "max_parallelism": (lambda edit: edit.change_max_parallelism("my.counter", 100), dict),
}


@pytest.mark.parametrize("name", [*EDITS, "rollback"])
def test_a_feed_tells_what_an_edit_changed_as_changes_of_its_checkpoint(counts: Counts, name: str) -> None:
    reader = reader_of(counts.source(starting="earliest", splits=2))
    before, _ = read(reader)
    if name == "rollback":
        counts.opened.rollback(1)
        counts.states[3] = counts.states[1]
        counts.backend = counts.opened.latest().restore("my.counter")
    else:
        change, becomes = EDITS[name]
        edited(counts, change, becomes(counts.states[2]))
    counts.commit({7: 70, 200: 1}, clear=[8])

    rows, _ = read(reader)

    assert counted(before) == counted(counts.changes(None, 1, 2))
    assert counted(rows) == counted(counts.changes(2, 3, 4))


def test_a_feed_that_had_not_read_what_a_purge_collected_says_so(counts: Counts) -> None:
    reader = reader_of(counts.source(starting="earliest", lease_ms=None))
    read(reader)

    with counts.opened.edit() as edit:
        edit.delete_key("my.counter", [3, 4])
        edit.purge()

    with pytest.raises(SourceError, match="collected"):
        read(reader)
    assert len(read(reader_of(counts.source()))[0]) == len(counts.states[2]) - 2


@pytest.mark.parametrize("verb", ["drop_state", "rename_state", "drop_operator", "rename_operator"])
def test_a_feed_of_a_state_that_is_no_more_has_all_its_rows_deleted(counts: Counts, verb: str) -> None:
    reader = reader_of(counts.source(starting="latest"))
    new = {"rename_state": "my.counter.totals", "rename_operator": "summer.counts"}.get(verb)
    arguments = {
        "drop_state": ("my.counter", "counts"),
        "rename_state": ("my.counter", "counts", "totals"),
        "drop_operator": ("my.counter",),
        "rename_operator": ("my.counter", "summer"),
    }[verb]

    edited(counts, lambda edit: getattr(edit, verb)(*arguments), {})
    rows, _ = read(reader)

    assert counted(rows) == counted(counts.changes(2, 3))
    with pytest.raises(
        InvalidInputError, match=f"no state 'my.counter.counts' in checkpoint 3; it has {new or 'none'}"
    ):
        counts.source()
    if new is not None:
        renamed = ChangesSource(counts.store, new, starting=2, discovery_ms=0)
        rows, _ = read(reader_of(renamed))
        assert {row["k"]: row[new.rpartition(".")[2]] for row in rows} == counts.states[2]
        assert {row["_change_type"] for row in rows} == {"insert"}


@pytest.mark.parametrize("batches", [3, 4, 9])
def test_a_feed_that_stood_still_in_the_middle_goes_on_after_another_number_of_key_groups(
    counts: Counts, batches: int
) -> None:
    source = counts.source(starting="earliest", splits=3)
    splits = {split.id: split for split in source.discover(())}
    rows, positions = read(reader_of(source), batches=batches, max_rows=5)
    edited(counts, lambda edit: edit.change_max_parallelism("my.counter", 4))
    counts.commit({7: 70, 200: 1}, clear=[8])

    again = counts.source(starting="earliest", splits=3)
    rest, _ = read(reader_of(again, *(Split(name, positions.get(name, splits[name].position)) for name in splits)))

    assert counted(rows + rest) == counted(counts.changes(None, 1, 2, 3, 4))


def test_rows_of_an_output_table_that_an_edit_updates_keep_their_numbers(tmp_path: Path) -> None:
    output = Output(tmp_path / "store")
    output.commit(5, 3)
    reader = reader_of(output.source())
    first, _ = read(reader, batches=1, max_rows=6)

    with output.opened.edit() as edit:
        edit.update("alerts.rows", set={"user": "'edited'"}, where="n in (2, 7)")
        edit.commit()
    rest, _ = read(reader)
    again, _ = read(reader_of(output.source()))

    assert [row["n"] for row in first + rest] == list(range(8))
    assert [row["n"] for row in again if row["user"] == "edited"] == [2, 7]
    assert [row["n"] for row in again] == list(range(8))
    with output.opened.edit() as edit, pytest.raises(InvalidInputError, match="none added or deleted"):
        edit.delete("alerts.rows", where="n = 2")
