"""The one table of devices: what a machine's accelerator is called, its backend and its peak.

Input: the name torch gives the device. Output: a Device, and this process on the cores beside it. A peak is dense
bf16 FLOP/s per device as torch counts devices (one graphics compute die of an MI250X is one). An unknown device has no
peak, and what needs one says n/a.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend

TERA = 1e12
PCI_DEVICES = Path("/sys/bus/pci/devices")

PEAKS: tuple[tuple[str, float, int | None, str], ...] = (
    ("GH200", 989.5 * TERA, 96, "NVIDIA GH200 datasheet, half of the figure with sparsity"),
    ("H200", 989.5 * TERA, 141, "NVIDIA H200 datasheet, half of the figure with sparsity"),
    ("H100 PCIe", 756.5 * TERA, 80, "NVIDIA H100 datasheet, half of the figure with sparsity"),
    ("H100 NVL", 835.5 * TERA, 94, "NVIDIA H100 datasheet, half of the figure with sparsity"),
    ("H100", 989.5 * TERA, 80, "NVIDIA H100 datasheet (SXM), half of the figure with sparsity"),
    (
        "A100-SXM-64GB",
        312 * TERA * 124 / 108,
        64,
        "Leonardo's custom A100: the A100 datasheet's 312 TFLOP/s scaled by its 124 of 108 multiprocessors",
    ),
    ("A100", 312 * TERA, None, "NVIDIA A100 datasheet"),
    ("MI250X", 191.5 * TERA, 64, "AMD MI250X datasheet, 383 TFLOP/s for two dies, one die counted"),
)
"""(part of the device's name, dense bf16 FLOP/s, GB where there is one answer, source); the first match wins."""


ROUNDS = 10
"""Measurements of each number of threads."""
HOPPER = 9
HOPPER_KERNELS = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
"""In which order kernels of attention are asked there: torch's own FlashAttention is the second version, which does not
use what is new in Hopper. A call that one cannot do goes to the next."""


@dataclass(frozen=True, slots=True)
class Device:
    """One rank's device. `peak` in FLOP/s is None where unknown."""

    device: torch.device
    name: str
    backend: str
    peak: float | None
    peak_source: str

    @property
    def is_gpu(self) -> bool:
        """Whether torch's `cuda` functions apply: NVIDIA by CUDA, AMD by ROCm."""
        return self.device.type == "cuda"

    @property
    def can_compile(self) -> bool:
        """Whether torch.compile makes kernels here that are worth their time: by Triton, on a GPU."""
        return self.is_gpu and find_spec("triton") is not None

    @property
    def generation(self) -> int:
        """Of NVIDIA's architectures: 8 of an A100, 9 of an H100; 0 for what is none."""
        if not self.is_gpu or torch.version.hip is not None:
            return 0
        return int(torch.cuda.get_device_properties(self.device.index).major)


def peak_of(name: str) -> tuple[float | None, str]:
    """Peak of a device by name, in FLOP/s, and its source; (None, why) when unknown."""
    for part, peak, _, source in PEAKS:
        if part in name:
            return peak, source
    return None, f"no peak is known of {name!r}" if name else "no device was named"


def gigabytes_of(name: str) -> float | None:
    """Memory of a device by name ('A100-SXM4-80GB' says it itself); None when unknown."""
    if stated := re.search(r"(\d+) ?GB", name):
        return float(stated[1])
    return next((size for part, _, size, _ in PEAKS if part in name), None)


def find_device() -> Device:
    """This process's device: the GPU numbered LOCAL_RANK where there is one, else the CPU. From here on the process
    and what it starts, loader processes too, run on the cores beside the GPU."""
    if not torch.cuda.is_available():
        torch.set_num_threads(fastest_threads(torch.get_num_threads()))
        return Device(torch.device("cpu"), "cpu", "gloo", *peak_of("cpu"))
    # A launcher that binds one GPU to each task leaves only number 0 visible.
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    properties: Any = torch.cuda.get_device_properties(index)
    place = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    allowed, ranks = os.sched_getaffinity(0), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    os.sched_setaffinity(0, cores_beside("{:04x}:{:02x}:{:02x}.0".format(*place), allowed, ranks))
    # "nccl" is also the name of RCCL in torch for ROCm; gloo carries what lives on the host.
    device = torch.device("cuda", index)
    found = Device(device, properties.name, "cpu:gloo,cuda:nccl", *peak_of(properties.name))
    if found.generation == HOPPER:
        torch._C._set_sdp_priority_order(
            [kernel.value for kernel in HOPPER_KERNELS]
        )  # no public way for all calls
    return found


def fastest_threads(most: int) -> int:
    """Threads for the passes on a CPU, at most so many: the fastest by a measurement of some tenths of a second, and of
    like fast ones the fewest. Beside other load threads wait for each other, and fewer are faster.

    Where OMP_NUM_THREADS says how many, and where all is to be repeated bit for bit, nothing is measured.
    """
    if "OMP_NUM_THREADS" in os.environ or torch.are_deterministic_algorithms_enabled():
        return most
    x, weight = torch.ones(512, 256), torch.ones(256, 1024)
    counts = [count for count in (1 << power for power in range(most.bit_length())) if count < most] + [most]
    seconds = dict.fromkeys(counts, 0.0)
    for count in counts * ROUNDS:  # in turns, as load comes and goes
        torch.set_num_threads(count)
        began = time.perf_counter()
        torch.nn.functional.silu(x @ weight) @ weight.T
        seconds[count] += time.perf_counter() - began
    best = min(seconds.values())
    return min(count for count in counts if seconds[count] <= 1.1 * best)


def cores_beside(bus: str, allowed: set[int], ranks: int, devices: Path = PCI_DEVICES) -> set[int]:
    """Those of the `allowed` cores that share a NUMA node with the device of this PCI address.

    All of them where the machine does not say, or where these would be fewer than the share of one of the node's
    `ranks`: a scheduler may have given cores elsewhere.
    """
    try:
        text = (devices / bus / "local_cpulist").read_text(encoding="ascii").strip()
    except OSError:
        return allowed
    beside: set[int] = set()
    for part in filter(None, text.split(",")):  # as the kernel writes it: 0-15,64-79
        first, _, last = part.partition("-")
        beside.update(range(int(first), int(last or first) + 1))
    beside &= allowed
    return beside if beside and len(beside) >= len(allowed) // ranks else allowed


def deterministic(wanted: bool) -> None:
    """Whether from now on only operations run that give the same bits each time; one that cannot raises RuntimeError.

    The same bits need the same software, devices and mesh too. Called before the first matrix product, because cuBLAS
    reads its workspace setting once.
    """
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(wanted)
    settings: Any = torch.utils.deterministic
    settings.fill_uninitialized_memory = False  # against reading what nobody wrote; costs a write each
