"""The same 1,000 steps through `train` and the trainers of others, and how fast each reads beside its own loader.

    bash benchmarks/trainers.sh [FOLDER]     # an environment for each trainer in FOLDER, then all that is below

    torchrun --nproc-per-node RANKS benchmarks/trainers.py run NAME FOLDER STEPS   # goes on from its checkpoint
    python benchmarks/trainers.py speed NAME FOLDER                                # ours and its own, in turns
    python benchmarks/trainers.py collect FOLDER                                   # compare, results.json, results.md

Input: FOLDER/demo, the shards of pipelines/demo.toml, and FOLDER/mix.json; for speed FOLDER/random, 40 M random tokens.
Output: FOLDER/NAME/got, digests of the tensors that reached the trainer's step, FOLDER/NAME.json, millions of tokens a
second of one core. Of torchtitan, OLMo-core and transformers
the trainer itself runs, on CPUs; of Megatron-core, whose training loop is not on PyPI, the dataset and a sampler as
Megatron-LM's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

import pretok.stream
from pretok.base.storage import read_json, read_lines
from pretok.stream import View, data_hash, digest

SEQ_LEN, BATCH, STEPS = 64, 8, 1000
LONG, MICRO, SECONDS, TURNS = 4096, 8, 0.5, 5
"""For speed: tokens of a sequence, sequences of a micro-batch, seconds of a turn, turns of each."""
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ACCUMULATION = 2
PACKAGES = {
    "pytorch": "torch",
    "transformers": "transformers",
    "torchtitan": "torchtitan",
    "olmo": "ai2-olmo-core",
    "megatron": "megatron-core",
}


class Got:
    """Digests of what reached a trainer's step on this rank, a line {step, digest} for each micro-batch."""

    def __init__(self, folder: Path, start: int, micro: int) -> None:
        (folder / "got").mkdir(parents=True, exist_ok=True)
        self._file = (folder / "got" / f"{start}-{RANK}.jsonl").open("w", buffering=1)
        self._at, self._micro = start, micro

    def add(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        """The next micro-batch."""
        ids = torch.cat([inputs.cpu(), labels.cpu()[:, -1:]], dim=1).numpy()
        first = self._at + RANK * self._micro
        assert (inputs[:, 1:] == labels[:, :-1]).all()
        found = digest(range(first, first + len(ids)), ids)
        self._file.write(json.dumps({"step": first // BATCH, "digest": found}) + "\n")
        self._at += RANKS * self._micro


def example(section: str) -> Any:
    """`PretokDataLoader` of the first Python in a section of docs/trainers.md."""
    page = (Path(__file__).parents[1] / "docs" / "trainers.md").read_text(encoding="utf-8")
    code = page.split(f"\n## {section}\n")[1].split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"__name__": section}
    exec(compile(code, section, "exec", dont_inherit=True), names)
    return names["PretokDataLoader"]


def open_view(folder: Path) -> View:
    return pretok.stream.open(folder / "demo" / "shards", folder / "mix.json")


def done(out: Path) -> int:
    """Sequences that the run had read when it stopped."""
    path = out / "done.json"
    return int(read_json(path)["steps"]) * BATCH if path.exists() else 0


def run_pytorch(folder: Path, out: Path, steps: int) -> None:
    """A loop over `Loader`."""
    from pretok.integrations.pytorch import Loader

    micro = BATCH // RANKS // ACCUMULATION
    loader = Loader(open_view(folder), micro, rank=RANK, ranks=RANKS, workers=1)
    if (out / "state.json").exists():
        loader.load_state_dict(read_json(out / "state.json"))
    got = Got(out, loader.position, micro)
    for batch in loader:
        got.add(batch["input_ids"], batch["labels"])
        if loader.position == steps * BATCH:
            break
    if RANK == 0:
        (out / "state.json").write_text(json.dumps(loader.state_dict()))


def run_transformers(folder: Path, out: Path, steps: int) -> None:
    """A Trainer with a Llama of one layer."""
    from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

    from pretok.integrations.transformers import PretokTrainer

    micro = BATCH // RANKS // ACCUMULATION

    class Watched(PretokTrainer):
        def training_step(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            got.add(inputs["input_ids"], inputs["labels"])
            return super().training_step(model, inputs, *rest, **named)

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    arguments = TrainingArguments(
        output_dir=str(out / "run"),
        max_steps=steps,
        save_steps=steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=ACCUMULATION,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_steps=100,
    )
    got = Got(out, done(out), micro)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=4000, **sizes))
    trainer = Watched(model=model, args=arguments, view=open_view(folder))
    trainer.train(resume_from_checkpoint=bool(done(out)))


class Cpu:
    """torch.cpu with what torchtitan asks a device module for beside that."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name, lambda *_, **__: None)

    def get_device_name(self, *_: Any) -> str:
        return "cpu"

    def get_device_properties(self, *_: Any) -> Any:
        return SimpleNamespace(total_memory=1 << 34, name="cpu")

    def current_device(self) -> int:
        return 0

    def memory_stats(self, *_: Any) -> Any:
        return Counter[str]()


def run_torchtitan(folder: Path, out: Path, steps: int) -> None:
    """Its Trainer with the debug model in one layer. It knows no CPU by itself: this names one to it."""
    import torchtitan.tools.utils as utils

    utils.device_type, utils.device_module = "cpu", Cpu()
    from torchtitan.models import llama3
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel
    from torchtitan.trainer import Trainer

    if not hasattr(torch.distributed, "set_timeout"):  # torchtitan 0.3 wants a later torch than 2.13
        torch.distributed.set_timeout = lambda *_: None  # type: ignore[attr-defined]

    micro = BATCH // RANKS // ACCUMULATION
    config = llama3_debugmodel()
    model = config.model_spec.model
    model.dim = model.tok_embeddings.embedding_dim = model.norm.normalized_shape = (
        model.lm_head.in_features
    ) = 32
    model.vocab_size = model.tok_embeddings.num_embeddings = model.lm_head.out_features = 4000
    rope = llama3.ComplexRoPE.Config(dim=16, max_seq_len=SEQ_LEN, theta=500_000)
    model.layers = llama3._build_llama3_layers(
        n_layers=1, dim=32, n_heads=2, hidden_dim=64, rope=rope, attn_backend="flex"
    )
    # Flex attention has no backward pass on a CPU.
    model.layers[0].attention.inner_attention = ScaledDotProductAttention.Config()
    config.loss.loss_fn.global_vocab_size = 4000
    config.hf_assets_path = str(folder / "demo" / "vocab")
    config.dump_folder = str(out / "run")
    config.dataloader = example("torchtitan").Config(
        shards=str(folder / "demo" / "shards"), mix=str(folder / "mix.json")
    )
    config.training.local_batch_size, config.training.global_batch_size = micro, BATCH
    config.training.seq_len, config.training.steps = SEQ_LEN, steps
    config.training.disable_cuda_graphs = True
    config.parallelism.spmd_backend = "partial_dtensor"
    config.parallelism.data_parallel_replicate_degree = RANKS  # FSDP's sums are not those of gloo
    config.parallelism.data_parallel_shard_degree = 1
    config.checkpoint.enable, config.checkpoint.interval = True, steps
    config.checkpoint.last_save_model_only = False
    config.validator.enable = False
    config.metrics.log_freq = 100
    got = Got(out, done(out), micro)

    class Watched(Trainer):
        def post_dataloading_process(self, inputs: Any, labels: Any) -> Any:
            got.add(inputs["input"], labels)
            return super().post_dataloading_process(inputs, labels)

    trainer = Watched(config)
    trainer.train()
    trainer.close()


def run_olmo(folder: Path, out: Path, steps: int) -> None:
    """Its Trainer with a model of one layer."""
    from olmo_core.distributed.parallel import DataParallelType
    from olmo_core.nn.transformer import TransformerConfig
    from olmo_core.optim import AdamWConfig
    from olmo_core.train import (
        Duration,
        TrainerConfig,
        prepare_training_environment,
        teardown_training_environment,
    )
    from olmo_core.train.callbacks import Callback, CheckpointerCallback
    from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig

    prepare_training_environment(seed=0, backend="cpu:gloo")
    got = Got(out, done(out), BATCH // RANKS)

    class Plain(example("OLMo-core")):  # type: ignore[misc]
        """Its attention inside documents needs a GPU."""

        def form(self, batch: Any) -> Any:
            return {"input_ids": batch.inputs, "labels": batch.labels}

    class Watch(Callback):
        def pre_step(self, batch: Any) -> None:
            got.add(batch["input_ids"], batch["labels"])

    model = TransformerConfig.llama_like(d_model=32, n_layers=1, n_heads=2, vocab_size=4000).build(
        init_device="cpu"
    )
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=BATCH // RANKS // ACCUMULATION * SEQ_LEN,
        max_sequence_length=SEQ_LEN,
        optim=AdamWConfig(lr=1e-3),
        dp_config=TransformerDataParallelConfig(name=DataParallelType.ddp),
    ).build(model, device=torch.device("cpu"))
    loader = Plain(
        open_view(folder),
        global_batch_size=BATCH * SEQ_LEN,
        work_dir=out / "work",
        dp_world_size=RANKS,
        dp_rank=RANK,
    )
    config = TrainerConfig(
        save_folder=str(out / "run"),
        work_dir=str(out / "work"),
        device="cpu",
        async_bookkeeping=False,
        save_overwrite=True,
        max_duration=Duration.steps(steps),
        metrics_collect_interval=100,
        callbacks={
            "checkpointer": CheckpointerCallback(save_interval=steps, save_async=False),
            "watch": Watch(),
        },
    )
    trainer = config.build(module, loader)
    trainer.fit()
    teardown_training_environment()


def megatron_config(length: int, vocab_size: int, cache: Path | None = None, blend: Any = None) -> Any:
    """A configuration of its datasets, with a tokenizer that has a size and an end."""
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig

    return GPTDatasetConfig(
        random_seed=0,
        sequence_length=length,
        blend=blend,
        split="1,0,0" if blend else None,
        path_to_cache=str(cache) if cache else None,
        tokenizer=SimpleNamespace(vocab_size=vocab_size, eod=0, pad=-1, unique_identifiers={}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )


def in_order(dataset: Any, consumed: int, micro: int) -> Iterator[Any]:
    """torch's DataLoader over a sampler that reads as Megatron-LM's MegatronPretrainingSampler does."""
    starts = range(consumed + RANK * micro, len(dataset) - micro * RANKS + RANK * micro + 1, micro * RANKS)
    sampler: Any = [list(range(start, start + micro)) for start in starts]
    return iter(torch.utils.data.DataLoader(dataset, batch_sampler=sampler))


def run_megatron(folder: Path, out: Path, steps: int) -> None:
    """The dataset in order, from `consumed_train_samples` on."""
    from pretok.integrations.megatron import PretokDataset

    micro, consumed, config = BATCH // RANKS // ACCUMULATION, done(out), megatron_config(SEQ_LEN, 4000)
    got = Got(out, consumed, micro)
    view = open_view(folder)
    single = in_order(PretokDataset(view, config, STEPS * BATCH), consumed, micro)
    for batch in itertools.islice(single, (steps * BATCH - consumed) // (micro * RANKS)):
        got.add(batch["tokens"], batch["labels"])


RUN: dict[str, Callable[[Path, Path, int], None]] = {
    "pytorch": run_pytorch,
    "transformers": run_transformers,
    "torchtitan": run_torchtitan,
    "olmo": run_olmo,
    "megatron": run_megatron,
}


def long_view(folder: Path) -> View:
    return pretok.stream.open(folder / "random", seq_len=LONG)


def speed_pytorch(folder: Path) -> dict[str, Any]:
    """Ours beside random windows of the same file, as nanoGPT reads."""
    from pretok.integrations.pytorch import Loader

    tokens = np.memmap(next((folder / "random" / "random").glob("*.bin")), np.uint16, "r")

    def windows() -> Iterator[Any]:
        while True:
            starts = torch.randint(len(tokens) - LONG, (MICRO,)).tolist()
            yield [
                torch.stack(
                    [torch.from_numpy(tokens[at + by : at + by + LONG].astype(np.int64)) for at in starts]
                )
                for by in (0, 1)
            ]

    view = long_view(folder)
    return {"ours": lambda: iter(Loader(view, MICRO)), "random windows": windows}


def speed_transformers(folder: Path) -> dict[str, Any]:
    """Ours beside the Trainer's loader over a dataset of rows, collated by its default."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from pretok.integrations.transformers import PretokTrainer

    tokens = np.memmap(next((folder / "random" / "random").glob("*.bin")), np.uint16, "r")

    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(tokens) // LONG

        def __getitem__(self, row: int) -> Any:
            ids = torch.from_numpy(tokens[row * LONG : (row + 1) * LONG].astype(np.int64))
            return {"input_ids": ids, "labels": ids}

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50_000, **sizes))
    arguments = TrainingArguments(
        output_dir=str(folder / "none"),
        max_steps=1,
        per_device_train_batch_size=MICRO,
        use_cpu=True,
        report_to="none",
    )
    ours = PretokTrainer(model=model, args=arguments, view=long_view(folder))
    own = Trainer(model=model, args=arguments, train_dataset=Rows())

    def again() -> Iterator[Any]:
        ours.loader.position = 0
        return iter(ours.get_train_dataloader())

    return {
        "ours": again,
        "own": lambda: iter(own.get_train_dataloader()),
    }


def speed_torchtitan(folder: Path) -> dict[str, Any]:
    """Ours beside its loader of text, which tokenizes while it reads: it has none for token files."""
    from torchtitan.components.tokenizer import HuggingFaceTokenizer
    from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader

    text = folder / "text"
    text.mkdir(exist_ok=True)
    lines = [
        json.dumps({"text": json.loads(line)["text"]}) + "\n"
        for path in sorted((Path(pretok.__file__).parent / "read" / "sample").glob("*.jsonl"))
        for line in path.open(encoding="utf-8")
    ]
    (text / "sample.jsonl").write_text("".join(lines))
    tokenizer = HuggingFaceTokenizer(tokenizer_path=str(folder / "demo" / "vocab"))
    given = {"dp_world_size": 1, "dp_rank": 0, "seq_len": LONG, "local_batch_size": MICRO}
    ours = example("torchtitan").Config(shards=str(folder / "random"))
    own = HuggingFaceTextDataLoader.Config(dataset="c4_test", dataset_path=str(text))
    return {
        "ours": lambda: iter(ours.build(tokenizer=None, **given)),
        "own": lambda: iter(own.build(tokenizer=tokenizer, **given)),
    }


def speed_olmo(folder: Path) -> dict[str, Any]:
    """Ours beside its loader of a token file, with starts of documents and without."""
    from olmo_core.data import NumpyDataLoaderConfig, NumpyFSLDatasetConfig, TokenizerConfig

    path = next((folder / "random" / "random").glob("*.bin"))
    tokenizer = TokenizerConfig(vocab_size=50_000, eos_token_id=0, pad_token_id=0)

    def own(documents: bool) -> Callable[[], Iterator[Any]]:
        dataset = NumpyFSLDatasetConfig(
            tokenizer=tokenizer,
            paths=[str(path)],
            sequence_length=LONG,
            generate_doc_lengths=documents,
            work_dir=str(folder / "olmo-work"),
        ).build()
        loader = NumpyDataLoaderConfig(global_batch_size=MICRO * LONG, seed=0).build(dataset)

        def again() -> Iterator[Any]:
            loader.reset()
            loader.reshuffle(1)
            return iter(loader)

        return again

    ours = example("OLMo-core")
    given = {"global_batch_size": MICRO * LONG, "work_dir": folder, "dp_world_size": 1, "dp_rank": 0}
    return {
        "ours with documents": lambda: iter(ours(long_view(folder), **given, fs_local_rank=0)),
        "own with documents": own(True),
        "own": own(False),
    }


def speed_megatron(folder: Path) -> dict[str, Any]:
    """Ours beside its blended index over the same shards, both behind its loader."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset

    from pretok.integrations.megatron import PretokDataset

    prefix = str(next((folder / "random" / "random").glob("*.bin")).with_suffix(""))
    view = long_view(folder)
    plain = megatron_config(LONG, 50_000)
    config = megatron_config(LONG, 50_000, folder / "megatron-cache", ([prefix], None))
    own, _, _ = BlendedMegatronDatasetBuilder(GPTDataset, (len(view), 0, 0), lambda: True, config).build()
    ours = PretokDataset(view, plain)
    return {
        "ours": lambda: in_order(ours, 0, MICRO),
        "own": lambda: in_order(own, 0, MICRO),
    }


SPEED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "pytorch": speed_pytorch,
    "transformers": speed_transformers,
    "torchtitan": speed_torchtitan,
    "olmo": speed_olmo,
    "megatron": speed_megatron,
}


def measure(name: str, folder: Path) -> dict[str, float]:
    """Millions of tokens a second of one core, medians, in turns. CPU time, which a busy machine stretches less."""
    torch.set_num_threads(1)
    loaders = SPEED[name](folder)
    found: dict[str, list[float]] = {loader: [] for loader in loaders}
    for _ in range(TURNS):
        for loader, make in loaders.items():
            batches = itertools.chain.from_iterable(make() for _ in itertools.count())
            next(batches)
            count, began = 0, time.process_time()
            while time.process_time() - began < SECONDS:
                next(batches)
                count += 1
            found[loader].append(count * MICRO * LONG / 1e6 / (time.process_time() - began))
    return {loader: statistics.median(speeds) for loader, speeds in found.items()}


def hashes_of(folder: Path) -> list[str]:
    """`data_hash` after each step of all that the ranks got."""
    steps = Counter[int]()
    for path in folder.glob("*.jsonl"):
        for line in read_lines(path):
            steps[line["step"]] += line["digest"]
    hashes = [""]
    for step in range(STEPS):
        hashes.append(data_hash(hashes[-1], steps[step]))
    return hashes[1:]


def collect(folder: Path) -> None:
    """Compare with `train` step by step, and write the section `trainers`."""
    from benchmarks.measure import save
    from benchmarks.report import write_report

    wanted = [record["data_hash"] for record in read_lines(folder / "train" / "metrics.jsonl")]
    assert len(wanted) == STEPS, f"train has {len(wanted)} steps"
    found: dict[str, Any] = {}
    for name in RUN:
        steps = f"{name}: steps equal to those of train"
        if (path := folder / name / "failed.txt").exists():
            found[steps] = path.read_text().strip()
        else:
            assert hashes_of(folder / name / "got") == wanted, f"{name} differs from train"
            found[steps] = len(wanted)
        speeds = folder / f"{name}.json"
        if speeds.exists():
            data = read_json(speeds)
            found[f"{name}: version"] = data.pop("version")
            found |= {f"{name}: {loader}, M tokens/s": speed for loader, speed in data.items()}
            if "own" in data:
                found[f"{name}: ours / own"] = data["ours"] / data["own"]
    save("trainers", found)
    write_report()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "speed", "collect"))
    parser.add_argument("words", nargs="+", metavar="NAME FOLDER STEPS")
    arguments = parser.parse_args()
    if arguments.what == "collect":
        collect(Path(arguments.words[0]))
        return
    name, folder = arguments.words[0], Path(arguments.words[1]).resolve()
    if arguments.what == "speed":
        speeds = {"version": version(PACKAGES[name]), **measure(name, folder)}
        (folder / f"{name}.json").write_text(json.dumps(speeds))
        print(name, speeds)
        return
    steps, out = int(arguments.words[2]), folder / name
    out.mkdir(parents=True, exist_ok=True)
    if name in ("pytorch", "megatron"):  # whose ranks would not wait for each other
        torch.distributed.init_process_group("gloo")
    RUN[name](folder, out, steps)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    if RANK == 0:
        (out / "done.json").write_text(json.dumps({"steps": steps}))


if __name__ == "__main__":
    main()
