"""`arrowstate ui`: stores in a browser."""

from __future__ import annotations

import argparse
import sys
import threading
import webbrowser
from contextlib import suppress

from arrowstate.cli.messages import tell_warning
from arrowstate.cli.output import print_json_line, say
from arrowstate.discovery import discover
from arrowstate.errors import StoreNotFoundError
from arrowstate.storage import open_storage
from arrowstate.store import StateStore, open_store
from arrowstate.ui.serving import LOOPBACK, Page, open_page


def show(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    stores = [store for place in options.stores for store in _stores_of(place)]
    page = open_page(
        stores, host=options.host, port=options.port, tables=[open_storage(place) for place in options.tables]
    )
    if options.host not in LOOPBACK:
        tell_warning(
            "UserWarning",
            f"the page listens at {options.host}: whoever reaches this machine and knows an address sees all stores, "
            "and nothing between is encrypted",
            as_json=options.json,
        )
    url = page.url
    if options.json:
        print_json_line({"url": url, "stores": list(page.stores)})
    else:
        say(f"{url} opens the page, once; Ctrl-C ends it")
        sys.stdout.flush()
    if sys.stdin is not None and sys.stdin.isatty():
        threading.Thread(target=_more_addresses, args=[page], name="arrowstate-ui-addresses", daemon=True).start()
        if not options.no_browser and not options.json:
            threading.Thread(target=webbrowser.open, args=[page.url], name="arrowstate-ui-browser", daemon=True).start()
    # Ctrl-C is how it ends.
    with suppress(KeyboardInterrupt):
        page.run()
    return 0


def _stores_of(place: str) -> list[StateStore]:
    """Return the store at a place, or all that lie below it."""
    try:
        return [open_store(place)]
    except StoreNotFoundError:
        found = [open_store(each.url) for each in discover(place).found if each.kind == "store"]
        if not found:
            raise
        return found


def _more_addresses(page: Page) -> None:
    """Print another address each time that Enter is pressed: one opens the page once."""
    for _ in sys.stdin:
        print(page.url, flush=True)
