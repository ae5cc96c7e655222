"""The `pretok` command: turns what ends a command into its exit code.

docs/running.md lists the codes. An error of a file system that may pass ends a command with 75: run it again.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pretok.base.errors import InternalError, PretokError, Stopped
from pretok.base.failures import task_error
from pretok.base.startup import collect_seldom, refuse_to_start
from pretok.base.terminal import ConsoleWarnings, Terminal
from pretok.base.version import PRETOK_VERSION
from pretok.commands.help import FlowGroup

USER_ERROR, READER_GONE = 2, 141
INTERRUPTED = 130
"""Typer's exit code for Ctrl-C."""
QUIET = "--quiet"
"""An option of `pretok` itself that may also follow the command, where people put it."""


class _Ended(Exception):
    """Carries an error past Typer, which would exit with 130 or 1 for Ctrl-C and with 1 for any broken pipe."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


class _Pretok(FlowGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)  # what follows is for `train`
        quiet = [QUIET] if QUIET in args[:end] else []
        others = [arg for arg in args[:end] if arg != QUIET]
        return super().parse_args(ctx, [*quiet, *others, *args[end:]])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (OSError, KeyboardInterrupt) as error:
            raise _Ended(error) from error


app = typer.Typer(
    name="pretok",
    cls=_Pretok,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Text to token files for language models: vocabulary, shards, mix, stream.",
    epilog="`pretok COMMAND --help` shows the options of a command and an example.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pretok {PRETOK_VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    quiet: Annotated[bool, typer.Option(QUIET, help="Show results and errors only.")] = False,
    version: Annotated[  # noqa: ARG001
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Options of all commands."""
    context.ensure_object(Terminal).quiet = quiet


NOT_A_NUMBER = "Input should be a valid integer, unable to parse string as an integer"
"""How Typer says it, without the value."""


def main() -> None:
    """Run the command of this process and end it with one of the exit codes above."""
    collect_seldom()
    arguments = sys.argv[1:]
    console = Terminal(arguments)
    logging.basicConfig(
        level=logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
        handlers=[ConsoleWarnings(console)],
    )
    if sys.stderr is None:  # closed: a file of ours would be opened in its place, and get the messages
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - to the end
    # A document or a file name may hold what the locale cannot write.
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.reconfigure(errors="backslashreplace")
    sys.exit(run_command(arguments, console))


def run_command(arguments: list[str], console: Terminal | None = None) -> int:
    """Run one command line and return its exit code; messages go to standard error, and to the log of `console`."""
    console = console or Terminal(arguments)
    try:
        code = _run(arguments, console)
        sys.stdout.flush()  # here, where a reader that went away is handled, not when Python ends
    except BaseException as error:  # Rust libraries raise these when they panic
        code = _explain(error.cause if isinstance(error, _Ended) else error, console)
    console.end(code)
    return code


def _run(arguments: list[str], console: Terminal) -> int:
    refuse_to_start(arguments)
    try:
        # What `typer.Exit` says; None at the end of a command.
        code = app(arguments, obj=console, standalone_mode=False)
    except SystemExit as end:  # of a shell that asks how a word goes on
        code = end.code
    except Exception as error:
        if not hasattr(error, "show"):  # as all have that Typer raises for arguments, in any version
            raise
        return _explain_arguments(error, console)
    if code == INTERRUPTED:  # before the command began, while its options were read
        raise KeyboardInterrupt
    return int(code or 0)


def _explain_arguments(error: Any, console: Terminal) -> int:
    """Print the usage, and what is wrong with the arguments."""
    shown = io.StringIO()
    error.show(shown)
    usage, mark, message = shown.getvalue().rpartition("Error: ")
    sys.stderr.write(usage if mark else shown.getvalue())  # without arguments there is only help
    if mark:
        console.error(f"{mark}{message.rstrip().replace(NOT_A_NUMBER, 'give a whole number, such as 4')}")
    return USER_ERROR


def _explain(error: BaseException, console: Terminal) -> int:
    """Say on standard error what ended a command, and return its exit code."""
    match error:
        case PretokError():
            console.error(f"pretok: {error}")
            return error.exit_code
        case KeyboardInterrupt():
            console.error("pretok: interrupted; run the same command again to continue")
            return Stopped.exit_code
        case MemoryError():
            reason = f" ({error})" if str(error) else ""
            console.error(
                f"pretok: out of memory{reason}; use fewer --workers, or a machine with more memory"
            )
            return USER_ERROR
        case BrokenPipeError() if _reader_is_gone():
            return READER_GONE
        case OSError() if task_error(error).again:
            console.error(f"pretok: {task_error(error).message}; run the same command again to continue")
            return Stopped.exit_code
        case _:
            found = task_error(error)
            if found.raises is InternalError:
                console.error(
                    "pretok: internal error; this is a bug, please report it with the lines above",
                    found.trace,
                )
            else:
                console.error(f"pretok: {found.message}")
            return found.raises.exit_code


def _reader_is_gone() -> bool:
    """Whether standard output or error is a pipe that nobody reads; the remaining output is then dropped."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    gone = [descriptor for descriptor, event in poll.poll(0) if event & select.POLLERR]
    for descriptor in gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return bool(gone)
