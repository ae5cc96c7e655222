"""What a save costs rank 0 before anything is written, by the number of ranks: the plan of all ranks' tensors.

    python benchmarks/train_ranks.py --model 1b --ranks 64,256

Input: nothing but the machine; the ranks are made up, of one shard each. Output: processor seconds of the first save of
a run and of the second, whose plan is kept.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from train.checkpoint.saved import cached_planner
from train.model.sizes import model_config
from train.model.transformer import Decoder


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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="1b")
    parser.add_argument("--ranks", default="64,256")
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
            f"{ranks:>5} ranks, {len(shapes)} tensors: first save {seconds[0]:.2f} s, then {seconds[1]:.4f} s"
        )


if __name__ == "__main__":
    main()
