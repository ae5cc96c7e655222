"""What is shown: numbers whole at any width, gauge that is never silent, cut or too hopeful."""

from __future__ import annotations

import io
import itertools
import os
import pty
import re
import subprocess
import sys

import pytest
from support import ROOT, until

from pretok.base import compiling, terminal
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
def test_a_table_in_a_file_holds_whole_numbers_whatever_the_width(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    console, text = screen(terminal_width=None)
    console.show(table("counts", COLUMNS, [ROW, ROW]))
    lines = text.getvalue().splitlines()
    rows = [line for line in lines if "italian-web" in line]
    assert [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows] == [ROW, ROW]
    assert any(all(column in line for column in COLUMNS) for line in lines)


def test_a_table_in_a_pipe_holds_whole_numbers():
    code = (
        "from pretok.base.terminal import Terminal; from pretok.base.console import table; "
        f"Terminal().show(table('t', {COLUMNS!r}, [{ROW!r}]), result=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80"},
        check=True,
    )
    assert all(number in done.stdout for number in ROW)


def test_a_table_wider_than_the_terminal_folds_and_cuts_nothing():
    console, text = screen(terminal_width=40)
    console.show(table("counts", COLUMNS, [ROW]))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    cells = zip(*(line.strip("│").split("│") for line in lines if line.startswith("│")), strict=True)
    assert ["".join(part.strip() for part in cell) for cell in cells] == ROW


def test_a_table_that_fits_the_terminal_is_a_table(monkeypatch):
    console, text = screen(terminal_width=80)
    console.show(table("counts", COLUMNS[:3], [ROW[:3]]))
    assert re.search(r"│ italian-web +│ +313,071,234,567 +│ +1,234,567,890,123 +│", text.getvalue())


def test_nothing_printed_is_markup(capsys):
    console = Terminal()
    console.notice("[slurm.train] :bug:")
    console.show(table("[bold] :smile:", ["[red]", "n"], [["[/red]", ":bug:"]]))
    shown = capsys.readouterr().err
    assert all(
        text in shown for text in ("[slurm.train] :bug:", "[bold] :smile:", "[red]", "[/red]", " :bug: ")
    )


AT_WORK = Gauge(
    "tokenize",
    seconds=2000 / 120,
    counts={
        "bytes": 2 * 10**9,
        "partitions": 30,
        "rejected": 0,
    },
    before={"bytes": 980_000_000, "partitions": 11},
    expected_bytes=7_842_000_000,
    partitions=108,
)
"""41 of 108 partitions, 38 %, 4 minutes left."""


def test_a_line_says_all_that_is_known():
    assert AT_WORK.line() == "tokenize 41/108 38% 2.98 GB 120 MB/s ETA 41 s rejects 0"


def test_a_line_says_that_something_compiles_as_long_as_it_does():
    gauge = Gauge("count", 1, {"compiling": 2}, expected_bytes=1000, partitions=2)
    assert gauge.line() == "count (compiling) 0/2 0% 0 B rejects 0"
    assert Gauge("merge", 5, {"compiling": 1}).line() == "merge (compiling) 5 s"
    assert Gauge("merge", 5, {"compiling": 0}).line() == "merge 5 s"
    assert Gauge("merge", 5, {"compiling": 1}).summary() == "merge: 5.0 s"
    with Terminal().progress("merge") as meter:
        compiling.tell(1)
        assert meter._now().counts == {"compiling": 1}


def test_what_an_earlier_run_did_is_shown_and_is_not_speed():
    before = {"bytes": 500, "partitions": 2}
    gauge = Gauge("count", 10, {}, before, expected_bytes=1000, partitions=4)
    assert gauge.line() == "count 2/4 50% 500 B rejects 0"
    gauge = Gauge("count", 10, {"bytes": 100}, before, expected_bytes=1000, partitions=4)
    assert gauge.line() == "count 2/4 60% 600 B 10 B/s ETA 40 s rejects 0"
    assert gauge.summary() == "count: 100 B of text, 10 B/s in 10.0 s (2 partitions done before)"


def test_what_is_refused_is_read_too():
    counts = {"bytes": 100, "refused bytes": 400}
    gauge = Gauge("count", 10, counts, {"refused bytes": 100}, expected_bytes=1000)
    assert gauge.line() == "count 60% 600 B 50 B/s ETA 8 s rejects 0"
    assert gauge.summary() == "count: 100 B of text, 10 B/s in 10.0 s"


def test_a_wrong_estimate_never_says_that_all_is_done():
    gauge = Gauge("count", 1, {"bytes": 5000}, expected_bytes=1000)
    assert gauge.line() == "count 99% 5 kB 5 kB/s rejects 0"


def test_without_an_estimate_there_is_neither_percentage_nor_time_left():
    gauge = Gauge("sample", 1, {"bytes": 5000, "documents": 1})
    assert gauge.line() == "sample 5 kB 5 kB/s rejects 0"
    assert gauge.summary() == "sample: 1 document, 5 kB of text, 5 kB/s in 1.0 s"


def test_a_step_without_text_shows_its_counts_and_its_time():
    assert Gauge("merge", 45).line() == "merge 45 s"
    assert Gauge("merge", 45, {"words": 1_000_000}).line() == "merge 1,000,000 words 45 s"


def test_a_step_with_nothing_to_do_says_nothing():
    assert Gauge("tokenize").summary() == ""


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
with Terminal().progress("tokenize") as meter:
    meter.expect(10**9, 7)
    meter({"bytes": 380_000_000, "partitions": 3})
    meter._bar.refresh()
"""
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read_terminal(code, 80))
    frames = re.findall(r"tokenize [━╸╺]{10,} 3/7 38% [^\r\n]*", shown)
    assert frames
    assert all(re.search(r" 38% 380 MB .*B/s ETA \d+ s", frame) for frame in frames)
    assert all(len(frame) <= 80 for frame in frames)


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "FIRST_LINE", 0.01)
    monkeypatch.setattr(terminal, "LINES_APART", 0.04)


def test_a_log_is_never_silent_though_nothing_is_reported(monkeypatch, capsys):
    quick(monkeypatch)
    lines = []
    with Terminal().progress("merge"):
        until(lambda: lines.extend(capsys.readouterr().err.splitlines()) or len(lines) > 3)
    lines += capsys.readouterr().err.splitlines()
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d merge \d+ s", line) for line in lines[:-1])
    assert re.fullmatch(r"merge: \d\.\d s", lines[-1])


def test_lines_come_soon_and_then_at_most_a_minute_apart():
    gaps = list(itertools.islice(terminal._gaps(), 2000))
    assert gaps[:6] == [3, 6, 12, 24, 48, 60]
    assert max(gaps) == 60


def test_reports_of_a_meter_reach_its_lines(monkeypatch, capsys):
    quick(monkeypatch)
    with Terminal(error=terminal._Console(stderr=True)).progress("count") as meter:
        meter.expect(2000, 2)
        meter.start_from({"bytes": 1000, "partitions": 1})
        meter({"bytes": 500})
        line = r"count 1/2 75% 1\.5 kB \S+ B/s ETA \S+ s rejects 0"
        until(lambda: re.search(line, capsys.readouterr().err))


def test_an_error_ends_the_lines_without_a_summary(monkeypatch, capsys):
    quick(monkeypatch)
    with pytest.raises(ZeroDivisionError), Terminal().progress("count") as meter:
        meter({"bytes": 1 // 0})
    assert "count:" not in capsys.readouterr().err
