"""verify finds what is wrong and names the file; stats and inspect tell what is there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from mixing import request
from tokenizing import make_work

from pretok.base.console import Console
from pretok.base.records import read_record
from pretok.cli import run_command
from pretok.documents.audit.verify_job import run_verify
from pretok.shards.manifest import Manifest, load_manifest, write_manifest
from pretok.shards.shard_file import ShardReader
from pretok.shards.writer import ShardWriter

HEAD = ("format", "version", "fingerprint", "seal")
"""Keys of a manifest that follow from the others."""


@pytest.fixture(scope="module")
def sealed(tmp_path_factory, vocab_dir) -> Path:
    """A shards folder of several shards, a validation shard and rejects."""
    lines = [{"text": f"La riga numero {i} è l'{i}ª. " * 12} for i in range(300)]
    rows = {"it": [*lines[:5], "{", *lines[6:]]}
    return make_work(tmp_path_factory.mktemp("sealed"), vocab_dir, rows).shards_dir


@pytest.fixture
def shards(sealed, tmp_path) -> Path:
    """A copy to damage."""
    return shutil.copytree(sealed, tmp_path / "shards")


def problems(shards: Path, here, sample: int | None = 20) -> str:
    return "\n".join(run_verify(shards, sample, here, Console())[1])


def reseal(shards: Path, change) -> None:
    """Apply `change` to the manifest and seal its new contents, as a faulty writer would."""
    data = json.loads((shards / "manifest.json").read_text())
    change(data)
    body = {key: value for key, value in data.items() if key not in HEAD}
    write_manifest(shards, read_record(Manifest, body, "test"))


@pytest.mark.parametrize("sample", [0, 20, None])
def test_what_is_sealed_has_no_problems(sealed, here, sample):
    assert len(load_manifest(sealed).shards) > 3
    assert problems(sealed, here, sample) == ""


@pytest.mark.usefixtures("few_buckets")
def test_counts_and_mix_of_a_work_folder_are_checked(tmp_path, monkeypatch, vocab_dir, here):
    monkeypatch.chdir(tmp_path)
    for command in (
        "count it=sample:it --out w --workers 0",
        f"tokenize it=sample:it --out w --vocab {vocab_dir} --workers 0",
        "mix w/shards --out w/mix.json --seq-len 16",
    ):
        assert run_command(command.split()) == 0
    assert problems(Path("w"), here) == ""
    for pattern in ("counts/bucket-*.parquet", "counts/heldout.parquet", "counts/counts.json", "mix.json"):
        path = min(Path("w").glob(pattern))
        whole = path.read_bytes()
        path.write_bytes(whole[:-40] + bytes(39))
        assert f"{path}" in problems(Path("w"), here)
        assert problems(Path("w/shards"), here) == ""
        path.write_bytes(whole)


def test_shortened_and_swapped_files_are_named(shards, here):
    first, second, third, *_ = load_manifest(shards).shards
    first.bin_path.write_bytes(first.bin_path.read_bytes()[:-2])
    for one, other in ((second.bin_path, third.bin_path), (second.index_path, third.index_path)):
        data = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(data)
    found = problems(shards, here)
    for path in (first.bin_path, second.prefix, third.prefix):
        assert path.name in found


def test_totals_and_counts_are_added_up(shards, here):
    reseal(shards, lambda data: data["sources"]["it"].update(read=299))
    assert "it read 299, wrote 299, rejected 1; its inputs gave 300, of which 1" in problems(shards, here)
    reseal(shards, lambda data: data["totals"].update(tokens=7))
    assert "totals is {'tokens': 7," in problems(shards, here)
    reseal(shards, lambda data: data["sources"]["it"]["train"].update(bytes=7))
    assert re.search("it is {.*'bytes': 7", problems(shards, here))


@pytest.mark.parametrize(
    ("at", "wrong", "message"),
    [
        (0, "unmerged", "does not encode to its ids again"),
        (3, [0], "end-of-document tokens for"),
        (0, [0], "are removed, the manifest says 0 of 0"),
        (0, [1500], "not below the vocabulary size"),
    ],
)
def test_wrong_tokens_with_right_roots_are_found(shards, here, at, wrong, message):
    """As a faulty encoder would leave them: sealed, but not what the text encodes to."""
    prefix = load_manifest(shards).shards[0].prefix
    reader = ShardReader(prefix)
    documents = [np.array(reader[i]) for i in range(len(reader))]
    if wrong == "unmerged":
        model = json.loads((shards / "tokenizer.json").read_text())["model"]
        wrong = [model["vocab"][part] for part in model["merges"][0]]
    documents[0][at : at + len(wrong)] = wrong
    with ShardWriter(prefix, reader.dtype) as writer:
        writer.append(np.concatenate(documents), reader.lengths)
        sealed, _ = writer.seal("docs", "train")
    roots = {"root": sealed.root, "index_root": sealed.index_root}
    reseal(shards, lambda data: data["shards"][0].update(roots))
    assert message in problems(shards, here, None)


def test_another_tokenizer_is_found(shards, here):
    path = shards / "tokenizer.json"
    path.write_text(path.read_text().replace("<|reserved_0|>", "<|other|>"))
    assert "tokenizer.json: fingerprint" in problems(shards, here, 0)


def test_commands_on_shards(sealed, shards, capsys):
    assert run_command(["verify", str(sealed), "--workers", "0", "--sample", "70"]) == 0
    shown, printed = capsys.readouterr()
    assert re.search("verify: 299 documents, .* 70 encoded again", printed)
    said = r"of 299 documents and [\d,]+ tokens match the manifest: .* of all, 70 documents encoded again"
    assert re.search(said, shown)
    assert run_command(["status", str(sealed), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["shards"]
    assert counts["sources"]["it"]["rejected"] == {"malformed_json": 1}
    assert counts["totals"]["documents"] == 299
    load_manifest(shards).shards[0].bin_path.unlink()
    assert run_command(["verify", str(shards), "--workers", "0", "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ok"] is False
    assert ".bin is missing" in captured.err


def test_a_materialized_mix_is_checked_too(sealed, here, tmp_path, capsys):
    from pretok.stream.materialize import run_materialize
    from pretok.stream.mix_job import run_mix

    run_mix(sealed, tmp_path / "mix.json", request("all:natural", seq_len=64))
    run_materialize(sealed, tmp_path / "mix.json", tmp_path / "mixed", here, Console())
    assert problems(tmp_path / "mixed", here, None) == ""
    for option in (["--sample", "3"], ["--full"]):
        assert run_command(["verify", str(tmp_path / "mixed"), "--workers", "0", *option]) == 2
        error = capsys.readouterr().err
        assert f"{option[0]}: nothing reads it of a materialized mix, which has no documents" in error
    assert run_command(["verify", str(tmp_path / "mixed"), "--workers", "0"]) == 0
    (shard,) = load_manifest(tmp_path / "mixed").shards
    data = bytearray(shard.bin_path.read_bytes())
    data[100] ^= 4
    shard.bin_path.write_bytes(data)
    assert f"{shard.bin_path} is damaged in bytes 0 to " in problems(tmp_path / "mixed", here, 0)
