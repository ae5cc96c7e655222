"""Help as a person reads it: commands in the order of the flow, examples as they are typed.

Input: docstrings of commands, where a paragraph that begins with `pretok ` is an example, and SECTIONS. Output: plain
text. Nothing is read as markup (the asterisks of a glob and the brackets of [slurm] are text), and an example is one
line however narrow the terminal, so that it can be copied.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from pretok.commands.options import with_options

SECTIONS = {
    "All steps of a recipe": {
        "init": ("recipe", "print a recipe for some inputs, every default as a comment"),
        "plan": ("recipe", "what a recipe will give and cost, from a small sample"),
        "run": ("recipe", "do every step in order; what is done is skipped"),
        "submit": ("recipe", "do them as a chain of Slurm jobs, training included"),
    },
    "The steps": {
        "count": ("make", "count the words of sources, or add up counts"),
        "build-vocab": ("make", "train a vocabulary on the counts"),
        "tokenize": ("make", "turn sources into shards of tokens"),
        "annotate": ("make", "join columns made afterwards to the documents"),
        "remove": ("make", "take documents out of finished shards, all else as it was"),
        "verify": ("make", "check that shards are what their manifest says"),
        "mix": ("make", "fix which sequences come in which order"),
        "export": ("make", "write what another trainer needs"),
    },
    "To look at things": {
        "status": ("look", "what is finished or failed, exact counts, and what to do next"),
        "report": ("look", "one page on what the shards hold and what happened"),
        "disclose": ("look", "what was trained on, for the public summary"),
        "inspect": ("documents", "one document as its tokens, and where it came from"),
        "query": ("documents", "SQL over documents, shards and rejects"),
        "trace": ("documents", "which steps of a run read a document, or what they read"),
        "certify": ("documents", "prove to others what a step read, or check such a proof"),
        "preflight": ("look", "check that a node is fit for a long job"),
    },
}
"""Heading -> command -> (module of this folder that has it, what it does, in one line of 80 columns)."""
COMMANDS = {name: module for commands in SECTIONS.values() for name, (module, _) in commands.items()}
"""Command -> its module, which is loaded for the one that is typed."""


class FlowGroup(TyperGroup):
    """The `pretok` command: its help lists SECTIONS. It loads the module of a command when that is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)  # None until `get_command` makes one

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Called for the command that is typed; None where there is none of that name."""
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            module = import_module(f"pretok.commands.{COMMANDS[cmd_name]}")
            function = getattr(module, cmd_name.replace("-", "_"))
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
            alone.command(cmd_name, cls=CommandWithExamples)(with_options(function))
            self.commands[cmd_name] = typer.main.get_command(alone)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Called by the help; replaces the list in the order of registration."""
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


class CommandWithExamples(TyperCommand):
    """A command whose help shows the examples of its docstring as they stand there."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Called by the help; `write_text` would fill the lines of an example like prose."""
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
