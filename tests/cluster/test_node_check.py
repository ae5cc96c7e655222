"""The check of nodes: what is measured, and who is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pretok.cli import run_command
from pretok.cluster.node_check import (
    Check,
    Limits,
    NodeReport,
    judge,
    node_report,
    read_reports,
    report_line,
)

SMALL = Limits(free=1, inodes=1, write=1, memory=1)


def report(node: str, **numbers: float) -> NodeReport:
    return NodeReport(node, tuple(Check(name, str(value), number=value) for name, value in numbers.items()))


def test_a_sound_node_has_no_problem_and_keeps_no_file(tmp_path: Path) -> None:
    found = node_report(tmp_path, SMALL)
    verdict = judge([found], [os.uname().nodename])
    assert verdict.bad == {}
    assert {"free", "write", "clock", "memory", "GPUs"} <= set(verdict.checks[os.uname().nodename])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (Limits(free=1 << 60, inodes=1, write=1, memory=1), "free"),
        (Limits(free=1, inodes=1 << 60, write=1, memory=1), "inodes"),
        (Limits(free=1, inodes=1, write=1 << 60, memory=1), "write"),
        (Limits(free=1, inodes=1, write=1, memory=1 << 60), "memory"),
        (Limits(free=1, inodes=1, write=1, memory=1, gpus=99), "GPUs"),
        (Limits(free=1, inodes=1, write=1, memory=1, skew=-1), "clock"),
    ],
)
def test_each_limit_is_kept(tmp_path: Path, limits: Limits, name: str) -> None:
    problems = [check.name for check in node_report(tmp_path, limits).checks if check.problem]
    assert problems == [name]


def test_gpus_are_those_the_job_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,3")
    checks = {check.name: check for check in node_report(tmp_path, Limits(1, 1, 1, 1, 1)).checks}
    assert checks["GPUs"].value == "3"


def test_missing_slow_and_failed_nodes_are_named(tmp_path: Path) -> None:
    reports = [report("a", matmul=10.0), report("b", matmul=9.0), report("c", matmul=3.0)]
    failed = NodeReport("d", (Check("matmul", "10", "out of order", 10.0),))
    path = tmp_path / "x.json"
    path.write_text("noise of a library\n" + "".join(map(report_line, [*reports, failed])))
    verdict = judge(read_reports(tmp_path), ["a", "b", "c", "d", "e"])
    assert set(verdict.bad) == {"c", "d", "e"}
    assert "the median is" in verdict.bad["c"][0]
    assert "out of order" in verdict.bad["d"][0]
    assert "no report" in verdict.bad["e"][0]


def test_a_node_that_misses_one_check_of_the_others_is_bad() -> None:
    verdict = judge([report("a", free=1.0, matmul=5.0), report("b", free=1.0)], ["a", "b"])
    assert verdict.bad == {"b": ["no report of matmul: the node or the check on it failed"]}


def test_a_failed_all_reduce_is_held_against_no_node() -> None:
    failed = Check("all-reduce", "-", "timed out")
    reports = [NodeReport("a", (Check("matmul", "5", number=5.0), failed)), report("b", matmul=5.0)]
    verdict = judge(reports, ["a", "b"])
    assert (verdict.bad, verdict.shared) == ({}, ["all-reduce: timed out"])


def test_the_command_prints_bad_nodes_and_ends_with_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text(report_line(report("a", matmul=5.0)))
    assert run_command(["preflight", str(tmp_path), "--collect", "--nodes", "a"]) == 0
    assert run_command(["preflight", str(tmp_path), "--collect", "--nodes", "a,b"]) == 2
    assert capsys.readouterr().out.strip() == "b"
