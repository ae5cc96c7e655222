"""Numbers as people write and read them: `1.2T`, `64MiB`, `12.3 M`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_BINARY = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_count(value: Any) -> Any:
    """`300B` -> 300_000_000_000, exactly; suffixes K M B G T (powers of 1000) and KiB MiB GiB TiB.

    What is no string is returned as it is. Raises ValueError for a string that is no whole number of that unit.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", value)
    factor = {**_DECIMAL, **_BINARY}.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{value!r} is not a count such as 1200000, 1.2T, 300B, 64MiB")
    count = Fraction(match[1].replace("_", "")) * factor
    if count.denominator != 1:
        raise ValueError(f"{value!r} is not a whole number")
    return int(count)


def parse_share(value: Any) -> Fraction:
    """`0.05`, `1/20`, `5e-2` or a number -> the exact fraction, 0 or more. Raises ValueError.

    Exact fractions hold every digit, so their length is bounded: 1e-99999999 would take minutes and gigabytes.
    """
    text = str(value).strip().lower()
    if re.fullmatch(r"[0-9]{1,30}/[0-9]{1,30}", text) and text.rpartition("/")[2].strip("0"):
        return Fraction(text)
    if re.fullmatch(r"([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})(e[+-]?[0-9]{1,2})?", text):
        return Fraction(text)
    raise ValueError(f"{text[:40]!r} is not a share such as 0.05 or 1/20")


def short(count: float) -> str:
    """1234567 -> '1.23 M': three significant digits and a decimal suffix."""
    for suffix, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= factor:
            return f"{count / factor:.3g} {suffix}"
    return f"{count:.3g}"
