"""The `pretok` command: registers the commands and turns errors into exit codes.

0 done   1 internal error   2 wrong usage, config or input   3 some partitions failed   75 stopped early
"""

from __future__ import annotations

import logging
import sys
import traceback

import typer

from pretok.commands.build_vocab import build_vocab
from pretok.commands.count import count
from pretok.commands.export import export
from pretok.commands.inspect import inspect
from pretok.commands.mix import mix
from pretok.commands.preflight import preflight
from pretok.commands.run import run
from pretok.commands.stats import stats
from pretok.commands.submit import submit
from pretok.commands.tokenize import tokenize
from pretok.commands.verify import verify
from pretok.console import notice
from pretok.errors import PretokError, Stopped

app = typer.Typer(
    name="pretok",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Text to token files for language models: vocabulary, shards, mix, stream.",
)
COMMANDS = (run, count, build_vocab, tokenize, verify, stats, inspect, mix, export, submit, preflight)
for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """Console entry point; ends the process with one of the exit codes above."""
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run one command line and return its exit code; messages go to standard error."""
    try:
        app(arguments)  # ends with SystemExit, of code 2 when the arguments themselves are wrong
    except SystemExit as end:
        return int(end.code or 0)
    except PretokError as error:
        notice(f"pretok: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        notice("pretok: interrupted; run the same command again to continue")
        return Stopped.exit_code
    except Exception:
        notice(traceback.format_exc())
        notice("pretok: internal error; this is a bug, please report it with the lines above")
        return 1
    return 0
