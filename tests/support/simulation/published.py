"""What published tables show, read without the code that publishes more than it must be: file by file, row by row."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from arrowstate.publish.delta_table import _from_z85
from arrowstate.publish.table import Files, newest_version
from arrowstate.storage.base import Storage
from simulation.content import NOTE, OPERATOR

__all__ = ["FORMATS", "Shown", "shown"]

FORMATS: tuple[Literal["iceberg", "delta"], ...] = ("iceberg", "delta")
_FOLDER = f"{OPERATOR}/{NOTE.name}"


class Shown(NamedTuple):
    """A checkpoint as a table shows it."""

    number: int
    "That of its log entry."
    notes: dict[int, str | None]
    stored: frozenset[str]
    "The files of the store that it needs."


def shown(format: str, store: Storage, target: Storage) -> list[Shown]:
    """Return what a place shows, oldest first; nothing where nothing was published."""
    return [*(_of_iceberg(store, target) if format == "iceberg" else _of_delta(target))]


def _of_iceberg(store: Storage, target: Storage) -> Iterator[Shown]:
    version = newest_version(target, _FOLDER)
    files = Files(target)
    for snapshot in () if version is None else version.metadata["snapshots"]:
        entries = [
            (manifest["content"], entry["data_file"])
            for manifest in files.manifests(snapshot)
            for entry in files.entries(manifest)[0]
        ]
        dead = {}
        for content, file in entries:
            if content == 1:
                start = file["content_offset"]
                data = _read(store, target, file["file_path"])[start : start + file["content_size_in_bytes"]]
                dead[file["referenced_data_file"]] = _numbers(data[4:-4])
        paths = [file["file_path"] for content, file in entries if content == 0]
        notes: dict[int, str | None] = {}
        for path in paths:
            notes |= _rows(_read(store, target, path), dead.get(path, ()))
        own = frozenset(path.removeprefix(f"{store.url}/") for path in paths if path.startswith(f"{store.url}/"))
        yield Shown(int(snapshot["summary"]["arrowstate.log-number"]), notes, own)


def _of_delta(target: Storage) -> Iterator[Shown]:
    names = [path.rpartition("/")[2] for path in target.list(f"{_FOLDER}/_delta_log/")]
    commits = sorted(int(name[:20]) for name in names if name.endswith(".json"))
    checkpoints = sorted(int(name[:20]) for name in names if name.endswith(".parquet"))
    adds: dict[str, Mapping[str, Any]] = {}
    first = 0
    if commits and commits[0]:
        first = checkpoints[0]
        rows = pq.read_table(io.BytesIO(target.read(f"{_FOLDER}/_delta_log/{first:020d}.checkpoint.parquet")))
        adds = {item["path"]: item for item in rows["add"].to_pylist() if item is not None}
    for number in commits:
        if number < first:
            continue
        lines = target.read(f"{_FOLDER}/_delta_log/{number:020d}.json").splitlines()
        actions = [json.loads(line) for line in lines]
        if number > first or not first:
            for action in actions:
                adds.pop(action.get("remove", {}).get("path"), None)
            adds |= {action["add"]["path"]: action["add"] for action in actions if "add" in action}
        notes: dict[int, str | None] = {}
        for path, item in adds.items():
            dead: Sequence[int] | BitMap = ()
            if (vector := item.get("deletionVector")) is not None:
                name = f"deletion_vector_{UUID(bytes=_from_z85(vector['pathOrInlineDv']))}.bin"
                dead = _numbers(target.read(f"{_FOLDER}/{name}")[5 : 5 + vector["sizeInBytes"]])
            notes |= _rows(target.read(f"{_FOLDER}/{path}"), dead)
        yield Shown(int(actions[0]["commitInfo"]["operationParameters"]["arrowstate.log-number"]), notes, frozenset())


def _read(store: Storage, target: Storage, url: str) -> bytes:
    place = store if url.startswith(f"{store.url}/") else target
    return place.read(url.removeprefix(f"{place.url}/"))


def _numbers(vector: bytes) -> BitMap:
    """The row numbers of a vector: a magic number, one as 64 bits, and zero as 32, are before them."""
    return BitMap.deserialize(vector[16:])


def _rows(data: bytes, dead: Sequence[int] | BitMap) -> dict[int, str | None]:
    table = pq.read_table(io.BytesIO(data), columns=["k", NOTE.name])
    alive = pa.array([number not in dead for number in range(table.num_rows)], pa.bool_())
    live = table.filter(alive)
    return dict(zip(live["k"].to_pylist(), live[NOTE.name].to_pylist(), strict=True))
