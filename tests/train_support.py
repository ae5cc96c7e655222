"""Ranks for the tests of the trainer: real processes that run the real command.

torch takes seconds to import, so one server process imports it once and every rank is forked from there.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pretok.base.records import replace
from pretok.base.storage import fingerprint, read_json, read_lines, write_json
from pretok.shards.manifest import load_manifest, write_manifest
from pretok.stream.mix_file import Mix, Stage, mix_sources, write_mix
from pretok.tokenizer.vocabulary import load_vocab, tokenizer_data
from tests.support import make_shards
from train.checkpoint.meta import read_meta
from train.checkpoint.tensors import Reader, restore
from train.config import TrainConfig
from train.model.sizes import ModelConfig
from train.model.transformer import Decoder, initial_tensor

_CONTEXT = multiprocessing.get_context("forkserver")
# torch._dynamo is what the first training step imports.
_CONTEXT.set_forkserver_preload(["tests.train_support", "train.loop", "train.__main__", "torch._dynamo"])

SIZES = """
vocab_size = 60
dim = 32
layers = 2
heads = 4
kv_heads = 2
hidden = 64
tied = {tied}
"""


def model_file(folder: Path, *, tied: bool = True) -> str:
    """A TOML file of a tiny model's sizes."""
    path = folder / f"model-{tied}.toml"
    path.write_text(SIZES.format(tied=str(tied).lower()))
    return str(path)


def tiny_config(shards: Path, folder: Path, **more: Any) -> TrainConfig:
    """Eight steps of eight sequences of 16 tokens in FOLDER/run, by one process; `more` wins."""
    values: dict[str, Any] = {"shards": str(shards), "out": str(folder / "run"), "model": model_file(folder)}
    values |= {"seq_len": 16, "global_batch": 8, "steps": 8, "workers": 0}
    return TrainConfig(**values | more)


def flags(config: TrainConfig) -> list[str]:
    """A command line that gives the trainer these settings, defaults left out."""
    result = []
    for name, value in config.as_dict().items():
        if value == getattr(TrainConfig(), name):
            continue
        flag = name.replace("_", "-")
        result += (
            [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
        )
    return result


def tiny_flags(shards: Path, folder: Path, **more: Any) -> list[object]:
    """The same for a command line."""
    return [*flags(tiny_config(shards, folder, **more))]


def filled(sizes: ModelConfig, value: Callable[..., Any] | None = None, scale: float = 1.0) -> Decoder:
    """A model in one piece whose parameters `value` gives; by default those that a run begins with, times `scale`."""
    model = Decoder(sizes)
    value = value or partial(initial_tensor, sizes, 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(value(name, parameter.shape, torch.device("cpu")) * scale)
    return model


def add_tokenizer(shards: Path, data: dict[str, Any] | None = None) -> None:
    """A tokenizer.json in the shards' folder, by default of the 256 bytes, and its fingerprint in their manifest."""
    write_json(shards / "tokenizer.json", data or tokenizer_data(".", ["<eod>"], []))
    manifest = load_manifest(shards)
    tokenizer = replace(manifest.tokenizer, fingerprint=load_vocab(shards, eod="<eod>").fingerprint)
    write_manifest(shards, replace(manifest, tokenizer=tokenizer))


def mix_of(shards: Path, path: Path, *stages: tuple[int, ...], seq_len: int = 16, seed: int = 0) -> str:
    """A mix of the sources en and it with these quotas."""
    manifest = load_manifest(shards)
    sources = mix_sources(manifest, "train", seq_len, manifest.sources, "fixed")
    write_mix(
        path,
        Mix(manifest.fingerprint, "train", seq_len, seed, "fixed", sources, tuple(map(Stage, stages))),
        {},
    )
    return str(path)


def random_shards(folder: Path) -> Path:
    """Two sources of random documents, 60 vocabulary entries, with validation splits."""
    rng = np.random.default_rng(0)

    def documents(count: int) -> list[list[int]]:
        return [rng.integers(1, 60, size=rng.integers(20, 90)).tolist() for _ in range(count)]

    return make_shards(
        folder,
        {"it": documents(90), "en": documents(30)},
        val={"it": documents(7), "en": documents(3)},
        vocab_size=60,
    )


def reseal(checkpoint: Path, **changes: Any) -> None:
    """Change keys of a checkpoint's meta.json as somebody would who knows how it is sealed."""
    data = read_json(checkpoint / "meta.json")
    del data["seal"]
    data |= changes
    write_json(checkpoint / "meta.json", {"seal": fingerprint(data)} | data)


def read_tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """All of a checkpoint by name."""
    reader = Reader(checkpoint, read_meta(checkpoint))
    state = {name: torch.empty(kind.shape) for name, kind in reader.kinds.items()}
    restore(state, reader)
    return state


def _rank_main(
    arguments: Sequence[str], environment: Mapping[str, str], output: str, before: Callable[[], None] | None
) -> None:
    _write_to(output)
    from train.__main__ import main

    os.environ.update(environment)
    if before is not None:
        before()
    main(list(arguments))
    sys.stdout.flush()


def leave_torch_alone(replace: Callable[[object, str, object], None] = setattr) -> None:
    """One thread, and collections that do not look at what is there by now: of all of torch they would be most of a
    tiny run. What `train` freezes and unfreezes is no longer frozen."""
    import train.loop  # noqa: F401 - what it brings along

    torch.set_num_threads(1)
    gc.freeze()
    atexit.register(
        gc.unfreeze
    )  # what stays frozen to the end is a leak to DuckDB's bindings, which list all of it
    for name in ("freeze", "unfreeze"):
        replace(gc, name, lambda: None)


def _write_to(output: str) -> None:
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    leave_torch_alone()
    # As in a program of its own. Else a server would stand between a rank and its loader processes, which outlived a
    # rank that was killed: torch has them look for their parent.
    multiprocessing.set_start_method("fork", force=True)


def _rank_jobs(
    rank: int,
    jobs: Sequence[tuple[int, int, Sequence[str]]],
    output: str,
    before: Callable[[], None] | None,
) -> None:
    _write_to(output)
    from train.__main__ import main

    if before is not None:
        before()

    for count, port, arguments in jobs:
        if rank < count:
            os.environ.update(_environment(rank, count, port))
            main(list(arguments))
    sys.stdout.flush()


def _environment(rank: int, count: int, port: int) -> dict[str, str]:
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    environment["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # as under torchrun: the store is another process's
    return environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}


def run_jobs(
    jobs: Sequence[tuple[int, Sequence[object]]],
    folder: Path,
    timeout: float = 600,
    before: Callable[[], None] | None = None,
) -> str:
    """Run many short commands, each on its number of ranks, one after the other in the same processes, in each of which
    `before` runs first; returns what all wrote."""
    from torch.distributed import TCPStore

    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in jobs]
    texts = [
        (count, store.port, [str(part) for part in parts])
        for (count, parts), store in zip(jobs, stores, strict=True)
    ]
    processes = []
    for rank in range(max(count for count, _ in jobs)):
        output = f"{folder / 'jobs'}-{rank}"
        process = _CONTEXT.Process(target=_rank_jobs, args=(rank, texts, output, before))
        process.start()
        processes.append(process)
    end = time.monotonic() + timeout
    while any(process.is_alive() for process in processes) and time.monotonic() < end:
        time.sleep(0.05)
        if any(process.exitcode for process in processes):  # the others wait for it in vain
            break
    for process in processes:
        process.kill()
        process.join()
    text = "".join(path.read_text() for path in sorted(folder.glob("jobs-*")))
    assert [process.exitcode for process in processes] == [0] * len(processes), text[-8000:]
    return text


class Ranks:
    """`count` processes of `train ARGUMENTS`; `before` runs in each of them first."""

    def __init__(
        self, count: int, arguments: Sequence[object], folder: Path, before: Callable[[], None] | None = None
    ) -> None:
        from torch.distributed import TCPStore

        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = self.store.port
        self.output = folder / f"output-{port}"
        self.processes: list[BaseProcess] = []
        for rank in range(count):
            environment = _environment(rank, count, port)
            texts = [str(argument) for argument in arguments]
            process = _CONTEXT.Process(
                target=_rank_main, args=(texts, environment, f"{self.output}-{rank}", before)
            )
            process.start()
            self.processes.append(process)

    def wait(self, timeout: float = 240) -> list[int | None]:
        """Exit codes of all ranks; kills what is left after `timeout` seconds."""
        end = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
        for process in self.processes:
            if process.is_alive():
                process.kill()
                process.join()
        return [process.exitcode for process in self.processes]

    def text(self) -> str:
        """What all ranks wrote."""
        paths = sorted(self.output.parent.glob(f"{self.output.name}-*"))
        return "".join(path.read_text() for path in paths)

    def signal(self, number: signal.Signals, ranks: Sequence[int] | None = None) -> None:
        """Send a signal to some ranks, or to all."""
        for rank in range(len(self.processes)) if ranks is None else ranks:
            pid = self.processes[rank].pid
            assert pid is not None
            os.kill(pid, number)


def run_ranks(count: int, arguments: Sequence[object], folder: Path) -> str:
    """Run to the end, all ranks ending well; returns their output."""
    ranks = Ranks(count, arguments, folder)
    codes = ranks.wait()
    assert codes == [0] * count, ranks.text()
    return ranks.text()


def column(run: Path, name: str) -> list[Any]:
    """One value of every step, in order; the steps are those from 1 on, each once."""
    records = read_lines(run / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    return [record[name] for record in records]
