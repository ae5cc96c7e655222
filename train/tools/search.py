"""Which mesh, micro-batch and recomputation is the fastest that fits a machine.

Input: a model, a global batch, a machine. Output: choices in the order of the estimated length of a step, each with
what it loses time to. The estimate ranks choices, it foretells no speed; `train tune` measures. It adds up

- matrix products at the peak times `--mfu`, which is that of a device with nothing else to do;
- recomputation: a third more for whole blocks (their forward pass again), a twentieth for `ops` (elementwise work), of
  a share of blocks the one and of the others the other;
- the bubble of a pipeline (`train.parallel.layout`);
- all-reduces of tensor parallelism, four a block and pass, six with whole blocks recomputed, which nothing hides;
- gathering of parameters and scattering of gradients in each pass, and the all-reduce over replicas once a step, as far
  as they take longer than the products they run beside; of what these hide a tenth, which their kernels take from them.

A ring among n devices moves (n - 1) / n of its bytes over each link, an all-reduce twice as much. Links inside and
between nodes have the bytes a second of one device that `--inside` and `--between` say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pretok.base.errors import UsageError
from pretok.base.records import replace
from train.config import TrainConfig
from train.model.sizes import ModelConfig
from train.parallel.layout import (
    Batch,
    Layout,
    bubble,
    check_pipeline,
    check_split,
    solve_batch,
    solve_layout,
)
from train.tools.memory import HEADROOM, count_tensors

RECOMPUTE = {"none": 0.0, "ops": 0.0, "0.25": 0.25, "0.5": 0.5, "0.75": 0.75, "full": 1.0}
"""Settings of --checkpointing, and the share of blocks that are computed again as a whole."""
MICRO_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Machine:
    """devices: all of them; memory: GB of one; flops: of one, at the MFU expected; inside, between: bytes a second."""

    devices: int
    per_node: int
    memory: float
    flops: float
    inside: float
    between: float


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run. memory: bytes counted; seconds: of a step, estimated; the others are seconds of it."""

    config: TrainConfig
    layout: Layout
    batch: Batch
    memory: int
    seconds: float
    recomputing: float
    waiting: float
    tensor: float
    data: float

    def record(self) -> dict[str, Any]:
        """All but the settings that were given, as JSON values."""
        chosen = {"reshard": self.config.reshard, "checkpointing": self.config.checkpointing}
        return chosen | {name: value for name, value in asdict(self).items() if name != "config"}

    def __str__(self) -> str:
        config, layout = self.config, self.layout
        flags = f"--shard {layout.shard}" + (f" --tensor {layout.tensor}" if layout.tensor > 1 else "")
        if layout.pipeline > 1:
            flags += f" --pipeline {layout.pipeline}"
        flags += "" if config.reshard or layout.pipeline > 1 else " --no-reshard"
        flags += f" --micro-batch {self.batch.micro_batch}"
        flags += f" --checkpointing {config.checkpointing}" if config.checkpointing != "none" else ""
        names = {
            "recomputation": self.recomputing,
            "bubble": self.waiting,
            "tensor": self.tensor,
            "data": self.data,
        }
        lost = ", ".join(f"{name} {value / self.seconds:.0%}" for name, value in names.items() if value)
        return f"{self.seconds:8.2f} s  {self.memory / 2**30:6.1f} GiB  {flags}  ({lost or 'products alone'})"


def search(model: ModelConfig, config: TrainConfig, seq_len: int, machine: Machine) -> list[Choice]:
    """The fastest choice that fits of each kind: tensor and pipeline ranks, and nothing, operations or blocks
    recomputed; the fastest first.

    What `config` says of other settings is kept; its global batch is needed.
    """
    found: dict[tuple[int, int, str], Choice] = {}
    for layout, batch, own in _candidates(model, config, seq_len, machine):
        memory = count_tensors(model, layout, batch.micro_batch, batch.accumulation, seq_len, own).total
        if memory <= HEADROOM * machine.memory * 1e9:
            choice = _choice(model, own, seq_len, machine, layout, batch, memory)
            whole = RECOMPUTE[own.checkpointing] > 0
            kind = layout.tensor, layout.pipeline, "full" if whole else own.checkpointing
            found[kind] = min(choice, found.get(kind, choice), key=_order)
    return sorted(found.values(), key=_order)


def _order(choice: Choice) -> tuple[float, int]:
    """The faster first; where it is all the same the one that needs less memory."""
    return round(choice.seconds, 2), choice.memory


def _candidates(
    model: ModelConfig, config: TrainConfig, seq_len: int, machine: Machine
) -> Iterator[tuple[Layout, Batch, TrainConfig]]:
    """Meshes whose sizes divide, with the batches and recomputations that go with them."""
    for tensor in _divisors(machine.per_node):
        for pipeline in _divisors(machine.devices // tensor):
            data_ranks = machine.devices // tensor // pipeline
            node = max(1, machine.per_node // tensor)
            shards = {
                shard
                for shard in (1, node, 2 * node, 4 * node, 8 * node, data_ranks)
                if data_ranks % shard == 0
            }
            for shard in sorted(shards):
                for micro_batch in MICRO_BATCHES:
                    for kind in RECOMPUTE:
                        for reshard in (True, False) if shard > 1 and pipeline == 1 else (True,):
                            own = replace(
                                config,
                                tensor=tensor,
                                pipeline=pipeline,
                                shard=shard,
                                micro_batch=micro_batch,
                                accumulation=None,
                                checkpointing=kind,
                                reshard=reshard,
                            )
                            layout = solve_layout(machine.devices, machine.per_node, shard, tensor, pipeline)
                            try:
                                check_split(own, model, seq_len)
                                batch = solve_batch(data_ranks, own.global_batch, micro_batch, None)
                                check_pipeline(own, model, batch)
                            except UsageError:  # does not divide, or does not go together
                                continue
                            yield layout, batch, own


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _choice(
    model: ModelConfig,
    config: TrainConfig,
    seq_len: int,
    machine: Machine,
    layout: Layout,
    batch: Batch,
    memory: int,
) -> Choice:
    """The estimate of one choice."""
    passes, tokens = batch.accumulation, batch.micro_batch * seq_len
    blocks = -(-model.layers // layout.pipeline)
    step_flops = batch.global_batch * seq_len * model.flops_per_token(seq_len) / machine.devices
    products = step_flops / machine.flops
    again = RECOMPUTE[config.checkpointing]
    work = products * (1 + again / 3 + (0 if config.checkpointing == "none" else (1 - again) / 20))
    share = bubble(config, passes)
    reduces = (4 + 2 * again) * blocks * passes
    tensor = reduces * 2 * _ring(layout.tensor) * tokens * model.dim * 2 / machine.inside
    # Gathers of the passes' width, reduce-scatters of gradients in float32, of what one tensor rank of a stage has.
    own = model.parameters / layout.tensor / layout.pipeline
    gathers = 2 * passes if config.reshard and layout.pipeline == 1 else 1
    scatters = 1 if layout.pipeline > 1 or config.sync == "last" else passes
    near = layout.shard * layout.tensor <= machine.per_node
    link = machine.inside if near else machine.between
    sharding = _ring(layout.shard) * own * (2 * gathers + 4 * scatters) / link
    replicas = 2 * _ring(layout.replicate) * 4 * own / layout.shard / machine.between
    data = _beside(sharding, work) + _beside(replicas, work / passes)
    waiting = (work + tensor) * share / (1 - share)
    seconds = work + waiting + tensor + data
    return Choice(config, layout, batch, memory, seconds, work - products, waiting, tensor, data)


def _beside(communication: float, work: float) -> float:
    """Seconds that communication costs which runs beside work."""
    return max(0.0, communication - work) + 0.1 * min(communication, work)


def _ring(ranks: int) -> float:
    return (ranks - 1) / ranks
