"""What jobs and queries note of themselves in the properties of a checkpoint, as far as names of operators go.

A job of the runtime notes of which sinks the checkpoint keeps rows, and a query of Spark where in its outputs the rows
of the last micro-batch begin. Both are by uid, and follow an operator that is given another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arrowstate.errors import InvalidInputError

__all__ = ["check_no_rows_kept", "with_uid"]


def check_no_rows_kept(properties: Mapping[str, Any], uid: str) -> None:
    """Refuse another uid for a sink whose rows are kept: under it they would be lost, or given to it twice."""
    job = properties.get("arrowstate.runtime")
    pending = job.get("pending") if isinstance(job, dict) else None
    if isinstance(pending, dict) and pending.get(uid):
        raise InvalidInputError(
            f"operator {uid!r} keeps rows for its sink, which knows them by this name; stop the job so that the sink "
            "has them all, and then leave them out with drop_operator"
        )


def with_uid(properties: Mapping[str, Any], uid: str, new: str) -> dict[str, Any]:
    """Return properties in which an output of a query has another uid."""
    record = properties.get("spark")
    outputs = record.get("outputs") if isinstance(record, dict) else None
    if not isinstance(record, dict) or not isinstance(outputs, dict) or uid not in outputs:
        return dict(properties)
    renamed = {new if name == uid else name: row for name, row in outputs.items()}
    return {**properties, "spark": {**record, "outputs": renamed}}
