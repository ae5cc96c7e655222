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


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("width", [None, 20, 60, 80, 120])
def test_a_table_cuts_and_folds_nothing_at_any_width(width, rows, monkeypatch):
    """Wide ones are turned on their side, or become lines; in a file or a pipe one is as wide as it must be."""
    monkeypatch.setenv("COLUMNS", "20")
    text = io.StringIO()
    screen = terminal._Console(file=text, force_terminal=width is not None, width=width, color_system=None)
    Terminal(error=screen).show(table("counts", COLUMNS, [ROW] * rows))
    lines = text.getvalue().splitlines()
    cells = [cell.strip() for line in lines for cell in re.split("[│┃]|: ", line)]
    for cell in ROW:
        assert cells.count(cell) == rows
    words = " ".join(cells).split()
    assert all(words.count(word) >= 1 for head in COLUMNS for word in head.split())
    assert width is None or width < 40 or max(map(len, lines)) <= width


def test_nothing_printed_is_markup(capsys):
    console, texts = Terminal(), ("[slurm.train] :bug:", "[bold] :smile:", "[red]", "[/red]", " :bug: ")
    console.notice(texts[0])
    console.show(table(texts[1], [texts[2], "n"], [[texts[3], ":bug:"]]))
    shown = capsys.readouterr().err
    assert all(text in shown for text in texts)


GAUGES = {
    "at work": (
        {"seconds": 2000 / 120, "counts": {"bytes": 2 * 10**9, "partitions": 30},
         "before": {"bytes": 980_000_000, "partitions": 11}, "expected": 7_842_000_000},
        "30 partitions, 2 GB of text, 120 MB/s in 16.7 s (11 partitions done before)",
        " 38 % · 2.98 GB of 7.84 GB · 120 MB/s · 41 s left",
    ),
    "what is refused is read too": (
        {"seconds": 10, "counts": {"bytes": 100, "refused bytes": 400, "rejected": 3}, "expected": 1000,
         "before": {"refused bytes": 100}},
        "3 rejected, 500 B of text, 50 B/s in 10.0 s", " 60 % · 600 B of 1 kB · 50 B/s · 8 s left · 3 rejected",
    ),
    "an estimate that is too low": (
        {"counts": {"bytes": 5000}, "expected": 1000}, "5 kB of text, 5 kB/s in 1.0 s",
        " 99 % · 5 kB · 5 kB/s"
    ),
    "nothing yet": ({"expected": 1000}, "1.0 s", " 0 % · starting"),
    "tokens": (
        {"counts": {"tokens": 500, "documents": 2}, "expected": 1000, "unit": "tokens", "seconds": 10},
        "2 documents, 500 tokens in 10.0 s", " 50 % · 500 of 1 k tokens · 50 tokens/s · 10 s left",
    ),
    "no estimate": (
        {"counts": {"bytes": 5000, "documents": 1}}, "1 document, 5 kB of text, 5 kB/s in 1.0 s",
        " · 5 kB · 5 kB/s · 1 document · 1 s"
    ),
    "no text": ({"counts": {"words": 1_000_000}}, "1,000,000 words in 1.0 s", " · 1,000,000 words · 1 s"),
    "nothing to do": ({"seconds": 0}, "", " · 0 s"),
    "start-up is no work": (
        {"seconds": 12, "start": 3, "counts": {"bytes": 1000}, "expected": 2000},
        "1 kB of text, 100 B/s in 12.0 s (2.0 s to start)", " 50 % · 1 kB of 2 kB · 100 B/s · 10 s left",
    ),
}  # fmt: skip
"""Fields of a gauge of one second; its summary, and what its line says after the title."""


@pytest.fixture
def gauge_of(monkeypatch):
    """Make a gauge at a moment: counts come all at once when the work begins."""

    def make(counts={}, expected=0, before={}, unit="bytes", seconds=1, start=0):  # noqa: B006
        monkeypatch.setattr("pretok.base.console.time.monotonic", lambda: 100.0)
        gauge = Gauge("count")
        gauge.expect(expected, before, unit)
        monkeypatch.setattr("pretok.base.console.time.monotonic", lambda: 100.0 + start)
        if counts:
            gauge(counts)
        monkeypatch.setattr("pretok.base.console.time.monotonic", lambda: 100.0 + seconds)
        return gauge

    return make


@pytest.mark.parametrize("case", GAUGES)
def test_a_line_says_all_that_is_known(case, gauge_of):
    fields, summary, line = GAUGES[case]
    gauge = gauge_of(**fields)
    assert gauge.summary() == (summary and f"count: {summary}")
    assert gauge.line() == f"count{line}"


def test_the_speed_is_that_of_the_last_seconds(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("pretok.base.console.time.monotonic", lambda: now[0])
    gauge = Gauge("count")
    for second in range(1, 61):  # 1 kB a second, then 3 kB
        now[0] = 100.0 + second
        gauge({"bytes": 1000 if second <= 30 else 3000})
    assert gauge.rate == pytest.approx(3000)
    now[0] = 200.0  # nothing for 40 seconds
    assert gauge.rate < 1000  # and so the line says that it stands still


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("case", GAUGES)
def test_a_bar_fits_a_terminal_and_cuts_nothing(case, width, gauge_of):
    gauge = gauge_of(**GAUGES[case][0])
    gauge.title = "look for copies"
    text = io.StringIO()
    screen = terminal._Console(file=text, force_terminal=True, width=width, color_system=None)
    screen.print(terminal._bar(gauge, width))
    [line] = text.getvalue().splitlines()
    assert len(line) <= width
    assert "…" not in line
    shown = [part for name, part in gauge.parts().items() if width >= 80 or name != "amount"]
    assert all(part in line for part in (gauge.title, *shown))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_each_task_that_is_under_way_has_a_bar(width):
    def lines(gauge, height):
        text = io.StringIO()
        screen = terminal._Console(file=text, force_terminal=True, width=width, color_system=None)
        screen.print(terminal._bars(gauge, width, height))
        return [re.sub(" *[━╸╺]+ *", "|", line.rstrip()) for line in text.getvalue().splitlines()]

    gauge = Gauge("tokenize")
    gauge.expect(4000)
    gauge.of_task("it-00000", 2000, {"bytes": 500})
    assert len(lines(gauge, 24)) == 1  # it is all that the step does
    gauge.of_task("en-00001", 1000, {"bytes": 250, "refused bytes": 50})
    gauge.of_task("it-00000", 2000, {"bytes": 500, "documents": 3})
    step, *tasks = lines(gauge, 24)
    assert step.startswith("tokenize|")
    assert " 32 % " in step.replace("|", " ")
    assert tasks == ["  it-00000|50 %", "  en-00001|30 %"]
    assert len(lines(gauge, 4)) == 2  # never more than half of the terminal
    gauge.end_task("it-00000")
    assert len(lines(gauge, 24)) == 1
    assert gauge.counts == {"bytes": 1250, "refused bytes": 50, "documents": 3}


def test_progress_on_a_terminal_is_a_bar():
    text = io.StringIO()
    screen = terminal._Console(file=text, force_terminal=True, width=60, color_system=None)
    with Terminal(error=screen).progress("tokenize") as progress:
        progress.expect(760_000_000)
        progress({"bytes": 380_000_000, "partitions": 3})
    assert re.search(r"tokenize +━+.* 50 % ", text.getvalue())


def test_a_log_is_never_silent_and_an_error_ends_it_without_a_summary(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "FIRST_LINE", 0.01)
    monkeypatch.setattr(terminal, "LINES_APART", 0.04)
    with Terminal().progress("count") as progress:
        progress.expect(2000, {"bytes": 1000, "partitions": 1})
        until(lambda: re.search(r"\d\d:\d\d count 50 % · 1 kB of 2 kB · starting\n", capsys.readouterr().err))
        progress({"bytes": 500})
        line = r" count 75 % · 1.5 kB of 2 kB · \S+ k?B/s · 0 s left\n"
        until(lambda: re.search(line, capsys.readouterr().err))
    assert re.search(r"^count: .* \d\.\d s", capsys.readouterr().err, re.M)
    with pytest.raises(ZeroDivisionError), Terminal().progress("count") as progress:
        progress({"bytes": 1 // 0})
    assert "count:" not in capsys.readouterr().err
