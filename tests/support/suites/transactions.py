"""What an error leaves behind: nothing, wherever it comes from, and the same step again gives what it should."""

import pytest

from suites.adversary import LONG, survives
from suites.deployments import COLLIDING_KEYS, PLAIN_KEYS, Deployment, Keys
from suites.runner_scenes import RUNNERS, WINDOWS
from suites.scenes import TIMERS, VERBS

__all__ = ["TransactionSuite"]


class TransactionSuite:
    """User code that raises at each point, and a disk that is full at each allocation.

    With the environment variable ARROWSTATE_LONG_TESTS every point is tried, else a few that are spread evenly.
    """

    @pytest.fixture(params=[PLAIN_KEYS, COLLIDING_KEYS] if LONG else [PLAIN_KEYS], ids=str)
    def supply(self, request: pytest.FixtureRequest) -> Keys:
        """The keys of a scene."""
        keys: Keys = request.param
        return keys

    @pytest.mark.parametrize("scene", VERBS)
    def test_a_verb_that_fails_has_done_nothing(self, deployment: Deployment, supply: Keys, scene: str) -> None:
        survives(deployment, supply, VERBS[scene], most=2)

    @pytest.mark.parametrize("scene", TIMERS)
    def test_no_timer_is_lost_and_none_fires_twice(self, deployment: Deployment, supply: Keys, scene: str) -> None:
        survives(deployment, supply, TIMERS[scene], most=8)

    @pytest.mark.parametrize("scene", RUNNERS)
    def test_a_batch_that_fails_may_be_given_again(self, deployment: Deployment, supply: Keys, scene: str) -> None:
        survives(deployment, supply, RUNNERS[scene], most=4)

    @pytest.mark.parametrize("scene", WINDOWS)
    def test_windows_that_fail_fire_as_if_they_had_not(self, deployment: Deployment, supply: Keys, scene: str) -> None:
        survives(deployment, supply, WINDOWS[scene], most=2)
