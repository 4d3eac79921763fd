"""Which namespaces are due: the rows whose window ends up to a time, found in the rows themselves.

The end of a window is a column of the state, so no timer per key and window is needed. Each run is asked for the
lowest end that it holds and is passed over until that is due; a run that is due is gone through once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate.state.base import KeyedState
from arrowstate.table import kernels, pair_kernels
from arrowstate.table.kernels import is_live
from arrowstate.table.run import Run
from arrowstate.table.table import gather
from arrowstate_formats.compiled import kernel

__all__ = ["DueRows", "ascending", "gathered"]

Ints = npt.NDArray[np.int64]
Rows = list[tuple[Run, Ints, Ints]]

_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class DueRows:
    """The rows of a state in the order of one of its namespace columns, an int64.

    Parameters
    ----------
    state
        The state.
    column
        The number of the column in the layout of the state.
    """

    def __init__(self, state: KeyedState[Any], column: int) -> None:
        self._state = state
        self._column = column
        self._lowest: dict[int, tuple[Run, int]] = {}
        state.transactions.join(self)

    def begin(self) -> Any:
        # Each call of `find` makes another dict.
        return self._lowest

    def keep(self) -> None:
        """There is nothing to give up."""

    def go_back(self, mark: Any) -> None:
        self._lowest = mark

    def find(self, after: int, up_to: int) -> Rows:
        """Return the rows with a value above `after` and up to `up_to`, in the order of the runs.

        `after` may rise from call to call and must not fall.
        """
        self._state.flush()
        known, self._lowest = self._lowest, {}
        found = []
        for run in self._state.table.runs:
            if not run.live_rows:
                continue
            entry = known.get(id(run))
            lowest = entry[1] if entry is not None and entry[0] is run else _LOWEST
            if lowest <= up_to:
                parts = []
                lowest = _HIGHEST
                for segment in run.segments:
                    values = segment.batch.column(self._column).to_numpy()
                    rows, above = _within(values, run, segment.first_row, after, up_to)
                    lowest = min(lowest, above)
                    parts.append(rows)
                rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
                if rows.size:
                    found.append((run, rows, rows))
                    # The caller may leave these rows where they are, and ask for them again.
                    lowest = up_to
            self._lowest[id(run)] = (run, lowest)
        return found

    def remove(self, found: Rows) -> None:
        """Drop rows that `find` has returned."""
        for run, _, rows in found:
            self._state.table.kill(run, rows)


def _within(values: Ints, run: Run, first_row: int, after: int, up_to: int) -> tuple[Ints, int]:
    """Return the live rows with a value above `after` and up to `up_to`, and the lowest value above that."""
    out, lowest = np.empty(values.size, dtype=np.int64), np.empty(1, dtype=np.int64)
    count = _pick(values, run.live, first_row - run.first_row, first_row, after, up_to, out, lowest)
    return out[:count].copy(), int(lowest[0])


@kernel("int64[], uint8[], int64, int64, int64, int64, out int64[], out int64[]")
def _pick(values: Any, live: Any, first_bit: Any, first_row: Any, after: Any, up_to: Any, out: Any, above: Any) -> Any:
    count = 0
    lowest = _HIGHEST
    for i in range(values.size):
        value = values[i]
        if not is_live(live, first_bit + i):
            continue
        if value > up_to:
            lowest = min(lowest, value)
        elif value > after:
            out[count] = first_row + i
            count += 1
    above[0] = lowest
    return count


def gathered(state: KeyedState[Any], found: Rows) -> tuple[Ints, list[pa.Array]]:
    """Return the hashes of the keys of the rows, and the columns of the rows from the first key column on."""
    schema = state.layout.schema
    first = 1 if state.layout.second is None else 2
    columns = [gather(found, number, schema.field(number).type) for number in range(first, len(schema))]
    return gather(found, 0, pa.int64()).to_numpy(), columns


def ascending(first: Ints, second: Ints) -> Ints:
    """Return the row numbers in the order of (first, second); equal rows keep their order."""
    if first.size and first.min() == first.max():
        _, order = kernels.sort_by_hash(_spread(second))
        return np.asarray(order)
    return pair_kernels.sort_by_pair(_spread(first), _spread(second))


def _spread(values: Ints) -> Ints:
    """Return numbers of the same order that differ in their top bits, by which the sort begins."""
    if not values.size:
        return values
    lowest, highest = int(values.min()), int(values.max())
    bits = (highest - lowest).bit_length()
    return values if bits > 62 else (values - lowest) << (63 - bits)
