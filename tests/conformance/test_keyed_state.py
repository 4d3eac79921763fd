"""The conformance suites, over every deployment of arrowstate's own."""

from suites import (
    AggregatingStateSuite,
    EveryKindSuite,
    ExpiredRowsSuite,
    IterationSuite,
    KeyEvolutionSuite,
    KeyGroupSuite,
    ListStateSuite,
    MapStateSuite,
    NamespaceSuite,
    OperatorStateSuite,
    ReducingStateSuite,
    SchemaEvolutionSuite,
    TimerFiringSuite,
    TimerSuite,
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


class TestEveryKind(EveryKindSuite):
    pass


class TestKeyGroups(KeyGroupSuite):
    pass


class TestAggregatingState(AggregatingStateSuite):
    pass


class TestOperatorState(OperatorStateSuite):
    pass


class TestTimers(TimerSuite):
    pass


class TestTimerFiring(TimerFiringSuite):
    pass


class TestExpiredRows(ExpiredRowsSuite):
    pass


class TestSchemaEvolution(SchemaEvolutionSuite):
    pass


class TestKeyEvolution(KeyEvolutionSuite):
    pass
