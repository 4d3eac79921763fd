"""Tables and pictures for notebooks and the page, without a script; what comes from a store is text, never markup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from typing import Any

_MOST_CHARACTERS = 200


def table_html(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows under columns; a long text is cut."""
    head = "".join(f"<th>{_text(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_text(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><caption>{_text(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def strip_svg(
    counts: Sequence[int], *, label: str, bins: int = 512, address: Callable[[int], str] | None = None
) -> str:
    """Return a strip with a cell for each count, darker where it is higher; many neighbours share a cell.

    A cell is a link to the `address` of its highest count, if there is one. The strip has no style and no script of its
    own, and takes the colour of the text around it.
    """
    cells = min(bins, len(counts))
    bounds = [number * len(counts) // cells for number in range(cells + 1)] if cells else []
    means = [sum(counts[low:high]) / (high - low) for low, high in pairwise(bounds)]
    most = max(means, default=0) or 1
    parts = []
    for number, ((low, high), mean) in enumerate(zip(pairwise(bounds), means, strict=True)):
        title = f"key group {low}: {mean:,.10g} {_text(label)}"
        highest = max(range(low, high), key=counts.__getitem__)
        if high - low > 1:
            title = f"key groups {low} to {high - 1}: {mean:,.10g} {_text(label)} on average; {highest} has most"
        cell = (
            f'<rect x="{number}" y="0" width="1" height="1" fill="currentColor" '
            f'fill-opacity="{0.06 + 0.94 * mean / most if mean else 0.0:.3f}"><title>{title}</title></rect>'
        )
        # The fullest are links below it as well: nobody steps through hundreds of them by the keyboard.
        parts.append(cell if address is None else f'<a href="{escape(address(highest))}" tabindex="-1">{cell}</a>')
    role = 'role="img"' if address is None else 'role="group"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="strip" viewBox="0 0 {max(cells, 1)} 1" width="100%" '
        f'height="44" preserveAspectRatio="none" {role} aria-label="{_text(label)} by key group">'
        f"{''.join(parts)}</svg>"
    )


def load_svg(minutes: Sequence[tuple[float, float]], *, label: str) -> str:
    """Return two bars for each minute, busy above and blocked below a line, each of a share of 0 to 1."""
    parts = []
    for number, (busy, blocked) in enumerate(minutes):
        for share, y, height in ((busy, 10 * (1 - busy), 10 * busy), (blocked, 10, 10 * blocked)):
            if share:
                opacity = 0.75 if y < 10 else 0.35
                parts.append(
                    f'<rect x="{number}" y="{y:.2f}" width="0.9" height="{height:.2f}" fill="currentColor" '
                    f'fill-opacity="{opacity}"/>'
                )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="load" viewBox="0 0 60 20" width="180" height="40" '
        f'preserveAspectRatio="none" role="img" aria-label="{_text(label)}"><title>{_text(label)}</title>'
        f'<path d="M0 10H60" stroke="currentColor" stroke-width="0.2"/>{"".join(parts)}</svg>'
    )


_NODE_WIDTH, _NODE_HEIGHT, _GAP_X, _GAP_Y = 200, 64, 90, 18


def graph_svg(nodes: Sequence[tuple[str, Sequence[str], float]], edges: Sequence[tuple[str, str, str, float]]) -> str:
    """Return a graph from left to right: boxes with a name and lines below it, and arrows with what they carry.

    A box has a share of 0 to 1 that fills it, and an arrow one that makes it thicker; the classes `busy-0` to `busy-4`
    and `blocked-0` to `blocked-4` give a style sheet the same in fourths.
    """
    layers = _layers([node[0] for node in nodes], [edge[:2] for edge in edges])
    taken: dict[int, int] = {}
    places = {}
    for name, *_ in nodes:
        row = taken.get(layers[name], 0)
        taken[layers[name]] = row + 1
        places[name] = layers[name] * (_NODE_WIDTH + _GAP_X) + 2, row * (_NODE_HEIGHT + _GAP_Y) + 2
    parts = []
    for origin, target, label, blocked in edges:
        (x, y), (to_x, to_y) = places[origin], places[target]
        x, y, to_y = x + _NODE_WIDTH, y + _NODE_HEIGHT // 2, to_y + _NODE_HEIGHT // 2
        middle = (x + to_x) // 2
        parts.append(
            f'<path d="M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}" fill="none" stroke="currentColor" '
            f'stroke-width="{1 + 3 * blocked:.1f}" class="blocked-{_fourths(blocked)}"/>'
            f'<circle cx="{to_x}" cy="{to_y}" r="3" fill="currentColor"/>'
            f'<text x="{middle}" y="{(y + to_y) // 2 - 5}" text-anchor="middle" font-size="11">{_text(label)}</text>'
        )
    for name, lines, busy in nodes:
        x, y = places[name]
        shown = name if len(name) <= _NODE_CHARACTERS else f"{name[:_NODE_CHARACTERS]}…"
        parts.append(
            f'<rect x="{x}" y="{y}" width="{_NODE_WIDTH}" height="{_NODE_HEIGHT}" rx="5" fill="currentColor" '
            f'fill-opacity="{0.25 * busy:.2f}" stroke="currentColor" class="busy-{_fourths(busy)}"/>'
            f'<text x="{x + 10}" y="{y + 19}" font-weight="bold">{_text(shown)}'
            f"<title>{_text(name)}</title></text>"
        )
        parts += [
            f'<text x="{x + 10}" y="{y + 36 + 16 * number}" font-size="11">{_text(line)}</text>'
            for number, line in enumerate(lines)
        ]
    width = (max(layers.values(), default=0) + 1) * (_NODE_WIDTH + _GAP_X) - _GAP_X + 8
    height = max(taken.values(), default=1) * (_NODE_HEIGHT + _GAP_Y)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="Graph">{"".join(parts)}</svg>'
    )


_NODE_CHARACTERS = 22


def _fourths(share: float) -> int:
    return round(4 * min(max(share, 0.0), 1.0))


def _layers(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return how many steps each node is from a source, at most; a circle ends after as many as there are nodes."""
    layers = dict.fromkeys(names, 0)
    for _ in names:
        for origin, target in edges:
            layers[target] = max(layers[target], min(layers[origin] + 1, len(names) - 1))
    return layers


def _text(value: Any) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…")
