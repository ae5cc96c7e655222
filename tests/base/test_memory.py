"""The memory that is left: the machine's, or that of the tightest control group."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ROOT  # noqa: F401

from pretok.base.memory import free_memory


def files(folder: Path, **texts: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    files(tmp_path / "proc", meminfo="MemTotal: 1000 kB\nMemAvailable:   600 kB\nBuffers: 1 kB")
    files(tmp_path / "proc" / "self", cgroup="0::/")
    return tmp_path / "proc"


def test_it_is_that_of_the_machine_or_of_the_tightest_group(proc: Path, tmp_path: Path) -> None:
    assert free_memory(proc, tmp_path / "none") == 600 * 1024
    assert free_memory() > 1 << 20
    files(proc / "self", cgroup="0::/slurm/job_7/step_0")
    groups = tmp_path / "cgroup"
    files(groups / "slurm" / "job_7" / "step_0", memory__max="max", memory__current=5, memory__stat="anon 1")
    files(
        groups / "slurm" / "job_7",
        memory__max=100_000,
        memory__current=70_000,
        memory__stat="anon 1\ninactive_file 20000\nactive_file 3",
    )
    files(groups / "slurm", memory__max=400_000, memory__current=10, memory__stat="anon 1")
    assert free_memory(proc, groups) == 100_000 - 70_000 + 20_000
