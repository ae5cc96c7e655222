"""Documents by what they say, and documents at random.

Enters: a manifest. Leaves: places, as `audit.find` gives them. A search decodes shards one after the other, so it is
bounded and tells how far it came; a draw is uniform over all documents of the sources asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from pretok.audit.find import Place
from pretok.base.errors import UsageError
from pretok.base.units import short_bytes
from pretok.shards.documents import chosen_shards
from pretok.shards.manifest import Manifest
from pretok.shards.texts import load_decoder, shard_texts


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
            return f"looked at all {short_bytes(self.all_bytes)} of text"
        return (
            f"looked at the first {short_bytes(self.looked_bytes)} of {short_bytes(self.all_bytes)} of text"
        )


def search_text(
    manifest: Manifest, source: str | None, split: str | None, wanted: str, most: int, within: int
) -> Searched:
    """The first `most` documents that hold a text as it is spelled, looking at `within` bytes of text (and the few
    megabytes that are decoded together). Raises UsageError for a source that is not there, IntegrityError."""
    shards = chosen_shards(manifest, source, split)
    sizes = {entry.path: entry.text_bytes for entry in manifest.contents.shards}
    all_bytes = sum(sizes[str(shard.path.relative_to(manifest.folder))] for shard, _ in shards)
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
