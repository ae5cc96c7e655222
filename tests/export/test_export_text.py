"""The blend for Megatron-LM, whose own loader reads our shards."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from mixing import request
from support import EOD, make_shards, needs

from pretok.base.errors import UsageError
from pretok.export.text import megatron_blend
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
    blend = megatron_blend(shards, mix, None)
    assert blend["test"] is None
    assert blend["valid"][1::2] == [str(shards / "it" / "it-val-00000")]
    weights = dict(zip(blend["train"][1::2], map(float, blend["train"][::2]), strict=True))
    assert len(weights) == 5
    assert sum(weights.values()) == pytest.approx(320)
    italian = [weight for prefix, weight in weights.items() if Path(prefix).name.startswith("it")]
    assert italian == pytest.approx([240 * 4 / 6, 240 * 2 / 6])
    natural = megatron_blend(shards, None, None)
    assert [float(weight) for weight in natural["train"][::2]] == [4 * 41, 4 * 41, 2 * 41, 4 * 71, 2 * 71]


def test_stages_are_chosen(shards: Path, tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    run_mix(shards, path, request("160:it=1", "160:it=0.5,en=0.5", seq_len=SEQ_LEN))
    with pytest.raises(UsageError, match="choose with --stage"):
        megatron_blend(shards, path, None)
    with pytest.raises(UsageError, match="no stage 3"):
        megatron_blend(shards, path, 3)
    assert {Path(p).name[:2] for p in megatron_blend(shards, path, 1)["train"][1::2]} == {"it"}
    assert len(megatron_blend(shards, path, 2)["train"]) == 10


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

    blend = megatron_blend(shards, mix, None)
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
