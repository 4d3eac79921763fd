"""Merging runs while the table they are of is written to.

The runs are frozen first. Another thread merges them as they were, and keeps for each of their rows where it went. At
the end the merged run takes their place: rows that died meanwhile are marked dead in it too, so nothing is lost and
nothing comes back. Until then the table, its checkpoints and its readers know of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from arrowstate.table import kernels
from arrowstate.table.merging import BatchSink, MergePolicy, Merging
from arrowstate.table.run import FrozenRun, Run
from arrowstate.table.segments import Segments

Ints = npt.NDArray[np.int64]


class BackgroundMerge:
    """A merge of frozen runs. It takes 4 bytes of memory for each of their rows until it is dropped."""

    def __init__(
        self,
        sources: Sequence[FrozenRun],
        policy: MergePolicy,
        make_sink: Callable[[], BatchSink],
        *,
        expired_up_to: int | None = None,
        time_column: int | None = None,
    ) -> None:
        self.sources = tuple(sources)
        self.merged: Run | None = None
        """The merged run, None before `run`, and where no row is left."""
        self.done = False
        self._policy = policy
        self._make_sink = make_sink
        self._expired_up_to = expired_up_to
        self._time_column = time_column
        self._merging: Merging | None = None

    def run(self) -> None:
        """Merge; may be called by another thread than the owner of the table."""
        self._merging = Merging(
            [source.as_run() for source in self.sources],
            self._policy,
            self._make_sink(),
            in_steps=True,
            expired_up_to=self._expired_up_to,
            time_column=self._time_column,
        )
        self._merging.finish()
        self.merged = self._merging.merged
        self.done = True

    def places(self, number: int, rows: Ints) -> Ints:
        """Return the rows of the merged run that some rows of a source became; rows that had no part are left out."""
        assert self._merging is not None, "it was run"
        return self._merging.places(number, rows)

    def let_go(self) -> None:
        """Let go of all rows, and keep only where they went and how many there are."""
        self.sources = ()
        if self._merging is not None:
            self._merging.let_go()
        if self.merged is not None:
            self.merged = replace(self.merged, segments=Segments(), built=None)

    def died(self) -> Ints | None:
        """Return the rows of the merged run that have died in the sources since; None if one came back to life."""
        rows = []
        for number, source in enumerate(self.sources):
            now = source.run.live
            if (now & ~source.live).any():
                return None
            gone = kernels.live_rows(source.live & ~now, 0, source.run.rows) + source.run.first_row
            rows.append(self.places(number, gone))
        return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
