"""Texts in which words, separators and their look-alikes meet, for tests of segments and superwords."""

from __future__ import annotations

from hypothesis import strategies as st
from texts import texts as any_texts

TRICKY = [
    "l'acqua dell'anno, che e' un po' d'olio,ma senz'altro; l''un l'altro 'l 's 'st x's's 'Re'LL'lL x'sopra a'ſx",
    "It's fine, isn't it? They've 1990's are, DON'T 'tis rock'n'roll o'clock, y'all'd've, the dogs' bone's, ' x",
    "l’uomo dell’È un’ ’s ’ a’\u2019b x\u2018y e ’ , ’ che, ’che,’che a\u2060b a\u2019",
    " a a  a a, a,  a ,a ,, a,, a, a,\u00a0a\u00a0a a\u2009a \u00e0 a \u00e0, a \u2019 , a",
    "perche\u0301 no, e\u0301 a\u0301'a e\u0300, x \u0301 x, \u0301x 12 a 1a, a1 a, 1'a a'1 ½ a",
    "日本 日本, 日本'日 日’本 я, да и'ды ʰ a ǅ a \U0001d400 a, \U0001d400' \U00010400'\U00010400",
    "a,", "a, ", "a' ", "a'", " a", ", a", "' a", "a,\n a", "a, \na", "a\n, a", "a ", "a’", "a\u2018", "’a", ",'a a",
]  # fmt: skip

LETTERS = [
    "l",
    "s",
    "S",
    "ſ",
    "re",
    "ll",
    "acqua",
    "Che",
    "à",
    "\u0301",
    "日",
    "\U00010400",
    "7",
    "½",
    "\u2c60",
]
MARKS = ["'", "''", "’", "\u2018", ",", ", ", " ", "  ", "\n", "\u00a0", "\u2009", ".", "«", "'s", "'LL", "…"]
PIECES = st.sampled_from(LETTERS + MARKS)
texts = st.one_of(st.lists(PIECES, max_size=30).map("".join), any_texts)
"""Text in which letters, separators and their look-alikes interact, or any text."""
