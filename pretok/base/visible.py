"""Texts from outside (documents, kept values, file names) -> texts that are safe to show.

Input: any text. Output: the same with its control characters spelled out, so that none moves a cursor, colours a
terminal, turns the direction of what follows or stands raw in a page. Everything that a person reads passes here.
What may be secret of a URL, user and password before the host and all behind `?`, is masked in what is kept or told.
"""

from __future__ import annotations

import re
from typing import Any

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


_USER = re.compile(r"(?<=\w)(:/{1,2})[^\s/]*@")  # a Path has made `s3:/bucket` of `s3://bucket`
_QUERY = re.compile(r"""(?<=\w)(:/{1,2}[^\s?]*)\?\S*?(?=[]'")},.;:]*(?:\s|$))""")


def masked(value: Any) -> Any:
    """A text in which every URL has `***` in the place of user and password, and of its query; so it is done to all
    texts inside of lists and tables. Done twice it changes nothing more."""
    match value:
        case str() if ":/" in value:
            return _QUERY.sub(r"\1?***", _USER.sub(r"\1***@", value))
        case dict():
            return {key: masked(item) for key, item in value.items()}
        case list() | tuple():
            return [masked(item) for item in value]
    return value
