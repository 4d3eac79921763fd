"""Conformance suites: what state and timers mean, as pytest classes that run over any deployment of a backend.

A suite is subclassed in a test module of one's own, next to a fixture `deployment`; `DEPLOYMENTS` are those that
arrowstate itself is tested with. `arrowstate.testing.models` has the plain dicts to which random histories compare a
backend. Needs pytest.

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
| `CheckpointStreamSuite` | what snapshots are written through, on any storage: needs a fixture `storage` |

```python
import pytest
from arrowstate.testing import DEPLOYMENTS, ListStateSuite

@pytest.fixture(params=DEPLOYMENTS, ids=str)
def deployment(request):
    return request.param

class TestLists(ListStateSuite):
    pass
```

The other half is a fault kit: `FaultyStorage` wraps any storage and fails as real ones do, at a chosen call or by a
seed; and `python -m arrowstate.testing.simulate` lets the processes around a store run against each other on such
storages.
"""

from arrowstate.testing.aggregating import AggregatingStateSuite
from arrowstate.testing.deployments import COLLIDING_KEYS, DEPLOYMENTS, LANCE, PLAIN_KEYS, Clock, Deployment, Job, Keys
from arrowstate.testing.evolution import SchemaEvolutionSuite
from arrowstate.testing.expired_rows import ExpiredRowsSuite
from arrowstate.testing.faults import (
    Call,
    Crashed,
    Fault,
    FaultyStorage,
    PlannedFaults,
    SeededFaults,
    faults_of,
)
from arrowstate.testing.firing import TimerFiringSuite
from arrowstate.testing.iteration import IterationSuite
from arrowstate.testing.key_evolution import KeyEvolutionSuite
from arrowstate.testing.key_groups import KeyGroupSuite
from arrowstate.testing.kinds import EveryKindSuite
from arrowstate.testing.lists import ListStateSuite
from arrowstate.testing.maps import MapStateSuite
from arrowstate.testing.namespaces import NamespaceSuite
from arrowstate.testing.operator_state import OperatorStateSuite
from arrowstate.testing.single import ReducingStateSuite, ValueStateSuite
from arrowstate.testing.streams import CheckpointStreamSuite
from arrowstate.testing.suite import KeyedStateSuite
from arrowstate.testing.time_to_live import TimeToLiveSuite
from arrowstate.testing.timers import TimerSuite
from arrowstate.testing.transactions import TransactionSuite

__all__ = [
    "COLLIDING_KEYS",
    "DEPLOYMENTS",
    "LANCE",
    "PLAIN_KEYS",
    "AggregatingStateSuite",
    "CheckpointStreamSuite",
    "Call",
    "Clock",
    "Crashed",
    "Deployment",
    "EveryKindSuite",
    "ExpiredRowsSuite",
    "Fault",
    "FaultyStorage",
    "IterationSuite",
    "Job",
    "KeyEvolutionSuite",
    "KeyGroupSuite",
    "KeyedStateSuite",
    "Keys",
    "ListStateSuite",
    "MapStateSuite",
    "NamespaceSuite",
    "OperatorStateSuite",
    "PlannedFaults",
    "ReducingStateSuite",
    "SchemaEvolutionSuite",
    "SeededFaults",
    "TimeToLiveSuite",
    "TimerFiringSuite",
    "TimerSuite",
    "TransactionSuite",
    "ValueStateSuite",
    "faults_of",
]
