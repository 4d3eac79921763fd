"""Write key_groups.json: the key group of key hashes, and the hashes that bound key groups.

Whole-number arithmetic of Python only, so that nothing of the package is tested against itself. Run:

    python formats/vectors/make_key_groups.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path

TARGET = Path(__file__).with_name("key_groups.json")
MAX_PARALLELISMS = [1, 2, 3, 7, 10, 100, 128, 192, 1000, 4096, 32767, 32768]
LOWEST, HIGHEST = -(2**63), 2**63 - 1


def key_group(key_hash: int, max_parallelism: int) -> int:
    """Return the key group by the definition: the upper half of the shifted hash, scaled."""
    upper = (key_hash + 2**63) // 2**32
    return upper * max_parallelism // 2**32


def bounds(start: int, end: int, max_parallelism: int) -> tuple[int, int]:
    """Return the first and the last hash by bisection over all hashes."""

    def first_at_least(group: int) -> int:
        low, high = LOWEST, HIGHEST + 1
        while low < high:
            middle = (low + high) // 2
            if key_group(middle, max_parallelism) >= group:
                high = middle
            else:
                low = middle + 1
        return low

    return first_at_least(start), first_at_least(end + 1) - 1


def main() -> None:
    """Write the file."""
    chosen = random.Random(42)  # noqa: S311 - the same numbers on every run
    hashes = [LOWEST, LOWEST + 1, -(2**32) - 1, -(2**32), -1, 0, 1, 2**32 - 1, 2**32, HIGHEST - 1, HIGHEST]
    hashes += [chosen.randint(LOWEST, HIGHEST) for _ in range(20)]
    groups = [
        {"max_parallelism": size, "key_groups": [key_group(value, size) for value in hashes]}
        for size in MAX_PARALLELISMS
    ]
    ranges = []
    for size in MAX_PARALLELISMS:
        for start, end in sorted({(0, size - 1), (0, 0), (size - 1, size - 1), (size // 3, size // 2)}):
            low, high = bounds(start, end, size)
            ranges.append({"max_parallelism": size, "key_groups": [start, end], "hashes": [low, high]})
    lines = [
        '{"source": "whole-number arithmetic, made by formats/vectors/make_key_groups.py",',
        f'"hashes": {json.dumps(hashes)},',
        '"groups": [\n' + ",\n".join(map(json.dumps, groups)) + "\n],",
        '"ranges": [\n' + ",\n".join(map(json.dumps, ranges)) + "\n]}",
    ]
    TARGET.write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
