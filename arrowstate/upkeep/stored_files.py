"""The files of a store, told apart by their paths: what a collection may delete, what it leaves, and what stops it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct, field

from arrowstate.errors import CorruptDataError
from arrowstate.log.boundary import Boundary, number_of
from arrowstate.log.entries import HINT_PATH, STORE_PATH
from arrowstate.log.jobs import JOB_FOLDER
from arrowstate.log.pins import LEASE_FOLDER, TAG_FOLDER
from arrowstate.storage.base import Storage, listed_pages

_DATA = re.compile(r"data/[^/]+/[^/]+/[^/]+\.(arrow|parquet|lance|directory|roaring)")
MANIFEST = re.compile(r"manifests/[^/]+\.json")


class StoredFiles(Struct):
    """The files of a store as a listing names them, page by page."""

    holds_own: bool
    "Whether data and manifests are kept in memory."
    own: list[str] = field(default_factory=list)
    "Data and manifests."
    statements: list[Boundary] = field(default_factory=list)
    "What the names in `gc/` say."
    _others: list[str] = field(default_factory=list)
    _stores: list[str] = field(default_factory=list)
    "Savepoints, and any other store that somebody keeps in a folder of this one."

    @classmethod
    def of(cls, storage: Storage, *, holds_own: bool) -> StoredFiles:
        """List a store, and refuse one with an object that might be a root of an unknown kind."""
        files = cls(holds_own)
        for page in listed_pages(storage, ""):
            files._add(page)
        stores = tuple(files._stores)
        files.own = sorted(path for path in files.own if not path.startswith(stores))
        files._others = sorted(path for path in files._others if not path.startswith(stores))
        for path in files._others:
            folder, slash, _ = path.partition("/")
            if slash and folder not in _FOLDERS:
                raise CorruptDataError(path, _UNKNOWN)
        return files

    def _add(self, page: Iterable[str]) -> None:
        for path in page:
            if _DATA.fullmatch(path) or MANIFEST.fullmatch(path):
                self.own += [path] if self.holds_own else []
            elif path.endswith(f"/{STORE_PATH}"):
                self._stores.append(path.removesuffix(STORE_PATH))
            elif (statement := Boundary.of(path)) is not None:
                self.statements.append(statement)
            elif (
                path not in (STORE_PATH, HINT_PATH)
                and not path.startswith((LEASE_FOLDER, TAG_FOLDER, JOB_FOLDER))
                and number_of(path) is None
            ):
                self._others.append(path)

    @property
    def foreign(self) -> tuple[str, ...]:
        """Files that are never deleted: of no shape that the format knows, or of savepoints that were not finished."""
        return tuple(self._others)


_FOLDERS = ("data", "manifests", "savepoints", "log")
_UNKNOWN = (
    "this version does not know what it is, and it might say what is still needed; "
    "nothing is collected: move it out of the store, or use a newer arrowstate"
)
