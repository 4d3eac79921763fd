"""Make the project's environment: `.venv` beside this folder, with the project installed editable.

Only the standard library is used, because this runs before anything is installed. The scripts of
this folder call it twice at most: with the environment's own Python to ask whether it is up to date
(`current`, by exit code), and, where it is not, with any Python 3.11 or later to make it
(`install`). Both take the name of another extra of the project, which is then installed beside.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "arrowstate-stamp"
EXTRAS = "dev"


def stamp_of(extra: str) -> Path:
    """The file that says what was installed last."""
    return STAMP if extra == EXTRAS else STAMP.with_name(f"{STAMP.name}-{extra}")


def wanted_stamp(version: str, extra: str = EXTRAS) -> str:
    """What the stamp says when the environment fits: its Python, its folder (in its scripts), the requirements."""
    return f"{version} {VENV} {extra} {hashlib.sha256((ROOT / 'pyproject.toml').read_bytes()).hexdigest()}\n"


def is_current(extra: str = EXTRAS) -> bool:
    """Whether the environment is there, works, and was installed from today's pyproject.toml."""
    version, stamp = python_version(), stamp_of(extra)
    return version is not None and stamp.is_file() and stamp.read_text() == wanted_stamp(version, extra)


def python_version() -> str | None:
    """Version of the environment's Python, None where it does not start (a base Python that was removed or moved)."""
    if Path(sys.prefix) == VENV:
        return "{}.{}.{}".format(*sys.version_info)
    try:
        started = subprocess.run(
            [PYTHON, "-I", "-c", "import sys; print('{}.{}.{}'.format(*sys.version_info))"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return started.stdout.strip()


def make_venv() -> None:
    """Make `.venv` new. Debian's Python has venv but not always ensurepip: then this Python's pip installs for it."""
    pip = [] if importlib.util.find_spec("ensurepip") else ["--without-pip"]
    subprocess.run([sys.executable, "-m", "venv", "--clear", *pip, VENV], check=True)


def pip_command() -> list[str]:
    """The pip that installs into `.venv`: its own, or this Python's."""
    if (
        importlib.util.find_spec("pip")
        and subprocess.run([PYTHON, "-c", "import pip"], capture_output=True).returncode != 0
    ):
        return [sys.executable, "-m", "pip", "--python", str(PYTHON)]
    return [str(PYTHON), "-m", "pip"]


def moved() -> bool:
    """Whether `.venv` was made in another folder: its scripts name that folder, so only a new one helps."""
    return STAMP.is_file() and f" {VENV} " not in STAMP.read_text()


def install(extra: str = EXTRAS) -> None:
    """Make or bring up to date; the second of two concurrent callers waits for the first and finds it done."""
    with (ROOT / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_current(extra):
            return
        version = python_version()
        if version is None or tuple(map(int, version.split("."))) < (3, 11) or moved():
            print(f"making {VENV} with Python {sys.version.split()[0]}", file=sys.stderr)
            make_venv()
        takes = "some minutes the first time" if extra == EXTRAS else f"the extra {extra}"
        print(f"installing the project and its tools into it ({takes})", file=sys.stderr)
        stamp_of(extra).unlink(missing_ok=True)
        # Standard output belongs to the program that the caller wants to run.
        subprocess.run(
            [*pip_command(), "install", "--quiet", "--disable-pip-version-check", "--editable", f"{ROOT}[{extra}]"],
            check=True,
            stdout=sys.stderr,
            # The hook compiles kernels for a wheel; here they are compiled when they are called.
            env={**os.environ, "HATCH_BUILD_NO_HOOKS": "true"},
        )
        version = python_version()
        assert version is not None
        stamp_of(extra).write_text(wanted_stamp(version, extra))


def main(arguments: list[str]) -> int:
    """Run one of the two commands; a failed step has already said why."""
    if not 1 <= len(arguments) <= 2 or arguments[0] not in ("current", "install"):
        print("usage: environment.py current | install [EXTRA]", file=sys.stderr)
        return 2
    if arguments[0] == "current":
        return 0 if is_current(*arguments[1:]) else 1
    try:
        install(*arguments[1:])
    except subprocess.CalledProcessError as error:
        print(
            f"the environment is not ready: {' '.join(map(str, error.cmd))} ended with {error.returncode}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
