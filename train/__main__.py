"""The command: `train --shards DIR ...`, `train plan`, `train tune`, `train export`.

Enters: a command line. Leaves: an exit code: 0 done, 1 internal error, 2 wrong usage or input, 75 stopped
early on request. Under torchrun every rank runs this; torchrun itself ends with 1 when its ranks end with 75,
so chains of jobs look at RUN/done.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pretok.errors import PretokError
from train.config import add_flags, parse

EXAMPLE = """examples:
  train --shards WORK/shards --mix WORK/mix.json --model debug --out RUN
  torchrun --nproc-per-node 4 -m train --shards WORK/shards --mix WORK/mix.json --model 1b \\
      --global-batch 512 --micro-batch 4 --compile --out RUN
  train plan --help | train tune --help | train export --help
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
    from train.loop import train

    train(config)


def _export(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="train export",
        description="Write a checkpoint as a Hugging Face transformers Llama model.",
        epilog="example:\n  train export --run RUN --tokenizer WORK/vocab --out MODEL",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--run", required=True, type=Path, help="folder of the run")
    parser.add_argument("--step", type=int, help="step of the checkpoint (default: the newest)")
    parser.add_argument(
        "--tokenizer", required=True, type=Path, help="vocabulary folder the shards were made with"
    )
    parser.add_argument("--out", required=True, type=Path, help="folder to make")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    space = parser.parse_args(list(arguments))
    import torch

    from train.export import export, find_checkpoint

    export(find_checkpoint(space.run, space.step), space.tokenizer, space.out, getattr(torch, space.dtype))
    print(space.out)


def _plan(arguments: Sequence[str]) -> None:
    from train.plan import main as plan

    plan(arguments)


def _tune(arguments: Sequence[str]) -> None:
    from train.tune import main as tune

    tune(arguments)


COMMANDS = {"plan": _plan, "tune": _tune, "export": _export}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if arguments and arguments[0] in COMMANDS:
            COMMANDS[arguments[0]](arguments[1:])
        else:
            _train(arguments)
    except PretokError as error:
        print(f"train: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
