"""What a run tells about itself: a line a step, and what software it was.

Input: numbers of finished steps. Output: RUN/metrics.jsonl (always), RUN/validation.jsonl, and the same
numbers in Weights & Biases when asked. Only rank 0 writes.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pretok.base.errors import UsageError
from pretok.base.storage import atomic_open
from pretok.base.units import duration
from train.config import TrainConfig
from train.parallel.devices import Device
from train.records import Lines, Restart
from train.report import STEP_SILENCE, Reporter, clock


@cache
def provenance() -> dict[str, Any]:
    """Code version, software and machine of this process, as JSON values. The version is that of the start, and null on
    ranks above 0, whose word nobody asks for: a thousand of git at a time would be a load on the file system."""
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    commit = ""
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):  # no git on this node
            commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    names = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "WORLD_SIZE", "HOSTNAME", "CUDA_VISIBLE_DEVICES")
    return {
        "commit": commit or None,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "host": platform.node(),
        "command": sys.argv,
        "environment": {name: os.environ[name] for name in names if name in os.environ},
    }


class MetricsLog:
    """Writes step records everywhere they go. On ranks other than 0 every method does nothing."""

    def __init__(
        self,
        out: Path,
        config: TrainConfig,
        device: Device,
        report: Reporter,
        rank: int,
        step: int,
        steps: int,
        manifest: str,
    ) -> None:
        self.lost: tuple[float, ...] = ()  # seconds of each step of the attempt before that is done again
        self._restarts = Restart.here().number
        self._rank = rank
        self._config = config
        self._device = device
        self._report = report
        self._steps = steps
        self._pace_from = (step + 1, 0.0)  # the first step holds compilation and says nothing of the others
        self._told = time.monotonic()
        self._files: dict[str, Lines] = {}
        self._wandb: Any = None
        if rank:
            return
        if config.wandb is not None:  # what may be refused first: nothing is open yet
            self._wandb = _open_wandb(out, config, manifest)

        def saved(record: dict[str, Any]) -> bool:
            return bool(record["step"] <= step)

        for name in ("metrics", "validation"):
            self._files[name] = Lines(out / f"{name}.jsonl", saved, stays_open=True, full=report)
        self.lost = tuple(record["seconds"] for record in self._files["metrics"].dropped)

    def step(self, record: dict[str, Any]) -> None:
        """One optimizer step: a record of it, and a line every `log_every` steps or after a while without one.

        Values that are not finite become null.
        """
        if self._rank:
            return
        self._write("metrics", record | {"restarts": self._restarts})
        step = record["step"]
        if step == self._pace_from[0]:
            self._pace_from = (step, time.monotonic())
        due = step % self._config.log_every == 0 or time.monotonic() - self._told > STEP_SILENCE
        if due or step == self._steps:
            self._told = time.monotonic()
            mfu = "n/a" if record["mfu"] is None else f"{record['mfu']:.1%}"
            self._report(
                f"{clock()} step {step}/{self._steps}  {step / self._steps:.0%}  ETA {self._remaining(step)}  "
                f"loss {record['loss']:.4f}  norm {record['grad_norm']:.3f}  "
                f"lr {record['lr']:.2e}  {record['tokens_per_second_per_device']:,.0f} tokens/s/device  "
                f"MFU {mfu}  data wait {record['data_wait'] / record['seconds']:.2%}"
            )

    def _remaining(self, step: int) -> str:
        """Time to the last step at the pace since the first of this start, validation and saves included."""
        first, began = self._pace_from
        if step == first:
            return "n/a"
        return duration((time.monotonic() - began) / (step - first) * (self._steps - step))

    def validation(self, record: dict[str, Any]) -> None:
        """One evaluation."""
        if self._rank:
            return
        self._write("validation", record)
        bits = record["bits_per_byte"]
        losses = "  ".join(
            f"{name} {loss:.4f} ({bits[name]:.4f})" for name, loss in record["sources"].items()
        )
        self._report(
            f"{clock()} step {record['step']}/{self._steps}  validation loss {record['val_loss']:.4f} "
            f"({record['val_bits_per_byte']:.4f} bits per byte)  {losses}"
        )

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _write(self, name: str, record: dict[str, Any]) -> None:
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        self._files[name].add(clean)
        flat = clean | {f"val_{source}": loss for source, loss in record.get("sources", {}).items()}
        flat |= {f"val_bits_{source}": bits for source, bits in record.get("bits_per_byte", {}).items()}
        numbers = {key: value for key, value in flat.items() if isinstance(value, int | float)}
        step = numbers.pop("step")
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def sensors(self, step: int) -> dict[str, float | None]:
        """Of rank 0's GPU, every `log_every` steps: per cent of time it was busy of late, and the watts it draws, by
        NVML or amdsmi; None where nobody tells. amdsmi tells of a socket, which in an MI250X holds two devices."""
        if not self._device.is_gpu or self._rank or step % self._config.log_every:
            return {"utilisation": None, "watts": None}
        busy, power = _asked(torch.cuda.utilization), _asked(torch.cuda.power_draw)
        # NVML gives milliwatts, amdsmi watts (torch hands on what it gets), and torch 0 where that knows nothing.
        watts = power / (1000 if torch.version.hip is None else 1) if power else None
        return {"utilisation": busy, "watts": watts}


def _asked(sensor: Callable[[], int]) -> int | None:
    try:
        return int(sensor())
    except Exception:  # no bindings, no right to ask, no such sensor: each library has classes of its own
        return None


def _open_wandb(out: Path, config: TrainConfig, manifest: str) -> Any:
    try:
        import wandb
    except ImportError:
        raise UsageError("--wandb needs the package wandb; metrics.jsonl is written without it") from None
    # One id for the whole chain of jobs.
    path = out / "wandb-id"
    if not path.exists():
        with atomic_open(path, "w") as file:
            file.write(uuid.uuid4().hex)
    return wandb.init(
        project=config.wandb,
        id=path.read_text(encoding="utf-8"),
        resume="allow",
        dir=str(out),
        mode=os.environ.get("WANDB_MODE", "offline"),
        config=config.as_dict() | {"provenance": provenance() | {"manifest": manifest}},
    )
