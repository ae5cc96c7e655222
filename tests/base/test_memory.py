"""The memory that is left: the machine's, or that of the tightest control group."""

from __future__ import annotations

from pathlib import Path

from support import ROOT  # noqa: F401

from pretok.base.memory import free_memory


def test_it_is_that_of_the_machine_or_of_the_tightest_group(tmp_path: Path) -> None:
    def write(folder: str, **texts: object) -> None:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (tmp_path / folder / name.replace("memory_", "memory.")).write_text(f"{text}\n")

    write("proc", meminfo="MemTotal: 1000 kB\nMemAvailable:   600 kB\nBuffers: 1 kB")
    write("proc/self", cgroup="0::/slurm/job_7/step_0")
    assert free_memory(tmp_path / "proc", tmp_path / "none") == 600 * 1024
    assert free_memory() > 1 << 20
    job = {
        "memory_max": 100_000,
        "memory_current": 70_000,
        "memory_stat": "anon 1\ninactive_file 20000\nactive 3",
    }
    write("cgroup/slurm/job_7/step_0", memory_max="max", memory_current=5, memory_stat="anon 1")
    write("cgroup/slurm/job_7", **job)
    write("cgroup/slurm", memory_max=400_000, memory_current=10, memory_stat="anon 1")
    assert free_memory(tmp_path / "proc", tmp_path / "cgroup") == 100_000 - 70_000 + 20_000
