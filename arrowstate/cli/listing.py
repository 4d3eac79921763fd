"""`arrowstate list` and `arrowstate show`: what a store holds, from its log and its manifests."""

from __future__ import annotations

import argparse
import itertools
from typing import Any

from arrowstate.cli.output import (
    print_json,
    print_narrow_table,
    print_table,
    progress_bar,
    say,
    say_field,
    time_text,
)
from arrowstate.cli.places import catalog_of
from arrowstate.discovery import StateCatalog
from arrowstate.errors import ArrowStateError
from arrowstate.files.reading import find_operator, find_state, subtask_runs
from arrowstate.files.subtasks import subtasks_of
from arrowstate.files.validation import Validation
from arrowstate.log.commit_log import CommitLog
from arrowstate.query.catalog import resolve
from arrowstate.query.describe import bytes_of, columns_of, live_rows, runs_of, state_overview
from arrowstate.shown import bytes_text
from arrowstate.storage.base import Storage
from arrowstate.store import Snapshot, open_store
from arrowstate_formats.arrow_types import type_from_json
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument
from arrowstate_formats.schema_documents import StateDocument


def open_checkpoint(options: argparse.Namespace, validate: Validation = "checksums") -> Snapshot:
    """Return the checkpoint that the options name."""
    store = open_store(options.store, validate=validate)
    return store.latest() if options.checkpoint is None else store.snapshot(options.checkpoint)


def list_checkpoints(options: argparse.Namespace) -> int:
    """Print the checkpoints of a store, oldest first."""
    if (catalog := catalog_of(options)) is not None:
        return _list_found(catalog, as_json=options.json)
    storage = open_store(options.store).storage
    newest_first: list[dict[str, Any]] = []
    with progress_bar("reading checkpoints") as progress:
        # An entry is let go before the next one is read: a log may be long.
        for entry in itertools.islice(CommitLog(storage).backwards(), options.limit):
            newest_first.append(_line_of(storage, entry))
            progress.advance()
    found = newest_first[::-1]
    if options.json:
        print_json(found)
        return 0
    print_table(
        ["id", "kind", "committed", "bytes", "rows", "operators"],
        [
            (
                item["checkpoint_id"],
                item["kind"],
                time_text(item["committed_at_ms"]),
                bytes_text(item["bytes"]),
                item["rows"],
                ", ".join(item["operators"]),
            )
            for item in found
        ],
        drop=["kind", "operators", "bytes"],
    )
    return 0


def _list_found(catalog: StateCatalog, *, as_json: bool) -> int:
    """Print what lies below a folder, each with its newest checkpoint."""
    lines = []
    for found in catalog.found:
        line: dict[str, Any] = {"name": found.name, "kind": found.kind, "url": found.url, "checkpoint_id": None}
        try:
            line["checkpoint_id"] = catalog.newest(found).checkpoint_id
        except ArrowStateError as error:
            line["problem"] = str(error)
        lines.append(line)
    if as_json:
        print_json(lines)
        return 0
    print_table(
        ["name", "kind", "newest checkpoint", "problem"],
        [(line["name"], line["kind"], line["checkpoint_id"], line.get("problem", "")) for line in lines],
        drop=["problem"],
    )
    return 0


def _line_of(storage: Storage, entry: LogEntryDocument) -> dict[str, Any]:
    return {
        "checkpoint_id": entry.checkpoint_id,
        "kind": entry.kind,
        "committed_at_ms": entry.committed_at_ms,
        "bytes": _bytes(storage, entry),
        "rows": sum(live_rows(operator, state) for operator in entry.operators for state in operator.states),
        "operators": [operator.uid for operator in entry.operators],
    }


def _bytes(storage: Storage, entry: LogEntryDocument) -> int:
    """Return the bytes of the files of a checkpoint, from the log where its writer has measured them."""
    measured = [row.bytes_total for of_operator in entry.statistics for row in of_operator.rows()]
    if measured:
        return sum(measured)
    return bytes_of([run for operator in entry.operators for run in runs_of(storage, operator)])


def show_checkpoint(options: argparse.Namespace) -> int:
    """Print what a checkpoint holds, or one state of it."""
    snapshot = open_checkpoint(options)
    if options.state is not None:
        return _show_state(snapshot, options)
    entry = snapshot.entry
    found = snapshot.show()
    if options.json:
        print_json(found)
        return 0
    seconds = (entry.committed_at_ms - entry.started_at_ms) / 1000
    say(f"{entry.kind} {entry.checkpoint_id} of {snapshot.storage.url}")
    say_field("written by", f"epoch {entry.writer_epoch}")
    say_field("committed", f"{time_text(entry.committed_at_ms)}, {seconds:.1f} s after it began")
    say_field("watermark", "none" if entry.watermark is None else str(entry.watermark))
    for name, value in entry.properties.items():
        say_field(name, str(value))
    use = found["storage"]
    times = use["space_amplification"]
    beside = "" if times is None else f", {times:.2f} times the live rows"
    say_field("storage", f"{use['files']} files ({use['small_files']} small), {bytes_text(use['bytes'])}{beside}")
    for operator in found["operators"]:
        say()
        say(f"operator {operator['uid']}")
        _print_operator_states(operator["operator_states"])
        if not operator["key"]:
            continue
        say_field("key", ", ".join(f"{name} {kind}" for name, kind in operator["key"].items()))
        ranges = ", ".join(f"{first}-{last}" for first, last in operator["key_groups"])
        say_field("key groups", f"{operator['max_parallelism']}; by subtask: {ranges}")
        print_narrow_table(
            ["state", "kind", "type", "version", "rows", "runs", "dead", "bytes"],
            [
                (
                    state["name"],
                    state["kind"] if state["reduce"] is None else f"{state['kind']} ({_reducers(state['reduce'])})",
                    state["type"],
                    state["schema_version"],
                    state["rows"],
                    state["runs"],
                    f"{state['dead_share']:.1%}",
                    bytes_text(state["bytes"]),
                )
                for state in operator["states"]
            ],
            split=3,
        )
    return 0


def _print_operator_states(states: list[dict[str, Any]]) -> None:
    if states:
        print_narrow_table(
            ["operator state", "kind", "type", "rows", "subtasks", "bytes"],
            [
                (
                    state["name"],
                    state["kind"],
                    state["type"],
                    state["rows"],
                    state["subtasks"],
                    bytes_text(state["bytes"]),
                )
                for state in states
            ],
            split=3,
        )


def _show_state(snapshot: Snapshot, options: argparse.Namespace) -> int:
    operator, document = _find(snapshot.entry, options.state)
    runs: list[dict[str, Any]] = []
    for subtask in subtasks_of(snapshot.storage, operator):
        for run in subtask_runs(snapshot.storage, operator, subtask).get(document.name, []):
            rows = run.last_row - run.first_row
            runs.append(
                {
                    "subtask": subtask.subtask,
                    "key_groups": subtask.key_groups,
                    "run": run.id,
                    "format": run.format,
                    "schema_version": run.schema_version,
                    "path": run.path,
                    "rows": rows,
                    "live_rows": run.live_rows,
                    "dead_share": 1 - run.live_rows / rows if rows else 0.0,
                    "batches": len(run.batches),
                    "bytes": run.bytes,
                }
            )
    columns = columns_of(document, operator.key)
    found = state_overview(snapshot.storage, operator, document)
    if options.json:
        print_json(
            {
                "operator": operator.uid,
                **found,
                "columns": columns,
                "files": runs,
            }
        )
        return 0
    say(f"state {operator.uid}.{document.name} of checkpoint {snapshot.checkpoint_id}")
    rule = _rule(document)
    say_field("kind", document.kind + (f" ({rule})" if rule else ""), label=5)
    say_field("type", str(document.clock or type_from_json(document.value_type)), label=5)
    say_field("rows", str(live_rows(operator, document)), label=5)
    if document.time_to_live is not None:
        ttl = document.time_to_live
        say_field("ttl", f"{ttl.ttl_ms} ms of {ttl.clock}, {ttl.update}, {ttl.visibility}", label=5)
    print_narrow_table(["id", "column", "of", "type"], [tuple(column.values()) for column in columns])
    if document.earlier_schemas:
        print_narrow_table(
            ["schema version", "value columns", "runs"],
            [
                (
                    schema["version"],
                    ", ".join(f"{item['name']} {item['type']}" for item in schema["columns"] if item["of"] == "value"),
                    schema["runs"],
                )
                for schema in found["schema_versions"]
            ],
        )
    _print_runs(runs)
    return 0


def _print_runs(runs: list[dict[str, Any]]) -> None:
    """Print the runs of a state; the folder that their files share stands above them, not in each line."""
    folders = {run["path"].rpartition("/")[0] for run in runs if run["path"]}
    if folders:
        say_field("runs", f"in {', '.join(sorted(folders))}", label=5)
    print_narrow_table(
        ["run", "subtask", "key groups", "format", "version", "rows", "dead", "batches", "bytes"],
        [
            (
                run["path"].rpartition("/")[2] if run["path"] else f"{run['run']} (in the manifest)",
                run["subtask"],
                "-".join(map(str, run["key_groups"])),
                run["format"],
                run["schema_version"],
                run["rows"],
                f"{run['dead_share']:.1%}",
                run["batches"],
                bytes_text(run["bytes"]),
            )
            for run in runs
        ],
        split=4,
    )


def _find(entry: LogEntryDocument, reference: str) -> tuple[OperatorDocument, StateDocument]:
    uid, name = resolve(entry, reference)
    operator = find_operator(entry, uid)
    return operator, find_state(entry, operator, name)


def _rule(document: StateDocument) -> str | None:
    """What makes one value of many, where anything does."""
    if document.aggregate is not None:
        return document.aggregate.name
    return document.reduce_callable if document.reduce is None else _reducers(document.reduce)


def _reducers(reduce: str | dict[str, str]) -> str:
    return reduce if isinstance(reduce, str) else ", ".join(f"{name}: {kind}" for name, kind in reduce.items())
