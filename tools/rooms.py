"""The rooms of `arrowstate`, layer by layer, with their lines; functions that are too long; imports that hide.

The body of a function has at most 80 lines; a module is divided where its parts know different things, never by its
length. Exits with 1 where something is longer and not named below; what is named and has become short enough is an
error too. So is a circle of imports, those for types included: the layers forbid it between rooms, this inside one. And
so is an import by a string that is not named below: the layers do not see it.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READ = ("arrowstate", "formats/arrowstate_formats", "tools")
FUNCTION_LINES = 80
BY_STRING = {
    "arrowstate/cli/app.py": "a command is loaded when it is called",
    "arrowstate/cli/warm.py": "the modules with kernels, whatever they are",
    "arrowstate/spark/__init__.py": "PySpark is loaded when a name of it is used",
    "arrowstate/storage/clients.py": "the client of a service, which is an extra",
}
"""Modules that import by a string, and why."""


def modules() -> dict[str, ast.Module]:
    """Return what is read, each module by its path."""
    paths = sorted(file for folder in READ for file in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def functions(read: Mapping[str, ast.Module]) -> dict[str, int]:
    """Return the lines of each function, by the path of its module and its name."""
    return {
        f"{name}: {node.name}": _lines(node)
        for name, module in read.items()
        for node in ast.walk(module)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def imported_by_string(read: Mapping[str, ast.Module]) -> set[str]:
    """Return the modules of the product that import by a string."""
    return {
        name
        for name, module in read.items()
        if not name.startswith("tools/")
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        in ("import_module", "__import__")
    }


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
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


def _of_room(room: str) -> int:
    files = [ROOT / "arrowstate" / f"{room}.py", *(ROOT / "arrowstate" / room).rglob("*.py")]
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files if file.is_file())


def main() -> int:
    """Print the rooms and what is wrong with them, and return 1 if there is something."""
    for row in layers():
        print("  " + ", ".join(f"{room} {_of_room(room):,}" for room in row))
    read = modules()
    lines = functions(read)
    wrong = [
        f"{name} has {count} lines, of at most {FUNCTION_LINES}: it may do two things"
        for name, count in lines.items()
        if count > FUNCTION_LINES
    ]
    by_string = imported_by_string(read)
    wrong += [f"{name} imports by a string: the layers do not see it" for name in sorted(by_string - BY_STRING.keys())]
    wrong += [f"{name} imports nothing by a string: take it out of BY_STRING" for name in BY_STRING.keys() - by_string]
    around = circle(ROOT / folder for folder in READ[:2])
    if around:
        wrong.append(f"a circle of imports: {' imports '.join(around[::-1])}; put what both need into a module below")
    print(*wrong, f"{len(read)} modules, {len(lines)} functions", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
