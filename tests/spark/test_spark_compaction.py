"""Micro-batches and a compaction of their store beside them: nobody is fenced, and each batch counts once."""

from __future__ import annotations

from typing import Any

import pytest

import arrowstate
from arrowstate.errors import FencedError
from arrowstate.log.commit import Commit
from arrowstate.spark import progress

TIGHT = arrowstate.CompactionPolicy(1.001, min_bytes=0)


def compact(sink: Any) -> arrowstate.Snapshot:
    snapshot = arrowstate.open_store(sink.store).compact(TIGHT).apply()
    assert snapshot is not None
    return snapshot


@pytest.fixture
def filled(sink: Any, make_rows: Any) -> Any:
    """A store after the batches 0 and 1."""
    sink.run(0, make_rows(0))
    sink.run(1, make_rows(1))
    return sink


def test_a_query_goes_on_after_a_compaction(filled: Any, make_rows: Any) -> None:
    compaction = compact(filled)
    entry = filled.run(2, make_rows(2))

    assert compaction.properties["spark"]["batch_id"] == 1
    assert (entry.number, entry.writer_epoch) == (5, 1)
    assert filled.stored() == filled.expected(make_rows(0), make_rows(1), make_rows(2))


def test_a_compaction_is_no_micro_batch_of_the_progress(filled: Any) -> None:
    before = progress(filled.store)

    compact(filled)

    assert progress(filled.store).equals(before)
    assert progress(filled.store, last=1).equals(before.slice(1))
    assert before["batch_id"].to_pylist() == [0, 1]


def test_a_compaction_between_the_tasks_and_the_commit_fences_nobody(filled: Any, make_rows: Any) -> None:
    before = filled.fold(2, make_rows(2))
    compact(filled)
    after = filled.fold(2, make_rows(2))

    # One task ran before the compaction, the other one after it.
    entry = filled.commit(2, [before[0], *after[1:]])

    assert (entry.number, entry.writer_epoch) == (5, 1)
    assert filled.stored() == filled.expected(make_rows(0), make_rows(1), make_rows(2))


def test_a_compaction_that_takes_the_number_of_a_commit_fences_nobody(
    filled: Any, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = filled.fold(2, make_rows(2))
    append = Commit.append

    def beaten(self: Commit, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(Commit, "append", append)
        compact(filled)
        return append(self, *arguments, **options)

    monkeypatch.setattr(Commit, "append", beaten)
    entry = filled.commit(2, results)

    assert (entry.number, entry.properties["spark"]["batch_id"]) == (5, 2)
    assert filled.stored() == filled.expected(make_rows(0), make_rows(1), make_rows(2))


def test_a_batch_that_is_repeated_after_a_compaction_is_passed_over(filled: Any, make_rows: Any) -> None:
    compact(filled)
    arrowstate.open_store(filled.store).collect(grace_ms=0, allow_short_grace=True).apply()

    assert filled.but(run_id="run-2").run(1, make_rows(1)) is None
    filled.but(run_id="run-2").run(2, make_rows(2))

    assert filled.stored() == filled.expected(make_rows(0), make_rows(1), make_rows(2))


def test_a_compaction_under_the_fence_of_another_does_not_make_a_zombie_its_writer(filled: Any, make_rows: Any) -> None:
    zombie = filled.fold(2, make_rows(2))
    arrowstate.open_store(filled.store).writer()
    # It repeats the record of the zombie's last batch, in the epoch of the other writer.
    assert compact(filled).entry.writer_epoch == 2

    with pytest.raises(FencedError):
        filled.commit(2, zombie)

    assert filled.stored() == filled.expected(make_rows(0), make_rows(1))
