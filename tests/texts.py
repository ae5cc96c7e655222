"""Texts that pre-tokenizers get wrong, for tests: hand-made ones and a hypothesis strategy over all of Unicode."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

HARD = [
    "",
    " ",
    "'",
    "''s 'S 'ſ 'ſx 'Re 'LL 'lL 'l 'r 're've'm 'D'd don'T dell'arte L'",
    "l’uomo dell’È un’",
    "dell'acqua' ''a a''b ’n’ c’è'r' 'l' d'1 1'd l' uomo x’",
    "a\u0301e\u0300 \u0301\u0301x \u0301 !\u0301 \u0301ABC \u0301Abc 1\u0301 \n\u0301",
    "ǅungla ǅ ǄǅǆA ABCdef ABCDEF aBcDeF ABǅ日本ab日AB本 ʰaʰAʰ",
    "a\u0085b \u0085\u0085 c\u00a0d\u00a0\u00a0e\u2028f\u2029\u3000g\u1680h",
    "  \n \r\n\r\n   x \n\n y\t\tz \n",
    "x   ",
    "x \n ",
    "   x",
    "1234567 12 ½¾ ٣٤٥٦ ²³¹ⅷ 1a2b 日1本",
    "!?//\n/\r/ //// a/b \n/ !\n\n/x",
    "日本語テキスト、中文。한국어 русский Ελλάδα العربية हिन्दी ไทย",
    "👩‍👩‍👧‍👦🇮🇹 😀😀x ©®™ \ue000\U000f0000\uffff\U0010ffff",
    "\x00\x01\x1c\x1d\x1e\x1f\x7f\x80\x9f\u200b\u200d\ufeff",
    "perché città più È ÀÈÌÒÙ «ciao» — l'“altro”…",
    "aaaa" * 50 + "\n" * 9 + " " * 33 + "_" * 12,
]

ALPHABETS = st.sampled_from(
    [
        "'sSſtTrReEvVmMlLdD aÈ",
        " \t\n\r\u0085\u00a0\u2028\u3000x",
        "aA1 \u0301ǅʰ日!/'\n",
        "0٣½² a!",
        "perchéÀ'’ \n.,",
    ]
)
texts = st.one_of(
    st.text(max_size=60),
    st.text(st.characters(max_codepoint=0x2FF), max_size=60),
    ALPHABETS.flatmap(lambda letters: st.text(st.sampled_from(letters), max_size=60)),
)
"""Any text without surrogates: all of Unicode, Latin only, or drawn from a few letters that interact."""


def pack(documents: list[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Documents as (data, offsets), the form the compiled stages take."""
    encoded = [document.encode() for document in documents]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), offsets
