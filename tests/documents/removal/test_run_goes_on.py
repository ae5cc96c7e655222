"""A run that is resumed over a removal is one whose data held EOD there from that step on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import needs
from test_remove import EOD, copy_of, remove, removed_tokens, rows_of

torch = needs("torch")
from train_support import SIZES, column, tiny_config

from pretok.base.errors import IntegrityError
from pretok.base.storage import read_json, read_lines
from pretok.documents.audit.trace import open_traced
from pretok.shards.manifest import load_manifest
from pretok.stream import View
from train import loop

HALF, WHOLE = 4, 8


def train(work: Path, steps: int, mixed: bool) -> Path:
    model = work / "model.toml"
    size = load_manifest(work / "shards").tokenizer.vocab_size
    model.write_text(SIZES.format(tied="true").replace("vocab_size = 60", f"vocab_size = {size}"))
    more = {
        "mix": str(work / "mix.json") if mixed else None,
        "model": str(model),
        "schedule": "wsd",
        "decay": 0,
        "warmup": 1,
    }
    loop.train(tiny_config(work / "shards", work, steps=steps, **more))
    return work / "run"


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [True, False])
def test_a_run_goes_on_over_a_removal(
    removable: Path, tmp_path: Path, mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a mix, or by every sequence once, whose stream has another name after the removal."""
    work, by_hand, untouched = (
        copy_of(removable, tmp_path / name) for name in ("work", "by_hand", "untouched")
    )
    for folder in (work, by_hand):
        train(folder, HALF, mixed)
    rows = rows_of(removable)
    gone = {row["hash"] for row in rows if row["source"] == "a" and row["doc"] % 2}
    remove(work, where="source = 'a' and doc % 2 = 1")
    for name, mask in removed_tokens(load_manifest(removable / "shards"), rows, gone).items():
        tokens = np.memmap(by_hand / name, np.uint16, "r+")
        tokens[mask] = EOD
        tokens.flush()
    with pytest.raises(IntegrityError, match="is damaged"):  # no removal's doing
        train(by_hand, WHOLE, mixed)
    runs = [train(work, WHOLE, mixed)]
    monkeypatch.setattr(View, "compare_places", lambda *_: None)
    runs += [train(folder, WHOLE, mixed) for folder in (by_hand, untouched)]
    for what in ("loss", "grad_norm"):
        resumed, hand, plain = (column(run, what) for run in runs)
        assert resumed == hand
        assert resumed[:HALF] == plain[:HALF]
        assert resumed[HALF:] != plain[HALF:]
    segments = read_lines(runs[0] / "segments.jsonl")
    assert [(segment["step"], segment.get("removals", 0)) for segment in segments] == [(0, 0), (HALF, 1)]
    assert len(read_lines(runs[1] / "segments.jsonl")) == 1
    assert read_json(runs[0] / "done.json")["step"] == WHOLE
    assert [traced.removals for traced in open_traced(runs[0], None)] == [0, 1]
