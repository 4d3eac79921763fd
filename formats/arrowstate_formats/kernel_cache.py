"""Where compiled kernels are kept between processes, one file each.

What is in such a file is executed, so it is taken only from folders that nobody else can write: `ARROWSTATE_CACHE_DIR`,
`NUMBA_CACHE_DIR`, the package's own folder, the user's cache folder, and a folder of the user's own among the temporary
files. A kernel is looked for in all of them, so that what an image was built with is found where it cannot be written,
and kept in the first that can. No fault of a cache is one of the caller: without one, kernels are compiled again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arrowstate_formats.numba_internals import dumped, rebuilt

CACHE_DIR_VARIABLE = "ARROWSTATE_CACHE_DIR"
"""The environment variable that names a folder to look into first."""

_SETTINGS = frozenset(
    f"NUMBA_{name}"
    for name in ("BOUNDSCHECK", "CPU_FEATURES", "CPU_NAME", "DEBUGINFO", "LOOP_VECTORIZE", "OPT", "SLP_VECTORIZE")
)
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_DIGEST_BYTES = hashlib.sha256().digest_size
_logger = logging.getLogger("arrowstate")


class KernelCache:
    """One kernel's file, as numba's dispatcher asks for it."""

    def __init__(self, name: str, fingerprint: str) -> None:
        self._name = name
        self._fingerprint = fingerprint

    @property
    def cache_path(self) -> str:
        """Where the kernel is kept; numba shows it."""
        return str(writable_folder() or "")

    def read(self) -> bytes | None:
        """Return the compiled kernel as it was written, None where no folder has it whole."""
        for folder in readable_folders():
            try:
                data = (folder / self._file_name()).read_bytes()
            except OSError:
                continue
            if hashlib.sha256(data[_DIGEST_BYTES:]).digest() == data[:_DIGEST_BYTES]:
                return data[_DIGEST_BYTES:]
        return None

    def load_overload(self, _signature: Any, target_context: Any) -> Any:
        """Return the compiled kernel, or None."""
        data = self.read()
        if data is None:
            return None
        try:
            return rebuilt(target_context, data)
        except Exception as error:  # noqa: BLE001
            # Written by a numba that has the same version and another inside: then it is compiled anew.
            _logger.debug("%s: %s: %s", self._name, type(error).__name__, error)
            return None

    def save_overload(self, _signature: Any, compiled: Any) -> None:
        """Keep the compiled kernel, where that is possible."""
        folder = writable_folder()
        if folder is None:
            return
        data = dumped(compiled)
        path = folder / self._file_name()
        temporary = None
        try:
            with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{path.name}.", delete=False) as file:
                temporary = Path(file.name)
                file.write(hashlib.sha256(data).digest() + data)
            temporary.chmod(_mode_of_files(folder))
            temporary.replace(path)
        except OSError as error:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    temporary.unlink()
            _say_once(f"a compiled kernel could not be kept and is compiled anew in the next process: {error}")

    def enable(self) -> None:
        """Do nothing: whether there is a cache is decided by its folders."""

    def disable(self) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def _file_name(self) -> str:
        made_from = hashlib.sha256(repr((self._name, self._fingerprint, _compiler())).encode())
        return f"{self._name.partition('(')[0].removeprefix('arrowstate.')}-{made_from.hexdigest()[:24]}.kernel"


@functools.cache
def _compiler() -> tuple[Any, ...]:
    """What makes code of a kernel: versions, processor, and the settings that change it."""
    # numba itself, which takes long to load, is not asked: so it is known quickly whether all is compiled.
    from importlib import metadata

    from llvmlite import binding

    processor = binding.get_process_triple(), binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    settings = sorted((name, value) for name, value in os.environ.items() if name in _SETTINGS)
    versions = metadata.version("numba"), metadata.version("llvmlite"), sys.implementation.cache_tag
    return *processor, *settings, *versions


@functools.cache
def readable_folders() -> tuple[Path, ...]:
    """Return the folders whose kernels may be used, in the order they are looked through."""
    return tuple(folder for folder, _ in _safe_folders())


@functools.cache
def writable_folder() -> Path | None:
    """Return the folder in which kernels are kept; None, said once in the log, where there is none."""
    for folder, named in _safe_folders():
        try:
            _make(folder)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            if named:
                _logger.warning("%s: compiled kernels cannot be kept in %s: %s", CACHE_DIR_VARIABLE, folder, error)
            continue
        # Where it was made just now, what it is was not known before.
        if _why_not(folder) is None or folder == _package_folder():
            return folder
    _logger.warning(
        "compiled kernels cannot be kept, so each process compiles them anew, which takes seconds; "
        "name a folder that only this user can write: %s",
        CACHE_DIR_VARIABLE,
    )
    return None


def forget_folders() -> None:
    """Look for the folders again when one is needed, as after a change of the environment."""
    readable_folders.cache_clear()
    writable_folder.cache_clear()
    _say_once.cache_clear()


def _safe_folders() -> Iterator[tuple[Path, bool]]:
    """Yield (folder, whether the user named it) of those that nobody else can write or may put in their place."""
    for folder, variable in _folders():
        # Python executes the .pyc files beside the package's modules, so kernels there are as safe as these.
        problem = None if folder == _package_folder() else _why_not(folder)
        if problem is None:
            yield folder.resolve(), variable == CACHE_DIR_VARIABLE
        elif variable:
            _say_once(f"{variable}: compiled kernels, which are executed, are not kept in {folder}: {problem}")
        else:
            _logger.debug("compiled kernels are not kept in %s: %s", folder, problem)


def _make(folder: Path) -> None:
    if folder == _package_folder():
        folder.mkdir(exist_ok=True)
        return
    # mkdir's own `parents` would let the umask decide who may put another folder in the place of this one.
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def _folders() -> Iterator[tuple[Path, str]]:
    for variable in (CACHE_DIR_VARIABLE, "NUMBA_CACHE_DIR"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]).expanduser().absolute(), variable
    yield _package_folder(), ""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    if os.path.isabs(cache):  # noqa: PTH117
        yield Path(cache) / "arrowstate", ""
    if hasattr(os, "getuid"):
        # It raises where there is no folder for temporary files.
        with contextlib.suppress(OSError):
            yield Path(tempfile.gettempdir()).absolute() / f"arrowstate-{os.getuid()}", ""


def _package_folder() -> Path:
    return Path(__file__).resolve().parent / "__pycache__"


def _why_not(folder: Path) -> str | None:
    """Return what lets somebody else write to the folder, or put another in its place; None where nothing does."""
    if not hasattr(os, "getuid"):
        return None
    trusted = (0, os.getuid())
    if folder.is_symlink():
        return "it is a symbolic link"
    real = folder.resolve()
    for place in (real, *real.parents):
        try:
            found = place.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            return str(error)
        if found.st_uid not in trusted:
            return f"{place} belongs to user {found.st_uid}"
        writers = found.st_mode & _OTHERS_MAY_WRITE
        # In a sticky folder nobody can take away what is another's; and root knows whom it lets into a folder above.
        if place != real and (found.st_mode & stat.S_ISVTX or (writers == stat.S_IWGRP and found.st_uid == 0)):
            continue
        if writers:
            return f"others can write to {place} (mode {stat.S_IMODE(found.st_mode):o}); chmod go-w helps"
        if place == real and not stat.S_ISDIR(found.st_mode):
            return "it is no folder"
    return None


def _mode_of_files(folder: Path) -> int:
    # What root compiles into a package's folder is for everybody who can read the package.
    return 0o644 if folder.stat().st_mode & stat.S_IROTH else 0o600


@functools.cache
def _say_once(message: str) -> None:
    _logger.warning("%s", message)
