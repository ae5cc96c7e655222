"""Shards written today equal those in `tests/golden`, byte for byte, and what is there is read.

What is there is made again only when the version of its format rises.

`documents.jsonl` holds prose, texts that pre-tokenizers get wrong, every escape and every kind of bad line.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from runpy import run_path

import pytest
import zstandard
from mixing import request

import pretok.stream
from pretok.base.console import Console
from pretok.base.execute import Engine
from pretok.config import make_recipe
from pretok.documents.audit.verify_job import notes, run_verify
from pretok.shards.manifest import load_manifest
from pretok.shards.tokenize_job import run_tokenize
from pretok.stream.mix_job import run_mix

GOLDEN = Path(__file__).parent / "golden"
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "jsonl": lambda data: data,
    "jsonl.gz": gzip.compress,
    "jsonl.zst": zstandard.ZstdCompressor().compress,
}


def test_golden_files_of_a_release_stay(tmp_path: Path) -> None:
    """Those that .ci/release --tag has listed; one that was changed, or is gone, is named."""
    release = run_path(str(GOLDEN.parents[1] / ".ci" / "release"))
    assert release["changed"]() == []
    copy = shutil.copytree(GOLDEN, tmp_path / "golden")
    (copy / "released.json").write_text(json.dumps({"1.0": release["digests"](copy)}))
    assert release["changed"](copy) == []
    (copy / "mix.json").write_text("{}")
    (copy / "counts.json").unlink()
    assert release["changed"](copy) == ["counts.json", "mix.json"]


def test_all_places_name_one_version() -> None:
    release = run_path(str(GOLDEN.parents[1] / ".ci" / "release"))
    assert set(release["versions"]().values()) == {pretok.__version__}


def golden_shards(folder: Path) -> Path:
    """A copy of the shards."""
    others = shutil.ignore_patterns("documents.jsonl", "counts.json", "mix.json", "checkpoints.tar.xz")
    return shutil.copytree(GOLDEN, folder, ignore=others)


def test_shards_of_this_version_are_read(tmp_path: Path, here: Engine) -> None:
    shards = golden_shards(tmp_path / "shards")
    manifest = load_manifest(shards)
    assert manifest.fingerprint == "7e1892c1d3dd4ffb63f2165a29350628"
    assert run_verify(shards, None, here, Console())[1] == notes(manifest) == []
    view = pretok.stream.open(shards, GOLDEN / "mix.json")
    assert (view.fingerprint, len(view)) == ("e48033902d85b1bb1b08ebfefccccf1f", 380)
    run_mix(shards, tmp_path / "mix.json", request("all:natural", seq_len=16, seed=7))
    made, stored = (json.loads((folder / "mix.json").read_text()) for folder in (tmp_path, GOLDEN))
    assert {**made, "report": None} == {**stored, "report": None}
    lines = (GOLDEN / "documents.jsonl").read_bytes().split(b"\n")
    rows = pretok.open(shards).texts(columns=["position"]).read_all().to_pylist()
    assert len(rows) == manifest.totals.documents
    assert [row["text"] for row in rows] == [json.loads(lines[row["position"] - 1])["text"] for row in rows]


@pytest.mark.parametrize("suffix", PACKED)
def test_shards_are_those_of_this_version(tmp_path: Path, here: Engine, suffix: str) -> None:
    path = tmp_path / f"documents.{suffix}"
    path.write_bytes(PACKED[suffix]((GOLDEN / "documents.jsonl").read_bytes()))
    data = {
        "out": tmp_path,
        "sources": {"docs": {"inputs": [str(path)]}},
        "vocab": {"path": GOLDEN / "tokenizer.json"},
        "shards": {"val_fraction": "0.2", "max_reject_share": "0.2"},
    }
    run_tokenize(make_recipe(data, "test"), here, Console())
    written = {p.name: p.read_bytes() for p in (tmp_path / "shards" / "docs").glob("*.[bin]*")}
    expected = {p.name: p.read_bytes() for p in (GOLDEN / "docs").glob("*.[bin]*")}
    assert sorted(written) == sorted(expected)
    assert [name for name in expected if written[name] != expected[name]] == []
    counts = load_manifest(tmp_path / "shards").data["sources"]["docs"]
    assert counts == json.loads((GOLDEN / "counts.json").read_text(encoding="utf-8"))
