"""What a checkpoint costs rank 0 besides the bytes of its own tensors, by the number of ranks.

Input: nothing but the machine; the other ranks are simulated: a process group that sends nothing, and their answers.
Output: for parameters that all ranks share and for replicas of 8, CPU seconds of rank 0 for the index, which the first
save makes, for what each save does in the background (the index as JSON, all ranks' answers, meta.json), and for a load
of its own part; and the size of the index.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table, timed
from train.checkpoint.meta import FileRecord
from train.checkpoint.tensors import Index, make_index, overlaps, own_pieces
from train.model.sizes import model_config
from train.model.transformer import Decoder

MODEL, REPLICA, RANKS = "italia-9b", 8, (64, 256, 1024, 4096)
MOMENTS = ("exp_avg", "exp_avg_sq")


def sharded_state(model: str, mesh: DeviceMesh) -> dict[str, Tensor]:
    """Parameters and moments of rank 0, divided by rows as FSDP does it, without memory."""
    with torch.device("meta"):
        parameters = dict(Decoder(model_config(model)).named_parameters())
    inner, shards = mesh["replicate", "shard"], mesh["shard"].size()
    state: dict[str, Tensor] = {}
    for name, whole in parameters.items():
        rows = -(-whole.shape[0] // shards)
        piece = torch.empty((rows, *whole.shape[1:]), device="meta")
        value = DTensor.from_local(
            piece, inner, (Replicate(), Shard(0)), run_check=False, shape=whole.shape, stride=whole.stride()
        )
        state |= {f"model.{name}": value} | {f"optimizer.{name}.{moment}": value for moment in MOMENTS}
        state[f"optimizer.{name}.step"] = torch.empty((), device="meta")
    return state


@contextmanager
def simulated(ranks: int, shards: int) -> Iterator[DeviceMesh]:
    """A mesh of so many ranks, of which this process is the first."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        names = ("pipeline", "replicate", "shard", "tensor")
        yield init_device_mesh("cpu", (1, ranks // shards, shards, 1), mesh_dim_names=names)
    finally:
        dist.destroy_process_group()


def background(index: Index, writers: int, ranks: int, folder: Path) -> int:
    """What rank 0 does while training goes on, but for writing tensors. Returns the bytes of the index."""
    data = msgspec.json.encode(index)
    answers = []
    for rank in range(ranks):
        name = f"rank-{rank:05d}.safetensors"
        answer = {name: FileRecord(rank, f"xxh3:{rank:032x}")} if rank < writers else {}
        answers.append(pickle.dumps(answer))
    files = {name: record for sent in answers for name, record in pickle.loads(sent).items()}
    (folder / "meta.json").write_bytes(msgspec.json.encode(files))
    return len(data)


def load(state: dict[str, Tensor], index: Index) -> None:
    """Find rank 0's pieces among all of a checkpoint of the same mesh."""
    kinds = {name: kind for kind in msgspec.json.decode(msgspec.json.encode(index), type=Index).kinds
             for name in kind.names}  # fmt: skip
    for name, value in state.items():
        piece = value.to_local() if isinstance(value, DTensor) else value
        overlaps(kinds[name].boxes, (0,) * piece.ndim, tuple(piece.shape))


def run(model: str, ranks: int, shards: int) -> Row:
    """One mesh."""
    with simulated(ranks, shards) as mesh, tempfile.TemporaryDirectory() as folder:
        state = sharded_state(model, mesh)

        def make() -> Index:
            index = make_index(state, mesh)
            own_pieces(state, index, 0)
            return index

        first, index = timed(make)
        behind, size = timed(lambda: background(index, shards, ranks, Path(folder)))
        read, _ = timed(lambda: load(state, index))
    seconds = {"index": first["CPU s"], "in the background": behind["CPU s"], "load": read["CPU s"]}
    return {**seconds, "tensors": len(state), "index MB": size / 1e6}


def measure(inputs: Inputs) -> Table:
    """Parameters that all ranks share, and replicas of 8."""
    return {
        f"{ranks:,} ranks, {shards:,} share the parameters": run(MODEL, ranks, shards)
        for ranks in RANKS[: inputs.scaled(len(RANKS))]
        for shards in (ranks, REPLICA)
    }
