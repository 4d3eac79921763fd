"""Which namespaces of which keys are merged into which others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arrowstate.table.key_batch import KeyBatch

__all__ = ["MergePlan"]


Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Which namespaces of which keys are merged into which others."""

    sources: KeyBatch
    "Distinct keys and namespaces; none is a target."
    targets: KeyBatch
    target_of: Ints
    "The number of the target of each source."
    first_rows: Ints
    "The row of the batch in which each source comes first."
