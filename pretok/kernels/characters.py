"""Names of the characters that compiled loops compare bytes with: `char.QUOTE` instead of 34.

Input and output: constants. Numba compares with a plain integer, so a name costs nothing where the loop runs. Compiled
code holds them, so `pretok.kernels.compile` compiles again when this module changes.
"""

from __future__ import annotations

TAB, LINE_FEED, RETURN, SPACE = b"\t\n\r "
QUOTE, APOSTROPHE, PLUS, COMMA, MINUS, DOT, SLASH, ZERO, NINE, COLON = b"\"'+,-./09:"
OPEN_BRACKET, BACKSLASH, CLOSE_BRACKET, OPEN_BRACE, CLOSE_BRACE = rb"[\]{}"
CAPITAL_E, CAPITAL_I, CAPITAL_N = b"EIN"
SMALL_D, SMALL_E, SMALL_F, SMALL_L, SMALL_M, SMALL_N = b"deflmn"
SMALL_R, SMALL_S, SMALL_T, SMALL_U, SMALL_V = b"rstuv"
