"""When the interpreter ends: what is registered here is done while executors still take work and threads still run."""

from __future__ import annotations

import threading
from collections.abc import Callable


def before_executors_end(do: Callable[[], None]) -> None:
    """Have something done when the main thread has ended; `atexit` comes after executors refuse work."""
    threading._register_atexit(do)  # type: ignore[attr-defined]
