"""What a person reads after a mistake: command lines with their exit codes and exact texts.

A case is a block: exit code and command line, then the text on standard error. Each command runs in this process, in
one small work folder. `{work}` is the path of that folder. A refusal (exit
code 2) says its text and nothing else; any other command has these lines among what it says. The commands that use what
is made here, and `train`: `test_messages_use`.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from support import write_inputs

from pretok.cli import run_command

RECIPE = """
out = "ok"
sources.it = {{inputs = ["{text}"], keep = ["id"]}}
vocab.path = "vocab"
shards.val_fraction = 0.2
"""
MAKE = "tokenize it=it.jsonl en=en.jsonl --out ok --vocab vocab --val-fraction 0.1 --keep id --workers 0"
MIX = "mix ok/shards --out ok/mix.json --weights it=0.9,en=0.1 --seq-len 16"
CASES = """
2 tokenize it=nope.jsonl --out new --vocab vocab
pretok: no input matches 'nope.jsonl' (no {work}/nope.jsonl)

2 run put.toml --out new
pretok: no input matches 'PUT/YOUR/TEXT/*.jsonl' (no {work}/PUT/YOUR/TEXT/*.jsonl); replace the placeholder by the \
path of your text

2 tokenize fr=more.jsonl --out ok --vocab vocab
pretok: ok/shards holds shards of en, it, and this command names fr; val_fraction was 0.1 and is 0. Use another \
--out folder; to add fr to these shards, name their sources too

2 run ok.toml
pretok: the shards in ok/shards were made with other settings or inputs: val_fraction was 0.1 and is 0.2. Change that \
back, use another --out folder, or delete this one to start over

0 tokenize it=it.jsonl en=it.jsonl --out same --vocab vocab --workers 0
warning: sources it and en read the same text: it.jsonl

2 tokenize it=it.jsonl --vocab vocab
pretok: nothing says where the results go: give --out work

2 tokenize it=it.jsonl --out new --vocab nowhere
pretok: no tokenizer at nowhere, which does not exist: train one with pretok build-vocab, or name another with \
--vocab

3 tokenize it=empty.jsonl --out empty --vocab vocab --workers 0
pretok: source it has no documents: its inputs hold no record

3 tokenize it=broken.parquet --out broken --vocab vocab --workers 0
pretok: 1 input could not be read to the end; nothing of it is in the shards:
  it-00000: broken.parquet: damaged Parquet: Parquet magic bytes not found in footer. Either the file is corrupted \
or this is not a parquet file.
repair each file or replace it by what can be read of it (an empty file will do), and run the same command again: \
only these partitions are done again

3 build-vocab it=it.jsonl --out few --vocab-size 50k --workers 0
pretok: the vocabulary has 376 entries, not the 50,000 asked for: no two tokens are left to merge inside any word. \
Give more text, or accept this one with --vocab-size 376 (size in a recipe)

2 build-vocab it=it.jsonl en=en.jsonl --out new --weights it=0.9,en=0.2
pretok: the weights it=0.9, en=0.2 add up to 1.1, not to 1; for these proportions write it=0.8182,en=0.1818

2 mix ok/shards --seq-len 4k
pretok: --seq-len: 4k is 4,000; write 4096 or 4KiB

0 init 'it=nope/*.jsonl'
note: no input matches 'nope/*.jsonl' (no {work}/nope/*.jsonl)

2 run missing.toml
pretok: recipe missing.toml cannot be read: No such file or directory; pretok init prints one

2 tokenize a.jsonl --out new
pretok: 'a.jsonl' is neither a recipe (.toml) nor NAME=GLOB, such as it='data/it/*.jsonl.zst'

2 tokenize a.toml it=it.jsonl
pretok: give either one recipe or NAME=GLOB inputs, not both

2 preflight . --min-free 5X
pretok: --min-free: '5X' is not a count such as 1200000, 1e6, 1.2T, 300B, 64MiB

2 verify nowhere --workers 0
pretok: {work}/nowhere/manifest.json does not exist: the folder holds no finished shards; run pretok tokenize, \
which resumes its work
"""


def each(cases: str) -> pytest.MarkDecorator:
    """Parametrize a test by the blocks of a text."""
    blocks = [block.partition("\n") for block in cases.strip().split("\n\n")]
    found = [(head[2:], int(head[0]), text) for head, _, text in blocks]
    return pytest.mark.parametrize(("line", "code", "text"), found, ids=[line for line, *_ in found])


def check(code: int, text: str, ended: int, said: str) -> None:
    """Compare the code and text of a case with those of a command."""
    assert ended == code, said
    if code == 2:
        assert said == text
    else:
        assert f"\n{text}\n" in f"\n{said}\n", said


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
        assert [run_command(shlex.split(line)) for line in (MAKE, MIX)] == [0, 0]
    return work


@each(CASES)
def test_a_message(line, code, text, work, monkeypatch, capsys):
    monkeypatch.chdir(work)
    monkeypatch.setenv("COLUMNS", "200")
    ended = run_command(shlex.split(line))
    said = capsys.readouterr().err.replace(str(work), "{work}")
    check(code, text, ended, said.rstrip())
