"""docs/formats.md is enough to write a reader from: this one knows the page, JSON, numpy and SHA-256, and no pretok."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import EOD, ROOT, make_shards

from pretok.tokenizer.kinds import KINDS


def root(data: bytes) -> bytes:
    leaves = [sha256(b"\0" + data[at : at + 4096]).digest() for at in range(0, len(data), 4096)]

    def over(parts: list[bytes]) -> bytes:
        if len(parts) == 1:
            return parts[0]
        left = 1 << (len(parts) - 1).bit_length() - 1
        return sha256(b"\1" + over(parts[:left]) + over(parts[left:])).digest()

    return over(leaves) if leaves else sha256().digest()


def read(folder: Path) -> Iterator[tuple[str, str, Any, Any]]:
    """(source, split, ids, kinds or None) of each document, in the order of the stream."""
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    assert (manifest["format"], manifest["version"]) == ("pretok-shards", 8)
    dtype = {"uint16": "<u2", "int32": "<i4"}[manifest["tokenizer"]["dtype"]]
    for shard in manifest["shards"]:
        path = folder / shard["path"]
        index = path.with_suffix(".idx").read_bytes()
        assert (root(path.read_bytes()).hex(), root(index).hex()) == (shard["root"], shard["index_root"])
        assert (index[:9], index[17]) == (b"MMIDIDX\0\0", {"<u2": 8, "<i4": 4}[dtype])
        count = int(np.frombuffer(index, "<u8", 1, 18)[0])
        lengths = np.frombuffer(index, "<i4", count, 34)
        begins = np.frombuffer(index, "<i8", count, 34 + 4 * count) // np.dtype(dtype).itemsize
        tokens, kinds = np.fromfile(path, dtype), None
        assert (len(tokens), count) == (shard["tokens"], shard["documents"])
        if "kinds" in shard:
            spans = path.with_suffix(".spans").read_bytes()
            number = int(np.frombuffer(spans, "<u8", 1, 24)[0])
            ends = np.frombuffer(spans, "<i8", number, 32)
            kinds = np.repeat(np.frombuffer(spans, "u1", number, 32 + 8 * number), np.diff(ends, prepend=0))
        for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
            mine = slice(begin, begin + length)
            assert tokens[mine][-1] == manifest["tokenizer"]["eod_id"]
            yield shard["source"], shard["split"], tokens[mine], None if kinds is None else kinds[mine]


@pytest.mark.parametrize("vocab_size", [1000, 100_000])
def test_the_page_is_enough_to_read_shards(tmp_path: Path, vocab_size: int) -> None:
    train = {"it": [range(1, 900), [5], range(7, 9000 // 10)], "chat": [range(1, 40), range(3, 12)]}
    val = {"it": [[4, 4, 9]], "chat": [[8, 7]]}
    chats = {"chat": KINDS.index("answer")}
    shards = make_shards(tmp_path, train, val=val, vocab_size=vocab_size, documents_per_shard=2, chats=chats)
    found: dict[tuple[str, str], list[Any]] = {}
    for source, split, ids, kinds in read(shards):
        found.setdefault((source, split), []).append(ids.tolist())
        expected = [*((i - 1) % 7 for i in ids[:-1].tolist()), chats["chat"]] if source == "chat" else None
        assert (None if kinds is None else kinds.tolist()) == expected
    given = {(name, split): of[name] for split, of in (("train", train), ("val", val)) for name in of}
    assert found == {key: [[*document, EOD] for document in documents] for key, documents in given.items()}
    page = " ".join((ROOT / "docs" / "formats.md").read_text("utf-8").split())
    assert ", ".join(f"{n} {kind.replace('_', ' ')}" for n, kind in enumerate(KINDS)) in page
