"""A store and its snapshots: the entry points of the Python API."""

from arrowstate.editing.edit import Edit
from arrowstate.editing.plan import EditPlan
from arrowstate.editing.purging import PurgeReport
from arrowstate.query.health import Health
from arrowstate.store.follower import Answer, Follower
from arrowstate.store.snapshot import Snapshot
from arrowstate.store.store import Collection, Compaction, Lease, StateStore, open_store
from arrowstate.store.writer import StoreWriter

__all__ = [
    "Answer",
    "Collection",
    "Compaction",
    "Edit",
    "EditPlan",
    "Follower",
    "Health",
    "Lease",
    "PurgeReport",
    "Snapshot",
    "StateStore",
    "StoreWriter",
    "open_store",
]
