"""The command line: `train --shards DIR ...`, `train plan`, `tune`, `generate`, `export`, `verify`.

Input: a command line. Output: an exit code: 0 done; 1 internal error; 2 wrong settings or input; 75 stopped early, on
request or because a file system failed for a while: the same command resumes. Under torchrun every rank runs this
module. torchrun itself exits with 1 when its ranks exit with 75, so chains of jobs check RUN/done.json.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from pretok.base.errors import PretokError, Stopped, UsageError
from pretok.base.startup import refuse_to_start
from train.checkpoint import HungSave
from train.config import add_flags, command_parser, parse, whole_number
from train.report import explain

EXAMPLES = """  train --shards WORK/shards --mix WORK/mix.json --model debug --out RUN
  torchrun --nproc-per-node 4 -m train --shards WORK/shards --mix WORK/mix.json --model 1b \\
      --global-batch 512 --micro-batch 4 --out RUN
  train plan | tune | generate | export | verify --help
"""


def _train(arguments: Sequence[str]) -> None:
    parser = command_parser("train", "Train a model on shards; the same command resumes it.", EXAMPLES)
    parser.usage = "train [--config FILE] --shards WORK/shards --out RUN [settings]"
    add_flags(parser)
    config, _ = parse(parser, arguments)
    from train.loop import train

    train(config)


def _export(arguments: Sequence[str]) -> None:
    """Run `train export`: write one checkpoint, or the mean of several, as a transformers model."""
    description = "Write a checkpoint, or the mean of several, as a model of Hugging Face transformers."
    parser = command_parser("train export", description, "  train export --run RUN --out MODEL")
    parser.add_argument("--run", required=True, type=Path, help="folder of the run")
    parser.add_argument("--step", type=whole_number, help="step of the checkpoint (default: the newest)")
    parser.add_argument(
        "--last", type=whole_number, default=1, metavar="K", help="average the newest K checkpoints"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        help="export this copy of the shards' tokenizer, for example one with more files next to it (default: the copy "
        "in the shards folder)",
    )
    parser.add_argument("--out", required=True, type=Path, help="folder to create")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="type of the weights (default: that of the --init-from model, else float32)",
    )
    space = parser.parse_args(list(arguments))
    import torch

    from train.checkpoint.export import export
    from train.checkpoint.meta import find_checkpoints

    checkpoints = find_checkpoints(space.run, space.step)
    if not 1 <= space.last <= len(checkpoints):
        raise UsageError(
            f"--last {space.last}: {space.run} has {len(checkpoints)} checkpoints to choose from; keep more with "
            "--keep-last or --milestone, and leave out --step"
        )
    dtype = getattr(torch, space.dtype) if space.dtype else None
    export(checkpoints[-space.last :], space.tokenizer, space.out, dtype)
    print(space.out)


def _verify(arguments: Sequence[str]) -> None:
    description = "Check every file of a run's checkpoints against the checksum recorded when it was written."
    parser = command_parser("train verify", description, "  train verify RUN")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--step", type=whole_number, help="step of one checkpoint (default: all)")
    space = parser.parse_args(list(arguments))
    from train.checkpoint.meta import verify

    verify(space.run, space.step, print)


def _command(module: str) -> Callable[[Sequence[str]], None]:
    """Return the `main` of a module; the module is imported only when the command is called."""
    return lambda arguments: import_module(module).main(arguments)


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "plan": _command("train.plan"),
    "tune": _command("train.tune"),
    "generate": _command("train.generate"),
    "export": _export,
    "verify": _verify,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    code = 0
    try:
        refuse_to_start(arguments)
        if arguments and arguments[0] in COMMANDS:
            COMMANDS[arguments[0]](arguments[1:])
        else:
            _train(arguments)
    except KeyboardInterrupt:
        message = (
            "interrupted before it could save; earlier checkpoints are kept, run the same command to resume"
        )
        print(f"train: {message}", file=sys.stderr)
        code = Stopped.exit_code
    except Exception as error:
        known = error if isinstance(error, PretokError) else explain(error)
        if known is None:
            raise
        print(f"train: {known}", file=sys.stderr)
        code = known.exit_code
        if isinstance(known, HungSave):
            os._exit(code)  # sys.exit would wait for the thread that hangs
    # Exit outside of the `except` block: only then are the exception and the loader processes in its frames freed.
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
