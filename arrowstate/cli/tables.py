"""Tables for people: rows under columns, in as many columns of text as there are.

A table that is too wide gives way in steps: texts go on in the next line, between words and never inside of one, so
that numbers and names stay whole; columns that are said to matter least are left out; or it becomes two tables. What is
still too wide is a list, with a line for each column of each row.
"""

from __future__ import annotations

import decimal
import unicodedata
from collections.abc import Iterator, Sequence

try:
    from rich.cells import cell_len
except ImportError:

    def cell_len(text: str, /) -> int:  # type: ignore[misc]
        """Return the columns of a terminal that a text takes, as near as Python alone can tell."""
        wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
        return len(text) + wide - sum(unicodedata.category(character) in ("Mn", "Me", "Cf") for character in text)


_LEAST_TEXT = 16
"""A column of texts is not made narrower than this, or its longest word."""
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
_BORDERS = str.maketrans("┏━┳┓┃┡╇┩│└─┴┘", "+-++|+++|+-++")


def table_text(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    texts: Sequence[Sequence[str]],
    *,
    width: int,
    drop: Sequence[str] = (),
    split: int | None = None,
    ascii_only: bool = False,
) -> str:
    """Return rows under columns; numbers stand on the right."""
    found = _tables([_Column.of(number, name, rows, texts) for number, name in enumerate(columns)], width, drop, split)
    text = "\n".join(line for table in found for line in table)
    return text.translate(_BORDERS) if ascii_only else text


class _Column:
    """A column: its name and its cells, each a list of lines; how wide it is, and at least."""

    def __init__(self, name: str, cells: list[list[str]], *, is_number: bool) -> None:
        self.name = name
        self.cells = cells
        self.is_number = is_number
        lines = [name, *(line for cell in cells for line in cell)]
        self.width = max(map(_length, lines))
        words = max((_length(word) for line in lines for word in line.split()), default=0)
        self.least = words if is_number else max(words, min(self.width, _LEAST_TEXT))

    @classmethod
    def of(cls, number: int, name: str, rows: Sequence[Sequence[object]], texts: Sequence[Sequence[str]]) -> _Column:
        values = [row[number] for row in rows]
        is_number = bool(rows) and all(isinstance(value, (int, float, decimal.Decimal, type(None))) for value in values)
        return cls(_visible(name)[0], [_visible(row[number]) for row in texts], is_number=is_number)


def _visible(text: str) -> list[str]:
    """Return the lines of a text, without what would steer a terminal."""
    if text.isprintable():
        return [text]
    return [line.expandtabs().translate(_CONTROLS) for line in text.split("\n")]


def _length(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _tables(columns: list[_Column], width: int, drop: Sequence[str], split: int | None) -> Iterator[Iterator[str]]:
    if _fits(columns, width, folded=split is None):
        yield _table(columns, width)
        return
    left = list(columns)
    for name in drop:
        left = [column for column in left if column.name != name]
        if _fits(left, width):
            yield _table(left, width)
            return
    if split is not None:
        yield from _tables(columns[:split], width, drop, None)
        yield from _tables([columns[0], *columns[split:]], width, drop, None)
    else:
        yield _records(columns)


def _fits(columns: Sequence[_Column], width: int, *, folded: bool = True) -> bool:
    return sum(column.least if folded else column.width for column in columns) + 3 * len(columns) + 1 <= width


def _table(columns: Sequence[_Column], width: int) -> Iterator[str]:
    if not columns:
        yield ""
        return
    widths = _widths(columns, width - 3 * len(columns) - 1)
    rule = ["━" * (wide + 2) for wide in widths]
    yield f"┏{'┳'.join(rule)}┓"
    yield from _lines([[column.name] for column in columns], columns, widths, "┃")
    yield f"┡{'╇'.join(rule)}┩"
    for cells in zip(*(column.cells for column in columns), strict=True):
        yield from _lines(cells, columns, widths, "│")
    yield f"└{'┴'.join('─' * (wide + 2) for wide in widths)}┘"


def _widths(columns: Sequence[_Column], room: int) -> list[int]:
    """Give each column what it needs at least, and share out the rest; those that need little more have it first."""
    widths = [column.least for column in columns]
    rest = room - sum(widths)
    wanting = sorted(range(len(columns)), key=lambda number: columns[number].width - widths[number])
    for place, number in enumerate(wanting):
        more = min(columns[number].width - widths[number], rest // (len(columns) - place))
        widths[number] += more
        rest -= more
    return widths


def _lines(cells: Sequence[list[str]], columns: Sequence[_Column], widths: Sequence[int], border: str) -> Iterator[str]:
    """Yield the lines of a row."""
    folded = [
        cell if len(cell) == 1 and _length(cell[0]) <= wide else [part for line in cell for part in _folded(line, wide)]
        for cell, wide in zip(cells, widths, strict=True)
    ]
    for number in range(max(map(len, folded))):
        parts = []
        for cell, column, wide in zip(folded, columns, widths, strict=True):
            text = cell[number] if number < len(cell) else ""
            space = " " * (wide - _length(text))
            parts.append(f"{space}{text}" if column.is_number else f"{text}{space}")
        yield f"{border} {f' {border} '.join(parts)} {border}"


def _folded(line: str, width: int) -> Iterator[str]:
    """Yield the lines that a line becomes; a break takes the place of the spaces that were there."""
    if _length(line) <= width:
        yield line
        return
    now = ""
    for word in line.split():
        if now and _length(now) + 1 + _length(word) > width:
            yield now
            now = word
        else:
            now = f"{now} {word}" if now else word
    yield now


def _records(columns: Sequence[_Column]) -> Iterator[str]:
    """Yield a line for each column of each row, and an empty one between two rows."""
    label = max(_length(column.name) for column in columns)
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        if number:
            yield ""
        for column, cell in zip(columns, cells, strict=True):
            first, *others = cell
            yield f"{column.name}{' ' * (label - _length(column.name))}  {first}".rstrip()
            yield from (f"{' ' * label}  {line}".rstrip() for line in others)
