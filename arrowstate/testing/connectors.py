"""What the suites of sources and sinks share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa


def pickled(connector: Any) -> Any:
    """Return a connector as it is in another process."""
    import cloudpickle

    return cloudpickle.loads(cloudpickle.dumps(connector))


def counted(batches: Iterable[pa.RecordBatch]) -> Counter[str]:
    """Return how often there is each row."""
    return Counter(repr(row) for batch in batches for row in batch.to_pylist())
