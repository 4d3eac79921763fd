"""How much memory the state of a task takes, and the folder on a disk for what is more.

What a task may take follows from the executor that runs it: the driver asks Spark's configuration when a query is
declared. Where there is a disk only the machine of the task knows, so the folder is chosen there. A folder in memory,
which a tmpfs is, would take what spilling is to save; it is taken only if the user has named it, and never in silence.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from arrowstate.errors import InvalidInputError
from arrowstate.storage.base import Storage
from arrowstate.storage.cache import default_cache_folder
from arrowstate_formats.integers import check_integer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TaskMemory", "budget_of_a_task"]

_IN_MEMORY = ("tmpfs", "ramfs")
_SIZE = re.compile(r"([0-9]+)(b|[kmgtp]b?)?")
_LOCAL = re.compile(r"local(?:\[([0-9]+|\*)(?:, *[0-9]+)?\])?")
_CLUSTER = re.compile(r"local-cluster\[ *[0-9]+ *, *([0-9]+) *,.*")

_logger = logging.getLogger("arrowstate.spark")


class TaskMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a task holds of its state in memory, and where the rest goes."""

    limit_bytes: int | None = None
    """None for no limit."""
    spill_dir: str | None = None
    """The folder that the user has named; None for one that the task chooses."""

    @classmethod
    def asked(
        cls, session: SparkSession, memory_budget_bytes: int | Literal["auto"] | None, spill_dir: str | Path | None
    ) -> TaskMemory:
        """Return what the arguments of `stateful` and `keyed_sink` ask for.

        Raises
        ------
        InvalidInputError
            If the budget is neither "auto", nor None, nor 0 or more.
        """
        if memory_budget_bytes == "auto":
            limit: int | None = budget_of_a_task(lambda name, default: session.conf.get(name, default) or default)
        elif isinstance(memory_budget_bytes, str):
            raise InvalidInputError(
                f"memory_budget_bytes must be 'auto', None for no limit, or a number of bytes, got "
                f"{memory_budget_bytes!r}"
            )
        else:
            limit = check_integer("memory_budget_bytes", memory_budget_bytes, 0, optional=True)
        return cls(limit, None if spill_dir is None else str(Path(spill_dir).absolute()))

    def for_backend(self, storage: Storage) -> dict[str, Any]:
        """Return the budget and the folder as the constructor of a backend takes them; asked in the task."""
        if self.limit_bytes is None:
            return {"memory_budget_bytes": None, "spill_dir": self.spill_dir}
        copies = getattr(storage, "options", {}).get("cache_dir") or str(default_cache_folder())
        folder = _spill_folder(self.spill_dir, copies, os.environ.get("SPARK_LOCAL_DIRS", ""))
        return {"memory_budget_bytes": None if folder is None else self.limit_bytes, "spill_dir": folder}


def budget_of_a_task(configured: Callable[[str, str], str]) -> int:
    """Return half of the memory of an executor, divided by the tasks that it runs at once, in bytes.

    Parameters
    ----------
    configured
        Returns a setting of Spark, or the default given with its name.

    Examples
    --------
    >>> settings = {"spark.master": "yarn", "spark.executor.memory": "8g", "spark.executor.cores": "4"}
    >>> budget_of_a_task(lambda name, default: settings.get(name, default)) >> 20
    1024
    """
    master = configured("spark.master", "local")
    own = _LOCAL.fullmatch(master)
    memory = configured("spark.driver.memory" if own else "spark.executor.memory", "1g")
    memory = configured("spark.executor.pyspark.memory", memory)
    cluster = _CLUSTER.fullmatch(master)
    if own is not None:
        cores = own[1] or "1"
    else:
        # An executor of a standalone cluster has all cores of its machine, elsewhere it has one.
        everything = cluster[1] if cluster else "*" if master.startswith("spark:") else "1"
        cores = configured("spark.executor.cores", everything)
    count = os.cpu_count() or 1 if cores == "*" else int(cores)
    at_once = max(1, count // max(1, int(configured("spark.task.cpus", "1"))))
    return _bytes_of(memory) // (2 * at_once)


def _bytes_of(text: str) -> int:
    """Read a size as Spark writes it, in MiB where it has no unit."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise InvalidInputError(f"a size of memory in Spark's configuration must be such as '4g', got {text!r}")
    unit = (match[2] or "m")[0]
    return int(match[1]) << (10 * "bkmgtp".index(unit))


@cache
def _spill_folder(named: str | None, copies: str, local_dirs: str) -> Path | None:
    """Return where a task spills, None if there is memory only; said once in a process."""
    if named is not None:
        if _is_in_memory(Path(named)):
            _logger.info("state is spilled to %s, which is in memory (a tmpfs); it was named as spill_dir", named)
        return Path(named)
    place = Path(copies)
    # Spark's own folders for such files, if there is no room beside the copies of a bucket's files.
    others = [Path(folder) for folder in local_dirs.split(",") if folder]
    candidates = [place.with_name(f"{place.name}-spill"), *others, Path(tempfile.gettempdir())]
    for folder in candidates:
        if _can_be_written(folder) and not _is_in_memory(folder):
            return folder
    _logger.info(
        "state is not spilled and stays in memory, whatever its budget: %s are in memory (a tmpfs) or cannot be "
        "written; name a folder on a disk as spill_dir",
        ", ".join(map(str, candidates)),
    )
    return None


def _existing(folder: Path) -> Path:
    """The folder, or the one above it that is there."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def _can_be_written(folder: Path) -> bool:
    return os.access(_existing(folder.absolute()), os.W_OK | os.X_OK)


def _is_in_memory(folder: Path) -> bool:
    """Whether a folder is on a file system in memory; False where that cannot be told."""
    try:
        device = _existing(folder.absolute()).stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    for line in mounts.splitlines():
        fields, _, kind = line.partition(" - ")
        if fields.split()[2] == f"{os.major(device)}:{os.minor(device)}":
            return kind.split()[0] in _IN_MEMORY
    return False
