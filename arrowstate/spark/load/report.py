"""What an import of a Spark checkpoint has taken and what it has not: a report for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ImportReport", "ImportedState", "LeftOut"]


@dataclass(frozen=True, slots=True)
class ImportedState:
    """A state that was taken over."""

    operator_id: int
    """The number of the operator in the Spark query."""
    operator_name: str
    """Spark's name of it, `stateStoreSave` for an aggregation."""
    source: str
    """The state store, or the variable of a `transformWithState`."""
    uid: str
    """The operator in the arrowstate store."""
    state: str
    """The state there."""
    kind: str
    """Its kind: value, reducing, list, map or timer."""
    key: str
    """The key columns with their types."""
    type: str
    """The type of a value, an element or an entry; `null` for timers."""
    rows: int
    """One for each key, element, entry or timer."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something in the Spark checkpoint that was not taken over."""

    operator_id: int
    operator_name: str
    source: str
    """The state store, the variable, or a column of one."""
    reason: str
    """Why, and what would help."""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What came of an import; as a text it is made to be read.

    `str(report)` lists the states that were taken, what was left out and why, and where the sources of the query
    stood. Nothing is committed where nothing could be taken.
    """

    checkpoint_location: str
    """The folder of the Spark query."""
    query_id: str | None
    """The id of the query; None if the folder does not tell."""
    batch_id: int
    """The micro-batch whose state was read: everything up to it is in, nothing after it."""
    watermark_ms: int | None
    """The watermark after that batch, in milliseconds since 1970; None if the query had none."""
    offsets: tuple[str, ...]
    """Where each source stood at the end of that batch, as Spark's log has it; the next query begins there."""
    store: str
    """The arrowstate store."""
    checkpoint_id: int | None
    """The checkpoint with the states; None if there was nothing to take."""
    imported: tuple[ImportedState, ...]
    left_out: tuple[LeftOut, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.checkpoint_location} after micro-batch {self.batch_id} -> {self.store}, "
            + ("nothing taken" if self.checkpoint_id is None else f"checkpoint {self.checkpoint_id}"),
            "taken:" if self.imported else "taken: nothing",
        ]
        lines += [
            f"  operator {item.operator_id} {item.operator_name}, {item.source} -> {item.uid}.{item.state}: "
            f"{item.rows:,} rows, {item.kind} of {item.type} by {item.key}"
            for item in self.imported
        ]
        lines.append("left out:" if self.left_out else "left out: nothing")
        lines += [
            f"  operator {item.operator_id} {item.operator_name}, {item.source}: {item.reason}"
            for item in self.left_out
        ]
        lines.append(f"watermark: {'none' if self.watermark_ms is None else f'{self.watermark_ms} ms'}")
        lines += [f"offset of source {number}: {offset}" for number, offset in enumerate(self.offsets)]
        lines.append("start the new query from these offsets: what came after them is not in the state")
        return "\n".join(lines)
