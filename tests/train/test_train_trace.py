"""What a run leaves is enough to say in which step it read a document."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import make_shards, needs

torch = needs("torch")
from train_support import column, mix_of, model_file, random_shards, tiny_config

import pretok.stream
from pretok.audit.trace import open_traced, passages, positions_of_step, readings
from pretok.base.errors import MismatchError, UsageError
from pretok.base.storage import read_lines
from pretok.disclosure.read import read_steps
from pretok.shards.manifest import load_manifest
from pretok.stream import View
from train import loop
from train.config import TrainConfig, from_mapping

BATCH, LENGTH = 8, 16
STEP = BATCH * LENGTH


def test_a_run_is_traced_by_its_folder(tmp_path: Path) -> None:
    """Three steps of four sequences: steps, what is done, and tokens as the stream gives them."""
    shards, run = random_shards(tmp_path), tmp_path / "run"
    loop.train(tiny_config(shards, tmp_path, global_batch=4, steps=3, warmup=1))
    (traced,) = open_traced(run, None)
    assert (traced.global_batch, traced.steps) == (4, 3)
    view = pretok.stream.open(shards, seq_len=traced.view.seq_len)
    assert view.fingerprint == traced.view.fingerprint
    for step in (1, 3):
        for position in positions_of_step([traced], step)[1]:
            for passage in passages(traced, position):
                found = [
                    r for r in readings(traced, passage.source, "train", passage.document) if r.step == step
                ]
                assert position in [reading.position for reading in found]
                assert {reading.done for reading in found} == {True}
    with pytest.raises(UsageError, match="no step 4; the run has 3"):
        positions_of_step([traced], 4)
    assert np.array_equal(view[0], traced.view[0])


def settings(shards: Path, folder: Path, out: str, **more: Any) -> TrainConfig:
    values = {"shards": str(shards), "out": str(folder / out), "model": model_file(folder), "workers": 0}
    values |= {"global_batch": BATCH, "warmup": 1, "schedule": "constant", "save_every": "99"}
    return from_mapping(values | more, "test")


Read = list[tuple[View, int]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Every position that is read, in the order in which a step takes them."""
    found: Read = []
    real = View.batch

    def batch(view: View, positions: Any, dtype: Any = np.int64) -> Any:
        found.extend((view, int(position)) for position in positions)
        return real(view, positions, dtype)

    monkeypatch.setattr(View, "batch", batch)
    return found


def test_a_run_that_changed_data_and_batch_is_traced_and_counted_segment_by_segment(
    tmp_path: Path, read: Read
) -> None:
    """Three steps of a mix; a phase with shorter sequences of another; two steps later another batch by hand; a phase
    with the batch of the beginning. Sources are read more than once."""
    shards = random_shards(tmp_path)
    first, other = (
        mix_of(shards, tmp_path / "a.json", (500, 300), seq_len=LENGTH, seed=3),
        mix_of(shards, tmp_path / "b.json", (900, 90), seq_len=8, seed=3),
    )
    phases = [{"at": 3 * STEP, "mix": other}, {"at": 5 * STEP + 64, "global_batch": 128}]
    loop.train(settings(shards, tmp_path, "run", mix=first, phases=phases, steps=5))
    loop.train(settings(shards, tmp_path, "run", mix=first, phases=phases, steps=14, global_batch=4))
    sizes = [8] * 5 + [4] * 6 + [128] * 3
    assert np.diff([0, *column(tmp_path / "run", "tokens")]).tolist() == [
        size * (LENGTH if step < 3 else 8) for step, size in enumerate(sizes)
    ]
    assert len(read) == sum(sizes)
    steps = [read[end - size : end] for size, end in zip(sizes, np.cumsum(sizes).tolist(), strict=True)]

    segments = open_traced(tmp_path / "run", None)
    assert [(segment.before, segment.first, segment.last, segment.steps) for segment in segments] == [
        (0, 0, 3, 14), (3, 0, 5, 14), (5, 16, 11, 14), (11, 40, 14, 14),
    ]  # fmt: skip
    expected: dict[tuple[str, int], set[tuple[int, int]]] = defaultdict(set)
    for step, taken in enumerate(steps, 1):
        segment, positions = positions_of_step(segments, step)
        assert [(view.fingerprint, position) for view, position in taken] == [
            (segment.view.fingerprint, position) for position in positions
        ]
        for position in positions:
            for passage in passages(segment, position):
                expected[passage.source, passage.document].add((step, position))
    manifest = load_manifest(shards)
    for source in manifest.sources:
        for document in range(sum(shard.documents for shard in manifest.of(source))):
            found = [r for segment in segments for r in readings(segment, source, "train", document)]
            done = {(r.step, r.position) for r in found if r.done}
            assert done == expected[source, document]
            assert {r.step for r in found if not r.done}.isdisjoint(range(15))

    extent = read_steps(manifest, tmp_path / "run", None)
    counts = {name: np.zeros(sum(s.tokens for s in manifest.of(name)), np.int64) for name in manifest.sources}
    sequences: dict[str, int] = defaultdict(int)
    epochs: dict[str, float] = defaultdict(float)
    for view, position in read:
        name, _, index = view.origin(position)
        counts[name][index * view.seq_len : (index + 1) * view.seq_len] += 1
        sequences[name] += 1
        epochs[name] += 1 / next(entry.sequences for entry in view.mix.sources if entry.name == name)
    assert max(counts["en"]) > 2
    assert (extent.sequences, extent.seq_len) == (len(read), None)
    for name, tokens in counts.items():
        bounds = np.arange(len(tokens) + 1)
        assert extent.sources[name].tokens(bounds, 0).tolist() == tokens.tolist()
        assert extent.sources[name].sequences == sequences[name]
        assert extent.sources[name].epochs == pytest.approx(epochs[name])

    (tmp_path / "run/segments.jsonl").unlink()
    for ask in (
        lambda: open_traced(tmp_path / "run", None),
        lambda: read_steps(manifest, tmp_path / "run", None),
    ):
        with pytest.raises(UsageError, match="does not say what the first steps read"):
            ask()


def test_legs_are_the_same_after_a_kill_and_know_other_shards(tmp_path: Path) -> None:
    """The steps since the newest checkpoint are done again: a phase that began among them is recorded once."""
    shards = random_shards(tmp_path / "shards")
    first, other = (
        mix_of(shards, tmp_path / "a.json", (90, 60), seq_len=LENGTH, seed=3),
        mix_of(shards, tmp_path / "b.json", (90, 9), seq_len=LENGTH, seed=3),
    )
    common = {"mix": first, "phases": [{"at": 3 * STEP, "mix": other}], "steps": 5, "save_every": "2"}
    loop.train(settings(shards, tmp_path, "run", **common))

    def segments() -> list[dict[str, Any]]:
        own = ("time", "host", "job")
        return [
            {k: v for k, v in line.items() if k not in own}
            for line in read_lines(tmp_path / "run/segments.jsonl")
        ]

    whole = segments()
    assert [(segment["step"], segment["position"]) for segment in whole] == [(0, 0), (3, 0)]
    for name in ("step-00000004", "step-00000005"):
        shutil.rmtree(tmp_path / "run/checkpoints" / name)
    loop.train(settings(shards, tmp_path, "run", **common))
    assert segments() == whole
    make_shards(tmp_path / "others", {"it": [[1, 2, 3] * 200], "en": [[4] * 500]}, vocab_size=60)
    with pytest.raises(MismatchError, match="on the run read other shards"):
        open_traced(tmp_path / "run", tmp_path / "others")
