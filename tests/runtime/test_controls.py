"""Rules of the runtime, each broken once: a simulation that finds nothing then would prove nothing."""

from __future__ import annotations

import pytest

from job_simulation.controls import CONTROLS, without
from job_simulation.run import simulate_seed

SEEDS = 60


@pytest.mark.parametrize("rule", CONTROLS)
def test_a_broken_rule_is_found_by_some_seed(rule):
    with without(rule), pytest.raises(Exception, match="."):
        for seed in range(SEEDS):
            simulate_seed(seed)
