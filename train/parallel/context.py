"""Context parallelism: several ranks share every sequence.

Input: a split Decoder, the mesh, and whole sequences. Output: the same Decoder, working on parts of sequences, and each
rank's part. Method: DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv 2309.14509). Only attention looks beyond its own
token. So only around attention do ranks exchange data: their own tokens of all heads for all tokens of their own heads.
Every attention kernel works unchanged, and causal attention costs each rank the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd  # the one that compiles
from torch.distributed.device_mesh import DeviceMesh

from train.model.attention import attend
from train.model.transformer import Attention, Block, Decoder
from train.parallel.mesh import SHARD


@dataclass(frozen=True, slots=True)
class Context:
    """The ranks that share each sequence: their number, this rank's part, and their group (None for a single rank)."""

    ranks: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, mesh: DeviceMesh, ranks: int) -> Context:
        """Group neighbours in the mesh dimension `shard`."""
        if ranks == 1:
            return cls()
        shard = mesh[SHARD]
        number, rank = divmod(shard.get_local_rank(), ranks)
        members = shard.mesh.tolist()[number * ranks : (number + 1) * ranks]
        # use_local_synchronization: only the members create a group. Otherwise all ranks must create all groups.
        return cls(ranks, rank, dist.new_group(members, use_local_synchronization=True))

    def part(self, tokens: Tensor) -> Tensor:
        """Return this rank's columns of (n, L)."""
        return tokens if self.group is None else tokens.chunk(self.ranks, dim=1)[self.rank]


def split_sequences(model: Decoder, context: Context) -> None:
    """Make a Decoder work on a part of each sequence. Masks remain those of whole sequences."""
    if context.group is None:
        return
    model.context = context.rank, context.ranks
    for block in model.layers:
        attention: Attention = cast(Block, block).self_attn
        attention.attend = partial(_attend_whole, context.group)


def _attend_whole(group: dist.ProcessGroup, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """Compute `attend` over whole sequences for q (n, heads, L / ranks, d) and k, v (n, kv_heads, L / ranks, d).

    Returns the output for this rank's tokens and all heads, (n, heads, L / ranks, d).
    """
    ranks = group.size()
    parts = [_cut(x, 1, ranks) for x in (q, k, v)]
    # The cut sends head group r to rank r. What arrives is (ranks, n, own heads of q, k and v, L / ranks, d): the first
    # dimension is now the part of the sequence, and is merged with the tokens to give whole sequences. All three travel
    # in one exchange instead of three.
    whole = _exchange(torch.cat(parts, dim=2), group).movedim(0, 2).flatten(2, 3)
    own_q, own_k, own_v = torch.split(whole, [part.shape[2] for part in parts], dim=1)
    out = _cut(attend(own_q, own_k, own_v, mask), 2, ranks)
    return _exchange(out.contiguous(), group).movedim(0, 1).flatten(1, 2)


def _cut(x: Tensor, dim: int, ranks: int) -> Tensor:
    """Split a dimension into equal parts, one per rank: (ranks, ...)."""
    return torch.unflatten(x, dim, (ranks, -1)).movedim(dim, 0)


def _exchange(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send x[r] to rank r, and put what rank r sends in its place."""
    return all_to_all_single_autograd(x, None, None, group)
