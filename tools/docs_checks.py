"""What the documentation must be, as far as it can be told without building it.

Every page of docs/ is in the menu of mkdocs.yml, every link and anchor of a page leads somewhere, every picture is
there and of no other site, and every public name has a docstring and one entry in the API reference. Links to files
outside of docs/ are those that a reader of the repository follows; `docs_hooks` turns them into links of the site.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = ("arrowstate", "arrowstate.windows", "arrowstate.runtime", "arrowstate.spark", "arrowstate.testing")

# Pages that the site takes from elsewhere: where they are, and where they stand in the site.
GUESTS = {
    **{f"formats/spec/{path.name}": f"format/spec/{path.name}" for path in (ROOT / "formats/spec").glob("*.md")},
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}

_FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1`*[ \t]*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
ENTRY = re.compile(r"^::: (\S+)$", re.MULTILINE)


def main() -> int:
    """Print what is wrong, a line each, and return 1 if anything is."""
    pages = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}
    pages |= {name: (ROOT / name).read_text() for name in ("README.md", *GUESTS)}
    found = [*menu(pages), *links(pages), *names(pages)]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


def menu(pages: dict[str, str]) -> Iterator[str]:
    """Tell which pages are not in the menu, and what in the menu is no page."""
    listed = Counter(f"docs/{page}" for page in _leaves(_settings()["nav"]))
    there = {page for page in pages if page.startswith("docs/")} | {f"docs/{page}" for page in GUESTS.values()}
    for page in sorted(there - set(listed)):
        yield f"mkdocs.yml: {page} is not in the menu"
    for page, times in sorted(listed.items()):
        if page not in there:
            yield f"mkdocs.yml: there is no page {page}"
        elif times > 1:
            yield f"mkdocs.yml: {page} is in the menu {times} times"


def _settings() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def _leaves(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from _leaves(each)


def links(pages: dict[str, str]) -> Iterator[str]:
    """Tell which links lead nowhere, and which pictures would be fetched from elsewhere."""
    anchors = {page: set(_anchors(text)) for page, text in pages.items()}
    for page, text in pages.items():
        for match in _LINK.finditer(_prose(text)):
            target = unquote(match[1])
            if re.match(r"[a-z]+:", target):
                if match[0].startswith("!"):
                    yield f"{page}: the picture {target} is of another site"
                continue
            place, _, anchor = target.partition("#")
            path = ((ROOT / page).parent / place).resolve() if place else ROOT / page
            if place and not (path.exists() and path.is_relative_to(ROOT)):
                yield f"{page}: {target} is not there"
            elif anchor and anchor not in anchors.get(path.relative_to(ROOT).as_posix(), ()):
                yield f"{page}: {target} has no such heading"


def _prose(text: str) -> str:
    """Leave out what is code: blocks and spans."""
    return _CODE.sub("", _FENCE.sub("", text))


def _anchors(text: str) -> Iterator[str]:
    """The anchors of headings, as MkDocs and GitHub both make them of plain words, and those of the API reference."""
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#+ +(.*?)(?: \{.*\})?$", _FENCE.sub("", text), re.MULTILINE):
        words = re.sub(r"[^\w\s-]", "", re.sub(r"[`*]|\]\([^)]*\)", "", heading)).strip().lower()
        anchor = re.sub(r"[-\s]+", "-", words)
        yield f"{anchor}_{seen[anchor]}" if seen[anchor] else anchor
        seen[anchor] += 1
    yield from re.findall(r"\{ *#([\w.-]+)", text)
    yield from ENTRY.findall(text)


def names(pages: dict[str, str]) -> Iterator[str]:
    """Tell which public names have no docstring, or not one entry in the API reference."""
    entries = [entry for page, text in pages.items() if page.startswith("docs/") for entry in ENTRY.findall(text)]
    described: list[Any] = []
    for entry in entries:
        try:
            described.append(find(entry))
        except (ImportError, AttributeError) as error:
            yield f"docs/reference: `::: {entry}` names nothing: {error}"
    for module_name in PUBLIC:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            constant = not (inspect.isclass(value) or callable(value))
            times = entries.count(f"{module_name}.{name}") if constant else sum(each is value for each in described)
            if times != 1:
                yield f"{module_name}.{name} has {times} entries in docs/reference, not one"
            if not (_constant_docstring(module, name) if constant else _docstring(value)):
                yield f"{module_name}.{name} has no docstring"
            # The methods of a suite are claims by their names.
            if inspect.isclass(value) and module_name != "arrowstate.testing":
                for member in _undescribed(value):
                    yield f"{module_name}.{name}.{member} has no docstring"


def entry_with_filters(path: str) -> str:
    """Return an entry of the API reference that leaves out what completion does not show either: see `Shown`."""
    value, entry = find(path), f"::: {path}"
    hidden = sorted({name for kind in getattr(value, "__mro__", ()) for name in vars(kind).get("_plumbing", ())})
    if not hidden:
        return entry
    (python,) = (
        each["mkdocstrings"]["handlers"]["python"] for each in _settings()["plugins"] if "mkdocstrings" in each
    )
    filters = [*python["options"]["filters"], f"!^({'|'.join(hidden)})$"]
    return "\n".join([entry, "    options:", "      filters:", *(f'        - "{each}"' for each in filters)])


def find(path: str) -> Any:
    """Return what stands at a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _docstring(value: Any) -> bool:
    # A dataclass without one gets its signature for one.
    return bool(value.__doc__) and not value.__doc__.startswith(f"{value.__name__}(")


def _constant_docstring(module: Any, name: str) -> bool:
    """Whether a string follows the assignment, in the module that has it."""
    body = ast.parse(inspect.getsource(module)).body
    for statement, following in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.ImportFrom) and name in (alias.name for alias in statement.names):
            return _constant_docstring(importlib.import_module(str(statement.module)), name)
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
    return False


def _undescribed(value: type) -> Iterator[str]:
    """The public methods and properties of a class that say nothing, nor does what they override."""
    for name, member in vars(value).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function) and not inspect.getdoc(getattr(value, name)):
            yield name


if __name__ == "__main__":
    sys.exit(main())
