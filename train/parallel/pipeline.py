"""Pipeline parallelism: the blocks of the model divided over ranks, by torch.distributed.pipelining.

Input: parts of a Decoder, each split over its stage's own mesh (`mesh.parallelize`), and the micro-batches of a step.
Output: gradients in the parts, and the loss on every rank of the pipeline.

Design. A part is a Decoder from which other stages' modules were taken; its parameters keep the names of the whole
model, so checkpoints, exports and initial values know nothing of stages. Every rank of a pipeline reads the same
sequences: tokens and targets are at hand where they are needed, and only hidden states travel, (micro-batch, L, dim) in
the width of the passes. torch's Schedule1F1B says who computes and sends what when; the last stage computes the loss
inside of its forward pass. Shapes are stated beforehand, so that torch runs no pass to learn them. Gradients are
reduced once a step, at its end, and the parameters of a stage stay gathered until then. Without gradients micro-batches
go through one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own name
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from train.config import TrainConfig
from train.model.sizes import ModelConfig
from train.model.transformer import Decoder
from train.parallel.layout import Batch


def take_part(model: Decoder, stage: int, blocks: Sequence[range]) -> None:
    """Leave in a whole model, on the meta device, what one stage has."""
    for name, _ in list(model.layers.named_children()):
        if int(name) not in blocks[stage]:
            delattr(model.layers, name)  # and not `del`, which would number the others anew
    if stage > 0:
        model.embed_tokens = None
    if stage < len(blocks) - 1:
        model.norm = model.lm_head = None


class Pipeline(nn.Module):
    """The part of one rank, and the way of micro-batches through those of all ranks.

    mesh: of the pipeline's ranks; dtype: of hidden states.
    """

    def __init__(self, part: Decoder, mesh: DeviceMesh, dtype: torch.dtype) -> None:
        super().__init__()
        self.part = part
        self._group, self._rank, self._ranks = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        self._dtype = dtype
        self._schedule: Any = None
        self._nll = torch.zeros(())
        self._tokens = self._length = 1

    def prepare(
        self, model: ModelConfig, batch: Batch, seq_len: int, config: TrainConfig, device: torch.device
    ) -> None:
        """Get ready for steps of these sizes."""
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        self.part.config, self.part.z_loss = model, config.z_loss
        self._length, length = seq_len, seq_len // config.context
        self._tokens = batch.accumulation * batch.micro_batch * length
        ids = torch.empty((batch.micro_batch, length), dtype=torch.int32, device="meta")
        hidden = torch.empty(self._hidden(ids), dtype=self._dtype, device="meta", requires_grad=True)
        total = torch.empty((), device="meta", requires_grad=True)
        stage = PipelineStage(
            self.part,
            self._rank,
            self._ranks,
            device,
            input_args=hidden if self._rank else ids,
            output_args=(total, torch.empty((), device="meta")) if self._is_last else hidden,
            group=self._group,
        )
        self._schedule = Schedule1F1B(stage, batch.accumulation, loss_fn=self._loss, scale_grads=False)

    def passes(self, inputs: Tensor, targets: Tensor, documents: Sequence[Tensor | None]) -> Tensor:
        """Forward and backward passes of all micro-batches of a step, one after another.

        inputs, targets: of all sequences, as for the Decoder; documents: of each micro-batch. The gradient is that of
        the summed loss divided by all tokens, learned or not. Returns the sum of the losses, float32, the same on all
        ranks of the pipeline.
        """
        self._nll = torch.zeros((), device=inputs.device)
        others = {}
        if marks := [ends for ends in documents if ends is not None]:
            # torch cuts them apart by rows; parts without tokens fill them up to one width.
            width, tokens = max(ends.shape[1] for ends in marks), len(inputs) // len(marks) * self._length
            others["documents"] = torch.cat(
                [F.pad(ends, (0, width - ends.shape[1]), value=tokens) for ends in marks]
            )
        first = (inputs,) if self._rank == 0 else ()
        self._schedule.step(*first, target=targets, return_outputs=False, targets=targets, **others)
        dist.all_reduce(self._nll, group=self._group)
        return self._nll

    def _loss(self, output: tuple[Tensor, Tensor], _targets: Tensor) -> Tensor:
        total, nll = output
        self._nll += nll.detach()
        return total / self._tokens

    def forward(
        self, inputs: Tensor, targets: Tensor, documents: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What the Decoder returns for targets, the same on all ranks of the pipeline; without gradients."""
        x = inputs
        if self._rank > 0:
            x = torch.empty(self._hidden(inputs), dtype=self._dtype, device=inputs.device)
            dist.recv(x, group=self._group, group_src=self._rank - 1)
        found = self.part(x, targets, documents)
        if self._is_last:
            result = torch.stack([value.float() for value in found])
        else:
            dist.send(found.contiguous(), group=self._group, group_dst=self._rank + 1)
            result = torch.empty(2, device=inputs.device)
        dist.broadcast(result, group=self._group, group_src=self._ranks - 1)
        return result[0], result[1]

    @property
    def _is_last(self) -> bool:
        return self._rank == self._ranks - 1

    def _hidden(self, tokens: Tensor) -> tuple[int, int, int]:
        """What travels for tokens (n, L)."""
        return len(tokens), tokens.shape[1] // self.part.sequence_parts, self.part.config.dim
