"""Rules of the runtime, each broken once: a simulation that finds nothing then would prove nothing."""

import traceback

import pytest

from job_simulation import controls
from job_simulation.controls import CONTROLS, without
from job_simulation.run import simulate_seed

SEEDS = 240

BEGIN = {
    "order_of_splits": 25,
    "order_of_slots": 120,
    "time_of_splits_that_wait": 3_255,
    "rest_of_rows_in_flight": 20,
    "rows_in_flight_before_others": 20,
    "slices_of_rows_in_flight": 20,
}
"""Where some seed is known to be near: it is looked for there first."""


@pytest.mark.parametrize("rule", CONTROLS)
def test_a_broken_rule_is_found_by_some_seed(rule):
    with without(rule), pytest.raises(Exception, match=".") as found:
        for number in range(SEEDS):
            simulate_seed(BEGIN.get(rule, 0) + number)

    error: BaseException | None = found.value
    while error is not None:
        # What breaks a rule and has a mistake of its own breaks nothing.
        assert traceback.extract_tb(error.__traceback__)[-1].filename != controls.__file__, error
        error = error.__cause__ or error.__context__
