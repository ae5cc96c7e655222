"""What a run leaves is enough to say in which step it read a document."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from support import make_shards, needs

torch = needs("torch")
from train_support import Trial, column

from pretok.base.errors import MismatchError, UsageError
from pretok.base.storage import read_lines
from pretok.documents.audit.trace import open_traced, passages, positions_of_step, readings
from pretok.documents.disclosure.read import read_steps
from pretok.shards.manifest import load_manifest
from pretok.stream import View

BATCH, LENGTH = 8, 16
STEP = BATCH * LENGTH


Read = list[tuple[View, int]]
DEFAULTS = {"warmup": 1, "schedule": "constant", "save_every": "99"}


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
    trial: Trial, read: Read
) -> None:
    """Three steps of a mix; a phase with shorter sequences of another; two steps later another batch by hand; a phase
    with the batch of the beginning. Sources are read more than once."""
    first = trial.mix((500, 300), name="a.json", seq_len=LENGTH, seed=3)
    other = trial.mix((900, 90), name="b.json", seq_len=8, seed=3)
    phases = ({"at": 3 * STEP, "mix": other}, {"at": 5 * STEP + 64, "global_batch": 128})
    trial.train(mix=first, phases=phases, steps=5)
    trial.train(mix=first, phases=phases, steps=14, global_batch=4)
    sizes = [8] * 5 + [4] * 6 + [128] * 3
    assert np.diff([0, *column(trial.run, "tokens")]).tolist() == [
        size * (LENGTH if step < 3 else 8) for step, size in enumerate(sizes)
    ]
    assert len(read) == sum(sizes)
    steps = [read[end - size : end] for size, end in zip(sizes, np.cumsum(sizes).tolist(), strict=True)]

    segments = open_traced(trial.run, None)
    assert [(one.segment.step, one.segment.position, one.last, one.steps) for one in segments if one.segment] == [
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
    manifest = load_manifest(trial.shards)
    for source in manifest.sources:
        for document in range(0, sum(shard.documents for shard in manifest.of(source)), 3):
            found = [r for segment in segments for r in readings(segment, source, "train", document)]
            done = {(r.step, r.position) for r in found if r.done}
            assert done == expected[source, document]
            assert {r.step for r in found if not r.done}.isdisjoint(range(15))

    extent, sequences, tokens = read_steps(manifest, trial.run), Counter[str](), Counter[str]()
    for view, position in read:
        name = view.origin(position)[0]
        sequences[name] += 1
        tokens[name] += view.seq_len
    assert (extent.sequences, extent.seq_len) == (len(read), None)
    for name, part in extent.sources.items():
        bounds = np.array([0, sum(shard.tokens for shard in manifest.of(name))])
        assert (part.sequences, part.tokens(bounds, 0).sum()) == (sequences[name], tokens[name])

    with pytest.raises(UsageError, match="no step 15; the run has steps 1 to 14"):
        positions_of_step(segments, 15)
    (trial.run / "segments.jsonl").unlink()
    for ask in (lambda: open_traced(trial.run, None), lambda: read_steps(manifest, trial.run)):
        with pytest.raises(UsageError, match="does not say what the first steps read"):
            ask()


def test_segments_are_the_same_after_a_kill_and_know_other_shards(trial: Trial) -> None:
    """The steps since the newest checkpoint are done again: a phase that began among them is recorded once."""
    first, other = (trial.mix((90, name), name=f"{name}.json", seed=3) for name in (60, 9))
    common = {"mix": first, "phases": ({"at": 3 * STEP, "mix": other},), "steps": 5, "save_every": "2"}
    trial.train(**common)

    def segments() -> list[dict[str, Any]]:
        lines = read_lines(trial.run / "segments.jsonl")
        return [{k: v for k, v in line.items() if k not in ("time", "host", "job")} for line in lines]

    whole = segments()
    assert [(segment["step"], segment["position"]) for segment in whole] == [(0, 0), (3, 0)]
    for name in ("step-00000004", "step-00000005"):
        shutil.rmtree(trial.run / "checkpoints" / name)
    trial.train(**common)
    assert segments() == whole
    make_shards(trial.folder / "others", {"it": [[1, 2, 3] * 200], "en": [[4] * 500]}, vocab_size=60)
    with pytest.raises(MismatchError, match="from step 1 the run read other shards"):
        open_traced(trial.run, trial.folder / "others")
