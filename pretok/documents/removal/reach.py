"""The number of documents that a removal takes, and the other files that contain parts of them.

Input: a manifest and a Selection. Output: `Reach`. It searches for exports, materialized mixes and counts next to the
shards and in the folders there, not elsewhere. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from pretok.base.console import Console, table
from pretok.base.errors import PretokError
from pretok.base.storage import read_json
from pretok.base.tokens import Ints
from pretok.documents.export import EXPORT_FILE
from pretok.documents.removal.select import Selection
from pretok.shards.manifest import Manifest, has_manifest, load_manifest
from pretok.vocab.counts.counts_file import FILE_NAME as COUNTS


@dataclass(frozen=True, slots=True)
class SourceReach:
    """Documents of one split of a source."""

    source: str
    split: str
    documents: int
    copies: int
    """Those that have only the same text as a chosen document."""
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Reach:
    """What a removal reaches, and what it does not."""

    documents: int
    """In total."""
    tokens: int
    """In total."""
    sources: tuple[SourceReach, ...]
    holds: tuple[str, ...]
    """Sentences on other files that contain, or may contain, parts of the documents and do not change, with the command
    to run."""


NOTHING = Reach(0, 0, (), ())


def reach_of(manifest: Manifest, selection: Selection) -> Reach:
    """Count the documents of a selection, and find files near the shards that contain parts of them."""
    if not selection.chosen:
        return NOTHING
    sums: dict[tuple[str, str], Ints] = {}
    for chosen in selection.chosen:
        more = np.array([len(chosen.rows), chosen.copies, chosen.tokens.sum(), chosen.sizes.sum()])
        key = chosen.shard.source, chosen.shard.split
        sums[key] = sums.get(key, 0) + more
    parts = tuple(SourceReach(*key, *numbers.tolist()) for key, numbers in sums.items())
    documents, tokens = sum(part.documents for part in parts), sum(part.tokens for part in parts)
    return Reach(documents, tokens, parts, tuple(_holds(manifest)))


def _holds(manifest: Manifest) -> Iterator[str]:
    """Yield sentences on files near the shards that are not changed."""
    work = manifest.folder.parent
    for folder in sorted(path for pattern in ("*/", "*/*/") for path in work.glob(pattern)):
        if folder == manifest.folder or manifest.folder in folder.parents:
            continue
        with suppress(PretokError, KeyError, TypeError):  # what cannot be read is not ours
            if (folder / EXPORT_FILE).exists():
                made_of = read_json(folder / EXPORT_FILE)["shards"]
                what, again = "an export that may hold their tokens", "pretok export"
            elif has_manifest(folder):
                made_of = (load_manifest(folder).materialized or {}).get("manifest")
                what, again = "a materialized mix that may hold their tokens", "pretok mix --materialize"
            elif (folder / COUNTS).exists():
                yield (
                    f"{folder} may have counted their words, as a vocabulary may be made of them, and keeps texts to "
                    "compare tokenizers: delete it, or run pretok count again without them"
                )
                continue
            else:
                continue
            if manifest.was(str(made_of)) is not None:
                yield f"{folder} is {what}: delete it and run {again} again"
    for page in sorted(work.glob("*.html")):
        yield f"{page} was made before and may show them: make it again"


def show_reach(reach: Reach, console: Console, *, done: bool) -> None:
    """Show the reach. done: whether the documents were removed."""
    rows = [
        (
            part.source if part.split == "train" else f"{part.source} (val)",
            *(f"{number:,}" for number in (part.documents, part.copies, part.tokens, part.bytes)),
        )
        for part in reach.sources
    ]
    columns = ("source", "documents", "of them copies", "tokens", "bytes of text")
    console.show(table("removed" if done else "would be removed", columns, rows), result=True)
    for sentence in reach.holds:
        console.notice(sentence)
