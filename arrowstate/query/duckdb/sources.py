"""What SQL reads of a checkpoint: keyed states, operator states, and the history of its store."""

from __future__ import annotations

from collections.abc import Callable

from arrowstate.files.operator import OperatorStateTable
from arrowstate.files.subtasks import whole_state
from arrowstate.query.catalog import SqlName, history_names, sql_names
from arrowstate.query.duckdb.dataset import Source, StateSource
from arrowstate.query.duckdb.history import HistorySource
from arrowstate.query.duckdb.operator_state import OperatorStateSource
from arrowstate.query.expiry import Seen
from arrowstate.query.state import StateReader
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import LogEntryDocument


def sources_of(
    storage: Storage, entry: LogEntryDocument, reader: Callable[[str, str], StateReader], seen: Seen
) -> dict[SqlName, Source]:
    """Return the sources of a checkpoint by their names; `reader` gives the keyed state of an operator by its name."""
    documents = {
        (item.uid, state.name): (item.uid, state) for item in entry.operators for state in item.operator_states
    }

    def source(name: SqlName) -> Source:
        if not name.is_operator_state:
            return StateSource(reader(name.uid, name.state), seen)
        document = whole_state(storage, *documents[name.uid, name.state])
        return OperatorStateSource(name.uid, OperatorStateTable(storage, entry, document))

    return {name: source(name) for name in sql_names(entry)} | history_sources(storage)


def history_sources(storage: Storage) -> dict[SqlName, Source]:
    """Return the sources of the history of a store by their names."""
    return {name: HistorySource(storage, name.relation) for name in history_names()}
