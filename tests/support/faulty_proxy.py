"""A proxy between a client and a server of object storage that makes requests fail, each in a way that is asked for."""

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

REFUSE = "refuse: the server never sees it, the answer is 503 SlowDown"
DROP = "drop: the server never sees it, the connection is closed"
LOSE = "lose: the server does it, the connection is closed instead of the answer"
HANG = "hang: the server does it, the answer never comes"
CUT_UPLOAD = "cut upload: the connection is closed when half of the body has come"
CUT_ANSWER = "cut answer: the connection is closed after half of the answer"
FORBID = "forbid: the server never sees it, the answer is 403"


@dataclass
class Fault:
    kind: str
    matches: Callable[[str, str], bool]
    times: int
    skip: int = 0


@dataclass
class FaultyProxy:
    """Forwards requests to `target` but for those that a fault takes."""

    target: str
    endpoint: str = ""
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    "Method and path of every request that came, failed or not."
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, kind: str, method: str, part: str = "", *, times: int = 1, skip: int = 0) -> None:
        """Make the next `times` requests fail with this method and this text in their path, after `skip` that pass."""
        self.faults.append(Fault(kind, lambda given, path: given == method and part in path, times, skip))

    def take(self, method: str, path: str) -> str | None:
        with self.lock:
            self.requests.append(f"{method} {path}")
            for fault in self.faults:
                if fault.times and fault.matches(method, path):
                    if fault.skip:
                        fault.skip -= 1
                        return None
                    fault.times -= 1
                    return fault.kind
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyProxy

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def relay(self) -> None:
        fault = self.proxy.take(self.command, self.path)
        length = int(self.headers.get("Content-Length") or 0)
        if fault == CUT_UPLOAD:
            self.rfile.read(length // 2)
            self.hang_up()
            return
        body = self.rfile.read(length)
        if fault == DROP:
            self.hang_up()
        elif fault == REFUSE:
            self.answer(503, _error("SlowDown", "Please reduce your request rate."))
        elif fault == FORBID:
            self.answer(403, _error("AccessDenied", "Access Denied"))
        else:
            self.forward(fault, body)

    def forward(self, fault: str | None, body: bytes) -> None:
        connection = http.client.HTTPConnection(urlsplit(self.proxy.target).netloc, timeout=60)
        try:
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if fault == LOSE:
            self.hang_up()
        elif fault == HANG:
            self.proxy.released.wait(60)
            self.hang_up()
        else:
            headers = [
                item for item in answer.getheaders() if item[0].lower() not in ("transfer-encoding", "connection")
            ]
            self.answer(answer.status, data, headers, cut=fault == CUT_ANSWER)

    def answer(
        self, status: int, body: bytes, headers: list[tuple[str, str]] | None = None, *, cut: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, value in headers or [("Content-Type", "application/xml")]:
            if name.lower() != "content-length":
                self.send_header(name, value)
        size = next((value for name, value in headers or [] if name.lower() == "content-length"), str(len(body)))
        self.send_header("Content-Length", size)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.hang_up()

    def hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.relay
        raise AttributeError(name)


def _error(code: str, message: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is none of the proxy's business."""


@contextmanager
def faulty_proxy(target: str) -> Iterator[FaultyProxy]:
    """Run a proxy for the server at an endpoint."""
    proxy = FaultyProxy(target)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy}))
    proxy.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.released.set()
        server.shutdown()
        server.server_close()
