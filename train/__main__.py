"""The command line: `train --shards DIR ...`, `train plan`, `tune`, `generate`, `export`, `verify`, `losses`.

Input: a command line. Output: an exit code: 0 done; 1 internal error; 2 wrong settings or input; 75 stopped early, on
request or because a file system failed for a while: the same command resumes. Under torchrun every rank runs this
module. torchrun itself exits with 1 when its ranks exit with 75, so chains of jobs check RUN/done.json.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from pretok.base.begin import end_with_75, interrupted

EXAMPLES = """  train --shards WORK/shards --mix WORK/mix.json --model debug --out RUN
  torchrun --nproc-per-node 4 -m train --shards WORK/shards --mix WORK/mix.json --model 1b \\
      --global-batch 512 --micro-batch 4 --out RUN
  train plan | tune | generate | export | verify | losses --help
"""


def _train(arguments: Sequence[str]) -> None:
    from train.config import add_flags, command_parser, parse, refuse_unread

    parser = command_parser("train", "Train a model on shards; the same command resumes it.", EXAMPLES)
    parser.usage = "train [--config FILE] --shards WORK/shards --out RUN [settings]"
    add_flags(parser)
    config, _ = parse(parser, arguments)
    refuse_unread(config)
    from train.loop import train

    train(config)


COMMANDS = {
    "plan": "train.plan",
    "tune": "train.tune",
    "generate": "train.generate",
    "export": "train.checkpoint.export",
    "verify": "train.checkpoint.meta",
    "losses": "train.losses",
}
"""Commands -> the module of their `main`, which is imported only when the command is called."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its code."""
    from pretok.base.errors import PretokError, Stopped
    from pretok.base.startup import refuse_to_start
    from train.checkpoint import HungSave
    from train.report import complain, explain

    arguments = sys.argv[1:] if arguments is None else list(arguments)
    code = 0
    try:
        refuse_to_start(arguments)
        if arguments and arguments[0] in COMMANDS:
            import_module(COMMANDS[arguments[0]]).main(arguments[1:])
        else:
            _train(arguments)
    except KeyboardInterrupt:
        complain(
            "interrupted before it could save; earlier checkpoints are kept, run the same command to resume"
        )
        code = Stopped.exit_code
    except Exception as error:
        known = error if isinstance(error, PretokError) else explain(error)
        if known is None:
            raise
        complain(known)
        code = known.exit_code
        if isinstance(known, HungSave):
            os._exit(code)  # sys.exit would wait for the thread that hangs
    # Exit outside of the `except` block: only then are the exception and the objects in its frames freed.
    if code:
        sys.exit(code)


def start() -> None:
    """Console entry point: the same, and a signal ends the process with 75 before anything else is loaded."""
    try:
        end_with_75()
        main()
    except KeyboardInterrupt:  # before or after the command itself
        interrupted()


if __name__ == "__main__":
    start()
