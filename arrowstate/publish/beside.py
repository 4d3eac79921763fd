"""Publications after commits: beside a job, or at once; one that fails costs freshness and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable

from arrowstate.clock import new_id, now_ms
from arrowstate.publish.publication import Publish, Publisher, open_publisher
from arrowstate.storage.base import Storage
from arrowstate.upkeep.beside import Beside, is_ending

_REST = 1
"""A publisher takes half of the time of a storage at most."""

_logger = logging.getLogger("arrowstate.publish")


class PublisherBeside(Beside):
    """Publishes a store when it is told that something was committed."""

    def __init__(
        self,
        url: str,
        open: Callable[[], Publisher],
        *,
        rest: Callable[[float], object] | None = None,
        is_beside: bool = True,
    ) -> None:
        super().__init__("arrowstate-publication", _REST, rest=rest, is_beside=is_beside)
        self._url = url
        self._open = open
        self._publisher: Publisher | None = None

    def _do(self) -> bool:
        try:
            if self._publisher is None:
                self._publisher = self._open()
            self._publisher.publish()
        except Exception as error:  # noqa: BLE001 (whoever commits goes on, whatever it is)
            if not is_ending():
                fields = {"store": self._url, "error": f"{type(error).__name__}: {error}"}
                _logger.warning("%(store)s: a publication failed, the next goes on: %(error)s", fields, extra=fields)
        return True


def publisher_of_writer(
    storage: Storage,
    store_id: str,
    publish: Publish | None,
    *,
    clock_ms: Callable[[], int] = now_ms,
    new_id: Callable[[], str] = new_id,
    is_beside: bool = True,
) -> PublisherBeside | None:
    """Return what publishes a store for one who writes to it; None where nothing is to be published."""
    if publish is None:
        return None
    publisher = open_publisher(storage, store_id, publish, clock_ms=clock_ms, new_id=new_id)
    return PublisherBeside(storage.url, lambda: publisher, is_beside=is_beside)
