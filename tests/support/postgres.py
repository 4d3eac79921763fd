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


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server, and give what libpq needs to connect to its database `postgres`."""
    programs = postgres_programs()
    assert programs is not None, "PostgreSQL is not installed"
    who = _ordinary_user()
    # The path of a socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        if who:
            os.chown(folder, who["user"], who["group"])
        data = folder / "data"
        given = {"cwd": folder, "env": {**os.environ, "HOME": str(folder), "LC_ALL": "C"}, **who}
        initdb = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, **given)
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(folder),
            "fsync": "off",
            "shared_buffers": "16MB",
            "wal_level": "logical",
            "max_wal_senders": "40",
            "max_replication_slots": "40",
            "dynamic_shared_memory_type": "mmap",
        }
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen([programs / "postgres", "-D", data, *options], stdout=log, stderr=log, **given)
        try:
            conninfo = f"host={folder} user=postgres dbname=postgres"
            _await(conninfo, server, folder / "log")
            yield conninfo
        finally:
            # Those who are connected are cut off.
            server.send_signal(signal.SIGINT)
            server.wait(timeout=START_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
