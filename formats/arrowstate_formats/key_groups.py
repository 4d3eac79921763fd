"""Key groups: equal ranges of the key hash, and which subtask owns which.

A key group is a range of the signed 64-bit key hash: the upper 32 bits, taken as an unsigned number
from the bottom of the signed order, are scaled to `max_parallelism`. Data sorted by the hash is
therefore sorted by key group for every max parallelism, and a key group is one slice.
Specification: formats/spec/key-groups.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrowstate_formats.errors import InvalidInputError
from arrowstate_formats.integers import check_integer
from arrowstate_formats.key_hash import Keys, key_hash

MAX_PARALLELISM = 32768
"""The largest max parallelism, hence the largest number of key groups."""

_HALF = 1 << 31


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """The key groups from `start` to `end`, both inclusive; never empty.

    Raises
    ------
    InvalidInputError
        If not 0 <= start <= end < 32768.

    Examples
    --------
    >>> groups = KeyGroupRange(3, 7)
    >>> len(groups), 7 in groups, 8 in groups
    (5, True, False)
    """

    start: int
    """The first key group."""
    end: int
    """The last key group, inclusive."""

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            value = getattr(self, name)
            if type(value) is not int:
                object.__setattr__(self, name, check_integer(f"the {name} of a key group range", value))
        if not 0 <= self.start <= self.end < MAX_PARALLELISM:
            raise InvalidInputError(
                f"a key group range needs 0 <= start <= end < {MAX_PARALLELISM}, got {self.start} to {self.end}"
            )

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, (int, np.integer)) and self.start <= int(key_group) <= self.end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange | None:
        """Return the key groups in both ranges, or None if there are none.

        Examples
        --------
        >>> KeyGroupRange(0, 10).intersection(KeyGroupRange(10, 20))
        KeyGroupRange(start=10, end=10)
        """
        start, end = max(self.start, other.start), min(self.end, other.end)
        return KeyGroupRange(start, end) if start <= end else None

    def hash_bounds(self, max_parallelism: int) -> tuple[int, int]:
        """Return the smallest and the largest key hash of these key groups, both inclusive.

        Raises
        ------
        InvalidInputError
            If max_parallelism is outside 1 to 32768, or `end` is not below it.

        Examples
        --------
        >>> KeyGroupRange(64, 127).hash_bounds(128)
        (0, 9223372036854775807)
        """
        max_parallelism = check_max_parallelism(max_parallelism)
        if self.end >= max_parallelism:
            raise InvalidInputError(
                f"key groups {self.start} to {self.end} do not exist at max parallelism {max_parallelism}"
            )
        return _first_hash(self.start, max_parallelism), _first_hash(self.end + 1, max_parallelism) - 1


@lru_cache(4096)
def _first_hash(key_group: int, max_parallelism: int) -> int:
    # The smallest u in 0..2^32 with u * max_parallelism >> 32 >= key_group is the ceiling of the quotient.
    return (-((-key_group << 32) // max_parallelism) - _HALF) << 32


def first_hashes(max_parallelism: int) -> npt.NDArray[np.int64]:
    """Return the smallest key hash of each key group, rising."""
    max_parallelism = check_max_parallelism(max_parallelism)
    groups = np.arange(max_parallelism, dtype=np.int64)
    return (-((-groups << 32) // max_parallelism) - _HALF) << 32


def key_groups_of_hashes(hashes: npt.NDArray[np.int64], max_parallelism: int) -> npt.NDArray[np.int32]:
    """Return the key group, 0 to max_parallelism - 1, of each key hash.

    Raises
    ------
    InvalidInputError
        If max_parallelism is outside 1 to 32768.

    Examples
    --------
    >>> key_groups_of_hashes(np.array([-(2**63), 0, 2**63 - 1]), 128).tolist()
    [0, 64, 127]
    """
    max_parallelism = check_max_parallelism(max_parallelism)
    groups = hashes >> 32
    groups += _HALF
    groups *= max_parallelism
    groups >>= 32
    return groups.astype(np.int32)


def key_groups(keys: Keys, max_parallelism: int) -> pa.Int32Array:
    """Return the key group, 0 to max_parallelism - 1, of each key; never null.

    Parameters
    ----------
    keys
        As for `key_hash`: one column, or a record batch or struct array with one column per key column.
    max_parallelism
        1 to 32768.

    Raises
    ------
    InvalidInputError
        If max_parallelism is out of range or a key column has a type without a hash.

    Examples
    --------
    >>> key_groups(pa.array([1, 2, 3]), 128).type
    DataType(int32)
    """
    max_parallelism = check_max_parallelism(max_parallelism)
    return pa.array(key_groups_of_hashes(key_hash(keys).to_numpy(), max_parallelism), pa.int32())


def key_group_range(max_parallelism: int, *, parallelism: int, subtask: int) -> KeyGroupRange:
    """Return the key groups that one subtask owns.

    The ranges of subtasks 0 to `parallelism - 1` cover every key group exactly once and
    differ in length by at most one.

    Raises
    ------
    InvalidInputError
        If not 1 <= parallelism <= max_parallelism <= 32768, or subtask is outside 0 to parallelism - 1.

    Examples
    --------
    >>> key_group_range(128, parallelism=3, subtask=1)
    KeyGroupRange(start=43, end=85)
    """
    max_parallelism = check_max_parallelism(max_parallelism)
    parallelism = check_integer("parallelism", parallelism)
    if not 1 <= parallelism <= max_parallelism:
        raise InvalidInputError(f"parallelism must be 1 to the max parallelism {max_parallelism}, got {parallelism}")
    subtask = check_integer("subtask", subtask, 0, parallelism - 1)
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    return KeyGroupRange(start, ((subtask + 1) * max_parallelism - 1) // parallelism)


def default_max_parallelism(parallelism: int) -> int:
    """Return the max parallelism of a job that did not choose one: a power of two, 128 to 32768.

    Raises
    ------
    InvalidInputError
        If parallelism is outside 1 to 32768.

    Examples
    --------
    >>> default_max_parallelism(85), default_max_parallelism(86)
    (128, 256)
    """
    parallelism = check_integer("parallelism", parallelism)
    if not 1 <= parallelism <= MAX_PARALLELISM:
        raise InvalidInputError(f"parallelism must be 1 to {MAX_PARALLELISM}, got {parallelism}")
    room = parallelism + parallelism // 2
    return min(max(1 << (room - 1).bit_length(), 128), MAX_PARALLELISM)


def check_max_parallelism(max_parallelism: int) -> int:
    """Return a max parallelism as an `int`; one of NumPy is taken too."""
    if type(max_parallelism) is not int:
        max_parallelism = check_integer("max parallelism", max_parallelism)
    if not 1 <= max_parallelism <= MAX_PARALLELISM:
        raise InvalidInputError(f"max parallelism must be 1 to {MAX_PARALLELISM}, got {max_parallelism}")
    return max_parallelism
