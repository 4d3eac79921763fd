"""Jobs that seeds make, with kills, crashes, lost messages and rescales: every rule of the runtime holds."""

from job_simulation.run import simulate_seed
from long_form import TURN

SEEDS = 60


def test_what_jobs_come_to_is_what_their_input_says_whatever_happens():
    # Each run has seeds of its own; `tools/test --long jobs` runs 50,000 of them.
    first = TURN * SEEDS

    results = [simulate_seed(seed) for seed in range(first, first + SEEDS)]

    assert sum(result.kills for result in results) > SEEDS / 2
    assert sum(result.crashes for result in results) > SEEDS / 4
    assert sum(result.rescales for result in results) > SEEDS / 4
    assert sum(result.checkpoints for result in results) > 2 * SEEDS


def test_the_same_seed_does_the_same():
    assert simulate_seed(4) == simulate_seed(4)


def test_a_slot_that_heard_nothing_of_an_aborted_checkpoint_does_not_hold_the_job_up_for_ever():
    # Where the input has ended no other checkpoint begins, whose barriers would free the channels that it blocked.
    result = simulate_seed(9_002_463)

    assert result.kills > 0
