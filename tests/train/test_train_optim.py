"""Learning rates, the guard against bad steps, and a step that asks the device for nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import needs

torch = needs("torch")
from pretok.base.errors import PretokError
from tests.train_support import column, model_file, random_shards
from train.config import TrainConfig
from train.run import loop
from train.steps import step
from train.steps.optim import STATISTICS_AFTER, Guard, learning_rate


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_shards(tmp_path_factory.mktemp("shards"))


def config_of(shards: Path, folder: Path, **settings: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "shards": str(shards),
        "out": str(folder / "run"),
        "model": model_file(folder),
        "seq_len": 16,
        "global_batch": 8,
        "steps": 8,
        "workers": 0,
        "save_every": "3",
    }
    return TrainConfig(**values | settings)


def test_schedules() -> None:
    def rates(**settings: Any) -> list[float]:
        config = TrainConfig(lr=1.0, min_lr=0.1, warmup=4, **settings)
        return [learning_rate(config, number, 20) for number in range(20)]

    for settings in ({"schedule": "cosine"}, {"schedule": "wsd", "decay": 0.25}, {"schedule": "constant"}):
        assert rates(**settings)[:4] == [0.25, 0.5, 0.75, 1.0]
    cosine = rates(schedule="cosine")
    assert cosine[4] == 1.0
    assert cosine[12] == pytest.approx(0.55)
    assert cosine[4:] == sorted(cosine[4:], reverse=True)
    assert 0.1 < cosine[-1] < 0.12
    stable = rates(schedule="wsd", decay=0.25)
    assert stable[4:16] == [1.0] * 12
    assert stable[16:] == pytest.approx([0.82, 0.64, 0.46, 0.28])
    assert rates(schedule="wsd", decay=0.0)[4:] == rates(schedule="constant")[4:] == [1.0] * 16


def test_guard_skips_what_is_not_finite_or_far_out() -> None:
    guard = Guard.fresh(torch.device("cpu"))

    def judge(norm: float) -> bool:
        return bool(guard.judge(torch.tensor(norm), 6.0).item())

    assert judge(float("nan"))
    assert not judge(50.0)  # no statistics yet
    norms = torch.Generator().manual_seed(0)
    assert not any(judge(1 + 0.1 * torch.randn((), generator=norms).item()) for _ in range(400))
    assert STATISTICS_AFTER < 400
    mean = guard.mean.item()
    assert mean == pytest.approx(1.0, abs=0.1)
    assert judge(30.0)
    assert judge(float("inf"))
    assert guard.mean.item() == mean  # what was skipped is no part of the statistics
    assert (guard.skipped.item(), guard.in_a_row.item()) == (3, 2)
    assert not judge(1.1)
    assert guard.in_a_row.item() == 0


def poison(monkeypatch: pytest.MonkeyPatch, bad_steps: set[int]) -> list[list[torch.Tensor]]:
    """Puts a NaN into one gradient at some updates; returns the parameters as they were after each update."""
    original = step.update
    after: list[list[torch.Tensor]] = []

    def update(optimizer: Any, parameters: Any, *rest: Any) -> Any:
        if len(after) + 1 in bad_steps:
            parameters[3].grad.to_local().view(-1)[0] = float("nan")
        norm = original(optimizer, parameters, *rest)
        after.append([parameter.to_local().clone() for parameter in parameters])
        return norm

    monkeypatch.setattr(step, "update", update)
    return after


def test_nan_gradient_is_skipped_and_counted(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = poison(monkeypatch, {3, 4})
    loop.train(config_of(shards, tmp_path))
    for before, now in zip(after[1], after[3], strict=True):  # steps 3 and 4 changed nothing
        assert torch.equal(before, now)
    assert not torch.equal(after[3][0], after[4][0])
    run = tmp_path / "run"
    assert column(run, "skipped") == [0, 0, 1, 2, 2, 2, 2, 2]
    assert [norm is None for norm in column(run, "grad_norm")] == [False, False, True, True] + [False] * 4
    assert all(torch.isfinite(tensor).all() for tensor in after[-1])
    assert None not in column(run, "loss")


def test_too_many_skips_end_the_run_and_spare_the_checkpoints(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, set(range(3, 100)))
    with pytest.raises(PretokError, match="were skipped"):
        loop.train(config_of(shards, tmp_path, max_skips=3, save_every="2"))
    for meta in (tmp_path / "run" / "checkpoints").glob("*/meta.json"):
        assert json.loads(meta.read_text())["step"] <= 6
    assert not (tmp_path / "run" / "done.json").exists()


def test_parameters_that_are_not_finite_are_not_saved(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = step.update

    def update(optimizer: Any, parameters: Any, *rest: Any) -> Any:
        norm = original(optimizer, parameters, *rest)
        if len(done) == 4:
            with torch.no_grad():
                parameters[0].to_local().fill_(float("inf"))
        done.append(0)
        return norm

    done: list[int] = []
    monkeypatch.setattr(step, "update", update)
    with pytest.raises(PretokError, match=r"not finite|were skipped"):
        loop.train(config_of(shards, tmp_path, max_skips=5))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")] == ["step-00000003"]


def test_no_host_synchronisation_inside_a_step(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile of a step of four micro-batches holds nothing that makes the host wait for the device."""
    original = loop.train_step
    profiles = []

    def profiled(*arguments: Any, **named: Any) -> Any:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            result = original(*arguments, **named)
        profiles.append(profile.events())
        return result

    monkeypatch.setattr(loop, "train_step", profiled)
    loop.train(config_of(shards, tmp_path, micro_batch=2, steps=3))
    waiting = {"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal"}

    def inside(event: Any) -> set[str]:
        names = set()
        while event is not None:
            names.add(event.name)
            event = event.cpu_parent
        return names

    found = [inside(event) for event in profiles[2]]
    assert sum("aten::embedding" in names for names in found) >= 4
    assert any("aten::_fused_adamw_" in names for names in found)
    # The CPU's kernel of the optimizer reads its scalars on the CPU; a GPU's reads them where they are.
    assert not [names for names in found if names & waiting and "aten::_fused_adamw_" not in names]
