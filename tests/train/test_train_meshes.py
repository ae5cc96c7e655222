"""One process, and any ranks that divide its work, train the same model on the same data.

One run goes through all meshes, each of which goes on from what another one wrote, as if it had always been the same:
data, losses, norms, validation, and the tensors of each checkpoint, read without any mesh, are those of one process.
On every mesh the length of the sequences changes once, attention stays inside of documents (and a window), what a mask
or an end leaves out is not learned, and gradients are clipped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from support import needs

torch = needs("torch")
from torch.distributed.fsdp import FSDPModule

from pretok.base.storage import read_lines
from tests.train_support import (
    Job,
    around,
    column,
    flags,
    model_file,
    read_tensors,
    run_jobs,
    tiny_config,
    tiny_flags,
)
from train.model.transformer import Block

EACH = 2
"""Steps on each mesh: the loss of the first tells of the parameters it read, of the second of the moments too."""
BATCH, SHORT, LONG = 8, 8, 16


class Mesh(NamedTuple):
    """Its sizes, in the order of ranks; of a shard so many ranks share each sequence; what else is set."""

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    context: int = 1
    more: Mapping[str, Any] = MappingProxyType({})

    @property
    def ranks(self) -> int:
        return self.pipeline * self.replicate * self.shard * self.tensor


OPS, HALF, FULL = ({"checkpointing": kind} for kind in ("ops", "0.5", "full"))
COMPILED = OPS | {"compile": True}
OFFLOAD = {"offload": True, "micro_batch": 2}
INTERLEAVED, ZERO_BUBBLE, DUALPIPE = (
    {"pipeline_schedule": kind, "micro_batch": 1} for kind in ("interleaved", "zero-bubble", "dualpipe")
)
MANY = [
    Mesh(replicate=2, more=OPS),  # DDP
    Mesh(shard=2, more=FULL | {"micro_batch": 1, "reshard": False}),  # ZeRO-1, ZeRO-2
    Mesh(shard=2, context=2),  # ZeRO-3
    Mesh(replicate=2, shard=2, more=OFFLOAD),  # hybrid
    Mesh(pipeline=2, more=INTERLEAVED | {"micro_batch": 4} | COMPILED),
    Mesh(pipeline=2, shard=2, context=2, more=ZERO_BUBBLE),
    Mesh(pipeline=2, tensor=2, more=OFFLOAD | DUALPIPE),
    Mesh(pipeline=2, replicate=2, more=DUALPIPE),
    Mesh(pipeline=2, more=ZERO_BUBBLE | FULL | {"micro_batch": 2}),
]
"""Each name that others use, each schedule and each setting of memory, on a mesh that divides what it touches."""
TIED = [
    Mesh(replicate=2, shard=2, more=HALF | {"micro_batch": 1}),
    Mesh(shard=2, tensor=2, context=2, more=OPS),
    Mesh(replicate=2, tensor=2),
]
"""Of a model whose embedding is its output matrix."""
POWERS = (1, 2, 4)
EVERY = [
    Mesh(*sizes, c)
    for *sizes, c in product(POWERS, repeat=5)
    if Mesh(*sizes).ranks <= 4 and sizes[2] % c == 0
]
"""Of up to four ranks."""
MORE = [
    Mesh(pipeline=2, shard=2, tensor=2),
    Mesh(pipeline=4, more=HALF),
    Mesh(tensor=2, more=COMPILED),
    Mesh(shard=2, context=2, more=COMPILED),
]
KEPT = [Mesh(tensor=2, more=COMPILED | kept) for kept in (FULL, HALF)]
MUON = {"optimizer": "muon", "lr": 0.001}
MUONS = [Mesh(shard=2, tensor=2, more=MUON), Mesh(pipeline=2, replicate=2, more=MUON)]
EVERY_MARKS = [pytest.mark.slow, pytest.mark.timeout(900)]
CHAINS = [
    pytest.param("window = 5", MANY, id="many"),
    pytest.param("window = 5", MUONS, id="muon"),
    pytest.param("qk_norm = true", TIED, id="tied", marks=pytest.mark.slow),
    pytest.param("qkv_bias = true", [*EVERY, *MORE], id="every", marks=EVERY_MARKS),
    pytest.param("qkv_bias = true", KEPT, id="compiled", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "meshes"), CHAINS)
def test_a_run_through_many_meshes_is_that_of_one_process(
    conversations: Path, tmp_path: Path, kind: str, meshes: Sequence[Mesh]
) -> None:
    sizes = (
        Path(model_file(tmp_path, tied=kind == "qk_norm = true"))
        .read_text()
        .replace("kv_heads = 2", "kv_heads = 4")
    )
    (model := tmp_path / "sizes.toml").write_text(sizes.replace("layers = 2", "layers = 4") + kind)
    ends = [EACH * number for number in range(1, len(meshes) + 1)]
    # In the middle of a mesh, so that the next one goes on in the middle of a phase.
    at, phases = BATCH * SHORT, []
    for number in range(len(meshes)):
        length = SHORT if number % 2 else LONG
        phases.append({"at": at, "seq_len": length})
        at += EACH * BATCH * length
    # A large epsilon: else the first steps go by the signs of gradients, of which rounding decides some.
    common = {"seq_len": SHORT, "lr": 0.01, "eps": 0.001, "warmup": 0, "schedule": "constant"}
    common |= {"phases": phases, "clip": 0.3, "z_loss": 0.01, "attention": "document"}
    common |= {"val_every": EACH, "val_sequences": 7, "save_every": str(EACH), "keep_last": 99}

    def job(mesh: Mesh, name: str, steps: int) -> Job:
        divide = {key: getattr(mesh, key) for key in ("pipeline", "shard", "tensor", "context")}
        divide["micro_batch"] = BATCH * mesh.context // (mesh.pipeline * mesh.replicate * mesh.shard)
        settings = common | divide | {"steps": steps, "out": str(tmp_path / name), **mesh.more}
        return mesh.ranks, flags(tiny_config(conversations, tmp_path, model=str(model), **settings))

    links = [job(mesh, "through", end) for mesh, end in zip(meshes, ends, strict=True)]
    alone = Mesh(more=MUON if meshes is MUONS else {})
    text = run_jobs([job(alone, "whole", ends[-1]), *links], tmp_path, before=_watch)

    whole, through = tmp_path / "whole", tmp_path / "through"
    losses, learned = column(whole, "loss"), column(whole, "learned")
    assert len(set(losses)) == ends[-1]  # they move, so equality says something
    assert max(learned) < BATCH * LONG / 2
    assert min(column(whole, "grad_norm")) > 0.3
    assert column(through, "data_hash") == column(whole, "data_hash")
    assert column(through, "learned") == learned
    near = 1e-6 if len(meshes) < 20 else 1e-5  # rounding adds up over the steps
    assert column(through, "loss") == pytest.approx(losses, rel=near)
    assert column(through, "grad_norm") == pytest.approx(column(whole, "grad_norm"), rel=10 * near)
    validations = [read_lines(run / "validation.jsonl") for run in (through, whole)]
    assert len(validations[1]) == len(meshes)
    for name in ("val_loss", "val_bits_per_byte"):
        found, wanted = ([record[name] for record in records] for records in validations)
        assert found == pytest.approx(wanted, rel=near)
    for mesh, end in zip(meshes, ends, strict=True):
        found, wanted = (read_tensors(run / f"checkpoints/step-{end:08d}") for run in (through, whole))
        assert found.keys() == wanted.keys(), mesh
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=100 * near, atol=near, msg=f"{mesh} {name}")
        # A rank that shares sequences has its part of each; between matrix products a tensor rank too.
        part = mesh.tensor * mesh.context
        saw = {line for line in text.splitlines() if line.startswith(f"to step {end} blocks saw")}
        assert f"to step {end} blocks saw {sorted({SHORT // part, LONG // part})}" in saw
        assert f"to step {end} offloaded { {mesh.more.get('offload', False)} }" in text
    # Each rank reads a part of a checkpoint.
    for mesh, end in zip(meshes[1:], ends, strict=False):
        readers = {line.split()[-1] for line in text.splitlines() if line.startswith(f"read step-{end:08d}")}
        assert {int(rank) for rank in readers} == set(range(mesh.ranks)), mesh


def _watch() -> None:
    """A rank says which checkpoints it reads and how many tokens of a sequence its blocks saw. Blocks are traced, but
    not compiled to machine code, which takes minutes."""
    from train import loop
    from train.checkpoint import tensors
    from train.model import loss

    torch.Tensor.bfloat16 = (
        torch.Tensor.float
    )  # in Muon: else the last bit of a gradient decides where it is rounded
    seen = set[int]()
    said = lambda _, reader, *__: print("read", reader.checkpoint.name, "by", os.environ["RANK"])  # noqa: E731
    around(tensors, "restore", said)

    def look(run: Any) -> None:
        seen.clear()
        for block in (module for module in run.state.model.modules() if isinstance(module, Block)):
            block.register_forward_pre_hook(lambda _, inputs: seen.add(inputs[0].shape[1]))

    around(loop, "_loop", look, lambda _, run: print("to step", run.steps, "blocks saw", sorted(seen)))
    around(loop, "_loop", lambda run: print("to step", run.steps, "offloaded", _offloaded(run.state.model)))
    compiled = partial(torch.compile, dynamic=False, backend="aot_eager")
    loss._compiled = cache(lambda function: compiled(function))
    original = torch.nn.Module.compile
    torch.nn.Module.compile = lambda self, **options: original(self, backend="aot_eager", **options)


def _offloaded(model: Any) -> set[bool]:
    """Whether torch takes the parameters from the host and brings their gradients there; on a CPU both are there."""
    groups = [
        part._get_fsdp_state()._fsdp_param_group for part in model.modules() if isinstance(part, FSDPModule)
    ]
    return {one.offload_to_cpu for group in groups if group is not None for one in group.fsdp_params}


def test_replicas_skip_a_step_together(shards: Path, tmp_path: Path) -> None:
    """Else one of them takes a step that the other does not, and they go on as two models."""
    arguments = tiny_flags(shards, tmp_path, shard=1, steps=6, save_every="never")
    run_jobs([(2, arguments)], tmp_path, before=_lose_a_number)
    assert column(tmp_path / "run", "skipped") == [0, 0, 1, 1, 1, 1]


def _lose_a_number() -> None:
    """In step 3 rank 1 alone has a gradient that is not finite, as a fault of its memory would leave it."""
    from train import step

    calls: list[int] = []

    def lose(_: Any, parameters: Any, *rest: Any) -> None:
        calls.append(0)
        if os.environ["RANK"] == "1" and len(calls) == 3:
            parameters[0].grad.to_local().fill_(torch.nan)

    around(step, "update", lose)
