"""Numbers -> inline SVG that follows the page's colours: no library, no script, readable when printed.

Input: series of points or labelled values. Output: SVG as text. Colours are the classes s0 to s5 of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from pretok.base.units import human

WIDTH, HEIGHT = 720, 220
LEFT, BOTTOM, TOP = 64, 28, 12
MOST_LABELS = 8
"""Of bars: more would not fit on a phone."""


def ticks(low: float, high: float, *, whole: bool = False, around: bool = False) -> list[float]:
    """At most six round numbers from low to high, whose distance is 1, 2 or 5 times a power of ten.

    whole: no fractions; around: the first is at most low, the last at least high.
    """
    least = max((high - low) / 5, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= least * (1 - 1e-9))
    return multiples(low, high, step, around=around)


def whole_ticks(low: float, high: float) -> list[float]:
    """`ticks` of steps, or of powers of ten."""
    return ticks(low, high, whole=True)


def multiples(low: float, high: float, step: float, *, around: bool = False) -> list[float]:
    """The multiples of `step` from low to high, or the next ones around them."""
    first, last = (math.floor, math.ceil) if around else (math.ceil, math.floor)
    slack = -1e-9 if around else 1e-9  # a bound that misses a multiple by rounding is that multiple
    return [number * step for number in range(first(low / step - slack), last(high / step + slack) + 1)]


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    x_name: str,
    y_name: str,
    label: Callable[[float], str] = human,
    x_ticks: Callable[[float, float], list[float]] = whole_ticks,
    *,
    zero: bool = False,
    whole: bool = False,
) -> str:
    """Curves over one x axis, named when pointed at; "" without a point.

    label: of x values; x_ticks: which of them, from the first to the last, have one; zero: the y axis begins at 0;
    whole: it has no fractions.
    """
    points = [point for curve in series.values() for point in curve]
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x0, x1, y0, y1 = min(xs), max(xs), 0.0 if zero else min(ys), max(ys)
    x1, y1 = (x1 if x1 > x0 else x0 + 1), (y1 if y1 > y0 else y0 + 1)
    heights = ticks(y0, y1, whole=whole, around=True)
    y0, y1 = heights[0], heights[-1]

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - 12),
            HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - BOTTOM - TOP),
        )

    parts = [_grid([(at(x0, y)[1], y) for y in heights], f"{y_name} over {x_name}")]
    for x in x_ticks(x0, x1):
        place = at(x, y0)[0]
        parts.append(_tick(place, HEIGHT - 10, "end" if place > WIDTH - 40 else "middle", label(x)))
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
    heights = ticks(0, highest, whole=True, around=True)
    full = (HEIGHT - BOTTOM - TOP) / heights[-1]
    parts = [_grid([(HEIGHT - BOTTOM - value * full, value) for value in heights], y_name)]
    for number, (name, value) in enumerate(values):
        height = value * full
        x, y = LEFT + number * width, HEIGHT - BOTTOM - height
        parts.append(
            f'<rect class="bar s0" x="{x + 1:.1f}" y="{y:.1f}" width="{max(1.0, width - 2):.1f}" height="{height:.1f}">'
            f"<title>{escape(name)}: {value:,.0f}</title></rect>"
        )
        if number % max(1, math.ceil(len(values) / MOST_LABELS)) == 0:
            parts.append(_tick(x + width / 2, HEIGHT - 10, "middle", name))
    return _svg("".join(parts), y_name)


def _grid(heights: Sequence[tuple[float, float]], title: str) -> str:
    """A line across the picture at each (y, value), and the title that is shown when it is pointed at."""
    parts = [f"<title>{escape(title)}</title>"]
    for y, value in heights:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_tick(LEFT - 6, y + 4, "end", human(value)))
    return "".join(parts)


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
