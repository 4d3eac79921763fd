"""Conformance suites: what keyed state means, as pytest classes that run over any deployment of a backend.

A suite is subclassed in a test module of one's own, next to a fixture `deployment`; `DEPLOYMENTS` are those that
arrowstate itself is tested with. Needs pytest.

```python
import pytest
from arrowstate.testing import DEPLOYMENTS, ListStateSuite

@pytest.fixture(params=DEPLOYMENTS, ids=str)
def deployment(request):
    return request.param

class TestLists(ListStateSuite):
    pass
```
"""

from arrowstate.testing.deployments import COLLIDING_KEYS, DEPLOYMENTS, PLAIN_KEYS, Clock, Deployment, Job, Keys
from arrowstate.testing.iteration import IterationSuite
from arrowstate.testing.lists import ListStateSuite
from arrowstate.testing.maps import MapStateSuite
from arrowstate.testing.namespaces import NamespaceSuite
from arrowstate.testing.single import ReducingStateSuite, ValueStateSuite
from arrowstate.testing.suite import KeyedStateSuite
from arrowstate.testing.time_to_live import TimeToLiveSuite

__all__ = [
    "COLLIDING_KEYS",
    "DEPLOYMENTS",
    "PLAIN_KEYS",
    "Clock",
    "Deployment",
    "IterationSuite",
    "Job",
    "KeyedStateSuite",
    "Keys",
    "ListStateSuite",
    "MapStateSuite",
    "NamespaceSuite",
    "ReducingStateSuite",
    "TimeToLiveSuite",
    "ValueStateSuite",
]
