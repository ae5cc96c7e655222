"""Retention, metrics, plan, tune, the command under torchrun, and learning."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import needs

torch = needs("torch")
from pretok.base.errors import UsageError
from tests.support import make_shards
from tests.train_support import column, model_file, random_shards, run_ranks
from train.__main__ import main
from train.checkpoint.meta import Identity, Meta, RunState
from train.checkpoint.save import to_keep
from train.config import TrainConfig
from train.model.sizes import PRESETS
from train.parallel.mesh import Layout
from train.run import loop
from train.run.goodput import Goodput, GoodputFile, Restart
from train.run.metrics import append_line, cut_after, read_lines
from train.tools import tune
from train.tools.memory import count_tensors, largest_micro_batch, rule_of_thumb
from train.tools.plan import GIB

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_shards(tmp_path_factory.mktemp("shards"))


def settings(shards: Path, folder: Path, **more: Any) -> TrainConfig:
    values: dict[str, Any] = {"shards": str(shards), "out": str(folder / "run"), "seq_len": 16, "workers": 0}
    return TrainConfig(**values | {"model": model_file(folder), "global_batch": 8, "steps": 8} | more)


losses = st.none() | st.floats(0, 10)


def meta_of(step: int, val_loss: float | None) -> Meta:
    identity = Identity(PRESETS["debug"], 8, 0, "", "")
    return Meta(step, RunState(step=step), val_loss, identity, {}, 0)


@given(
    found=st.lists(st.tuples(st.integers(1, 500), losses), min_size=1, unique_by=lambda pair: pair[0]),
    last=st.integers(1, 4),
    best=st.integers(0, 3),
    milestone=st.sampled_from([0, 7, 100]),
)
def test_retention_keeps_the_newest_the_best_and_milestones(
    found: list[tuple[int, float | None]], last: int, best: int, milestone: int
) -> None:
    found.sort()
    metas = {Path(f"step-{step:08d}"): meta_of(step, loss) for step, loss in found}
    kept = to_keep(metas, TrainConfig(keep_last=last, keep_best=best, milestone=milestone))
    assert set(list(metas)[-last:]) <= kept
    rated = sorted(loss for _, loss in found if loss is not None)
    assert sum(metas[path].val_loss in rated[:best] for path in kept) >= min(best, len(rated))
    for path, meta in metas.items():
        if milestone and meta.step % milestone == 0:
            assert path in kept
    milestones = [step for step, _ in found if milestone and step % milestone == 0]
    assert len(kept) <= last + best + len(milestones)


def test_retention_in_a_run(shards: Path, tmp_path: Path) -> None:
    loop.train(settings(shards, tmp_path, steps=9, save_every="2", keep_last=1, milestone=4))
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").glob("step-*"))
    assert names == ["step-00000004", "step-00000008", "step-00000009"]
    assert (tmp_path / "run/checkpoints/latest").read_text() == "step-00000009\n"


def test_best_by_validation_is_saved_at_once(shards: Path, tmp_path: Path) -> None:
    config = settings(shards, tmp_path, steps=6, lr=0.01, warmup=1, val_every=1, val_sequences=9)
    loop.train(TrainConfig(**config.as_dict() | {"keep_best": 1, "keep_last": 1, "save_every": "1000"}))
    found = read_lines(tmp_path / "run/validation.jsonl")
    assert [record["step"] for record in found] == [1, 2, 3, 4, 5, 6]
    assert set(found[0]["sources"]) == {"it", "en"}
    best = min(found, key=lambda record: float(record["val_loss"]))
    names = {path.name for path in (tmp_path / "run/checkpoints").glob("step-*")}
    assert f"step-{best['step']:08d}" in names


def test_validation_does_not_depend_on_ranks(shards: Path, tmp_path: Path) -> None:
    for count in (1, 2):
        arguments = ["--shards", shards, "--model", model_file(tmp_path), "--out", tmp_path / str(count)]
        more = ["--seq-len", 16, "--global-batch", 8, "--steps", 2, "--val-every", 1, "--val-sequences", 7]
        run_ranks(count, [*arguments, *more, "--workers", 0], tmp_path)
    one, two = (read_lines(tmp_path / str(count) / "validation.jsonl") for count in (1, 2))
    assert [record["val_loss"] for record in one] == pytest.approx([record["val_loss"] for record in two])


def test_full_disk_is_found_before_the_run(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = types.SimpleNamespace(free=1000)
    monkeypatch.setattr("train.checkpoint.save.shutil.disk_usage", lambda _: usage)
    with pytest.raises(UsageError, match="GB free and needs"):
        loop.train(settings(shards, tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 10_000}, "do not fit"),
        ({"steps": 5, "tokens": 5}, "not both"),
        ({"model": "7b"}, "neither a preset"),
        ({"seq_len": 100_000}, "sequence"),
    ],
)
def test_impossible_runs_are_refused(
    shards: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        loop.train(settings(shards, tmp_path, **change))
    with pytest.raises(UsageError, match="--shards is missing"):
        loop.train(TrainConfig(out=str(tmp_path)))


def test_metrics_files(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == []
    for step in range(1, 6):
        append_line(path, {"step": step})
    with path.open("a") as file:
        file.write('{"step": 6')  # a kill
    assert [record["step"] for record in cut_after(path, 3)] == [4, 5]
    assert [record["step"] for record in read_lines(path)] == [1, 2, 3]


def test_goodput_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 40.0, 45.0, 95.0])
    monkeypatch.setattr("train.run.goodput.time.monotonic", lambda: next(clock))
    goodput = Goodput(0.0)
    goodput.enter("training")  # at 10
    with goodput.spent("saving"):  # from 40 to 45
        pass
    path = tmp_path / "goodput.jsonl"
    said = GoodputFile(path).write(goodput.segment(8.0, 10, 2, 14.4))
    spent = {"initialisation": 10.0, "training": 72.0, "validation": 0.0, "saving": 5.0, "data": 8.0}
    [line] = read_lines(path)
    assert line == line | spent | {"steps": 10, "lost_steps": 2, "lost_seconds": 14.4}
    # 72 s of training less 14.4 s done twice, of 95 s.
    assert said.startswith("goodput: 60.6% of 0.03 h in 1 segments")


def test_goodput_of_killed_segments(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed segment leaves its line, and what was lost is taken off in seconds: never less than nothing."""
    original = loop.train_step

    def killed(*arguments: Any, **named: Any) -> Any:
        if arguments[2] == 7:
            raise KeyboardInterrupt
        return original(*arguments, **named)

    config = settings(shards, tmp_path, steps=8, save_every="100", log_every=2)
    path = tmp_path / "run/goodput.jsonl"
    monkeypatch.setattr(loop, "train_step", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            loop.train(config)
        with path.open("a") as file:
            file.write('{"initialisation": 3')  # a line that the kill cut short
    monkeypatch.setattr(loop, "train_step", original)
    loop.train(config)
    first, second, third = read_lines(path)
    assert (first["steps"], second["steps"], third["steps"]) == (5, 5, 8)  # the line before the kill
    assert (first["lost_steps"], second["lost_steps"], third["lost_steps"]) == (0, 5, 5)
    assert 0 < second["lost_seconds"] < 60
    old = {"initialisation": 1.0, "training": 1.0, "validation": 0.0, "saving": 0.0, "data": 0.0, "steps": 10}
    path.write_text(f"{json.dumps(old | {'lost_steps': 30})}\n")  # as written before there were seconds
    assert GoodputFile(path).write(Goodput(time.monotonic()).segment(0, 0, 0, 0)).startswith("goodput: 50.0%")


def test_goodput_of_a_restart_inside_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the last line of the segment before to the start of the process nothing useful was done."""
    path = tmp_path / "goodput.jsonl"
    began = time.monotonic()
    GoodputFile(path, Restart(1, "exit code 137"), began).write(Goodput(began).segment(0.0, 1, 0, 0.0))
    (line,) = read_lines(path)
    assert (line["restart"], line["restarting"]) == ("exit code 137", 0.0)  # nothing went before
    path.write_text(json.dumps(line | {"time": "2026-01-01T00:00:00Z", "training": 60.0}) + "\n")
    monkeypatch.setattr("train.run.goodput.time.time", lambda: 1767225600.0 + 50)  # 50 s after
    said = GoodputFile(path, Restart(2, "lost node7"), time.monotonic() - 10).write(
        Goodput(time.monotonic()).segment(0.0, 1, 0, 0.0)
    )
    assert read_lines(path)[1]["restarting"] == pytest.approx(40, abs=1)
    assert "restarting 40.0%" in said
    assert GoodputFile(path, Restart(), began).write(Goodput(time.monotonic()).segment(0.0, 1, 0, 0.0))
    assert read_lines(path)[2]["restarting"] == 0.0  # the next job; the queue is not counted


def test_wandb_is_offline_with_one_id_for_the_chain(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    logged: list[int] = []

    class _Run:
        def log(self, numbers: dict[str, float], step: int) -> None:
            assert "loss" in numbers
            logged.append(step)

        def finish(self) -> None:
            logged.append(-1)

    def init(**options: Any) -> _Run:
        calls.append(options)
        return _Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    for steps in (2, 4):
        loop.train(settings(shards, tmp_path, wandb="p", steps=steps, schedule="constant"))
    assert [call["mode"] for call in calls] == ["offline", "offline"]
    assert calls[0]["id"] == calls[1]["id"]
    assert logged == [1, 2, -1, 3, 4, -1]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="needs the package wandb"):
        loop.train(settings(shards, tmp_path, wandb="p", steps=4, schedule="constant"))


def test_tensorboard(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, int]] = []

    class _Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            assert (Path(folder).name, purge_step) == ("tensorboard", 1)

        def add_scalar(self, key: str, value: float, step: int) -> None:
            assert math.isfinite(value)
            written.append((key, step))

        def close(self) -> None:
            pass

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=_Writer))
    loop.train(settings(shards, tmp_path, tensorboard=True, steps=2))
    assert {("loss", 1), ("loss", 2), ("grad_norm", 2)} <= set(written)


def test_profile(shards: Path, tmp_path: Path) -> None:
    loop.train(settings(shards, tmp_path, profile=1, steps=5))
    assert json.loads((tmp_path / "run/profile.json").read_text())["traceEvents"]


def test_auto_interval_follows_the_start_up(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "AUTO_BOUNDS", (0.0, 0.001))
    loop.train(settings(shards, tmp_path, save_every="auto", keep_last=100))
    assert "a checkpoint every 0 s" in capsys.readouterr().out
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").glob("step-*"))
    assert len(names) >= 3  # asked for at once, agreed one step later, and the last


def test_plan_counts_what_a_rank_holds() -> None:
    """Parameters, gradients and moments on the meta device, split as the mesh splits them."""
    model = PRESETS["italia-9b"]
    config = TrainConfig(precision="bf16")
    memory = count_tensors(model, Layout(64, 4, 1), 1, 2, 4096, config)
    assert memory.parameters == pytest.approx(4 * model.parameters / 4, rel=1e-3)
    assert memory.optimizer == 2 * memory.parameters
    assert memory.gradients == memory.parameters
    thumb = rule_of_thumb(model, Layout(64, 4, 1), 1, 4096)
    assert thumb.parameters == model.parameters
    split = count_tensors(model, Layout(64, 2, 2), 1, 2, 4096, config)
    assert split.parameters == pytest.approx(memory.parameters, rel=1e-3)
    assert split.activations < memory.activations
    kept = {
        kind: count_tensors(
            model, Layout(1, 4, 1), 1, 1, 4096, TrainConfig(precision="bf16", checkpointing=kind)
        ).activations
        for kind in ("none", "ops", "every-2", "full")
    }
    assert kept["none"] > kept["ops"] > kept["every-2"] > kept["full"]
    whole = count_tensors(model, Layout(1, 4, 1), 1, 2, 4096, TrainConfig(precision="bf16", sync="last"))
    assert whole.gradients - memory.gradients == pytest.approx(4 * model.parameters, rel=1e-3)


def test_plan_finds_the_largest_micro_batch() -> None:
    config = TrainConfig(precision="bf16", compile=True)
    arguments = (PRESETS["1b"], Layout(1, 1, 1), 1, 4096, config)
    size = largest_micro_batch(*arguments, 80)
    model, layout, accumulation, seq_len, _ = arguments
    assert size > 1
    assert count_tensors(model, layout, size, accumulation, seq_len, config).total <= 0.9 * 80e9
    assert count_tensors(model, layout, size + 1, accumulation, seq_len, config).total > 0.9 * 80e9
    assert largest_micro_batch(PRESETS["italia-9b"], *arguments[1:], 40) == 0


def test_plan_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--model", "italia-9b", "--nodes", "64", "--devices-per-node", "4"]
    command += ["--global-batch", "1024", "--micro-batch", "2", "--tokens", "1.2T"]
    main(command)
    text = capsys.readouterr().out
    assert "accumulation 2 x 256 data-parallel ranks" in text
    assert "step: n/a" in text
    assert "energy: n/a; CO2: n/a" in text
    priced = [*command, "--peak", "300", "--mfu", "0.5", "--node-kw", "2", "--pue", "1.1", "--grid", "0.3"]
    main([*priced, "--json"])
    plan = json.loads(capsys.readouterr().out)
    model = PRESETS["italia-9b"]
    seconds = 1024 * 4096 * model.flops_per_token(4096) / (150e12 * 256)
    assert plan["step_seconds"] == pytest.approx(seconds)
    assert plan["steps"] == 1_200_000_000_000 // (1024 * 4096)
    assert plan["energy_kwh"] == pytest.approx(plan["node_hours"] * 2 * 1.1)
    assert plan["co2_kg"] == pytest.approx(plan["energy_kwh"] * 0.3)
    assert plan["checkpoint_bytes"] / GIB == pytest.approx(12 * model.parameters / GIB)


def test_plan_says_loudly_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--model", "italia-9b", "--nodes", "64", "--devices-per-node", "4", "--mfu", "0.4"]
    command += ["--global-batch", "1024", "--tokens", "1.2T", "--node-kw", "2", "--micro-batch", "2"]
    main([*command, "--device", "A100-SXM-64GB"])
    text = capsys.readouterr().out
    assert "DOES NOT FIT: 91.7 GiB counted, 53.6 GiB are 90% of 64 GB" in text
    assert "step: n/a; steps: 286102; run: n/a; n/a\nenergy: n/a; CO2: n/a" in text
    main([*command, "--device", "A100-SXM-64GB", "--checkpointing", "full", "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"] is True
    assert plan["energy_kwh"] > 0
    main([*command, "--device", "A100"])
    assert "the memory of the device is not known; give --memory" in capsys.readouterr().out
    main([*command, "--device", "A100", "--memory", "80", "--json"])
    assert json.loads(capsys.readouterr().out)["fits"] is False


def test_the_plan_in_the_documentation_fits(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    lines = [line.split() for line in text.replace("\\\n", " ").splitlines()]
    command = next(words for words in lines if words[:2] == ["train", "plan"])
    main(command[1:])
    assert "\nfits: " in capsys.readouterr().out


def test_tune_takes_out_of_memory_as_a_result(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One real trial in a fresh process; the others answer as trials do that do not fit or fail."""
    original = subprocess.run
    started = []

    def run(command: list[str], **options: Any) -> Any:
        size = command[command.index("--micro-batch") + 1]
        started.append(size)
        if size == "2":
            return original(command, **options)
        text = "torch.OutOfMemoryError: CUDA out of memory." if size == "4" else "ValueError: something else"
        return types.SimpleNamespace(returncode=1, stderr=text)

    monkeypatch.setattr(tune.subprocess, "run", run)
    command = ["tune", "--shards", str(shards), "--model", model_file(tmp_path), "--seq-len", "16"]
    command += ["--out", str(tmp_path / "t"), "--micro-batches", "8,4,1,2", "--checkpointings", "none"]
    main([*command, "--compiles", "no", "--trial-steps", "5", "--workers", "0"])
    records = read_lines(tmp_path / "t/tune.jsonl")
    assert [record["outcome"] for record in records] == [
        "failed: ValueError: something else",
        "ok",
        "out of memory",
        "out of memory",
    ]
    assert started == ["1", "2", "4"]  # 8 cannot fit where 4 does not
    tuned = (tmp_path / "t/tuned.toml").read_text()
    assert tuned == 'micro_batch = 2\ncheckpointing = "none"\ncompile = false\n'
    assert "best: micro-batch   2" in capsys.readouterr().out


def test_gpu_benchmark_runs_without_one(tmp_path: Path) -> None:
    script = [
        sys.executable,
        str(ROOT / "benchmarks" / "train_gpu.py"),
        "--json",
        str(tmp_path / "rows.json"),
    ]
    more = ["--model", "debug", "--seq-len", "32", "--micro-batch", "1", "--steps", "5"]
    done = subprocess.run([*script, *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["outcome"] for row in rows] == ["ok"]
    assert rows[0]["tokens_per_second_per_device"] > 0
    assert "dense bf16 peak n/a" in done.stdout


def test_torchrun_runs_the_module(shards: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "train",
    ]
    more = ["--shards", shards, "--model", model_file(tmp_path), "--out", tmp_path / "run", "--seq-len", 16]
    done = subprocess.run(
        [*command, *map(str, more), "--global-batch", "8", "--steps", "2", "--workers", "0"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 ranks: 1 replicas x 2 shards x 1 tensor parallel" in done.stdout
    assert len(column(tmp_path / "run", "loss")) == 2


def test_learns_below_the_unigram_entropy(tmp_path: Path) -> None:
    """Documents in which each token decides the next: a model that learns anything beats counting tokens."""
    import numpy as np

    rng = np.random.default_rng(1)
    following = rng.permutation(np.arange(1, 60))
    documents = []
    for start in rng.integers(1, 60, size=400):
        tokens = [int(start)]
        while len(tokens) < 60:
            tokens.append(int(following[tokens[-1] - 1]) if rng.random() < 0.9 else int(rng.integers(1, 60)))
        documents.append(tokens)
    folder = make_shards(tmp_path / "shards", {"it": documents}, vocab_size=60, documents_per_shard=100)
    counts = Counter(token for document in documents for token in [*document, 0])
    total = sum(counts.values())
    entropy = -sum(n / total * math.log(n / total) for n in counts.values())
    config = settings(folder, tmp_path, steps=60, global_batch=16, seq_len=24, lr=0.02, warmup=5)
    loop.train(config)
    losses = column(tmp_path / "run", "loss")
    assert losses[0] > entropy
    assert sum(losses[-5:]) / 5 < 0.6 * entropy


def test_what_a_checkpoint_records(shards: Path, tmp_path: Path) -> None:
    loop.train(settings(shards, tmp_path, steps=2))
    meta = json.loads((tmp_path / "run/checkpoints/step-00000002/meta.json").read_text())
    names = {
        "progress",
        "config",
        "identity",
        "provenance",
        "val_loss",
        "files",
        "eod_id",
        "step",
        "tokenizer",
    }
    assert set(meta) == names
    assert all(set(record) == {"size", "checksum"} for record in meta["files"].values())
    assert meta["tokenizer"] == {"fingerprint": "0" * 32, "shards": str(shards)}
    assert meta["progress"] == {
        "step": 2,
        "position": 16,
        "data_hash": meta["progress"]["data_hash"],
        "best": [],
        "tokens": 256,
        "phase": 0,
        "schedule": 0,
    }
    assert meta["provenance"]["torch"] == torch.__version__
    assert {"stream", "manifest"} <= set(meta["identity"])
