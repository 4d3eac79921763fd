"""The server of the page: in the foreground for the command line, in a thread for a notebook or a running job."""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from arrowstate.errors import InvalidInputError, MissingDependencyError
from arrowstate.html import table_html
from arrowstate_formats.integers import check_integer

if TYPE_CHECKING:
    from arrowstate.storage.base import Storage
    from arrowstate.ui.site import Store

LOOPBACK = ("127.0.0.1", "localhost")
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104
_SECONDS_TO_START = 10.0
_BEARER = "ARROWSTATE_UI_TOKEN"
_SHORTEST_BEARER = 16


class Page:
    """A page that is served; it ends with `close`, with its `with` block, or with the process."""

    def __init__(self, server: Any, listening: socket.socket, keys: Any, host: str, stores: Sequence[str]) -> None:
        self._server = server
        self._listening = listening
        self._keys = keys
        self._thread: threading.Thread | None = None
        self.host = host
        "Where it listens."
        self.port: int = listening.getsockname()[1]
        self.stores = tuple(stores)

    def __repr__(self) -> str:
        return f"<Page of {', '.join(self.stores)} at {self.address}>"

    def _repr_html_(self) -> str:
        rows = [[store] for store in self.stores]
        # The address is our own: no part of it comes from a store.
        return f'<p><a href="{self.url}" target="_blank" rel="noopener">Open the page</a></p>' + table_html(
            self.address, ["store"], rows
        )

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where it is, without what opens it."""
        return f"http://{'127.0.0.1' if self.host in EVERYWHERE else _in_url(self.host)}:{self.port}/"

    @property
    def url(self) -> str:
        """An address that opens the page once, another one each time it is asked for."""
        return f"{self.address}?token={self._keys.new_token()}"

    @property
    def bearer(self) -> str:
        """What scripts send as `Authorization: Bearer`, such as Prometheus for `/metrics`."""
        token: str = self._keys.bearer
        return token

    def run(self) -> None:
        """Serve in this thread, until Ctrl-C."""
        self._server.run(sockets=[self._listening])

    def start(self) -> Page:
        """Serve in a thread; return when it answers."""
        started = threading.Event()
        self._server.on_start = started.set
        self._thread = threading.Thread(target=self.run, name="arrowstate-ui", daemon=True)
        self._thread.start()
        weakref.finalize(self, _stop, self._server)
        if not started.wait(_SECONDS_TO_START):
            raise InvalidInputError(f"the page at {self.address} has not started within {_SECONDS_TO_START:.0f} s")
        return self

    def close(self) -> None:
        """End it."""
        _stop(self._server)
        if self._thread is not None:
            self._thread.join(_SECONDS_TO_START)
            self._thread = None
        self._listening.close()


def _stop(server: Any) -> None:
    server.should_exit = True


def _names_of(host: str) -> list[str]:
    """Return the names under which a browser may ask for it: where it listens everywhere, those of the machine."""
    if host not in EVERYWHERE:
        return [_in_url(host)]
    name = socket.gethostname()
    try:
        addresses = [str(place[0]) for *_, place in socket.getaddrinfo(name, None)]
    except OSError:
        addresses = []
    return [name, socket.getfqdn(), *map(_in_url, addresses)]


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def open_page(
    stores: Sequence[Store] = (),
    *,
    jobs: Sequence[Any] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    limits: Any = None,
    tables: Sequence[Storage] = (),
) -> Page:
    """Return a page of some stores, which is to be started; `tables` are places to which they are published."""
    try:
        import uvicorn

        from arrowstate.ui.app import make_app
        from arrowstate.ui.guard import Keys
        from arrowstate.ui.site import Site
    except ImportError as error:
        raise MissingDependencyError("the page in a browser", str(error.name), "ui") from error
    # The system would take a higher one for another: 65,536 less.
    port = check_integer("the port of the page", port, 0, 65_535)
    bearer = os.environ.get(_BEARER) or None
    if bearer is not None and len(bearer) < _SHORTEST_BEARER:
        raise InvalidInputError(f"{_BEARER} must have at least {_SHORTEST_BEARER} characters, it has {len(bearer)}")
    keys, site = Keys(bearer), Site(stores, jobs, limits, tables)
    listening = _listen(host, port)
    names = tuple(dict.fromkeys([*LOOPBACK, "[::1]", *_names_of(host)]))
    app = make_app(site, keys, hosts=names, port=listening.getsockname()[1])
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="on")

    class Server(uvicorn.Server):
        """Says when it has started, and leaves signals to whoever runs it in a thread."""

        on_start: Any = staticmethod(lambda: None)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            self.on_start()

    return Page(Server(config), listening, keys, host, [place.url for place in site.places])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        # From now on a browser waits for its answer, however soon it comes.
        listening.listen()
    except OSError as error:
        raise InvalidInputError(f"the page cannot listen at {host}, port {port}: {error}") from error
    return listening
