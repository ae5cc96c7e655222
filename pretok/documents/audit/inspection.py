"""inspect: one document as its tokens, and the line or row of the input it came from.

Input: SHARDS, a source, a split and the number of a document in it. Output: an Inspection. The tables that lead back
to the input are compared with their checksums first, so that a damaged table cannot name a wrong line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pretok.base.errors import IntegrityError, UsageError
from pretok.shards.annotations import open_annotations
from pretok.shards.document_table import chosen_shards, documents_at
from pretok.shards.ledger import SCHEMA
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.shards.spans import ShardSpans
from pretok.shards.texts import load_vocabulary
from pretok.tokenizer.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Inspection:
    """A document: where its tokens are, where its text came from, and its tokens."""

    shard: str
    document: int
    file: str
    position: int
    """Line or row of the file, from 1."""
    ids: list[int]
    tokens: list[str]
    kept: dict[str, Any]
    """Its kept and joined columns."""
    kinds: list[str] | None = None
    """The kind of each token, in a conversation."""


def run_inspect(shards: Path, source: str, document: int, split: str = "train") -> Inspection:
    """Return document `document` (from 0) of a source's split.

    Raises UsageError if there is no such document, IntegrityError for damaged files.
    """
    manifest = load_manifest(shards)
    shard, number = find_shard(manifest, source, split, document)
    reader = shard.open()
    ids, vocab = np.asarray(reader[number]), load_vocabulary(manifest)
    if not vocab.holds(ids):
        raise IntegrityError(f"{shard.bin_path}: document {number} has ids of no token; see pretok verify")
    (row,) = documents_at(manifest, shard, [number], open_annotations(manifest))
    kept = {name: value for name, value in row.items() if name not in (*SCHEMA.names, "position")}
    kinds = None
    if shard.kinds is not None:
        manifest.check(shard.spans_path)
        spans = ShardSpans(shard.spans_path).document(reader.offsets, number)
        kinds = [kind for _, count, kind in spans for _ in range(count)]
    listed = ids.tolist()
    texts = token_texts(vocab, listed)
    return Inspection(str(shard.bin_path), number, row["file"], row["position"], listed, texts, kept, kinds)


def find_shard(manifest: Manifest, source: str, split: str, document: int) -> tuple[Shard, int]:
    """Return the shard of document `document` of a source's split, and its number there.

    Raises UsageError if there is none.
    """
    for shard, before in chosen_shards(manifest, source, split):
        if before <= document < before + shard.documents:
            return shard, document - before
    counts = manifest.sources[source]
    raise UsageError(
        f"source {source} has {counts.train.documents} train and {counts.val.documents} val documents, each numbered "
        f"from 0; there is no {split} document {document}"
    )


def token_texts(vocab: Vocabulary, ids: Sequence[int]) -> list[str]:
    """Return each token as text; a token that is part of a character shows its bytes."""
    return [vocab.token_bytes(i).decode("utf-8", "backslashreplace") for i in ids]
