"""The state that the actors of a simulation keep: its model as plain values, and the backends that hold it.

Values are texts that do not compress, so that some batches are large enough for files of their own and the others
are kept inline: both ways of storing them are in every run.
"""

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from arrowstate.files.open_files import forget_open_files
from arrowstate.schema.descriptors import ValueStateDescriptor
from arrowstate.schema.operator_state import OperatorListStateDescriptor
from arrowstate.state.backend.keyed import KeyedStateBackend
from arrowstate.state.backend.operator import OperatorStateBackend, restore_operator_backend
from arrowstate.state.backend.restoring import restore_backend
from arrowstate.storage.base import Storage
from arrowstate.table.merging import MergePolicy
from arrowstate_formats.documents import LogEntryDocument
from arrowstate_formats.key_groups import key_group_range, key_groups

__all__ = [
    "MAX_PARALLELISM",
    "NOTE",
    "OPERATOR",
    "Backends",
    "Content",
    "change",
    "content_of",
    "loaded",
    "new_backends",
    "restored_backends",
]

OPERATOR = "op"
KEYS = 24
_KEY = pa.schema([("k", pa.int64())])
NOTE = ValueStateDescriptor("note", pa.string())
_OFFSETS = OperatorListStateDescriptor("offsets", pa.string())
_POLICY = MergePolicy(fan_in=3, first_tier_rows=20)
MAX_PARALLELISM = 8


@dataclass(frozen=True, slots=True)
class Content:
    """What a checkpoint holds, as plain values; never changed."""

    notes: tuple[str | None, ...] = (None,) * KEYS
    offsets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Backends:
    """The backends of all subtasks of the operator, and the model of what they hold."""

    keyed: Sequence[KeyedStateBackend]
    operator: Sequence[OperatorStateBackend]
    content: Content


def new_backends(parallelism: int) -> Backends:
    """Return empty backends."""
    keyed = []
    for subtask in range(parallelism):
        groups = key_group_range(MAX_PARALLELISM, parallelism=parallelism, subtask=subtask)
        keyed.append(
            KeyedStateBackend(
                key=_KEY, max_parallelism=MAX_PARALLELISM, key_groups=groups, merge_policy=_POLICY, clock_ms=lambda: 0
            )
        )
    operator = [OperatorStateBackend() for _ in range(parallelism)]
    _declare(keyed, operator)
    return Backends(keyed, operator, Content())


def restored_backends(
    storage: Storage, store_id: str, entry: LogEntryDocument, parallelism: int, content: Content
) -> Backends:
    """Return the backends of a checkpoint, as a new process restores them; `content` is what they should hold."""
    forget_open_files()
    keyed = [
        restore_backend(
            storage,
            store_id,
            entry,
            OPERATOR,
            parallelism=parallelism,
            subtask=subtask,
            merge_policy=_POLICY,
            clock_ms=lambda: 0,
        )
        for subtask in range(parallelism)
    ]
    operator = [
        restore_operator_backend(storage, entry, OPERATOR, parallelism=parallelism, subtask=subtask)
        for subtask in range(parallelism)
    ]
    _declare(keyed, operator)
    return Backends(keyed, operator, content)


def content_of(storage: Storage, store_id: str, entry: LogEntryDocument, parallelism: int = 1) -> Content:
    """Return what a checkpoint holds, read as a new process reads it."""
    backends = restored_backends(storage, store_id, entry, parallelism, Content())
    notes: list[str | None] = [None] * KEYS
    offsets = []
    for keyed, operator in zip(backends.keyed, backends.operator, strict=True):
        own = _own_keys(keyed)
        found = keyed.state(NOTE).get_batch(pa.array(own, pa.int64())).to_pylist()
        for key, note in zip(own, found, strict=True):
            notes[key] = note
        offsets += operator.state(_OFFSETS).get()
    return Content(tuple(notes), tuple(offsets))


def change(backends: Backends, draw: random.Random) -> Backends:
    """Write random rows to the backends; return them with the model of what they hold then."""
    keys, notes = _changed(backends.content, draw)
    for keyed in backends.keyed:
        # A null clears, so one batch does both.
        own = [key for key in _own_keys(keyed) if key in keys]
        keyed.state(NOTE).update_batch(pa.array(own, pa.int64()), pa.array([notes[key] for key in own], pa.string()))
    offset = draw.randbytes(draw.choice((8, 12_000))).hex()
    for subtask, operator in enumerate(backends.operator):
        operator.state(_OFFSETS).update([] if subtask else [offset])
    return replace(backends, content=Content(tuple(notes), (offset,)))


def loaded(content: Content, draw: random.Random) -> tuple[pa.Table, Content]:
    """Return a table of notes that are to take the place of those there are, and what there is with them."""
    notes = tuple(_changed(content, draw)[1])
    return pa.table({"k": range(KEYS), "note": pa.array(notes, pa.string())}), replace(content, notes=notes)


def _changed(content: Content, draw: random.Random) -> tuple[list[int], list[str | None]]:
    """Return which notes change, and all of them afterwards."""
    notes = list(content.notes)
    keys = draw.sample(range(KEYS), draw.choice((2, 6, 14)))
    cleared = set(draw.sample(keys, draw.randrange(2)))
    for key in keys:
        notes[key] = None if key in cleared else draw.randbytes(1000).hex()
    return keys, notes


def _declare(keyed: Sequence[KeyedStateBackend], operator: Sequence[OperatorStateBackend]) -> None:
    for backend in keyed:
        backend.state(NOTE)
    for part in operator:
        part.state(_OFFSETS)


@functools.cache
def _groups() -> list[int]:
    groups: list[int] = key_groups(pa.array(range(KEYS), pa.int64()), MAX_PARALLELISM).to_pylist()
    return groups


def _own_keys(backend: KeyedStateBackend) -> list[int]:
    groups = backend.key_groups
    return [key for key, group in enumerate(_groups()) if groups.start <= group <= groups.end]
