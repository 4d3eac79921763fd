"""`arrowstate savepoint`, `import` and `dispose`: a checkpoint as a folder of its own, its way back, and its end."""

from __future__ import annotations

import argparse
import warnings

from arrowstate.checkpoints.importing import ClaimMode
from arrowstate.cli.messages import in_own_terms
from arrowstate.cli.output import print_json, progress_bar, say
from arrowstate.files.disposal import dispose_savepoint
from arrowstate.files.references import ReferenceReader
from arrowstate.files.subtasks import whole_operators
from arrowstate.shown import bytes_text
from arrowstate.store import Snapshot, open_store

_FORMAT_NAMES = {"parquet": "Parquet", "arrow": "Arrow", "lance": "Lance"}


def write(options: argparse.Namespace) -> int:
    """Write a savepoint and print where it is."""
    store = open_store(options.store)
    with progress_bar("writing files") as bar:

        def progress(done: int, total: int) -> None:
            bar.update(completed=done, total=total)

        savepoint = store.savepoint(
            options.place, checkpoint=options.checkpoint, format=options.format, delta=options.delta, progress=progress
        )
    files = _data_files(savepoint)
    size = sum(files.values())
    own = sum(
        part.path is not None
        for operator in whole_operators(savepoint.storage, savepoint.entry.operators)
        for state in operator.operator_states
        for part in state.parts
    )
    if options.json:
        print_json(
            {
                "url": savepoint.storage.url,
                "checkpoint_id": savepoint.checkpoint_id,
                "format": options.format,
                "rows": _rows(savepoint),
                "files": len(files),
                "bytes": size,
            }
        )
        return 0
    say(f"checkpoint {savepoint.checkpoint_id} is now also in {savepoint.storage.url}")
    others = f" and operator state in Arrow files ({own})" if own else ""
    say(
        f"  {_rows(savepoint)} rows in {_FORMAT_NAMES[options.format]} files ({len(files) - own}){others}, "
        f"{bytes_text(size)}; the folder may be moved as a whole"
    )
    return 0


def bring_in(options: argparse.Namespace) -> int:
    """Import a savepoint and print what it became."""
    store = open_store(options.store)
    # A savepoint that was claimed and could not be disposed of is a warning, and belongs into the output.
    with warnings.catch_warnings(record=True) as caught, progress_bar("copying files") as bar:
        warnings.simplefilter("always", RuntimeWarning)

        def progress(done: int, total: int) -> None:
            bar.update(completed=done, total=total)

        imported = store.import_savepoint(
            options.place, claim_mode=ClaimMode.CLAIM if options.claim else ClaimMode.NO_CLAIM, progress=progress
        )
    said = [in_own_terms(str(warning.message)) for warning in caught]
    files = _data_files(imported)
    if options.json:
        print_json(
            {
                "url": store.url,
                "checkpoint_id": imported.checkpoint_id,
                "rows": _rows(imported),
                "files": len(files),
                "bytes": sum(files.values()),
                "warnings": said,
            }
        )
    else:
        say(f"{options.place} is now checkpoint {imported.checkpoint_id} of {store.url}")
        say(f"  {_rows(imported)} rows in {len(files)} files, {bytes_text(sum(files.values()))}")
        for text in said:
            say(f"WARNING   {text}")
    return 1 if said else 0


def delete(options: argparse.Namespace) -> int:
    """Dispose of a savepoint and print how many files are gone."""
    deleted = dispose_savepoint(options.place)
    if options.json:
        print_json({"deleted": deleted})
    else:
        say(f"the savepoint in {options.place} is gone: {len(deleted)} files deleted")
    return 0


def _data_files(snapshot: Snapshot) -> dict[str, int]:
    files = ReferenceReader(snapshot.storage).files(snapshot.entry.operators)
    return {path: size for path, size in files.items() if path.startswith("data/")}


def _rows(snapshot: Snapshot) -> int:
    return sum(op.live_rows(state.name) for op in snapshot.entry.operators for state in op.states)
