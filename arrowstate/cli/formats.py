"""The formats of files that the command line writes, and how a file says its own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias, get_args

from arrowstate.errors import InvalidInputError

Format: TypeAlias = Literal["csv", "json", "jsonl", "markdown", "parquet", "arrow"]
FORMATS: tuple[Format, ...] = get_args(Format)
"""Those of a file, of which the last two are no text."""
_BY_EXTENSION: dict[str, Format] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".md": "markdown",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
}


def refuse_pipe(path: str) -> None:
    """Refuse a path that other programs take for the pipe."""
    if path == "-":
        raise InvalidInputError(
            "--output takes a file, and '-' is none: `arrowstate sql STORE QUERY --format FORMAT` prints rows, and ./- "
            "is a file of that name"
        )


def format_of(path: str, given: Format | None) -> Format:
    """Return the format of a file: the one given, or the one that its extension says."""
    refuse_pipe(path)
    extension = Path(path).suffix.lower()
    if given is None and extension not in _BY_EXTENSION:
        raise InvalidInputError(
            f"{path!r} does not say its format: end it with {', '.join(_BY_EXTENSION)}, or give --format"
        )
    return _BY_EXTENSION[extension] if given is None else given
