"""The rooms of `arrowstate`, layer by layer, with their lines; and whether all that is read is small enough.

A module has at most 450 lines, the body of a function at most 80. Exits with 1 where something is larger and not named
below; what is named and has become small enough is an error too. So is a circle of imports, those for types included:
the layers forbid it between rooms, this inside one.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READ = ("arrowstate", "formats/arrowstate_formats", "tools")
MODULE_LINES = 450
FUNCTION_LINES = 80
LARGER = {
    "tools/nexmark_queries/queries.py: all_queries": "a table of queries",
}
"""What may be larger, and why."""


def sizes() -> Iterator[tuple[str, int, int]]:
    """Yield each module and function with its lines and how many it may have."""
    for path in sorted(file for folder in READ for file in (ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        yield name, text.count("\n"), MODULE_LINES
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                yield f"{name}: {node.name}", _lines(node), FUNCTION_LINES


def _lines(function: ast.FunctionDef) -> int:
    """Return the lines of the body, without signature and docstring."""
    body = function.body
    first = body[0]
    if len(body) > 1 and isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        body = body[1:]
    assert body[-1].end_lineno is not None
    return body[-1].end_lineno - body[0].lineno + 1


def circle(folders: Iterable[Path]) -> list[str]:
    """Return the modules of a circle of imports below these packages, the first once more at its end; empty if none."""
    files = {_module(file.relative_to(folder.parent)): file for folder in folders for file in folder.rglob("*.py")}
    try:
        TopologicalSorter({name: set(_imported(file, files.keys())) - {name} for name, file in files.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported(file: Path, known: Set[str]) -> Iterator[str]:
    """Yield the modules that a module names in its imports, wherever in it they stand."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from {name if name in known else node.module for name in names} & known


def layers() -> list[list[str]]:
    """Return the rooms as `pyproject.toml` declares their layers, the highest first."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    rows = next(contract["layers"] for contract in declared["contracts"] if contract.get("exhaustive"))
    return [[room.strip(" ()") for room in row.replace(":", "|").split("|")] for row in rows]


def _of_room(found: list[tuple[str, int, int]], room: str) -> int:
    inside = f"arrowstate/{room}.py", f"arrowstate/{room}/"
    return sum(lines for name, lines, limit in found if limit == MODULE_LINES and name.startswith(inside))


def main() -> int:
    """Print the rooms and what is too large, and return 1 if there is something."""
    found = list(sizes())
    for row in layers():
        print("  " + ", ".join(f"{room} {_of_room(found, room):,}" for room in row))
    large = {name: (lines, limit) for name, lines, limit in found if lines > limit}
    for name, (lines, limit) in large.items():
        if name not in LARGER:
            print(f"{name} has {lines} lines, of at most {limit}: it may hold two things")
    needless = [name for name in LARGER if name not in large]
    for name in needless:
        print(f"{name} is small enough: take it out of LARGER in tools/rooms.py")
    modules = sum(limit == MODULE_LINES for _, _, limit in found)
    print(f"{modules} modules, {len(found) - modules} functions; larger, with a reason: {len(LARGER) - len(needless)}")
    around = circle(ROOT / folder for folder in READ[:2])
    if around:
        print(f"a circle of imports: {' imports '.join(around[::-1])}; put what both need into a module below them")
    return 1 if around or needless or large.keys() - LARGER.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
