"""Processes and threads that a test starts."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def python(*arguments: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python to its end in a process that finds what this one finds; its output is kept as text."""
    return subprocess.run(**_how(arguments, env), capture_output=True, **{"check": False} | options)


def started_python(*arguments: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """Start Python in such a process, which is written to and read from while it runs."""
    return subprocess.Popen(**_how(arguments, env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)


def at_once(act: Callable[[Any], Any], each: Collection[Any]) -> list[Any]:
    """Call a function with each of some arguments, in threads that begin together; what one raises is raised."""
    start = threading.Barrier(len(each))

    def begin(one: Any) -> Any:
        start.wait()
        return act(one)

    with ThreadPoolExecutor(len(each)) as pool:
        return list(pool.map(begin, each))


def _how(arguments: tuple[object, ...], env: dict[str, str] | None) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})}
    return {"args": [sys.executable, *map(str, arguments)], "env": environment, "text": True}
