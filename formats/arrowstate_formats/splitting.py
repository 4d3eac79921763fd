"""Where the rows of a run are cut into record batches and row groups.

A batch is the smallest part of a file that is read and checked, so cuts lie where a rescaled subtask begins or
ends: at borders of key groups. Specification: formats/spec/run-files.md.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arrowstate_formats.errors import InvalidInputError
from arrowstate_formats.key_groups import check_max_parallelism, first_hashes, key_groups_of_hashes

TARGET_ROWS = 65536
"""How many rows a record batch or row group has, where key groups do not ask for another border."""


def split_at_key_groups(
    hashes: npt.NDArray[np.int64], max_parallelism: int, *, target_rows: int = TARGET_ROWS
) -> list[int]:
    """Return where to cut sorted rows into batches: rising row numbers from 0 to len(hashes), both included.

    Cuts follow the borders of key groups, so that a rescaled subtask reads few rows of others: small key groups
    share a batch of at most `target_rows`, a key group larger than that is a batch of its own, and one larger
    than 4 * target_rows is cut inside. Rows of equal hash always stay in one batch. Without rows the result is [0].
    """
    if target_rows < 1:
        raise InvalidInputError(f"target_rows must be at least 1, got {target_rows}")
    max_parallelism = check_max_parallelism(max_parallelism)
    if 0 < len(hashes) <= target_rows:
        return [0, len(hashes)]
    starts = _key_group_starts(hashes, max_parallelism)
    cuts = [0]
    while cuts[-1] < len(hashes):
        start = cuts[-1]
        # The last border that fits the target, or else the end of the key group that begins here.
        fitting = int(starts[np.searchsorted(starts, start + target_rows, side="right") - 1])
        if fitting > start:
            cuts.append(fitting)
            continue
        end = int(starts[np.searchsorted(starts, start, side="right")])
        if end - start <= 4 * target_rows:
            cuts.append(end)
        else:
            cuts.extend(_cuts_inside(hashes, start, end, target_rows))
    return cuts


def _key_group_starts(hashes: npt.NDArray[np.int64], max_parallelism: int) -> npt.NDArray[np.int64]:
    """Return the rows where a key group begins, and the number of rows."""
    if len(hashes) < max_parallelism:
        groups = key_groups_of_hashes(hashes, max_parallelism)
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
    else:
        starts = np.searchsorted(hashes, first_hashes(max_parallelism))
    return np.unique(np.append(starts, len(hashes)))


def _cuts_inside(hashes: npt.NDArray[np.int64], start: int, end: int, target_rows: int) -> list[int]:
    pieces = -(-(end - start) // target_rows)
    wanted = start + (np.arange(1, pieces) * (end - start)) // pieces
    # Where a cut falls between rows of equal hash, it moves back to the first of them.
    cuts = np.unique(np.searchsorted(hashes, hashes[wanted]))
    return [int(cut) for cut in cuts if start < cut < end] + [end]
