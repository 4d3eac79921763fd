"""The result of a query, as DuckDB's relation with the errors of this tree.

DuckDB computes a result when it is fetched, and of an error that a scan raises it keeps the text alone. So the
relation is handed out under a cover that passes everything on, and raises the scan's own error in place of what
DuckDB made of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from arrowstate.errors import ArrowStateError
from arrowstate.query.duckdb.dataset import ScanStatistics
from arrowstate.query.duckdb.engine import Held

_SCANS_OF_A_QUERY = 64
_DONE_WHEN_RETURNED = ("fetchall", "fetchnumpy", "df", "to_df", "to_arrow_table", "filter", "project", "order", "limit")
"""Methods of whose result nothing reads on with the connection, but for what is covered."""


class Watch:
    """Remembers the last scans of one query, so that the error which broke one off can be raised.

    `on_scan` is told of each scan too.
    """

    def __init__(self, on_scan: Callable[[ScanStatistics], None]) -> None:
        self._on_scan = on_scan
        self._scans: deque[ScanStatistics] = deque(maxlen=_SCANS_OF_A_QUERY)

    def __call__(self, statistics: ScanStatistics) -> None:
        self._scans.append(statistics)
        self._on_scan(statistics)

    def failure(self) -> ArrowStateError | None:
        """Return the error that broke a scan off; each is returned once, so it is not raised for a later fault."""
        for statistics in list(self._scans):
            if statistics.failure is not None:
                self._scans.remove(statistics)
                return statistics.failure
        return None

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise the error of a scan in the place of what an engine made of it."""
        try:
            yield
        except Exception as error:
            failure = self.failure()
            if failure is None:
                raise
            raise failure from error


class Relation:
    """A `duckdb.DuckDBPyRelation` under cover: it, and all relations and readers made from it."""

    __slots__ = ("__wrapped__", "_held", "_watch")

    def __init__(self, relation: duckdb.DuckDBPyRelation, watch: Watch, held: Held) -> None:
        self.__wrapped__ = relation
        self._watch = watch
        self._held = held

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """For isinstance, what is covered."""
        return duckdb.DuckDBPyRelation

    def __getattr__(self, name: str) -> Any:
        with self._watch.raising():
            # DuckDB 1.4 has another name for it.
            earlier = name == "to_arrow_reader" and not hasattr(self.__wrapped__, name)
            found = getattr(self.__wrapped__, "fetch_record_batch" if earlier else name)
        if callable(found) and name not in _DONE_WHEN_RETURNED:
            self._held.session.may_serve_again = False
        return self._passed_on(found) if callable(found) else self._covered(found)

    def __getitem__(self, name: str) -> Any:
        return self._passed_on(self.__wrapped__.__getitem__)(name)

    def __contains__(self, name: str) -> bool:
        return name in self.__wrapped__

    def __len__(self) -> int:
        with self._watch.raising():
            return len(self.__wrapped__)

    def __repr__(self) -> str:
        with self._watch.raising():
            return repr(self.__wrapped__)

    def __str__(self) -> str:
        with self._watch.raising():
            return str(self.__wrapped__)

    def __dir__(self) -> list[str]:
        return dir(self.__wrapped__)

    def _passed_on(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            given = [_uncovered(argument) for argument in arguments]
            named = {name: _uncovered(argument) for name, argument in options.items()}
            try:
                with self._watch.raising():
                    return self._covered(method(*given, **named))
            except BaseException:
                self._held.session.may_serve_again = False
                raise

        return call

    def _covered(self, result: Any) -> Any:
        if type(result) is duckdb.DuckDBPyRelation:
            return Relation(result, self._watch, self._held)
        if isinstance(result, pa.RecordBatchReader):
            return pa.RecordBatchReader.from_batches(result.schema, self._batches(result))
        return result

    def as_argument(self) -> duckdb.DuckDBPyRelation:
        """Return the relation of DuckDB, to be part of another one; its connection then serves no other query."""
        self._held.session.may_serve_again = False
        return self.__wrapped__

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        with self._watch.raising():
            yield from reader


def _uncovered(argument: Any) -> Any:
    if type(argument) is not Relation:
        return argument
    return argument.as_argument()
