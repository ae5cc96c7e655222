"""Pipeline parallelism: the model's blocks are divided over ranks, by torch.distributed.pipelining.

Input: the stages of a rank, each split over its own mesh (`parallelize`), and the micro-batches of a step. Output:
gradients in the stages, and the loss on every rank of the pipeline.

Design. A stage is a Decoder without the modules of other stages. Its parameters keep their names in the whole model, so
checkpoints, exports and initial values need not know of stages. Every rank of a pipeline reads the same sequences, so
tokens and targets are available where they are needed. Only hidden states are sent, (micro-batch, L, dim) in the
precision of the passes. torch's schedules decide which rank computes or sends next; the last stage computes the
loss inside its forward pass. Shapes are given in advance, so torch needs no pass to infer them. Gradients are reduced
once, at the end of a step; until then the parameters of a stage stay gathered. Without gradients, micro-batches pass
one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own name
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from train.config import TrainConfig
from train.model.sizes import ModelConfig
from train.model.transformer import Decoder
from train.parallel.layout import BatchSizes, splits_backward, stages_of

TORCHS = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "ZBVZeroBubble",
    "dualpipe": "DualPipeV",
}
"""--pipeline-schedule -> the name of torch's class."""


def take_part(model: Decoder, stage: int, blocks: Sequence[range]) -> None:
    """Remove the modules of all other stages from a whole model on the meta device."""
    for name, _ in list(model.layers.named_children()):
        if int(name) not in blocks[stage]:
            delattr(model.layers, name)  # `del` would renumber the other blocks
    if stage > 0:
        model.embed_tokens = None
    if stage < len(blocks) - 1:
        model.norm = model.lm_head = None


class Pipeline(nn.Module):
    """The stages of one rank, and the passes of micro-batches through all stages.

    parts: in the order of `stages_of`. mesh: the ranks of the pipeline. dtype: type of the hidden states.
    """

    def __init__(
        self, parts: Sequence[Decoder], mesh: DeviceMesh, dtype: torch.dtype, config: TrainConfig
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._group, self._rank = mesh.get_group(), mesh.get_local_rank()
        self._own = dict(zip(stages_of(config, self._rank), parts, strict=True))
        self._owners = {stage: rank for rank in range(mesh.size()) for stage in stages_of(config, rank)}
        self._last = max(self._owners)
        self._dtype = dtype
        self._schedule: Any = None
        self._nll = torch.zeros(())
        self._tokens = self._length = 1

    def prepare(
        self, model: ModelConfig, batch: BatchSizes, seq_len: int, config: TrainConfig, device: torch.device
    ) -> None:
        """Prepare the schedule for steps of these sizes."""
        from torch.distributed import pipelining

        if splits_backward(config):  # it keeps the graph of a pass, which compiled attention else overwrites
            functorch: Any = import_module("torch._functorch.config")
            functorch.donated_buffer = False
        for part in self._own.values():
            part.config, part.z_loss = model, config.z_loss
        self._length, length = seq_len, seq_len // config.context
        self._tokens = batch.accumulation * batch.micro_batch * length
        ids = torch.empty((batch.micro_batch, length), dtype=torch.int32, device="meta")
        hidden = torch.empty(self._hidden(ids), dtype=self._dtype, device="meta", requires_grad=True)
        total = torch.empty((), device="meta", requires_grad=True)
        stages: list[Any] = [
            pipelining.PipelineStage(
                part,
                number,
                len(self._owners),
                device,
                input_args=hidden if number else ids,
                output_args=(total, torch.empty((), device="meta")) if number == self._last else hidden,
                group=self._group,
            )
            for number, part in self._own.items()
        ]
        schedule: Any = getattr(pipelining, f"Schedule{TORCHS[config.pipeline_schedule]}")
        if config.pipeline_schedule == "1f1b":
            (stages,) = stages
        self._schedule = schedule(stages, batch.accumulation, loss_fn=self._loss, scale_grads=False)

    def passes(self, inputs: Tensor, targets: Tensor, documents: Sequence[Tensor | None]) -> Tensor:
        """Run the forward and backward passes of all micro-batches of a step.

        inputs, targets: of all sequences, as for the Decoder. documents: one per micro-batch. The gradient is that of
        the summed loss divided by the number of all tokens, learned or not. Returns the sum of the losses, float32, the
        same on all ranks of the pipeline.
        """
        self._nll = torch.zeros((), device=inputs.device)
        others = {}
        if marks := [ends for ends in documents if ends is not None]:
            # torch splits keyword arguments by rows, so each micro-batch is one row; empty documents pad all rows to
            # the same width.
            width, tokens = max(ends.shape[1] for ends in marks), len(inputs) // len(marks) * self._length
            others["documents"] = torch.cat(
                [F.pad(ends, (0, width - ends.shape[1]), value=tokens) for ends in marks]
            )
        first = (inputs,) if self._rank == 0 else ()
        self._schedule.step(*first, target=targets, return_outputs=False, targets=targets, **others)
        dist.all_reduce(self._nll, group=self._group)  # only the last stage has added to it
        return self._nll

    def _loss(self, output: tuple[Tensor, Tensor], _targets: Tensor) -> Tensor:
        total, nll = output
        self._nll += nll.detach()
        return total / self._tokens

    def forward(
        self, inputs: Tensor, targets: Tensor, documents: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (total, nll) of the Decoder, the same on all ranks of the pipeline; without gradients."""
        # Stages run one after another: a rank waits in `recv` for the stage before each of its own, and after its last
        # one in the broadcast for the end.
        x: Any = inputs
        result = torch.empty(2, device=inputs.device)
        for number, part in self._own.items():
            before, after = (self._owners.get(number + step, self._rank) for step in (-1, 1))
            if before != self._rank:
                x = torch.empty(self._hidden(inputs), dtype=self._dtype, device=inputs.device)
                dist.recv(x, group=self._group, group_src=before)
            x = part(x, targets, documents)
            if number == self._last:
                result = torch.stack([value.float() for value in x])
            elif after != self._rank:
                dist.send(x.contiguous(), group=self._group, group_dst=after)
        dist.broadcast(result, group=self._group, group_src=self._owners[self._last])
        return result[0], result[1]

    def _hidden(self, tokens: Tensor) -> tuple[int, int, int]:
        """Return the shape of the hidden states for tokens (n, L)."""
        part = next(iter(self._own.values()))
        return len(tokens), tokens.shape[1] // part.sequence_parts, part.config.dim
