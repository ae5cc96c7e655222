"""The classes of code points that the patterns of `pretokenize` distinguish.

Input: `unicode.txt`, ranges probed from the tokenizers library, whose ids are the reference. Output: `class_table()`,
one byte of flags per code point. `python -m pretok.kernels.unicode` writes the file again from the installed library.

A code point has exactly one flag, or none if the Unicode version of the file does not assign it. The flags are
constants in compiled code, so `pretok.kernels.compile` compiles again when this module changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

CODE_POINTS = 0x110000
FILE = Path(__file__).with_name("unicode.txt")

UNASSIGNED = 0
UPPER = 1
LOWER = 2
CASELESS = 4
MARK = 8
NUMBER = 16
SPACE = 32
NEWLINE = 64
OTHER = 128

CLASSES: dict[str, tuple[int, str]] = {
    "upper": (UPPER, r"[\p{Lu}\p{Lt}]"),
    "lower": (LOWER, r"\p{Ll}"),
    "caseless": (CASELESS, r"[\p{Lm}\p{Lo}]"),
    "mark": (MARK, r"\p{M}"),
    "number": (NUMBER, r"\p{N}"),
    "space": (SPACE, r"[^\S\r\n]"),
    "newline": (NEWLINE, r"[\r\n]"),
    "other": (OTHER, r"[^\s\p{L}\p{M}\p{N}\p{Cn}]"),
}
"""Name in the file -> flag, and the regular expression that finds the members."""

Finder = Callable[[str, str], Iterable[str]]
"""(regular expression of a class, text) -> the pieces of the text that consist of members."""


def find_with_tokenizers(expression: str, text: str) -> list[str]:
    """Find as a `Finder`, by the tokenizers library."""
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(expression), "removed", invert=True)
    return [piece for piece, _ in split.pre_tokenize_str(text)]


def probe(find: Finder) -> npt.NDArray[np.uint8]:
    """Ask a regular expression engine for the class of every code point: uint8[CODE_POINTS] of flags."""
    table = np.zeros(CODE_POINTS, np.uint8)
    # Surrogates cannot be written in UTF-8, so the library is not asked about them: they stay unassigned.
    scalars = [*range(0xD800), *range(0xE000, CODE_POINTS)]
    blocks = ["".join(map(chr, scalars[i : i + 20_000])) for i in range(0, len(scalars), 20_000)]
    for flag, expression in CLASSES.values():
        members = "".join(piece for block in blocks for piece in find(expression, block))
        table[np.frombuffer(members.encode("utf-32-le"), np.uint32)] |= np.uint8(flag)
    return table


def write_classes(table: npt.NDArray[np.uint8], origin: str, path: Path = FILE) -> None:
    """Write the ranges of equal class, after a line with their origin."""
    names = {flag: name for name, (flag, _) in CLASSES.items()}
    starts = np.flatnonzero(np.diff(table.astype(np.int16), prepend=-1))
    ends = np.append(starts[1:], CODE_POINTS) - 1
    lines = [f"# {origin}"] + [
        f"{first:04X}..{last:04X} {names[int(table[first])]}"
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True)
        if table[first] != UNASSIGNED
    ]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


@cache
def class_table() -> npt.NDArray[np.uint8]:
    """Return the flags of every code point, uint8[CODE_POINTS], read-only."""
    table = np.zeros(CODE_POINTS, np.uint8)
    for line in FILE.read_text(encoding="ascii").splitlines()[1:]:
        span, name = line.split()
        first, last = span.split("..")
        table[int(first, 16) : int(last, 16) + 1] = CLASSES[name][0]
    # Every caller gets this one array.
    table.flags.writeable = False
    return table


def disputed_classes() -> npt.NDArray[np.uint8]:
    """Return a copy of `class_table` in which one more code point is UNASSIGNED.

    It is the one assigned code point that gigatoken classes otherwise: U+0295, a small letter for tokenizers and
    without case in a later Unicode.
    """
    table = class_table().copy()
    table[0x295] = UNASSIGNED
    return table


if __name__ == "__main__":
    import tokenizers

    probed = probe(find_with_tokenizers)
    write_classes(probed, f"Unicode 16.0.0, probed from tokenizers {tokenizers.__version__}")
