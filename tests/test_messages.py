"""What a person reads after a mistake: command lines with their exit codes and exact texts.

A case is a block: exit code and command line, then the text on standard error. Each command runs in this process, in
one small work folder. In a text `{work}` is the path of that folder, `{torch}` is torch's version, and `{manifest}`,
`{mix}`, `{other}` are the fingerprints of ok/shards, ok/mix.json, other.json. A refusal (exit code 2) says its text and
nothing else; any other command has these lines among what it says.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support import write_inputs
from train_support import SIZES

import pretok
import train.__main__
from pretok import stream
from pretok.cli import run_command
from pretok.integrations.pytorch import Loader
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_file import load_mix

RECIPE = """
out = "ok"
sources.it = {{inputs = ["{text}"], keep = ["id"]}}
vocab.path = "vocab"
shards.val_fraction = 0.2
"""
MADE = """
pretok tokenize it=it.jsonl en=en.jsonl --out ok --vocab vocab --val-fraction 0.1 --keep id --workers 0
pretok mix ok/shards --out ok/mix.json --weights it=0.9,en=0.1 --seq-len 16
pretok mix ok/shards --out other.json --weights it=0.8,en=0.2 --seq-len 16
train --shards ok/shards --mix ok/mix.json --model tiny.toml --out run --steps 4 --workers 0
"""
CASES = """
2 pretok tokenize it=nope.jsonl --out new --vocab vocab
pretok: no input matches 'nope.jsonl' (no {work}/nope.jsonl)

2 pretok run put.toml --out new
pretok: put.toml: line 3: no input matches 'PUT/YOUR/TEXT/*.jsonl' (no {work}/PUT/YOUR/TEXT/*.jsonl); replace the \
placeholder by the path of your text

2 pretok tokenize fr=more.jsonl --out ok --vocab vocab
pretok: ok/shards holds shards of en, it, and this command names fr: use another --out folder or, to add to these \
shards, also name their sources

2 pretok run ok.toml
pretok: the shards in ok/shards were made with other settings or inputs: val_fraction was 0.1 and is 0.2. Change that \
back, use another --out folder, or delete ok/shards to start over

0 pretok tokenize it=it.jsonl en=it.jsonl --out same --vocab vocab --workers 0
warning: sources it and en read the same text: it.jsonl

2 pretok tokenize it=it.jsonl --vocab vocab
pretok: --out is missing: Folder for all results (WORK).

2 pretok tokenize it=it.jsonl --out new --vocab nowhere
pretok: no tokenizer at nowhere, which does not exist: train one with pretok build-vocab, or name another with \
--vocab

3 pretok tokenize it=empty.jsonl --out empty --vocab vocab --workers 0
pretok: source it has no documents: its inputs hold no record

3 pretok tokenize it=broken.parquet --out broken --vocab vocab --workers 0
partition it-00000 failed: broken.parquet: damaged Parquet: Parquet magic bytes not found in footer. Either the file \
is corrupted or this is not a parquet file.; repair each damaged file or replace it by what can be read of it (an \
empty file will do), or leave it out whole: --skip-damaged
pretok: 1 partitions failed:
  it-00000: broken.parquet: damaged Parquet: Parquet magic bytes not found in footer. Either the file is corrupted or \
this is not a parquet file.; repair each damaged file or replace it by what can be read of it (an empty file will do), \
or leave it out whole: --skip-damaged
everything else is done and kept; run the same command again for the rest

3 pretok build-vocab it=it.jsonl --out few --vocab-size 50k --workers 0
pretok: the vocabulary has 376 entries, not the 50,000 asked for: no two tokens are left to merge inside any word. \
Give more text, or accept this one with --vocab-size 376 (size in a recipe)

2 pretok mix ok/shards --seq-len 4k
pretok: --seq-len: 4k is 4,000; write 4096 or 4KiB

0 pretok init 'it=nope/*.jsonl'
note: no input matches 'nope/*.jsonl' (no {work}/nope/*.jsonl)

2 pretok run missing.toml
pretok: recipe missing.toml cannot be read: No such file or directory; pretok init prints one

2 pretok tokenize a.jsonl --out new
pretok: 'a.jsonl' is neither a recipe (.toml) nor NAME=GLOB, such as it='data/it/*.jsonl.zst'

2 pretok tokenize a.toml it=it.jsonl
pretok: give either one recipe or NAME=GLOB inputs, not both

2 pretok preflight . --min-free 5X
pretok: --min-free: '5X' is not a count such as 1200000, 1e6, 1.2T, 300B, 64MiB

2 pretok verify nowhere --workers 0
pretok: {work}/nowhere does not exist: name a folder of results (WORK) or of shards

2 pretok mix nowhere --seq-len 16
pretok: {work}/nowhere does not exist: name a folder of results (WORK) or of shards

2 pretok report nowhere
pretok: {work}/nowhere does not exist: name a folder of results (WORK) or of shards

2 pretok verify run --workers 0
pretok: {work}/run/manifest.json does not exist: the folder holds no finished shards; run pretok tokenize, \
which resumes its work

2 pretok status nowhere
pretok: nowhere does not exist

2 pretok status ok/shards/it
pretok: ok/shards/it is a part of the results in {work}/ok; show them with pretok status {work}/ok

2 pretok status ok/logs
pretok: ok/logs is a part of the results in {work}/ok; show them with pretok status {work}/ok

3 pretok tokenize it=nulls.jsonl --out nulls --vocab vocab --workers 0
pretok: source it has no documents: 1 of 1 records were rejected (null_text 1); most of them are in
    nulls.jsonl: 1, the first at line 1 (null_text: {"text": null})
    all are in nulls/shards/.state/it/rejects.jsonl

2 pretok mix gone/shards --out gone/mix.json --seq-len 16
pretok: {work}/gone/shards/en/en-00000.bin is missing; run pretok verify {work}/gone/shards

0 train --shards ok/shards --mix ok/mix.json --model tiny.toml --out cpu --steps 1 --workers 0
warning: no GPU was found (torch {torch}): training on the CPU. For a GPU install the CUDA build of torch

2 train --shards ok/shards --mix ok/mix.json --model tiny.toml --out it.jsonl
train: --out: it.jsonl/flight cannot be created: Not a directory; name a folder that can be written

2 train --shards ok/shards --mix ok/mix.json --model big.toml --out run --steps 4 --workers 0
train: run was started with other settings: model.layers was 2, is 3. Resume with the original settings, or choose \
another --out (add --init-from run to start from these weights, if the sizes are the same)

2 train --shards ok/shards --mix other.json --model tiny.toml --out run --steps 4 --workers 0
train: run was started with other settings: stream was {mix}, is {other}; the data differs from sequence 0 on, and \
32 are already read; to change the data add a phase: [[phases]] with at = 512 and shards or mix or seq_len. Resume \
with the original settings, or choose another --out (add --init-from run to start from these weights, if the sizes \
are the same)

2 pretok verify cut/shards --workers 0
verify: 54 documents, 732 tokens, 54 encoded again, 3 shards in {seconds} s
pretok: 1 problem in cut/shards:
  {work}/cut/shards/en/en-00000.idx has 100 bytes, its header says 962
to repair, restore the files from a copy, or delete cut/shards and run the command that made it

2 pretok certify norun --step 1
pretok: norun does not exist; name the folder of a run (train --out) or a mix.json

2 pretok report ok --run ok
pretok: ok is not the folder of a run: it has no config.json; name the folder of a run (train --out)

2 pretok mix ok/shards --weights it=0.9,en=0.1 --seq-len 16 --tokens 1M
pretok: 1,000,000 tokens would take more than 4 epochs of some sources: en has 624 (164.47 epochs), it has 610 \
(1,520.27 epochs). With these weights at most 2,624 fit: lower --tokens, add text, or raise --max-epochs

2 pretok mix ok/shards --out ok/mix.json --weights it=0.8,en=0.2 --seq-len 16
pretok: ok/mix.json holds another mix (other stages). Write this one to another --out, or delete the old one if \
no run uses it

2 pretok disclose ok nope.json
pretok: nope.json does not exist; name a mix, or make it with pretok mix

2 pretok query ok 'drop table documents'
pretok: pretok query only reads; it takes one SELECT

0 pretok remove ok/shards --where "source = 'fr'" --reason x
ok/shards: no document matches; nothing was removed (manifest {manifest})

2 pretok annotate ok/shards rows.jsonl --by nope
pretok: --by nope: documents have only bytes, doc, file, hash, id, position, record, shard, source, split, start, \
tokens; tokenize them with --keep nope, or join by file,position or by hash

2 pretok annotate ok/shards norows.jsonl --by id
pretok: no row of norows.jsonl matches a document; to see their keys: pretok query ok/shards 'SELECT id FROM \
documents LIMIT 5'
"""


def ended(line: str) -> int:
    """The exit code of a command line of `pretok`, or of `train`."""
    program, *arguments = shlex.split(line)
    if program == "pretok":
        return run_command(arguments)
    try:
        train.__main__.main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Iterator[Path]:
    """vocab/; it.jsonl, en.jsonl, more.jsonl, rows.jsonl; ok/shards and two mixes of it and en; run; bad inputs."""
    work = tmp_path_factory.mktemp("messages")
    write_inputs(work)
    shutil.copytree(vocab_dir, work / "vocab")
    (work / "empty.jsonl").touch()
    (work / "nulls.jsonl").write_text('{"text": null}\n')
    (work / "broken.parquet").write_bytes(b"PAR1" + bytes(1000))
    (work / "norows.jsonl").write_text('{"id": "nope-1", "score": 7}\n')
    for name, text in (("ok", "it.jsonl"), ("put", "PUT/YOUR/TEXT/*.jsonl")):
        (work / f"{name}.toml").write_text(RECIPE.format(text=text))
    for name, layers in (("tiny", 2), ("big", 3)):
        sizes = SIZES.format(tied="true").replace("layers = 2", f"layers = {layers}")
        (work / f"{name}.toml").write_text(sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.version, "cuda", None)
        patch.chdir(work)
        assert [ended(line) for line in MADE.strip().splitlines()] == [0] * 4
        for name in ("gone", "cut"):
            shutil.copytree("ok/shards", f"{name}/shards")
        Path("gone/shards/en/en-00000.bin").unlink()
        os.truncate("cut/shards/en/en-00000.idx", 100)
        yield work


@pytest.mark.parametrize("case", CASES.strip().split("\n\n"), ids=lambda case: case.splitlines()[0][2:])
def test_a_message(case: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, _, text = case.partition("\n")
    capsys.readouterr()
    code, printed = ended(head[2:]), capsys.readouterr()
    said = printed.err + ("" if code else printed.out)  # `train` says all but errors on standard output
    for name, value in (
        ("work", str(work)),
        ("torch", torch.__version__),
        ("manifest", load_manifest(work / "ok" / "shards").fingerprint),
        ("mix", load_mix(work / "ok" / "mix.json").fingerprint),
        ("other", load_mix(work / "other.json").fingerprint),
    ):
        said = said.replace(value, f"{{{name}}}")
    said = re.sub(r"in [\d.]+ s\n", "in {seconds} s\n", said).rstrip()
    assert code == int(head[0]), said
    if code == 2:
        assert said == text
    else:
        assert f"\n{text}\n" in f"\n{said}\n"


NOWHERE = "{work}/nowhere does not exist: name a folder of results (WORK) or of shards"
CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "open": (lambda: pretok.open("nowhere"), NOWHERE),
    "stream": (lambda: stream.open("nowhere", seq_len=16), NOWHERE),
    "mix": (lambda: pretok.mix("nowhere", seq_len=16), NOWHERE),
    "inputs": (
        lambda: pretok.build_vocab("data/en", "new"),
        "pretok.build_vocab: 'data/en' is not the path of a recipe (.toml); give inputs by the names of their sources, "
        "such as {'it': 'data/en'}",
    ),
    "no vocabulary": (
        lambda: pretok.tokenize({"it": "it.jsonl"}, "new", vocab="nowhere"),
        "no tokenizer at nowhere, which does not exist: train one with pretok build-vocab, or name another with vocab=",
    ),
    "a small one": (
        lambda: pretok.build_vocab({"it": "it.jsonl"}, "new", size="50k", workers=0, quiet=True),
        "the vocabulary has 376 entries, not the 50,000 asked for: no two tokens are left to merge inside any word. "
        "Give more text, or accept this one with size=376 (size in a recipe)",
    ),
    "workers": (
        lambda: pretok.tokenize({"it": "it.jsonl"}, "new", vocab="vocab", workers="two"),
        "workers='two': give a whole number, such as 4, or 0 to work in this process",
    ),
    "position": (
        lambda: stream.open("ok/shards", seq_len=16)["a"],
        "position 'a' is neither a whole number nor a slice of them",
    ),
    "positions": (
        lambda: stream.open("ok/shards", seq_len=16)["a":],
        "position slice('a', None, None) is neither a whole number nor a slice of them",
    ),
    "batch": (lambda: Loader(stream.open("ok/shards", seq_len=16), 0), "micro_batch = 0: give at least 1"),
    "ranks": (lambda: Loader(stream.open("ok/shards", seq_len=16), 2, ranks=0), "ranks = 0: give at least 1"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_message_of_a_call(name: str, work: Path) -> None:
    call, text = CALLS[name]
    with pytest.raises(Exception) as raised:  # noqa: PT011 - by its text
        call()
    assert str(raised.value).replace(str(work), "{work}") == text


def test_a_text_in_place_of_a_number(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("pretok verify ok --workers two") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "Error: Invalid value for '--workers': give a whole number, such as 4"


def test_loops_that_may_not_be_compiled_are_no_bug(work: Path) -> None:
    command = ["tokenize", "it=it.jsonl", "--out", "uncompiled", "--vocab", "vocab", "--workers", "0"]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    line = [sys.executable, "-m", "pretok", *command]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    says = "NUMBA_DISABLE_JIT is set, but the loops of pretok must be compiled: unset it\n"
    assert f"it-00000: {says}" in done.stderr
    assert "bug" not in done.stderr
