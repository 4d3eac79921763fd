"""`arrowstate publish`: checkpoints as open tables, once or as they come."""

from __future__ import annotations

import argparse
import time
from typing import Any

from arrowstate.cli.messages import tell_error
from arrowstate.cli.output import print_json, print_table
from arrowstate.errors import ArrowStateError, InvalidInputError
from arrowstate.publish.publication import Publication, Publish, open_publisher
from arrowstate.store import open_store

_LOOK_SECONDS = 1.0
"""Between two looks for a new checkpoint."""


def publish(options: argparse.Namespace) -> int:
    """Publish the newest checkpoint, and with --watch each later one."""
    store = open_store(options.store)
    form: dict[str, Any] = {"format": "iceberg", "version": options.iceberg}
    if options.delta is not None:
        form = {"format": "delta", "version": options.delta}
    asked = Publish(to=options.to, states=options.state, history=options.history, **form)
    publisher = open_publisher(store.storage, store.store_id, asked)
    _show(publisher.publish(), options)
    while options.watch:
        time.sleep(_LOOK_SECONDS)
        try:
            publication = publisher.publish()
        except InvalidInputError:
            raise
        except (ArrowStateError, OSError) as error:
            # What failed costs freshness only; the next look goes on.
            tell_error(type(error).__name__, str(error), as_json=options.json)
            continue
        if any(table.is_new for table in publication.tables):
            _show(publication, options)
    return 0


def _show(publication: Publication, options: argparse.Namespace) -> None:
    tables: list[dict[str, Any]] = [
        {
            "operator": table.operator,
            "state": table.state,
            "checkpoint_id": table.checkpoint_id,
            "version": table.version,
            "is_new": table.is_new,
            "metadata": table.metadata,
        }
        for table in publication.tables
    ]
    if options.json:
        print_json({"url": publication.url, "checkpoint_id": publication.checkpoint_id, "tables": tables})
        return
    names = ["table", "checkpoint", "version", "metadata"]
    rows = [
        (f"{table['operator']}.{table['state']}", table["checkpoint_id"], table["version"], table["metadata"])
        for table in tables
    ]
    print_table(names, rows)
