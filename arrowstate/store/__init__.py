"""A store and its snapshots: the entry points of the Python API."""

from arrowstate.store.plans import Collection, Compaction, Lease
from arrowstate.store.snapshot import Snapshot
from arrowstate.store.store import StateStore, open_store
from arrowstate.store.writer import StoreWriter

__all__ = [
    "Collection",
    "Compaction",
    "Lease",
    "Snapshot",
    "StateStore",
    "StoreWriter",
    "open_store",
]
