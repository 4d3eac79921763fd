"""Whether what a store holds is whole: its log, the files of its checkpoints, and with `deep` every byte of them.

A look checks that each file is there and has its size, and reads every document. A deep look reads every file, compares
checksums, and compares the rows with what manifests say of them: order, hashes, key groups, live rows. What is found is
collected as text, so that a look goes on after the first problem. Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from arrowstate.errors import (
    ArrowStateError,
    CollectedError,
    CorruptDataError,
    InvalidInputError,
    MissingDependencyError,
    MissingFileError,
)
from arrowstate.files.contents import checked_pieces
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.operator import read_part
from arrowstate.files.reading import open_run, subtask_runs
from arrowstate.files.subtasks import list_files, parts_in, subtasks_in
from arrowstate.files.validation import validated
from arrowstate.html import table_html
from arrowstate.log.boundary import BOUNDARY_FOLDER, Boundary, boundaries, highest_boundary, path_of, read_boundary
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import HINT_PATH, CommittedEntry, hinted_number
from arrowstate.log.pins import LEASE_FOLDER, TAG_FOLDER, is_pin, is_withdrawn, read_pins
from arrowstate.schema.layout import StateLayout
from arrowstate.schema.versions import RunSchemas
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import in_parallel
from arrowstate.table.segment import Segment
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument, RunDocument, SubtaskDocument
from arrowstate_formats.key_groups import KeyGroupRange
from arrowstate_formats.key_hash import hash_columns

_PINS_AND_STATEMENTS = (BOUNDARY_FOLDER, LEASE_FOLDER, TAG_FOLDER)


class Verification(Struct):
    """What a look at a checkpoint did and found."""

    deep: bool
    files: int = 0
    bytes: int = 0
    runs: int = 0
    rows: int = 0
    "Rows of the runs that were read, dead ones included; 0 unless deep."
    problems: list[str] = field(default_factory=list)
    failures: list[ArrowStateError] = field(default_factory=list)
    """Why some of these are problems of whoever looked, such as a storage that does not answer or a package that is not
    installed: what could not be looked at may be whole."""

    def _repr_html_(self) -> str:
        title = f"{self.files} files, {self.bytes:,} bytes: {len(self.problems)} problems"
        return table_html(title, ["problem"], [(problem,) for problem in self.problems])

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def add(self, part: Verification) -> None:
        """Take note of what a look at a part found."""
        self.files, self.bytes = self.files + part.files, self.bytes + part.bytes
        self.runs, self.rows = self.runs + part.runs, self.rows + part.rows
        self.problems += part.problems
        self.failures += part.failures


class LogCheck(Struct):
    """What a look at the log found."""

    entries: int = 0
    checkpoints: list[CommittedEntry] = field(default_factory=list)
    "Checkpoints and savepoints whose entries are whole, newest first; those that only pins keep are among them."
    problems: list[str] = field(default_factory=list)
    "Of the entries."
    lost: int | None = None
    "The number that the hint names, where it is above every entry there is."
    beside: list[str] = field(default_factory=list)
    "Problems of tags, leases and what collections have said: no checkpoint is damaged by them."
    failures: list[ArrowStateError] = field(default_factory=list)
    "As in a `Verification`."


def verify_log(storage: Storage) -> LogCheck:
    """Check the log: every entry can be read, follows the one before it, and none is missing.

    Tags, leases and what collections have said too: nothing can be collected, or committed, while one is damaged.
    """
    log = CommitLog(storage)
    while True:
        check, boundary = _verify_log(storage, log)
        if not check.problems or log.boundary() <= boundary:
            return check
        # The log was collected meanwhile, and what is gone may have been.


def _verify_log(storage: Storage, log: CommitLog) -> tuple[LogCheck, int]:
    """Check the log once; return what was found, and the boundary at the time."""
    check = LogCheck()
    # Before the entries are listed: what the hint names is there before it.
    hinted = hinted_number(storage)
    statements = boundaries(storage)
    highest = highest_boundary(statements)
    entries: dict[int, CommittedEntry] = {}
    numbers = log.numbers()

    def read(number: int) -> tuple[CommittedEntry | None, LogCheck]:
        own, entry = LogCheck(), None
        with noting(own.problems, path_of(number), own.failures):
            entry = log.get(number)
        return entry, own

    for number, (entry, own) in zip(numbers, in_parallel(storage, read, numbers, name="log", small=True), strict=True):
        check.problems += own.problems
        check.failures += own.failures
        if entry is not None:
            entries[number] = entry
    check.entries = len(entries)
    boundary = 0
    for statement in statements:
        is_whole = False
        with noting(check.beside, statement.path, check.failures):
            read_boundary(storage, statement)
            is_whole = True
        if is_whole or statement.boundary in entries:
            # Otherwise it may be no statement at all, and what it would drop is not to be taken for dropped.
            boundary = max(boundary, statement.boundary)
    for path in (path for folder in _PINS_AND_STATEMENTS for path in storage.list(folder)):
        if Boundary.of(path) is None and not is_pin(path):
            check.beside.append(f"{path}: it is of no known kind, and nothing is collected while it is there")
    last = max([boundary, *numbers[-1:]])
    if hinted is not None and hinted > last:
        check.lost, last = hinted, hinted
    first = boundary or min([*numbers[:1], *([] if hinted is None else [last])], default=last + 1)
    for low, high in _gaps(numbers, first, last):
        named = f"; {HINT_PATH} names {path_of(hinted)}" if hinted is not None and hinted == high else ""
        if low == high:
            check.problems.append(f"{path_of(low)}: the log entry is missing{named}")
        else:
            span = f"{path_of(low)} to {path_of(high)}"
            check.problems.append(f"{span}: {high - low + 1} log entries are missing{named}")
    broken = set()
    for number, entry in entries.items():
        before = entries.get(number - 1)
        if before is not None and number > boundary and entry.document.parent != before.as_parent:
            check.problems.append(f"{path_of(number - 1)}: the entry after it was written after other bytes")
            broken.add(number - 1)
    held: set[int] = set()
    with noting(check.beside, "tags and leases", check.failures):
        pins = read_pins(storage)
        lowest = entries.get(boundary)
        held.update(entry.document.number for entry in (() if lowest is None else log.followed(lowest, pins)))
        for pin in pins:
            # One that was committed since they were listed may be held too.
            entry = entries.get(pin.entry.number) or log.get(pin.entry.number)
            if entry is not None and entry.as_parent == pin.entry:
                held.add(pin.entry.number)
            elif pin.tag is not None and not is_withdrawn(storage, pin):
                check.beside.append(f"{pin.path}: {pin.holder} holds checkpoint {pin.checkpoint_id}, which is gone")
    check.checkpoints = [
        entry
        for number, entry in sorted(entries.items(), reverse=True)
        if entry.document.kind != "fence"
        and number not in broken
        and (number >= boundary or number in held or entry.document.kind == "savepoint")
    ]
    return check, highest


def _gaps(numbers: Sequence[int], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the ends of each stretch that is not among `numbers`, which ascend; there may be names of any number."""
    expected = first
    for number in [*(number for number in numbers if number >= first), last + 1]:
        if number > expected:
            yield expected, number - 1
        expected = number + 1


def verify_checkpoint(
    storage: Storage,
    store_id: str,
    entry: LogEntryDocument,
    *,
    deep: bool,
    advance: Callable[[], None] = lambda: None,
) -> Verification:
    """Look at the files of a checkpoint."""
    found = Verification(deep)
    if deep:
        # A deep look takes nothing on trust.
        storage = validated(storage)
        # Otherwise what this process has read before would not be read again.
        forget_open_files()
    seen: set[str] = set()
    for stored in entry.operators:
        operator = _whole(storage, entry, stored, found)
        tasks = _tasks(storage, entry, operator, found)
        # What is seen is told before any of it is looked at, so that no file is looked at twice.
        files = [_unseen(task.run, seen) for task in tasks]

        def look(place: int, tasks: Sequence[_Task] = tasks, files: Sequence[Sequence[_File]] = files) -> Verification:
            own = Verification(deep)
            run = tasks[place].run
            with noting(own.problems, run.path or run.id, own.failures), reading_checkpoint(storage, entry):
                _verify_run(storage, store_id, tasks[place], files[place], own)
            return own

        for own in in_parallel(storage, look, range(len(tasks)), name="verification", small=not deep):
            found.add(own)
            advance()
        for state in operator.operator_states:
            for number, part in enumerate(state.parts):
                name = part.path or f"part {number} of operator state {operator.uid}.{state.name}"
                with noting(found.problems, name, found.failures), reading_checkpoint(storage, entry):
                    if part.path is not None and part.path not in seen:
                        seen.add(part.path)
                        _verify_file(storage, part.path, part.bytes, part.xxh3_128, deep=deep)
                        found.files += 1
                        found.bytes += part.bytes
                    if deep or part.path is None:
                        found.rows += read_part(storage, state, number).num_rows
    return found


def _whole(
    storage: Storage, entry: LogEntryDocument, operator: OperatorDocument, found: Verification
) -> OperatorDocument:
    """Return an operator with what it has in files of lists; what cannot be read is a problem, and left out."""
    files = list_files(operator)
    found.files += len(files)
    found.bytes += sum(files.values())
    subtasks = list(operator.subtasks)
    for file in operator.subtask_files:
        with noting(found.problems, file.path, found.failures), reading_checkpoint(storage, entry):
            subtasks += subtasks_in(storage, operator.uid, file)
    states = []
    for state in operator.operator_states:
        parts = list(state.parts)
        for part_file in state.part_files:
            with noting(found.problems, part_file.path, found.failures), reading_checkpoint(storage, entry):
                parts += parts_in(storage, operator.uid, state.name, part_file)
        if parts:
            states.append(replace(state, parts=parts, part_files=[]))
    try:
        return replace(operator, subtasks=subtasks, subtask_files=[], operator_states=states)
    except ValueError:
        # Some could not be read, so that states differ in their number of subtasks.
        return replace(operator, subtasks=[], subtask_files=[], operator_states=states)


@contextmanager
def noting(problems: list[str], what: str, failures: list[ArrowStateError] | None = None) -> Iterator[None]:
    """Turn an error of the block into a problem, so that a look goes on; `failures` gets those that are no damage."""
    try:
        yield
    except (InvalidInputError, MissingDependencyError):
        # An argument that cannot be, such as a parallelism, or a package to install: not the store's mistake.
        raise
    except ArrowStateError as error:
        text = str(error)
        problems.append(text if what in text else f"{what}: {text}")
        if failures is not None and not isinstance(error, (CorruptDataError, MissingFileError, CollectedError)):
            failures.append(error)


class _Task(Struct, frozen=True):
    """One run of a subtask to verify."""

    schemas: RunSchemas
    operator: OperatorDocument
    subtask: SubtaskDocument
    run: RunDocument


class _File(Struct, frozen=True):
    """A file to look at."""

    path: str
    bytes: int
    xxh3_128: str


def _unseen(run: RunDocument, seen: set[str]) -> list[_File]:
    """Return the files of a run that are not among those seen, and note them."""
    files = []
    for item in (run, run.deletion_vector, run.directory):
        if item is not None and item.path is not None and item.path not in seen:
            seen.add(item.path)
            files.append(_File(item.path, item.bytes, item.xxh3_128))
    return files


def _tasks(storage: Storage, entry: LogEntryDocument, operator: OperatorDocument, found: Verification) -> list[_Task]:
    """Return the runs of an operator; what is wrong with its manifests is noted."""

    def read(subtask: SubtaskDocument) -> tuple[dict[str, list[RunDocument]], Verification]:
        runs: dict[str, list[RunDocument]] = {}
        own = Verification(found.deep)
        place = f"the manifest of subtask {subtask.subtask} of operator {operator.uid}"
        with noting(own.problems, place, own.failures), reading_checkpoint(storage, entry):
            runs = subtask_runs(storage, operator, subtask)
        return runs, own

    tasks = []
    manifests = in_parallel(storage, read, operator.subtasks, name="manifests", small=True)
    for subtask, (runs, own_found) in zip(operator.subtasks, manifests, strict=True):
        place = f"the manifest of subtask {subtask.subtask} of operator {operator.uid}"
        found.add(own_found)
        found.files += subtask.manifest.path is not None
        found.bytes += subtask.manifest.bytes
        for state in operator.states:
            schemas = RunSchemas(operator.key, state)
            own = runs.get(state.name, [])
            if runs and sum(run.live_rows for run in own) != subtask.live_rows.get(state.name, 0):
                found.problems.append(
                    f"{place}: the runs of state {state.name} have {sum(run.live_rows for run in own)} live rows, "
                    f"the log entry says {subtask.live_rows.get(state.name, 0)}"
                )
            tasks += [_Task(schemas, operator, subtask, run) for run in own]
    return tasks


def _verify_run(storage: Storage, store_id: str, task: _Task, files: Sequence[_File], found: Verification) -> None:
    """Look at files of a run; compare its rows with its document if the look is deep."""
    found.runs += 1
    for item in files:
        _verify_file(storage, item.path, item.bytes, item.xxh3_128, deep=found.deep)
        found.files += 1
        found.bytes += item.bytes
    if found.deep:
        found.rows += _verify_rows(storage, store_id, task)


def _verify_rows(storage: Storage, store_id: str, task: _Task) -> int:
    """Compare the rows of a run with its document and return how many there are."""
    run = task.run
    name = run.path or f"run {run.id}"
    opened = open_run(storage, store_id, run, task.schemas)
    if opened is None:
        if run.first_row < run.last_row:
            raise CorruptDataError(name, f"no rows, expected {run.last_row - run.first_row}")
        return 0
    rows = opened[0]
    if (rows.rows, rows.live_rows) != (run.last_row - run.first_row, run.live_rows):
        raise CorruptDataError(
            name,
            f"{rows.live_rows} live rows of {rows.rows}, expected {run.live_rows} of {run.last_row - run.first_row}",
        )
    # Each batch is compared with what its document says of its hashes, times and sequence numbers as it is read.
    hashes = np.concatenate([segment.hashes for segment in rows.segments])
    # Compared, not subtracted: hashes may be further apart than int64 reaches.
    if (hashes[1:] < hashes[:-1]).any():
        raise CorruptDataError(name, "the rows are not in the order of their key hashes")
    low, high = KeyGroupRange(*task.subtask.key_groups).hash_bounds(task.operator.max_parallelism)
    if hashes[0] < low or hashes[-1] > high:
        raise CorruptDataError(name, "some rows belong to key groups of another subtask")
    layout = task.schemas.layout
    first = first_key_column(layout)
    for segment in rows.segments:
        columns = segment.batch.columns[first : first + len(layout.key)]
        if (hash_columns(columns) != segment.hashes).any():
            raise CorruptDataError(name, "the key hash of some rows is not that of their key")
        _verify_second(layout, segment, name)
    return rows.rows


def _verify_second(layout: StateLayout, segment: Segment, name: str) -> None:
    """Compare the column by which rows of equal hash are sorted with what it is the hash of."""
    if segment.seconds is None:
        return
    same = segment.hashes[1:] == segment.hashes[:-1]
    if (same & (segment.seconds[1:] < segment.seconds[:-1])).any():
        raise CorruptDataError(name, f"rows of one key hash are not in the order of {layout.second}")
    first = first_key_column(layout) + len(layout.key)
    entry = segment.batch.columns[first : first + len(layout.entry_fields)]
    if not layout.is_list and (hash_columns(entry) != segment.seconds).any():
        raise CorruptDataError(name, "the entry hash of some rows is not that of their namespace and user key")


def first_key_column(layout: StateLayout) -> int:
    """Return the place of the first key column in the batches of a state."""
    return 1 + (layout.second is not None)


def _verify_file(storage: Storage, path: str, size: int, expected: str, *, deep: bool) -> None:
    if deep:
        # What is stored is read, and no copy of it that this host may have.
        for _ in checked_pieces(storage, path, size, expected):
            pass
        return
    try:
        # One byte more than the file has: exactly one byte comes back if it ends where it should.
        if len(storage.read(path, max(size - 1, 0), 2)) != 1:
            raise CorruptDataError(path, f"the file does not have {size} bytes")
    except MissingFileError:
        raise CorruptDataError(path, "the file is missing") from None
