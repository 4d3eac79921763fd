"""Iceberg's REST catalog, to be read: the tables of publications, for engines that attach a catalog.

An engine asks for namespaces, tables and the metadata of a table, and then reads the files itself, with credentials of
its own. The token of the page lets it in. Nothing can be changed here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from arrowstate.errors import ArrowStateError
from arrowstate.publish.content import place_of
from arrowstate.publish.publication import published_names
from arrowstate.publish.table import newest_version
from arrowstate.storage.base import Storage, listed_level
from arrowstate.ui.work import BusyError, Calls

_ENDPOINTS = [
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
]
_SEPARATOR = "\x1f"
"""Between the levels of a namespace; these have one."""


class Catalog:
    """The tables of places to which stores are published."""

    def __init__(self, places: Sequence[Storage], *, seconds: float) -> None:
        self._places = places
        self._seconds = seconds
        self._calls = Calls()

    def routes(self) -> list[Route]:
        """Return what is answered where."""
        verbs = ["GET", "HEAD", "POST"]
        return [
            Route("/v1/config", self.config, methods=["GET"]),
            Route("/v1/namespaces", self.namespaces, methods=verbs),
            Route("/v1/namespaces/{namespace}", self.namespace, methods=verbs),
            Route("/v1/namespaces/{namespace}/tables", self.tables, methods=verbs),
            Route("/v1/namespaces/{namespace}/tables/{table}", self.table, methods=verbs),
            Route("/v1/{rest:path}", self.missing, methods=verbs),
        ]

    async def config(self, _: Request) -> Response:
        """Say what there is."""
        return _told({"defaults": {}, "overrides": {}, "endpoints": _ENDPOINTS})

    async def namespaces(self, request: Request) -> Response:
        """List the operators."""

        def found() -> Any:
            names = sorted({uid for uid, _ in self._names()})
            return {"namespaces": [] if request.query_params.get("parent") else [[uid] for uid in names]}

        return await self._answer(request, found)

    async def namespace(self, request: Request) -> Response:
        """Say that there is an operator."""
        uid = _namespace_of(request)
        return await self._answer(
            request, lambda: {"namespace": [uid], "properties": {}} if self._has(uid) else None, "NoSuchNamespace"
        )

    async def tables(self, request: Request) -> Response:
        """List the tables of an operator."""
        uid = _namespace_of(request)

        def found() -> Any:
            names = sorted({name for own, name in self._names() if own == uid})
            return {"identifiers": [{"namespace": [uid], "name": name} for name in names]} if names else None

        return await self._answer(request, found, "NoSuchNamespace")

    async def table(self, request: Request) -> Response:
        """Return the metadata of a table."""
        uid, name = _namespace_of(request), unquote(request.path_params["table"])

        def found() -> Any:
            for place in self._places:
                if (uid, name) in published_names(place):
                    version = newest_version(place, f"{uid}/{name}")
                    if version is not None:
                        path = f"{uid}/{name}/metadata/v{version.number}.metadata.json"
                        return {"metadata-location": place_of(place, path), "metadata": version.metadata, "config": {}}
            return None

        return await self._answer(request, found, "NoSuchTable")

    async def missing(self, request: Request) -> Response:
        """Say that there is nothing else."""
        return _fault(404, "NotFoundException", f"this catalog has no {request.url.path}")

    def _names(self) -> list[tuple[str, str]]:
        return [
            (uid, name)
            for place in self._places
            for uid, name in published_names(place)
            # Of a place with tables of Delta none is told: an engine that lists a table loads it.
            if "metadata" in listed_level(place, f"{uid}/{name}")[0]
        ]

    def _has(self, uid: str) -> bool:
        return any(own == uid for own, _ in self._names())

    async def _answer(self, request: Request, read: Callable[[], Any], missing: str = "NotFound") -> Response:
        if request.method == "POST":
            return _fault(
                403, "ForbiddenException", "this catalog is only read; publish the store to change its tables"
            )
        try:
            found = await self._calls.get(read, seconds=self._seconds)
        except (TimeoutError, BusyError):
            return _fault(
                504, "ServiceUnavailableException", f"the storage has not answered within {self._seconds:g} s"
            )
        except (ArrowStateError, OSError) as error:
            return _fault(503, "ServiceUnavailableException", str(error))
        if found is None:
            return _fault(404, f"{missing}Exception", f"there is no {request.url.path.removeprefix('/v1/namespaces/')}")
        return Response(status_code=204) if request.method == "HEAD" else _told(found)


def _namespace_of(request: Request) -> str:
    levels: list[str] = unquote(request.path_params["namespace"]).split(_SEPARATOR)
    return levels[0] if len(levels) == 1 else ""


def _told(found: Any, status: int = 200) -> Response:
    # Not as the page writes JSON: ids of snapshots are numbers of 63 bits here.
    return Response(json.dumps(found, separators=(",", ":")), status, media_type="application/json")


def _fault(status: int, kind: str, message: str) -> Response:
    return _told({"error": {"message": message, "type": kind, "code": status}}, status)
