"""What two spellings of one text have in common: code points without case, accents and compatibility forms.

Input: `folding.txt`, made from Python's unicodedata, and the classes of `unicode`. Output: `fold_tables()`, what
compiled code looks a code point up in. `python -m pretok.kernels.folding` writes the file again.

A letter or number becomes its case-folded compatibility decomposition without marks (`Ä` a, `ﬁ` fi, `ß` ss, `²` 2); a
Latin letter that Unicode does not decompose becomes the one it is drawn over (`ø` o, `đ` d), `æ` ae, `œ` oe. Marks and
invisible format characters are passed over, everything else separates words. The file is kept and not computed where it
is used: two nodes with different versions of Python must agree. Composed Hangul syllables stay as they are, so text in
separate jamo is another text.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pretok.kernels.unicode import CASELESS, CODE_POINTS, LOWER, MARK, NUMBER, UPPER, class_table

FILE = Path(__file__).with_name("folding.txt")
HANGUL = range(0xAC00, 0xD7A4)

SEPARATOR = 0
PASSED_OVER = 1
SEVERAL = 1 << 31
"""Flag of an entry that stands for several code points: the rest is their place in the second table."""

_OVER = re.compile(r"LATIN (?:SMALL|CAPITAL) LETTER ([A-Z]) WITH .*(?:STROKE|HOOK|TAIL|BAR|LOOP|CURL)")
_LIGATURES = {"æ": "ae", "œ": "oe", "ı": "i"}
_APOSTROPHES = range(0x2B9, 0x2C0)
"""Letters by their class, apostrophes by their use."""
_INVISIBLE = (0xAD, 0x61C, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
"""Format characters: soft hyphens, joiners, marks of direction."""


def fold(character: str) -> str:
    """What a letter or number becomes, by unicodedata."""
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    folded = []
    for part in decomposed:
        if unicodedata.category(part)[0] in "LN" and ord(part) not in _APOSTROPHES:
            over = _OVER.match(unicodedata.name(part, ""))
            folded.append(over[1].lower() if over else _LIGATURES.get(part, part))
    return "".join(folded) or character


def write_folding(path: Path = FILE) -> None:
    """Write what letters and numbers become, where that is something else; a run of equal distances on one line."""
    lines = [f"# Unicode {unicodedata.unidata_version}, from Python's unicodedata"]
    runs: list[tuple[int, int, int]] = []
    for code in np.flatnonzero(class_table() & (UPPER | LOWER | CASELESS | NUMBER)).tolist():
        folded = fold(chr(code)) if code not in HANGUL else chr(code)
        if len(folded) > 1:
            lines.append(f"{code:04X} {' '.join(f'{ord(part):04X}' for part in folded)}")
        elif (distance := ord(folded) - code) and runs and runs[-1][1:] == (code - 1, distance):
            runs[-1] = (runs[-1][0], code, distance)
        elif distance:
            runs.append((code, code, distance))
    lines += [f"{first:04X}..{last:04X} {distance:+d}" for first, last, distance in runs]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


@cache
def fold_tables() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """(entry of every code point, code points of the entries that are several), both uint32 and read-only.

    An entry is SEPARATOR, PASSED_OVER, a code point, or SEVERAL | place: at that place of the second table stands how
    many code points follow.
    """
    classes = class_table()
    entries = np.where(classes & (UPPER | LOWER | CASELESS | NUMBER), np.arange(CODE_POINTS), SEPARATOR)
    entries = np.where(classes == MARK, PASSED_OVER, entries).astype(np.uint32)
    entries[list(_INVISIBLE)] = PASSED_OVER
    several: list[int] = []
    for line in FILE.read_text(encoding="ascii").splitlines()[1:]:
        where, *what = line.split()
        if ".." in where:
            first, last = (int(code, 16) for code in where.split(".."))
            entries[first : last + 1] = np.arange(first, last + 1) + int(what[0])
        else:
            entries[int(where, 16)] = SEVERAL | len(several)
            several += [len(what), *(int(code, 16) for code in what)]
    entries[list(_APOSTROPHES)] = SEPARATOR
    tables = entries, np.array(several, np.uint32)
    for table in tables:
        table.flags.writeable = False
    return tables


if __name__ == "__main__":
    write_folding()
