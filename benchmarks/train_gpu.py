"""How fast the trainer is on this machine's GPU, and how well `train plan` foresees its memory.

    python benchmarks/train_gpu.py                          # model 1b, 4,096 tokens, under five minutes
    python benchmarks/train_gpu.py --model debug --seq-len 128 --micro-batch 8    # also without a GPU

Input: nothing but the machine. Output: a table, with --json FILE its rows too. Every row is a fresh process of the
real trainer on random tokens, with the largest micro-batch that the plan finds to fit. Needs torch, numpy, safetensors.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.train_shards import write_random_shards
from train.config import TrainConfig
from train.model.sizes import ModelConfig, model_config
from train.parallel.devices import Device, find_device
from train.parallel.layout import Layout
from train.tools.memory import count_tensors, largest_micro_batch
from train.tools.tune import run_trial

VARIANTS = (("none", True), ("ops", True), ("full", True), ("none", False))
"""(checkpointing, compile), the likely best first: a slow machine may not come to the last."""
ONE = Layout(1, 1, 1)


def micro_batch_for(model: ModelConfig, config: TrainConfig, device: Device, seq_len: int) -> int:
    """The largest that fits by plan, at most 32; where memory is unknown 8."""
    if device.memory is None:
        return 8
    return min(32, largest_micro_batch(model, ONE, 1, seq_len, config, device.memory / 1e9))


def measure(space: argparse.Namespace, device: Device, shards: Path, work: Path) -> list[dict[str, Any]]:
    """One row per variant: settings, measured figures, predicted bytes."""
    model = model_config(space.model)
    precision = "bf16" if device.is_gpu else "fp32"
    rows: list[dict[str, Any]] = []
    started = time.monotonic()
    for checkpointing, compiled in VARIANTS:
        if compiled and not device.is_gpu:
            continue  # nothing about a GPU is learned from compiling for the CPU
        if time.monotonic() - started > space.seconds:
            print(f"time is up after {len(rows)} of {len(VARIANTS)} variants", flush=True)
            break
        config = TrainConfig(
            shards=str(shards),
            model=space.model,
            seq_len=space.seq_len,
            checkpointing=checkpointing,
            compile=compiled,
            precision=precision,
        )
        size = space.micro_batch or micro_batch_for(model, config, device, space.seq_len)
        if size == 0:
            rows.append(
                {"checkpointing": checkpointing, "compile": compiled, "outcome": "does not fit by plan"}
            )
            continue
        choice = {"micro_batch": size, "checkpointing": checkpointing, "compile": compiled}
        predicted = count_tensors(model, ONE, size, 1, space.seq_len, config).total
        rows.append(
            run_trial(config, choice, work / "trial", space.steps, 1) | {"memory_predicted": predicted}
        )
        print(row(rows[-1]), flush=True)
    return rows


def row(result: dict[str, Any]) -> str:
    """One line of the table."""
    head = f"{result['checkpointing']:<8} {'yes' if result['compile'] else 'no':<8} "
    if result["outcome"] != "ok":
        return f"{head} {result.get('micro_batch', ''):>5}  {result['outcome']}"
    peak, predicted = result["memory_peak"], result["memory_predicted"]
    memory = "n/a" if peak is None else f"{peak / 2**30:.1f}"
    ratio = "n/a" if peak is None else f"{predicted / peak - 1:+.1%}"
    mfu = "n/a" if result.get("mfu") is None else f"{result['mfu']:.1%}"
    wait = result["data_wait"] * result["tokens_per_second_per_device"] / result["tokens"]
    return (
        f"{head} {result['micro_batch']:>5} {result['tokens_per_second_per_device']:>10,.0f} {mfu:>7} "
        f"{memory:>9} {predicted / 2**30:>9.1f} {ratio:>8} {wait:>9.3%}"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="1b")
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--micro-batch", type=int, help="instead of the largest that fits")
    parser.add_argument("--steps", type=int, default=12, help="per variant; the first three do not count")
    parser.add_argument("--seconds", type=float, default=210, help="start no variant after so long")
    parser.add_argument("--json", type=Path, help="write the rows here")
    space = parser.parse_args()
    device = find_device()
    peak = "n/a" if device.peak is None else f"{device.peak / 1e12:.1f} TFLOP/s"
    print(
        f"{space.model}, {space.seq_len} tokens, {device.name}, dense bf16 peak {peak} ({device.peak_source})"
    )
    print("MFU: (6 x weights of products + 12 x layers x dim x length) x tokens/s / peak; memory in GiB")
    print(
        f"{'recompute':<8} {'compile':<7} {'batch':>5} {'tokens/s':>10} {'MFU':>7} {'measured':>9} "
        f"{'predicted':>9} {'error':>8} {'data wait':>9}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        shards = write_random_shards(work / "shards", 33 * space.steps * (space.seq_len + 1))
        rows = measure(space, device, shards, work)
    if space.json:
        space.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if not any(result["outcome"] == "ok" for result in rows):
        sys.exit("no variant ran")


if __name__ == "__main__":
    main()
