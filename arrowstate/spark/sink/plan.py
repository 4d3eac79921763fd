"""What the driver decides once and every task and commit follows: the plan of a keyed sink.

The plan travels as text in the options of the Spark writer, so that it is the same in the driver, in the process
that commits, and in the workers; none of them keeps anything else from one micro-batch to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from arrowstate.errors import InvalidInputError
from arrowstate.files.output_tables import OutputTable
from arrowstate.functions.dead_letters import dead_letter_table
from arrowstate.schema.descriptors import StateDescriptor
from arrowstate.schema.layout import descriptor_of, key_schema_of
from arrowstate.spark.memory import TaskMemory
from arrowstate.spark.places import STORAGE_OPTIONS, StorePlace, storage_options_of, storage_options_text
from arrowstate.spark.schemas import arrow_type, spark_type
from arrowstate.storage.base import Storage
from arrowstate_formats.arrow_types import type_from_json
from arrowstate_formats.documents import pack, unpack
from arrowstate_formats.schema_documents import FieldDocument, StateDocument

__all__ = ["DeadLettersInput", "SinkPlan", "StateInput"]

_OPTION = "plan"


class StateInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One state of the sink, and where in the rows its values are."""

    state: StateDocument
    columns: list[int]
    """Per value column of the state, the number of the column in the rows that reach the sink."""
    namespace: list[int] = []
    """Those of the namespace columns."""
    user_key: int | None = None
    """That of the user key of a map."""

    order: list[StateDocument] = []
    """The states that keep the sequences of its changes; none where late changes count."""

    @property
    def descriptor(self) -> StateDescriptor:
        return descriptor_of(self.state)


class DeadLettersInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where rows go that cannot be taken, and the columns that they have."""

    uid: str
    names: list[str]
    types: list[Any]
    """As `type_to_json` writes them."""
    columns: list[int]
    """The number of each column in the rows that reach the sink."""


class SinkPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a keyed sink does with each micro-batch."""

    store: str
    """Absolute path or URL of the store, the same for every process."""
    uid: str
    key: list[FieldDocument]
    """The key columns; they are the first columns of the rows, in this order."""
    states: list[StateInput]
    parallelism: int
    max_parallelism: int
    sequence: list[int] = []
    """The columns that order the rows of a key; none where order does not matter, or there is none."""
    operation: int | None = None
    """The column that says whether a row is added or removed; None if all rows are added."""
    timestamp: int | None = None
    """The column with the event time of each row, None where no state needs one."""
    watermark_delay_ms: int = 0
    """How far the watermark is behind the highest event time."""
    batch_time: int | None = None
    """The column with the time of the micro-batch in milliseconds, None where no state needs it."""
    dropped: list[str] = []
    """Stored states that may go; one that neither this names nor `states` has come since the plan, and stays."""
    dead_letters: DeadLettersInput | None = None
    """None if a row that does not fit fails the query."""
    on_checkpoint: bytes | None = None
    """The function that is told of each checkpoint, pickled."""
    retention: tuple[int, int | None, int] | None = None
    """Count, age and hours of the policy by which the store is collected beside the query; None for not at all."""
    memory: TaskMemory = TaskMemory()
    storage_options: dict[str, Any] | None = None
    """As for `open_store`; no text shows them."""

    def __repr__(self) -> str:
        return f"<SinkPlan of {self.uid} in {self.store}>"

    @property
    def place(self) -> StorePlace:
        """Where the store is."""
        return StorePlace(self.store, self.storage_options)

    def open(self) -> Storage:
        """Open the storage of the store."""
        return self.place.open()

    @property
    def key_schema(self) -> pa.Schema:
        return key_schema_of(self.key)

    @property
    def dead_letters_table(self) -> OutputTable | None:
        """The output table for rows that do not fit, None if they fail the query."""
        given = self.dead_letters
        if given is None:
            return None
        row = [(name, type_from_json(kind)) for name, kind in zip(given.names, given.types, strict=True)]
        # As they arrive: a key that is no key of the store has a place there too.
        key = pa.schema([(field.name, arrow_type(spark_type(field.type))) for field in self.key_schema])
        return dead_letter_table(given.uid, key, pa.schema(row))

    def to_options(self) -> dict[str, str]:
        """Return the options of the Spark writer; those beside the plan are for readers of a query plan."""
        apart = storage_options_text(self.storage_options)
        return {
            "store": self.store,
            "uid": self.uid,
            "parallelism": str(self.parallelism),
            "maxParallelism": str(self.max_parallelism),
            _OPTION: pack(msgspec.structs.replace(self, storage_options=None)).decode(),
            **({} if apart is None else {STORAGE_OPTIONS: apart}),
        }

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> SinkPlan:
        """Return the plan that `to_options` wrote.

        Raises
        ------
        InvalidInputError
            If the options were not made by `arrowstate.spark.keyed_sink`.
        """
        text = options.get(_OPTION)
        if text is None:
            raise InvalidInputError("a stream is written to a store by arrowstate.spark.keyed_sink(stream, ...)")
        return msgspec.structs.replace(unpack(text, cls), storage_options=storage_options_of(options))
