"""Find documents by name, by their text, and at random.

Input: a manifest, and a name or a text. Output: (source, split, number) of the documents that match, in the order of
the shards. A name is looked up in the ledgers of all shards. A search decodes one shard after the other up to the first
match. A random draw is uniform over all documents of the chosen sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pyarrow.compute as pc

from pretok.base.errors import UsageError
from pretok.shards.document_table import chosen_shards
from pretok.shards.manifest import Manifest
from pretok.shards.names import find_names
from pretok.shards.texts import load_decoder, shard_texts

Place = tuple[str, str, int]
"""(source, split, number of the document in it)"""


def find_named(manifest: Manifest, name: str, most: int) -> list[Place]:
    """Return the first `most` documents of a name (`shards.names`).

    Raises UsageError if there is none, or if the name fits different documents in different ways.
    """
    return find_in([manifest], name, most)[0]


def find_in(manifests: Sequence[Manifest], name: str, most: int) -> list[list[Place]]:
    """Do the same in each of several manifests. Raises UsageError if none has the document."""
    by_manifest: dict[str, list[Place]] = {}
    for manifest in manifests:
        if manifest.fingerprint not in by_manifest:
            shards = chosen_shards(manifest)
            rows, _ = find_names(manifest, shards, [name])
            places = (
                (shard.source, shard.split, before + row)
                for shard, before in shards
                for row in rows[shard.path].tolist()
            )
            by_manifest[manifest.fingerprint] = list(islice(places, most))
    if not any(by_manifest.values()):
        raise UsageError(
            f"{manifests[0].folder} has no document {name!r}: a name is the hash of a text, FILE:LINE of a record that "
            "was not rejected, or a value of the column id if one was kept"
        )
    return [by_manifest[manifest.fingerprint] for manifest in manifests]


def numbered(source: str, split: str | None, number: str) -> Place:
    """Return the place of a document by its number in a source, in text. Raises UsageError for another text."""
    if not number.isdecimal():
        raise UsageError(f"--doc {number}: with --source give a number from 0; for a name leave out --source")
    return source, split or "train", int(number)


def search_text(manifest: Manifest, source: str | None, split: str | None, wanted: str) -> Place:
    """Return the first document whose text contains `wanted`. All shards are decoded up to it.

    Raises UsageError if there is none, and for an unknown source or split; IntegrityError.
    """
    shards = chosen_shards(manifest, source, split)
    decoder = load_decoder(manifest)
    for shard, before in shards:
        for first, texts in shard_texts(shard, decoder):
            rows = pc.indices_nonzero(pc.match_substring(texts, wanted))
            if len(rows):
                return shard.source, shard.split, before + first + rows[0].as_py()
    raise UsageError(f"no document contains {wanted!r}")


def random_places(
    manifest: Manifest, source: str | None, split: str | None, number: int, seed: int
) -> list[Place]:
    """Draw `number` different documents, each as likely as any other; return them in the order of the shards.

    The same seed gives the same documents. Raises UsageError if there are fewer.
    """
    shards = chosen_shards(manifest, source, split)
    total = sum(shard.documents for shard, _ in shards)
    if number > total:
        raise UsageError(f"there are {total} documents, fewer than the {number} requested")
    rows = draw_documents([shard.documents for shard, _ in shards], number, seed)
    return [
        (shard.source, shard.split, before + row)
        for (shard, before), drawn in zip(shards, rows, strict=True)
        for row in drawn
    ]


def draw_documents(counts: Sequence[int], number: int, seed: int) -> list[list[int]]:
    """Draw `number` different documents of shards with so many; return the rows in each shard, rising."""
    ends = np.cumsum(counts)
    drawn = np.sort(np.random.default_rng(seed).choice(sum(counts), number, replace=False))
    parts = np.split(drawn, np.searchsorted(drawn, ends[:-1]))
    # Of no shards, `split` makes one part.
    return [(part - end + count).tolist() for part, end, count in zip(parts, ends, counts, strict=False)]
