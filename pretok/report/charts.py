"""Numbers -> inline SVG that follows the page's colours: no library, no script, readable when printed.

Enters: series of points or labelled values. Leaves: SVG as text. Colours are the classes s0 to s5 of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from pretok.base.units import short

WIDTH, HEIGHT = 720, 220
LEFT, BOTTOM, TOP = 64, 28, 12
TICKS = 4


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    x_name: str,
    y_name: str,
    label: Callable[[float], str] = short,
    *,
    zero: bool = False,
) -> str:
    """Curves over one x axis, named when pointed at; "" without a point.

    label: of x values; zero: the y axis begins at 0.
    """
    points = [point for curve in series.values() for point in curve]
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x0, x1, y0, y1 = min(xs), max(xs), 0.0 if zero else min(ys), max(ys)
    x1, y1 = (x1 if x1 > x0 else x0 + 1), (y1 if y1 > y0 else y0 + 1)

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - 12),
            HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - BOTTOM - TOP),
        )

    parts = [_axes(x0, x1, y0, y1, x_name, y_name, label)]
    for number, (name, curve) in enumerate(series.items()):
        path = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in curve)
        parts.append(
            f'<polyline class="line s{number % 6}" points="{path}"><title>{escape(name)}</title></polyline>'
        )
    return _svg("".join(parts), f"{y_name} over {x_name}") + _legend(list(series))


def bars(values: Sequence[tuple[str, float]], y_name: str) -> str:
    """One bar a label. "" when all are zero."""
    highest = max((value for _, value in values), default=0)
    if not highest:
        return ""
    width = (WIDTH - LEFT - 12) / len(values)
    parts = [_axes(0, 0, 0, highest, "", y_name, None)]
    for number, (name, value) in enumerate(values):
        height = value / highest * (HEIGHT - BOTTOM - TOP)
        x, y = LEFT + number * width, HEIGHT - BOTTOM - height
        parts.append(
            f'<rect class="bar s0" x="{x + 1:.1f}" y="{y:.1f}" width="{max(1.0, width - 2):.1f}" height="{height:.1f}">'
            f"<title>{escape(name)}: {value:,.0f}</title></rect>"
        )
        if number % max(1, math.ceil(len(values) / 12)) == 0:
            parts.append(_tick(x + width / 2, HEIGHT - 10, "middle", name))
    return _svg("".join(parts), y_name)


def _axes(
    x0: float, x1: float, y0: float, y1: float, x_name: str, y_name: str, label: Callable[[float], str] | None
) -> str:
    parts = []
    for tick in range(TICKS + 1):
        y = HEIGHT - BOTTOM - tick / TICKS * (HEIGHT - BOTTOM - TOP)
        value = y0 + (y1 - y0) * tick / TICKS
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>'
        )
        if label:
            x = LEFT + tick / TICKS * (WIDTH - LEFT - 12)
            text = escape(label(x0 + (x1 - x0) * tick / TICKS))
            anchor = "start" if tick == 0 else "end" if tick == TICKS else "middle"
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="{anchor}">{text}</text>'
            )
    return "".join(parts) + f"<title>{escape(y_name)}{escape(' over ' + x_name) if x_name else ''}</title>"


def _tick(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(inner: str, name: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">{inner}</svg>'


def _legend(names: list[str]) -> str:
    if len(names) < 2:
        return ""
    entries = "".join(
        f'<span><i class="key s{number % 6}"></i>{escape(name)}</span>' for number, name in enumerate(names)
    )
    return f'<p class="legend">{entries}</p>'
