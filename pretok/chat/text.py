"""Strings inside a template that know which of their characters are content.

Input: the strings of a conversation, as `Text`, and what a template does with them. Output: a `Text` of parts, each of
which is written by the template or is content.

A `Text` is not a `str`: Python, Jinja and C libraries can get its characters only through the methods here, and each of
them keeps content apart. Anything else raises an error, so a template that does something unforeseen is refused and
never misread; what is derived from content is content. A subclass of `str`, like that of markupsafe, would fail
silently: `"".join`, `%` and every function in C would turn content into template. Placeholders for content would fail
where a template looks at it (`| trim`, `.split('</think>')`).

Everything that a template does with content is a method of `str` on one value. A `Trace` records each as a step: the
value that it made, or its answer. The steps are a program: run on the texts of another conversation of the same shape,
they give the values that the template would make, as long as the answers are the same (`replay`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from jinja2 import Undefined
from jinja2.exceptions import TemplateError

from pretok.chat.spans import ANSWER, TEMPLATE, THINKING

STR_METHODS = frozenset(
    (
        "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
        "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "lower",
        "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit",
        "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
    )
)  # fmt: skip
"""Methods of a string that a template may call, besides `join`."""
_THOUGHT = ("split", ("</think>",), 0)
"""How a template finds the thinking in an answer: (method, arguments, index of the result)."""
Step = tuple[int, str, tuple[Any, ...], Any]
"""(number of a value, method, arguments, its answer; None if it made a value)."""

MOST_REPLAYED = 64 << 20
"""Characters that a replay may go through."""


class Unusable(TemplateError):
    """A template cannot work with any conversation: it is refused before the work begins."""


class Untracked(Unusable):
    """A template does something with content that cannot be followed."""


class TracedText(NamedTuple):
    """Characters of one origin."""

    text: str
    kind: int = TEMPLATE
    message: int = -1
    """For content: the number of its message."""
    source: int = -1
    """For content: the number of its value in the trace."""
    inside: bool = False
    """Whether it is in a turn of the assistant."""
    marker: int = -1
    """The id of the added token that it is, -1 for text."""


class Trace:
    """What a run of a template does with the texts of a conversation.

    values: the texts, then the result of each step; whole: False once the template did something that is no step.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.steps: list[Step] = []
        self.whole = True
        self._numbers: dict[tuple[int, str, str], int] = {}

    def text(self, value: str, kind: int, message: int) -> Text:
        """Add a text of the conversation, or one that no step made."""
        self.values.append(value)
        return Text((TracedText(value, kind, message, len(self.values) - 1),), self)

    def step(self, source: int, name: str, args: tuple[Any, ...]) -> int:
        """Return the number of the result of a method of a value. Raises Untracked if an argument is content."""
        key = (source, name, repr(args))
        if key not in self._numbers:
            # If it raises, the template may go on, and that is no answer.
            whole, self.whole = self.whole, False
            result = getattr(self.values[source], name)(*args)
            self.whole = whole
            self._numbers[key] = len(self.values)
            self.values.append(result)
            self.steps.append(
                (source, name, args, None if isinstance(result, str | list | tuple) else result)
            )
        return self._numbers[key]


def replay(steps: Sequence[Step], texts: Sequence[str]) -> Sequence[Any] | None:
    """Return the values of a trace for the texts of another conversation.

    None if an answer differs, or if it is much work.
    """
    if not steps:
        return texts
    values: list[Any] = [*texts]
    work = 0
    try:
        for source, name, args, answer in steps:
            # Only `replace` makes a text much longer. The limits of a template do not hold here, but where it runs.
            work += len(values[source]) * (1 + len(args[1]) if name == "replace" else 1)
            if work > MOST_REPLAYED:
                return None
            result = getattr(values[source], name)(*args)
            if answer is not None and result != answer:
                return None
            values.append(result)
    except (IndexError, ValueError):
        return None
    return values


class Text:
    """A string of parts; see above."""

    __slots__ = ("parts", "trace", "value")

    def __init__(self, parts: tuple[TracedText, ...], trace: Trace) -> None:
        self.parts = parts
        self.trace = trace
        self.value = "".join([part.text for part in parts])

    def method(self, name: str, *args: Any) -> Any:
        """Return the result of a method of `str`: content if it is text, else an answer."""
        if len(self.parts) != 1 or (part := self.parts[0]).source < 0:
            return self._mixed(name, args)
        number = self.trace.step(part.source, name, args)
        result = self.trace.values[number]
        if isinstance(result, str):
            return self._of(part, number)
        if not isinstance(result, list | tuple):
            return result
        # The number of parts is an answer, too: a text that splits into more of them is rendered by the
        # template.
        self.trace.step(number, "__len__", ())
        kinds = [
            THINKING if part.kind == ANSWER and (name, args, at) == _THOUGHT else part.kind
            for at in range(len(result))
        ]
        return [
            self._of(part._replace(kind=kind), self.trace.step(number, "__getitem__", (at,)))
            for at, kind in enumerate(kinds)
        ]

    def _of(self, part: TracedText, number: int) -> Text:
        return Text((part._replace(text=self.trace.values[number], source=number),), self.trace)

    def _mixed(self, name: str, args: tuple[Any, ...]) -> Any:
        """Return the same for text with several parts. It can only be stripped, part by part from its ends."""
        if name not in ("strip", "lstrip", "rstrip"):
            self.trace.whole = False
            result = getattr(self.value, name)(*args)
            if isinstance(result, str | list | tuple):
                raise Untracked(f".{name}() of text that is made of template and content")
            return result
        parts = list(self.parts)
        for side, order in (("lstrip", range(len(parts))), ("rstrip", reversed(range(len(parts))))):
            for at in order if name in (side, "strip") else ():
                if parts[at].source < 0:
                    parts[at] = parts[at]._replace(text=getattr(parts[at].text, side)(*args))
                    left = bool(parts[at].text)
                else:  # content that is stripped to nothing stays, as an empty part
                    kept = Text((parts[at],), self.trace).method(side, *args)
                    parts[at], left = kept.parts[0], bool(kept)
                if left:
                    break
        return Text(tuple(parts), self.trace)

    def __add__(self, other: Any) -> Any:
        return joined((self, other), self.trace) if isinstance(other, str | Text) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return joined((other, self), self.trace) if isinstance(other, str) else NotImplemented

    def __getitem__(self, at: Any) -> Any:
        return self.method("__getitem__", at)

    def __iter__(self) -> Iterator[Text]:
        return (self[at] for at in range(len(self)))

    def __len__(self) -> int:
        return int(self.method("__len__"))

    def __bool__(self) -> bool:
        return bool(self.method("__ne__", ""))

    def __contains__(self, other: Any) -> bool:
        return bool(self.method("__contains__", other))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Text):
            self.trace.whole = False
            return self.value == other.value
        return isinstance(other, str) and bool(self.method("__eq__", other))

    def __hash__(self) -> int:
        self.trace.whole = False
        return hash(self.value)

    def __str__(self) -> str:
        raise Untracked("it turns content into plain text")

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)


def joined(values: Iterable[Any], trace: Trace) -> Any:
    """Join values like `"".join`; a str if there is no content among them."""
    parts: list[TracedText] = []
    tracked = False
    for value in values:
        if isinstance(value, Text):
            tracked = True
            parts += value.parts
        elif text := printed(value):
            parts.append(TracedText(text))
    return Text(tuple(parts), trace) if tracked else "".join(part.text for part in parts)


def printed(value: Any) -> str:
    """Return `str` of a value without content, as Jinja prints it. Raises Untracked for content inside it."""
    if isinstance(value, Iterator) or (callable(value) and not isinstance(value, Undefined)):
        raise Untracked(f"it puts the address of a {type(value).__name__} into the text")
    return str(value)


def join_with(between: Any, values: Iterable[Any], trace: Trace) -> Any:
    """Join values with a text between them."""
    row: list[Any] = []
    for value in values:
        row += [between, value] if row else [value]
    return joined(row, trace)


def to_json(value: Any, trace: Trace, **options: Any) -> Any:
    """Do `json.dumps`. If the value contains content, the whole result is content, of the kind of the first."""
    contents: list[TracedText] = []

    def plain(inner: Any) -> Any:
        match inner:
            case Text():
                contents.extend(part for part in inner.parts if part.source >= 0)
                return inner.value
            case dict():
                return {plain(key): plain(item) for key, item in inner.items()}
            case list() | tuple():
                return [plain(item) for item in inner]
        return inner

    # Escaped content is no longer the text of a value, so this is no step that can be replayed.
    text = json.dumps(plain(value), ensure_ascii=options.pop("ensure_ascii", False), **options)
    if not contents:
        return text
    trace.whole = False
    return trace.text(text, contents[0].kind, contents[0].message)
