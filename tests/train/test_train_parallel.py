"""One process and any mesh of four train the same model on the same data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import needs

torch = needs("torch")
import pretok.stream
from tests.train_support import column, model_file, random_shards, run_ranks
from train.config import TrainConfig
from train.model.sizes import model_config
from train.model.transformer import Decoder, initial_tensor
from train.run import loop
from train.steps.optim import learning_rate

STEPS = 6


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_shards(tmp_path_factory.mktemp("shards"))


def arguments(shards: Path, run: Path, model: str) -> list[object]:
    return [
        *("--shards", shards, "--out", run, "--model", model, "--seq-len", 16, "--global-batch", 16),
        *("--steps", STEPS, "--lr", 0.01, "--warmup", 2, "--workers", 0, "--save-every", 1000),
    ]


@pytest.fixture(scope="module")
def alone(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    runs = {}
    for tied in (True, False):
        folder = tmp_path_factory.mktemp("alone")
        run_ranks(1, arguments(shards, folder / "run", model_file(folder, tied=tied)), folder)
        runs[tied] = folder / "run"
    return runs


def test_one_process_equals_a_plain_loop(shards: Path, alone: dict[bool, Path], tmp_path: Path) -> None:
    """The trainer against a few lines of torch that know nothing of it but the model."""
    config = TrainConfig(lr=0.01, warmup=2)
    sizes = model_config(model_file(tmp_path))
    view = pretok.stream.open(shards, seq_len=16)
    model = Decoder(sizes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_tensor(sizes, 0, name, parameter.shape, torch.device("cpu")))
    flat = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    deep = [parameter for name, parameter in model.named_parameters() if name.endswith("proj.weight")]
    groups = [{"params": deep, "weight_decay": 0.1}]
    groups.append({"params": [*flat, model.embed_tokens.weight], "weight_decay": 0.0})
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for step in range(STEPS):
        tokens = torch.from_numpy(view.batch(range(16 * step, 16 * step + 16)))
        logits = model(tokens[:, :-1])[..., :60]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step, STEPS)
        optimizer.step()
        optimizer.zero_grad()
    assert column(alone[True], "loss") == pytest.approx(losses, rel=1e-5)
    assert column(alone[True], "grad_norm") == pytest.approx(norms, rel=1e-4)


@pytest.mark.parametrize(
    ("extra", "tied"),
    [
        (["--shard", 2], True),
        (["--shard", 2, "--accumulation", 2], False),
        (["--shard", 2, "--micro-batch", 1, "--sync", "last"], True),
        (["--shard", 1], True),
        (["--shard", 4, "--no-reshard", "--checkpointing", "full", "--micro-batch", 2], True),
        (["--shard", 2, "--tensor", 2], True),
        (["--shard", 1, "--tensor", 2, "--micro-batch", 2, "--checkpointing", "every-2"], False),
    ],
    ids=["2x2", "2x2-scatter", "2x2-last", "ddp", "zero-2", "2-tensor-2", "replicate-2-tensor-2"],
)
def test_four_processes_equal_one(
    shards: Path, alone: dict[bool, Path], tmp_path: Path, extra: list[object], tied: bool
) -> None:
    run = tmp_path / "run"
    run_ranks(4, [*arguments(shards, run, model_file(tmp_path, tied=tied)), *extra], tmp_path)
    assert column(run, "data_hash") == column(alone[tied], "data_hash")
    assert column(run, "loss") == pytest.approx(column(alone[tied], "loss"), rel=1e-5)
    assert column(run, "grad_norm") == pytest.approx(column(alone[tied], "grad_norm"), rel=1e-4)
    assert len(set(column(run, "loss"))) == STEPS  # the losses move, so equality says something


def test_bf16_accumulation_offload_and_document_mask_on_a_mesh(
    shards: Path, alone: dict[bool, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    extra = ["--precision", "bf16", "--offload", "--micro-batch", 2, "--checkpointing", "ops", "--shard", 2]
    run_ranks(4, [*arguments(shards, run, model_file(tmp_path)), *extra, "--attention", "document"], tmp_path)
    assert column(run, "data_hash") == column(alone[True], "data_hash")
    # Another precision and another mask: near, and not equal.
    assert column(run, "loss") == pytest.approx(column(alone[True], "loss"), rel=0.02)
    assert column(run, "loss") != pytest.approx(column(alone[True], "loss"), rel=1e-6)


def test_parameters_are_gathered_once_a_step_or_for_each_use(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeRO-2 keeps them through the passes of a step; what it computes is in the cases above."""
    group = torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup
    original, gathered = group._to_unsharded, []

    def to_unsharded(self: Any) -> None:
        if not self.is_unsharded:
            gathered.append(1)
        original(self)

    monkeypatch.setattr(group, "_to_unsharded", to_unsharded)
    counts = {}
    for reshard in (True, False):
        gathered.clear()
        sizes = {"global_batch": 8, "accumulation": 4, "steps": 3, "seq_len": 16, "workers": 0}
        config: dict[str, Any] = {**sizes, "shards": str(shards), "model": model_file(tmp_path)}
        out = str(tmp_path / str(reshard))
        loop.train(TrainConfig(**config, out=out, reshard=reshard, save_every="never"))
        counts[reshard] = len(gathered)
    blocks = 2
    assert counts == {True: 3 * 4 * (2 * blocks + 1), False: 3 * (blocks + 1)}
