"""Write redistribution.json: what each subtask gets of operator state at another parallelism, by counting elements.

Run from the root of the repository: `python formats/vectors/make_redistribution.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CASES: list[tuple[list[list[int]], int]] = [
    ([[5]], 2),
    ([[2, 3]], 2),
    ([[2, 3]], 3),
    ([[1, 1, 1, 1]], 3),
    ([[0, 7, 0]], 4),
    ([[4], [2], [5]], 3),
    ([[3, 0], [1, 1], [0, 0], [2, 5]], 3),
    ([[1], [1], [1]], 2),
    ([[2, 3, 4]], 1),
]
"""The elements that each part of each list state has, and the new parallelism."""


def shared(states: list[list[int]], parallelism: int) -> list[list[list[int]]]:
    """Return by state and new subtask the elements it gets, each as its number over all parts of the state."""
    out = []
    turn = 0
    for parts in states:
        total = sum(parts)
        pieces: list[list[int]] = [[] for _ in range(parallelism)]
        if len(parts) == parallelism:
            numbers = iter(range(total))
            pieces = [[next(numbers) for _ in range(count)] for count in parts]
        else:
            following = 0
            for piece in range(parallelism):
                size = total // parallelism + (piece < total % parallelism)
                pieces[(piece + turn) % parallelism] = list(range(following, following + size))
                following += size
        turn += total % parallelism
        out.append(pieces)
    return out


def main() -> None:
    """Write the file."""
    cases: list[dict[str, Any]] = [
        {"parts": states, "parallelism": parallelism, "elements": shared(states, parallelism)}
        for states, parallelism in CASES
    ]
    Path(__file__).with_name("redistribution.json").write_text(json.dumps({"cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
