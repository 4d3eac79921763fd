"""`arrowstate verify` and `arrowstate diagnose`: what is damaged in a store, and what would help."""

from __future__ import annotations

import argparse
from typing import Any

from arrowstate.cli.output import print_json, print_table, problems_text, progress_bar, say, time_text
from arrowstate.shown import bytes_text
from arrowstate.store import open_store
from arrowstate.upkeep.recovery import StoreVerification, proposals


def verify(options: argparse.Namespace) -> int:
    """Look at the log and the checkpoints of a store and print what was found; 1 if there is a problem."""
    url, found = _look(options, deep=options.deep)
    if options.json:
        print_json({**_as_json(found), "deep": options.deep})
    else:
        _print(url, found)
        say(problems_text(found.problems, "`arrowstate diagnose` goes on"))
    return 1 if found.problems else 0


def diagnose(options: argparse.Namespace) -> int:
    """Print which checkpoints are whole and what would help, and change nothing; 1 if there is a problem."""
    url, found = _look(options, deep=True)
    said = proposals(found, url)
    if options.json:
        print_json({**_as_json(found), "proposals": said})
        return 1 if found.problems else 0
    _print(url, found)
    for text in said:
        say(f"PROPOSAL  {text}")
    say("nothing was changed" if said else "no problem found, nothing to repair")
    return 1 if found.problems else 0


def _look(options: argparse.Namespace, *, deep: bool) -> tuple[str, StoreVerification]:
    store = open_store(options.store)
    with progress_bar("reading" if deep else "looking") as bar:
        found = store.verify(deep=deep, advance=lambda: bar.advance())
    return store.url, found


def _as_json(found: StoreVerification) -> dict[str, Any]:
    whole = found.newest_whole
    return {
        "ok": not found.problems,
        "newest_whole": None if whole is None else whole.checkpoint_id,
        "log_entries": found.log.entries,
        "log_problems": [*found.log.problems, *found.log.beside],
        "checkpoints": [
            {
                "checkpoint_id": item.checkpoint_id,
                "ok": item.verification.ok,
                "files": item.verification.files,
                "bytes": item.verification.bytes,
                "runs": item.verification.runs,
                "problems": item.verification.problems,
            }
            for item in found.checkpoints
        ],
    }


def _print(url: str, found: StoreVerification) -> None:
    say(f"{url}: {found.log.entries} log entries")
    print_table(
        ["checkpoint", "committed", "files", "bytes", "whole"],
        [
            (
                item.checkpoint_id,
                time_text(item.entry.document.committed_at_ms),
                item.verification.files,
                bytes_text(item.verification.bytes),
                "yes" if item.verification.ok else "NO",
            )
            for item in found.checkpoints
        ],
        drop=["files", "bytes"],
    )
    for problem in found.problems:
        say(f"PROBLEM   {problem}")
