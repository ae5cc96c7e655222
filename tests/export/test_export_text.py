"""What other trainers get: Megatron-LM's own loader reads our shards; the snippets run."""

from __future__ import annotations

import itertools
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mixing import request
from support import EOD, make_shards, needs

import pretok.stream
from pretok.base.errors import UsageError
from pretok.export.text import export_text
from pretok.stream.mix_job import run_mix

SEQ_LEN = 8
DOCUMENTS = {
    "en": [range(500 + start, 500 + start + 40) for start in range(0, 400, 40)],
    "it": [range(1 + start, 1 + start + 70) for start in range(0, 420, 70)],
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    return make_shards(folder, DOCUMENTS, val={"it": [range(1, 100)]}, documents_per_shard=4)


@pytest.fixture(scope="module")
def mix(shards: Path) -> Path:
    path = shards / "mix.json"
    run_mix(shards, path, request("320:it=0.75,en=0.25", seq_len=SEQ_LEN))
    return path


def test_weights_follow_the_mix(shards: Path, mix: Path) -> None:
    blend = json.loads(export_text(shards, "megatron", mix))
    assert blend["test"] is None
    assert blend["valid"][1::2] == [str(shards / "it" / "it-val-00000")]
    weights = dict(zip(blend["train"][1::2], map(float, blend["train"][::2]), strict=True))
    assert len(weights) == 5
    assert sum(weights.values()) == pytest.approx(320)
    italian = [weight for prefix, weight in weights.items() if Path(prefix).name.startswith("it")]
    assert italian == pytest.approx([240 * 4 / 6, 240 * 2 / 6])
    natural = json.loads(export_text(shards, "megatron"))
    assert [float(weight) for weight in natural["train"][::2]] == [4 * 41, 4 * 41, 2 * 41, 4 * 71, 2 * 71]


def test_stages_are_chosen(shards: Path, tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    run_mix(shards, path, request("160:it=1", "160:it=0.5,en=0.5", seq_len=SEQ_LEN))
    with pytest.raises(UsageError, match="choose with --stage"):
        export_text(shards, "megatron", path)
    with pytest.raises(UsageError, match="no stage 3"):
        export_text(shards, "megatron", path, stage=3)
    assert {
        Path(p).name[:2] for p in json.loads(export_text(shards, "megatron", path, stage=1))["train"][1::2]
    } == {"it"}
    assert len(json.loads(export_text(shards, "megatron", path, stage=2))["train"]) == 10
    with pytest.raises(UsageError, match="all stages"):
        export_text(shards, "nanogpt", path, stage=1)
    with pytest.raises(UsageError, match="known are megatron"):
        export_text(shards, "jax")


@pytest.fixture
def process_group() -> Iterator[None]:
    """One rank: megatron-core asks for it before it writes its indices."""
    torch = needs("torch")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore")  # megatron-core's imports warn about packages for GPUs
@pytest.mark.peers
def test_megatron_core_reads_our_shards(shards: Path, mix: Path, tmp_path: Path) -> None:
    needs("megatron.core")
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import get_blend_from_list

    blend = json.loads(export_text(shards, "megatron", mix))
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=SEQ_LEN,
        blend_per_split=[get_blend_from_list(blend[split]) for split in ("train", "valid", "test")],
        path_to_cache=str(tmp_path),
        tokenizer=types.SimpleNamespace(vocab_size=1000, eod=EOD, unique_identifiers={}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    train, valid, _ = BlendedMegatronDatasetBuilder(GPTDataset, [40, 4, 0], lambda: True, config).build()
    sources = [0, 0]
    for index in range(40):
        sample = train[index]
        tokens = [*sample["tokens"].tolist(), sample["labels"][-1].item()]
        assert len(tokens) == SEQ_LEN + 1
        italian = max(tokens) < 500
        sources[italian] += 1
        starts = [document[0] for document in DOCUMENTS["it" if italian else "en"]]
        for before, after in itertools.pairwise(tokens):  # documents are ranges, whole and each ended by EOD
            assert after in starts if before == EOD else after in (before + 1, EOD)
    assert sources == [10, 30]
    assert len(valid) >= 4
    documents = IndexedDataset(str(shards / "it" / "it-00000"))
    assert [document.tolist() for document in documents] == [
        [*document, EOD] for document in DOCUMENTS["it"][:4]
    ]


def test_snippets_run(shards: Path, mix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("torch")
    view = pretok.stream.open(shards, mix)
    names: dict[str, Any] = {"batch_size": 4, "device": "cpu"}
    exec(export_text(shards, "nanogpt", mix), names)
    for first in (0, 4):
        inputs, targets = names["get_batch"]("train")
        expected = view.batch(range(first, first + 4))
        np.testing.assert_array_equal(inputs.numpy(), expected[:, :-1])
        np.testing.assert_array_equal(targets.numpy(), expected[:, 1:])
    litgpt = types.ModuleType("litgpt.data")
    litgpt.DataModule = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "litgpt", types.ModuleType("litgpt"))
    monkeypatch.setitem(sys.modules, "litgpt.data", litgpt)
    exec(export_text(shards, "litgpt", mix), names)
    module = names["Pretok"]()
    module.connect(batch_size=4)
    np.testing.assert_array_equal(next(iter(module.train_dataloader())).numpy(), view.batch(range(4)))
    assert "seq_len=16" in export_text(shards, "nanogpt", seq_len=16)
