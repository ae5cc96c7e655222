"""Ranks for the tests of the trainer: real processes that run the real command.

torch takes seconds to import, so one server process imports it once and every rank is forked from there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretok.base.records import replace
from pretok.base.storage import fingerprint, read_json, read_lines, write_json
from pretok.shards.manifest import load_manifest, write_manifest
from pretok.stream.mix_file import Stage, natural_mix, write_mix
from pretok.tokenizer.vocabulary import load_vocab, tokenizer_data
from tests.support import EOD, freeze, make_shards
from train.checkpoint.meta import read_meta
from train.checkpoint.tensors import Reader, restore
from train.config import TrainConfig, add_flags, parse
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
    """Eight steps of eight sequences of 16 tokens in FOLDER/run, by one process, without validation; `more` wins."""
    values: dict[str, Any] = {"shards": str(shards), "out": str(folder / "run"), "model": model_file(folder)}
    values |= {"seq_len": 16, "global_batch": 8, "steps": 8, "workers": 0, "val_every": 0}
    return TrainConfig(**values | more)


def parsed(*arguments: str) -> TrainConfig:
    """The settings that a command line gives."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return parse(parser, arguments)[0]


TWO_RANKS = {"steps": 4, "save_every": "2", "shard": 2, "lr": 0.01, "warmup": 1}
"""Settings of the run that `trained` is: four steps, saved after every second one."""


def flags(config: TrainConfig) -> list[str]:
    """A command line that gives the trainer these settings, defaults left out."""
    result = []
    defaults = TrainConfig().as_dict()
    for name, value in config.as_dict().items():
        if value == defaults[name]:
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            result.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            result += [f"--{flag}", json.dumps(value) if isinstance(value, list) else str(value)]
    return result


def tiny_flags(shards: Path, folder: Path, **more: Any) -> list[str]:
    """The same for a command line."""
    return flags(tiny_config(shards, folder, **more))


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
    set_tokenizer(shards, fingerprint=load_vocab(shards, eod="<eod>").fingerprint)


def set_tokenizer(shards: Path, **changes: Any) -> None:
    """Change what the manifest of shards says of their tokenizer."""
    manifest = load_manifest(shards)
    write_manifest(shards, replace(manifest, tokenizer=replace(manifest.tokenizer, **changes)))


def mix_of(shards: Path, path: Path, *stages: tuple[int, ...], seq_len: int = 16, seed: int = 0) -> str:
    """A mix of the sources en and it with these quotas."""
    manifest = load_manifest(shards)
    mix = natural_mix(manifest, "train", seq_len, manifest.sources, seed)
    write_mix(path, replace(mix, stages=tuple(map(Stage, stages))), {})
    return str(path)


def random_shards(folder: Path) -> Path:
    """Two sources of random documents, 60 vocabulary entries, with validation splits and a tokenizer."""
    rng = np.random.default_rng(0)

    def documents(count: int) -> list[list[int]]:
        return [rng.integers(1, 60, size=rng.integers(20, 90)).tolist() for _ in range(count)]

    sources = {"it": documents(90), "en": documents(30)}
    val = {"it": documents(7), "en": documents(3)}
    make_shards(folder, sources, val=val, vocab_size=60)
    add_tokenizer(folder)
    return folder


def random_conversations(folder: Path) -> Path:
    """it: conversations, each with 0 to 40 further ends behind its own, whose ids say of which kind they are; en:
    nothing but ends."""
    rng = np.random.default_rng(0)

    def document() -> list[int]:
        return [*rng.integers(1, 60, rng.integers(5, 40)).tolist(), *[EOD] * int(rng.integers(0, 40))]

    sources = {"it": [document() for _ in range(60)], "en": [[EOD] * 400]}
    make_shards(folder, sources, val={"it": [document() for _ in range(9)]}, chats={"it": 6})
    add_tokenizer(folder)
    return folder


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


def around(
    where: Any,
    name: str,
    before: Callable[..., object] | None = None,
    after: Callable[..., object] | None = None,
    put: Callable[[Any, str, Any], object] = setattr,
) -> None:
    """From now on each call of a function or method runs `before` with its arguments first, and `after` with its result
    and them behind it. put: `monkeypatch.setattr`, where that is to end with the test."""
    original = getattr(where, name)

    def call(*arguments: Any, **named: Any) -> Any:
        if before is not None:
            before(*arguments)
        result = original(*arguments, **named)
        if after is not None:
            after(result, *arguments)
        return result

    put(where, name, call)


@dataclass
class Trial:
    """Runs of the trainer in this process, in a folder of their own. defaults: settings of all of them."""

    shards: Path
    folder: Path
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]
    defaults: dict[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        """The folder of a run that has no other name."""
        return self.folder / "run"

    def config(self, name: str = "run", /, **more: Any) -> TrainConfig:
        """The settings of a run in FOLDER/name; a mix has a length of its own."""
        values = self.defaults | {"out": str(self.folder / name)} | more
        if values.get("mix"):
            values.setdefault("seq_len", None)
        return tiny_config(self.shards, self.folder, **values)

    def train(self, name: str = "run", /, **more: Any) -> Path:
        """Run it to its end; returns its folder."""
        from train import loop

        config = self.config(name, **more)
        loop.train(config)
        return Path(config.out)

    def ends_with(self, error: type[Exception], words: str, name: str = "run", /, **more: Any) -> None:
        """Run it; it ends with an error that matches these words."""
        with pytest.raises(error, match=words):
            self.train(name, **more)

    def mix(self, *stages: tuple[int, ...], name: str = "mix.json", **more: int) -> str:
        """The path of a mix in FOLDER with these quotas; `more`: its length and seed."""
        return mix_of(self.shards, self.folder / name, *stages, **more)

    def around(self, where: Any, name: str, before: Any = None, after: Any = None) -> None:
        """`around`, to the end of the test."""
        around(where, name, before, after, self.patch.setattr)

    def said(self) -> str:
        """What was written to standard output since this was last asked."""
        return self.capture.readouterr().out


def _write_to(output: str) -> None:
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    freeze()


def _rank_jobs(
    rank: int, jobs: Sequence[tuple[int, int, Sequence[str]]], output: str, before: Callable[[], None] | None
) -> None:
    _write_to(output)
    from train.__main__ import main

    os.environ.update(_environment(rank, *jobs[0][:2]))
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


Job = tuple[int, Sequence[object]]
"""A number of ranks, and the arguments of `train` on each of them."""


class Ranks:
    """Processes of the ranks that work off jobs one after the other; `before` runs in each of them first."""

    def __init__(self, jobs: Sequence[Job], folder: Path, before: Callable[[], None] | None = None) -> None:
        from torch.distributed import TCPStore

        self.stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in jobs]
        texts = [
            (count, store.port, [str(part) for part in parts])
            for (count, parts), store in zip(jobs, self.stores, strict=True)
        ]
        self.output = folder / f"output-{self.stores[0].port}"
        self.processes: list[BaseProcess] = []
        for rank in range(max(count for count, _ in jobs)):
            given = (rank, texts, f"{self.output}-{rank}", before)
            self.processes.append(_CONTEXT.Process(target=_rank_jobs, args=given))
            self.processes[-1].start()

    def wait(self, timeout: float = 240) -> list[int | None]:
        """Exit codes of all ranks; kills what is left after `timeout` seconds, or waits for a rank in vain."""
        end = time.monotonic() + timeout
        while any(process.is_alive() for process in self.processes) and time.monotonic() < end:
            time.sleep(0.02)
            if len(self.stores) > 1 and any(process.exitcode for process in self.processes):
                break
        for process in self.processes:
            process.kill()
            process.join()
        return [process.exitcode for process in self.processes]

    def text(self) -> str:
        """What all ranks wrote."""
        paths = sorted(self.output.parent.glob(f"{self.output.name}-*"))
        return "".join(path.read_text() for path in paths)


def run_jobs(
    jobs: Sequence[Job], folder: Path, timeout: float = 600, before: Callable[[], None] | None = None
) -> str:
    """Run jobs to their end, all ranks ending well; returns what they wrote."""
    ranks = Ranks(jobs, folder, before)
    codes = ranks.wait(timeout)
    assert codes == [0] * len(codes), ranks.text()[-8000:]
    return ranks.text()


def column(run: Path, name: str) -> list[Any]:
    """One value of every step, in order; the steps are those from 1 on, each once."""
    records = read_lines(run / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    return [record[name] for record in records]
