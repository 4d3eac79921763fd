"""A schema registry on this machine, with the requests of Confluent's that the formats use."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote


class Registry:
    """What is registered, what was asked, and with which errors or bytes it answers next."""

    def __init__(self) -> None:
        self.schemas: list[dict] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.authorization: list[str | None] = []
        self.failures: list[int] = []
        self.raw: list[bytes] = []
        self.url = ""

    def add(self, subject: str, schema: str, kind: str = "AVRO", references: tuple = ()) -> int:
        """Register a schema, and return its id, from 1."""
        entry = {"schema": schema, "schemaType": kind, "references": list(references)}
        if entry not in self.schemas:
            self.schemas.append(entry)
        id = self.schemas.index(entry) + 1
        if id not in self.subjects.setdefault(subject, []):
            self.subjects[subject].append(id)
        return id

    def answer(self, path: str, body: dict | None) -> tuple[int, dict]:
        """Return status and body of an answer."""
        if self.failures:
            return self.failures.pop(0), {"message": "it does not work"}
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match parts, body:
            case ["schemas", "ids", id], None if 0 < int(id) <= len(self.schemas):
                return 200, self.schemas[int(id) - 1]
            case ["subjects", subject, "versions", version], None if subject in self.subjects:
                ids = self.subjects[subject]
                id = ids[-1] if version == "latest" else ids[int(version) - 1]
                return 200, {"id": id, "subject": subject, **self.schemas[id - 1]}
            case ["subjects", subject, "versions"], dict():
                return 200, {"id": self.add(subject, body["schema"], body.get("schemaType", "AVRO"))}
            case ["subjects", subject], dict():
                for id in self.subjects.get(subject, []):
                    if json.loads(self.schemas[id - 1]["schema"]) == json.loads(body["schema"]):
                        return 200, {"id": id}
        return 404, {"error_code": 40403}


@contextmanager
def schema_registry() -> Iterator[Registry]:
    """Run a registry, and give it."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._answer(None)

        def do_POST(self):
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body):
            registry.asked.append(self.path)
            registry.authorization.append(self.headers["Authorization"])
            if registry.raw:
                self.wfile.write(registry.raw.pop(0))
                return
            status, answer = registry.answer(self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
