"""The command line: help with an example, exit codes, messages that name things."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from support import ROOT

from pretok.cli import app, run_command

COMMANDS = sorted(command.callback.__name__.replace("_", "-") for command in app.registered_commands)


def test_commands_are_those_we_decided_on():
    assert COMMANDS == [
        "build-vocab", "count", "export", "inspect", "mix", "preflight", "run", "stats", "submit", "tokenize", "verify",
    ]  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name, capsys):
    assert run_command([name, "--help"]) == 0
    assert f"pretok {name} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tokenise"], "No such command"),
        (["tokenize", "it=none*.jsonl", "--out", "work", "--workers", "0"], "no tokenizer at"),
        (["tokenize", "a.jsonl", "--out", "work"], "neither a recipe"),
        (["tokenize", "it=a.jsonl"], "--out DIR"),
        (["tokenize", "none.toml"], "none.toml does not exist"),
        (["tokenize", "a.toml", "it=b"], "not both"),
        (["run", "none.toml"], "none.toml does not exist"),
        (["verify", "nowhere", "--workers", "0"], "run pretok tokenize"),
        (["stats", "nowhere"], "run pretok tokenize"),
        (["tokenize", "it=a.jsonl", "--out", "work", "--workers", "-1"], "--workers"),
    ],
)
def test_wrong_usage_is_code_2_and_says_why(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_input_that_matches_nothing(tmp_path, vocab_dir, capsys):
    command = [
        "tokenize",
        "it=/nowhere/*.jsonl",
        "--out",
        str(tmp_path),
        "--vocab",
        str(vocab_dir),
        "--workers",
        "0",
    ]
    assert run_command(command) == 2
    assert "no input matches '/nowhere/*.jsonl'" in capsys.readouterr().err


def test_failed_partitions_are_code_3(tmp_path, vocab_dir, capsys):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really PAR1")
    (tmp_path / "b.jsonl").write_text('{"text": "buono"}\n')
    inputs = [f"it={tmp_path}/a.parquet", f"it={tmp_path}/b.jsonl"]
    command = [
        "tokenize",
        *inputs,
        "--out",
        str(tmp_path / "out"),
        "--vocab",
        str(vocab_dir),
        "--workers",
        "0",
    ]
    assert run_command(command) == 3
    assert "a.parquet: damaged Parquet" in capsys.readouterr().err
    assert run_command(["stats", str(tmp_path / "out" / "shards"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["documents"] == 1
    assert run_command(["verify", str(tmp_path / "out" / "shards"), "--workers", "0"]) == 3


def test_counts_of_a_damaged_input_are_code_3(tmp_path, capsys):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really PAR1")
    (tmp_path / "b.jsonl").write_text('{"text": "buono"}\n')
    command = ["count", f"it={tmp_path}/a.parquet", f"it={tmp_path}/b.jsonl", "--out", str(tmp_path / "out")]
    assert run_command([*command, "--workers", "0", "--json"]) == 3
    printed = capsys.readouterr()
    assert "a.parquet: damaged Parquet" in printed.err
    assert f"delete {tmp_path}/out/counts" in printed.err
    assert json.loads(printed.out)["sources"]["it"]["read"] == 1


def test_an_internal_error_is_code_1(monkeypatch, capsys):
    monkeypatch.setattr("pretok.jobs.stats.show_stats", lambda *a, **k: 1 / 0)
    assert run_command(["stats", "x"]) == 1
    assert "this is a bug" in capsys.readouterr().err


def test_a_signal_is_code_75_and_the_next_run_continues(tmp_path, vocab_dir):
    line = json.dumps({"text": "una frase qualunque, abbastanza lunga. " * 50}) + "\n"
    with (tmp_path / "a.jsonl").open("w") as file:
        for _ in range(40_000):  # 80 MB: seconds of work
            file.write(line)
    command = [
        sys.executable,
        "-m",
        "pretok",
        "tokenize",
        f"it={tmp_path}/a.jsonl",
        "--out",
        str(tmp_path / "out"),
    ]
    command += ["--vocab", str(vocab_dir), "--workers", "0", "--shard-size", "1MiB"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    state = tmp_path / "out" / "shards" / ".state" / "it"
    deadline = time.monotonic() + 60
    while not list(state.glob("it-0*.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert "run the same command again to continue" in errors
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(re.search(r"(\d+) of them done", done.stderr)[1]) > 0
