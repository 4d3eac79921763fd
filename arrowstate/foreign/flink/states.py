"""One state of an operator over all its subtasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from arrowstate.foreign.flink.conforming import coalesced, conformed, merged_schema
from arrowstate.foreign.flink.handles import OperatorStatePlace
from arrowstate.foreign.flink.hints import StateHint
from arrowstate.foreign.flink.keyed_header import OperatorHeader
from arrowstate.foreign.flink.layout import StateLayout
from arrowstate.foreign.flink.operator_state import operator_batch, operator_schema
from arrowstate.foreign.flink.places import Stream
from arrowstate.foreign.flink.sources import KeyedSource
from arrowstate_formats.cached_properties import cached_property


class StatePart(Protocol):
    """What one handle holds of a state."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""
        ...


class KeyedPart:
    """A keyed state in one handle."""

    def __init__(self, source: KeyedSource, layout: StateLayout) -> None:
        self.source, self.layout = source, layout

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self.layout.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""
        return self.source.batches(self.layout)


class OperatorPart:
    """A state without keys of one subtask."""

    def __init__(
        self, stream: Stream, header: OperatorHeader, place: OperatorStatePlace, all_offsets: list[int], subtask: int
    ) -> None:
        self._stream, self._header, self._place = stream, header, place
        self._all_offsets, self._subtask = all_offsets, subtask
        self.info = header.states[place.name]

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return operator_schema(self.info)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""
        compressed = self._header.compressed
        yield operator_batch(self._stream, self._place, self._all_offsets, compressed, self.info, self._subtask)


class FlinkState:
    """A state of an operator, as rows.

    Attributes
    ----------
    name : str
        Its name.
    operator : str
        The operator, by its label.
    kind : str
        `value`, `list`, `map`, `reducing`, `aggregating` or `timers` of keyed state; `split`, `union` or `broadcast`
        of state without keys.
    opaque : tuple of str
        Classes that only the job's own code can read; their values are bytes.
    """

    def __init__(
        self,
        operator: str,
        name: str,
        kind: str,
        parts: Sequence[StatePart],
        opaque: tuple[str, ...] = (),
        hint: StateHint | None = None,
    ) -> None:
        self.operator, self.name, self.kind, self.opaque = operator, name, kind, opaque
        self._parts, self._hint = parts, hint

    def __repr__(self) -> str:
        return f"<{self.kind} state {self.name!r} of {self.operator!r}>"

    @cached_property
    def _written(self) -> pa.Schema:
        return merged_schema(part.schema for part in self._parts)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns; see `arrowstate.foreign.flink.layout` for what they mean."""
        return self._hint.schema(self._written) if self._hint else self._written

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in batches of about 65,536, in no order that is promised.

        Raises
        ------
        CorruptDataError
            If bytes are damaged; the message names the file and the place.
        MissingFileError
            If a file is gone.
        """
        written, schema, hint = self._written, self.schema, self._hint
        found = (conformed(batch, written) for part in self._parts for batch in part.batches())
        return coalesced(found if hint is None else (hint.batch(batch, schema) for batch in found))

    def to_arrow(self) -> pa.Table:
        """Return all rows; see `to_batches`."""
        return pa.Table.from_batches(self.to_batches(), self.schema)
