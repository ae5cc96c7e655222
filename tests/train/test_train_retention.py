"""Which checkpoints a run keeps, when it saves, and what a checkpoint says."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import needs

torch = needs("torch")
from pretok.base.records import replace
from pretok.base.storage import read_lines
from tests.train_support import tiny_config
from train import loop
from train.checkpoint import save
from train.checkpoint.meta import Identity, Meta, RunState, TokenizerOrigin
from train.checkpoint.save import to_keep
from train.config import TrainConfig
from train.model.sizes import PRESETS
from train.start import Run
from train.step import Readback

losses = st.none() | st.floats(0, 10)


def meta_of(step: int, val_loss: float | None) -> Meta:
    identity = Identity(PRESETS["debug"], 8, 0, "", "", {})
    return Meta(step, RunState(step=step), val_loss, identity, {}, 0, TokenizerOrigin("", ""), {})


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
    loop.train(tiny_config(shards, tmp_path, steps=9, save_every="2", keep_last=1, milestone=4))
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").glob("step-*"))
    assert names == ["step-00000004", "step-00000008", "step-00000009"]


@pytest.mark.parametrize("save_every", ["1", "never"])
def test_what_a_kill_behind_the_last_save_left_undone_is_done_at_the_next_start(
    shards: Path, tmp_path: Path, save_every: str
) -> None:
    changes = {"keep_last": 1, "milestone": 4, "schedule": "constant"}
    loop.train(tiny_config(shards, tmp_path, steps=5, save_every="1", **changes))
    folder = tmp_path / "run/checkpoints"
    shutil.copytree(folder / "step-00000005", folder / "step-00000003")
    loop.train(tiny_config(shards, tmp_path, steps=5, save_every=save_every, **changes))
    assert (folder / "step-00000003").exists() == (save_every == "never")  # which deletes nothing


def test_training_goes_on_while_an_old_checkpoint_is_deleted(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may be many on a slow file system; the end of the run waits for it."""
    delete, record, passed = save._delete, loop._record, threading.Event()
    waits: list[bool] = []

    def slow(path: Path) -> None:
        waits.append(passed.wait(20))
        delete(path)

    def noting(run: Run, done: Readback) -> None:
        record(run, done)
        if run.progress.step > 6:
            passed.set()

    monkeypatch.setattr(save, "_delete", slow)
    monkeypatch.setattr(loop, "_record", noting)
    loop.train(tiny_config(shards, tmp_path, steps=8, save_every="2", keep_last=1))
    assert waits == [True] * 3
    assert [path.name for path in (tmp_path / "run/checkpoints").glob("step-*")] == ["step-00000008"]


def test_what_was_just_saved_stays_beside_a_damaged_newer_one(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_config(
        shards, tmp_path, save_every="1", keep_last=1, milestone=4, steps=6, schedule="constant"
    )
    loop.train(config)
    folder = tmp_path / "run/checkpoints"
    data = next((folder / "step-00000006").glob("*.safetensors"))
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    loop.train(replace(config, steps=5))
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["step-00000004", "step-00000005", "step-00000006.damaged"]
    assert "step-00000006 is damaged, trying the previous one" in capsys.readouterr().out


def test_best_by_validation_is_saved_at_once(shards: Path, tmp_path: Path) -> None:
    config = tiny_config(shards, tmp_path, steps=6, lr=0.01, warmup=1, val_every=1, val_sequences=9)
    loop.train(TrainConfig(**config.as_dict() | {"keep_best": 1, "keep_last": 1, "save_every": "1000"}))
    found = read_lines(tmp_path / "run/validation.jsonl")
    assert [record["step"] for record in found] == [1, 2, 3, 4, 5, 6]
    assert set(found[0]["sources"]) == {"it", "en"}
    best = min(found, key=lambda record: float(record["val_loss"]))
    names = {path.name for path in (tmp_path / "run/checkpoints").glob("step-*")}
    assert f"step-{best['step']:08d}" in names


def test_saves_by_the_clock(shards: Path, tmp_path: Path) -> None:
    loop.train(tiny_config(shards, tmp_path, save_every="0.00001m", keep_last=100))
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").glob("step-*"))
    assert len(names) >= 3  # asked for at once, agreed one step later, and the last


def test_what_a_checkpoint_records(shards: Path, tmp_path: Path) -> None:
    loop.train(tiny_config(shards, tmp_path, steps=2))
    meta = json.loads((tmp_path / "run/checkpoints/step-00000002/meta.json").read_text())
    names = {
        "progress",
        "config",
        "identity",
        "provenance",
        "val_loss",
        "files",
        "eod_id",
        "seal",
        "step",
        "tokenizer",
        "version",
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
        "unit": 128,
    }
    assert meta["provenance"]["torch"] == torch.__version__
    assert {"stream", "manifest"} <= set(meta["identity"])
