"""What Flink's own job said of its state, compared with what is read; plain values of both, as JSON has them."""

import json
import tarfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.foreign.flink.states import FlinkState

KINDS = {"+I": 0, "-U": 1, "+U": 2, "-D": 3}


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a fixture."""
    # Python 3.11.4 brought filters, later ones warn where none is named; the archives are our own.
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as opened:
        opened.extractall(folder, **options)


def plain(value: Any) -> Any:
    """A value of a truth file without the tags of its types."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "$pojo" in value:
        return {"_class": value["$pojo"], **{name: plain(each) for name, each in value["fields"].items()}}
    (tag, inner), *_ = value.items()
    if tag == "$set":
        return {"$set": sorted((plain(each) for each in inner), key=repr)}
    if tag == "$map":
        return sorted(([plain(key), plain(each)] for key, each in inner), key=repr)
    if tag == "$row":
        return [inner[0], *plain(inner[1])]
    if tag == "$left" or tag == "$right":
        return [tag, plain(inner)]
    if tag == "$double":
        return {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}[inner]
    if tag == "$ms":
        return inner * 1_000_000
    if tag in ("$datetime", "$instant"):
        return inner[0] * 10**9 + inner[1]
    if tag == "$sqlts":
        return inner[0] // 1000 * 10**9 + inner[1]
    return plain(inner)


def shown(array: pa.Array) -> list[Any]:
    """The values of a column as `plain` has them."""
    kind = array.type
    if pa.types.is_struct(kind):
        return _structs(array)
    if pa.types.is_map(kind):
        keys, items = shown(array.keys), shown(array.items)
        pairs = [[key, item] for key, item in zip(keys, items, strict=True)]
        return [None if cut is None else sorted(cut, key=repr) for cut in _cut(array, pairs)]
    if pa.types.is_list(kind):
        return _cut(array, shown(array.values))
    if pa.types.is_timestamp(kind):
        return [
            None if each is None else each
            for each in array.cast(pa.timestamp("ns", kind.tz)).cast(pa.int64()).to_pylist()
        ]
    if pa.types.is_time64(kind):
        return list(array.cast(pa.int64()).to_pylist())
    if pa.types.is_floating(kind):
        return [_number(each) for each in array.to_pylist()]
    return [_scalar(each) for each in array.to_pylist()]


def _number(value: float | None) -> Any:
    return value if value is None or np.isfinite(value) else str(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, date) else value


def _cut(array: pa.Array, values: list[Any]) -> list[Any]:
    offsets = array.offsets.to_pylist()
    there = array.is_valid().to_pylist()
    return [
        values[start:end] if is_there else None
        for start, end, is_there in zip(offsets, offsets[1:], there, strict=False)
    ]


def _structs(array: pa.Array) -> list[Any]:
    names = [field.name for field in array.type]
    children = {name: shown(array.field(place)) for place, name in enumerate(names)}
    there = array.is_valid().to_pylist()
    found: list[Any] = []
    for row, is_there in enumerate(there):
        values = {name: each[row] for name, each in children.items()}
        if not is_there:
            found.append(None)
        elif "is_left" in values:
            found.append(["$left", values["left"]] if values["is_left"] else ["$right", values["right"]])
        elif "_row_kind" in values:
            found.append([KINDS[values.pop("_row_kind")], *values.values()])
        elif all(name.startswith("f") and name[1:].isdigit() for name in values):
            found.append(list(values.values()))
        else:
            found.append(values)
    return found


def _same(found: Any, expected: Any) -> bool:
    """Whether a value is that of the truth; an object may have null fields of other classes."""
    if isinstance(expected, dict) and "$set" in expected:
        return isinstance(found, list) and sorted(found, key=repr) == expected["$set"]
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            return False
        fields = {name: each for name, each in expected.items() if name != "_class"}
        more = found.keys() - fields.keys() - {"_class"}
        return (
            found.get("_class", expected["_class"]) == expected["_class"]
            and all(_same(found.get(name), each) for name, each in fields.items())
            and all(found[name] is None for name in more)
        )
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return False
        return all(_same(one, other) for one, other in zip(found, expected, strict=True))
    if isinstance(expected, float) and isinstance(found, float):
        return expected == found or np.float32(expected) == found
    return bool(found == expected) and isinstance(found, bool) == isinstance(expected, bool)


def differences(state: FlinkState, truth: dict[str, Any], windows: FlinkState | None = None) -> list[str]:
    """What is not as the truth of a keyed state has it.

    A list of a window is compared without its order, for records of several tasks meet in it. `windows` is the state
    that says which window a session has become: its contents stay where the first of them began.
    """
    table = state.to_arrow().combine_chunks()
    rows = {name: shown(table.column(name).combine_chunks()) if len(table) else [] for name in table.column_names}
    merged = _merged_windows(windows) if windows is not None else {}
    found: dict[str, Any] = {}
    for row in range(len(table)):
        place = [rows["key"][row], _namespace(rows, row, truth["kind"])]
        key = merged.get(json.dumps(place), json.dumps(place))
        value = rows["value"][row] if "value" in rows else rows["timestamp"][row]
        if truth["kind"] == "map":
            found.setdefault(key, []).append([rows["user_key"][row], value])
        elif key in found:
            return [f"{key} is there twice"]
        else:
            found[key] = value
    expected = {}
    for entry in truth["entries"]:
        place = [_key(entry["key"]), _expected_namespace(entry, truth["kind"])]
        expected[json.dumps(place)] = plain(entry["value"])
    wrong = [f"{key} is missing" for key in expected.keys() - found.keys()]
    wrong += [f"{key} is not expected" for key in found.keys() - expected.keys()]
    for key in expected.keys() & found.keys():
        mine, value = found[key], expected[key]
        if truth["kind"] == "map" or (truth["kind"] == "list" and "window_start" in rows):
            mine, value = sorted(mine, key=repr), _sorted_like(mine, value)
        if not _same(mine, value):
            wrong.append(f"{key}: {mine} and not {value}")
    return wrong


def _sorted_like(mine: list[Any], value: list[Any]) -> list[Any]:
    """The truth in the order of what was read, if each is the same as one of it."""
    left = list(value)
    found = []
    for each in sorted(mine, key=repr):
        place = next((place for place, other in enumerate(left) if _same(each, other)), None)
        if place is None:
            return value
        found.append(left.pop(place))
    return found + left


def _merged_windows(windows: FlinkState) -> dict[str, str]:
    """From where the contents of a session are to what the session has become."""
    found = {}
    table = windows.to_arrow().combine_chunks()
    for key, pairs in zip(shown(table["key"].combine_chunks()), shown(table["value"].combine_chunks()), strict=True):
        for session, place in pairs:
            found[json.dumps([key, [place["start"], place["end"]]])] = json.dumps(
                [key, [session["start"], session["end"]]]
            )
    return found


def _key(value: Any) -> Any:
    """A key without the name of its class, and without what kind of change a row is."""
    found = plain(value)
    if isinstance(found, dict):
        return {name: each for name, each in found.items() if name != "_class"}
    return found[1:] if isinstance(value, dict) and "$row" in value else found


def _namespace(rows: dict[str, list[Any]], row: int, kind: str) -> Any:
    window = [rows["window_start"][row], rows["window_end"][row]] if "window_start" in rows else None
    return [window, rows["timestamp"][row]] if kind == "timer" else window


def _expected_namespace(entry: dict[str, Any], kind: str) -> Any:
    namespace = plain(entry["ns"])
    if kind == "timer":
        return namespace if isinstance(namespace, list) else [None, namespace]
    return None if namespace == "GlobalWindow" else namespace


def operator_differences(state: FlinkState, truth: dict[str, Any]) -> list[str]:
    """What is not as the truth of a state without keys has it."""
    table = state.to_arrow().combine_chunks()
    wrong = []
    for name, value in truth.items():
        if name.startswith("subtask-"):
            mine = table.filter(pc.equal(table["_subtask"], int(name.removeprefix("subtask-"))))
            found = shown(mine["value"].combine_chunks()) if len(mine) else []
            if "key" in mine.column_names:
                pairs = zip(mine["key"].to_pylist(), found, strict=True)
                found = sorted(([key, each] for key, each in pairs), key=repr)
            if not _same(found, plain(value)):
                wrong.append(f"{name}: {found} and not {plain(value)}")
    return wrong
