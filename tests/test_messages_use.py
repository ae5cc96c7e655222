"""What a person reads after a mistake with what is made: command lines with their exit codes and exact texts.

The cases are written as in `test_messages`. In a text `{torch}` is torch's version, and `{manifest}`, `{mix}`,
`{other}` are the fingerprints of ok/shards, ok/mix.json, other.json.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support import write_inputs
from test_messages import MAKE, MIX, check, each
from train_support import SIZES, leave_torch_alone

import train.__main__
from pretok.cli import run_command
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_file import load_mix

Say = Callable[[str], tuple[int, str]]

TRAIN = "train --shards ok/shards --mix ok/mix.json --model tiny.toml --out run --steps 4 --workers 0"

CASES = """
2 pretok mix gone/shards --out gone/mix.json --seq-len 16
pretok: {work}/gone/shards/en/en-00000.bin is missing; run pretok verify {work}/gone/shards

0 train --shards ok/shards --mix ok/mix.json --model tiny.toml --out cpu --steps 1 --workers 0
warning: no GPU was found (torch {torch}): training on the CPU. For a GPU install the CUDA build of torch

2 train --shards ok/shards --mix ok/nomix.json --model tiny.toml --out r
train: ok/nomix.json does not exist; name a mix, or make it with pretok mix

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
to repair, restore the files from a copy, or delete cut/shards and run what made it again

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
pretok: no row of norows.jsonl matches a document: the rows have keys like id 'nope-1', the documents like id 'en0'
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
    """vocab/; it.jsonl, en.jsonl, rows.jsonl; ok/shards and ok/mix.json of it and en; run, which read the mix."""
    work = tmp_path_factory.mktemp("messages")
    write_inputs(work)
    shutil.copytree(vocab_dir, work / "vocab")
    (work / "empty.jsonl").touch()
    (work / "norows.jsonl").write_text('{"id": "nope-1", "score": 7}\n')
    (work / "tiny.toml").write_text(SIZES.format(tied="true"))
    (work / "big.toml").write_text(SIZES.format(tied="true").replace("layers = 2", "layers = 3"))
    with pytest.MonkeyPatch.context() as patch:
        leave_torch_alone(patch.setattr)
        patch.setenv("COLUMNS", "200")
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.version, "cuda", None)
        patch.chdir(work)
        other = "mix ok/shards --out other.json --weights it=0.8,en=0.2 --seq-len 16"
        made = [*(f"pretok {line}" for line in (MAKE, MIX, other)), TRAIN]
        assert [ended(line) for line in made] == [0] * 4
        for name in ("gone", "cut"):
            shutil.copytree("ok/shards", f"{name}/shards")
        Path("gone/shards/en/en-00000.bin").unlink()
        os.truncate("cut/shards/en/en-00000.idx", 100)
        yield work


@pytest.fixture
def say(work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Exit code and standard error of a command line typed in the work folder."""

    def said(line: str) -> tuple[int, str]:
        capsys.readouterr()
        code, said = ended(line), capsys.readouterr()
        text = said.err + ("" if code else said.out)  # `train` says all but errors on standard output
        for name, value in (
            ("work", str(work)),
            ("torch", torch.__version__),
            ("manifest", load_manifest(work / "ok" / "shards").fingerprint),
            ("mix", load_mix(work / "ok" / "mix.json").fingerprint),
            ("other", load_mix(work / "other.json").fingerprint),
        ):
            text = text.replace(value, f"{{{name}}}")
        return code, re.sub(r"in [\d.]+ s\n", "in {seconds} s\n", text).rstrip()

    return said


@each(CASES)
def test_a_message(line: str, code: int, text: str, say: Say) -> None:
    check(code, text, *say(line))
