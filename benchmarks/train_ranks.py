"""What checkpoints cost rank 0 besides bytes of tensors, by the number of ranks: plans of all ranks' parts.

    python benchmarks/train_ranks.py --model 1b --ranks 64,256,1024

Input: nothing but the machine; the ranks are made up, for a load in replicas of 8 shards. Output: processor seconds of
the first save of a run and of the second, whose plan is kept; of a load where rank 0 agrees with all ranks on what each
reads, as torch has it, and how often each byte is read so. `train` agrees on nothing and reads each byte once.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from train.checkpoint.saved import cached_planner
from train.model.sizes import model_config
from train.model.transformer import Decoder

SHARDS = 8


def plan_of(rank: int, ranks: int, shapes: dict[str, torch.Size]) -> SavePlan:
    """What a rank writes where each tensor is divided by rows."""
    items = []
    for name, shape in shapes.items():
        rows = -(-shape[0] // ranks)
        first = min(rank * rows, shape[0])
        if (count := min(rows, shape[0] - first)) > 0:
            offsets, sizes = (
                torch.Size([part, *rest])
                for part, rest in ((first, [0] * (len(shape) - 1)), (count, shape[1:]))
            )
            data = TensorWriteData(ChunkStorageMetadata(offsets, sizes), TensorProperties(), shape)
            items.append(WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=data))
    return SavePlan(items, planner_data={name: (name,) for name in shapes})


def load_seconds(ranks: int, shapes: dict[str, torch.Size]) -> float:
    """Of rank 0, to take in what all ranks want to read and to tell them that they may."""
    plans = []
    for rank in range(SHARDS):
        items = []
        for write in plan_of(rank, SHARDS, shapes).items:
            assert write.tensor_data is not None
            chunk, nothing = write.tensor_data.chunk, torch.Size([0] * len(write.tensor_data.size))
            items.append(
                ReadItem(LoadItemType.TENSOR, write.index, nothing, write.index, chunk.offsets, chunk.sizes)
            )
        plans.append(pickle.dumps(LoadPlan(items)))
    began = time.process_time()
    arrived = [pickle.loads(plans[rank % SHARDS]) for rank in range(ranks)]
    for plan in DefaultLoadPlanner().create_global_plan(arrived):
        pickle.dumps(plan)
    return time.process_time() - began


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="1b")
    parser.add_argument("--ranks", default="64,256,1024")
    space = parser.parse_args()
    with torch.device("meta"):
        parameters = dict(Decoder(model_config(space.model)).named_parameters())
    kinds = ("model", "exp_avg", "exp_avg_sq")
    shapes = {f"{kind}.{name}": value.shape for kind in kinds for name, value in parameters.items()}
    for ranks in map(int, space.ranks.split(",")):
        plans = [plan_of(rank, ranks, shapes) for rank in range(ranks)]
        seconds = []
        for every in (plans, [SavePlan([], usable=False)] * ranks):
            began = time.process_time()
            cached_planner(f"{ranks}").create_global_plan(every)
            seconds.append(time.process_time() - began)
        print(
            f"{ranks:>5} ranks, {len(shapes)} tensors: first save {seconds[0]:.2f} s, then {seconds[1]:.4f} s; "
            f"load {load_seconds(ranks, shapes):.2f} s, each byte read {ranks // SHARDS} times",
            flush=True,
        )


if __name__ == "__main__":
    main()
