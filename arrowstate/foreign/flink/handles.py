"""What the metadata of a savepoint says: operators, subtasks, and where the bytes of their state lie.

Everything here is a document; nothing is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class InlineHandle:
    """Bytes that stand in the metadata itself."""

    name: str
    start: int
    "Offset in `_metadata`."
    size: int


@dataclass(frozen=True, slots=True)
class FileHandle:
    """A file, or a part of one."""

    path: str
    "A name in the savepoint's own folder if it is relative, else where Flink wrote it."
    size: int
    relative: bool = False
    start: int | None = None
    "Where a part of a merged file begins; None for a whole file."


StreamHandle: TypeAlias = InlineHandle | FileHandle


@dataclass(frozen=True, slots=True)
class KeyGroupsHandle:
    """State of a range of key groups, one after the other in a stream."""

    first_key_group: int
    offsets: tuple[int, ...]
    "Where each key group begins."
    stream: StreamHandle | None
    canonical: bool
    "Whether it is of the canonical format; else it is the heap's own."


@dataclass(frozen=True, slots=True)
class IncrementalHandle:
    """The files of a RocksDB or ForSt instance."""

    backend_id: str
    first_key_group: int
    key_groups: int
    meta: StreamHandle | None
    "The stream that describes the states."
    shared: tuple[tuple[str, StreamHandle | None], ...]
    private: tuple[tuple[str, StreamHandle | None], ...]


@dataclass(frozen=True, slots=True)
class InMemoryChanges:
    """Changes of state that stand in the metadata."""

    first_key_group: int
    key_groups: int
    changes: tuple[tuple[int, int, int], ...]
    "Key group (-1 for a description), offset in `_metadata` and length of each."


@dataclass(frozen=True, slots=True)
class ChangelogFiles:
    """Changes of state in files."""

    first_key_group: int
    key_groups: int
    files: tuple[tuple[int, StreamHandle | None], ...]
    "Offset at which the changes begin, and the file."
    storage: str


@dataclass(frozen=True, slots=True)
class ChangelogHandle:
    """State as it was, and what changed since."""

    first_key_group: int
    key_groups: int
    base: tuple[KeyedHandle, ...]
    changes: tuple[KeyedHandle, ...]


KeyedHandle: TypeAlias = KeyGroupsHandle | IncrementalHandle | InMemoryChanges | ChangelogFiles | ChangelogHandle


@dataclass(frozen=True, slots=True)
class OperatorStatePlace:
    """A state of an operator in a stream."""

    name: str
    mode: str
    "`split`, `union` or `broadcast`."
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OperatorHandle:
    """The states of one subtask that have no keys."""

    states: tuple[OperatorStatePlace, ...]
    stream: StreamHandle | None


@dataclass(frozen=True, slots=True)
class ChannelHandle:
    """Records that were under way; they are named and not read."""

    direction: str
    "`input` or `output`."
    subtask: int
    size: int


@dataclass(frozen=True, slots=True)
class Subtask:
    """What one subtask of an operator left."""

    index: int
    finished: bool = False
    operator_state: OperatorHandle | None = None
    raw_operator_state: OperatorHandle | None = None
    keyed_state: KeyedHandle | None = None
    raw_keyed_state: KeyedHandle | None = None
    channels: tuple[ChannelHandle, ...] = ()


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator and its subtasks."""

    id: str
    "32 hexadecimal digits."
    name: str | None
    uid: str | None
    parallelism: int
    max_parallelism: int
    coordinator: StreamHandle | None
    subtasks: tuple[Subtask, ...]
    finished: bool = False

    @property
    def label(self) -> str:
        """What it is called: by its uid, else its name, else its id."""
        return self.uid or self.name or self.id


@dataclass(frozen=True, slots=True)
class MasterState:
    """What a hook of the job manager stored."""

    name: str
    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Metadata:
    """The whole of a `_metadata` file."""

    version: int
    checkpoint_id: int
    master_states: tuple[MasterState, ...]
    operators: tuple[Operator, ...]
    properties: dict[str, object]
    "Fields of the properties of the checkpoint, as far as they are numbers and flags."
