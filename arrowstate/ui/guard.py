"""Who may see the page: requests to this host, from this page or none, with a cookie that a token was exchanged for.

A page on the reader's own machine is within reach of every site in the same browser, and of every user of the machine.
So each request is looked at before anything else: the host it names (against a name that was bound anew), where it
comes from, and the cookie. A token opens the page once; what then stands in the history of a browser, or in the list of
processes, is worth nothing.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Collection
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""With every answer."""

HEALTH = "/health"
"""The address that probes ask without a token."""
IS_KNOWN = "arrowstate.is_known"
"""What a request's scope says of whether whoever asks may see the page."""

_OPEN_TOKENS = 16
_HOW_TO_OPEN = (
    "This page is opened with the address that `arrowstate ui` prints. Each address opens it once; press Enter where "
    "it runs for another one."
)


class Keys:
    """What opens the page: tokens that are taken once, the cookie that they are exchanged for, and one for scripts."""

    def __init__(self, bearer: str | None = None) -> None:
        self.session = secrets.token_urlsafe(32)
        self.bearer = secrets.token_urlsafe(32) if bearer is None else bearer
        self._tokens: list[str] = []
        self._lock = threading.Lock()

    def new_token(self) -> str:
        """Return a token that opens the page once; of those that were not used the last few count."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._tokens = [*self._tokens, token][-_OPEN_TOKENS:]
        return token

    def take(self, token: str) -> bool:
        """Whether it is a token; it is none any more after that."""
        with self._lock:
            found = [known for known in self._tokens if _same(known, token)]
            self._tokens = [known for known in self._tokens if known not in found]
        return bool(found)

    def is_session(self, cookie: str) -> bool:
        """Whether a cookie is that of this page."""
        return _same(self.session, cookie)

    def is_bearer(self, header: str) -> bool:
        """Whether an `Authorization` header lets a script in."""
        scheme, _, value = header.partition(" ")
        return scheme.lower() == "bearer" and _same(self.bearer, value.strip())


def _same(known: str, given: str) -> bool:
    return hmac.compare_digest(known.encode(), given.encode())


class Guard:
    """Lets requests through to the page that may see it."""

    def __init__(self, app: ASGIApp, *, keys: Keys, hosts: Collection[str], cookie: str) -> None:
        self._app = app
        self._keys = keys
        self._hosts = {host.lower() for host in hosts}
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        # Probes have no token: they are told whether all is well, and no more.
        scope[IS_KNOWN] = self._is_known(Headers(scope=scope))
        refusal = self._refusal(scope)
        answer = self._app if refusal is None else refusal
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _name_of(hosts[0]) not in self._hosts:
            return PlainTextResponse("This host name is none of this page.", 400)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("Other sites may not ask for this page.", 403)
        origin = headers.get("origin")
        # A browser that may tell no referrer says null, of its own page too; the cookie is not sent from elsewhere.
        if origin not in (None, "null") and origin.partition("://")[2] != hosts[0]:
            return PlainTextResponse("Other sites may not ask for this page.", 403)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("Method not allowed", 405)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in query if name == "token"]
        known = scope[IS_KNOWN]
        if tokens and scope["method"] == "GET" and (self._keys.take(tokens[0]) or known):
            return self._opened(scope, [item for item in query if item[0] != "token"])
        is_open = known or (scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD"))
        return None if is_open else PlainTextResponse(_HOW_TO_OPEN, 401)

    def _is_known(self, headers: Headers) -> bool:
        if self._keys.is_bearer(headers.get("authorization", "")):
            return True
        # All ports of a host share their cookies, and those of other programs have any form.
        cookies = (cookie.strip().partition("=") for cookie in headers.get("cookie", "").split(";"))
        return any(name == self._cookie and self._keys.is_session(value) for name, _, value in cookies)

    def _opened(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        # One slash: `//name` would be an address on another host.
        place = "/" + scope["path"].lstrip("/") + (f"?{urlencode(query)}" if query else "")
        answer = RedirectResponse(place, 303)
        answer.set_cookie(self._cookie, self._keys.session, httponly=True, samesite="strict", path="/")
        return answer


def _name_of(host: str) -> str:
    """Return the name of a `Host` header, without the port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
