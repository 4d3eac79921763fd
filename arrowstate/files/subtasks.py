"""The subtasks of an operator and the parts of operator state: in the log entry, or where there are many in files.

A log entry is read by every subtask that is restored and written at every commit, so it stays small: what would make it
grow with the parallelism goes to files of 64 neighbours each, and the entry says where they are. A file whose
subtasks stay as they were is referred to again. Specification: formats/spec/manifests-and-log.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from arrowstate.errors import CorruptDataError, InvalidInputError, MissingFileError
from arrowstate.files.streams import CheckpointStreamFactory
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import in_parallel
from arrowstate_formats.documents import (
    Document,
    LogEntryDocument,
    ManifestDocument,
    ManifestHandle,
    OperatorDocument,
    OperatorPartDocument,
    OperatorPartsDocument,
    OperatorStateDocument,
    PartFileDocument,
    RunDocument,
    StateRunsDocument,
    SubtaskDocument,
    SubtaskFileDocument,
    SubtasksDocument,
    decode,
    encode,
)
from arrowstate_formats.key_groups import KeyGroupRange
from arrowstate_formats.manifest_text import RunsOfState, decode_manifest
from arrowstate_formats.run_files import checksum
from arrowstate_formats.schema_documents import FieldDocument, SchemaDocument, StateDocument

_ENTRY_BYTES = 256 << 10
"""From about this size on an entry is not read quickly enough by many subtasks at once."""

_NEIGHBOURS = 64
"""How many subtasks share a file: few enough for one of them to read, many enough to need few files."""

_HANDLE_BYTES = 400
"""About what a subtask, or a part of operator state, takes in a document beside what is inline."""

F = TypeVar("F", SubtaskFileDocument, PartFileDocument)
L = TypeVar("L", SubtasksDocument, OperatorPartsDocument, ManifestDocument)


def _read(
    storage: Storage, path: str, xxh3_128: str | None, kind: type[L], uid: str, read: Callable[..., L] | None = None
) -> L:
    try:
        data = storage.read(path)
    except MissingFileError:
        raise CorruptDataError(path, "the file is missing") from None
    if checksum(data) != xxh3_128:
        raise CorruptDataError(path, f"the {kind.what} does not match its checksum")
    document = decode(data, kind, path=path) if read is None else read(data, path=path)
    if document.operator != uid:
        raise CorruptDataError(path, f"the {kind.what} is of operator {document.operator!r}, expected {uid!r}")
    return document


def read_states(storage: Storage, handle: ManifestHandle, uid: str) -> list[StateRunsDocument]:
    """Return the runs of each state of a subtask, from its manifest."""
    if handle.inline is not None:
        return handle.inline
    assert handle.path is not None
    return _read(storage, handle.path, handle.xxh3_128, ManifestDocument, uid, decode_manifest).states


def runs_of_state(
    storage: Storage, handle: ManifestHandle, uid: str, name: str, reader: RunsOfState
) -> list[RunDocument]:
    """Return the runs of one state of a subtask, in a manifest those that `reader` wants; errors as `read_states`."""
    if handle.inline is not None:
        states = handle.inline
    else:
        assert handle.path is not None
        states = _read(storage, handle.path, handle.xxh3_128, ManifestDocument, uid, reader.decode).states
    return [run for state in states if state.name == name for run in state.runs]


def subtasks_of(
    storage: Storage, operator: OperatorDocument, hash_bounds: tuple[int, int] | None = None
) -> list[SubtaskDocument]:
    """Return the subtasks of an operator, all of them or those whose hashes meet a range with both ends inclusive."""

    def meets(item: SubtaskDocument | SubtaskFileDocument) -> bool:
        if hash_bounds is None:
            return True
        low, high = KeyGroupRange(*item.key_groups).hash_bounds(operator.max_parallelism)
        return low <= hash_bounds[1] and hash_bounds[0] <= high

    if not operator.subtask_files:
        return [subtask for subtask in operator.subtasks if meets(subtask)]
    files = [file for file in operator.subtask_files if meets(file)]
    lists = in_parallel(storage, partial(subtasks_in, storage, operator.uid), files, name="subtasks")
    return [subtask for of_file in lists for subtask in of_file if meets(subtask)]


def subtask_of(storage: Storage, operator: OperatorDocument, number: int) -> SubtaskDocument:
    """Return one subtask of an operator, by its number below the parallelism; errors as for `subtasks_of`."""
    if not operator.subtask_files:
        return operator.subtasks[number]
    file = next(file for file in operator.subtask_files if file.first <= number < file.first + file.count)
    return subtasks_in(storage, operator.uid, file)[number - file.first]


def subtasks_in(storage: Storage, uid: str, file: SubtaskFileDocument) -> list[SubtaskDocument]:
    """Return the subtasks in a file; errors as for `subtasks_of`."""
    found = _read(storage, file.path, file.xxh3_128, SubtasksDocument, uid)
    groups = (found.subtasks[0].key_groups[0], found.subtasks[-1].key_groups[1])
    if (found.first, len(found.subtasks), groups) != (file.first, file.count, file.key_groups):
        raise CorruptDataError(
            file.path, f"holds the subtasks {found.first} to {found.first + len(found.subtasks) - 1}, "
            f"expected {file.first} to {file.first + file.count - 1}"
        )  # fmt: skip
    return found.subtasks


def parts_of(storage: Storage, uid: str, state: OperatorStateDocument) -> list[OperatorPartDocument]:
    """Return the parts of an operator state; errors as for `subtasks_of`."""
    if not state.part_files:
        return state.parts
    lists = in_parallel(storage, partial(parts_in, storage, uid, state.name), state.part_files, name="parts")
    return [part for of_file in lists for part in of_file]


def parts_in(storage: Storage, uid: str, name: str, file: PartFileDocument) -> list[OperatorPartDocument]:
    """Return the parts in a file; errors as for `subtasks_of`."""
    found = _read(storage, file.path, file.xxh3_128, OperatorPartsDocument, uid)
    rows = sum(part.rows for part in found.parts)
    if (found.state, found.first, len(found.parts), rows) != (name, file.first, file.count, file.rows):
        raise CorruptDataError(file.path, f"holds {len(found.parts)} parts of {found.state!r} from {found.first} on")
    return found.parts


def whole_state(storage: Storage, uid: str, state: OperatorStateDocument) -> OperatorStateDocument:
    """Return an operator state with all its parts; errors as for `subtasks_of`."""
    return replace(state, parts=parts_of(storage, uid, state), part_files=[]) if state.part_files else state


def whole_operator(storage: Storage, operator: OperatorDocument) -> OperatorDocument:
    """Return an operator with all that it has in files of lists; errors as for `subtasks_of`."""
    if operator.subtask_files:
        operator = replace(operator, subtasks=subtasks_of(storage, operator), subtask_files=[])
    if any(state.part_files for state in operator.operator_states):
        states = [whole_state(storage, operator.uid, state) for state in operator.operator_states]
        operator = replace(operator, operator_states=states)
    return operator


def whole_operators(storage: Storage, operators: Iterable[OperatorDocument]) -> list[OperatorDocument]:
    """Return operators with all that they have in files of lists; errors as for `subtasks_of`."""
    return [whole_operator(storage, operator) for operator in operators]


class PartOfOperator(NamedTuple):
    """What of the keyed state of a subtask must fit to that of the others."""

    subtask: int
    key_groups: tuple[int, int]
    key: Sequence[FieldDocument]
    max_parallelism: int
    states: Sequence[StateDocument]


def check_parts(uid: str, parts: Sequence[PartOfOperator]) -> None:
    """Refuse parts that are not those of each subtask of an operator once, in order, with one key and the same states.

    Every checkpoint goes through it: what it let pass would be lost without an error, rows of key groups that no
    subtask has, and states that only some declare.
    """
    if not parts:
        raise InvalidInputError(f"operator {uid!r} has no backend; pass one per subtask")
    first, following = parts[0], 0
    for number, part in enumerate(parts):
        if (tuple(part.key), part.max_parallelism) != (tuple(first.key), first.max_parallelism):
            names = [[field.name for field in item.key] for item in (part, first)]
            raise InvalidInputError(
                f"the subtasks of operator {uid!r} must have one key and one max parallelism; subtask {number} has "
                f"{names[0]} and {part.max_parallelism}, subtask 0 has {names[1]} and {first.max_parallelism}"
            )
        if list(part.states) != list(first.states):
            names = [
                [f"{state.name} (version {state.schema_version})" for state in item.states] for item in (first, part)
            ]
            raise InvalidInputError(
                f"the subtasks of operator {uid!r} must have the same states, declared alike, in the same order; "
                f"subtask 0 has {', '.join(names[0])}, subtask {number} has {', '.join(names[1])}; ask for all states "
                "of a function in open"
            )
        if (part.subtask, part.key_groups[0]) != (number, following):
            raise InvalidInputError(
                f"the subtasks of operator {uid!r} must cover each key group once, in order: subtask {part.subtask} "
                f"starts at key group {part.key_groups[0]}, expected subtask {number} from key group {following}"
            )
        following = part.key_groups[1] + 1
    if following != first.max_parallelism:
        raise InvalidInputError(
            f"the subtasks of operator {uid!r} cover the key groups 0 to {following - 1} of {first.max_parallelism}, "
            f"and must cover 0 to {first.max_parallelism - 1}; hand over each subtask once"
        )


class WrittenPart(Protocol):
    """What a process hands to the commit of an operator for a subtask."""

    @property
    def key(self) -> Sequence[FieldDocument]: ...
    @property
    def max_parallelism(self) -> int: ...
    @property
    def states(self) -> Sequence[StateDocument]: ...
    @property
    def document(self) -> SubtaskDocument | None: ...


def operator_of(
    uid: str, parts: Sequence[WrittenPart], operator_states: Sequence[OperatorStateDocument] = ()
) -> OperatorDocument:
    """Return the document of an operator whose subtasks are written, in order; errors as of `check_parts`."""
    subtasks = [part.document for part in parts if part.document is not None]
    if len(subtasks) < len(parts):
        raise InvalidInputError(f"a subtask of operator {uid!r} has written nothing; hand over each subtask once")
    described = [
        PartOfOperator(own.subtask, own.key_groups, part.key, part.max_parallelism, part.states)
        for own, part in zip(subtasks, parts, strict=True)
    ]
    check_parts(uid, described)
    first = described[0]
    return OperatorDocument(
        uid=uid,
        key=list(first.key),
        max_parallelism=first.max_parallelism,
        states=list(first.states),
        subtasks=subtasks,
        operator_states=list(operator_states),
    )


def lowest_watermark(watermarks: Iterable[int | None]) -> int | None:
    """Return the watermark of several subtasks: the lowest, None if one has none, or there is no subtask."""
    lowest: int | None = None
    for watermark in watermarks:
        if watermark is None:
            return None
        lowest = watermark if lowest is None else min(lowest, watermark)
    return lowest


def restored_watermark(entry: LogEntryDocument, subtasks: Iterable[SubtaskDocument]) -> int | None:
    """Return the watermark of the subtasks that held the rows, that of the entry if one of them had none."""
    lowest = lowest_watermark(subtask.watermark for subtask in subtasks)
    return entry.watermark if lowest is None else lowest


class Content:
    """The operators of a log entry; their lists are read from files when an operator is first asked for."""

    def __init__(
        self, storage: Storage, operators: Sequence[OperatorDocument], whole: Iterable[OperatorDocument] = ()
    ) -> None:
        self.operators = operators
        self._storage = storage
        self._whole = {operator.uid: operator for operator in whole}
        self._lock = threading.Lock()

    def whole(self, uid: str) -> OperatorDocument | None:
        """Return an operator with all that it has; None if there is none, or its lists cannot be read.

        It serves to refer to files again, and what cannot be read is not referred to.
        """
        operator = next((operator for operator in self.operators if operator.uid == uid), None)
        if operator is None:
            return None
        with self._lock:
            if uid not in self._whole:
                try:
                    self._whole[uid] = whole_operator(self._storage, operator)
                except CorruptDataError:
                    return None
            return self._whole[uid]


def list_files(operator: OperatorDocument) -> dict[str, int]:
    """Return the files that an operator has its lists in, with their sizes in bytes."""
    files: list[SubtaskFileDocument | PartFileDocument] = [*operator.subtask_files]
    files += [file for state in operator.operator_states for file in state.part_files]
    return {file.path: file.bytes for file in files}


def fitted(
    storage: Storage,
    operators: Sequence[OperatorDocument],
    *,
    before: Sequence[OperatorDocument] = (),
    condemned: Iterable[str] = (),
    new_id: Callable[[], str],
    paths: list[str],
) -> list[OperatorDocument]:
    """Return operators as a log entry takes them: without versions that no run has, and long lists in files."""
    kept = [without_unused_schemas(operator) for operator in operators]
    sizes = [_size(operator) for operator in kept]
    gone = set(condemned)
    have = {operator.uid: operator for operator in before}
    streams = CheckpointStreamFactory(storage, inline_bytes=0, new_id=new_id, paths=paths)
    out = list(kept)
    # The largest first, until the others have room.
    for place in sorted(range(len(kept)), key=lambda place: -sizes[place]):
        if sum(sizes) <= _ENTRY_BYTES:
            break
        known = have.get(kept[place].uid)
        files = {} if known is None else _known_files(known, gone)
        out[place] = _in_files(storage, kept[place], streams, files)
        sizes[place] = 0
    return out


def _size(operator: OperatorDocument) -> int:
    """Return about how many bytes of a document the subtasks and parts of an operator take."""
    inline = sum(item.manifest.bytes for item in operator.subtasks if item.manifest.inline is not None)
    parts = [part for state in operator.operator_states for part in state.parts]
    encoded = sum(len(part.inline) for part in parts if part.inline is not None)
    return inline + encoded + _HANDLE_BYTES * (len(operator.subtasks) + len(parts))


def _known_files(
    operator: OperatorDocument, gone: set[str]
) -> dict[tuple[str | None, int, str], SubtaskFileDocument | PartFileDocument]:
    """Return files of lists by state (None for subtasks), bytes and checksum."""
    found: dict[tuple[str | None, int, str], SubtaskFileDocument | PartFileDocument] = {
        (None, file.bytes, file.xxh3_128): file for file in operator.subtask_files
    }
    for state in operator.operator_states:
        found.update({(state.name, file.bytes, file.xxh3_128): file for file in state.part_files})
    return {key: file for key, file in found.items() if file.path not in gone}


def _in_files(
    storage: Storage,
    operator: OperatorDocument,
    streams: CheckpointStreamFactory,
    known: Mapping[tuple[str | None, int, str], SubtaskFileDocument | PartFileDocument],
) -> OperatorDocument:
    def place_of(state: str | None, document: Document) -> tuple[str, int, str]:
        data = encode(document)
        digest = checksum(data)
        same = known.get((state, len(data), digest))
        path = same.path if same is not None else streams.put("manifests", "json", data, xxh3_128=digest).path
        assert path is not None, "inline_bytes is 0"
        return path, len(data), digest

    def subtask_file(first: int) -> SubtaskFileDocument:
        items = operator.subtasks[first : first + _NEIGHBOURS]
        document = SubtasksDocument(operator=operator.uid, first=first, subtasks=items)
        path, size, digest = place_of(None, document)
        return SubtaskFileDocument(
            path=path,
            bytes=size,
            xxh3_128=digest,
            first=first,
            count=len(items),
            key_groups=(items[0].key_groups[0], items[-1].key_groups[1]),
            live_rows={name: sum(item.live_rows.get(name, 0) for item in items) for name in _names(items)},
            schema_versions=_versions(items),
        )

    def part_file(state: OperatorStateDocument, first: int) -> PartFileDocument:
        items = state.parts[first : first + _NEIGHBOURS]
        document = OperatorPartsDocument(operator=operator.uid, state=state.name, first=first, parts=items)
        path, size, digest = place_of(state.name, document)
        rows = sum(part.rows for part in items)
        return PartFileDocument(path=path, bytes=size, xxh3_128=digest, first=first, count=len(items), rows=rows)

    firsts = range(0, len(operator.subtasks), _NEIGHBOURS)
    files = (
        in_parallel(storage, subtask_file, firsts, name="uploads", writes=True) if firsts else operator.subtask_files
    )
    states = []
    for state in operator.operator_states:
        starts = range(0, len(state.parts), _NEIGHBOURS)
        if len(state.parts) > 1:
            own = in_parallel(storage, partial(part_file, state), starts, name="uploads", writes=True)
            state = replace(state, parts=[], part_files=own)
        states.append(state)
    return replace(operator, subtasks=[], subtask_files=list(files), operator_states=states)


def _names(items: Iterable[SubtaskDocument]) -> list[str]:
    return list(dict.fromkeys(name for item in items for name in item.live_rows))


def _versions(items: Iterable[SubtaskDocument | SubtaskFileDocument]) -> dict[str, list[int]] | None:
    """Return the schema versions that runs have, by state; None where one of the subtasks does not say."""
    found: dict[str, set[int]] = {}
    for item in items:
        if item.schema_versions is None:
            return None
        for name, versions in item.schema_versions.items():
            found.setdefault(name, set()).update(versions)
    return {name: sorted(versions) for name, versions in found.items()}


def without_unused_schemas(operator: OperatorDocument) -> OperatorDocument:
    """Return an operator without the earlier schema versions that no run has any more; their field ids stay taken."""
    if not any(state.earlier_schemas for state in operator.states):
        return operator
    used = _versions((*operator.subtasks, *operator.subtask_files))
    if used is None:
        return operator
    return replace(operator, states=[_pruned(state, set(used.get(state.name, ()))) for state in operator.states])


def _pruned(state: StateDocument, used: set[int]) -> StateDocument:
    dropped = [schema for schema in state.earlier_schemas if schema.version not in used]
    if not dropped:
        return state
    last = max([state.last_field_id, *(number for schema in dropped for number in _ids(schema))])
    kept = [schema for schema in state.earlier_schemas if schema.version in used]
    return replace(state, earlier_schemas=kept, last_field_id=last)


def _ids(schema: SchemaDocument) -> Iterable[int]:
    user_key = [] if schema.user_key is None else [schema.user_key]
    stack = [*schema.key, *schema.namespace, *user_key, *schema.columns]
    while stack:
        item = stack.pop()
        yield item.id
        stack.extend(item.fields)  # type: ignore[arg-type]
