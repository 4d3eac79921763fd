"""What jobs and queries note of themselves in the properties of a checkpoint that others commit another one after.

A query of Spark notes which run of it has committed what, when a timer is due, and where in its outputs the rows of the
last micro-batch begin; a job of the runtime of which sinks the checkpoint keeps rows. The outputs and sinks are by uid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from arrowstate.errors import InvalidInputError

_QUERY = "spark"
_JOB = "arrowstate.runtime"


def of_stopped_query(properties: Mapping[str, Any], new_id: Callable[[], str]) -> dict[str, Any]:
    """Return properties for a checkpoint that a query did not make, from which it goes on when it is started again.

    A run that is still alive does not find itself in them, so it is fenced. Nobody has looked for timers in the
    checkpoint, so a query that fires them while no row comes looks once.
    """
    record = properties.get(_QUERY)
    if isinstance(record, dict) and "run_id" in record:
        return {**properties, _QUERY: {**record, "run_id": new_id(), "next_timer": 0}}
    return dict(properties)


def of_other_store(properties: Mapping[str, Any], store_id: str) -> dict[str, Any]:
    """Return properties for a checkpoint that is copied into another store, and where it comes from.

    Sinks know the rows that a job keeps for them by the store of the job, and they may have had them already.
    """
    job = properties.get(_JOB)
    if not isinstance(job, dict):
        return dict(properties)
    # Where the job of that store began is nothing to one of the other.
    noted = {name: value for name, value in job.items() if name != "from"}
    return {**properties, _JOB: {"origin": store_id, **noted} if noted.get("pending") else noted}


def begun_with(properties: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return properties for the checkpoint with which a job begins that has it from some place."""
    return {**properties, _JOB: {**properties.get(_JOB, {}), "from": place}}


def begun_from(properties: Mapping[str, Any] | None) -> str | None:
    """Return with which savepoint, checkpoint or store a job has begun; None if with its own."""
    job = (properties or {}).get(_JOB)
    return job.get("from") if isinstance(job, dict) else None


def check_no_rows_kept(properties: Mapping[str, Any], uid: str) -> None:
    """Refuse another uid for a sink whose rows are kept: under it they would be lost, or given to it twice."""
    job = properties.get(_JOB)
    pending = job.get("pending") if isinstance(job, dict) else None
    if isinstance(pending, dict) and pending.get(uid):
        raise InvalidInputError(
            f"operator {uid!r} keeps rows for its sink, which knows them by this name; stop the job so that the sink "
            "has them all, and then leave them out with drop_operator"
        )


def with_uid(properties: Mapping[str, Any], uid: str, new: str) -> dict[str, Any]:
    """Return properties in which an output of a query has another uid."""
    record = properties.get(_QUERY)
    outputs = record.get("outputs") if isinstance(record, dict) else None
    if not isinstance(record, dict) or not isinstance(outputs, dict) or uid not in outputs:
        return dict(properties)
    renamed = {new if name == uid else name: row for name, row in outputs.items()}
    return {**properties, _QUERY: {**record, "outputs": renamed}}
