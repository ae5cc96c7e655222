"""Files of ours with any bytes changed: a reader gives what stands there or an error of the project, nothing else.

A row for each format. Flipped bits and forged values of each have tests of their own, which say what the error is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretok.base.errors import PretokError
from pretok.cli import run_command
from pretok.config.recipes import load_recipe
from pretok.counts.counts_file import load_counts
from pretok.shards.format import ShardReader
from pretok.shards.ledger import ledger_column
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_file import load_mix
from pretok.tokenizer.vocabulary import load_vocab

READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "manifest": ("shards/manifest.json", lambda path: load_manifest(path.parent)),
    "mix": ("mix.json", load_mix),
    "index": ("shards/it/it-00000.idx", lambda path: ShardReader(path.with_suffix("")).lengths),
    "ledger": ("shards/it/it-00000.docs.parquet", lambda path: ledger_column(path, "tokens")),
    "tokenizer": ("shards/tokenizer.json", lambda path: load_vocab(path).fingerprint),
    "counts": ("counts/counts.json", lambda path: load_counts(path.parent)),
    "recipe": ("recipe.toml", load_recipe),
}

STRANGE = [b"null", b"-1", b"1e999", b"[" * 5000, b'"\xff"', b"{}"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Path:
    work = tmp_path_factory.mktemp("parsers")
    (work / "it.jsonl").write_text("".join(json.dumps({"text": f"numero {n}"}) + "\n" for n in range(30)))
    (work / "recipe.toml").write_text('out = "w"\n[sources.it]\ninputs = ["it.jsonl"]\n[mix]\nseq_len = 16\n')
    given, here = (f"it={work}/it.jsonl", "--out", str(work)), ("--workers", "0")
    for line in (
        ("count", *given, *here),
        ("tokenize", *given, "--vocab", str(vocab_dir), *here),
        ("mix", str(work), "--out", f"{work}/mix.json", "--seq-len", "4"),
    ):
        assert run_command(list(line)) == 0
    return work


@pytest.mark.parametrize("kind", READERS)
@given(data=st.data())
def test_any_bytes_are_read_or_refused(work: Path, kind: str, data: st.DataObject) -> None:
    name, read = READERS[kind]
    path = work / name
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole)))
    size = data.draw(st.integers(0, 40) | st.just(len(whole)))
    put = data.draw(
        st.binary(max_size=20) | st.sampled_from([b"null", b"-1", b"1e999", b"[" * 5000, b'"\xff"', b"{}"])
    )
    try:
        path.write_bytes(whole[:at] + put + whole[at + size :])
        read(path)
    except PretokError:
        pass
    finally:
        path.write_bytes(whole)
