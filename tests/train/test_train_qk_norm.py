"""A model with norms on queries and keys: split over tensor ranks, resumed, and as a Qwen3 of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import needs

torch = needs("torch")
from pretok.base.errors import MismatchError, UsageError
from pretok.base.records import replace
from tests.train_support import add_tokenizer, column, filled, model_file, random_shards, run_jobs
from train.__main__ import main
from train.checkpoint.export import exported_tensors
from train.model.sizes import ModelConfig, model_config
from train.model.transformer import Decoder

STEPS = 6
MESHES: dict[str, list[object]] = {
    "shard-2-tensor-2": ["--tensor", 2, "--shard", 2],
    "replicate-2-tensor-2": ["--shard", 1, "--tensor", 2],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards with a tokenizer, a model file, and a run of one process and of each of MESHES."""
    folder = tmp_path_factory.mktemp("qk")
    shards = random_shards(folder / "shards")
    add_tokenizer(shards)
    (folder / "qk.toml").write_text(Path(model_file(folder, tied=False)).read_text() + "qk_norm = true\n")
    jobs = [(4, [*arguments(folder, folder / name), *mesh]) for name, mesh in MESHES.items()]
    run_jobs([(1, arguments(folder, folder / "run")), *jobs], folder)
    return folder


def arguments(folder: Path, run: Path) -> list[object]:
    return [
        *("--shards", folder / "shards", "--out", run, "--model", folder / "qk.toml", "--seq-len", 16),
        *("--global-batch", 16, "--steps", STEPS, "--lr", 0.05, "--warmup", 1),
        *("--workers", 0, "--save-every", 3, "--z-loss", 0.01),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_tensor_ranks_equal_one(folder: Path, mesh: str) -> None:
    """Each rank norms its own heads with one weight, whose gradient is the sum over ranks and counted once; the z-loss
    is of the whole vocabulary, of which each has a slice."""
    run = folder / mesh
    assert column(run, "loss") == pytest.approx(column(folder / "run", "loss"), rel=1e-5)
    assert column(run, "grad_norm") == pytest.approx(column(folder / "run", "grad_norm"), rel=1e-3)


@pytest.mark.slow
def test_it_is_a_qwen3_of_transformers(folder: Path, tmp_path: Path) -> None:
    transformers = needs("transformers")
    out = tmp_path / "model"
    main(["export", "--run", str(folder / "run"), "--out", str(out)])
    assert json.loads((out / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
    config = replace(model_config(str(folder / "qk.toml")), vocab_size=60, seq_len=16)
    model = filled(config, exported_tensors(out, config, print))
    moved = model.layers[0].self_attn.q_norm.weight - 1
    assert moved.abs().mean() > 0.01  # a weight of ones could be left out unseen
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    tokens = torch.randint(0, 60, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens)[..., :60], rtol=1e-4, atol=1e-5)
    with pytest.raises(MismatchError, match=r"qk_norm True \(here False\).* family qwen3 \(here llama\)"):
        exported_tensors(out, replace(config, qk_norm=False), print)


def test_a_model_file_says_true_or_false(tmp_path: Path) -> None:
    path = Path(model_file(tmp_path))
    assert model_config(str(path)).qk_norm is False
    path.write_text(path.read_text() + "qk_norm = 1\n")
    with pytest.raises(UsageError, match=r"Expected `bool`, got `int` - at `\$.qk_norm`"):
        model_config(str(path))


def test_without_norms_nothing_is_named() -> None:
    sizes = ModelConfig(dim=32, layers=1, heads=4, kv_heads=2, hidden=64)
    with torch.device("meta"):
        assert not [
            name for name, _ in Decoder(sizes).named_parameters() if "q_norm" in name or "k_norm" in name
        ]
