"""`arrowstate savepoint`: a checkpoint as a folder of its own."""

from __future__ import annotations

import argparse

from arrowstate.cli.output import bytes_text, print_json, progress_bar, say
from arrowstate.store import open_store

__all__ = ["write"]


def write(options: argparse.Namespace) -> int:
    """Write a savepoint and print where it is."""
    store = open_store(options.store)
    with progress_bar("writing files") as bar:

        def progress(done: int, total: int) -> None:
            bar.update(bar.task_ids[0], completed=done, total=total)

        savepoint = store.savepoint(options.place, checkpoint=options.checkpoint, progress=progress)
    paths = savepoint.storage.list("data/")
    tables = sum(path.endswith(".parquet") for path in paths)
    size = sum(savepoint.storage.open_buffer(path).size for path in paths)
    rows = sum(sum(subtask.live_rows.values()) for op in savepoint.entry.operators for subtask in op.subtasks)
    if options.json:
        print_json(
            {
                "url": savepoint.storage.url,
                "checkpoint_id": savepoint.checkpoint_id,
                "rows": rows,
                "files": len(paths),
                "bytes": size,
            }
        )
        return 0
    say(f"checkpoint {savepoint.checkpoint_id} is now also in {savepoint.storage.url}")
    others = f" and operator state in Arrow files ({len(paths) - tables})" if tables < len(paths) else ""
    say(f"  {rows} rows in Parquet files ({tables}){others}, {bytes_text(size)}; the folder may be moved as a whole")
    return 0
