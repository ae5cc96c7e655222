"""What a person reads after a mistake: one table of command lines with their exit codes and exact texts.

Each command runs in this process, inside one small work folder (`work`). In a text `{work}` is the path of that folder.
A refusal (exit code 2) says its text and nothing else; any other command has these lines among what it says.

MAKE: init, plan, count, build-vocab, tokenize, run, submit. USE: all other commands of `pretok`, and `train`.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from support import write_inputs

from pretok.cli import run_command

Case = tuple[str, int, str]
"""Command line, exit code, text on standard error."""

MAKE: list[Case] = [
    # The commands that make things.
    (
        "tokenize it=nope.jsonl --out new --vocab vocab",
        2,
        "pretok: no input matches 'nope.jsonl' (relative paths start at {work})",
    ),
    (
        "build-vocab it=it.jsonl --out few --vocab-size 50k --workers 0",
        3,
        "pretok: the vocabulary has 376 entries, not the 50,000 asked for: no two tokens are left to merge inside any "
        "word. Give more text, or accept this one with --vocab-size 376 (size in a recipe)",
    ),
]
USE: list[Case] = [
    # The commands that use what is made, and `train`.
]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Path:
    """vocab/; it.jsonl, en.jsonl, more.jsonl and rows.jsonl; ok/shards and ok/mix.json of it and en; bad inputs."""
    work = tmp_path_factory.mktemp("messages")
    write_inputs(work)
    shutil.copytree(vocab_dir, work / "vocab")
    (work / "empty.jsonl").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        made = "it=it.jsonl en=en.jsonl --out ok --vocab vocab --val-fraction 0.1 --keep id --workers 0"
        assert run_command(shlex.split(f"tokenize {made}")) == 0
        mix = "mix ok/shards --out ok/mix.json --weights it=0.9,en=0.1 --seq-len 16"
        assert run_command(shlex.split(mix)) == 0
    return work


def said(
    line: str, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Exit code and standard error of a command line typed in the work folder."""
    monkeypatch.chdir(work)
    monkeypatch.setenv("COLUMNS", "200")
    capsys.readouterr()
    code = run_command(shlex.split(line))
    return code, capsys.readouterr().err.replace(str(work), "{work}").rstrip("\n")


CASES = [*MAKE, *USE]


@pytest.mark.parametrize(("line", "code", "text"), CASES, ids=[line for line, *_ in CASES])
def test_a_message(line, code, text, work, monkeypatch, capsys):
    ended, err = said(line, work, monkeypatch, capsys)
    if code == 2:
        assert (ended, err) == (code, text)
    else:
        assert ended == code, err
        assert f"\n{text}\n" in f"\n{err}\n", err
