"""The main job on real text, by the commands of the README, and its shards through readers that are not ours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from mixing import cut_of
from support import needs
from tokenizers import Tokenizer

import pretok.stream
from pretok.cli import run_command
from pretok.read.files import read_bytes
from pretok.stream import audit

pytestmark = [pytest.mark.corpus, pytest.mark.timeout(600)]

EVERY = 40
"""One document in so many is encoded again by `tokenizers`, which makes 1.3 MB/s."""


@pytest.fixture(scope="module")
def work(corpus, tmp_path_factory, ray_address) -> Path:
    """The main job with two workers and 50,000 entries; asserts every exit code."""
    out = tmp_path_factory.mktemp("corpus")
    inputs = [f"it={corpus}/it/*.jsonl.zst", f"en={corpus}/en/*.jsonl.zst"]
    engine = ["--workers", "2", "--address", ray_address]
    assert run_command(["build-vocab", *inputs, "--out", str(out), "--vocab-size", "50000", *engine]) == 0
    assert run_command(["tokenize", *inputs, "--out", str(out), *engine]) == 0
    assert run_command(["verify", str(out / "shards"), *engine]) == 0
    return out


@pytest.fixture(scope="module")
def expected(corpus, work) -> dict[str, dict[int, list[int]]]:
    """Per source: number of a document in file order -> its ids by `tokenizers`, for one document in EVERY."""
    tokenizer = Tokenizer.from_file(str(work / "vocab" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    assert tokenizer.get_vocab_size() == 50_000
    found: dict[str, dict[int, list[int]]] = {}
    for source in ("it", "en"):
        paths = sorted((corpus / source).glob("*.jsonl.zst"))
        lines = [line for path in paths for line in b"".join(read_bytes(str(path), "zstd")).splitlines()]
        texts = {number: json.loads(lines[number])["text"] for number in range(0, len(lines), EVERY)}
        found[source] = {n: tokenizer.encode(text, add_special_tokens=False).ids for n, text in texts.items()}
    return found


def prefixes(work: Path, source: str) -> list[Path]:
    """Shards of a source in stream order, from the manifest read as plain JSON."""
    manifest = json.loads((work / "shards" / "manifest.json").read_text())
    paths = [shard["path"] for shard in manifest["shards"] if shard["source"] == source]
    return [work / "shards" / path.removesuffix(".bin") for path in paths]


@pytest.mark.parametrize("source", ["it", "en"])
def test_numpy_alone_reads_the_ids_tokenizers_gives(work, expected, source):
    """From the format's description alone: a memmap of uint16, cut at the end-of-document token."""
    number = 0
    for prefix in prefixes(work, source):
        tokens = np.memmap(f"{prefix}.bin", "<u2", "r")
        ends = np.flatnonzero(tokens == 0)
        for start, end in zip([0, *(ends[:-1] + 1)], ends, strict=True):
            if number in expected[source]:
                assert tokens[start:end].tolist() == expected[source][number]
            number += 1
    assert number > max(expected[source])


@pytest.mark.parametrize("source", ["it", "en"])
@pytest.mark.peers
def test_megatron_reads_the_ids_tokenizers_gives(work, expected, source):
    megatron = needs("megatron.core.datasets.indexed_dataset")
    number = 0
    for prefix in prefixes(work, source):
        dataset = megatron.IndexedDataset(str(prefix), mmap=True)
        for at in range(len(dataset)):
            if number in expected[source]:
                assert dataset[at].tolist() == [*expected[source][number], 0]
            number += 1
        assert dataset.document_indices[-1] == len(dataset)
    assert number > max(expected[source])


def test_counts_are_those_of_the_text(corpus, work):
    totals = json.loads((work / "shards" / "manifest.json").read_text())["sources"]
    for source in ("it", "en"):
        texts = [
            json.loads(line)["text"]
            for path in sorted((corpus / source).glob("*.jsonl.zst"))
            for line in b"".join(read_bytes(str(path), "zstd")).splitlines()
        ]
        assert totals[source]["documents"] == len(texts)
        assert totals[source]["bytes"] == sum(len(text.encode()) for text in texts)
        assert totals[source]["rejected"] == {}


def test_every_token_but_those_at_the_ends_is_read_in_every_epoch(work):
    length, epochs = 2048, 3
    out, shards = str(work / "epochs.json"), str(work / "shards")
    held = {s: sum(np.memmap(f"{p}.bin", "<u2", "r").size for p in prefixes(work, s)) for s in ("it", "en")}
    budget = min(held.values()) * epochs  # of each, at equal weights
    asked = ["--tokens", str(2 * budget), "--weights", "it=0.5,en=0.5", "--seq-len", str(length)]
    assert run_command(["mix", shards, "--out", out, *asked, "--max-epochs", "4"]) == 0
    view = pretok.stream.open(shards, out)
    given = view.prefix_counts(len(view))
    checked = 0
    for source in view.mix.sources:
        flat = np.concatenate([np.fromfile(f"{p}.bin", "<u2") for p in prefixes(work, source.name)])
        for epoch in range(given[source.name] // source.sequences):
            drawn = audit.drawn(view, source.name, epoch * source.sequences, (epoch + 1) * source.sequences)
            assert np.array_equal(np.sort(drawn), np.arange(source.sequences))
            first = cut_of(view, source.name, epoch)
            assert 0 <= first < length
            assert 0 < source.tokens - first - source.sequences * length <= 2 * length
            for index in (0, source.sequences // 2, source.sequences - 1):
                start = first + index * length
                rows = audit.positions(view, source.name, start + 1, start + 2)
                [position] = rows[rows[:, 1] == epoch][:, 0].tolist()
                assert np.array_equal(view[position], flat[start : start + length + 1])
            checked += 1
    assert checked >= epochs
