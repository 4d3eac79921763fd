"""What a stream of state says of itself before the state: its key, its states, and how each was written."""

from __future__ import annotations

from dataclasses import dataclass

from arrowstate.foreign.flink.byte_reader import ByteReader
from arrowstate.foreign.flink.serializers.base import Opaque, Serializer
from arrowstate.foreign.flink.serializers.snapshots import UnknownSnapshotError, read_proxy

_VERSION = 6
_KINDS = ("keyed", "operator", "broadcast", "queue", "keyed_v2")


@dataclass(frozen=True, slots=True)
class StateInfo:
    """A state as a header describes it."""

    name: str
    backend_kind: str
    "`keyed`, `operator`, `broadcast`, `queue` or `keyed_v2`."
    options: dict[str, str]
    serializers: dict[str, Serializer]

    @property
    def kind(self) -> str:
        """`value`, `list`, `map`, `reducing`, `aggregating` or `timers`."""
        if self.backend_kind == "queue":
            return "timers"
        kind = self.options.get("KEYED_STATE_TYPE", "VALUE").lower()
        return kind if kind in ("value", "list", "map", "reducing", "aggregating") else "value"

    def serializer(self, name: str) -> Serializer:
        """Return a serializer by its key."""
        return self.serializers.get(name) or Opaque(name, "the header has no such serializer")


@dataclass(frozen=True, slots=True)
class KeyedHeader:
    """The head of a stream of keyed state."""

    compressed: bool
    key: Serializer
    states: tuple[StateInfo, ...]
    "Their places are their ids."
    missing: int
    "How many states come after one whose serializer is not known."
    unknown: str
    "The class of that serializer."
    end: int
    "Where the head ends; meaningless if states are missing."


@dataclass(frozen=True, slots=True)
class OperatorHeader:
    """The head of a stream of operator state."""

    compressed: bool
    states: dict[str, StateInfo]
    missing: int
    unknown: str


def read_state_info(reader: ByteReader) -> StateInfo:
    """Read the description of one state."""
    name, kind = reader.utf(), reader.integer()
    if not 0 <= kind < len(_KINDS):
        reader.position -= 4
        raise reader.wrong(f"the kind {kind} of state {name!r}")
    options = {reader.utf(): reader.utf() for _ in range(reader.count(4))}
    serializers = {reader.utf(): read_proxy(reader) for _ in range(reader.count(12))}
    return StateInfo(name, _KINDS[kind], options, serializers)


def _version(reader: ByteReader, oldest: int) -> int:
    version = reader.integer()
    if not oldest <= version <= _VERSION:
        reader.position -= 4
        raise reader.wrong(f"a stream of state of version {version}; those of Flink 1.8 to 2.3 are read")
    return version


def _infos(reader: ByteReader) -> tuple[list[StateInfo], int, str]:
    """The states, how many could not be read, and the class for which."""
    found: list[StateInfo] = []
    count = reader.short()
    if count < 0:
        raise reader.wrong(f"a number of {count} states")
    try:
        for _ in range(count):
            found.append(read_state_info(reader))  # noqa: PERF401  what was read before an unknown one is kept
    except UnknownSnapshotError as error:
        return found, count - len(found), error.class_name
    return found, 0, ""


def read_keyed_header(reader: ByteReader) -> KeyedHeader:
    """Read the head of a stream of keyed state."""
    _version(reader, 6)
    compressed = reader.boolean()
    try:
        key = read_proxy(reader)
    except UnknownSnapshotError as error:
        return KeyedHeader(compressed, Opaque(error.class_name, ""), (), 1, error.class_name, reader.position)
    states, missing, unknown = _infos(reader)
    return KeyedHeader(compressed, key, tuple(states), missing, unknown, reader.position)


def read_operator_header(reader: ByteReader) -> OperatorHeader:
    """Read the head of a stream of operator state."""
    compressed = reader.boolean() if _version(reader, 5) == 6 else False
    states, missing, unknown = _infos(reader)
    if not missing:
        more, missing, unknown = _infos(reader)
        states += more
    return OperatorHeader(compressed, {state.name: state for state in states}, missing, unknown)
