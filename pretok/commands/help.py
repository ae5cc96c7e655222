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
        "init": "print a recipe for some inputs, every default as a comment",
        "plan": "what a recipe will give and cost, from a small sample",
        "run": "do every step in order; what is done is skipped",
        "submit": "do them as a chain of Slurm jobs, training included",
    },
    "The steps": {
        "count": "count the words of sources, or add up counts",
        "build-vocab": "train a vocabulary on the counts",
        "tokenize": "turn sources into shards of tokens",
        "annotate": "join columns made afterwards to the documents",
        "remove": "take documents out of finished shards, all else as it was",
        "verify": "check that shards are what their manifest says",
        "mix": "fix which sequences come in which order",
        "export": "write what another trainer needs",
    },
    "To look at things": {
        "status": "what is finished or failed, exact counts, and what to do next",
        "report": "one page on what the shards hold and what happened",
        "disclose": "what was trained on, for the public summary",
        "inspect": "one document as its tokens, and where it came from",
        "query": "SQL over documents, shards, rejects and words",
        "trace": "which steps of a run read a document, or what they read",
        "certify": "prove to others what a step read, or check such a proof",
        "preflight": "check that a node is fit for a long job",
    },
}
"""Heading -> command -> what it does, in one line of 80 columns."""
MODULES = {
    "recipe": ("init", "plan", "run", "submit"),
    "make": ("count", "build-vocab", "tokenize", "annotate", "remove", "verify", "mix", "export"),
    "look": ("status", "report", "disclose", "preflight"),
    "documents": ("inspect", "query", "trace", "certify"),
}
"""Module of this folder -> the commands in it; it is loaded for the one that is typed."""
COMMANDS = tuple(command for commands in SECTIONS.values() for command in commands)


class FlowGroup(TyperGroup):
    """The `pretok` command: its help lists SECTIONS. It loads the module of a command when that is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)  # None until `get_command` makes one

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Called for the command that is typed; None where there is none of that name."""
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            module = next(name for name, commands in MODULES.items() if cmd_name in commands)
            function = getattr(import_module(f"pretok.commands.{module}"), cmd_name.replace("-", "_"))
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
            alone.command(cmd_name, cls=CommandWithExamples)(with_options(function))
            self.commands[cmd_name] = typer.main.get_command(alone)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Called by the help; replaces the list in the order of registration."""
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl(list(commands.items()))


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
