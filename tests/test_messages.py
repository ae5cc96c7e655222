"""What a person reads after a mistake: one table of command lines with their exit codes and exact texts.

Each command runs in this process, inside one small work folder (`work`). In a text `{work}` is the path of that folder,
and `{profiles}` that of the profiles of Slurm.
A refusal (exit code 2) says its text and nothing else; any other command has these lines among what it says.

MAKE: init, plan, count, build-vocab, tokenize, run, submit. USE: all other commands of `pretok`, and `train`.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from support import ROOT, write_inputs

from pretok.cli import run_command

PROFILES = str(ROOT / "slurm" / "profiles")
Case = tuple[str, int, str]
"""Command line, exit code, text on standard error."""

RECIPE = """
out = "ok"
sources.it = {{inputs = ["{text}"], keep = ["id"]}}
vocab.path = "vocab"
shards.val_fraction = 0.2
"""
MAKE: list[Case] = [
    # The commands that make things.
    (
        "tokenize it=nope.jsonl --out new --vocab vocab",
        2,
        "pretok: no input matches 'nope.jsonl' (no {work}/nope.jsonl)",
    ),
    (
        "tokenize it=- --out new --vocab vocab",
        2,
        "pretok: no input matches '-'; pretok reads files, not a pipe",
    ),
    (
        "run put.toml --out new",
        2,
        "pretok: no input matches 'PUT/YOUR/TEXT/*.jsonl' (no {work}/PUT/YOUR/TEXT/*.jsonl); replace the placeholder "
        "by the path of your text",
    ),
    (
        "tokenize fr=more.jsonl --out ok --vocab vocab",
        2,
        "pretok: ok/shards holds shards of en, it, and this command names fr; val_fraction was 0.1 and is 0. Use "
        "another --out folder; to add fr to these shards, name their sources too",
    ),
    (
        "tokenize fr=more.jsonl --out ok --vocab vocab --val-fraction 0.1",
        2,
        "pretok: ok/shards holds shards of en, it, and this command names fr. Use another --out folder; to add fr to "
        "these shards, name their sources too",
    ),
    (
        "run ok.toml",
        2,
        "pretok: the shards in ok/shards were made from something else: val_fraction was 0.1 and is 0.2. Restore that, "
        "use another --out folder, or delete this one to make them again",
    ),
    (
        "tokenize it=it.jsonl en=en.jsonl --out ok --vocab vocab --val-fraction 0.1 --keep id --workers 0",
        0,
        "nothing to do: the shards of it, en are finished",
    ),
    (
        "tokenize it=it.jsonl it=more.jsonl --out two --vocab vocab --workers 0",
        0,
        "it: 2 patterns, read as one source",
    ),
    ("plan it=it.jsonl it=more.jsonl", 0, "it: 2 patterns, read as one source"),
    (
        "tokenize it=it.jsonl en=it.jsonl --out same --vocab vocab --workers 0",
        0,
        "warning: sources it and en read the same text: it.jsonl",
    ),
    (
        "tokenize 'it lang=it.jsonl' --out new --vocab vocab",
        2,
        "pretok: source name 'it lang': use only letters, digits, - and _",
    ),
    (
        "tokenize it=it.jsonl --out it.jsonl --vocab vocab",
        2,
        "pretok: --out it.jsonl is a file; name a folder",
    ),
    ("tokenize it=it.jsonl --vocab vocab", 2, "pretok: nothing says where the results go: give --out work"),
    (
        "tokenize it=it.jsonl --out new --vocab nowhere",
        2,
        "pretok: no tokenizer at nowhere, which does not exist: make one with pretok build-vocab, or name another with "
        "--vocab",
    ),
    (
        "tokenize it=empty.jsonl --out empty --vocab vocab --workers 0",
        3,
        "pretok: source it has no documents: its inputs hold no record",
    ),
    ("count it=empty.jsonl --out empty --workers 0", 3, "empty: empty.jsonl"),
    (
        "tokenize it=broken.parquet --out broken --vocab vocab --workers 0",
        3,
        "pretok: 1 input could not be read to the end; nothing of it is in the shards:\n"
        "  it-00000: broken.parquet: damaged Parquet: Parquet magic bytes not found in footer. Either the file is "
        "corrupted or this is not a parquet file.\n"
        "repair each file or replace it by what can be read of it (an empty file will do), and run the same command "
        "again: only these partitions are done again",
    ),
    (
        "build-vocab it=it.jsonl --out few --vocab-size 50k --workers 0",
        3,
        "pretok: the vocabulary has 376 entries, not the 50,000 asked for: no two tokens are left to merge inside any "
        "word. Give more text, or accept this one with --vocab-size 376 (size in a recipe)",
    ),
    (
        "build-vocab it=it.jsonl en=en.jsonl --out new --weights it=0.9,en=0.2",
        2,
        "pretok: the weights it=0.9, en=0.2 add up to 1.1, not to 1; for these proportions write it=0.8182,en=0.1818",
    ),
    (
        "build-vocab it=it.jsonl en=en.jsonl --out new --weights it=90,en=10",
        2,
        "pretok: the weights it=90, en=10 add up to 100, not to 1; for these proportions write it=0.9,en=0.1",
    ),
    ("mix ok/shards --seq-len 4k", 2, "pretok: --seq-len: 4k is 4,000; write 4096 or 4KiB"),
    ("init 'it=nope/*.jsonl'", 0, "note: no input matches 'nope/*.jsonl' (no {work}/nope/*.jsonl)"),
    (
        "run missing.toml",
        2,
        "pretok: recipe missing.toml does not exist (no {work}/missing.toml); pretok init prints one",
    ),
    (
        "submit ok.toml --profile leonardo",
        2,
        "pretok: profile {profiles}/leonardo.sh leaves SITE_ACCOUNT, SITE_VENV empty: copy it to my.sh, fill in what "
        "your site has (`none` where it has no such thing), and pass --profile my.sh",
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
    (work / "broken.parquet").write_bytes(b"PAR1" + bytes(1000))
    (work / "ok.toml").write_text(RECIPE.format(text="it.jsonl"))
    (work / "put.toml").write_text(RECIPE.format(text="PUT/YOUR/TEXT/*.jsonl"))
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
    return code, capsys.readouterr().err.replace(str(work), "{work}").replace(PROFILES, "{profiles}").rstrip()


CASES = [*MAKE, *USE]


@pytest.mark.parametrize(("line", "code", "text"), CASES, ids=[line for line, *_ in CASES])
def test_a_message(line, code, text, work, monkeypatch, capsys):
    ended, err = said(line, work, monkeypatch, capsys)
    if code == 2:
        assert (ended, err) == (code, text)
    else:
        assert ended == code, err
        assert f"\n{text}\n" in f"\n{err}\n", err
