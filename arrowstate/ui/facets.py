"""The values of a column of a state that are there most often, each with a query for its rows."""

from __future__ import annotations

from typing import Any

from arrowstate.errors import InvalidInputError
from arrowstate.query.catalog import quoted, sql_names
from arrowstate.query.state import StateReader
from arrowstate.ui.site import Ask
from arrowstate.ui.sql import answered_rows, name_of_table
from arrowstate.ui.work import Stop

_VALUES = 20
_LONGEST_LITERAL = 1_000
"""Characters of a value that a query is made for."""


def facets(ask: Ask) -> dict[str, Any]:
    """Return the most frequent values of a column, and how many rows and different values there are."""
    snapshot, (uid, state), column = ask.snapshot(), ask.state(), ask.text("column")
    name = next((name for name in sql_names(snapshot.entry) if (name.uid, name.state) == (uid, state)), None)
    columns = [] if name is None else StateReader(snapshot.storage, snapshot.entry, uid, state).columns
    if name is None or column not in columns:
        raise InvalidInputError(f"name a column of {uid}.{state}: {', '.join(columns) or 'it has none for queries'}")
    table, value = name_of_table(name), quoted(column)
    # The text of a value finds its rows again, whatever its type is.
    query = f"""
        with counted as (select {value} as value, count(*) as rows from {table} group by all)
        select value, cast(value as varchar) as text, rows, sum(rows) over () as all_rows, count(*) over () as different
        from counted order by rows desc, text limit {_VALUES}"""  # noqa: S608 (names are in quotes)
    found: dict[str, Any] = ask.place.kept.get(
        (snapshot.entry.commit_id, "facets", uid, state, column),
        lambda: answered_rows(snapshot, query, ask.site.limits, Stop()),
    )
    return {
        "checkpoint_id": snapshot.checkpoint_id,
        "operator": uid,
        "state": state,
        "column": column,
        "rows": int(found["rows"][0][3]) if found["rows"] else 0,
        "different": int(found["rows"][0][4]) if found["rows"] else 0,
        "values": [
            {"value": shown, "rows": int(rows), "query": _query(table, value, text)}
            for shown, text, rows, *_ in found["rows"]
        ],
    }


def _query(table: str, column: str, text: Any) -> str | None:
    """Return a query for the rows of a value; None for a value that is too long to be written into one."""
    if text is None:
        return f"select * from {table} where {column} is null limit 100"  # noqa: S608
    if not isinstance(text, str) or len(text) > _LONGEST_LITERAL:
        return None
    literal = "'" + text.replace("'", "''") + "'"
    return f"select * from {table} where cast({column} as varchar) = {literal} limit 100"  # noqa: S608
