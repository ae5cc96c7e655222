"""What a run leaves is enough to say in which step it read a document."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from train_support import model_file, random_shards, run_ranks

import pretok.stream
from pretok.audit.trace import open_traced, passages, positions_of_step, readings


def test_a_run_is_traced_by_its_folder(tmp_path: Path) -> None:
    """Three steps of four sequences: steps, what is done, and tokens as the stream gives them."""
    shards, run = random_shards(tmp_path), tmp_path / "run"
    model = model_file(tmp_path)
    sizes = [*("--seq-len", 16, "--global-batch", 4, "--steps", 3), *("--warmup", 1, "--workers", 0)]
    run_ranks(1, ["--shards", shards, "--model", model, "--out", run, *sizes], tmp_path)
    traced = open_traced(run, None)
    assert (traced.global_batch, traced.steps) == (4, 3)
    view = pretok.stream.open(shards, seq_len=traced.view.seq_len)
    assert view.fingerprint == traced.view.fingerprint
    for step in (1, 3, 4):
        for position in positions_of_step(traced, step):
            for passage in passages(traced, position):
                found = [
                    r
                    for r in readings(traced, passage.source, passage.split, passage.document)
                    if r.step == step
                ]
                assert position in [reading.position for reading in found]
                assert {reading.done for reading in found} == {step <= 3}
    assert np.array_equal(view[0], traced.view[0])
