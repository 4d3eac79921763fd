"""Run one benchmark by its name, or list them."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path


def benchmarks() -> dict[str, str]:
    """Every benchmark by its name, with the first line of what its module says about it."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        # Read, not imported: a list must not load every engine.
        module = ast.parse(path.read_text())
        if any(isinstance(part, ast.FunctionDef) and part.name == "main" for part in module.body):
            found[path.stem.replace("_", "-")] = (ast.get_docstring(module) or "").partition("\n")[0]
    return found


def main(argv: list[str]) -> int:
    """Run `argv[0]` with the arguments after it."""
    known = benchmarks()
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: tools/bench NAME [OPTION...]   (NAME --help lists the options)\n")
        for name, described in known.items():
            print(f"  {name:<12} {described}")
        return 0
    name, *rest = argv
    if name not in known:
        print(f"tools/bench: no benchmark named {name!r}; there is {', '.join(known)}", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"benchmarks.{name.replace('-', '_')}").main(rest) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
