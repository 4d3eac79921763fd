"""`arrowstate restore-check`: whether a checkpoint can be restored, found out by restoring it.

First every file is read whole and compared with its checksum, and its rows with what the manifest says of them.
Then every subtask is restored, at the parallelism asked for, and its rows are counted and looked through for keys
that are there twice or do not belong there.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.cli.listing import open_checkpoint
from arrowstate.cli.output import bytes_text, print_json, print_table, progress_bar, say
from arrowstate.errors import ArrowStateError, CorruptDataError, InvalidInputError, MissingFileError
from arrowstate.schema.layout import StateLayout, descriptor_of
from arrowstate.schema.versions import RunSchemas
from arrowstate.snapshot.operator import read_part
from arrowstate.snapshot.reading import forget_open_files, open_run, subtask_runs
from arrowstate.store import Snapshot
from arrowstate.table.run import Segment
from arrowstate_formats.documents import OperatorDocument, RunDocument, SubtaskDocument
from arrowstate_formats.key_groups import KeyGroupRange
from arrowstate_formats.key_hash import hash_columns
from arrowstate_formats.run_files import checksum

__all__ = ["restore_check"]


@dataclass(slots=True)
class Report:
    """What a check did and found."""

    files: int = 0
    bytes: int = 0
    runs: int = 0
    rows: int = 0
    "Rows of the runs, dead ones included."
    restored: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Task:
    """One run of a subtask to verify."""

    schemas: RunSchemas
    operator: OperatorDocument
    subtask: SubtaskDocument
    run: RunDocument


def restore_check(options: argparse.Namespace) -> int:
    """Check a checkpoint and print what was done; 1 if there is a problem."""
    # Otherwise what this process has read before would not be read again.
    forget_open_files()
    snapshot = open_checkpoint(options)
    report = Report()
    with progress_bar("verifying") as bar:
        advance = _advancing(bar, snapshot, options.parallelism)
        read: set[str] = set()
        for operator in snapshot.entry.operators:
            for task in _tasks(snapshot, operator, report):
                with _noting(report, task.run.path or task.run.id):
                    _verify(snapshot, task, report, read)
                advance()
        if not report.problems:
            for operator in snapshot.entry.operators:
                _check_operator_states(snapshot, operator, report)
                with _noting(report, operator.uid):
                    _restore(snapshot, operator, options, report, advance)
    if options.json:
        print_json(
            {
                "ok": not report.problems,
                "checkpoint_id": snapshot.checkpoint_id,
                "files": report.files,
                "bytes": report.bytes,
                "runs": report.runs,
                "rows": report.rows,
                "restored": report.restored,
                "problems": report.problems,
            }
        )
    else:
        _print(snapshot, report)
    return 1 if report.problems else 0


def _advancing(bar: Any, snapshot: Snapshot, parallelism: int | None) -> Callable[[], None]:
    operators = snapshot.entry.operators
    steps = sum(parallelism or len(operator.subtasks) for operator in operators if operator.subtasks)
    steps += sum(len(operator.subtasks) * len(operator.states) for operator in operators)
    bar.update(bar.task_ids[0], total=steps)
    return lambda: bar.advance(bar.task_ids[0])


@contextmanager
def _noting(report: Report, what: str) -> Iterator[None]:
    """Turn an error of the block into a problem, so that the check goes on."""
    try:
        yield
    except InvalidInputError:
        # A parallelism that cannot be: the caller's mistake, not the store's.
        raise
    except ArrowStateError as error:
        text = str(error)
        report.problems.append(text if what in text else f"{what}: {text}")


def _tasks(snapshot: Snapshot, operator: OperatorDocument, report: Report) -> Iterator[_Task]:
    for subtask in operator.subtasks:
        runs: dict[str, list[RunDocument]] = {}
        place = f"the manifest of subtask {subtask.subtask} of operator {operator.uid}"
        with _noting(report, place):
            runs = subtask_runs(snapshot.storage, operator, subtask)
        report.files += subtask.manifest.path is not None
        report.bytes += subtask.manifest.bytes
        for state in operator.states:
            schemas = RunSchemas(operator.key, state)
            own = runs.get(state.name, [])
            if runs and sum(run.live_rows for run in own) != subtask.live_rows.get(state.name, 0):
                report.problems.append(
                    f"{place}: the runs of state {state.name} have {sum(run.live_rows for run in own)} live rows, "
                    f"the log entry says {subtask.live_rows.get(state.name, 0)}"
                )
            for run in own:
                yield _Task(schemas, operator, subtask, run)


def _verify(snapshot: Snapshot, task: _Task, report: Report, read: set[str]) -> None:
    """Compare the files of a run with their checksums, and its rows with its document."""
    run = task.run
    for item in (run, run.deletion_vector, run.directory):
        if item is not None and item.path is not None and item.path not in read:
            read.add(item.path)
            _verify_file(snapshot, item.path, item.bytes, item.xxh3_128)
            report.files += 1
            report.bytes += item.bytes
    name = run.path or f"run {run.id}"
    opened = open_run(snapshot.storage, snapshot.store_id, run, task.schemas)
    report.runs += 1
    if opened is None:
        if run.first_row < run.last_row:
            raise CorruptDataError(name, f"no rows, expected {run.last_row - run.first_row}")
        return
    rows = opened[0]
    report.rows += rows.rows
    if (rows.rows, rows.live_rows) != (run.last_row - run.first_row, run.live_rows):
        raise CorruptDataError(
            name,
            f"{rows.live_rows} live rows of {rows.rows}, expected {run.live_rows} of {run.last_row - run.first_row}",
        )
    hashes = np.concatenate([segment.hashes for segment in rows.segments])
    if (np.diff(hashes) < 0).any():
        raise CorruptDataError(name, "the rows are not in the order of their key hashes")
    low, high = KeyGroupRange(*task.subtask.key_groups).hash_bounds(task.operator.max_parallelism)
    if hashes[0] < low or hashes[-1] > high:
        raise CorruptDataError(name, "some rows belong to key groups of another subtask")
    layout = task.schemas.layout
    first = _first_key(layout)
    for segment in rows.segments:
        columns = segment.batch.columns[first : first + len(layout.key)]
        if (hash_columns(columns) != segment.hashes).any():
            raise CorruptDataError(name, "the key hash of some rows is not that of their key")
        _verify_second(layout, segment, name)


def _verify_second(layout: StateLayout, segment: Segment, name: str) -> None:
    """Compare the column by which rows of equal hash are sorted with what it is the hash of."""
    if segment.seconds is None:
        return
    if ((np.diff(segment.hashes) == 0) & (np.diff(segment.seconds) < 0)).any():
        raise CorruptDataError(name, f"rows of one key hash are not in the order of {layout.second}")
    first = _first_key(layout) + len(layout.key)
    entry = segment.batch.columns[first : first + len(layout.entry_fields)]
    if not layout.is_list and (hash_columns(entry) != segment.seconds).any():
        raise CorruptDataError(name, "the entry hash of some rows is not that of their namespace and user key")


def _first_key(layout: StateLayout) -> int:
    return 1 + (layout.second is not None)


def _verify_file(snapshot: Snapshot, path: str, size: int, expected: str) -> None:
    try:
        buffer = snapshot.storage.open_buffer(path)
    except MissingFileError:
        raise CorruptDataError(path, "the file is missing") from None
    if buffer.size != size:
        raise CorruptDataError(path, f"the file has {buffer.size} bytes, expected {size}")
    found = checksum(buffer)
    if found != expected:
        raise CorruptDataError(path, f"the file has checksum {found}, expected {expected}")


def _check_operator_states(snapshot: Snapshot, operator: OperatorDocument, report: Report) -> None:
    for state in operator.operator_states:
        for number, part in enumerate(state.parts):
            with _noting(report, part.path or f"part {number} of operator state {operator.uid}.{state.name}"):
                read_part(snapshot.storage, state, number)
                report.files += part.path is not None
                report.bytes += part.bytes
                report.rows += part.rows


def _restore(
    snapshot: Snapshot,
    operator: OperatorDocument,
    options: argparse.Namespace,
    report: Report,
    advance: Callable[[], None],
) -> None:
    """Restore every subtask of an operator and compare its rows with the log entry."""
    if not operator.subtasks:
        return
    parallelism = options.parallelism or len(operator.subtasks)
    rows: Counter[str] = Counter()
    for number in range(parallelism):
        backend = snapshot.restore(
            operator.uid, parallelism=parallelism, subtask=number, max_parallelism=options.max_parallelism
        )
        bounds = backend.key_groups.hash_bounds(backend.max_parallelism)
        for state in backend.freeze().states:
            name = f"state {operator.uid}.{state.document.name}, restored as subtask {number} of {parallelism}"
            batches = [batch for run in state.table.runs for batch in run.live_batches()]
            rows[state.document.name] += sum(batch.num_rows for batch in batches)
            hashes = np.sort(
                np.concatenate([batch.column(0).to_numpy() for batch in batches] or [np.empty(0, np.int64)])
            )
            if hashes.size and (hashes[0] < bounds[0] or hashes[-1] > bounds[1]):
                report.problems.append(f"{name}: some keys are outside its key groups")
            layout = StateLayout.of(backend.key, descriptor_of(state.document))
            if layout.is_list:
                continue
            twice = _keys_there_twice(batches, hashes[1:][hashes[1:] == hashes[:-1]], layout)
            report.problems += [f"{name}: the key {key} is there {count} times" for key, count in twice]
        advance()
    for document in operator.states:
        expected = sum(subtask.live_rows.get(document.name, 0) for subtask in operator.subtasks)
        if rows[document.name] != expected:
            report.problems.append(
                f"state {operator.uid}.{document.name}: {rows[document.name]} rows restored, expected {expected}"
            )
        report.restored.append(
            {
                "operator": operator.uid,
                "state": document.name,
                "parallelism": parallelism,
                "max_parallelism": options.max_parallelism or operator.max_parallelism,
                "rows": rows[document.name],
                "expected_rows": expected,
            }
        )


def _keys_there_twice(batches: list[pa.RecordBatch], hashes: Any, layout: StateLayout) -> list[tuple[str, int]]:
    """Return the keys, with namespace and user key, among these hashes that occur more than once."""
    if not hashes.size:
        return []
    suspects: Counter[str] = Counter()
    first = _first_key(layout)
    columns = range(first, first + len(layout.key) + len(layout.entry_fields))
    for batch in batches:
        rows = np.flatnonzero(np.isin(batch.column(0).to_numpy(), hashes))
        suspects.update(repr(row) for row in batch.take(pa.array(rows)).select(columns).to_pylist())
    return [(key, count) for key, count in suspects.items() if count > 1]


def _print(snapshot: Snapshot, report: Report) -> None:
    say(f"checkpoint {snapshot.checkpoint_id} of {snapshot.storage.url}")
    say(f"  verified  the checksums of {report.files} files, {bytes_text(report.bytes)}")
    say(
        f"            {report.runs} runs with {report.rows} rows: batch checksums, hashes, order, key groups, live rows"
    )
    if report.restored:
        print_table(
            ["state", "subtasks restored", "key groups", "rows", "rows expected"],
            [
                (
                    f"{item['operator']}.{item['state']}",
                    item["parallelism"],
                    item["max_parallelism"],
                    item["rows"],
                    item["expected_rows"],
                )
                for item in report.restored
            ],
        )
    for problem in report.problems:
        say(f"PROBLEM   {problem}")
    say(
        "no problem found"
        if not report.problems
        else f"{len(report.problems)} problems; do not rely on this checkpoint"
    )
