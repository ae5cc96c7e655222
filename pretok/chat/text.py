"""Text inside of a template that knows where its characters are from.

Input: strings of a conversation, as `Text`, and what a template does with them. Output: a `Text` of parts: plain
strings are the template's, a `Part` is content.

The way taken. A `Text` is no `str`: nothing in Python, Jinja or a C library can take its characters without one of the
methods here, and each of them keeps what is content apart. What has no method raises `Untracked`, so a template that
does something unforeseen is refused, never misread; whatever is made of content is content. A subclass of `str`, as
markupsafe has one, fails the other way: `"".join`, `%` and every function in C would quietly make template of content.
Placeholders in the place of content fail where a template looks at it (`| trim`, `.split('</think>')`).

What a template asks about content (is it empty, does it hold `</think>`) is noted in a `Trace` with the answer. Two
conversations of the same shape that would answer alike are given the same by the template, which need not run again.
Whatever else it does here says that the run is no other's (`whole`), before it does it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from jinja2 import Undefined
from jinja2.exceptions import TemplateError

MOST_TEXT = 1 << 28
"""Characters of the longest text that a template may make."""
Ops = tuple[tuple[Any, ...], ...]
"""What was done to a value of a conversation: (name of a method of str, its arguments[, which of the results])."""


class Unusable(TemplateError):
    """A template needs what it cannot have, whatever the conversation: work with it does not begin."""


class Untracked(Unusable):
    """A template does something to content that is not followed."""


class Trace:
    """What a run of a template asked. guards: (slot, ops, name, arguments, answer); whole: False once something was
    done that cannot be asked of another conversation."""

    __slots__ = ("guards", "whole")

    def __init__(self) -> None:
        self.guards: list[tuple[int, Ops, str, tuple[Any, ...], Any]] = []
        self.whole = True


class Part(NamedTuple):
    """Content. slot: the number of the value of the conversation that it was made of; ops: how."""

    text: str
    slot: int
    ops: Ops = ()


class Border(NamedTuple):
    """Where {% generation %} begins or ends."""

    begins: bool


Piece = str | Part | Border
_ONE = (
    "strip",
    "lstrip",
    "rstrip",
    "upper",
    "lower",
    "title",
    "capitalize",
    "replace",
    "removeprefix",
    "removesuffix",
    "casefold",
    "swapcase",
)
_MANY = ("split", "rsplit", "splitlines", "partition", "rpartition")
_ASKED = (
    "startswith", "endswith", "find", "rfind", "index", "rindex", "count", "isdigit", "isalpha", "isspace", "isalnum",
    "isupper", "islower", "istitle", "isnumeric", "isdecimal", "isascii", "isidentifier", "isprintable",
)  # fmt: skip
STR_METHODS = frozenset((*_ONE, *_MANY, *_ASKED, "join"))
"""Methods of a string that a template may call."""


def _plain(values: Iterable[Any]) -> tuple[bool, tuple[Any, ...]]:
    """(whether there is no content among arguments, the arguments as strings)."""
    given = tuple(values)
    return not any(isinstance(value, Text) for value in given), tuple(
        value.value if isinstance(value, Text) else value for value in given
    )


class Text:
    """See above. It has the methods of `str` that templates use."""

    __slots__ = ("parts", "trace", "value")

    def __init__(self, parts: tuple[Piece, ...], trace: Trace) -> None:
        self.parts = parts
        self.trace = trace
        if len(parts) == 1 and type(parts[0]) is Part:
            self.value = parts[0].text
        else:
            self.value = "".join(
                p if isinstance(p, str) else p.text for p in parts if not isinstance(p, Border)
            )
            if len(self.value) > MOST_TEXT:
                raise TemplateError(f"it makes a text of more than {MOST_TEXT:,} characters")

    def _only(self) -> Part | None:
        """The part of a text that is one value of the conversation."""
        part = self.parts[0] if len(self.parts) == 1 else None
        return part if type(part) is Part else None

    def _made(self, part: Part, text: str, *op: Any) -> Text:
        return Text((Part(text, part.slot, (*part.ops, op)),), self.trace)

    def _one(self, name: str, *given: Any) -> Text:
        plain, args = _plain(given)
        self.trace.whole &= plain
        if (part := self._only()) is not None:
            return self._made(part, getattr(self.value, name)(*args), name, args)
        if name not in ("strip", "lstrip", "rstrip"):
            raise Untracked(f".{name}() of text that is made of template and content")
        left = len(self.value) - len(self.value.lstrip(*args)) if name != "rstrip" else 0
        right = len(self.value.rstrip(*args)) if name != "lstrip" else len(self.value)
        return self._cut(left, max(left, right))

    def _cut(self, start: int, stop: int) -> Text:
        """The characters start:stop, with their parts; a value that is cut to nothing stays as a place."""
        self.trace.whole = False
        parts: list[Piece] = []
        at = 0
        for part in self.parts:
            if isinstance(part, Border):
                parts.append(part)
                continue
            text = part if isinstance(part, str) else part.text
            kept = text[max(0, start - at) : max(0, stop - at)]
            at += len(text)
            if type(part) is Part:
                parts.append(Part(kept, part.slot, part.ops))
            elif kept:
                parts.append(kept)
        return Text(tuple(parts), self.trace)

    def _many(self, name: str, *given: Any) -> list[Text]:
        plain, args = _plain(given)
        if (part := self._only()) is None:
            raise Untracked(f".{name}() of text that is made of template and content")
        found = getattr(self.value, name)(*args)
        self.trace.whole &= plain
        self.trace.guards.append((part.slot, part.ops, name, args, len(found)))
        return [self._made(part, text, name, args, number) for number, text in enumerate(found)]

    def _ask(self, name: str, *given: Any) -> Any:
        plain, args = _plain(given)
        answer = getattr(self.value, name)(*args)
        if plain and (part := self._only()) is not None:
            self.trace.guards.append((part.slot, part.ops, name, args, answer))
        else:
            self.trace.whole = False
        return answer

    def join(self, values: Iterable[Any]) -> Any:
        """As of a str."""
        return join_with(self, values, self.trace)

    def __add__(self, other: Any) -> Any:
        return joined((self, _text_or_str(other)), self.trace)

    def __radd__(self, other: Any) -> Any:
        return joined((_text_or_str(other), self), self.trace)

    def __getitem__(self, at: Any) -> Text:
        self.trace.whole = False
        found = self.value[at]  # an error here is no text to Jinja, as it is of a str
        if (part := self._only()) is not None:
            return self._made(part, found, "__getitem__", (at,))
        start, stop, step = (at if isinstance(at, slice) else slice(at, at + 1 or None)).indices(
            len(self.value)
        )
        if step != 1:
            raise Untracked("steps in text that is made of template and content")
        return self._cut(start, max(start, stop))

    def __iter__(self) -> Iterator[Text]:
        self.trace.whole = False
        return (self[at] for at in range(len(self.value)))

    def __len__(self) -> int:
        return int(self._ask("__len__"))

    def __bool__(self) -> bool:
        return bool(self._ask("__ne__", ""))

    def __contains__(self, other: Any) -> bool:
        return bool(self._ask("__contains__", other))

    def __eq__(self, other: object) -> bool:
        return bool(isinstance(other, str | Text) and self._ask("__eq__", other))

    def through(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """What a function makes of the characters: a number, or a text that is content as a whole."""
        self.trace.whole = False
        made = function(self.value, *args, **named)
        if not isinstance(made, str):
            return made
        if (part := self._only()) is None:
            raise Untracked("a filter on text that is made of template and content")
        return Text((part._replace(text=made),), self.trace)

    def __hash__(self) -> int:
        self.trace.whole = False
        return hash(self.value)

    def __str__(self) -> str:
        raise Untracked("it makes a plain text of content")

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)


def _method(name: str, way: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Text, *args: Any) -> Any:
        return way(self, name, *args)

    return call


_COMPARED = ("__lt__", "__le__", "__gt__", "__ge__")
for _names, _way in ((_ONE, Text._one), (_MANY, Text._many), ((*_ASKED, *_COMPARED), Text._ask)):
    for _name in _names:
        setattr(Text, _name, _method(_name, _way))


def _text_or_str(value: Any) -> str | Text:
    if not isinstance(value, str | Text):
        raise TypeError(f"text and {type(value).__name__} cannot be added")
    return value


def joined(values: Iterable[Any], trace: Trace) -> Any:
    """Values in a row, as `"".join` puts them: a str where there is no content among them."""
    parts: list[Piece] = []
    for value in values:
        if type(value) is Text:
            parts.extend(value.parts)
        elif type(value) is Border:
            parts.append(value)
        elif text := value if type(value) is str else _printed(value):
            parts.append(text)
    if all(type(part) is str for part in parts):
        whole = "".join(parts)  # type: ignore[arg-type]
        if len(whole) > MOST_TEXT:
            raise TemplateError(f"it makes a text of more than {MOST_TEXT:,} characters")
        return whole
    return Text(tuple(parts), trace)


def _printed(value: Any) -> str:
    """`str` of what holds no content, as Jinja puts it."""
    if isinstance(value, Iterator) or (callable(value) and not isinstance(value, Undefined)):
        raise Untracked(f"it puts the address of a {type(value).__name__} into the text")
    return str(value)


def join_with(between: Any, values: Iterable[Any], trace: Trace) -> Any:
    """Values with a text between two of them."""
    row: list[Any] = []
    for value in values:
        row += [between, value] if row else [value]
    return joined(row, trace)


def to_json(value: Any, trace: Trace, **options: Any) -> Any:
    """What `json.dumps` gives. Where there is content in it, all of it is content, of the kind of the first."""
    found: list[Part] = []

    def plain(inner: Any) -> Any:
        match inner:
            case Text():
                found.extend(part for part in inner.parts if type(part) is Part)
                return inner.value
            case dict():
                return {plain(key): plain(item) for key, item in inner.items()}
            case list() | tuple():
                return [plain(item) for item in inner]
        return inner

    text = json.dumps(plain(value), ensure_ascii=options.pop("ensure_ascii", False), **options)
    if not found:
        return text
    trace.whole = False
    return Text((Part(text, found[0].slot),), trace)
