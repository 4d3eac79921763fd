"""Savepoints of Flink with damaged bytes: what a reader may do with them, seed by seed.

    tools/python tests/support/flink_mutations.py FOLDER --seed 4711 --trials 1000

A damaged savepoint gives rows, or an error of ours that names a place; nothing else, and no more memory than a few
times its bytes. A file whose every byte is under a checksum gives an error or the rows it held.
"""

import argparse
import random
import resource
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from arrowstate.errors import ArrowStateError
from arrowstate.foreign.flink.hints import Hints
from arrowstate.foreign.flink.metadata import read_metadata
from arrowstate.foreign.flink.places import Places, Stream
from arrowstate.foreign.flink.savepoint import FlinkSavepoint
from arrowstate.storage import Storage

LENGTHS = (0, 1, -1, 127, 128, 255, 65535, 2**31 - 1, -(2**31), 2**24)


class Damaged(Places):
    """The files of a savepoint, one of them with other bytes."""

    def __init__(self, place: Path) -> None:
        self.changed: dict[str, bytes] = {}
        super().__init__(place)

    def _mapped(self, path: str, storage: Storage | None = None) -> Stream:
        if path in self.changed and storage in (None, self.storage):
            return Stream(np.frombuffer(self.changed[path], np.uint8), path)
        return super()._mapped(path, storage)

    @property
    def files(self) -> list[str]:
        """The files that may be damaged."""
        return [path for path in self.storage.list("") if not path.startswith("chk-") or path.startswith(self.folder)]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with a part of them changed, cut off, doubled, or a length that is none."""
    found = bytearray(data)
    place = chance.randrange(max(len(found), 1))
    kind = chance.randrange(7)
    if kind == 0 and found:
        found[place] ^= 1 << chance.randrange(8)
    elif kind == 1 and found:
        found[place] = chance.randrange(256)
    elif kind == 2:
        del found[place:]
    elif kind == 3:
        found[place : place + 4] = struct.pack(">i", chance.choice(LENGTHS))
    elif kind == 4:
        del found[place : place + chance.randrange(1, 9)]
    elif kind == 5:
        found[place:place] = found[place : place + chance.randrange(1, 64)]
    else:
        found[place : place + 8] = chance.randbytes(8)
    return bytes(found)


def rows_of(savepoint: FlinkSavepoint, names: list[str]) -> Iterator[tuple[str, pa.Table | Exception]]:
    """Yield each state, or the error that it gave."""
    for name in names:
        try:
            table = savepoint[name].to_arrow()
            table.validate(full=True)
            yield name, table
        except ArrowStateError as error:
            assert str(error)
            yield name, error


def trial(place: Path, seed: int, states: int = 3) -> str:
    """Damage one file of a savepoint and read it; return what came of it."""
    chance = random.Random(seed)
    damaged = Damaged(place)
    path = chance.choice(damaged.files)
    whole = damaged._mapped(path).data.tobytes()
    damaged.changed[path] = mutated(whole, chance)
    if path == damaged.folder + "_metadata":
        damaged.metadata = damaged._mapped(path)
    try:
        savepoint = FlinkSavepoint(damaged, read_metadata(damaged.metadata.view), Hints())
        names = list(savepoint.states)
    except ArrowStateError as error:
        return type(error).__name__
    chosen = chance.sample(names, min(states, len(names)))
    results = [type(found).__name__ for _, found in rows_of(savepoint, chosen)]
    return next((result for result in results if result != "Table"), "Table")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=1000)
    options = parser.parse_args()
    counts: dict[str, int] = {}
    for seed in range(options.seed, options.seed + options.trials):
        place = options.folder[seed % len(options.folder)]
        began = time.process_time()
        try:
            result = trial(place, seed)
        except Exception as error:  # noqa: BLE001  every error that is not ours is a finding
            print(f"seed {seed} of {place}: {type(error).__name__}: {error}", flush=True)
            result = "FINDING"
        counts[result] = counts.get(result, 0) + 1
        if time.process_time() - began > 20:
            print(f"seed {seed} of {place} took {time.process_time() - began:.0f} s", flush=True)
    print(counts, f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")
    return 1 if counts.get("FINDING") else 0


if __name__ == "__main__":
    sys.exit(main())
