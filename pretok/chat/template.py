"""A chat template in Jinja, run in a sandbox over strings that know what is content.

Input: the source of a template as transformers takes it, its variables, and conversations whose strings are `Text`.
Output: the parts of its output, in order; TemplateError if it fails or refuses.

A template may call only the filters and methods below. Its output is that of transformers: the options, filters and
functions are the same (transformers 5.23, utils/chat_template_utils.py).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nativetypes import NativeCodeGenerator
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pretok.base.errors import PretokError
from pretok.chat.text import (
    STR_METHODS,
    Text,
    Trace,
    TracedText,
    Untracked,
    Unusable,
    join_with,
    joined,
    printed,
    to_json,
)

_OF_JINJA = (
    "abs", "batch", "count", "d", "default", "dictsort", "first", "groupby", "indent", "items", "last", "length",
    "list", "map", "max", "min", "reject", "rejectattr", "reverse", "round", "select", "selectattr", "slice", "sort",
    "sum", "title",
)  # fmt: skip
"""Jinja's own filters. On content they do the same as on text, through the methods of `Text`, or fail: content has no
order and does not become a `str`."""
_OF_NUMBERS = ("float", "int")
"""Jinja's own filters that must not get content."""
_OF_TEXT = {name: name for name in ("capitalize", "lower", "replace", "upper")} | {"trim": "strip"}
"""Filters that call a method of a string."""


class DateNeeded(Unusable):
    """A template asks for the date and the recipe has none."""


class _Code(NativeCodeGenerator):
    """Generates code without `str()` around output, and with our own concatenation for `~`."""

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:  # noqa: N802 - Jinja's name
        # Jinja would join by `str`, and the result would not know which of its bytes are content.
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Generation(Extension):
    """`{% generation %}`, as transformers has it."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's way

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        parser.environment.generation = True
        return nodes.CallBlock(self.call_method("said"), [], [], body).set_lineno(line)

    def said(self, caller: Any) -> Text:
        """Return the text between the tags, marked as inside an answer."""
        output, trace = caller(), self.environment.trace  # type: ignore[attr-defined]
        parts = output.parts if isinstance(output, Text) else (TracedText(output),)
        return Text(tuple(part._replace(inside=True) for part in parts), trace)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Everything that a template may use. One run at a time."""

    code_generator_class = _Code
    intercepted_binops = frozenset(("+", "*", "%", "**"))  # so they are not computed by the compiler, either

    def __init__(self, date: str) -> None:
        self.trace = Trace()
        self.generation = False
        self._date = date
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters = {
            **{name: self.filters[name] for name in _OF_JINJA},
            **{name: _without_content(name, self.filters[name]) for name in _OF_NUMBERS},
            **{name: partial(_method, method) for name, method in _OF_TEXT.items()},
            "join": self._join,
            "safe": _string,
            "string": _string,
            "tojson": lambda value, **options: to_json(value, self.trace, **options),
        }
        self.tests |= {
            "sameas": _without_content("sameas", self.tests["sameas"]),
            "string": lambda value: isinstance(value, str | Text),
            "sequence": lambda value: isinstance(value, str | Text | list | tuple | dict),
        }
        self.globals |= {"raise_exception": _raise, "strftime_now": self._strftime_now}
        # These depend on Jinja's names, or on chance.
        del self.tests["filter"], self.tests["test"], self.globals["lipsum"]

    def concat(self, values: Iterable[Any]) -> Any:
        return joined(values, self.trace)

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self._of_text(obj, attribute) if type(obj) in (str, Text) else super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) in (str, Text) and isinstance(argument, str):
            return self._of_text(obj, argument)
        # What is looked up by content depends on more than the conversation's shape: this output is not kept for
        # others.
        if isinstance(argument, Text):
            self.trace.whole = False
            if hasattr(obj, argument.value) and not (isinstance(obj, dict) and argument in obj):
                raise Untracked("content names an attribute")
        return super().getitem(obj, argument)

    def _of_text(self, obj: Any, name: str) -> Any:
        """Return a method of a text, no other attribute; `join` is our own."""
        if name == "join":
            return lambda values: join_with(obj, values, self.trace)
        if name not in STR_METHODS:
            raise SecurityError(f"a text has no {name!r} here")
        return partial(_method, name, obj)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator in ("*", "%") and not all(isinstance(value, int | float) for value in (left, right)):
            raise Untracked(f"`{operator}` on text")
        if operator == "+" and type(left) is str and type(right) is str:
            return joined((left, right), self.trace)
        return super().call_binop(context, operator, left, right)

    def _join(self, values: Iterable[Any], between: Any = "", attribute: Any = None) -> Any:
        if attribute is not None:
            values = (self.getitem(value, attribute) for value in values)
        return join_with(between, values, self.trace)

    def _strftime_now(self, form: str) -> str:
        if not self._date:
            raise DateNeeded("it asks for the date")
        return datetime.date.fromisoformat(self._date).strftime(form)


def _raise(message: Any) -> None:
    raise TemplateError(message.value if isinstance(message, Text) else str(message))


def _string(value: Any) -> Any:
    return value if isinstance(value, Text) else printed(value)


def _method(name: str, value: Any, *args: Any) -> Any:
    """Call a method of a text, content or not."""
    text = _string(value)
    return text.method(name, *args) if isinstance(text, Text) else getattr(text, name)(*args)


def _without_content(name: str, apply: Any) -> Any:
    def applied(value: Any, *args: Any) -> Any:
        if Text in map(type, (value, *args)):
            raise Untracked(f"`{name}` of content")
        return apply(value, *args)

    return applied


@contextmanager
def _template_errors() -> Iterator[None]:
    """Raise a TemplateError for whatever a template raises."""
    try:
        yield
    except (TemplateError, PretokError, MemoryError):  # also of a signal, or of a limit
        raise
    except RecursionError:
        raise TemplateError("it is nested too deeply, or calls itself without end") from None
    except Exception as error:
        raise TemplateError(f"{type(error).__name__}: {error}") from None


class ChatTemplate:
    """A compiled template. Raises TemplateError if it does not compile.

    variables: for every conversation, such as `bos_token`, tools and switches; date: what `strftime_now` formats, as
    YYYY-MM-DD, "" if there is none; generation: whether the template has generation tags.
    """

    def __init__(self, source: str, variables: Mapping[str, Any], date: str = "") -> None:
        self._sandbox = _Sandbox(date)
        self._variables = {"tools": None, "documents": None, **variables}
        with _template_errors():
            self._template = self._sandbox.from_string(source)
        self.generation = self._sandbox.generation

    def run(
        self, messages: list[dict[str, Any]], trace: Trace, prompt: bool = False
    ) -> tuple[TracedText, ...]:
        """Render messages in parts. prompt: with the beginning of an answer after them.

        Raises TemplateError for whatever the template raises.
        """
        self._sandbox.trace = trace
        variables = {**self._variables, "messages": messages, "add_generation_prompt": prompt}
        with _template_errors():
            output = joined(self._template.root_render_func(self._template.new_context(variables)), trace)
        return output.parts if isinstance(output, Text) else (TracedText(output),)
