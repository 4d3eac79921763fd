"""What commands print: JSON for machines, tables for people, progress on the side."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import Any

from rich import filesize
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

__all__ = [
    "bytes_text",
    "plain",
    "print_json",
    "print_json_line",
    "print_narrow_table",
    "print_table",
    "problems_text",
    "progress_bar",
    "say",
    "say_field",
    "time_text",
]

_NARROW = 100
"""The columns of a text to be read, where there is no terminal to say how many there are."""


def say(text: str = "") -> None:
    """Print a line to stdout, as it is."""
    _console().print(text, markup=False, highlight=False, soft_wrap=True)


def say_field(name: str, text: str, *, label: int = 11) -> None:
    """Print a field by its name, in so many columns; what does not fit into 100 goes on below its beginning."""
    line = f"  {name:<{label}} {text}"
    if len(line) > _NARROW:
        line = "\n".join(wrap(line, _NARROW, subsequent_indent=" " * (label + 3), break_on_hyphens=False))
    say(line)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """Print a value as JSON in one line, at once."""
    print(json.dumps(plain(value), ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """Print rows under columns; numbers stand on the right."""
    _console().print(_table(columns, rows, title))


def print_narrow_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, split: int | None = None) -> None:
    """Print rows under columns, in no more than 100 columns of text where there is no terminal; what is long is folded.

    A table that does not fit is printed as two where `split` is given: the first so many columns, then the first column
    with the others.
    """
    console, table = _console(), _table(columns, rows)
    width = console.width if console.is_terminal else _NARROW
    if split is None or console.measure(table).maximum <= width:
        console.print(table, width=width)
        return
    console.print(_table(columns[:split], [row[:split] for row in rows]), width=width)
    others = [(row[0], *row[split:]) for row in rows]
    console.print(_table([columns[0], *columns[split:]], others), width=width)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        is_number = all(isinstance(row[number], (int, float, decimal.Decimal, type(None))) for row in rows)
        table.add_column(escape(column), justify="right" if rows and is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row))
    return table


@contextmanager
def progress_bar(text: str) -> Iterator[Progress]:
    """Give a progress bar on stderr; nothing is shown where stderr is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(text, total=None)
        yield progress


def bytes_text(size: int) -> str:
    """Return a size with its unit."""
    return filesize.decimal(size)


def problems_text(problems: Sequence[str], advice: str) -> str:
    """Return how many problems were found, and what to do where there are any."""
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return f"{count}; {advice}" if problems else "no problem found"


def time_text(milliseconds: int) -> str:
    """Return a time as ISO 8601 in UTC, to the second."""
    time = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: bytes as hexadecimal digits, other types as text, NaN as null."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, decimal.Decimal) and value.as_tuple().exponent == 0:
        return int(value)  # DuckDB's sums of integers are of this type.
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return str(value)
    value = plain(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _console() -> Console:
    # Rich takes 80 columns where there is no terminal, and would fold what goes to a file or a pipe.
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 1000)
