"""The command: `train --shards DIR ...`, `train plan`, `train tune`, `train export`, `train verify`.

Enters: a command line. Leaves: an exit code: 0 done, 1 internal error, 2 wrong usage or input, 75 stopped
early on request. Under torchrun every rank runs this; torchrun itself ends with 1 when its ranks end with 75,
so chains of jobs look at RUN/done.json.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pretok.base.errors import PretokError, Stopped
from train.checkpoint import HungSave
from train.config import add_flags, parse
from train.run.failures import explain

EXAMPLE = """examples:
  train --shards WORK/shards --mix WORK/mix.json --model debug --out RUN
  torchrun --nproc-per-node 4 -m train --shards WORK/shards --mix WORK/mix.json --model 1b \\
      --global-batch 512 --micro-batch 4 --compile --out RUN
  train plan --help | train tune --help | train export --help | train verify --help
"""


def _train(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="train",
        description="Train a model on shards; the same command resumes it.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_flags(parser)
    config, _ = parse(parser, arguments)
    from train.run.loop import train

    train(config)


def _export(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="train export",
        description="Write a checkpoint as a Hugging Face transformers Llama model.",
        epilog="example:\n  train export --run RUN --out MODEL",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--run", required=True, type=Path, help="folder of the run")
    parser.add_argument("--step", type=int, help="step of the checkpoint (default: the newest)")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        help="the tokenizer of the shards, for example with more files beside it (default: their own copy)",
    )
    parser.add_argument("--out", required=True, type=Path, help="folder to make")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    space = parser.parse_args(list(arguments))
    import torch

    from train.checkpoint.export import export
    from train.checkpoint.saved import find_checkpoints

    checkpoint = find_checkpoints(space.run, space.step)[-1]
    export(checkpoint, space.tokenizer, space.out, getattr(torch, space.dtype), _notice)
    print(space.out)


def _verify(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="train verify",
        description="Compare every file of a run's checkpoints with the checksum it was written with.",
        epilog="example:\n  train verify RUN",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--step", type=int, help="step of one checkpoint (default: all)")
    space = parser.parse_args(list(arguments))
    from train.checkpoint.saved import verify

    verify(space.run, space.step, print)


def _notice(text: str) -> None:
    print(text, file=sys.stderr)


def _plan(arguments: Sequence[str]) -> None:
    from train.tools.plan import main as plan

    plan(arguments)


def _tune(arguments: Sequence[str]) -> None:
    from train.tools.tune import main as tune

    tune(arguments)


COMMANDS = {"plan": _plan, "tune": _tune, "export": _export, "verify": _verify}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    code = 0
    try:
        if arguments and arguments[0] in COMMANDS:
            COMMANDS[arguments[0]](arguments[1:])
        else:
            _train(arguments)
    except KeyboardInterrupt:
        _notice(
            "train: interrupted before it could save; what was saved stays, run the same command to go on"
        )
        code = Stopped.exit_code
    except Exception as error:
        known = error if isinstance(error, PretokError) else explain(error)
        if known is None:
            raise
        _notice(f"train: {known}")
        code = known.exit_code
        if isinstance(known, HungSave):
            sys.stdout.flush()
            os._exit(code)  # the thread that hangs would be waited for
    if code:  # out here the exception is gone, and with it what it held: loader processes, which end now
        sys.exit(code)


if __name__ == "__main__":
    main()
