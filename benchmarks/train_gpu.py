"""The table of a GPU: how fast the trainer is on it, and how well `train plan` foresees its memory.

    python benchmarks/train_gpu.py                                   # 350m and 1b at 4k and 32k tokens
    python benchmarks/train_gpu.py --models debug --lengths 32 --micro-batch 1 --steps 5    # also without a GPU

Input: nothing but the machine. Output: tokens/s, MFU and memory beside the plan's estimate for each model and length,
with causal attention and inside of documents (varlen), eager and compiled (blocks and loss), with each kind of
recomputation; then the loss alone, eager and fused. With --json FILE the rows too. Every row is a fresh process of the
real trainer on random tokens, with the largest micro-batch that the plan finds to fit. No GPU has run it yet.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.train_shards import write_random_shards
from train.config import TrainConfig
from train.model.loss import linear_cross_entropy
from train.model.sizes import LOSS_CHUNK, ModelConfig, model_config
from train.parallel.devices import Device, find_device
from train.parallel.layout import Layout
from train.plan import count_tensors, largest_micro_batch
from train.tune import run_trial

OWN_SIZES = {
    "350m": "dim = 1024\nlayers = 24\nheads = 16\nkv_heads = 16\nhidden = 2816\ntied = false\n",
}
"""Models that are no preset, as TOML."""
VARIANTS = (
    ("causal", "none", True),
    ("causal", "none", False),
    ("causal", "ops", True),
    ("causal", "full", True),
    ("document", "none", True),
    ("document", "none", False),
)
"""(attention, checkpointing, compile), the likely best first: a slow machine may not come to the last."""
ONE = Layout(1, 1, 1)
ROUNDS = 5


def cases(space: argparse.Namespace, device: Device, shards: Path, work: Path) -> Iterator[TrainConfig]:
    """The settings of each row, but for its micro-batch."""
    for name in space.models.split(","):
        model = name
        if name in OWN_SIZES:
            path = work / f"{name}.toml"
            path.write_text(OWN_SIZES[name], encoding="utf-8")
            model = str(path)
        for length in map(int, space.lengths.split(",")):
            for attention, checkpointing, compiled in VARIANTS:
                if compiled and not device.is_gpu:
                    continue  # nothing about a GPU is learned from compiling for the CPU
                yield TrainConfig(
                    shards=str(shards),
                    model=model,
                    seq_len=length,
                    attention=attention,
                    checkpointing=checkpointing,
                    compile=compiled,
                    precision="bf16" if device.is_gpu else "fp32",
                )


def measure(
    config: TrainConfig, model: ModelConfig, device: Device, space: Any, work: Path
) -> dict[str, Any]:
    """One row: settings, measured figures, predicted bytes."""
    length = config.seq_len or model.seq_len
    size = space.micro_batch or 8
    if space.micro_batch is None and device.is_gpu:
        memory = torch.cuda.get_device_properties(device.device).total_memory
        size = min(32, largest_micro_batch(model, ONE, 1, length, config, memory / 1e9))
    choice = {
        "model": config.model,
        "seq_len": length,
        "attention": config.attention,
        "checkpointing": config.checkpointing,
        "compile": config.compile,
        "micro_batch": size,
    }
    if size == 0:
        return choice | {"outcome": "does not fit by plan"}
    predicted = count_tensors(model, ONE, size, 1, length, config).total
    return run_trial(config, choice, work / "trial", space.steps, 1) | {"memory_predicted": predicted}


def row(result: dict[str, Any]) -> str:
    """One line of the table."""
    head = (
        f"{Path(result['model']).stem:<6} {result['seq_len']:>6} {result['attention']:<9} "
        f"{result['checkpointing']:<8} {'yes' if result['compile'] else 'no':<8} {result['micro_batch']:>5}"
    )
    if result["outcome"] != "ok":
        return f"{head}  {result['outcome']}"
    peak, predicted = result["memory_peak"], result["memory_predicted"]
    memory = "n/a" if peak is None else f"{peak / 2**30:.1f}"
    ratio = "n/a" if peak is None else f"{predicted / peak - 1:+.1%}"
    mfu = "n/a" if result.get("mfu") is None else f"{result['mfu']:.1%}"
    wait = result["data_wait"] * result["tokens_per_second_per_device"] / result["tokens"]
    return (
        f"{head} {result['tokens_per_second_per_device']:>10,.0f} {mfu:>7} "
        f"{memory:>9} {predicted / 2**30:>9.1f} {ratio:>8} {wait:>9.3%}"
    )


def loss_seconds(model: ModelConfig, device: Device, tokens: int, *, fuse: bool) -> float:
    """The best of ROUNDS forward and backward passes of the loss alone, after one that compiles."""
    dtype = torch.bfloat16 if device.is_gpu else torch.float32
    hidden = torch.randn(tokens, model.dim, dtype=dtype, device=device.device, requires_grad=True)
    weight = torch.randn(model.padded_vocab, model.dim, dtype=dtype, device=device.device, requires_grad=True)
    target = torch.randint(0, model.vocab_size, (tokens,), device=device.device)
    seconds = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        total, _ = linear_cross_entropy(hidden, weight, target, model.vocab_size, chunk=LOSS_CHUNK, fuse=fuse)
        total.backward()
        if device.is_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="350m,1b")
    parser.add_argument("--lengths", default="4096,32768")
    parser.add_argument("--micro-batch", type=int, help="instead of the largest that fits")
    parser.add_argument("--steps", type=int, default=12, help="per row; the first three do not count")
    parser.add_argument("--seconds", type=float, default=1500, help="start no row after so long")
    parser.add_argument("--json", type=Path, help="write the rows here")
    space = parser.parse_args()
    device, started = find_device(), time.monotonic()
    peak = "n/a" if device.peak is None else f"{device.peak / 1e12:.1f} TFLOP/s"
    print(f"{device.name}, torch {torch.__version__}, dense bf16 peak {peak} ({device.peak_source})")
    print("MFU: (6 x weights of products + 12 x layers x dim x length) x tokens/s / peak; memory in GiB")
    print(
        f"{'model':<6} {'length':>6} {'attention':<9} {'again':<8} {'compiled':<8} {'batch':>5} {'tokens/s':>10} "
        f"{'MFU':>7} {'measured':>9} {'predicted':>9} {'error':>8} {'data wait':>9}",
        flush=True,
    )
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        work, longest = Path(name), max(map(int, space.lengths.split(",")))
        shards = write_random_shards(work / "shards", 33 * space.steps * (longest + 1))
        todo = list(cases(space, device, shards, work))
        for config in todo:
            if time.monotonic() - started > space.seconds:
                print(f"time is up after {len(rows)} of {len(todo)} rows", flush=True)
                break
            rows.append(measure(config, model_config(config.sizes), device, space, work))
            print(row(rows[-1]), flush=True)
        for model in dict.fromkeys(config.sizes for config in todo):
            seconds = [
                loss_seconds(model_config(model), device, LOSS_CHUNK if device.is_gpu else 64, fuse=fuse)
                for fuse in ([False, True] if device.is_gpu else [False])
            ]
            shown = ", fused ".join(f"{1e3 * value:.1f} ms" for value in seconds)
            print(f"{Path(model).stem}: loss alone, forward and backward: eager {shown}", flush=True)
    if space.json:
        space.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if not any(result["outcome"] == "ok" for result in rows):
        sys.exit("no row ran")


if __name__ == "__main__":
    main()
