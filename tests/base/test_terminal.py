"""What is shown: whole numbers at any width, progress that is never silent, cut or too hopeful."""

from __future__ import annotations

import io
import re

import pytest
from support import until

from pretok.base import terminal
from pretok.base.console import Gauge, table
from pretok.base.terminal import Terminal

COLUMNS = ("source", "tokens", "documents", "bytes of text", "bytes/token", "distinct words")
ROW = ["italian-web", "313,071,234,567", "1,234,567,890,123", "5,812,345,678,901", "4.719", "0"]


@pytest.mark.parametrize("width", [None, 40])
def test_a_table_cuts_nothing_at_any_width(width, monkeypatch):
    """In a file or a pipe it is as wide as it must be, on a terminal long cells fold."""
    monkeypatch.setenv("COLUMNS", "20")
    text = io.StringIO()
    screen = terminal._Console(file=text, force_terminal=width is not None, width=width, color_system=None)
    Terminal(error=screen).show(table("counts", COLUMNS, [ROW]))
    lines = [line.strip("│").split("│") for line in text.getvalue().splitlines() if line.startswith("│")]
    assert ["".join(part.strip() for part in cell) for cell in zip(*lines, strict=True)] == ROW
    assert len(lines) == 1 if width is None else max(map(len, text.getvalue().splitlines())) <= width


def test_nothing_printed_is_markup(capsys):
    console, texts = Terminal(), ("[slurm.train] :bug:", "[bold] :smile:", "[red]", "[/red]", " :bug: ")
    console.notice(texts[0])
    console.show(table(texts[1], [texts[2], "n"], [[texts[3], ":bug:"]]))
    shown = capsys.readouterr().err
    assert all(text in shown for text in texts)


GAUGES = {
    "at work": (
        {"seconds": 2000 / 120, "counts": {"bytes": 2 * 10**9, "partitions": 30},
         "before": {"bytes": 980_000_000, "partitions": 11}, "expected_bytes": 7_842_000_000},
        "30 partitions, 2 GB of text, 120 MB/s in 16.7 s (11 partitions done before)", "; 38 %, ETA 41 s",
    ),
    "what is refused is read too": (
        {"seconds": 10, "counts": {"bytes": 100, "refused bytes": 400, "rejected": 3}, "expected_bytes": 1000,
         "before": {"refused bytes": 100}},
        "3 rejected, 500 B of text, 50 B/s in 10.0 s", "; 60 %, ETA 8 s",
    ),
    "an estimate that is too low": (
        {"counts": {"bytes": 5000}, "expected_bytes": 1000}, "5 kB of text, 5 kB/s in 1.0 s", "; 99 %"
    ),
    "nothing yet": ({"expected_bytes": 1000}, "1.0 s", "; 0 %"),
    "no estimate": (
        {"counts": {"bytes": 5000, "documents": 1}}, "1 document, 5 kB of text, 5 kB/s in 1.0 s", ""
    ),
    "no text": ({"counts": {"words": 1_000_000}}, "1,000,000 words in 1.0 s", ""),
    "nothing to do": ({"seconds": 0}, "", ""),
}  # fmt: skip
"""Fields of a gauge of one second; its summary, and what its line says of the rest."""


@pytest.mark.parametrize("case", GAUGES)
def test_a_line_says_all_that_is_known(case, monkeypatch):
    fields, summary, rest = GAUGES[case]
    monkeypatch.setattr("pretok.base.console.time.monotonic", lambda: 100.0)
    gauge = Gauge("count")
    gauge(fields.get("counts", {}))
    gauge.expect(fields.get("expected_bytes", 0), fields.get("before", {}))
    monkeypatch.setattr("pretok.base.console.time.monotonic", lambda: 100.0 + fields.get("seconds", 1))
    assert gauge.summary() == (summary and f"count: {summary}")
    assert gauge.line() == gauge.summary() + rest


def test_progress_on_a_terminal_is_one_line():
    text = io.StringIO()
    screen = terminal._Console(file=text, force_terminal=True, width=40, color_system=None)
    with Terminal(error=screen).progress("tokenize") as progress:
        progress({"bytes": 380_000_000, "partitions": 3})
    assert re.search(r"tokenize: 3 partitions, 380 MB of text.*…", text.getvalue())


def test_a_log_is_never_silent_and_an_error_ends_it_without_a_summary(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "FIRST_LINE", 0.01)
    monkeypatch.setattr(terminal, "LINES_APART", 0.04)
    with Terminal().progress("count") as progress:
        progress.expect(2000, {"bytes": 1000, "partitions": 1})
        until(lambda: re.search(r"\d\d:\d\d:\d\d count: \S+ s .*; 50 %\n", capsys.readouterr().err))
        progress({"bytes": 500})
        line = r" count: 500 B of text, \S+ B/s in \S+ s .*; 75 %, ETA \S+ s\n"
        until(lambda: re.search(line, capsys.readouterr().err))
    assert re.search(r"^count: .* \d\.\d s", capsys.readouterr().err, re.M)
    with pytest.raises(ZeroDivisionError), Terminal().progress("count") as progress:
        progress({"bytes": 1 // 0})
    assert "count:" not in capsys.readouterr().err
