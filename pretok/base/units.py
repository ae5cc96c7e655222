"""Numbers as people write and read them: `1.2T`, `64MiB`, `12.3 M`, `1 input`, `4 min`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

_FACTORS = {
    **{"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12},
    **{"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40},
}
_COUNT = re.compile(
    r"\s*([0-9][0-9_]{0,40}(?:\.[0-9]{1,20})?(?:[eE]\+?(?:[12]?[0-9]|30))?)\s*([A-Za-z]{0,3})\s*", re.ASCII
)
"""A count: its length and exponent are limited, as an exact fraction has every digit."""


def listed(items: Sequence[str], most: int, between: str = ", ", *, count: int | None = None) -> str:
    """List the first `most` items, and how many more there are: `a, b and 3 more`, or one per line.

    count: the number of items, if `items` does not have all of them.
    """
    shown = items[:most]
    more = (len(items) if count is None else count) - len(shown)
    joint = between if between.isspace() else " "
    return between.join(shown) + (f"{joint}and {more:,} more" if more > 0 else "")


def parse_count(value: Any) -> Any:
    """Parse a whole number exactly: `300B` -> 300_000_000_000.

    Suffixes are K M B G T (powers of 1000) and KiB MiB GiB TiB; `1e6` is read too. Values that are not strings are
    returned unchanged. Raises ValueError for a string that is not a whole number.
    """
    if not isinstance(value, str):
        return value
    match = _COUNT.fullmatch(value)
    factor = _FACTORS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{value[:60]!r} is not a count such as 1200000, 1e6, 1.2T, 300B, 64MiB")
    count = Fraction(match[1].replace("_", "")) * factor
    if count.denominator != 1:
        raise ValueError(f"{value!r} is not a whole number")
    return int(count)


def parse_length(value: Any) -> Any:
    """Parse a length in tokens, as `parse_count` does, except that `4k` is refused: it usually means 4,096."""
    count = parse_count(value)
    if isinstance(value, str) and value.rstrip().endswith(("k", "K")):
        raise ValueError(f"{value} is {count:,}; write {count * 128 // 125} or {value.rstrip()[:-1]}KiB")
    return count


def parse_share(value: Any) -> Fraction:
    """Parse `0.05`, `1/20`, `5e-2` or a number to the exact fraction, 0 or more. Raises ValueError.

    An exact fraction has every digit, so their number is limited: 1e-99999999 would take minutes and gigabytes.
    """
    text = str(value).strip().lower()
    if re.fullmatch(r"[0-9]{1,30}/[0-9]{1,30}", text) and text.rpartition("/")[2].strip("0"):
        return Fraction(text)
    if re.fullmatch(r"([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})(e[+-]?[0-9]{1,2})?", text):
        return Fraction(text)
    raise ValueError(f"{text[:40]!r} is not a share such as 0.05 or 1/20")


ROUNDING = Fraction(1, 1000)
"""Largest difference of a sum of weights from 1; they are scaled to 1."""


def scaled(weights: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Scale weights that add up to 1 within ROUNDING so that they add up exactly. Raises ValueError."""
    total = sum(weights.values(), Fraction(0))
    if abs(total - 1) > ROUNDING:
        shown = ", ".join(f"{name}={float(weight):g}" for name, weight in weights.items())
        right = ",".join(f"{name}={float(weight / total):.4g}" for name, weight in weights.items() if total)
        hint = right and f"; for these proportions write {right}"
        raise ValueError(f"the weights {shown} add up to {float(total):g}, not to 1{hint}")
    return {name: weight / total for name, weight in weights.items()}


def human(count: float) -> str:
    """Format a count with three significant digits and a decimal suffix: 1234567 -> '1.23 M'."""
    for suffix, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= 0.9995 * factor:  # 999,999 is 1 M, not "1e+03 k"
            return f"{count / factor:{'.3g' if abs(count) < 999.5 * factor else '.0f'}} {suffix}"
    return f"{count:.3g}"


def human_bytes(count: float) -> str:
    """Format a number of bytes: 2980000000 -> '2.98 GB'."""
    text = human(count).replace(" B", " G")
    return f"{text}B" if " " in text else f"{text} B"


def plural(number: int, noun: str) -> str:
    """Format a number with its noun: 1 -> '1 input', 2000 -> '2,000 inputs'."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """Format seconds in two units at most: '45 s', '4 min', '1 h 20 min', '2 d 3 h'."""
    if round(seconds) < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, days = minutes // 60, minutes // 1440
    if minutes < 60:
        return f"{minutes} min"
    if hours < 24:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def unit_name(source: str, append: int) -> str:
    """Name of a source or an append to it: `it`, and `it.1` for the first append."""
    return f"{source}.{append}" if append else source


def unit_words(unit: str) -> str:
    """Return the unit in words."""
    source, _, append = unit.partition(".")
    return f"{source}, append {append}" if append else source
