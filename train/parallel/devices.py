"""The table of devices: names of accelerators, their backend and their peak.

Input: the name torch gives the device. Output: a Device; this process then runs on the cores next to it. A peak is in
dense bf16 FLOP/s per device as torch counts devices (one die of an MI250X is a device). An unknown device has no peak,
and figures that need one are n/a.
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
"""(part of the device's name, dense bf16 FLOP/s, GB or None if it varies, source); the first match wins."""


ROUNDS = 10
"""Measurements for each number of threads."""
HOPPER = 9
HOPPER_KERNELS = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
"""Attention kernels in order of preference on Hopper; a call that one does not support goes to the next.

torch's own FlashAttention is version 2, which does not use the new instructions of Hopper.
"""


@dataclass(frozen=True, slots=True)
class Device:
    """The device of one rank."""

    device: torch.device
    name: str
    backend: str
    peak: float | None
    """In FLOP/s, None if unknown."""
    peak_source: str

    @property
    def is_gpu(self) -> bool:
        """Whether torch's `cuda` functions apply: NVIDIA by CUDA, AMD by ROCm."""
        return self.device.type == "cuda"

    @property
    def can_compile(self) -> bool:
        """Whether torch.compile is worth its time here: on a GPU with Triton."""
        return self.is_gpu and find_spec("triton") is not None

    @property
    def generation(self) -> int:
        """NVIDIA's major compute capability: 8 for an A100, 9 for an H100; 0 for any other device."""
        if not self.is_gpu or torch.version.hip is not None:
            return 0
        return int(torch.cuda.get_device_properties(self.device.index).major)


def peak_of(name: str) -> tuple[float | None, str]:
    """Return the peak of a device in FLOP/s and its source by name; (None, reason) if unknown."""
    for part, peak, _, source in PEAKS:
        if part in name:
            return peak, source
    return None, f"the peak of {name!r} is not known" if name else "no device was named"


def gigabytes_of(name: str) -> float | None:
    """Return the memory of a device in GB by name, None if unknown. Names like 'A100-SXM4-80GB' contain it.

    'GH200 120GB' contains the memory of its CPU.
    """
    if (stated := re.search(r"(\d+) ?GB", name)) and "GH200" not in name:
        return float(stated[1])
    return next((size for part, _, size, _ in PEAKS if part in name), None)


def find_device() -> Device:
    """Return the device of this process: the GPU numbered LOCAL_RANK if there is one, else the CPU.

    From here on the process and its children, such as loader processes, run on the cores next to the GPU.
    """
    if not torch.cuda.is_available():
        torch.set_num_threads(fastest_threads(torch.get_num_threads()))
        return Device(torch.device("cpu"), "cpu", "gloo", *peak_of("cpu"))
    # A launcher that binds one GPU to each task leaves only GPU 0 visible.
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    properties: Any = torch.cuda.get_device_properties(index)
    place = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    allowed, ranks = os.sched_getaffinity(0), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    os.sched_setaffinity(0, cores_beside("{:04x}:{:02x}:{:02x}.0".format(*place), allowed, ranks))
    # In torch for ROCm "nccl" means RCCL; gloo handles tensors on the host.
    device = torch.device("cuda", index)
    gpu = Device(device, properties.name, "cpu:gloo,cuda:nccl", *peak_of(properties.name))
    if gpu.generation == HOPPER:  # torch has no public function that sets the order for all calls
        torch._C._set_sdp_priority_order([kernel.value for kernel in HOPPER_KERNELS])
    return gpu


def fastest_threads(most: int) -> int:
    """Return the number of threads for CPU passes, at most `most`: the fewest that are nearly the fastest.

    The measurement takes a few tenths of a second. If the cores have other work too, threads wait for each other, and
    fewer are faster.
    Nothing is measured if OMP_NUM_THREADS is set, or if results must be bit-identical.
    """
    if "OMP_NUM_THREADS" in os.environ or torch.are_deterministic_algorithms_enabled():
        return most
    x, weight = torch.ones(512, 256), torch.ones(256, 1024)
    counts = [count for count in (1 << power for power in range(most.bit_length())) if count < most] + [most]
    seconds = dict.fromkeys(counts, 0.0)
    for count in counts * ROUNDS:  # in turns, so that a burst of other load hits all counts alike
        torch.set_num_threads(count)
        began = time.perf_counter()
        torch.nn.functional.silu(x @ weight) @ weight.T
        seconds[count] += time.perf_counter() - began
    best = min(seconds.values())
    return min(count for count in counts if seconds[count] <= 1.1 * best)


def cores_beside(bus: str, allowed: set[int], ranks: int, devices: Path = PCI_DEVICES) -> set[int]:
    """Return those `allowed` cores that share a NUMA node with the device at this PCI address.

    Returns all of them if the machine does not say, or if the result has fewer cores than one rank's share of the
    node: a scheduler may have assigned cores elsewhere.
    """
    try:
        text = (devices / bus / "local_cpulist").read_text(encoding="ascii").strip()
    except OSError:
        return allowed
    beside: set[int] = set()
    for part in filter(None, text.split(",")):  # the kernel's format: 0-15,64-79
        first, _, last = part.partition("-")
        beside.update(range(int(first), int(last or first) + 1))
    beside &= allowed
    return beside if beside and len(beside) >= len(allowed) // ranks else allowed


def deterministic(wanted: bool) -> None:
    """Switch deterministic operations on or off; an operation without a deterministic version raises RuntimeError.

    Identical bits also need the same software, devices and mesh. Call it before the first matrix product, because
    cuBLAS reads its workspace setting once.
    """
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(wanted)
    settings: Any = torch.utils.deterministic
    # Filling only reveals reads of unwritten memory, and costs a write per tensor.
    settings.fill_uninitialized_memory = False
