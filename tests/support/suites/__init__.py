"""Conformance suites: what state and timers mean, as pytest classes that run over any deployment of a backend.

A suite is subclassed in a test module, next to a fixture `deployment`; `DEPLOYMENTS` are those that arrowstate is
tested with. `suites.models` has the plain dicts to which random histories compare a backend.

| suites | about |
| --- | --- |
| `EveryKindSuite` | keys, names, namespaces and snapshots of any kind of keyed state |
| `ValueStateSuite`, `ReducingStateSuite`, `AggregatingStateSuite`, `ListStateSuite`, `MapStateSuite` | one kind each |
| `NamespaceSuite`, `IterationSuite` | merging namespaces; going through whole states |
| `TimeToLiveSuite`, `ExpiredRowsSuite` | when rows expire; what becomes of them |
| `KeyGroupSuite` | the key hash, key groups, rescaling |
| `TimerSuite`, `TimerFiringSuite` | timers as a set; in which order they fire |
| `OperatorStateSuite` | split lists, union lists, broadcast state |
| `TransactionSuite` | what an error leaves behind: an adversary at every verb, timers, windows and runners |
| `SchemaEvolutionSuite`, `KeyEvolutionSuite` | types that change after a restore; keys that do |
"""

from suites.aggregating import AggregatingStateSuite
from suites.deployments import COLLIDING_KEYS, DEPLOYMENTS, LANCE, PLAIN_KEYS, Clock, Deployment, Job, Keys
from suites.evolution import SchemaEvolutionSuite
from suites.expired_rows import ExpiredRowsSuite
from suites.firing import TimerFiringSuite
from suites.iteration import IterationSuite
from suites.key_evolution import KeyEvolutionSuite
from suites.key_groups import KeyGroupSuite
from suites.kinds import EveryKindSuite
from suites.lists import ListStateSuite
from suites.maps import MapStateSuite
from suites.namespaces import NamespaceSuite
from suites.operator_state import OperatorStateSuite
from suites.single import ReducingStateSuite, ValueStateSuite
from suites.suite import KeyedStateSuite
from suites.time_to_live import TimeToLiveSuite
from suites.timers import TimerSuite
from suites.transactions import TransactionSuite

__all__ = [
    "AggregatingStateSuite",
    "COLLIDING_KEYS",
    "Clock",
    "DEPLOYMENTS",
    "Deployment",
    "EveryKindSuite",
    "ExpiredRowsSuite",
    "IterationSuite",
    "Job",
    "KeyEvolutionSuite",
    "KeyGroupSuite",
    "KeyedStateSuite",
    "Keys",
    "LANCE",
    "ListStateSuite",
    "MapStateSuite",
    "NamespaceSuite",
    "OperatorStateSuite",
    "PLAIN_KEYS",
    "ReducingStateSuite",
    "SchemaEvolutionSuite",
    "TimeToLiveSuite",
    "TimerFiringSuite",
    "TimerSuite",
    "TransactionSuite",
    "ValueStateSuite",
]
