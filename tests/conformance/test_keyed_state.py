"""The conformance suites of keyed state, over every deployment of arrowstate's own."""

from __future__ import annotations

from arrowstate.testing import (
    IterationSuite,
    ListStateSuite,
    MapStateSuite,
    NamespaceSuite,
    ReducingStateSuite,
    TimeToLiveSuite,
    ValueStateSuite,
)


class TestValueState(ValueStateSuite):
    pass


class TestReducingState(ReducingStateSuite):
    pass


class TestListState(ListStateSuite):
    pass


class TestMapState(MapStateSuite):
    pass


class TestNamespaces(NamespaceSuite):
    pass


class TestTimeToLive(TimeToLiveSuite):
    pass


class TestIteration(IterationSuite):
    pass
