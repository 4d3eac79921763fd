"""What an edit would change, before it is committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from msgspec import Struct

from arrowstate.html import table_html
from arrowstate.query.difference import Difference, StateDifference


class Statement(Struct, frozen=True):
    """One thing that an edit was told to do."""

    text: str
    "What was asked for, in the words of SQL."
    rows: int | None
    "How many rows it changed; None where it changes none, such as a new name."

    def __str__(self) -> str:
        return self.text if self.rows is None else f"{self.text} ({self.rows} rows)"


@dataclass(frozen=True, slots=True)
class EditPlan:
    """What an edit would commit; see `Edit.plan`."""

    checkpoint_id: int
    "The checkpoint that is edited."
    statements: tuple[Statement, ...]
    difference: Difference
    "How the checkpoint that would be committed differs from it, by state."
    operator_states: tuple[str, ...]
    "The operator states that differ."
    properties: Mapping[str, tuple[Any, Any]]
    "The properties that differ: as they are, and as they would be."
    bytes: int
    "What would be written, in bytes."
    files: int
    "How many files."

    @property
    def is_empty(self) -> bool:
        """Whether nothing would change."""
        return not (self.changed_states or self.operator_states or self.properties)

    @property
    def changed_states(self) -> tuple[StateDifference, ...]:
        """The keyed states that differ."""
        return tuple(item for item in self.difference.states if not (item.is_empty or item.is_operator_state))

    def sample(self, state: str | tuple[str, str], rows: int = 10) -> pa.Table:
        """Return some rows of a state that would change; those that are updated as they are, then as they become.

        Parameters
        ----------
        state
            `<operator uid>.<state>`, or a tuple of both.
        rows
            How many, at most.

        Returns
        -------
        pa.Table
            As `Difference.rows` returns them.
        """
        return self.difference.rows(state, limit=rows)

    def to_arrow(self) -> pa.Table:
        """Return the counts, a row per keyed state that changes: operator, state, inserted, updated, and so on.

        Returns
        -------
        pa.Table
            As `Difference.to_arrow`.
        """
        table = self.difference.to_arrow()
        changed = [not (item.is_empty or item.is_operator_state) for item in self.difference.states]
        return table.filter(pa.array(changed, pa.bool_()))

    def __repr__(self) -> str:
        return f"<EditPlan of checkpoint {self.checkpoint_id}: {len(self.statements)} statements, {self.bytes} bytes>"

    def __str__(self) -> str:
        lines = [f"checkpoint {self.checkpoint_id}, {self.bytes} bytes in {self.files} files would be written"]
        lines += [f"  {statement}" for statement in self.statements]
        for item in self.changed_states:
            name = f"{item.operator}.{item.state}"
            if item.inserted is None:
                lines.append(f"{name}: {item.schema_change}")
                continue
            change = f" ({item.schema_change})" if item.schema_change else ""
            lines.append(f"{name}: {item.inserted} inserted, {item.updated} updated, {item.deleted} deleted{change}")
        lines += [f"{name}: operator state changed" for name in self.operator_states]
        lines += [f"property {name!r}: {was!r} becomes {now!r}" for name, (was, now) in self.properties.items()]
        if self.is_empty:
            lines.append("nothing would change")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        columns = ["state", "inserted", "updated", "deleted", "columns"]
        rows = [
            (f"{item.operator}.{item.state}", item.inserted, item.updated, item.deleted, item.schema_change)
            for item in self.changed_states
        ]
        rows += [(name, None, None, None, "operator state changed") for name in self.operator_states]
        rows += [
            (f"property {name}", None, None, None, f"{was!r}, then {now!r}")
            for name, (was, now) in self.properties.items()
        ]
        return table_html(
            f"edit of checkpoint {self.checkpoint_id}: {self.bytes} bytes in {self.files} files", columns, rows
        )
