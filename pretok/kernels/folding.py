"""Folding: code points without case, accents and compatibility forms, so that two spellings of a text become equal.

Input: Python's unicodedata and the classes of `unicode`. Output: `fold_tables()`, the tables in which compiled code
looks up a code point, made in a fifth of a second when a process first needs them.

A letter or number becomes its case-folded compatibility decomposition without marks (`Ä` a, `ﬁ` fi, `ß` ss, `²` 2). A
Latin letter that Unicode does not decompose becomes its base letter (`ø` o, `đ` d), `æ` ae, `œ` oe. Marks and invisible
format characters are skipped; everything else separates words. Composed Hangul syllables stay as they are, so text in
separate jamo is another text. Versions of Python may differ in letters that one of them does not know.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

import numpy as np
import numpy.typing as npt

from pretok.kernels.unicode import CASELESS, CODE_POINTS, LOWER, MARK, NUMBER, UPPER, class_table

HANGUL = range(0xAC00, 0xD7A4)

SEPARATOR = 0
PASSED_OVER = 1
SEVERAL = 1 << 31
"""Flag of an entry for several code points: its other bits are their place in the second table."""

_OVER = re.compile(r"LATIN (?:SMALL|CAPITAL) LETTER ([A-Z]) WITH .*(?:STROKE|HOOK|TAIL|BAR|LOOP|CURL)")
_LIGATURES = {"æ": "ae", "œ": "oe", "ı": "i"}
_APOSTROPHES = range(0x2B9, 0x2C0)
"""Their Unicode class is letter, but they are used as apostrophes."""
_INVISIBLE = (0xAD, 0x61C, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
"""Format characters: soft hyphens, joiners, marks of direction."""


def fold(character: str) -> str:
    """Fold a letter or number, by unicodedata."""
    # Before and after folding: what a letter decomposes to may fold, and what it folds to may decompose.
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    folded = []
    for part in decomposed:
        if unicodedata.category(part)[0] in "LN" and ord(part) not in _APOSTROPHES:
            over = _OVER.match(unicodedata.name(part, ""))
            folded.append(over[1].lower() if over else _LIGATURES.get(part, part))
    return "".join(folded) or character


@cache
def fold_tables() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return (entry of every code point, code points of the entries for several), both uint32 and read-only.

    An entry is SEPARATOR, PASSED_OVER, a code point, or SEVERAL | place: at that place, the second table has the number
    of code points, and then these.
    """
    classes = class_table()
    entries = np.where(classes & (UPPER | LOWER | CASELESS | NUMBER), np.arange(CODE_POINTS), SEPARATOR)
    entries = np.where(classes == MARK, PASSED_OVER, entries).astype(np.uint32)
    entries[list(_INVISIBLE)] = PASSED_OVER
    several: list[int] = []
    for code in np.flatnonzero(classes & (UPPER | LOWER | CASELESS | NUMBER)).tolist():
        folded = chr(code) if code in HANGUL else fold(chr(code))
        if len(folded) == 1:
            entries[code] = ord(folded)
        else:
            entries[code] = SEVERAL | len(several)
            several += [len(folded), *map(ord, folded)]
    # After the loop, for which they are letters; `fold` leaves nothing of them and returns them as they are.
    entries[list(_APOSTROPHES)] = SEPARATOR
    tables = entries, np.array(several, np.uint32)
    for table in tables:
        # Every caller gets these two arrays.
        table.flags.writeable = False
    return tables
