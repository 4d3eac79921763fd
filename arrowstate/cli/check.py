"""`arrowstate restore-check`: whether a checkpoint can be restored, found out by restoring it.

First every file is read whole and compared with its checksum, and its rows with what the manifest says of them.
Then every subtask is restored, at the parallelism asked for, and its rows are counted and looked through for keys
that are there twice or do not belong there.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from arrowstate.cli.listing import open_checkpoint
from arrowstate.cli.output import Bar, print_json, print_table, problems_text, progress_bar, say
from arrowstate.clock import new_id, now_ms
from arrowstate.files.verification import Verification, first_key_column, noting
from arrowstate.log.leases import held_while_read
from arrowstate.schema.layout import StateLayout, descriptor_of
from arrowstate.shown import bytes_text
from arrowstate.store import Snapshot
from arrowstate_formats.documents import OperatorDocument


@dataclass(slots=True)
class _Restored:
    """What the trial found."""

    states: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def restore_check(options: argparse.Namespace) -> int:
    """Check a checkpoint and print what was done; 1 if there is a problem."""
    snapshot = open_checkpoint(options)
    holder = "arrowstate restore-check"
    with held_while_read(snapshot.storage, snapshot.entry, holder=holder, clock_ms=now_ms, new_id=new_id):
        return _check(snapshot, options)


def _check(snapshot: Snapshot, options: argparse.Namespace) -> int:
    restored = _Restored()
    with progress_bar("verifying") as bar:
        advance = _advancing(bar, snapshot, options.parallelism)
        verified = snapshot.verify(deep=True)
        if verified.ok:
            for operator in snapshot.entry.operators:
                with noting(restored.problems, operator.uid):
                    _restore(snapshot, operator, options, restored, advance)
    problems = verified.problems + restored.problems
    if options.json:
        print_json(
            {
                "ok": not problems,
                "checkpoint_id": snapshot.checkpoint_id,
                "files": verified.files,
                "bytes": verified.bytes,
                "runs": verified.runs,
                "rows": verified.rows,
                "restored": restored.states,
                "problems": problems,
            }
        )
    else:
        _print(snapshot, verified, restored.states, problems)
    return 1 if problems else 0


def _advancing(bar: Bar, snapshot: Snapshot, parallelism: int | None) -> Callable[[], None]:
    steps = sum(parallelism or operator.parallelism for operator in snapshot.entry.operators if operator.parallelism)
    bar.update(total=steps)
    return bar.advance


def _restore(
    snapshot: Snapshot,
    operator: OperatorDocument,
    options: argparse.Namespace,
    report: _Restored,
    advance: Callable[[], None],
) -> None:
    """Restore every subtask of an operator and compare its rows with the log entry."""
    if not operator.parallelism:
        return
    parallelism = options.parallelism or operator.parallelism
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
        expected = operator.live_rows(document.name)
        if rows[document.name] != expected:
            report.problems.append(
                f"state {operator.uid}.{document.name}: {rows[document.name]} rows restored, expected {expected}"
            )
        report.states.append(
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
    first = first_key_column(layout)
    columns = range(first, first + len(layout.key) + len(layout.entry_fields))
    for batch in batches:
        rows = np.flatnonzero(np.isin(batch.column(0).to_numpy(), hashes))
        suspects.update(repr(row) for row in batch.take(pa.array(rows)).select(columns).to_pylist())
    return [(key, count) for key, count in suspects.items() if count > 1]


def _print(snapshot: Snapshot, verified: Verification, restored: list[dict[str, Any]], problems: list[str]) -> None:
    say(f"checkpoint {snapshot.checkpoint_id} of {snapshot.storage.url}")
    say(f"  verified  the checksums of {verified.files} files, {bytes_text(verified.bytes)}")
    say(
        f"            {verified.runs} runs with {verified.rows} rows: batch checksums, hashes, order, key groups, "
        "live rows"
    )
    if restored:
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
                for item in restored
            ],
        )
    for problem in problems:
        say(f"PROBLEM   {problem}")
    say(problems_text(problems, "do not rely on this checkpoint"))
