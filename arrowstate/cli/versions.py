"""`arrowstate --version`: its own, the format's, and those of the packages that it found."""

from __future__ import annotations

import platform
import re
from importlib import metadata

import arrowstate
from arrowstate.cli.output import say
from arrowstate_formats.compiled import library_is_there

_NAME = re.compile(r"[\w.-]+")
_OWN = "arrowstate"


def print_versions() -> None:
    """Print the versions of what is installed of all that arrowstate can use."""
    kernels = "compiled" if library_is_there() else "compiled when they are first called"
    say(f"arrowstate {arrowstate.__version__}, format {arrowstate.FORMAT_VERSION}")
    say(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}; kernels are {kernels}")
    say(", ".join(f"{name} {version}" for name, version in _packages().items()))


def _packages() -> dict[str, str]:
    """Return the version of each package that is installed and that a user's extra, or none, asks for."""
    developers = re.compile(r"extra == ['\"](bench|dev|docs|release|test)['\"]")
    asked = [_NAME.match(line) for line in metadata.requires(_OWN) or () if not developers.search(line)]
    found = {}
    for name in sorted({match[0] for match in asked if match and match[0] != _OWN}):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
