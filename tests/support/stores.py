"""Stores, backends and descriptors that many tests begin with, and what they ask of a store on a disk."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import arrowstate
from arrowstate.cli import main
from arrowstate.files.open_files import forget_open_files
from arrowstate.query.kept_reads import forget_checkpoints

KEY = pa.schema([("k", pa.int64())])
USER = pa.schema([("user", pa.string())])
CITY = arrowstate.ValueStateDescriptor("city", pa.string())
NOTE = arrowstate.ValueStateDescriptor("note", pa.string())
OFFSETS = arrowstate.OperatorListStateDescriptor("offsets", pa.int64())
TOTAL = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")


def backend_of(key: pa.Schema = KEY, max_parallelism: int = 128, **options: Any) -> arrowstate.KeyedStateBackend:
    """A backend without states."""
    return arrowstate.KeyedStateBackend(key=key, max_parallelism=max_parallelism, **options)


def totals_from(start: int = 0, rows: int = 3000) -> arrowstate.KeyedStateBackend:
    """A backend whose run is large enough for a file of its own; `start`, the total of key 0, tells it from others."""
    backend = backend_of()
    backend.state(TOTAL).add_batch(pa.array(range(rows)), pa.array(range(start, start + rows)))
    return backend


def commit(
    store: arrowstate.StateStore, states: Mapping[str, Sequence[arrowstate.KeyedStateBackend]], **options: Any
) -> arrowstate.Snapshot:
    """Write one checkpoint by a writer of its own."""
    with store.writer() as writer:
        return writer.checkpoint(states, **options)


def totals(snapshot: arrowstate.Snapshot) -> dict[int, int]:
    """The state `total` of the operator `op` by its key."""
    table = snapshot.to_arrow("op.total")
    return dict(zip(table["k"].to_pylist(), table["total"].to_pylist(), strict=True))


def ids(store: arrowstate.StateStore) -> list[int]:
    """The checkpoints of a store by their ids."""
    return [snapshot.checkpoint_id for snapshot in store.checkpoints()]


def sum_of_totals(snapshot: arrowstate.Snapshot) -> int:
    """The sum of the state `total` of the operator `op`, read anew."""
    forget_open_files()
    forget_checkpoints()
    return sum(totals(snapshot).values())


def copied(store: Path, to: Path) -> Path:
    """Copy a store, for a test to change; what this process keeps of files is of the others."""
    forget_open_files()
    forget_checkpoints()
    return Path(shutil.copytree(store, to))


def files(folder: Path | str) -> dict[str, bytes]:
    """Every file below a folder by its relative path."""
    folder = Path(folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Take the last byte of a file away."""
    path.write_bytes(path.read_bytes()[:-1])


def write(storage: Any, path: str, data: bytes = b"data") -> None:
    """Write a file of a storage in one piece."""
    with storage.write_file(path) as file:
        file.write(data)


def run(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """Run the command line: its exit code, what it printed, and its errors."""
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def until(condition: Callable[[], Any], message: str = "it did not come to that") -> Any:
    """Wait at most two minutes until a condition holds, and return what it returned."""
    deadline = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < deadline, message
        time.sleep(0.02)
    return found


def texts_of(value: Any) -> list[str]:
    """Every text in a JSON value, names of fields too."""
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in texts_of(part)]
    if isinstance(value, list):
        return [text for part in value for text in texts_of(part)]
    return [value] if isinstance(value, str) else []
