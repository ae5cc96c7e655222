"""Hashes of what the ranks of a trainer got, as `train` computes them of what it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretok.base.storage import read_lines
from pretok.stream import data_hash, digest


def train_hashes(
    folder: Path, shards: Path, mix: Path | None, batch: int, sequences: int, **more: Any
) -> list[str]:
    """Return the `data_hash` of each step that `train` logs, with a tiny model of one layer."""
    from train import loop
    from train.config import TrainConfig

    sizes: dict[str, Any] = {"vocab_size": 1024, "dim": 8, "hidden": 8, "tied": "true"}
    sizes |= dict.fromkeys(("layers", "heads", "kv_heads"), 1)
    (folder / "model.toml").write_text("".join(f"{name} = {size}\n" for name, size in sizes.items()))
    where = {"shards": str(shards), "out": str(folder / "run"), "model": str(folder / "model.toml")}
    read = {"mix": None if mix is None else str(mix), "global_batch": batch, "steps": sequences // batch}
    loop.train(TrainConfig(**where, **read, workers=0, save_every="never", **more))
    return [record["data_hash"] for record in read_lines(folder / "run" / "metrics.jsonl")]


@dataclass
class Handed:
    """Computes the `data_hash` after each step from the tensors that the ranks got."""

    batch: int
    hashes: list[str] = field(default_factory=list)
    read: int = 0
    step: int = 0

    def add(self, ids: Any) -> None:
        """Add the next sequences of the order, whichever rank got them."""
        for row in ids:
            self.step += digest([self.read], row[None])
            self.read += 1
            if self.read % self.batch == 0:
                self.hashes.append(data_hash(self.hashes[-1] if self.hashes else "", self.step))
                self.step = 0
