"""Documents of version 1, the drafts of this format, brought to the form of today.

Stores were written with it before the format was published; they are read on, and whoever writes to one goes on in the
current version. A draft had all numbers as numbers, inline manifests as base64 of their text, statistics as an object
per subtask, and fences that repeated the operators of their parent. Specification: formats/spec/documents.md.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

import xxhash

__all__ = ["upgraded"]

_WIDE = ("min_hash", "max_hash", "min_time", "max_time", "max_seq")

Members = dict[str, Any]

_STATISTICS = ("sync_us", "async_us", "alignment_us", "bytes_written", "bytes_total", "files_written")


def upgraded(document: Members, kind: str) -> Members:
    """Return the members of a document of version 1 as version 2 has them.

    Parameters
    ----------
    document
        The members, as JSON has them.
    kind
        The name of the struct that it is read as.

    Raises
    ------
    ValueError
        If it has not the shape of version 1.
    """
    try:
        if kind == "LogEntryDocument":
            document = _entry(document)
        elif kind == "ManifestDocument":
            document = {**document, "states": _runs_of_states(document["states"])}
    except (KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise ValueError(f"it is no document of version 1: {error!r}") from error
    return {**document, "format_version": 2} | (
        {"document_xxh3_128": "0" * 32} if "document_xxh3_128" in document else {}
    )


def _text(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _entry(entry: Members) -> Members:
    entry = {**entry, "watermark": _text(entry.get("watermark"))}
    entry["statistics"] = _statistics(entry.get("statistics", []))
    if entry["kind"] == "fence":
        # It repeated what the entry before it has.
        return {**entry, "operators": [], "content": entry["parent"]}
    return {**entry, "operators": [_operator(operator) for operator in entry["operators"]]}


def _operator(operator: Members) -> Members:
    return {
        **operator,
        "states": [_state(state) for state in operator["states"]],
        "subtasks": [_subtask(subtask, operator["uid"]) for subtask in operator["subtasks"]],
    }


def _state(state: Members) -> Members:
    ttl = state.get("time_to_live")
    return state if ttl is None else {**state, "time_to_live": {**ttl, "ttl_ms": _text(ttl["ttl_ms"])}}


def _subtask(subtask: Members, uid: str) -> Members:
    handle = subtask["manifest"]
    if handle.get("inline") is not None:
        data = base64.b64decode(handle["inline"], validate=True)
        if xxhash.xxh3_128_hexdigest(data) != handle["xxh3_128"]:
            raise ValueError(f"the manifest of operator {uid!r} does not match its checksum")
        manifest = json.loads(data)
        if manifest["operator"] != uid:
            raise ValueError(f"the manifest is of operator {manifest['operator']!r}, expected {uid!r}")
        handle = {**handle, "inline": _runs_of_states(manifest["states"]), "xxh3_128": None}
    return {**subtask, "manifest": handle, "watermark": _text(subtask.get("watermark"))}


def _runs_of_states(states: list[Members]) -> list[Members]:
    return [{**state, "runs": [_run(run) for run in state["runs"]]} for state in states]


def _run(run: Members) -> Members:
    return {
        **run,
        "batches": [
            {**batch, **{name: _text(batch[name]) for name in _WIDE if name in batch}} for batch in run["batches"]
        ],
        "statistics": [
            {**item, "min": _text(item.get("min")), "max": _text(item.get("max"))} for item in run["statistics"]
        ],
    }


def _statistics(items: list[Members]) -> list[Members]:
    """Turn an object per subtask into an object per operator with a list of each number."""
    columns: dict[str, Members] = {}
    for item in items:
        operator = item["operator"]
        of_operator = columns.setdefault(
            operator, {"operator": operator, "subtasks": [], **{name: [] for name in _STATISTICS}}
        )
        of_operator["subtasks"].append(item["subtask"])
        for name in _STATISTICS:
            of_operator[name].append(item.get(name))
    return list(columns.values())
