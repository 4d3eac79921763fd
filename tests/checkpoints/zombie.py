"""A process that stops itself right before or after calls of its storage, until somebody wakes it: SIGSTOP, SIGCONT.

Arguments: the folder of a store, a role, and where to stop, once at each place: `<verb> <start of the path> before`, or
`after`. When it is done it prints one JSON object: the outcome, which is `done` or the name of an error, and what it
got.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from arrowstate import ArrowStateError, RetentionPolicy
from arrowstate.log.entries import open_store_document
from arrowstate.storage import open_storage
from arrowstate.store import StateStore
from every_kind import UID, Job, small_files

KEYS = 60
NOW_MS = 1_000_000
GRACE_MS = 1000


class Stopping:
    """A storage whose process stops at one call after the other, once it is armed."""

    def __init__(self, storage: Any, places: list[str]) -> None:
        self._storage = storage
        self._places = [place.split() for place in places]
        self.armed = False

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._storage, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            path = arguments[0] if arguments else ""
            self._stop_at(name, path, "before")
            result = value(*arguments, **options)
            self._stop_at(name, path, "after")
            return result

        return call

    def _stop_at(self, name: str, path: str, now: str) -> None:
        if not self.armed or not self._places:
            return
        verb, prefix, moment = self._places[0]
        if (name, now) == (verb, moment) and path.startswith(prefix):
            del self._places[0]
            os.kill(os.getpid(), signal.SIGSTOP)


def write(store: StateStore, arm: Callable[[], None]) -> Any:
    """Take over, restore, and commit one checkpoint."""
    with store.writer() as writer:
        latest = store.latest()
        job = Job.restored(latest, 2, KEYS)
        number = latest.properties["steps"]
        job.step(number)
        arm()
        snapshot = writer.checkpoint(
            {UID: job.keyed}, operator_states={UID: job.operator}, properties={"steps": number + 1}, format="parquet"
        )
        return {"checkpoint": snapshot.checkpoint_id, "checksum": job.checksum()}


def open_writer(store: StateStore, arm: Callable[[], None]) -> Any:
    """Take over, and nothing else."""
    arm()
    return {"epoch": store.writer().epoch}


def collect(store: StateStore, arm: Callable[[], None]) -> Any:
    """Plan and apply a collection."""
    arm()
    collection = store.collect(RetentionPolicy(count=1), grace_ms=GRACE_MS, allow_short_grace=True)
    return {"deleted": len(collection.apply().deleted)}


def tag(store: StateStore, arm: Callable[[], None]) -> Any:
    """Tag the checkpoint before the newest."""
    ids = [snapshot.checkpoint_id for snapshot in store.checkpoints()]
    arm()
    store.tag("zombie", ids[-2])
    return {"checkpoint": ids[-2]}


def renew(store: StateStore, arm: Callable[[], None]) -> Any:
    """Lease the checkpoint before the newest, and renew the lease."""
    lease = store.lease([snapshot.checkpoint_id for snapshot in store.checkpoints()][-2], ttl_ms=10**9)
    lease._ttl_ms = 1
    lease.renew()
    arm()
    lease.renew()
    return {"checkpoint": lease.entry.checkpoint_id}


def drive(store: StateStore, arm: Callable[[], None]) -> Any:
    """Take over and commit as long as nobody else takes over; print each checkpoint that was acknowledged."""
    arm()
    # Woken together with others: from here on they race.
    with store.writer() as writer:
        latest = store.latest()
        job = Job.restored(latest, 1, KEYS)
        for number in range(latest.properties["steps"], latest.properties["steps"] + 5):
            job.step(number)
            snapshot = writer.checkpoint(
                {UID: job.keyed}, operator_states={UID: job.operator}, properties={"steps": number + 1}
            )
            print(json.dumps({"checkpoint": snapshot.checkpoint_id, "checksum": job.checksum()}), flush=True)
    return {}


ROLES = {"write": write, "open": open_writer, "collect": collect, "tag": tag, "renew": renew, "drive": drive}


def main(url: str, role: str, *places: str) -> None:
    storage = Stopping(open_storage(url), list(places))
    store = StateStore(storage, open_store_document(storage).store_id, clock_ms=lambda: NOW_MS)

    def arm() -> None:
        storage.armed = True

    with small_files():
        try:
            print(json.dumps({"outcome": "done", **ROLES[role](store, arm)}), flush=True)
        except ArrowStateError as error:
            print(json.dumps({"outcome": type(error).__name__, "error": str(error)}), flush=True)
    # Threads that renew leases would go on.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
