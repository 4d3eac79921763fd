"""Connections to PostgreSQL, as its source and its sink make them: what may have a password is in no error."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from arrowstate.errors import InvalidInputError, MissingDependencyError, UnavailableError

if TYPE_CHECKING:
    from psycopg import Connection


def checked_conninfo(feature: str, conninfo: str) -> str:
    """Return what libpq can read."""
    try:
        import psycopg.conninfo
    except ImportError as error:
        raise MissingDependencyError(feature, "psycopg", "postgres") from error
    if isinstance(conninfo, str):
        # What libpq says of a text that it cannot read has the text.
        try:
            psycopg.conninfo.conninfo_to_dict(conninfo)
        except psycopg.Error:
            pass
        else:
            return conninfo
    raise InvalidInputError(
        f"{feature} needs a conninfo that libpq can read, such as postgresql://ann@db/shop or host=db dbname=shop; "
        "the one that was given is not shown, because it may have a password"
    )


def connect(conninfo: str, *, settings: dict[str, str] | None = None, **given: Any) -> Connection[Any]:
    """Return a connection without a transaction; settings of PostgreSQL are besides those of the conninfo."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    if settings:
        before = conninfo_to_dict(conninfo).get("options") or os.environ.get("PGOPTIONS")
        options = [str(before)] if before else []
        given["options"] = " ".join([*options, *(f"-c {name}={value}" for name, value in settings.items())])
    try:
        return psycopg.connect(conninfo, autocommit=True, **given)
    except psycopg.OperationalError as error:
        raise UnavailableError("PostgreSQL", "connecting to it", str(error)) from None
