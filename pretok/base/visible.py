"""Texts from outside (documents, kept values, file names) -> texts that are safe to show.

Input: any text. Output: the same with its control characters spelled out, so that none moves a cursor, colours a
terminal, turns the direction of what follows or stands raw in a page. Everything that a person reads passes here.
"""

from __future__ import annotations

import re

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters of ASCII and Latin-1, line separators, changes of direction, halves of surrogate pairs."""


def visible(text: str, keep: str = "\n\t") -> str:
    """A text with its control characters spelled out, but for those in `keep`. A value that stands in a line of ours
    keeps none of them: it must not begin a line."""
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else _spelled(found[0]), text)


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def visible_json(text: str) -> str:
    """JSON of the same value without raw control characters, which `json.dumps` leaves above ASCII."""
    return _CONTROLS.sub(lambda found: found[0] if found[0] in "\n\t" else f"\\u{ord(found[0]):04x}", text)
