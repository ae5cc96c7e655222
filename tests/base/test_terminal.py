"""What is shown: numbers whole at any width, gauge that is never silent, cut or too hopeful."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from support import ROOT, until

from pretok.base import terminal
from pretok.base.console import table
from pretok.base.gauge import Gauge
from pretok.base.terminal import Terminal

NUMBERS = ["313,071,234,567", "1,234,567,890,123", "5,812,345,678,901", "4.719", "0"]
COLUMNS = ("source", "tokens", "documents", "bytes of text", "bytes/token", "distinct words")
ROW = ["italian-web", *NUMBERS]


def screen(*, terminal_width: int | None) -> tuple[Terminal, io.StringIO]:
    """A Terminal and what it writes, as on a terminal of that width or as into a file."""
    text = io.StringIO()
    made = terminal._Console(
        file=text, force_terminal=terminal_width is not None, width=terminal_width, color_system=None
    )
    return Terminal(error=made), text


@pytest.mark.parametrize("columns", ["80", "20"])
def test_a_table_in_a_file_or_pipe_holds_whole_numbers_whatever_the_width(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    console, text = screen(terminal_width=None)
    console.show(table("counts", COLUMNS, [ROW, ROW]))
    Terminal().show(table("counts", COLUMNS, [ROW, ROW]), result=True)
    for shown in (text.getvalue(), capsys.readouterr().out):
        rows = [line for line in shown.splitlines() if "italian-web" in line]
        assert [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows] == [ROW, ROW]
        assert any(all(column in line for column in COLUMNS) for line in shown.splitlines())


def test_a_table_wider_than_the_terminal_folds_and_cuts_nothing():
    console, text = screen(terminal_width=40)
    console.show(table("counts", COLUMNS, [ROW]))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    cells = zip(*(line.strip("│").split("│") for line in lines if line.startswith("│")), strict=True)
    assert ["".join(part.strip() for part in cell) for cell in cells] == ROW


def test_nothing_printed_is_markup(capsys):
    console = Terminal()
    console.notice("[slurm.train] :bug:")
    console.show(table("[bold] :smile:", ["[red]", "n"], [["[/red]", ":bug:"]]))
    shown = capsys.readouterr().err
    assert all(
        text in shown for text in ("[slurm.train] :bug:", "[bold] :smile:", "[red]", "[/red]", " :bug: ")
    )


GAUGES = {
    "at work": (
        {"seconds": 2000 / 120, "counts": {"bytes": 2 * 10**9, "partitions": 30}, "partitions": 108,
         "before": {"bytes": 980_000_000, "partitions": 11}, "expected_bytes": 7_842_000_000},
        "41/108 38% 2.98 GB 120 MB/s ETA 41 s rejects 0",
        "30 partitions, 2 GB of text, 120 MB/s in 16.7 s (11 partitions done before)",
    ),
    "what an earlier run did is no speed": (
        {"seconds": 10, "counts": {"bytes": 100}, "partitions": 4, "expected_bytes": 1000,
         "before": {"bytes": 500, "partitions": 2}},
        "2/4 60% 600 B 10 B/s ETA 40 s rejects 0", "100 B of text, 10 B/s in 10.0 s (2 partitions done before)",
    ),
    "what is refused is read too": (
        {"seconds": 10, "counts": {"bytes": 100, "refused bytes": 400}, "expected_bytes": 1000,
         "before": {"refused bytes": 100}},
        "60% 600 B 50 B/s ETA 8 s rejects 0", "100 B of text, 10 B/s in 10.0 s",
    ),
    "an estimate that is too low": (
        {"counts": {"bytes": 5000}, "expected_bytes": 1000}, "99% 5 kB 5 kB/s rejects 0",
        "5 kB of text, 5 kB/s in 1.0 s"
    ),
    "no estimate": (
        {"counts": {"bytes": 5000, "documents": 1}}, "5 kB 5 kB/s rejects 0",
        "1 document, 5 kB of text, 5 kB/s in 1.0 s"
    ),
    "no text": ({"counts": {"words": 1_000_000}}, "1,000,000 words 1 s", "1,000,000 words in 1.0 s"),
    "nothing to do": ({"seconds": 0}, "0 s", ""),
}  # fmt: skip
"""Fields of a gauge of one second; its line, and its summary."""


@pytest.mark.parametrize("case", GAUGES)
def test_a_line_says_all_that_is_known(case):
    fields, line, summary = GAUGES[case]
    gauge = Gauge("count", **{"seconds": 1, **fields})
    assert gauge.line() == f"count {line}"
    assert gauge.summary() == (summary and f"count: {summary}")


def read_terminal(code: str, columns: int) -> str:
    """What a program shows on a real terminal of that width."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=follower, stderr=follower, cwd=ROOT, env=environment
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        shown += data
    os.close(leader)
    assert process.wait(30) == 0
    return shown.decode()


def test_the_bar_of_a_terminal_of_80_columns_is_whole():
    code = """
from pretok.base.terminal import Terminal
with Terminal().progress("tokenize") as progress:
    progress.expect(10**9, 7, {})
    progress({"bytes": 380_000_000, "partitions": 3})
"""
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read_terminal(code, 80))
    frames = re.findall(r"tokenize [━╸╺]{10,} 3/7 38% [^\r\n]*", shown)
    assert frames
    assert all(re.search(r" 38% 380 MB .*B/s ETA \d+ s", frame) for frame in frames)
    assert all(len(frame) <= 80 for frame in frames)


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "FIRST_LINE", 0.01)
    monkeypatch.setattr(terminal, "LINES_APART", 0.04)


def test_a_log_is_never_silent_and_tells_what_is_reported(monkeypatch, capsys):
    quick(monkeypatch)
    with Terminal(error=terminal._Console(stderr=True)).progress("count") as meter:
        for line in (
            r"\d\d:\d\d:\d\d count \d+ s\n",
            r" count 1/2 75% 1\.5 kB \S+ B/s ETA \S+ s rejects 0\n",
        ):
            until(lambda line=line: re.search(line, capsys.readouterr().err))
            meter.expect(2000, 2, {"bytes": 1000, "partitions": 1})
            meter({"bytes": 500})
    assert re.search(r"^count: .* \d\.\d s", capsys.readouterr().err, re.M)


def test_an_error_ends_the_lines_without_a_summary(monkeypatch, capsys):
    quick(monkeypatch)
    with pytest.raises(ZeroDivisionError), Terminal().progress("count") as meter:
        meter({"bytes": 1 // 0})
    assert "count:" not in capsys.readouterr().err
