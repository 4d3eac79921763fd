"""The conformance suites in which runs matter most, over checkpoints in the Lance format."""

import pytest

from suites import LANCE, ExpiredRowsSuite, KeyGroupSuite, ListStateSuite, MapStateSuite, TimerSuite, ValueStateSuite


@pytest.fixture
def deployment():
    return LANCE


class TestValueState(ValueStateSuite):
    pass


class TestListState(ListStateSuite):
    pass


class TestMapState(MapStateSuite):
    pass


class TestTimers(TimerSuite):
    pass


class TestExpiredRows(ExpiredRowsSuite):
    pass


class TestKeyGroups(KeyGroupSuite):
    pass
