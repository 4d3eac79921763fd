"""What hatchling calls as it builds a wheel: the compiled kernels are put into it, which makes it one for a platform.

Where they cannot be compiled, as without a C compiler, the wheel is for all platforms and requires numba, which
compiles kernels when they are called; so does an editable installation. `ARROWSTATE_KERNEL_OBJECTS` names a folder that
keeps object code from one build for the next.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_OLDEST_PYTHON = "cp311"


class KernelHook(BuildHookInterface[Any]):
    """Compiles the kernels for a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile them and have the wheel contain them."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="arrowstate-wheel-")
        library = Path(self._folder.name) / f"_kernels{'.pyd' if sys.platform == 'win32' else '.abi3.so'}"
        command = [sys.executable, "-m", "kernel_library", str(library)]
        if objects := os.environ.get("ARROWSTATE_KERNEL_OBJECTS"):
            command += ["--objects", objects]
        places = [self.root, *(str(Path(self.root) / name) for name in ("formats", "tools"))]
        # What builds a wheel in isolation has the requirements on the path of this process alone.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*places, *filter(None, sys.path)])}
        if subprocess.run(command, env=environment, check=False).returncode:
            self.app.display_warning(
                "the kernels cannot be compiled, which takes a C compiler and the header files of Python: "
                "the wheel requires numba, which compiles them when they are first called"
            )
            build_data["dependencies"] += self.metadata.core.optional_dependencies["jit"]
            return
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"{_OLDEST_PYTHON}-abi3-{platform}"
        build_data["force_include"][str(library)] = f"arrowstate_formats/{library.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what the wheel has now."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
