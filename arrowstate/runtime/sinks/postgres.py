"""A sink of a table in PostgreSQL: rows and token in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from arrowstate.postgres.commits import PostgresCommits
from arrowstate.runtime.connectors import Sink, Token


class PostgresSink(Sink):
    """Adds the rows of each checkpoint to a table of PostgreSQL, or has them replace those of their keys: exactly once.

    Rows are copied in one transaction together with their token. The table `arrowstate_commits` has the token of each
    sink and subtask: the newest checkpoint whose rows were copied. It is made beside the table if it is missing. Rows
    of a token that is not newer are skipped. If a row of `arrowstate_commits` is deleted, rows may be copied twice.

    Parameters
    ----------
    conninfo : str
        The database, in a form of libpq: a URL such as `postgresql://ann@db/shop`, or `host=db dbname=shop`. Missing
        parts come from the environment. The text is sent to the processes of the job, so a password in it reaches them.
    table : str
        The table, which must exist. Rows go to the columns of the same names.
    schema : str, optional
        The schema of the table; that of the search path if it is not given.
    key : sequence of str, optional
        Columns that name a row: a row replaces the one of its key, if there is one (an upsert). The table must have a
        unique index or a primary key of these columns. Of several rows of a key in a checkpoint the last one counts, as
        it came to the sink, so all rows of a key must come through one subtask: give `stateful` or `key_by` this key.
        By default rows are added.
    operation : str, optional
        A column that says what a row is, in the words of `operation=` on Spark: a row that is removed deletes the one
        of its key. The column is not written. It needs `key`.

    Raises
    ------
    MissingDependencyError
        If psycopg is not installed: `pip install 'arrowstate[postgres]'`.
    InvalidInputError
        If key or operation are not columns of the rows. From `open`, if there is no such table, or no unique index of
        the key. From a commit, if a key is null or an operation is not known. If PostgreSQL refuses rows,
        psycopg's error is raised, and none of these rows is in the table.

    Notes
    -----
    Values are given as text, so a column takes what its type can read: lists come as arrays, structs and maps as JSON,
    bytes as `bytea`, a duration as an interval. PostgreSQL has microseconds: it rounds times to them, and a duration is
    cut to them, towards zero. A time without a zone is one of UTC for a column with a zone. JSON has NaN and infinities
    as the texts that `to_jsonb` gives.

    Examples
    --------
    >>> from arrowstate.runtime import PostgresSink
    >>> PostgresSink("postgresql://ann:secret@db/shop", "totals", schema="reports")
    PostgresSink('reports.totals')
    """

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        schema: str | None = None,
        key: Sequence[str] | None = None,
        operation: str | None = None,
    ) -> None:
        self._commits = PostgresCommits("PostgresSink", conninfo, table, schema=schema, key=key, operation=operation)

    def __repr__(self) -> str:
        return f"PostgresSink({self._commits!r})"

    def check_schema(self, uid: str, schema: pa.Schema) -> None:
        """Refuse columns without the key or the operation."""
        self._commits.check_columns(f"sink {uid!r}", schema.names)

    def open(self, store_id: str, uid: str) -> None:
        """Connect, look for the table, and make that of the tokens where it is missing."""
        self._commits.open(f"{store_id}/{uid}")

    def end_others(self, store_id: str, uid: str) -> None:  # noqa: ARG002
        """End the sessions of an earlier process of the job: one that is suspended would hold its locks for ever."""
        self._commits.end_others()

    def commit(self, rows: pa.Table, token: Token) -> None:
        """Add rows, and their token, unless it is there."""
        self._commits.commit(rows, f"{token.store_id}/{token.uid}", token.subtask, token.checkpoint_id)

    def close(self) -> None:
        """Close the connection."""
        self._commits.close()
