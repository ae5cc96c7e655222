"""The check of nodes: what is measured, and who is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pretok.cli import run_command
from pretok.cluster import node_check
from pretok.cluster.node_check import NodeCheck, NodeReport, judge, node_report, read_reports, report_line

SMALL = dict.fromkeys(("free", "write", "memory", "GPUs"), 0)


def report(node: str, **numbers: float) -> NodeReport:
    checks = (NodeCheck(name, str(value), number=value) for name, value in numbers.items())
    return NodeReport(node, tuple(checks))


def test_a_sound_node_has_no_problem_and_keeps_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,3")
    monkeypatch.setattr(node_check, "SKEW", 1e9)
    verdict = judge([node_report(tmp_path, SMALL)], [os.uname().nodename])
    assert verdict.bad == {}
    checks = verdict.checks[os.uname().nodename]
    assert checks.keys() == {"clock", *SMALL}
    assert checks["GPUs"].value == "3"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["clock", *SMALL])
def test_each_limit_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(node_check, "SKEW", -1 if name == "clock" else 1e9)
    needed = SMALL | {name: 1 << 60}
    assert [check.name for check in node_report(tmp_path, needed).checks if check.problem] == [name]


def test_missing_slow_and_failed_nodes_are_named(tmp_path: Path) -> None:
    sound = [report(node, matmul=speed, free=1.0) for node, speed in (("a", 10.0), ("b", 9.0), ("c", 3.0))]
    checks = NodeCheck("matmul", "10", "out of order", 10.0), NodeCheck("all-reduce", "-", "timed out")
    failed = NodeReport("d", checks)
    path = tmp_path / "x.json"
    path.write_text("noise of a library\n" + "".join(map(report_line, [*sound, failed])))
    verdict = judge(read_reports(tmp_path), ["a", "b", "c", "d", "e"])
    assert verdict.bad == {
        "c": ["matmul: 3.0, the median is 9.5"],
        "d": ["matmul: out of order", "no report of free: the node or the check on it failed"],
        "e": ["no report of free, matmul: the node or the check on it failed"],
    }
    assert verdict.shared == ["all-reduce: timed out"]  # which may be the fault of any node


def test_the_command_prints_bad_nodes_and_ends_with_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text(report_line(report("a", matmul=5.0)))
    assert run_command(["preflight", str(tmp_path), "--collect", "--nodes", "a"]) == 0
    assert run_command(["preflight", str(tmp_path), "--collect", "--nodes", "a,b"]) == 2
    assert capsys.readouterr().out.strip() == "b"
