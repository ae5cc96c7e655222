"""Context parallelism: ranks that divide every sequence.

Input: a split Decoder, the mesh, and sequences whole. Output: the same Decoder on parts of sequences, and each rank's
part. DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv 2309.14509): only attention sees beyond its own token, so around it,
and nowhere else, ranks exchange their tokens of all heads for all tokens of their heads. Every kernel of attention
serves as it is, and causal ones cost each rank the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd  # the one that compiles
from torch.distributed.device_mesh import DeviceMesh

from train.model.attention import attend
from train.model.transformer import Attention, Block, Decoder


@dataclass(frozen=True, slots=True)
class Context:
    """Ranks that share each sequence: how many, which part this one has, and their group, None where it is alone."""

    ranks: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, mesh: DeviceMesh, ranks: int, timeout: int) -> Context:
        """Neighbours in the dimension `shard` of the mesh. timeout: of collectives, seconds."""
        if ranks == 1:
            return cls()
        shard = mesh["shard"]
        number, rank = divmod(shard.get_local_rank(), ranks)
        members = shard.mesh.tolist()[number * ranks : (number + 1) * ranks]
        limit = timedelta(seconds=timeout)
        return cls(ranks, rank, dist.new_group(members, limit, use_local_synchronization=True))

    def part(self, tokens: Tensor) -> Tensor:
        """This rank's columns of (n, L)."""
        return tokens if self.group is None else tokens.chunk(self.ranks, dim=1)[self.rank]


def split_sequences(model: Decoder, context: Context) -> None:
    """Let a Decoder take a part of each sequence; masks are of the whole one."""
    if context.group is None:
        return
    model.context = context.rank, context.ranks
    for block in model.layers:
        attention: Attention = cast(Block, block).self_attn
        attention.attend = partial(_attend_whole, context.group)


def _attend_whole(group: dist.ProcessGroup, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """What `attend` gives for all heads of this rank's part: q (n, heads, L / ranks, d), k and v (n, kv_heads, ...)."""
    ranks = group.size()
    parts = [_cut(x, 1, ranks) for x in (q, k, v)]
    # (ranks, n, own heads of all three, L / ranks, d), the first dimension now that of the part.
    found = _exchange(torch.cat(parts, dim=2), group).movedim(0, 2).flatten(2, 3)
    own_q, own_k, own_v = torch.split(found, [part.shape[2] for part in parts], dim=1)
    out = _cut(attend(own_q, own_k, own_v, mask), 2, ranks)
    return _exchange(out.contiguous(), group).movedim(0, 1).flatten(1, 2)


def _cut(x: Tensor, dim: int, ranks: int) -> Tensor:
    """(ranks, ...): the equal parts of a dimension."""
    return torch.unflatten(x, dim, (ranks, -1)).movedim(dim, 0)


def _exchange(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """x[r] goes to rank r, and what comes from there takes its place."""
    return all_to_all_single_autograd(x, None, None, group)
