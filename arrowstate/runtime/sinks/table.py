"""An output table: rows in the same log entry as the state."""

from __future__ import annotations

from dataclasses import dataclass

from arrowstate_formats.names import check_operator_uid


@dataclass(frozen=True, slots=True)
class OutputTable:
    """A sink that keeps rows in the store of the job, exactly once, in the log entry of their checkpoint.

    Every checkpoint appends to it, and a row keeps its number for ever. It is the state `rows` of an operator of this
    name: a table in SQL, and a stream for Spark and for an `OutputSource` of another job.

    Parameters
    ----------
    name
        The operator uid under which the store has the table; unique in the job.

    Examples
    --------
    >>> OutputTable("changes")
    OutputTable(name='changes')
    """

    name: str

    def __post_init__(self) -> None:
        check_operator_uid(self.name)
