"""What a fill is: the states that rows of a table become, where their content stands, and the operator they belong to.

A state is filled through a twin of its descriptor that has the same columns: stored accumulators go into a value
state, and the time of a row's last update is given as an event time whatever clock the state expires by. What is
written is the descriptor that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import pyarrow as pa
from msgspec import Struct

from arrowstate.schema.descriptors import (
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from arrowstate.schema.layout import key_schema_of
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage
from arrowstate_formats.run_files import RunFormat
from arrowstate_formats.schema_documents import FieldDocument


class FillMemory(Protocol):
    """What the state that is made takes of memory, and where the rest goes."""

    def for_backend(self, storage: Storage) -> dict[str, Any]:
        """Return the budget and the folder as the constructor of a backend takes them; asked where it is made."""


class LocalMemory(Struct, frozen=True):
    """So much of memory as the caller says, for all subtasks together where one process makes them."""

    limit_bytes: int | None = None
    """None for no limit."""
    spill_dir: str | None = None
    """None for the system's temporary folder."""

    def for_backend(self, storage: Storage) -> dict[str, Any]:  # noqa: ARG002
        """Return what was asked for, wherever the store is."""
        return {"memory_budget_bytes": self.limit_bytes, "spill_dir": self.spill_dir}


class StateFill(Struct, frozen=True):
    """One state, and where in the rows its content is."""

    descriptor: StateDescriptor
    form: Literal["values", "stored", "lists", "maps"]
    """What a row has: a value to set or add; what the state stores, once per key; elements or entries of a key."""
    values: tuple[str, ...]
    """The columns with the values: one for each value column of the state, or one with all of it."""
    entry: tuple[str, ...] = ()
    """The columns with the namespace, and after them that with the user key of a map or the timestamp of a timer."""
    updated: str | None = None
    """The column with the time of the last update, in milliseconds, for a state with a time to live."""

    @property
    def twin(self) -> StateDescriptor:
        """The descriptor that the rows are written with; its columns are those of the state."""
        given = self.descriptor
        ttl = None if given.ttl is None else replace(given.ttl, clock="event_time")
        if self.form == "stored" and isinstance(given, (ReducingStateDescriptor, AggregatingStateDescriptor)):
            kind = given.accumulator_type if isinstance(given, AggregatingStateDescriptor) else given.type
            return ValueStateDescriptor(given.name, kind, namespace=given.namespace, ttl=ttl)
        return given if ttl is None else replace(given, ttl=ttl)


@dataclass(frozen=True, slots=True)
class FillPlan:
    """What is decided once and every subtask and the commit follow."""

    store: str
    """Absolute path or URL of the store, the same for every process."""
    uid: str
    key: tuple[FieldDocument, ...]
    key_columns: tuple[str, ...]
    """What the rows call the columns of the key, which may differ in case."""
    states: tuple[StateFill, ...]
    parallelism: int
    max_parallelism: int
    base: int | None
    """The number of the checkpoint that the new one is made from, None in a store without one."""
    adds_to: bool
    """Whether that checkpoint has the operator; then its other states stay."""
    job: str
    """What the names of all files of this fill begin with, 12 hexadecimal digits."""
    now_ms: int
    """When rows without a time of their own count as updated."""
    watermark: int | None = None
    format: RunFormat = "arrow"
    memory: FillMemory = LocalMemory()
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def open(self) -> Storage:
        """Open the storage of the store."""
        return open_storage(self.store, storage_options=self.storage_options)

    @property
    def key_schema(self) -> pa.Schema:
        return key_schema_of(self.key)

    @property
    def columns(self) -> list[str]:
        """The columns that a fill reads, those of the key first."""
        own = [name for fill in self.states for name in (*fill.values, *fill.entry, *filter(None, [fill.updated]))]
        return list(dict.fromkeys([*self.key_columns, *own]))

    def id_maker(self, new_id: Callable[[], str]) -> Callable[[], str]:
        """Return what makes fresh names of this fill."""
        return lambda: self.job + new_id()[len(self.job) :]
