"""Jobs with slots that are killed, in orders that seeds decide: nothing is lost, and nothing counts twice."""

from collections import Counter

import pytest

import runtime_jobs as jobs
from arrowstate.runtime import Job
from arrowstate.testing.jobs import simulate
from long_form import short_or_long

SEEDS = short_or_long(3, 2_000)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_sums_are_exact_in_state_table_and_sinks_whatever_is_killed(parallelism):
    runs = simulate(jobs.sums(parallelism), seeds=range(SEEDS), kills=4, check=jobs.check_sums)

    assert sum(run.kills for run in runs) > SEEDS / 2
    assert sum(run.checkpoints for run in runs) > SEEDS


class Noting(jobs.SlowTable):
    """Notes where its splits are begun."""

    begun: list = []  # noqa: RUF012 (one for all copies)

    def reader(self):
        reader = super().reader()
        add = reader.add
        reader.add = lambda splits: [self.begun.extend(split.position or 0 for split in splits), add(splits)]
        return reader


def test_jobs_that_are_killed_go_on_from_checkpoints_with_a_part_of_their_input():
    job = Job("memory://unused", parallelism=2)
    given = job.source(Noting(jobs.rows(), splits=3), uid="given")
    given.stateful(jobs.Running(), key=["user"], uid="running", output_schema=jobs.RUNNING)
    Noting.begun.clear()

    simulate(job, seeds=range(12), kills=4, check=id)

    assert len({position for position in Noting.begun if position}) > 5
    assert sum(map(bool, Noting.begun)) > len(Noting.begun) / 4


def test_sums_are_exact_after_rescales():
    runs = simulate(jobs.sums(2), seeds=range(SEEDS), kills=2, rescales=(1, 3, 4), check=jobs.check_sums)

    assert sum(run.rescales for run in runs) > SEEDS / 4


@pytest.mark.parametrize("parallelism", [1, 3])
def test_windows_fire_once_with_all_their_rows(parallelism):
    expected = Counter()
    table = jobs.rows()
    for row in [*table.slice(0, 150).to_pylist(), *table.slice(90).to_pylist()]:
        expected[row["user"], row["at"] // 300 * 300] += row["amount"]

    def check(run):
        fired = [row["rows"] for row in run.snapshot.operator_state("fired", "rows").to_pylist()]
        found = {(row["user"], row["window_start"]): row["total"] for row in fired}
        assert len(found) == len(fired), run.seed
        assert found == dict(expected), run.seed

    simulate(jobs.windows(parallelism), seeds=range(SEEDS), check=check)


def test_two_inputs_share_one_state():
    simulate(jobs.balances(2), seeds=range(SEEDS), rescales=(3,))


def test_rows_of_two_tasks_are_in_the_sinks_of_their_union_once():
    expected = Counter(map(repr, jobs.rows().to_pylist()))

    def check(run):
        store_id = run.snapshot.store_id
        table = [row["rows"] for row in run.snapshot.operator_state("copy", "rows").to_pylist()]
        for emitted in (table, jobs.Committed("copies").rows_of(store_id), jobs.Prepared().rows_of(store_id)):
            assert Counter(map(repr, emitted)) == expected, run.seed

    simulate(jobs.copies(2), seeds=range(SEEDS), rescales=(3,), check=check)


def test_side_outputs_late_rows_and_dead_letters_are_those_of_a_calm_run():
    calm = simulate(jobs.everything_aside(1), seeds=[0], kills=0, crashes=0, write_failures=0, check=lambda run: None)
    expected = jobs.everything_of(calm[0].snapshot)

    def check(run):
        found = jobs.everything_of(run.snapshot)
        same = expected | jobs.of_late_rows(found["late"])
        assert [name for name in same if found[name] != same[name]] == [], run.seed
        assert found["late"] <= expected["late"], run.seed
        late.append(found["late"].total())

    late: list[int] = []
    assert expected == expected | jobs.of_late_rows(expected["late"])
    runs = simulate(jobs.everything_aside(2), seeds=range(SEEDS // 2), kills=3, rescales=(1, 3), check=check)

    timed = [row for row in jobs.mixed_rows().to_pylist() if row["at"] is not None]
    valid = [row for row in timed if row["amount"] != 11]
    keyed = [row for row in valid if row["user"] is not None]
    large = [row for row in keyed if row["amount"] > 10]
    assert expected["large"] == Counter(repr({"user": row["user"], "total": row["amount"]}) for row in large)
    assert expected["committed"] == expected["large"]
    fallen = len(jobs.mixed_rows()) - len(timed), len(timed) - len(valid), len(valid) - len(keyed)
    bad = fallen[2] + sum(row["amount"] < 0 for row in keyed)
    dead = ("given_dead_letters", "elevens", "windows_dead_letters", "running_dead_letters", "counts_dead_letters")
    assert [expected[name].total() for name in dead] == [*fallen, bad, bad]
    assert 0 < expected["late"].total() == expected["prepared"].total() < len(keyed)
    assert sum(run.kills + run.rescales for run in runs) > SEEDS // 2
    assert sum(count == expected["late"].total() for count in late) > 0.9 * len(late)


def test_the_calm_run_that_others_are_compared_with_gives_sinks_nothing():
    job = jobs.sums(2)
    before = set(jobs.Prepared.visible), len(jobs.Committed.kept.get("sums", {}))
    sinks = [node.sink for node in job.graph.sinks]

    simulate(job, seeds=[])

    assert (set(jobs.Prepared.visible), len(jobs.Committed.kept.get("sums", {}))) == before
    assert [node.sink for node in job.graph.sinks] == sinks


def test_the_same_seed_does_the_same():
    first, second = (simulate(jobs.sums(2), seeds=[7])[0] for _ in range(2))

    assert (first.kills, first.checkpoints) == (second.kills, second.checkpoints)


def test_at_least_once_loses_nothing():
    least = jobs.running_sums(jobs.rows())

    def check(run):
        state = {row["user"]: row["total"] for row in run.snapshot.to_arrow("running.total").to_pylist()}
        assert all(state[user] >= total for user, total in least.items()), run.seed

    simulate(jobs.sums(3, mode="at-least-once"), seeds=range(SEEDS), kills=4, check=check)
