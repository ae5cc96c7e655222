"""Documents by what they are called, by what they say, and at random.

Input: a manifest, and a name or words. Output: (source, split, number) of the documents that match, in the order of the
shards. A name is looked up in the ledgers of all shards. A search for words decodes shards one after the other, so it
is bounded and tells how far it came; a draw is uniform over all documents of the sources asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow.compute as pc

from pretok.base.errors import UsageError
from pretok.base.units import human_bytes
from pretok.shards.documents import chosen_shards
from pretok.shards.ledger import ledger_schema
from pretok.shards.manifest import Manifest
from pretok.shards.names import find_names, is_hash, lines_named
from pretok.shards.texts import load_decoder, shard_texts

Place = tuple[str, str, int]
"""(source, split, number of the document in it)"""


def find_named(manifest: Manifest, name: str, most: int) -> list[Place]:
    """The first `most` documents of a name (`shards.names`). Raises UsageError where it names none, or different
    documents in different ways."""
    return find_in([manifest], name, most)[0]


def find_in(manifests: Sequence[Manifest], name: str, most: int) -> list[list[Place]]:
    """`find_named` in each of several manifests; UsageError where none has the document."""
    found: dict[str, list[Place]] = {}
    for manifest in manifests:
        if manifest.fingerprint not in found:
            shards = chosen_shards(manifest)
            rows, _ = find_names(manifest, shards, [name])
            places = (
                (shard.source, shard.split, before + row)
                for shard, before in shards
                for row in rows[shard.path].tolist()
            )
            found[manifest.fingerprint] = list(islice(places, most))
    if not any(found.values()):
        raise _unknown(manifests[0], name)
    return [found[manifest.fingerprint] for manifest in manifests]


def _unknown(manifest: Manifest, name: str) -> UsageError:
    what = "no hash and no input with a line"
    if is_hash(name):
        what = "the hash of no text"
    elif lines_named(manifest, [name]):
        what = "a record that was rejected, or a line that is not there"
    kept = any("id" in ledger_schema(shard.ledger_path).names for shard in manifest.shards)
    id = "no kept id" if kept else "no ledger keeps a column id"
    return UsageError(f"{manifest.folder} has no document {name!r}: it is {what}, and {id}")


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search found and how far it looked. looked_bytes: of text, of `all_bytes`; whole: whether all of it was
    looked at, or as much as it took to find enough."""

    places: list[Place]
    looked_bytes: int
    all_bytes: int
    whole: bool

    def extent(self) -> str:
        """How far it looked, as part of a sentence."""
        if self.looked_bytes >= self.all_bytes:
            return f"looked at all {human_bytes(self.all_bytes)} of text"
        return (
            f"looked at the first {human_bytes(self.looked_bytes)} of {human_bytes(self.all_bytes)} of text"
        )


def search_text(
    manifest: Manifest, source: str | None, split: str | None, wanted: str, most: int, within: int
) -> Searched:
    """The first `most` documents that hold a text as it is spelled, looking at `within` bytes of text (and the few
    megabytes that are decoded together). Raises UsageError for a source that is not there, IntegrityError."""
    shards = chosen_shards(manifest, source, split)
    all_bytes = sum(shard.text_bytes for shard, _ in shards)
    decoder = load_decoder(manifest)
    places: list[Place] = []
    looked = 0
    for shard, before in shards:
        for first, texts in shard_texts(shard, decoder):
            if looked >= within:
                return Searched(places, looked, all_bytes, whole=False)
            looked += int(pc.sum(pc.binary_length(texts)).as_py())
            for row in pc.indices_nonzero(pc.match_substring(texts, wanted)).to_pylist():
                places.append((shard.source, shard.split, before + first + row))
                if len(places) == most:
                    return Searched(places, looked, all_bytes, whole=True)
    return Searched(places, looked, all_bytes, whole=True)


def random_places(
    manifest: Manifest, source: str | None, split: str | None, number: int, seed: int
) -> list[Place]:
    """`number` different documents, each as likely as any other, in the order of the shards; the same for the same
    seed. Raises UsageError where there are fewer."""
    shards = chosen_shards(manifest, source, split)
    ends = np.cumsum([shard.documents for shard, _ in shards])
    held = int(ends[-1]) if len(ends) else 0
    if number > held:
        raise UsageError(f"there are {held} documents, fewer than the {number} that were asked for")
    drawn = np.sort(np.random.default_rng(seed).choice(held, number, replace=False))
    places = []
    for at in drawn.tolist():
        which = int(np.searchsorted(ends, at, side="right"))
        shard, before = shards[which]
        places.append((shard.source, shard.split, before + at - (int(ends[which]) - shard.documents)))
    return places
