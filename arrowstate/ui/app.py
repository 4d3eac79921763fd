"""The page as an application: which address is what, its time limit, and how a fault looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qsl, urlencode

import duckdb
import pyarrow as pa
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from arrowstate.errors import (
    ArrowStateError,
    CollectedError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
)
from arrowstate.query.health import Health
from arrowstate.ui import (
    checkpoint,
    checkpoints,
    diff,
    facets,
    health,
    job,
    lookups,
    processes,
    shown,
    sql,
    state,
    storage,
)
from arrowstate.ui.catalog import Catalog
from arrowstate.ui.guard import HEALTH, IS_KNOWN, Guard, Keys
from arrowstate.ui.metrics import Sample, metrics_of, metrics_text
from arrowstate.ui.site import Ask, Place, Site
from arrowstate.ui.work import BusyError, Progress, Stop, TooSlowError, in_thread

_HERE = Path(__file__).parent
_MOST_BODY = 1 << 20
_PIECE_BYTES = 1 << 16
_LONGEST_FAULT = 10_000
_FILES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


@dataclass(frozen=True, slots=True)
class Page:
    """A page, or a part of one that is loaded after it."""

    read: Callable[[Ask], dict[str, Any]]
    template: str | None
    "None for one that is JSON alone."
    title: str = ""
    is_part: bool = False
    fault_template: str = "part_fault.html"
    "Of a part."


VERIFY = Page(checkpoint.verified, "verified.html", is_part=True)
PAGES: dict[str, Page] = {
    "stores": Page(checkpoints.stores, "stores.html", "Stores"),
    "checkpoints": Page(checkpoints.checkpoints, "checkpoints.html", "Checkpoints"),
    "batches": Page(checkpoints.batches, "batches.html", "Micro-batches"),
    "live": Page(checkpoints.live, "live.html", is_part=True, fault_template="live_fault.html"),
    "checkpoint": Page(checkpoint.checkpoint, "checkpoint.html", "Checkpoint"),
    "files": Page(checkpoint.files, "files.html", is_part=True),
    "verified": Page(checkpoint.verified, "verified.html", is_part=True),
    "state": Page(state.state, "state.html", "State"),
    "state_files": Page(state.state_files, "state_files.html", is_part=True),
    "strip": Page(state.strip, "strip.html", is_part=True),
    "largest": Page(state.largest, "largest.html", is_part=True),
    "facets": Page(facets.facets, "facets.html", is_part=True),
    "rows": Page(state.rows, "rows.html", is_part=True),
    "history": Page(state.history, "history.html", is_part=True),
    "sql": Page(sql.form, "sql.html", "SQL"),
    "diff": Page(diff.compare, "diff.html", "Compare"),
    "counts": Page(diff.counts, "counts.html", is_part=True),
    "grown": Page(diff.grown, "grown.html", is_part=True),
    "changed_rows": Page(diff.changed_rows, "changed_rows.html", is_part=True),
    "storage": Page(storage.storage, "storage.html", "Storage"),
    "collection": Page(storage.collection, "collection.html", is_part=True),
    "compaction": Page(storage.compaction, "compaction.html", is_part=True),
    "amplification": Page(storage.amplification, None),
    "job": Page(job.job, "job.html", "Running job"),
    "job_now": Page(job.job, "job_now.html", is_part=True),
    "health": Page(health.health, "health.html", is_part=True),
    "head": Page(checkpoints.head, None),
    "series": Page(checkpoints.series, None),
}
RUN = replace(PAGES["sql"], template="result.html", title="Result", is_part=True)


def make_app(site: Site, keys: Keys, *, hosts: tuple[str, ...] = ("127.0.0.1", "localhost"), port: int = 0) -> ASGIApp:
    """Return the application."""
    answers = Answers(site)
    app = Starlette(
        routes=[
            Route("/", answers.home),
            Route("/favicon.ico", answers.icon),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
            Route("/metrics", answers.metrics),
            Route(HEALTH, answers.health),
            *Catalog(site.tables, seconds=site.limits.page_seconds).routes(),
            Route("/{store:int}/verify", answers.verify, methods=["POST"]),
            Route("/{store:int}/stop", answers.stop, methods=["POST"]),
            Route("/{store:int}/run{suffix}", answers.run, methods=["POST"]),
            Route("/{store:int}/run", answers.run, methods=["POST"]),
            Route("/{store:int}/state/{operator}/{state}", answers.lookup, methods=["POST"]),
            Route("/{store:int}/state/{operator}/{state}/{key:path}", answers.lookup, methods=["GET"]),
            Route("/state/{operator}/{state}", answers.lookup, methods=["POST"]),
            Route("/state/{operator}/{state}/{key:path}", answers.lookup, methods=["GET"]),
            Route("/{store:int}/{name}", answers.page, methods=["GET"]),
        ],
        lifespan=answers.lifespan,
        exception_handlers={404: answers.missing},
    )
    return Guard(app, keys=keys, hosts=hosts, cookie=f"arrowstate-{port}")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        bytes=shown.as_bytes,
        cell=shown.as_cell,
        key=shown.as_key,
        text=shown.as_text,
        count=shown.as_count,
        duration=shown.as_duration,
        percent=shown.as_percent,
        time=shown.as_time,
        merged=lambda values, more: {**values, **more},
        query=lambda values: urlencode({key: value for key, value in values.items() if value is not None}),
    )
    return environment


@dataclass(frozen=True, slots=True)
class Fault:
    """What became of a page that cannot be shown."""

    status: int
    title: str
    text: str


def fault_of(error: BaseException, url: str) -> Fault:
    """Return how an error looks; raise it if it is none that a page may meet."""
    if isinstance(error, TooSlowError):
        done = error.progress
        far = "" if not done.done else f" ({done.done:,}{'' if done.total is None else f' of {done.total:,}'} done)"
        return Fault(
            504, "Still being read", f"{url} has not answered in time{far}. What was asked for is still being read."
        )
    if isinstance(error, BusyError):
        return Fault(503, "Busy", f"Too many requests wait for {url}.")
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    text = text if len(text) <= _LONGEST_FAULT else text[:_LONGEST_FAULT] + "…"
    if isinstance(error, CollectedError):
        return Fault(410, "Collected", text)
    if isinstance(error, NotFoundError):
        return Fault(404, "Not there", text)
    if isinstance(error, CorruptDataError):
        return Fault(500, "Damaged", text)
    if isinstance(error, (InvalidInputError, ValueError, TypeError, duckdb.Error, pa.ArrowException)):
        return Fault(400, "Not possible", text)
    if isinstance(error, (ArrowStateError, OSError)):
        return Fault(502, "The storage failed", text)
    raise error


def _told(status: int, error: str, message: str) -> Response:
    """Return what a program is told where it gets no rows."""
    return Response(shown.to_json({"error": error, "message": message}), status, media_type="application/json")


async def _body(request: Request, most_bytes: int) -> bytes | None:
    """Return what was sent, None if it is too long."""
    pieces, size = [], 0
    async for piece in request.stream():
        pieces.append(piece)
        size += len(piece)
        if size > most_bytes:
            return None
    return b"".join(pieces)


async def _form(request: Request) -> dict[str, str] | None:
    """Return what a form sent, None if it is too long."""
    body = await _body(request, _MOST_BODY)
    if body is None:
        return None
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _download(file: IO[bytes], format: str) -> Response:
    """Return a file to keep, which is closed when it is sent."""

    def pieces() -> Iterator[bytes]:
        with file:
            while piece := file.read(_PIECE_BYTES):
                yield piece

    named = {"Content-Disposition": f'attachment; filename="result.{format}"'}
    return StreamingResponse(pieces(), headers=named, media_type=_FILES[format])


def _is_in_place(page: Page, request: Request) -> bool:
    """Return whether a part is asked for by the page that it is put into."""
    return page.is_part and request.headers.get("hx-request") == "true"


def _metrics(place: Place, _: Progress) -> list[Sample]:
    return metrics_of(place)


def _health(place: Place, _: Progress) -> Health:
    return place.health()


class Answers:
    """Answers requests."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.environment = _environment()

    async def home(self, _: Request) -> Response:
        """Go to the first page."""
        return RedirectResponse("/0/stores" if len(self.site.places) > 1 else "/0/checkpoints", 303)

    async def icon(self, _: Request) -> Response:
        """Return the picture of the tab."""
        return RedirectResponse("/static/icon.svg", 303)

    async def missing(self, request: Request, _: Exception) -> Response:
        """Say that there is no such page."""
        return PlainTextResponse(f"There is no page {request.url.path}.", 404)

    async def page(self, request: Request) -> Response:
        """Answer with a page, a part of one, or its JSON."""
        name, _, suffix = request.path_params["name"].partition(".")
        page, place = PAGES.get(name), self.place(request)
        if page is None or place is None or suffix not in ("", "json"):
            return await self.missing(request, LookupError())
        as_json = suffix == "json" or page.template is None
        query = dict(request.query_params)
        try:
            data = await self.read(place, name, page, query, self._patience(page, request))
        except Exception as error:  # noqa: BLE001 (what is no fault of a store or a query is raised again)
            return self.fault(error, place, page, query, request, as_json=as_json)
        if as_json:
            return Response(shown.to_json(data), media_type="application/json")
        if data.get("unchanged"):
            return Response(status_code=204)
        return self.shown(place, page, page.template or "", {"data": data, "ask": query}, request)

    async def run(self, request: Request) -> Response:
        """Answer a query: with a part of a page, a page, JSON, or a file."""
        suffix = request.path_params.get("suffix", "")
        place = self.place(request)
        if place is None or suffix not in ("", ".json", ".csv", ".parquet"):
            return await self.missing(request, LookupError())
        asked = await _form(request)
        if asked is None:
            return PlainTextResponse("The query is too long.", 413)
        is_fragment = request.headers.get("hx-request") == "true"
        page = RUN if is_fragment else replace(RUN, template="result_page.html", is_part=False)
        format, limits = suffix.removeprefix("."), self.site.limits

        def read(stop: Stop) -> Any:
            ask = Ask(self.site, place, asked, Progress())
            return sql.written(ask, stop, format) if format in _FILES else sql.run(ask, stop)

        try:
            found = await place.queries.get(
                read,
                page=asked.get("page"),
                prepare=processes.ready,
                is_gone=request.is_disconnected,
                seconds=limits.sql_seconds + 1,
                patience=limits.page_seconds,
            )
        except Exception as error:  # noqa: BLE001 (as for a page)
            return self.fault(error, place, page, asked, request, as_json=format == "json")
        if format in _FILES:
            return _download(found, format)
        if format == "json":
            return Response(shown.to_json(found), media_type="application/json")
        return self.shown(place, page, page.template or "", {"data": found, "ask": asked}, request)

    async def stop(self, request: Request) -> Response:
        """Stop the query that a page asked for."""
        place, asked = self.place(request), await _form(request)
        if place is None or asked is None or "page" not in asked:
            return await self.missing(request, LookupError())
        place.queries.stop(asked["page"], "the query was stopped")
        return Response(status_code=204)

    async def verify(self, request: Request) -> Response:
        """Begin to read every byte of a checkpoint, and say how far it is."""
        place, query = self.place(request), dict(request.query_params)
        if place is None:
            return await self.missing(request, LookupError())

        def begin(progress: Progress) -> dict[str, Any]:
            ask = Ask(self.site, place, query, progress)
            checkpoint.start_verifying(place, ask.snapshot())
            return checkpoint.verified(ask)

        try:
            data = await place.work.get(
                ("verify", *sorted(query.items())), begin, seconds=self.site.limits.page_seconds
            )
        except Exception as error:  # noqa: BLE001 (as for a page)
            return self.fault(error, place, VERIFY, query, request, as_json=False)
        if request.headers.get("hx-request") != "true":
            return RedirectResponse(f"/{place.number}/checkpoint?{urlencode(query)}", 303)
        return self.shown(place, VERIFY, "verified.html", {"data": data, "ask": query}, request)

    async def metrics(self, _: Request) -> Response:
        """Answer Prometheus."""
        samples: list[Sample] = []
        for place in self.site.places:
            try:
                samples += await place.work.get(
                    "metrics", partial(_metrics, place), seconds=self.site.limits.page_seconds
                )
            except (TooSlowError, BusyError):
                samples.append(("arrowstate_up", {"store": place.url}, 0))
        return Response(metrics_text(samples), media_type="text/plain; version=0.0.4")

    async def health(self, request: Request) -> Response:
        """Answer a probe: 200 if nobody needs to look at a job, else 503; who may see the page is told why."""
        jobs: list[dict[str, Any]] = []
        for place in self.site.places:
            try:
                found = await place.work.get("health", partial(_health, place), seconds=self.site.limits.page_seconds)
                jobs.append(health.told(place.url, found))
            except Exception as error:  # noqa: BLE001 (what is no fault of a store is raised again)
                fault = fault_of(error, place.url)
                jobs.append({"url": place.url, "status": "unknown", "is_ok": False, "problems": [fault.text]})
        is_ok = all(job["is_ok"] for job in jobs)
        if not request.scope[IS_KNOWN]:
            # A text of a failure may have a row.
            jobs = [{name: job[name] for name in ("status", "is_ok")} for job in jobs]
        answer = {"is_ok": is_ok, "jobs": jobs}
        return Response(shown.to_json(answer), 200 if is_ok else 503, media_type="application/json")

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Let go of all stores when the server ends."""
        yield
        for place in self.site.places:
            # The lease of one whose storage has gone ends by itself.
            with suppress(ArrowStateError, OSError, TimeoutError):
                future = asyncio.wrap_future(in_thread(place.close, lambda: None))
                await asyncio.wait_for(future, self.site.limits.page_seconds)

    async def lookup(self, request: Request) -> Response:
        """Answer a program with the rows of a key, or of the keys of a body."""
        place, limits = self.place(request), self.site.limits
        if place is None:
            return await self.missing(request, LookupError())
        media_type = lookups.media_type_of(request.headers.get("accept", ""))
        if media_type is None:
            return _told(406, "NotAcceptable", f"rows come as {lookups.JSON} or {lookups.ARROW}")
        read: Callable[[], lookups.Found]
        if request.method != "POST":
            parts = request.scope["raw_path"].split(b"/")[3 if "store" in request.path_params else 2 :]
            read = lambda: lookups.by_path(place.follower(), parts, media_type, limits.lookup_bytes)  # noqa: E731
        else:
            body = await _body(request, limits.lookup_bytes)
            if body is None:
                return _told(413, "TooLarge", f"a body has at most {limits.lookup_bytes:,} bytes; ask for fewer keys")
            sent = request.headers.get("content-type", lookups.JSON).partition(";")[0].strip().lower()
            state = (request.path_params["operator"], request.path_params["state"])
            read = lambda: lookups.by_body(  # noqa: E731
                place.follower(), state, body, sent, media_type, limits.lookup_keys, limits.lookup_bytes
            )
        try:
            found = await place.calls.get(read, seconds=limits.page_seconds)
        except TimeoutError:
            return _told(504, "TooSlow", f"{place.url} has not answered within {limits.page_seconds:g} s")
        except Exception as error:  # noqa: BLE001 (as for a page)
            fault = fault_of(error, place.url)
            return _told(fault.status, type(error).__name__, fault.text)
        if found.headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=found.headers)
        if not found.rows and request.method != "POST":
            told = _told(404, "KeyNotFound", "the state has no row of this key in the newest checkpoint")
            told.headers.update({name: found.headers[name] for name in found.headers if name != "ETag"})
            return told
        return Response(found.body, media_type=found.media_type, headers=found.headers)

    def _patience(self, page: Page, request: Request) -> float:
        """Return for how many seconds an answer is waited for: a part asks again by itself."""
        limits = self.site.limits
        return min(limits.part_seconds, limits.page_seconds) if _is_in_place(page, request) else limits.page_seconds

    async def read(
        self, place: Place, name: str, page: Page, query: Mapping[str, str], seconds: float
    ) -> dict[str, Any]:
        """Return what a page says, within its time."""
        key = (name, *sorted(query.items()))
        found: dict[str, Any] = await place.work.get(
            key,
            lambda progress: page.read(Ask(self.site, place, query, progress)),
            seconds=seconds,
        )
        return found

    def place(self, request: Request) -> Place | None:
        """Return the store of an address."""
        number = request.path_params.get("store", 0)
        return self.site.places[number] if number < len(self.site.places) else None

    def shown(
        self, place: Place, page: Page, template: str, values: dict[str, Any], request: Request, status: int = 200
    ) -> Response:
        """Return a page as HTML."""
        # A part that is opened by its link is a page: without a script nothing puts it into one.
        is_alone = page.is_part and not _is_in_place(page, request)
        text = self.environment.get_template("part_page.html" if is_alone else template).render(
            part=template,
            site=self.site,
            place=place,
            base=f"/{place.number}",
            title=page.title or template.partition(".")[0].replace("_", " ").capitalize(),
            name=request.path_params.get("name", ""),
            address=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            is_asked_by_address=request.method == "GET",
            json_address=request.url.path + ".json" + (f"?{request.url.query}" if request.url.query else ""),
            is_part=page.is_part,
            **values,
        )
        return HTMLResponse(text, status)

    def fault(
        self, error: Exception, place: Place, page: Page, query: dict[str, str], request: Request, *, as_json: bool
    ) -> Response:
        """Return a page that says what is wrong, beside all that the reader can go on with."""
        fault = fault_of(error, place.url)
        if as_json:
            told = {"error": type(error).__name__, "message": fault.text}
            return Response(shown.to_json(told), fault.status, media_type="application/json")
        values = {"fault": fault, "ask": query, "waits": isinstance(error, (TooSlowError, BusyError))}
        # A part is shown in its place: for a browser's console it is no failure.
        status = 200 if page.is_part else fault.status
        return self.shown(place, page, page.fault_template if page.is_part else "fault.html", values, request, status)
