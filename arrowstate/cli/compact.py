"""`arrowstate compact`: what a compaction would merge, and with `--apply` merging it."""

from __future__ import annotations

import argparse
from typing import Any

from msgspec.structs import asdict

from arrowstate.checkpoints.compaction import CompactionPolicy
from arrowstate.cli.output import print_json, print_table, say
from arrowstate.files.storage_use import StorageUse
from arrowstate.shown import bytes_text
from arrowstate.store import open_store


def compact(options: argparse.Namespace) -> int:
    """Print the plan of a compaction, and apply it if asked to."""
    store = open_store(options.store)
    policy = CompactionPolicy(options.max_amplification, max_small_files=options.max_small_files)
    compaction = store.compact(policy)
    plan = compaction.plan
    done = compaction.apply() if options.apply else None
    after = None if done is None else done.storage_use()
    merges = [
        {"state": f"{merge.uid}.{merge.state}", "subtask": merge.subtask, "runs": len(merge.runs), "rows": merge.rows}
        for merge in plan.merges
    ]
    if options.json:
        print_json(
            {
                "applied": options.apply,
                "checkpoint_id": plan.checkpoint_id,
                "storage": _as_json(plan.use),
                "merges": merges,
                "bytes_read": plan.bytes_read,
                "bytes_written": plan.bytes_written,
                "storage_after": None if after is None else _as_json(after),
            }
        )
        return 0
    say(f"compaction of checkpoint {plan.checkpoint_id} of {store.url}")
    say(f"  it takes              {_text(plan.use)}")
    if not merges:
        say("it is within the limits, nothing is to be done")
        return 0
    print_table(["state", "subtask", "runs to merge", "rows"], [tuple(merge.values()) for merge in merges])
    say(f"  to read and to write  {bytes_text(plan.bytes_read)}, {bytes_text(plan.bytes_written)}")
    if not options.apply:
        say("nothing was changed; --apply does it")
    elif done is None or after is None:
        say("later checkpoints have let all of these runs go; nothing was changed")
    else:
        say(f"checkpoint {done.checkpoint_id} was compacted and takes {_text(after)}")
        say("the old files go when `arrowstate gc` drops the checkpoints that need them")
    return 0


def _as_json(use: StorageUse) -> dict[str, Any]:
    return {**asdict(use), "space_amplification": use.space_amplification}


def _text(use: StorageUse) -> str:
    times = "" if use.space_amplification is None else f", {use.space_amplification:.2f} times the live rows"
    return f"{use.files} files ({use.small_files} small), {bytes_text(use.bytes)}{times}"
