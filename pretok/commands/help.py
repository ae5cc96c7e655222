"""The help: commands in the order of use, and examples as they are typed.

Input: SECTIONS, and the docstrings of commands, in which a paragraph that begins with `pretok ` is an example. Output:
plain text. Nothing is markup: the asterisks of a glob and the brackets of [slurm] are text. An example stays on one
line however narrow the terminal is, so that it can be copied.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

SECTIONS = {
    "All steps of a recipe": {
        "init": ("recipe", "print a recipe for some inputs, to edit"),
        "plan": ("recipe", "estimate tokens, time and memory from a small sample"),
        "run": ("recipe", "run every step in order, and skip finished ones"),
        "submit": ("recipe", "run all steps as a chain of Slurm jobs, training included"),
    },
    "The steps": {
        "count": ("make", "count the words of sources, or add up counts"),
        "build-vocab": ("make", "train a vocabulary on the counts"),
        "tokenize": ("make", "turn sources into shards of tokens"),
        "annotate": ("make", "add columns to the documents of finished shards"),
        "remove": ("make", "remove documents from finished shards"),
        "verify": ("make", "check shards against their manifest"),
        "mix": ("make", "define the order of the training sequences"),
        "export": ("make", "write files for other trainers"),
    },
    "Inspection": {
        "status": ("look", "show progress, exact counts and the next command"),
        "report": ("look", "write an HTML page on the shards and the jobs"),
        "disclose": ("look", "write the public summary of the training data"),
        "inspect": ("lookup", "show the tokens and the origin of a document"),
        "query": ("lookup", "query documents, shards and rejects in SQL"),
        "trace": ("lookup", "find the steps that read a document, or the documents of a step"),
        "certify": ("lookup", "create or check a proof of the data that a step read"),
        "preflight": ("look", "check that a node is fit for a long job"),
    },
}
"""Heading -> command -> (its module in this folder, what it does, in one line of 80 columns)."""
COMMANDS = {name: module for commands in SECTIONS.values() for name, (module, _) in commands.items()}
"""Command -> its module; only that of the typed command is loaded."""


class FlowGroup(TyperGroup):
    """The `pretok` command. Its help lists SECTIONS; the module of a command is loaded when the command is typed."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)  # None until `get_command` makes one

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Load the typed command; None if there is no such command."""
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            module = import_module(f"pretok.commands.{COMMANDS[cmd_name]}")
            function = getattr(module, cmd_name.replace("-", "_"))
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
            alone.command(cmd_name, cls=CommandWithExamples)(function)
            self.commands[cmd_name] = typer.main.get_command(alone)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """List the commands by SECTIONS."""
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


class CommandWithExamples(TyperCommand):
    """A command whose help shows the examples of its docstring unchanged."""

    def __init__(self, *values: Any, **attributes: Any) -> None:
        super().__init__(*values, **attributes)
        for parameter in self.params:
            # The metavar of an argument says what it is; typer would add its type, such as `<list[str]>`.
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda ctx: None  # type: ignore[attr-defined]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the docstring, without wrapping its examples."""
        for paragraph in inspect.cleandoc(self.help or "").split("\n\n"):
            formatter.write_paragraph()
            with formatter.indentation():
                if is_example(paragraph):
                    formatter.write("".join(f"    {line.strip()}\n" for line in paragraph.splitlines()))
                else:
                    formatter.write_text(paragraph)


def is_example(paragraph: str) -> bool:
    """Whether a paragraph of a docstring is a command to type."""
    return paragraph.lstrip().startswith("pretok ")
