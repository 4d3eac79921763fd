"""Write deletion_vectors.json: sets of row numbers, and their bytes as the reference implementation writes them.

Run from the root of the repository, with the package pyroaring:

    python formats/vectors/make_deletion_vectors.py
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from pyroaring import BitMap

TARGET = Path(__file__).with_name("deletion_vectors.json")

CASES = {
    "nothing": [],
    "one row": [[0, 1, 1]],
    "the last row there may be": [[(1 << 32) - 2, (1 << 32) - 1, 1]],
    "a list": [[row, row + 1, 1] for row in (1, 5, 9, 65_534)],
    "the longest list": [[0, 8192, 2]],
    "a bitmap": [[0, 8194, 2]],
    "a range": [[10, 60_000, 1]],
    "a whole container": [[0, 65_536, 1]],
    "a range over two containers": [[65_000, 66_000, 1]],
    "ranges in three containers, without offsets": [[0, 100, 1], [65_536, 65_836, 1], [131_072, 131_372, 1]],
    "ranges in four containers, with offsets": [[number << 16, (number << 16) + 300, 1] for number in range(4)],
    "a list, a bitmap and a range": [[3, 74, 67], [65_536, 75_536, 2], [200_000, 260_000, 1]],
}
"""Row numbers by first (inclusive), end (exclusive) and step."""


def main() -> None:
    """Write the file."""
    cases = []
    for name, ranges in CASES.items():
        bitmap = BitMap()
        for first, stop, step in ranges:
            bitmap |= BitMap(range(first, stop, step))
        bitmap.run_optimize()
        data = base64.b64encode(bitmap.serialize()).decode()
        cases.append(json.dumps({"name": name, "ranges": ranges, "rows": len(bitmap), "bytes": data}))
    TARGET.write_text(
        '{"source": "pyroaring, made by formats/vectors/make_deletion_vectors.py",\n"cases": [\n'
        + ",\n".join(cases)
        + "\n]}\n"
    )


if __name__ == "__main__":
    main()
