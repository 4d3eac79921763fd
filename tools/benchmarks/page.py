"""Each page of `arrowstate ui`: its time after the first, and the memory of the server, over much of everything.

A store of 10,000 checkpoints, and one of 10 million rows in 32,768 key groups, are served by a process of their own, as
the command line does it. Each page and each part of one is asked for until it is there (a large state takes longer than
the limit of a page the first time), then some times more; the slowest of these counts. Of the server's memory what is
its own counts at its highest; files that are mapped are the system's to keep or drop.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa

import arrowstate
from benchmarks.harness import Report, argument_parser

MOST_SECONDS = 0.3
MOST_BYTES = 400 << 20
FIRST_SECONDS = 300.0
KEY = pa.schema([("key", pa.int64())])
STATE = "operator=op&state=items"
LARGE = [
    "checkpoints",
    "checkpoint",
    "files?checkpoint=3&before=2",
    "verified",
    f"state?{STATE}",
    f"state_files?{STATE}",
    f"strip?{STATE}",
    f"largest?{STATE}",
    f"rows?{STATE}",
    f"rows?{STATE}&after={{half}}",
    f"rows?{STATE}&key0=77",
    f"rows?{STATE}&key_group=77",
    f"history?{STATE}&key0=77",
    f"diff?{STATE}&before=2",
    "counts?before=2",
    f"grown?{STATE}&before=2",
    f"changed_rows?{STATE}&before=2",
    "sql",
    "storage",
    "collection",
    "compaction",
    "amplification",
]
MANY = [
    "checkpoints",
    "checkpoints?before={half}",
    "live",
    "series",
    "batches",
    "checkpoint?checkpoint={half}",
    "diff",
    "counts",
    "history?operator=op&state=sums&key0=7",
    "facets?operator=op&state=sums&column=sums",
    "storage",
    "collection?count={half}",
    "amplification",
]


def main(argv: list[str]) -> int:
    """Run the benchmark."""
    parser = argument_parser("page", __doc__, rounds=5)
    parser.add_argument("--checkpoints", type=int, default=10_000, help="of the first store (default 10000)")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the second store (default 10000000)")
    parser.add_argument("--key-groups", type=int, default=32_768, help="of the second store (default 32768)")
    arguments = parser.parse_args(argv)
    report = Report("page", arguments)
    with tempfile.TemporaryDirectory(prefix="arrowstate-bench-") as folder:
        many, large = Path(folder, "many"), Path(folder, "large")
        _make_many(many, arguments.checkpoints)
        _make_large(large, arguments.rows, arguments.key_groups)
        with Server(many, large) as server:
            _measure(report, "many: checkpoints, opened", partial(server.get, "/0/checkpoints"), 0, None)
            _measure(report, "many: all entries of the log", server.wait_for_log, 0, None)
            half = arguments.checkpoints // 2
            _ask(report, server, 0, [path.format(half=half) for path in MANY], arguments.rounds)
            half = arguments.rows // 2
            _ask(report, server, 1, [path.format(half=half) for path in LARGE], arguments.rounds)
            query = urlencode({"q": "select count(*), max(items) from op.items"}).encode()
            _measure(report, "large: sql over all rows", lambda: server.get("/1/run", query), arguments.rounds, None)
            report.figure("memory of the server, its own", server.highest / (1 << 20), "MiB")
            report.require("memory of the server", server.highest, at_most=MOST_BYTES, unit="bytes")
    return report.finish()


class Server:
    """The command line, serving two stores."""

    def __init__(self, *stores: Path) -> None:
        command = [sys.executable, "-m", "arrowstate", "ui", *map(str, stores), "--json", "--no-browser"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        self.highest = 0
        self._ended = threading.Event()
        assert self._process.stdout is not None
        url = json.loads(self._process.stdout.readline())["url"]
        self._address = url.partition("/?")[0]
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self._opener.open(url, timeout=60).read()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()
        self._process.terminate()
        self._process.wait()

    def get(self, path: str, body: bytes | None = None) -> None:
        """Ask for a page."""
        request = urllib.request.Request(self._address + path, body, {"HX-Request": "true"})
        self._opener.open(request, timeout=60).read()

    def wait_for_log(self) -> None:
        """Return when the page knows all entries of the first log."""
        while json.loads(self._opener.open(self._address + "/0/head", timeout=60).read())["is_loading"]:
            time.sleep(0.1)

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            status = Path(f"/proc/{self._process.pid}/status").read_text()
            own = next(line for line in status.splitlines() if line.startswith("RssAnon"))
            self.highest = max(self.highest, int(own.split()[1]) << 10)


def _ask(report: Report, server: Server, store: int, paths: list[str], rounds: int) -> None:
    for path in paths:
        name = ("many: " if store == 0 else "large: ") + path.replace(f"{STATE}&", "").replace(STATE, "")
        page, _, query = path.partition("?")
        # As JSON a page that is not there in time says so by its status.
        address = f"/{store}/{page}.json?{query}" if page not in ("series", "amplification") else f"/{store}/{path}"
        # A part is asked for as by the page that it stands in: what takes long says how far it is.
        html = f"/{store}/{path}"

        def act(address: str = address) -> None:
            server.get(address)

        def shown(html: str = html) -> None:
            server.get(html)

        _measure(report, name, act, 0, None)
        _measure(report, name, shown, rounds, MOST_SECONDS)


def _measure(report: Report, name: str, act: Callable[[], None], rounds: int, most: float | None) -> None:
    """Do something until it succeeds, then some times more."""
    started = time.perf_counter()
    while True:
        try:
            act()
            break
        except urllib.error.HTTPError as error:
            if error.code not in (503, 504) or time.perf_counter() - started > FIRST_SECONDS:
                raise
            time.sleep(0.2)
    if not rounds:
        report.figure(f"{name}, the first time", (time.perf_counter() - started) * 1000, "ms")
        return
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - started)
    report.figure(name, max(seconds) * 1000, "ms")
    if most is not None:
        # For a reader this is not relative to a machine, and a part that says how far it is has waited by the clock.
        report.require(name, max(seconds), at_most=most, unit="s")


def _make_many(folder: Path, checkpoints: int) -> None:
    store = arrowstate.open_store(folder, create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=128)
    sums = backend.state(arrowstate.ReducingStateDescriptor("sums", pa.int64(), reduce="sum"))
    with store.writer() as writer:
        for number in range(checkpoints):
            sums.add_batch(np.arange(number % 50, 1_000, 50), np.ones(len(range(number % 50, 1_000, 50)), np.int64))
            writer.checkpoint({"op": [backend]}, properties={"offset": number})


def _make_large(folder: Path, rows: int, key_groups: int) -> None:
    store = arrowstate.open_store(folder, create=True)
    backend = arrowstate.KeyedStateBackend(key=KEY, max_parallelism=key_groups)
    items = backend.state(arrowstate.ListStateDescriptor("items", pa.int64()))
    steps = 10
    with store.writer() as writer:
        for step in range(steps):
            values = np.arange(step, rows, steps)
            items.add_batch(values // 3, values)
        for _ in range(3):
            writer.checkpoint({"op": [backend]})
            values = np.arange(rows // 1_000)
            items.add_batch(values % 77, values)
