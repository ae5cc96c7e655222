"""One process and any mesh of four train the same model on the same data."""

from __future__ import annotations

import os
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from support import needs

torch = needs("torch")
import pretok.stream
from tests.train_support import column, filled, model_file, run_jobs, tiny_config
from train import loop
from train.config import TrainConfig
from train.model.sizes import model_config
from train.optimizer import learning_rate
from train.parallel.layout import Layout
from train.plan import count_tensors

STEPS = 6


SPLIT: dict[str, tuple[bool, tuple[object, ...]]] = {
    "2x2": (True, ("--shard", 2)),
    "2x2-scatter": (False, ("--shard", 2, "--micro-batch", 2, "--checkpointing", 0.5)),
    "ddp": (True, ("--shard", 1)),
    "zero-2": (False, ("--shard", 4, "--no-reshard", "--checkpointing", "full", "--micro-batch", 2)),
    "context-2": (True, ("--shard", 4, "--context", 2, "--checkpointing", "ops")),
    "2-tensor-2": (True, ("--shard", 2, "--tensor", 2)),
    "replicate-2-tensor-2": (
        False,
        ("--shard", 1, "--tensor", 2, "--micro-batch", 2, "--checkpointing", "0.5"),
    ),
}
"""Of runs on four ranks whether the embedding is the output matrix, and what is their own."""
OTHER = ("--precision", "bf16", "--micro-batch", 2, "--checkpointing", "ops", "--shard", 2)


def arguments(shards: Path, folder: Path, name: str, tied: bool, *own: object) -> list[object]:
    """Of a run of FOLDER/name."""
    data = ("--shards", shards, "--out", folder / name, "--model", model_file(folder, tied=tied))
    sizes = ("--seq-len", 16, "--global-batch", 16, "--steps", STEPS, "--workers", 0)
    return [*data, *sizes, "--lr", 0.01, "--warmup", 2, "--save-every", "never", *own]


@pytest.fixture(scope="module")
def runs(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """alone-tied, alone-untied: of one process; one run for each of SPLIT; other: with OTHER and masked documents."""
    folder = tmp_path_factory.mktemp("runs")

    def job(name: str, ranks: int, tied: bool, *own: object) -> tuple[int, list[object]]:
        return ranks, arguments(shards, folder, name, tied, *own)

    jobs = [job("alone-tied", 1, True), job("alone-untied", 1, False)]
    jobs += [job(name, 4, tied, *own) for name, (tied, own) in SPLIT.items()]
    run_jobs([*jobs, job("other", 4, True, *OTHER, "--attention", "document")], folder, before=_note_lengths)
    return folder


def _note_lengths() -> None:
    """Each run leaves how many tokens of a sequence its blocks saw."""
    original = loop._loop

    def _loop(run: Any) -> None:
        seen: set[int] = set()
        for block in run.trainee.model.layers:
            block.register_forward_pre_hook(lambda _, inputs: seen.add(inputs[0].shape[1]))
        original(run)
        Path(run.config.out, f"lengths-{os.environ['RANK']}").write_text(f"{sorted(seen)}")

    loop._loop = _loop


def test_one_process_equals_a_plain_loop(shards: Path, runs: Path, tmp_path: Path) -> None:
    """The trainer against a few lines of torch that know nothing of it but the model."""
    config = TrainConfig(lr=0.01, warmup=2)
    sizes = model_config(model_file(tmp_path))
    view = pretok.stream.open(shards, seq_len=16)
    model = filled(sizes)
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
    assert column(runs / "alone-tied", "loss") == pytest.approx(losses, rel=1e-5)
    assert column(runs / "alone-tied", "grad_norm") == pytest.approx(norms, rel=1e-4)


@pytest.mark.parametrize("name", SPLIT)
def test_four_processes_equal_one(runs: Path, name: str) -> None:
    tied, own = SPLIT[name]
    run, alone = runs / name, runs / ("alone-tied" if tied else "alone-untied")
    assert column(run, "data_hash") == column(alone, "data_hash")
    assert column(run, "loss") == pytest.approx(column(alone, "loss"), rel=1e-5)
    assert column(run, "grad_norm") == pytest.approx(column(alone, "grad_norm"), rel=1e-4)
    assert len(set(column(run, "loss"))) == STEPS  # the losses move, so equality says something
    # A rank that shares sequences has its part of each; between matrix products a tensor rank too.
    parts = 2 ** (own.count("--tensor") + own.count("--context"))
    assert {path.read_text() for path in run.glob("lengths-*")} == {f"[{16 // parts}]"}


@pytest.mark.slow
@pytest.mark.parametrize("split", ["--tensor", "--context"])
def test_compiled_blocks_that_are_split_equal_one_process(
    shards: Path, runs: Path, tmp_path: Path, split: str
) -> None:
    """What enters the first of them has arrived: torch loses a part of the gradient of what is still on its way."""
    own = (split, 2, "--compile", "--checkpointing", "ops", "--steps", 3)
    run_jobs([(2, arguments(shards, tmp_path, "run", False, *own))], tmp_path, before=_trace_alone)
    for name, exact in (("loss", 1e-5), ("grad_norm", 1e-4)):
        alone = column(runs / "alone-untied", name)
        assert column(tmp_path / "run", name) == pytest.approx(alone[:3], rel=exact)


def _trace_alone() -> None:
    """Blocks, and the parts of the loss, are traced; no machine code is made, which takes minutes."""
    from train.model import loss

    compiled = partial(torch.compile, dynamic=False, backend="aot_eager")
    loss._compiled = cache(lambda function: compiled(function))
    original = torch.nn.Module.compile
    torch.nn.Module.compile = lambda self, **options: original(self, backend="aot_eager", **options)


def test_replicas_skip_a_step_together(shards: Path, tmp_path: Path) -> None:
    """Else one of them takes a step that the other does not, and they go on as two models."""
    run_jobs([(2, arguments(shards, tmp_path, "run", True, "--shard", 1))], tmp_path, before=_lose_a_number)
    assert column(tmp_path / "run", "skipped") == [0, 0, 1, 1, 1, 1]


def _lose_a_number() -> None:
    """In step 3 rank 1 alone has a gradient that is not finite, as a fault of its memory would leave it."""
    from train import step

    original, calls = step.update, []

    def update(optimizer: Any, parameters: Any, *rest: Any) -> Any:
        calls.append(0)
        if os.environ["RANK"] == "1" and len(calls) == 3:
            parameters[0].grad.to_local().fill_(torch.nan)
        return original(optimizer, parameters, *rest)

    step.update = update


def test_bf16_accumulation_and_document_mask_on_a_mesh(runs: Path) -> None:
    run, alone = runs / "other", runs / "alone-tied"
    assert column(run, "data_hash") == column(alone, "data_hash")
    # Another precision and another mask: near, and not equal.
    assert column(run, "loss") == pytest.approx(column(alone, "loss"), rel=0.02)
    assert column(run, "loss") != pytest.approx(column(alone, "loss"), rel=1e-6)


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
        sizes = {"micro_batch": 2, "steps": 3, "out": str(tmp_path / str(reshard))}
        loop.train(tiny_config(shards, tmp_path, reshard=reshard, save_every="never", **sizes))
        counts[reshard] = len(gathered)
    blocks = 2
    assert counts == {
        True: 3 * 4 * 2 * blocks,
        False: 3 * (blocks + 1),
    }  # the last block stays for its backward pass


@pytest.mark.parametrize(("tied", "reshard"), [(False, True), (True, True), (False, False)])
def test_the_plan_counts_what_is_gathered(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool, reshard: bool
) -> None:
    """Of an embedding and an output matrix one at a time, of the blocks two."""
    kind_of_group = torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup
    original, groups, most = kind_of_group.unshard, set(), {"blocks": 0, "ends": 0}

    def unshard(self: Any, async_op: bool = False) -> None:
        original(self, async_op)
        groups.add(self)
        here = [group for group in groups if group.is_unsharded or group._all_gather_result is not None]
        held = dict.fromkeys(most, 0)
        for parameter in (one for group in here for one in group.fsdp_params):
            kind = "blocks" if "layers." in parameter._param_fqn else "ends"
            held[kind] += 4 * parameter._orig_size.numel()
        most.update({kind: max(size, most[kind]) for kind, size in held.items()})

    monkeypatch.setattr(kind_of_group, "unshard", unshard)
    sizes = tmp_path / "sizes.toml"
    sizes.write_text(Path(model_file(tmp_path, tied=tied)).read_text().replace("layers = 2", "layers = 4"))
    more = {"model": str(sizes), "steps": 2, "save_every": "never", "precision": "fp32"}
    config = tiny_config(shards, tmp_path, reshard=reshard, **more)
    loop.train(config)
    model = model_config(str(sizes))
    counted = count_tensors(model, Layout(1, 1, 1), 8, 1, 16, config).gathered
    assert sum(most.values()) == counted - 2 * 4 * model.block_parameters  # less a block's gradients
