"""Values as the page shows them: numbers with units, times, rows within bounds, and texts in which all is seen."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup, escape

from arrowstate.clock import date_of
from arrowstate.query.row_text import values_of
from arrowstate.schema.types import is_bytes, is_text
from arrowstate.shown import bytes_text, shown

_UNKNOWN = "\N{EN DASH}"
_LONGEST = 500
"""Characters of a cell."""
_BYTES_SHOWN = 32
"""Of a value of bytes, on the page."""
_CELL_BYTES = 100_000
"""A value that is larger is cut, in JSON too."""
_ANSWER_BYTES = 8_000_000
"""What the rows of an answer take at most."""
_CELL_ROOM = 64
"""What a cell takes beside its value."""
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters but tabs and ends of lines, and what has no width or turns the direction of a text."""
_BLANK = re.compile(
    rf"(?:\s|{_UNSEEN.pattern}|[\u034f\u115f\u1160\u180b-\u180f\u200c\u200d\u2800\u3164\ufe00-\ufe0f\uffa0])*"
)
"""A text of which nothing can be seen."""


def as_bytes(size: int | None) -> str:
    """Return a size with its unit, as `1.2 MB`."""
    return _UNKNOWN if size is None else bytes_text(size)


def as_count(number: float | None) -> str:
    """Return a number with its thousands apart."""
    if number is None:
        return _UNKNOWN
    return f"{number:,}" if isinstance(number, int) else f"{number:,.0f}" if abs(number) >= 100 else f"{number:,.2f}"


def as_percent(share: float | None) -> str:
    """Return a share of 1 as percent."""
    return _UNKNOWN if share is None else f"{share * 100:.1f} %"


def as_duration(milliseconds: float | None) -> str:
    """Return a time span in the unit that fits."""
    if milliseconds is None:
        return _UNKNOWN
    sign, span = ("-" if milliseconds < 0 else ""), abs(milliseconds)
    if span < 10:
        return f"{sign}{span:.2f}".rstrip("0").rstrip(".") + " ms"
    if span < 1000:
        return f"{sign}{span:.0f} ms"
    if span < 60_000:
        return f"{sign}{span / 1000:.1f} s"
    seconds = round(span / 1000)
    for size, unit, part, part_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // part
            return f"{sign}{seconds // size} {unit}" + (f" {rest} {part_unit}" if rest else "")
    return f"{sign}{seconds} s"


def as_time(milliseconds: int | None) -> Markup:
    """Return a time as an element that the page's script shows in the reader's zone, with UTC on hover."""
    time = None if milliseconds is None else date_of(milliseconds)
    if time is None:
        return escape(_UNKNOWN)
    text = time.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        time.isoformat(timespec="milliseconds"), text, text
    )


def as_cell(value: Any) -> Markup:
    """Return a value of a row as text; a long one is cut, and its direction stays in its cell."""
    if value is None:
        return Markup('<span class="none">null</span>')
    if isinstance(value, Cut):
        begin = Markup("<bdi>{}</bdi>").format(as_text(value["_cut"])) if value["_cut"] else Markup("")
        return begin + Markup("… <i>{}</i>").format(as_bytes(value["_bytes"]))
    if isinstance(value, HexText) and len(value) > 2 * _BYTES_SHOWN:
        digits = value[: 2 * _BYTES_SHOWN]
        return Markup("<bdi>{}</bdi>… <i>{} bytes</i>").format(digits, f"{len(value) // 2:,}")
    value = shown(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    more = Markup("") if len(text) <= _LONGEST else Markup("… <i>{} characters</i>").format(f"{len(text):,}")
    return Markup("<bdi>{}</bdi>").format(as_text(text[:_LONGEST])) + more


def as_text(text: str) -> Markup:
    """Return a text in which all is seen: control characters by number, quotes where it begins or ends blank."""
    if _BLANK.fullmatch(text):
        inner = "".join(sign if sign == " " else _by_number(sign) for sign in text)
        return Markup('<span class="none">"{}"</span>').format(inner)
    parts, last = [], 0
    for found in _UNSEEN.finditer(text):
        mark = Markup('<span class="none">{}</span>').format(_by_number(found[0]))
        parts += [escape(text[last : found.start()]), mark]
        last = found.end()
    whole = Markup("").join([*parts, escape(text[last:])])
    quote = Markup('<span class="none">"</span>')
    return whole if text == text.strip() else quote + whole + quote


def _by_number(sign: str) -> str:
    return f"\\u{ord(sign):04x}" if ord(sign) < 1 << 16 else f"\\U{ord(sign):08x}"


def as_key(key: list[str]) -> Markup:
    """Return the columns of a key as the text of a link."""
    return Markup(", ").join(as_text(text[:_LONGEST]) for text in key)


class HexText(str):
    """The hexadecimal digits of a value of bytes: the page shows how they begin, JSON has them all."""

    __slots__ = ()


class Cut(dict[str, Any]):
    """The place of a value that is too large to be shown: its beginning in `_cut`, its size in `_bytes`.

    Nothing is told of the beginning of lists, maps and structs, which is null then.
    """

    def __init__(self, begin: str | None, size: int) -> None:
        super().__init__(_cut=begin, _bytes=size)


class Room:
    """How many bytes of rows an answer still takes."""

    def __init__(self, left: int = _ANSWER_BYTES) -> None:
        self.left = left


def cells(batch: pa.RecordBatch, room: Room) -> list[list[Any]]:
    """Return rows as lists of cells, until there is no more room; a value that is too large is a `Cut`."""
    takes = [_taking(column, room) for column in batch.columns]
    found: list[list[Any]] = []
    while len(found) < batch.num_rows and room.left > 0:
        place = len(found)
        found.append([take(place) for take in takes])
    return found


def _taking(column: pa.Array, room: Room) -> Callable[[int], Any]:
    """Return what gives the value at a place, and takes its room."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    as_json = _hex_text if is_bytes(column.type) else shown
    if column.nbytes <= _CELL_BYTES:
        values, each = values_of(column), _CELL_ROOM + column.nbytes // max(1, len(column))

        def take(place: int) -> Any:
            room.left -= each
            return as_json(values[place])

        return take

    def measured(place: int) -> Any:
        one = column.slice(place, 1)
        size = one.nbytes
        if size > min(_CELL_BYTES, room.left):
            room.left -= _CELL_ROOM + _LONGEST
            return Cut(_beginning(one), size)
        room.left -= _CELL_ROOM + size
        return as_json(values_of(one)[0])

    return measured


def _hex_text(value: bytes | None) -> HexText | None:
    return None if value is None else HexText(value.hex())


def _beginning(one: pa.Array) -> str | None:
    """Return how the only text or the only bytes of an array begin, None for other types."""
    if is_text(one.type):
        begin: str = pc.utf8_slice_codeunits(one, 0, _LONGEST)[0].as_py()
        return begin
    if is_bytes(one.type):
        data: bytes = pc.binary_slice(one, 0, _BYTES_SHOWN)[0].as_py()
        return data.hex()
    return None


def bounded(value: Any) -> Any:
    """Return a value that did not come as Arrow data, such as a property, cut as a cell is."""
    value = shown(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return value if len(text) <= _CELL_BYTES else Cut(text[:_LONGEST], len(text.encode("utf-8", "replace")))


def to_json(value: Any) -> bytes:
    """Return a value as JSON."""
    return json.dumps(shown(value), ensure_ascii=False).encode("utf-8", "replace")
