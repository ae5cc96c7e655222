"""Mixes that go on after their sources grew: what came is an entry of its own (see test_model.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mixing import request
from support import make_shards

import pretok.stream
from pretok.base.errors import MismatchError
from pretok.shards.manifest import load_manifest
from pretok.stream.continued import beginning
from pretok.stream.mix_file import load_mix
from pretok.stream.mix_job import run_mix
from train.config import TrainConfig
from train.evaluate import validation_sources


def test_validation_stays_what_it_was(tmp_path: Path) -> None:
    """Of the shards that a mix began with, however often it was continued; a mix of its own has all there is."""
    text = {"it": [list(range(1, 101))]}
    shards = make_shards(tmp_path / "0", text, val=text)
    run_mix(shards, tmp_path / "0.json", request("50:it=1", seq_len=5))
    before = validation_sources(TrainConfig(shards=str(shards)), load_mix(tmp_path / "0.json"))
    for number in (1, 2):
        more = {"it": [list(range(200, 300))], "en": [list(range(300, 400))]}
        shards = make_shards(tmp_path / str(number), more, val=more, since=shards)
        after = beginning(load_manifest(shards), tmp_path / f"{number - 1}.json", 10)
        run_mix(shards, tmp_path / f"{number}.json", request("50:it=1", seq_len=5, after=after))
    config = TrainConfig(shards=str(shards))
    found = validation_sources(config, load_mix(tmp_path / "2.json"))
    assert found.keys() == {"it"}
    np.testing.assert_array_equal(found["it"].view[:], before["it"].view[:])
    assert found["it"].bytes_per_token == before["it"].bytes_per_token
    run_mix(shards, tmp_path / "new.json", request("50:it=1", seq_len=5))
    new = validation_sources(config, load_mix(tmp_path / "new.json"))
    assert {name: len(one.view) for name, one in new.items()} == {"it": 60, "en": 40}
    with pytest.raises(MismatchError, match="never had the fingerprint x"):
        pretok.stream.open(shards, seq_len=5, manifest="x")
