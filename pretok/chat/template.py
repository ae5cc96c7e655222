"""A chat template in Jinja, run in a sandbox over text that knows what is content.

Input: the source of a template as transformers takes it, its variables, conversations whose strings are `Text`. Output:
the pieces that it gives, in order; TemplateError where it fails, refuses or does not end.

What a template may call are the filters and methods below; each loop step and call is counted, so that none runs on.
Without content the result is that of transformers: the same options, filters and functions (transformers 5.23,
utils/chat_template_utils.py). `{% generation %}` is known and kept as borders.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent, do_reverse
from jinja2.nativetypes import NativeCodeGenerator
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from pretok.chat.text import (
    STR_METHODS,
    Border,
    Piece,
    Text,
    Trace,
    Untracked,
    Unusable,
    join_with,
    joined,
    to_json,
)

MOST_STEPS = 200_000
"""Steps of loops, and calls, in one run: some tenths of a second."""
FOLLOWED = frozenset(
    (
        "capitalize", "count", "d", "default", "first", "items", "join", "last", "length", "list", "lower", "map",
        "reject", "rejectattr", "replace", "reverse", "safe", "select", "selectattr", "string", "tojson", "trim",
        "upper", "!=", "==", "boolean", "defined", "eq", "equalto", "false", "in", "integer", "iterable", "mapping",
        "ne", "none", "number", "sequence", "true", "undefined",
    )
)  # fmt: skip
"""Filters and tests that ask nothing of content but what `text.Trace` notes. A template with any other runs anew for
each conversation, and no result of it is another's."""
_OF_CONTAINERS = (
    "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "reject", "rejectattr",
    "select", "selectattr", "slice",
)  # fmt: skip
"""Jinja's own filters that look at no text."""
_LIKE_METHODS = ("upper", "lower", "capitalize", "replace")
_THROUGH = ("float", "int", "title")
"""Jinja's own filters whose result is a number, or content if what they are given is."""
_OF_VALUES = ("abs", "dictsort", "groupby", "max", "min", "round", "sort", "sum", "unique")
"""Jinja's own filters that take a text for something else where it is no `str`."""
_REFUSED = {name for name in dir(str) if name[0] != "_"} - STR_METHODS
_TAKE_NAMES = ("map", "reject", "rejectattr", "select", "selectattr")
"""Filters whose arguments name filters or tests."""


class DateNeeded(Unusable):
    """A template asks for the date, and the recipe has none."""


class _Code(NativeCodeGenerator):
    """Writes no `str()` around what is printed, and `~` as our own concatenation."""

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:  # noqa: N802 - Jinja's name
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
        begin, end = (
            nodes.Output([self.call_method("border", [nodes.Const(begins)])]).set_lineno(line)
            for begins in (True, False)
        )
        return [begin, *body, end]

    def border(self, begins: bool) -> Border:
        """What stands in the output for the tag."""
        return Border(begins)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Everything a template may touch. One run at a time."""

    code_generator_class = _Code
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, date: str) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.trace = Trace()
        self.left = 0
        self._date = date
        own = ("trim", "join", "tojson", "string", "safe", "indent", "reverse")
        self.filters = {
            **{name: self.filters[name] for name in _OF_CONTAINERS},
            **{name: _through(self.filters[name]) for name in _THROUGH},
            **{name: self._of_values(name, self.filters[name]) for name in _OF_VALUES},
            **{name: _method_filter(name) for name in _LIKE_METHODS},
            **{name: getattr(self, f"_{name}") for name in own},
            "_steps": self._steps,
        }
        del (
            self.tests["filter"],
            self.tests["test"],
            self.globals["lipsum"],
        )  # of Jinja's names, and of chance
        self.tests |= {name: _method_filter(f"is{name}") for name in ("lower", "upper")}
        self.tests["sameas"] = self._of_values("sameas", self.tests["sameas"])
        self.tests["string"] = lambda value: isinstance(value, str | Text)
        self.tests["sequence"] = lambda value: isinstance(value, str | Text | list | tuple | dict)
        self.globals |= {
            "raise_exception": _raise,
            "strftime_now": self._strftime_now,
            "namespace": _Namespace,
            "dict": lambda **values: values,
        }

    def concat(self, values: Iterable[Any]) -> Any:
        return joined(values, self.trace)

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise TemplateError(f"it takes more than {MOST_STEPS:,} steps: it loops")

    def _steps(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.step()
            yield value

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as in Jinja
        __self.step()
        return super().call(__context, __obj, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self._of_str(obj, attribute) or super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, Text):
            self.trace.whole = False
            if isinstance(obj, dict) and argument.value in obj:
                argument = argument.value
            elif hasattr(obj, argument.value):
                raise Untracked("content names an attribute")
        return self._of_str(obj, argument) or super().getitem(obj, argument)

    def _of_str(self, obj: Any, name: Any) -> Any:
        """A method of a text, and nothing else of it; `join` is ours. None for what is no text, or an index."""
        if type(obj) not in (str, Text) or not isinstance(name, str):
            return None
        if name == "join":
            return lambda values: join_with(obj, values, self.trace)
        if name not in STR_METHODS:
            raise SecurityError(f"a text has no {name!r} here")
        if type(obj) is Text:
            return getattr(obj, name)

        def method(*args: Any) -> Any:
            return getattr(Text((obj,), self.trace) if _any_text(args) else obj, name)(*args)

        return method

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        numbers = all(isinstance(value, int | float) for value in (left, right))
        if operator in ("*", "%") and not numbers:
            raise Untracked(f"`{operator}` on text")
        if operator == "**" and not (numbers and abs(right) <= 64):
            raise SecurityError("a power above 64")
        if operator == "+" and type(left) is str and type(right) is str:
            return joined((left, right), self.trace)
        return super().call_binop(context, operator, left, right)

    def _trim(self, value: Any, chars: Any = None) -> Any:
        if isinstance(value, Text):
            return value.strip(chars)  # type: ignore[attr-defined]
        return _as_str(value).strip(_as_str(chars) if chars is not None else None)

    def _join(self, values: Iterable[Any], between: Any = "", attribute: Any = None) -> Any:
        if attribute is not None:
            values = (self.getitem(value, attribute) for value in values)
        return join_with(between, values, self.trace)

    def _tojson(self, value: Any, **options: Any) -> Any:
        return to_json(value, self.trace, **options)

    def _string(self, value: Any) -> Any:
        return value if isinstance(value, Text) else _as_str(value)

    _safe = _string

    def _indent(self, value: Any, width: Any = 4, *args: Any, **named: Any) -> Any:
        space = width if isinstance(width, str) else min(int(width), 100)
        return _through(do_indent)(value, space, *args, **named)

    def _reverse(self, value: Any) -> Any:
        return value[::-1] if isinstance(value, Text) else do_reverse(value)

    def _of_values(self, name: str, apply: Any) -> Any:
        environment = (self,) if hasattr(apply, "jinja_pass_arg") else ()

        def applied(value: Any, *args: Any, **named: Any) -> Any:
            values = list(value) if isinstance(value, Iterator) else value
            if _any_text((values, args, named)):
                raise Untracked(f"`{name}` of content")
            return apply(*environment, values, *args, **named)

        return applied

    def _strftime_now(self, form: str) -> str:
        if not self._date:
            raise DateNeeded("it asks for the date")
        return datetime.date.fromisoformat(self._date).strftime(form)


class _Namespace(Namespace):
    """As transformers has it: no name with an underscore before it."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace takes no name like {name!r}")
        super().__setitem__(name, value)


def _raise(message: Any) -> None:
    raise TemplateError(message.value if isinstance(message, Text) else str(message))


def _any_text(values: Iterable[Any]) -> bool:
    return any(
        isinstance(value, Text)
        or (isinstance(value, tuple | list) and _any_text(value))
        or (isinstance(value, dict) and _any_text((*value, *value.values())))
        for value in values
    )


def _as_str(value: Any) -> str:
    """`str` of what holds no content; content in it raises."""
    return value if type(value) is str else str(value)


def _method_filter(name: str) -> Any:
    def apply(value: Any, *args: Any) -> Any:
        given = value if isinstance(value, str | Text) else _as_str(value)
        return getattr(given, name)(*args)

    return apply


def _through(apply: Any) -> Any:
    def applied(value: Any, *args: Any, **named: Any) -> Any:
        return (
            value.through(apply, *args, **named) if isinstance(value, Text) else apply(value, *args, **named)
        )

    return applied


class ChatTemplate:
    """A compiled template. variables: names that every conversation sees: `bos_token`, tools, switches; date: what
    `strftime_now` formats, as YYYY-MM-DD, "" for a template that must not ask. Raises TemplateError for what is none.

    constants: every text that the template itself can put; generation: whether it says what is generated; reusable:
    whether what it makes of a conversation may be what it makes of another (`FOLLOWED`).
    """

    def __init__(self, source: str, variables: Mapping[str, Any], date: str = "") -> None:
        self._sandbox = _Sandbox(date)
        self._variables = dict(variables)
        try:
            self._compile(source)
        except TemplateError:
            raise
        except RecursionError:
            raise TemplateError("it is nested too deeply") from None
        except Exception as error:  # of Python, which compiles what Jinja writes
            raise TemplateError(f"{type(error).__name__}: {error}") from None

    def _compile(self, source: str) -> None:
        tree = self._sandbox.parse(source)
        self.constants = [
            *(node.data for node in tree.find_all(nodes.TemplateData)),
            *(node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)),
            *(value for value in self._variables.values() if isinstance(value, str)),
        ]
        self.generation = any(
            node.identifier == _Generation.identifier for node in tree.find_all(nodes.ExtensionAttribute)
        )
        self.reusable = True
        for node in tree.find_all((nodes.Filter, nodes.Test)):
            named = {node.name}
            if node.name in _TAKE_NAMES:
                named |= {one.value for one in node.args if isinstance(one, nodes.Const)}
            self.reusable &= named & (self._sandbox.filters.keys() | self._sandbox.tests.keys()) <= FOLLOWED
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Getattr) and call.node.attr in _REFUSED:
                raise Untracked(f"it calls .{call.node.attr}() of a text, which is not followed")
        for loop in tree.find_all(nodes.For):
            if loop.recursive:
                raise TemplateError("a recursive loop")
            loop.iter = nodes.Filter(loop.iter, "_steps", [], [], None, None, lineno=loop.lineno)
        tree.environment = self._sandbox
        self._template = self._sandbox.from_string(tree)

    def run(self, messages: list[dict[str, Any]], trace: Trace, prompt: bool = False) -> tuple[Piece, ...]:
        """What it makes of messages, in pieces. prompt: with the beginning of an answer behind them.

        Raises TemplateError, also in the place of whatever else the template raises.
        """
        self._sandbox.trace, self._sandbox.left = trace, MOST_STEPS
        variables = {"tools": None, "documents": None, **self._variables}
        context = self._template.new_context(
            {**variables, "messages": messages, "add_generation_prompt": prompt}
        )
        try:
            made = joined(self._template.root_render_func(context), trace)
        except TemplateError:
            raise
        except RecursionError:
            raise TemplateError("it calls itself without end") from None
        except Exception as error:
            raise TemplateError(f"{type(error).__name__}: {error}") from None
        return made.parts if isinstance(made, Text) else (made,)
