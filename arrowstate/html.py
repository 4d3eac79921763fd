"""Tables for notebooks, as HTML without a script; all that comes from a store is text, never markup."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

__all__ = ["table_html"]

_MOST_CHARACTERS = 200


def table_html(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows under columns; a long text is cut.

    Examples
    --------
    >>> table_html("people", ["name"], [["<b>ann</b>"]])
    '<table><caption>people</caption><thead><tr><th>name</th></tr></thead><tbody><tr><td>&lt;b&gt;ann&lt;/b&gt;</td>\
</tr></tbody></table>'
    """
    head = "".join(f"<th>{_text(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_text(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><caption>{_text(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…")
