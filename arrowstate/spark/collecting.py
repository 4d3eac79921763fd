"""Collection beside a query: several processes of a machine may run queries on a store, and one collects at a time.

What a retention drops is deleted while the query goes on, see `arrowstate.upkeep.beside`; the figures of the next
micro-batch say what became of it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from arrowstate.publish.beside import PublisherBeside
from arrowstate.publish.publication import Publish, Publisher, open_publisher
from arrowstate.spark.places import StorePlace
from arrowstate.store import open_store
from arrowstate.upkeep.beside import Collector, collect_store
from arrowstate.upkeep.retention import RetentionPolicy
from arrowstate_formats import system
from arrowstate_formats.run_files import checksum

__all__ = ["collector_of", "new_collector", "publisher_of"]

_collectors: dict[tuple[str, RetentionPolicy], tuple[StorePlace, Collector]] = {}


_publishers: dict[tuple[str, str], tuple[StorePlace, Publish, PublisherBeside]] = {}


def collector_of(place: StorePlace, policy: RetentionPolicy) -> Collector:
    """Return what collects a store in this process."""
    known = _collectors.get((place.url, policy))
    if known is None or known[0] != place:
        # Credentials may be others by now.
        known = _collectors[place.url, policy] = place, new_collector(place, policy)
    return known[1]


def new_collector(
    place: StorePlace, policy: RetentionPolicy, *, rest: Callable[[float], object] | None = None
) -> Collector:
    """Return what collects a store when no other process of this machine does; `rest` as for `Collector`."""

    def collect() -> tuple[int, int] | None:
        with _alone(place.url) as is_alone:
            if not is_alone:
                return None
            store = open_store(place.url, storage_options=place.options)
            report, dropped = collect_store(store.storage, policy, clock_ms=store.clock_ms, new_id=store.new_id)
            return report.deleted_count, dropped

    return Collector(place.url, policy, collect, rest=rest)


def publisher_of(place: StorePlace, publish: Publish) -> PublisherBeside:
    """Return what publishes a store in this process."""

    def open() -> Publisher:
        store = open_store(place.url, storage_options=place.options)
        return open_publisher(store.storage, store.store_id, publish)

    key = place.url, str(publish.to)
    known = _publishers.get(key)
    if known is None or known[:2] != (place, publish):
        known = _publishers[key] = place, publish, PublisherBeside(place.url, open)
    return known[2]


@contextmanager
def _alone(url: str) -> Iterator[bool]:
    """Whether no other process of this user and machine collects the store."""
    name = f"arrowstate-{system.user()}-{checksum(url.encode())}.collection"
    descriptor = os.open(Path(tempfile.gettempdir()) / name, os.O_RDWR | os.O_CREAT | system.OPEN, 0o600)
    try:
        yield system.lock(descriptor, wait=False)
    finally:
        os.close(descriptor)
