"""Texts from outside (documents, kept values, file names) -> texts that are safe to show.

Input: any text. Output: the text with its control characters spelled out, so that none moves the cursor, colours a
terminal or reverses the direction of writing. Every text that is shown passes through here. Possible secrets in URLs
(user and password, and the query) are masked in messages and logs.
"""

from __future__ import annotations

import re
from typing import Any

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters of ASCII and Latin-1, line separators, changes of direction, halves of surrogate pairs."""


def visible(text: str, keep: str = "\n\t") -> str:
    """Spell out the control characters of a text, except those in `keep`.

    A value inside a line keeps none, so that it cannot begin a new line.
    """
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keep else _spelled(found[0]), text)


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def visible_json(text: str) -> str:
    """Return JSON of the same value without raw control characters: `json.dumps` escapes only those of ASCII."""
    return _CONTROLS.sub(lambda found: found[0] if found[0] in "\n\t" else f"\\u{ord(found[0]):04x}", text)


_USER = re.compile(r"(?<=\w)(:/{1,2})[^\s/]*@")  # a Path has made `s3:/bucket` of `s3://bucket`
_QUERY = re.compile(r"""(?<=\w)(:/{1,2}[^\s?]*)\?\S*?(?=[]'")},.;:]*(?:\s|$))""")


def masked(value: Any) -> Any:
    """Put `***` in place of the user, password and query of every URL of a text; in lists and dicts, of all texts."""
    match value:
        case str() if ":/" in value:
            return _QUERY.sub(r"\1?***", _USER.sub(r"\1***@", value))
        case dict():
            return {key: masked(item) for key, item in value.items()}
        case list() | tuple():
            return [masked(item) for item in value]
    return value
