"""What commands print: JSON for machines, tables for people, progress on the side."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TextIO

from arrowstate.cli.tables import table_text
from arrowstate.clock import utc_text
from arrowstate.shown import shown

if TYPE_CHECKING:
    from rich.progress import Progress

_NARROW = 100
"""The columns of a text to be read, where there is no terminal to say how many there are."""
_WINDOWLESS = 80
"""The columns that a program without a window is told of."""
_WIDE = 1000
"""The same for a table that may be as wide as its rows."""


def say(text: str = "") -> None:
    """Print a line to stdout, as it is."""
    print(text)


def say_field(name: str, text: str, *, label: int = 11) -> None:
    """Print a field by its name, in so many columns; what does not fit into the width goes on below its beginning."""
    line = f"  {name:<{label}} {text}"
    width = _width(_NARROW)
    # 80 columns are those of programs without a window; there a longer line is read better whole.
    width = _NARROW if width >= _WINDOWLESS else width
    if len(line) > width:
        inside = " " * (label + 3)
        line = "\n".join(wrap(line, width, subsequent_indent=inside, break_on_hyphens=False, break_long_words=False))
    say(line)


def drop_output(stream: TextIO) -> None:
    """Let go what a stream still has to write, and what it will be given; it must not be tried again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(shown(value), indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """Print a value as JSON in one line, at once."""
    print(json.dumps(shown(value), ensure_ascii=False), flush=True)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, drop: Sequence[str] = (), split: int | None = None
) -> None:
    """Print rows under columns; `drop` and `split` as for `table_text`.

    As wide as it is where there is no terminal, and nobody has set COLUMNS.
    """
    _print_table(columns, rows, _width(_WIDE), drop, split)


def print_narrow_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, drop: Sequence[str] = (), split: int | None = None
) -> None:
    """Print rows under columns, in no more than 100 columns of text where there is no terminal."""
    _print_table(columns, rows, _width(_NARROW), drop, split)


def _print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int, drop: Sequence[str], split: int | None
) -> None:
    texts = [[_cell(value) for value in row] for row in rows]
    ascii_only = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    print(table_text(columns, rows, texts, width=width, drop=drop, split=split, ascii_only=ascii_only))


def _width(otherwise: int) -> int:
    """Return the columns of the terminal, those that COLUMNS says, or what there is otherwise."""
    given = os.environ.get("COLUMNS", "")
    if sys.stdout.isatty() or (given.isdecimal() and int(given) > 0):
        return shutil.get_terminal_size().columns
    return otherwise


class Bar:
    """A progress bar, or nothing where nobody would see it."""

    def __init__(self, shown: Progress | None = None, text: str = "") -> None:
        self._shown = shown
        self._task = None if shown is None else shown.add_task(text, total=None)

    def advance(self) -> None:
        """Tell that one more is done."""
        if self._shown is not None and self._task is not None:
            self._shown.advance(self._task)

    def update(self, *, total: int, completed: int | None = None) -> None:
        """Tell how many there are, and how many are done."""
        if self._shown is not None and self._task is not None:
            self._shown.update(self._task, total=total, completed=completed)


@contextmanager
def progress_bar(text: str) -> Iterator[Bar]:
    """Give a progress bar on stderr; nothing is shown, and none is loaded, where stderr is no terminal."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, text)


def problems_text(problems: Sequence[str], advice: str) -> str:
    """Return how many problems were found, and what to do where there are any."""
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return f"{count}; {advice}" if problems else "no problem found"


def time_text(milliseconds: int) -> str:
    """Return a time as ISO 8601 in UTC, to the second."""
    return utc_text(milliseconds).replace("+00:00", "Z")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    value = shown(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
