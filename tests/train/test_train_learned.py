"""Tokens that fill sequences up are not learned, nor what a mix leaves out of conversations: loss and gradient are
means over those that are, however ranks, micro-batches and stages divide them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mixing import request
from support import EOD, make_shards, needs

torch = needs("torch")
import pretok.stream
from pretok.stream.mix_file import load_mix
from pretok.stream.mix_job import run_mix
from tests.train_support import add_tokenizer, column, filled, mix_of, model_file, run_jobs, tiny_config
from train import loop, step
from train.config import TrainConfig
from train.data import documents_of
from train.model.loss import IGNORE, targets_of
from train.model.sizes import model_config
from train.optimizer import learning_rate

STEPS = 4
RUNS: dict[str, tuple[int, tuple[object, ...]]] = {
    "1x8": (1, ("--micro-batch", 1)),
    "4x2": (4, ("--micro-batch", 1)),
    "unclipped": (4, ("--micro-batch", 1, "--shard", 2, "--clip", 0)),
    "context": (4, ("--shard", 2, "--context", 2, "--micro-batch", 2)),
    "tensor": (4, ("--shard", 2, "--tensor", 2, "--micro-batch", 2)),
    "pipeline": (4, ("--shard", 2, "--pipeline", 2, "--micro-batch", 1)),
}
"""Ranks, and what is their own. Those of 4 x 2 read 2 sequences each of the 8 that a process alone reads."""


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """it: conversations, each with 0 to 40 further ends behind its own, whose ids say of which kind they are; en:
    nothing but ends."""
    rng = np.random.default_rng(0)

    def document() -> list[int]:
        return [*rng.integers(1, 60, rng.integers(5, 40)).tolist(), *[EOD] * int(rng.integers(0, 40))]

    sources = {"it": [document() for _ in range(60)], "en": [[EOD] * 400]}
    val = {"it": [document() for _ in range(9)]}
    folder = make_shards(tmp_path_factory.mktemp("padded"), sources, val=val, chats={"it": 6})
    add_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def runs(padded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    mix = mix_of(padded, folder / "mix.json", (0, 8 * STEPS))
    common: tuple[object, ...] = ("--shards", padded, "--mix", mix, "--global-batch", 8, "--steps", STEPS)
    common += ("--model", _untied(folder), "--workers", 0, "--lr", 0.01, "--warmup", 2, "--clip", 0.5)
    common += ("--val-every", 2, "--save-every", "never", "--z-loss", 0.01, "--attention", "document")
    run_jobs([(n, [*common, *own, "--out", folder / name]) for name, (n, own) in RUNS.items()], folder)
    return folder


def _untied(folder: Path) -> str:
    path = Path(model_file(folder, tied=False))
    path.write_text(path.read_text().replace("vocab_size = 60", "vocab_size = 1000"))
    return str(path)


def test_an_end_after_an_end_is_no_target_and_belongs_to_the_document_before() -> None:
    tokens = torch.tensor([[5, 0, 0, 0, 7, 0, 8], [0, 0, 3, 0, 4, 0, 0]])
    expected = [[0, IGNORE, IGNORE, 7, 0, 8], [IGNORE, 3, 0, 4, 0, IGNORE]]
    assert targets_of(tokens, 0).tolist() == expected
    documents = documents_of(tokens, 0, TrainConfig(attention="document"))
    assert documents.tolist() == [[0, 4, 6, 7, 9, 11, 14, 14, 14]]


@pytest.mark.parametrize("name", [name for name in RUNS if name != "1x8"])
def test_the_mean_is_over_the_learned_tokens_of_the_global_batch(runs: Path, name: str) -> None:
    run, alone = runs / name, runs / "1x8"
    learned = column(alone, "learned")
    assert len(set(learned)) == STEPS
    assert max(learned) < 8 * 16
    assert column(run, "learned") == learned
    exact = (
        slice(1) if name == "unclipped" else slice(None)
    )  # which does not clip, and so learns something else
    assert column(run, "loss")[exact] == pytest.approx(column(alone, "loss")[exact], rel=1e-5)
    assert column(run, "grad_norm")[exact] == pytest.approx(column(alone, "grad_norm")[exact], rel=1e-4)
    found, expected = ((path / "validation.jsonl").read_text() for path in (run, alone))
    assert len(found.splitlines()) == len(expected.splitlines()) == STEPS // 2


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_one_process_equals_a_plain_loop(padded: Path, tmp_path: Path, clip: float) -> None:
    """A few lines of torch that know nothing of the trainer but the model: each micro-batch counts by its tokens."""
    model_path, mix = _untied(tmp_path), mix_of(padded, tmp_path / "mix.json", (0, 8 * STEPS))
    settings = {"model": model_path, "mix": mix, "seq_len": None, "steps": STEPS, "micro_batch": 2}
    settings |= {"clip": clip, "lr": 0.01, "warmup": 2, "weight_decay": 0.0, "save_every": "never"}
    loop.train(tiny_config(padded, tmp_path, **settings))
    view, model = pretok.stream.open(padded, mix), filled(model_config(model_path))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses, norms = [], []
    for number in range(STEPS):
        tokens = torch.from_numpy(view.batch(range(8 * number, 8 * number + 8)))
        targets = torch.tensor(
            [
                [b if (a or b) and (not b or (b - 1) % 7 > 3) else IGNORE for a, b in pairwise(row)]
                for row in tokens.tolist()
            ]
        )
        logits = model(tokens[:, :-1])[..., :1000]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())  # a mean over them
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip or 1e9).item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(TrainConfig(lr=0.01, warmup=2), number, STEPS)
        optimizer.step()
        optimizer.zero_grad()
    assert column(tmp_path / "run", "loss") == pytest.approx(losses, rel=1e-5)
    assert column(tmp_path / "run", "grad_norm") == pytest.approx(norms, rel=1e-4)


def test_a_step_without_learned_tokens_changes_nothing(
    padded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, states = step.update, []

    def update(optimizer: Any, parameters: Any, *rest: Any) -> Any:
        norm = original(optimizer, parameters, *rest)
        moments = [value for state in optimizer.state.values() for value in state.values()]
        states.append([getattr(t, "to_local", lambda t=t: t)().clone() for t in [*parameters, *moments]])
        return norm

    monkeypatch.setattr(step, "update", update)
    mix = mix_of(padded, tmp_path / "mix.json", (0, 16), (8, 0), (0, 8))
    settings = {"model": _untied(tmp_path), "mix": mix, "seq_len": None, "save_every": "never"}
    loop.train(tiny_config(padded, tmp_path, **settings | {"steps": 4}))
    run = tmp_path / "run"
    assert [bool(learned) for learned in column(run, "learned")] == [True, True, False, True]
    assert [loss is None for loss in column(run, "loss")] == [False, False, True, False]
    assert column(run, "skipped") == [0, 0, 1, 1]
    same = [all(map(torch.equal, *pair)) for pair in pairwise(states)]
    assert same == [False, True, False]


def test_a_run_that_stops_goes_on_with_the_same_masks(
    padded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind its last checkpoint: losses, learned tokens and the checksum of ids and masks are those of a whole run."""
    mix = mix_of(padded, tmp_path / "mix.json", (0, 8 * 6))
    settings = {"model": _untied(tmp_path), "mix": mix, "seq_len": None, "steps": 6, "save_every": "2"}
    loop.train(tiny_config(padded, tmp_path, **settings))
    original = loop.train_step

    def stops(trainee: Any, batches: Any, at: int, *rest: Any, **named: Any) -> Any:
        if at == 5:
            raise KeyboardInterrupt
        return original(trainee, batches, at, *rest, **named)

    stopped = tiny_config(padded, tmp_path, **settings, out=str(tmp_path / "stopped"))
    monkeypatch.setattr(loop, "train_step", stops)
    with pytest.raises(KeyboardInterrupt):
        loop.train(stopped)
    monkeypatch.setattr(loop, "train_step", original)
    loop.train(stopped)
    assert "resumed from step" in capsys.readouterr().out
    assert len(set(column(tmp_path / "run", "learned"))) > 1
    for name in ("learned", "loss", "data_hash"):
        assert column(tmp_path / "stopped", name) == column(tmp_path / "run", name)


def test_an_epoch_of_a_packed_mix_learns_its_targets(shards: Path, tmp_path: Path) -> None:
    """As the mix counted them, and no document is seen from another."""
    run_mix(shards, tmp_path / "mix.json", request("all:it=1", seq_len=63, pack="best-fit"))
    (source,) = load_mix(tmp_path / "mix.json").sources
    batch = max(n for n in range(1, 20) if source.sequences % n == 0)
    settings = {"mix": str(tmp_path / "mix.json"), "seq_len": None, "attention": "document"}
    settings |= {"global_batch": batch, "steps": source.sequences // batch, "save_every": "never"}
    loop.train(tiny_config(shards, tmp_path, **settings))
    assert sum(column(tmp_path / "run", "learned")) == source.targets
