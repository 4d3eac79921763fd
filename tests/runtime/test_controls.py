"""Rules of the runtime, each broken once: a simulation that finds nothing then would prove nothing."""

from __future__ import annotations

import pytest

import runtime_jobs as jobs
from arrowstate.runtime.core import assembling, barriers, coordinator, messages, reading, sinking, slot, task
from arrowstate.runtime.core.elements import Barrier
from arrowstate.testing.jobs import simulate
from long_form import short_or_long

SEEDS = short_or_long(60, 400)


def no_blocking(monkeypatch):
    monkeypatch.setattr(barriers.AlignedBarriers, "is_blocked", lambda self, channel: False)


def frames_of_any_attempt(monkeypatch):
    def take(self, attempt, edge, sender, element):
        if self._attempt is not None:
            self._attempt.operators[edge].deliver((edge, sender), element)

    monkeypatch.setattr(slot.Slot, "take", take)


def position_before_the_batch(monkeypatch):
    read = reading.SourceSplits.read

    def late(self, max_rows, now_ms):
        before = dict(self._states)
        got = read(self, max_rows, now_ms)
        self._shown, self._after = before, dict(self._states)
        return got

    def to_arrow(self):
        states = getattr(self, "_shown", self._states)
        kept, self._states = self._states, {**self._states, **states}
        try:
            return right(self)
        finally:
            self._states = kept

    right = reading.SourceSplits.to_arrow
    monkeypatch.setattr(reading.SourceSplits, "read", late)
    monkeypatch.setattr(reading.SourceSplits, "to_arrow", to_arrow)


def token_ignored(monkeypatch):
    def commit(self, rows, token):
        known = self.kept.setdefault(self.name, {})
        known[token.store_id, token.checkpoint_id, token.subtask, len(known)] = rows.to_pylist()

    monkeypatch.setattr(jobs.Committed, "commit", commit)


def rows_of_aborted_checkpoints_forgotten(monkeypatch):
    freeze = sinking.KeptRows.freeze

    def only_its_own(self, epoch):
        self._epochs.clear()
        return freeze(self, epoch)

    monkeypatch.setattr(sinking.KeptRows, "freeze", only_its_own)


def nothing_kept_for_sinks_after_a_crash(monkeypatch):
    monkeypatch.setattr(assembling.Entries, "_kept", lambda self, entry: iter(()))


def snapshot_before_the_barrier_of_all(monkeypatch):
    def barrier(self, channel, checkpoint_id):
        if checkpoint_id <= self._done:
            return []
        self._done = checkpoint_id
        return [barriers.Snapshot(checkpoint_id)]

    monkeypatch.setattr(barriers.AlignedBarriers, "barrier", barrier)


def barrier_after_the_snapshot_of_the_source_and_one_batch(monkeypatch):
    def take_snapshot(self, checkpoint_id, alignment_us=0):
        self.hooks.snapshot(self, checkpoint_id, alignment_us)
        if isinstance(self, task.SourceTask):
            self.step()
        self.chain.event(Barrier(checkpoint_id))

    monkeypatch.setattr(task.Task, "take_snapshot", take_snapshot)


def splits_twice(monkeypatch):
    right = coordinator.Coordinator._restored

    def restored(self, attempt, found, error):
        if found is not None and found[0] is not None:
            splits = {
                uid: [messages.SplitState(item.id) if not item.finished else item for item in items]
                for uid, items in found[1].items()
            }
            found = found[0], splits
        right(self, attempt, found, error)

    monkeypatch.setattr(coordinator.Coordinator, "_restored", restored)


CONTROLS = [
    no_blocking,
    position_before_the_batch,
    token_ignored,
    rows_of_aborted_checkpoints_forgotten,
    nothing_kept_for_sinks_after_a_crash,
    snapshot_before_the_barrier_of_all,
    barrier_after_the_snapshot_of_the_source_and_one_batch,
    splits_twice,
    frames_of_any_attempt,
]


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.__name__)
def test_a_broken_rule_is_found_by_some_seed(monkeypatch, control):
    control(monkeypatch)

    with pytest.raises(Exception):  # noqa: B017 (whatever a seed finds)
        simulate(jobs.sums(3), seeds=range(SEEDS), kills=4, crashes=2, check=jobs.check_sums)


def test_without_a_broken_rule_the_same_seeds_find_nothing():
    simulate(jobs.sums(3), seeds=range(short_or_long(10, 400)), kills=4, crashes=2, check=jobs.check_sums)
