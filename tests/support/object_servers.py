"""Servers of object storages on this machine: moto for S3, and small ones for Google Cloud Storage and Azure.

The small ones speak as much of the two services as gcsfs and adlfs need for a storage, and keep the
conditions of a write as the services do, in one step with the write. They are run by the tests, over
HTTP, with the real clients.
"""

import base64
import hashlib
import itertools
import json
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

S3_OPTIONS = {"key": "a-key-of-tests", "secret": "a-secret-of-tests", "client_kwargs": {"region_name": "us-east-1"}}
AZURE_KEY = base64.b64encode(b"a key of tests").decode()


@contextmanager
def s3_server() -> Iterator[str]:
    """Run moto's server with a bucket named `bucket`; its endpoint.

    Requests are served one at a time: moto looks whether an object is there and then stores it, and between the two
    another thread can store one as well, which S3 does not let happen (2 of 1,000 rounds of 8 racers had two winners).
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def one_at_a_time(environ: Any, start_response: Any) -> list[bytes]:
        with lock:
            return list(application(environ, start_response))

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=MotoRequestHandler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        make_bucket(endpoint)
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()


def make_bucket(endpoint: str) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=S3_OPTIONS["key"],
        aws_secret_access_key=S3_OPTIONS["secret"],
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="bucket")


@dataclass
class Objects:
    """What a server holds: names to bodies, each with a version; safe for threads."""

    bodies: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    parts: dict[str, dict[str, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    versions: Iterator[int] = field(default_factory=lambda: itertools.count(1_000_000))

    def put(self, name: str, body: bytes, *, only_if_absent: bool) -> int | None:
        """Store a body; None if the name is taken and must not be."""
        with self.lock:
            if only_if_absent and name in self.bodies:
                return None
            version = next(self.versions)
            self.bodies[name] = (body, version)
            return version


class _Handler(BaseHTTPRequestHandler, ABC):
    protocol_version = "HTTP/1.1"
    objects: Objects

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, body: bytes = b"", **headers: Any) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_range(self, body: bytes, wanted: str | None, **headers: Any) -> None:
        if wanted is None:
            self.answer(200, body, **headers)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last) + 1 if last else len(body), len(body))
        if start >= len(body):
            self.refuse(416, "InvalidRange")
            return
        self.answer(206, body[start:stop], Content_Range=f"bytes {start}-{stop - 1}/{len(body)}", **headers)

    @abstractmethod
    def refuse(self, status: int, code: str) -> None:
        """Answer with an error of the service."""

    @abstractmethod
    def handle_verb(self) -> None:
        """Answer a request of any verb."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.handle_verb
        raise AttributeError(name)


class _GoogleHandler(_Handler):
    """JSON API: objects.insert (multipart and resumable), get, list, delete; `ifGenerationMatch=0`."""

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, json.dumps({"error": {"code": status, "message": code}}).encode())

    def handle_verb(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = self.body()
        if parts.path.startswith("/session/"):
            self.session(parts.path.removeprefix("/session/"), body)
            return
        kind, _, place = parts.path.partition("/storage/v1/b/")
        bucket, _, key = place.partition("/o")
        name = f"{bucket}/{unquote(key.removeprefix('/'))}"
        if kind == "/upload":
            self.upload(bucket, query, body)
        elif not key.removeprefix("/"):
            self.listing(bucket, query)
        elif name not in self.objects.bodies:
            self.refuse(404, "No such object")
        elif self.command == "DELETE":
            self.objects.bodies.pop(name, None)
            self.answer(204)
        elif query.get("alt") == "media":
            self.answer_range(self.objects.bodies[name][0], self.headers.get("Range"))
        else:
            self.answer(200, json.dumps(self.resource(name)).encode())

    def resource(self, name: str) -> dict[str, Any]:
        body, version = self.objects.bodies[name]
        bucket, _, key = name.partition("/")
        digest = base64.b64encode(hashlib.md5(body).digest()).decode()
        times = {"timeCreated": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:00:00Z"}
        known = {"bucket": bucket, "name": key, "size": str(len(body)), "md5Hash": digest, "etag": f"E{version}="}
        return {**known, "generation": str(version), **times}

    def listing(self, bucket: str, query: dict[str, str]) -> None:
        start = f"{bucket}/{query.get('prefix', '')}"
        names = sorted(name for name in list(self.objects.bodies) if name.startswith(start))
        delimiter = query.get("delimiter")
        if delimiter:
            below = {name for name in names if delimiter in name[len(start) :]}
            folders = {start + name[len(start) :].partition(delimiter)[0] + delimiter for name in below}
            prefixes = [folder.partition("/")[2] for folder in sorted(folders)]
            names = [name for name in names if name not in below]
        else:
            prefixes = []
        items = [self.resource(name) for name in names]
        self.answer(200, json.dumps({"items": items, "prefixes": prefixes}).encode())

    def upload(self, bucket: str, query: dict[str, str], body: bytes) -> None:
        only_if_absent = query.get("ifGenerationMatch") == "0"
        if query["uploadType"] == "resumable":
            session = f"{int(only_if_absent)}/{bucket}/{quote(query['name'])}"
            self.objects.parts[session] = {}
            self.answer(200, Location=f"http://{self.headers['Host']}/session/{session}")
            return
        boundary = b"--==0=="
        _, described, content, _ = body.split(boundary)
        key = json.loads(described.partition(b"\n\n")[2])["name"]
        self.store(f"{bucket}/{key}", content.partition(b"\n\n")[2].removesuffix(b"\n"), only_if_absent)

    def session(self, session: str, body: bytes) -> None:
        if self.command == "DELETE":
            self.objects.parts.pop(session, None)
            self.answer(499)
            return
        place, _, size = self.headers["Content-Range"].removeprefix("bytes ").partition("/")
        start, _, last = place.partition("-")
        self.objects.parts[session][f"{int(start):020}"] = body
        if int(last) + 1 < int(size):
            self.answer(308, Range=f"bytes=0-{last}")
            return
        parts = self.objects.parts.pop(session)
        only_if_absent, _, name = session.partition("/")
        self.store(unquote(name), b"".join(parts[key] for key in sorted(parts)), only_if_absent == "1")

    def store(self, name: str, body: bytes, only_if_absent: bool) -> None:
        if self.objects.put(name, body, only_if_absent=only_if_absent) is None:
            self.refuse(412, "conditionNotMet")
        else:
            self.answer(200, json.dumps(self.resource(name)).encode())


class _AzureHandler(_Handler):
    """Blob service: Put Blob, Put Block, Put Block List, Get, Properties, List, Delete; `If-None-Match: *`."""

    def refuse(self, status: int, code: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self.answer(status, body, x_ms_error_code=code, Content_Type="application/xml")

    def handle_verb(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        name = unquote(parts.path.removeprefix("/account/"))
        body = self.body()
        if query.get("restype") == "container":
            if query.get("comp") == "list":
                self.listing(name, query)
            else:
                self.answer(200, ETag='"0x1"', Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT")
        elif self.command == "PUT":
            self.put(name, query, body)
        elif name not in self.objects.bodies:
            self.refuse(404, "BlobNotFound")
        elif self.command == "DELETE":
            self.objects.bodies.pop(name, None)
            self.answer(202)
        else:
            content, version = self.objects.bodies[name]
            self.answer_blob(content, version)

    def answer_blob(self, content: bytes, version: int) -> None:
        headers = {"ETag": f'"0x{version:X}"', "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        headers |= {"x_ms_blob_type": "BlockBlob", "Content_Type": "application/octet-stream"}
        if self.command == "HEAD":
            self.answer(200, Content_Length=len(content), **headers)
        else:
            self.answer_range(content, self.headers.get("x-ms-range") or self.headers.get("Range"), **headers)

    def put(self, name: str, query: dict[str, str], body: bytes) -> None:
        if query.get("comp") == "block":
            self.objects.parts.setdefault(name, {})[query["blockid"]] = body
            self.answer(201)
            return
        if query.get("comp") == "blocklist":
            blocks = self.objects.parts.get(name, {})
            listed = [piece.partition(b"<")[0].decode() for piece in body.split(b"<Latest>")[1:]]
            body = b"".join(blocks[block] for block in listed)
        version = self.objects.put(name, body, only_if_absent=self.headers.get("If-None-Match") == "*")
        if version is None:
            self.refuse(409, "BlobAlreadyExists")
        else:
            self.answer(201, ETag=f'"0x{version:X}"', Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT")

    def listing(self, container: str, query: dict[str, str]) -> None:
        start = f"{container}/{query.get('prefix', '')}"
        blobs = []
        for name, (body, version) in sorted(self.objects.bodies.items()):
            if name.startswith(start):
                key = escape(name.partition("/")[2])
                blobs.append(
                    f"<Blob><Name>{key}</Name><Properties><Etag>0x{version:X}</Etag><Content-Length>{len(body)}"
                    "</Content-Length><Content-Type>application/octet-stream</Content-Type>"
                    "<BlobType>BlockBlob</BlobType></Properties></Blob>"
                )
        of = f'ServiceEndpoint="http://{self.headers["Host"]}/account/" ContainerName="{container}"'
        listed = f"<EnumerationResults {of}><Blobs>{''.join(blobs)}</Blobs><NextMarker/></EnumerationResults>"
        self.answer(200, b"<?xml version='1.0' encoding='utf-8'?>" + listed.encode(), Content_Type="application/xml")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is none of the server's business."""


@contextmanager
def _serving(handler: type[_Handler]) -> Iterator[str]:
    kind = type("Handler", (handler,), {"objects": Objects()})
    server = _Server(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def google_server() -> Any:
    """Run a server of Google Cloud Storage in which every bucket exists; its endpoint."""
    return _serving(_GoogleHandler)


def azure_server() -> Any:
    """Run a server of Azure's blob service in which every container exists; its endpoint."""
    return _serving(_AzureHandler)


def google_options(endpoint: str) -> dict[str, Any]:
    return {"endpoint_url": endpoint, "token": "anon", "project": "tests"}


def azure_options(endpoint: str) -> dict[str, Any]:
    account = f"AccountName=account;AccountKey={AZURE_KEY};BlobEndpoint={endpoint}/account;"
    return {"connection_string": f"DefaultEndpointsProtocol=http;{account}"}
