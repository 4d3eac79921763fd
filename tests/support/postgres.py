"""A server of PostgreSQL on this machine, of a folder of its own, over a socket in it: nothing outside can reach it."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_SECONDS = 60


def postgres_programs() -> Path | None:
    """Return the folder of `initdb` and `postgres`, the newest of Debian's package; None where it is not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


def _ordinary_user() -> dict[str, Any]:
    """Return how a process is started as somebody whom PostgreSQL serves: anybody but root."""
    if os.geteuid():
        return {}
    user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class PostgresServer:
    """A server with a folder of its own, which can be stopped and started again."""

    def __init__(self) -> None:
        programs = postgres_programs()
        assert programs is not None, "PostgreSQL is not installed"
        who = _ordinary_user()
        # The path of a socket has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        if who:
            os.chown(self.folder, who["user"], who["group"])
        self._given = {"cwd": self.folder, "env": {**os.environ, "HOME": str(self.folder), "LC_ALL": "C"}, **who}
        data = self.folder / "data"
        initdb = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, **self._given)
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
            "shared_buffers": "16MB",
            "wal_level": "logical",
            "max_wal_senders": "40",
            "max_replication_slots": "40",
            "dynamic_shared_memory_type": "mmap",
        }
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        self._command = [programs / "postgres", "-D", data, *options]
        self.conninfo = f"host={self.folder} user=postgres dbname=postgres"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, **self._given)
        _await(self.conninfo, self._process, self.folder / "log")

    def stop(self, sign: signal.Signals = signal.SIGINT) -> None:
        """Stop the server; those who are connected are cut off. SIGQUIT is as good as a crash."""
        self._process.send_signal(sign)
        self._process.wait(timeout=START_SECONDS)


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """Run a server."""
    server = PostgresServer()
    try:
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(server.folder, ignore_errors=True)


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server, and give what libpq needs to connect to its database `postgres`."""
    with running_server() as server:
        yield server.conninfo


def end_replication(connection: Any) -> None:
    """Drop all slots and publications, whoever uses them."""
    slots = "from pg_replication_slots where slot_name = %s"
    for (slot,) in connection.execute("select slot_name from pg_replication_slots").fetchall():
        while connection.execute(f"select pg_terminate_backend(active_pid) {slots} and active", (slot,)).fetchall():
            pass
        connection.execute("select pg_drop_replication_slot(%s)", (slot,))
    for (name,) in connection.execute("select quote_ident(pubname) from pg_publication").fetchall():
        connection.execute(f"drop publication {name}")


def _await(conninfo: str, server: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    ends = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(conninfo).close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}") from None
            time.sleep(0.05)
        else:
            return
