"""What tests of jobs and storages need: a storage that fails as real ones do, and what every storage must keep.

`FaultyStorage` wraps any storage and fails at a chosen call or by a seed. `StorageSuite` is the contract of a storage,
and `CheckpointStreamSuite` what snapshots need of one, as pytest classes: each is subclassed in a test module of one's
own, next to a fixture `storage`. The suites need pytest.

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
from arrowstate.testing.storages import StorageSuite
from arrowstate.testing.streams import CheckpointStreamSuite

__all__ = [
    "Call",
    "CheckpointStreamSuite",
    "Crashed",
    "Fault",
    "FaultyStorage",
    "PlannedFaults",
    "SeededFaults",
    "StorageSuite",
    "faults_of",
]
