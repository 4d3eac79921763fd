"""What stands in the place of STORE on a command line: a store, or a folder that has several below it."""

from __future__ import annotations

import argparse

from arrowstate.discovery import StateCatalog, discover
from arrowstate.errors import InvalidInputError, StoreNotFoundError
from arrowstate.store import open_store


def catalog_of(options: argparse.Namespace) -> StateCatalog | None:
    """Return what lies below the folder that the options name, where that is no store; None where it is one."""
    place = options.store
    try:
        open_store(place)
    except StoreNotFoundError:
        catalog = discover(place)
        if not catalog.found:
            raise
        of_one_store = ("checkpoint", "lease", "validate", "limit")
        default = {"validate": "checksums"}
        given = [name for name in of_one_store if getattr(options, name, None) not in (None, False, default.get(name))]
        if given:
            raise InvalidInputError(
                f"--{given[0]} is for one store, and {place} has {len(catalog.found)} below it; name one of them: "
                + ", ".join(found.name for found in catalog.found[:10])
            ) from None
        return catalog
    return None
