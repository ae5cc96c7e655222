"""Learning rates, the guard against bad steps, and a step that asks the device for nothing."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import needs

torch = needs("torch")

from pretok.base.errors import PretokError
from tests.train_support import column, tiny_config
from train import loop, step
from train import optimizer as optim
from train.config import TrainConfig
from train.optimizer import WINDOW, Guard, learning_rate

settings = partial(tiny_config, save_every="3")


def test_schedules() -> None:
    def rates(**settings: Any) -> list[float]:
        config = TrainConfig(lr=1.0, min_lr=0.1, **{"warmup": 4, **settings})
        return [learning_rate(config, number, 20) for number in range(20)]

    for settings in ({"schedule": "cosine"}, {"schedule": "wsd", "decay": 0.25}, {"schedule": "constant"}):
        assert rates(**settings)[:4] == [0.25, 0.5, 0.75, 1.0]
    cosine = rates(schedule="cosine")
    assert cosine[3:] == sorted(cosine[3:], reverse=True)
    assert (cosine[3], cosine[11], cosine[19]) == (1.0, pytest.approx(0.55), pytest.approx(0.1))
    stable = rates(schedule="wsd", decay=0.25)
    assert stable[4:15] == [1.0] * 11
    assert stable[15:] == pytest.approx([0.82, 0.64, 0.46, 0.28, 0.1])
    rooted = rates(schedule="wsd", decay=0.25, decay_shape="1-sqrt")
    assert rooted[:15] == stable[:15]
    assert rooted[15:] == pytest.approx([0.1 + 0.9 * (1 - (done / 5) ** 0.5) for done in (1, 2, 3, 4, 5)])
    for settings in ({"decay": 0.05}, {"decay": 0.05, "decay_shape": "1-sqrt"}):
        assert rates(schedule="wsd", **settings)[18:] == pytest.approx([1.0, 0.1])  # a decay of one step
    assert rates(schedule="cosine", warmup=19)[18:] == pytest.approx([1.0, 0.1])
    assert rates(warmup=0.2) == rates()
    assert rates(schedule="wsd", decay=0.0)[4:] == rates(schedule="constant")[4:] == [1.0] * 16


class Judged:
    """A guard that is asked step after step; `skips` are the numbers of the steps it would not take."""

    def __init__(self, **settings: Any) -> None:
        self.config = TrainConfig(**settings)
        self.guard = Guard.fresh(torch.device("cpu"))
        self.skips: list[int] = []
        self.asked = 0
        self._noise = torch.Generator().manual_seed(0)

    def __call__(self, norm: float, loss: float = 2.0, times: int = 1, growth: float = 1.0) -> list[int]:
        """Judge noisy steps around these values, each norm `growth` times the one before; which were skipped now."""
        before = len(self.skips)
        for _ in range(times):
            noise = 1 + 0.05 * torch.randn(2, generator=self._noise)
            if self.guard.judge(norm * noise[0], loss * noise[1], self.config).item():
                self.skips.append(self.asked)
            self.asked += 1
            norm *= growth
        return self.skips[before:]


def test_guard_skips_what_is_not_finite_or_far_out() -> None:
    judge = Judged(clip=0.1)
    assert judge(float("nan")) == [0]
    assert judge(1.0, float("inf")) == [1]
    assert judge(50.0) == []  # not yet enough to compare with
    assert judge(1.0, times=2 * WINDOW) == []
    now = judge.asked
    assert judge(30.0) == [now]  # a spike of the norm
    assert judge(1.0, 9.0) == [now + 1]  # and one of the loss
    assert judge(float("inf")) == [now + 2]
    assert (judge.guard.skipped.item(), judge.guard.in_a_row.item()) == (5, 3)
    assert judge(1.0) == []
    assert judge.guard.in_a_row.item() == 0
    assert torch.isfinite(judge.guard.norms).all()
    assert Judged(skip_sigma=0.0)(1.0, times=2 * WINDOW) == []


@pytest.mark.parametrize("rise", [1.3, 1.5, 3.0, 100.0])
def test_a_lasting_rise_is_skipped_a_few_times_and_then_usual(rise: float) -> None:
    for values in ((rise, 2.0), (1.0, 2.0 * rise)):
        judge = Judged(clip=0.1)
        judge(1.0, times=2 * WINDOW)
        assert len(judge(*values, times=5 * WINDOW)) <= 6 < optim.MAX_SKIPS
        assert judge.guard.in_a_row.item() == 0


def test_spikes_are_skipped_again_and_again_and_do_not_hide_each_other() -> None:
    judge = Judged(clip=0.1)
    judge(1.0, times=2 * WINDOW)
    for _ in range(10):
        assert judge(20.0, times=1)
        assert not judge(1.0, times=WINDOW)


def test_slow_growth_and_what_is_clipped_little_are_no_outliers() -> None:
    judge = Judged(clip=0.1)
    assert judge(1.0, times=1000, growth=1.01) == []  # to 20,000 times what it was
    judge = Judged(clip=1.0)
    judge(0.01, times=2 * WINDOW)
    assert judge(0.9) == []  # 90 times the usual, and below what clipping lets pass
    assert len(judge(1.5)) == 1
    judge = Judged()
    judge(0.5, 2.0, times=2 * WINDOW)
    judge.guard.losses.fill_(2.0)
    assert not judge.guard.judge(torch.tensor(0.5), torch.tensor(2.09), judge.config).item()
    assert judge.guard.judge(torch.tensor(0.5), torch.tensor(2.2), judge.config).item()


def test_without_clipping_gradients_stay_as_they_are(shards: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    losses = []
    for clip in (0.0, 1e9, 1e-9):
        config = settings(
            shards, tmp_path, clip=clip, warmup=0, lr=0.01, eps=1.0, out=f"{run}{clip}", steps=4
        )
        loop.train(config)
        losses.append(column(Path(f"{run}{clip}"), "loss"))
    assert losses[0] == losses[1] != losses[2]


def test_hyper_parameters_are_those_of_the_settings_after_a_resume(shards: Path, tmp_path: Path) -> None:
    """Another weight decay and other betas take effect at once, as in a run that had them in those steps."""
    changed = {"beta1": 0.5, "beta2": 0.6, "eps": 1e-3, "weight_decay": 5.0}
    seen = []
    original = step.update

    def update(optimizer: Any, *rest: Any) -> Any:
        names = ("betas", "eps", "weight_decay")
        seen.append([tuple(group[name] for name in names) for group in optimizer.param_groups])
        return original(optimizer, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "update", update)
        loop.train(settings(shards, tmp_path, steps=3))
        loop.train(settings(shards, tmp_path, steps=4, **changed))
    assert seen[0] == [((0.9, 0.95), 1e-8, 0.0), ((0.9, 0.95), 1e-8, 0.1)]
    assert seen[3] == [((0.5, 0.6), 1e-3, 0.0), ((0.5, 0.6), 1e-3, 5.0)]


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
    loop.train(settings(shards, tmp_path))
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
    monkeypatch.setattr(loop, "MAX_SKIPS", 3)
    with pytest.raises(PretokError, match="were skipped"):
        loop.train(settings(shards, tmp_path, save_every="2"))
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
        loop.train(settings(shards, tmp_path))
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
    loop.train(settings(shards, tmp_path, micro_batch=2, steps=3))
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
