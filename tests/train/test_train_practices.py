"""Practices that the documents behind this project name: energy, utilisation, the interval of saves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import needs

torch = needs("torch")
from pretok.base.errors import UsageError
from pretok.base.storage import read_lines
from tests.train_support import Trial, column, read_tensors
from train import loop, setup, start
from train.__main__ import main
from train.checkpoint.save import auto_interval
from train.config import TrainConfig
from train.metrics import Goodput
from train.model.sizes import PRESETS
from train.monitor import HOUR, NOTHING, Monitor, tonnes


@pytest.mark.parametrize(
    ("mwh", "pue", "carbon", "emitted"),
    [
        pytest.param(1066, 1.08, 0.330, 380, id="Gopher-280B"),
        pytest.param(433, 1.2, 0.057, 30, id="BLOOM-176B"),
        pytest.param(324, 1.1, 0.231, 82, id="OPT-175B"),
        pytest.param(77, 1.12, 0.545, 47, id="T5-11B"),
        pytest.param(33, 1.1, 0.385, 14, id="LLaMA-7B"),
        pytest.param(74, 1.1, 0.385, 31, id="LLaMA2-7B"),
    ],
)
def test_emissions_are_those_of_the_published_table(
    mwh: float, pue: float, carbon: float, emitted: int
) -> None:
    """Table of OLMo, arXiv 2402.00838."""
    found = tonnes(mwh, pue, carbon)
    assert found is not None
    assert round(found) == emitted
    assert tonnes(mwh, None, carbon) is tonnes(None, pue, carbon) is tonnes(mwh, pue, None) is None


def test_plan_shows_energy_and_the_rule_of_thumb(capsys: pytest.CaptureFixture[str]) -> None:
    machine = "--nodes 2 --devices-per-node 4 --peak 300 --mfu 0.5 --memory 900"
    common = f"plan --model italia-9b {machine} --tokens 1B"
    more = "--watts 500 --pue 1.1 --carbon 0.385 --micro-batch 1"
    main([*common.split(), *more.split(), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["mwh"] == pytest.approx(found["hours"] * 8 * 500 / 1e6)
    assert found["tco2e"] == pytest.approx(found["mwh"] * 1.1 * 0.385)
    model, thumb = PRESETS["italia-9b"], found["thumb"]
    assert thumb["gradients"] + thumb["optimizer"] == 3 * thumb["parameters"] == 12 * found["parameters"]
    assert thumb["activations"] == 4 * 4096 * model.dim * model.layers
    main([*common.split(), *more.split()])
    said = capsys.readouterr().out
    assert "PUE 1.1, 0.385 kg CO2e/kWh" in said
    total = sum(thumb.values()) / 2**30
    assert f"{total:.2f}" in next(line for line in said.splitlines() if line.startswith("total"))
    main([*common.split(), "--micro-batch", "1"])
    assert "energy: n/a" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("start", "cost", "seconds"), [(60, 0, 240), (60, 20, 400), (1, 0.1, 4), (3000, 0, 3600), (1, 900, 3600)]
)
def test_the_interval_of_saves_follows_the_start(start: float, cost: float, seconds: float) -> None:
    assert auto_interval(start, cost) == seconds


def test_a_run_says_its_interval_and_saves_by_it(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    assert TrainConfig().save_every == "auto"
    trial.patch.setattr("train.checkpoint.save.auto_interval", lambda start, _: 1e-6 if start > 0 else 1e9)
    run = trial.train(save_every="auto", steps=6, keep_last=100)
    assert len(list((run / "checkpoints").glob("step-*"))) >= 3
    assert capsys.readouterr().out.count("4 times the start") == 1


def test_a_validation_split_is_used_and_disturbs_nothing(trial: Trial) -> None:
    """By default, where there is one. Losses and checkpoints are those of a run without it, bit by bit."""
    trial.patch.setattr(setup, "VAL_EVERY", 3)
    runs = {every: trial.train(f"{every}", val_every=every, save_every="8") for every in (None, 0)}
    said = trial.said()
    assert said.count("validation every 3 steps and after the last one (--val-every)") == 1
    assert said.count("no validation (--val-every 0)") == 1
    assert [line["step"] for line in read_lines(runs[None] / "validation.jsonl")] == [3, 6, 8]
    assert not (runs[0] / "validation.jsonl").exists() or not read_lines(runs[0] / "validation.jsonl")
    for name in ("loss", "grad_norm", "data_hash"):
        assert column(runs[None], name) == column(runs[0], name)
    with_it, without = (read_tensors(run / "checkpoints/step-00000008") for run in runs.values())
    assert with_it.keys() == without.keys()
    assert all(torch.equal(value, without[name]) for name, value in with_it.items())


def test_without_a_validation_split_there_is_no_validation(trial: Trial) -> None:
    trial.train(val_every=None, seq_len=600, global_batch=1, steps=1)
    assert "no validation (the shards have no split for it)" in trial.said()
    with pytest.raises(UsageError, match="has no validation sequence of 600 tokens"):
        trial.train("best", val_every=None, keep_best=1, seq_len=600, global_batch=1, steps=1)


def test_a_validation_that_nobody_asked_for_ends_no_run(trial: Trial) -> None:
    def nothing(*_: object) -> None:
        raise UsageError("no token contributes")

    trial.patch.setattr(loop, "evaluate", nothing)
    run = trial.train(val_every=None)
    assert (run / "done.json").exists()
    assert "validation ends: no token contributes" in trial.said()
    trial.ends_with(UsageError, "no token contributes", "asked", val_every=8)


def played(*rows: tuple[float, float, float]) -> Iterator[dict[str, float | None]]:
    """A recorded sequence of (per cent busy, watts, per cent of memory)."""
    for row in rows:
        yield dict(zip(("utilisation", "watts", "memory_used"), row, strict=True))


@pytest.mark.parametrize(
    ("busy", "memory", "waited", "words"),
    [
        (60, 80, 0.2, "waiting for data"),
        (60, 30, 0.0, "small micro-batch (30% of the memory"),
        (60, 80, 0.0, "collectives: shard"),
        (95, 80, 0.0, "collectives that wait"),
        (80, 80, 0.5, ""),
    ],
)
def test_an_hour_of_bad_utilisation_is_named_with_its_cause(
    busy: float, memory: float, waited: float, words: str
) -> None:
    said: list[str] = []
    readings = played((busy - 5, 300, memory), (busy + 5, 500, memory))
    monitor = Monitor(TrainConfig(pue=1.1, carbon=0.385), 8, lambda: next(readings), said.append)
    for _ in range(2):
        assert not said
        assert monitor.look(HOUR / 2, waited * HOUR / 2)["memory_used"] == memory
    assert len(said) == bool(words)
    assert words in "".join(said)
    if words:
        assert f"utilisation was {busy}% in the last hour, not 70 to 90%" in said[0]
    # Half an hour each at 300 and 500 W, and half an hour without a measurement, counted at the mean.
    found = monitor.energy(1.5 * HOUR)
    assert found["mwh"] == pytest.approx(8 * 1.5 * 400 / 1e6)
    assert found["tco2e"] == pytest.approx(8 * 1.5 * 400 / 1e6 * 1.1 * 0.385)


def test_a_missing_library_is_said_once_and_watts_count_instead() -> None:
    def absent() -> dict[str, float | None]:
        raise ModuleNotFoundError("pynvml does not seem to be installed")

    said: list[str] = []
    monitor = Monitor(TrainConfig(watts=400), 2, absent, said.append)
    assert [monitor.look(1.0, 0.0) for _ in range(3)] == [NOTHING] * 3
    assert len(said) == 1
    assert "pynvml" in said[0]
    assert monitor.energy(HOUR)["mwh"] == pytest.approx(2 * 400 / 1e6)
    assert Monitor(TrainConfig(), 2, None, said.append).energy(HOUR)["mwh"] is None


def test_a_run_writes_what_its_device_did(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    """A recorded device, played through the loop."""
    readings = played(*[(85, 400, 60)] * 2)
    trial.patch.setattr(start, "sensors", lambda: next(readings))
    trial.patch.setattr(start, "senses", lambda device, rank: rank == 0)
    run = trial.train(steps=4, log_every=2, save_every="never", pue=1.2, carbon=0.5)
    assert column(run, "utilisation") == [None, 85, None, 85]
    assert column(run, "watts") == [None, 400, None, 400]
    assert capsys.readouterr().out.count("GPU 85% 400 W") == 2
    (line,) = read_lines(run / "goodput.jsonl")
    seconds = sum(line[kind] for kind in ("initialisation", "training", "validation", "saving", "data"))
    assert line["mwh"] == pytest.approx(seconds * 400 / 3.6e9, rel=0.01)
    assert line["tco2e"] == pytest.approx(line["mwh"] * 1.2 * 0.5)


def test_starts_without_energy_are_said(tmp_path: Path) -> None:
    path = tmp_path / "goodput.jsonl"
    Goodput(0.0, path).write(1, 0.0)
    said = Goodput(0.0, path).write(1, 0.0, lambda _: {"mwh": 2.0, "pue": 1.1, "carbon": 0.5, "tco2e": 1.1})
    assert said.endswith("energy: 2 MWh in 1 of 2 attempts, PUE 1.1, 0.5 kg CO2e/kWh: 1.1 t CO2e")
