"""`arrowstate tag`, `untag` and `tags`: names that keep checkpoints; and `rollback`, which goes back to one."""

from __future__ import annotations

import argparse

from arrowstate.cli.output import print_json, print_table, say
from arrowstate.store import open_store


def tag(options: argparse.Namespace) -> int:
    """Tag a checkpoint and say which."""
    store = open_store(options.store)
    snapshot = store.latest() if options.checkpoint is None else store.snapshot(options.checkpoint)
    store.tag(options.name, snapshot.checkpoint_id)
    found = {"tag": options.name, "checkpoint_id": snapshot.checkpoint_id}
    if options.json:
        print_json(found)
    else:
        say(f"checkpoint {snapshot.checkpoint_id} is kept as {options.name}")
    return 0


def untag(options: argparse.Namespace) -> int:
    """Remove a tag."""
    open_store(options.store).untag(options.name)
    if options.json:
        print_json({"tag": options.name})
    else:
        say(f"removed the tag {options.name}")
    return 0


def roll_back(options: argparse.Namespace) -> int:
    """Commit an older checkpoint once more and say under which id."""
    store = open_store(options.store)
    to = store.snapshot(options.to).checkpoint_id
    snapshot = store.rollback(to, comment=options.comment)
    if options.json:
        print_json({"checkpoint_id": snapshot.checkpoint_id, "rolled_back_to": to})
    else:
        say(f"checkpoint {snapshot.checkpoint_id} has what checkpoint {to} has")
    return 0


def list_tags(options: argparse.Namespace) -> int:
    """Print the tags of a store and their checkpoints."""
    tags = open_store(options.store).tags()
    rows = sorted(tags.items(), key=lambda item: (item[1], item[0]))
    if options.json:
        print_json([{"tag": name, "checkpoint_id": checkpoint} for name, checkpoint in rows])
    else:
        print_table(["tag", "checkpoint"], rows)
    return 0
