"""Help as a person reads it: commands in the order of the flow, examples as they are typed.

Enters: docstrings of commands, where a paragraph that begins with `pretok ` is an example, and SECTIONS. Leaves: plain
text. Nothing is read as markup (the asterisks of a glob and the brackets of [slurm] are text), and an example is one
line however narrow the terminal, so that it can be copied.
"""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperCommand, TyperGroup

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
        "verify": "check that shards are what their manifest says",
        "mix": "fix which sequences come in which order",
        "export": "write what another trainer needs",
    },
    "To look at things": {
        "watch": "how far the jobs in a folder, or a training run, are",
        "status": "what is finished, unfinished or failed, and what to do next",
        "report": "one page on what the shards hold and what happened",
        "disclose": "what was trained on, for the public summary",
        "stats": "exact counts of a folder of shards",
        "inspect": "one document as its tokens, and where it came from",
        "query": "SQL over documents, shards, rejects and words",
        "trace": "which steps of a run read a document, or what they read",
        "preflight": "check that a node is fit for a long job",
    },
}
"""Heading -> command -> what it does, in one line of 80 columns."""


class FlowGroup(TyperGroup):
    """The `pretok` command: its help lists SECTIONS."""

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
