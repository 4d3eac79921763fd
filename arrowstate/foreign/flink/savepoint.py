"""A savepoint or checkpoint of Flink, opened: its operators, their states, and what each of them holds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrowstate.errors import KeyTypeError, OperatorNotFoundError, StateNotFoundError
from arrowstate.foreign.flink.byte_reader import ByteReader
from arrowstate.foreign.flink.handles import KeyGroupsHandle, Metadata, Operator, Subtask
from arrowstate.foreign.flink.heap import HeapSource
from arrowstate.foreign.flink.hints import Hint, Hints, known_subclasses
from arrowstate.foreign.flink.keyed_header import read_operator_header
from arrowstate.foreign.flink.metadata import read_metadata
from arrowstate.foreign.flink.opening import open_keyed
from arrowstate.foreign.flink.operator_ids import operator_id, resolved
from arrowstate.foreign.flink.places import Places
from arrowstate.foreign.flink.querying import Query, look_up
from arrowstate.foreign.flink.sources import KeyedSource
from arrowstate.foreign.flink.states import FlinkState, KeyedPart, OperatorPart
from arrowstate.foreign.flink.timers import RawTimersSource
from arrowstate_formats.cached_properties import cached_property

if TYPE_CHECKING:
    import duckdb

    from arrowstate.query.catalog import SqlName
    from arrowstate.query.duckdb.dataset import ScanStatistics


@dataclass(frozen=True, slots=True)
class FlinkOperator:
    """An operator of a savepoint."""

    label: str
    "What it is called: by its uid, else its name, else its id."
    id: str
    "32 hexadecimal digits."
    name: str | None
    uid: str | None
    parallelism: int
    max_parallelism: int
    states: tuple[FlinkState, ...]
    left_out: tuple[str, ...]
    "What of it is not read, and why."
    coordinator: bytes | None = None
    "What its coordinator stored, such as the splits that no reader has yet; only the connector knows what it says."


class FlinkSavepoint:
    """A savepoint or checkpoint of Flink.

    Open one with `open_flink_savepoint`. At first only the metadata is read; a state is read when you ask for it.
    """

    def __init__(self, places: Places, metadata: Metadata, hints: Hints) -> None:
        self._places, self.metadata, self._hints = places, metadata, hints

    def __repr__(self) -> str:
        return f"<FlinkSavepoint {self.url}>"

    @property
    def url(self) -> str:
        """Where it lies."""
        return self._places.url

    @property
    def checkpoint_id(self) -> int:
        """The number that Flink gave it."""
        return self.metadata.checkpoint_id

    @cached_property
    def operators(self) -> dict[str, FlinkOperator]:
        """The operators, by uid, else name, else id; where two have one name, by id."""
        known = Counter(operator.label for operator in self.metadata.operators)
        found = []
        for operator in self.metadata.operators:
            label = operator.label if known[operator.label] == 1 else operator.id
            found.append(_found(self._places, operator, label))
        self._hints.bind(f"{each.label}.{name}" for each in found for name in (*each.names, *each.operator_parts))
        return {each.label: _opened(each, self._hints) for each in found}

    @cached_property
    def states(self) -> dict[str, FlinkState]:
        """The states, by operator and name: `operator.state`."""
        return {
            f"{label}.{state.name}": state for label, operator in self.operators.items() for state in operator.states
        }

    def __getitem__(self, name: str) -> FlinkState:
        """Return a state by `operator.state`; one of PyFlink also by the name that its job gave it.

        An operator is found by its uid also where a savepoint has no uids, as those before Flink 2.0: its id follows
        from it.

        Raises
        ------
        StateNotFoundError
            If there is none.
        """
        found = resolved(name, self.states)
        if found is None:
            raise StateNotFoundError(name, sorted(self.states), None, self.checkpoint_id)
        return self.states[found]

    def operator(self, label: str) -> FlinkOperator:
        """Return an operator.

        Raises
        ------
        OperatorNotFoundError
            If there is none of this name.
        """
        found = self.operators.get(label) or self.operators.get(operator_id(label))
        if found is None:
            raise OperatorNotFoundError(label, list(self.operators), self.checkpoint_id)
        return found

    def sql(
        self,
        query: str,
        *,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] = MappingProxyType({}),
    ) -> duckdb.DuckDBPyRelation:
        """Run a query with DuckDB over the states of the savepoint.

        Each state is a view `<operator>.<state>` with the columns of `FlinkState.schema`; names with other characters
        than letters, digits and `_` are written in double quotes. Each query decodes the whole state: to run many
        queries, import the savepoint.

        Parameters
        ----------
        query
            One SELECT, or another statement with a result.
        params, tables
            As for `Snapshot.sql`, and so are what is returned and the errors.
        Returns
        -------
        duckdb.DuckDBPyRelation
            The result, which is computed when it is fetched.
        """
        return self._query.run(query, params, tables)

    def attach(
        self,
        connection: duckdb.DuckDBPyConnection,
        catalog: str,
        on_scan: Callable[[ScanStatistics], None] | None = None,
    ) -> list[SqlName]:
        """Give a DuckDB connection a database of this name with the views of `sql`, and return their names."""
        return self._query.attach(connection, catalog, on_scan or (lambda _: None))

    def to_arrow(self, state: str) -> pa.Table:
        """Return all rows of `operator.state`.

        Returns
        -------
        pa.Table
            The columns of `FlinkState.schema`.
        """
        return self[state].to_arrow()

    def lookup(self, state: str, keys: Any) -> pa.Table:
        """Return the rows of some keys of `operator.state`; every row of the state is read.

        Parameters
        ----------
        state
            `operator.state`.
        keys
            An Arrow array of the type of the column `key`, or values for one.

        Returns
        -------
        pa.Table
            The columns of `FlinkState.schema`, in the order of the keys.

        Raises
        ------
        KeyTypeError
            If the keys have another type.
        """
        found = self[state]
        kind = found.schema.field("key").type
        try:
            wanted = pa.array(keys, kind) if not isinstance(keys, pa.Array) else keys.cast(kind)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise KeyTypeError(str(kind), f"{keys!r} ({error})") from None
        return look_up(found, wanted)

    @cached_property
    def _query(self) -> Query:
        return Query(self)


def open_flink_savepoint(
    url: str | os.PathLike[str],
    *,
    hints: Mapping[str, Hint] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> FlinkSavepoint:
    """Open a savepoint or checkpoint of Flink; no JVM and no class of the job is needed.

    Parameters
    ----------
    url : str or PathLike
        The folder that holds `_metadata`, or the file itself: a local path, or a URL of S3, Google Cloud Storage or
        Azure. The folder of a job's checkpoints means its last complete one.
    hints : mapping of str to DataType, Schema or Pickled, optional
        Types that the savepoint does not say. By `operator.state` the type of the values of a state: names for the
        fields of SQL, the types of PyFlink's state, `pa.binary()` for bytes as they are, or a schema of `key` and
        `value`. By the name of a class all fields of its objects.
    storage_options : mapping, optional
        For the storage, see `arrowstate.open_store`.

    Raises
    ------
    StoreNotFoundError
        If there is no `_metadata`.
    CorruptDataError
        If it is damaged.
    FormatVersionError
        If a newer Flink wrote it.

    Examples
    --------
    A checkpoint without operators, to have one that is short:

    >>> from arrowstate.storage import open_storage
    >>> with open_storage("memory://flink", create=True).write_file("chk-41/_metadata") as file:
    ...     _ = file.write(bytes.fromhex("4960672d 00000003 0000000000000029 00000000 00000000"))
    >>> savepoint = open_flink_savepoint("memory://flink/chk-41")
    >>> savepoint.checkpoint_id, list(savepoint.states)
    (41, [])
    """
    places = Places(url, storage_options)
    return FlinkSavepoint(places, read_metadata(places.metadata.view, places.metadata.name), Hints(hints))


@dataclass(slots=True)
class _Found:
    """An operator as its handles describe it."""

    label: str
    operator: Operator
    sources: list[KeyedSource]
    operator_parts: dict[str, list[OperatorPart]]
    modes: dict[str, str]
    left_out: list[str]
    coordinator: bytes | None = None

    @property
    def names(self) -> set[str]:
        """The states that have keys."""
        return {name for source in self.sources for name in source.layouts}


def _found(places: Places, operator: Operator, label: str) -> _Found:
    found = _Found(label, operator, [], {}, {}, [])
    if operator.coordinator is not None:
        found.coordinator = places.open(operator.coordinator).data.tobytes()
    if operator.finished:
        found.left_out.append("all of its subtasks were finished")
    for subtask in operator.subtasks:
        for source in _sources(places, operator, subtask):
            found.sources.append(source)
            # What is unknown shows when the states are described.
            _ = source.layouts
            if source.unknown:
                found.left_out.append(f"states described after an unknown {source.unknown}")
        found.left_out += _not_read(subtask)
        _operator_parts(places, subtask, found)
    return found


def _opened(found: _Found, hints: Hints) -> FlinkOperator:
    label, operator = found.label, found.operator
    _with_hints(found.sources, label, hints)
    keyed: dict[str, list[KeyedPart]] = {}
    for source in found.sources:
        for name, layout in source.layouts.items():
            keyed.setdefault(name, []).append(KeyedPart(source, layout))
    states = []
    for name, parts in sorted(keyed.items()):
        opaque = tuple(dict.fromkeys(each for part in parts for each in part.layout.opaque))
        hint = hints.of_state(label, name)
        states.append(FlinkState(label, name, parts[0].layout.kind, parts, opaque, hint))
    for name, each in sorted(found.operator_parts.items()):
        serializers = [serializer for part in each for serializer in part.info.serializers.values()]
        opaque = tuple(dict.fromkeys(name for serializer in serializers for name in serializer.opaque))
        shown = name if name not in keyed else f"{name} (operator)"
        states.append(FlinkState(label, shown, found.modes[name], each, opaque, hints.of_state(label, shown)))
    return FlinkOperator(
        label,
        operator.id,
        operator.name,
        operator.uid,
        operator.parallelism,
        operator.max_parallelism,
        tuple(states),
        tuple(dict.fromkeys(found.left_out)),
        found.coordinator,
    )


def _with_hints(sources: list[KeyedSource], label: str, hints: Hints) -> None:
    """Put into each source what hints and other subtasks say of the classes of its states."""
    every = [source for given in sources for source in (given, *(getattr(given, "base", ())))]
    known = known_subclasses(layout for source in every for layout in source.layouts.values())
    for source in every:
        framed = not isinstance(source, HeapSource)
        for name, layout in source.layouts.items():
            source.layouts[name] = hints.layout(label, layout, known, framed)


def _sources(places: Places, operator: Operator, subtask: Subtask) -> Iterator[KeyedSource]:
    if subtask.keyed_state is not None:
        yield from open_keyed(places, subtask.keyed_state, operator.max_parallelism)
    raw = subtask.raw_keyed_state
    if isinstance(raw, KeyGroupsHandle) and raw.stream is not None:
        yield RawTimersSource(places, raw)


def _not_read(subtask: Subtask) -> list[str]:
    found = []
    if subtask.finished:
        found.append("subtasks that were finished")
    if subtask.channels:
        size = sum(channel.size for channel in subtask.channels)
        found.append(f"records under way in {len(subtask.channels)} channels of subtask {subtask.index}, {size} bytes")
    if subtask.raw_operator_state is not None:
        found.append("operator state that a user function wrote raw")
    return found


def _operator_parts(places: Places, subtask: Subtask, found: _Found) -> None:
    handle = subtask.operator_state
    if handle is None or handle.stream is None:
        return
    stream = places.open(handle.stream)
    header = read_operator_header(ByteReader(stream.view, stream.name))
    all_offsets = sorted({offset for place in handle.states for offset in place.offsets})
    for place in handle.states:
        if place.name not in header.states:
            found.left_out.append(f"the state {place.name!r}, described after an unknown {header.unknown}")
            continue
        found.modes[place.name] = place.mode
        part = OperatorPart(stream, header, place, all_offsets, subtask.index)
        found.operator_parts.setdefault(place.name, []).append(part)
