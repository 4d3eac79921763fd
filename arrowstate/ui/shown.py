"""Values as the page shows them: numbers with units, times, and what JSON can hold."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape
from rich import filesize

__all__ = ["as_bytes", "as_cell", "as_count", "as_duration", "as_percent", "as_time", "plain", "to_json"]

_UNKNOWN = "\N{EN DASH}"
_LONGEST = 500
"""Characters of a cell."""
_LAST_TIME_MS = 253_402_300_799_000


def as_bytes(size: int | None) -> str:
    """Return a size with its unit, as `1.2 MB`."""
    return _UNKNOWN if size is None else filesize.decimal(size)


def as_count(number: float | None) -> str:
    """Return a number with its thousands apart."""
    if number is None:
        return _UNKNOWN
    return f"{number:,}" if isinstance(number, int) else f"{number:,.0f}" if abs(number) >= 100 else f"{number:,.2f}"


def as_percent(share: float | None) -> str:
    """Return a share of 1 as percent."""
    return _UNKNOWN if share is None else f"{share * 100:.1f} %"


def as_duration(milliseconds: float | None) -> str:
    """Return a time span in the unit that fits.

    Examples
    --------
    >>> as_duration(0.25), as_duration(950), as_duration(61_000), as_duration(7_260_000)
    ('0.25 ms', '950 ms', '1 min 1 s', '2 h 1 min')
    """
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
    if milliseconds is None or not -62_135_596_800_000 <= milliseconds <= _LAST_TIME_MS:
        return escape(_UNKNOWN)
    time = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    text = time.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        time.isoformat(timespec="milliseconds"), text, text
    )


def as_cell(value: Any) -> Markup:
    """Return a value of a row as text; a long one is cut, and its direction stays in its cell."""
    if value is None:
        return Markup('<span class="none">null</span>')
    value = plain(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    more = Markup("") if len(text) <= _LONGEST else Markup("… <i>{} characters</i>").format(f"{len(text):,}")
    return Markup("<bdi>{}</bdi>").format(escape(text[:_LONGEST])) + more


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: bytes as hexadecimal digits, other types as text, NaN as null."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, decimal.Decimal):
        return int(value) if value.is_finite() and value.as_tuple().exponent == 0 else str(value)
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


def to_json(value: Any) -> bytes:
    """Return a value as JSON."""
    return json.dumps(plain(value), ensure_ascii=False).encode("utf-8", "replace")
