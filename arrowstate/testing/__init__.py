"""What tests of jobs, storages and connectors need: a storage that fails as real ones do, and what all must keep.

`simulate` runs a job of the runtime under bad luck of all kinds. `FaultyStorage` wraps any storage and fails at a
chosen call or by a seed. `StorageSuite` is the contract of a storage, and `CheckpointStreamSuite` what snapshots need
of one, as pytest classes: each is subclassed in a test module of one's own, next to a fixture `storage`.
`SourceConformance`, `SinkConformance` and `PreparingSinkConformance` are the same for connectors of jobs. The suites
need pytest.

```python
import pytest
from arrowstate.storage import open_storage
from arrowstate.testing import CheckpointStreamSuite, StorageSuite

@pytest.fixture
def storage(tmp_path):
    return open_storage(tmp_path, create=True)

class TestContract(StorageSuite):
    pass

class TestStreams(CheckpointStreamSuite):
    pass
```
"""

from arrowstate.testing.faults import (
    Call,
    Crashed,
    Fault,
    FaultyStorage,
    PlannedFaults,
    SeededFaults,
    faults_of,
)
from arrowstate.testing.jobs import SimulatedRun, simulate
from arrowstate.testing.preparing_sinks import PreparingSinkConformance
from arrowstate.testing.sinks import SinkConformance
from arrowstate.testing.sources import SourceConformance
from arrowstate.testing.storages import StorageSuite
from arrowstate.testing.streams import CheckpointStreamSuite

__all__ = [
    "Call",
    "CheckpointStreamSuite",
    "Crashed",
    "Fault",
    "FaultyStorage",
    "PlannedFaults",
    "PreparingSinkConformance",
    "SeededFaults",
    "SimulatedRun",
    "SinkConformance",
    "SourceConformance",
    "StorageSuite",
    "faults_of",
    "simulate",
]
