"""Where documents are used: which mixes read them and how often, and which other files hold them.

Input: a manifest and a Selection. Output: `Reach`. Mixes, exports, materialized mixes and counts are searched beside
the shards and in the folders there; files elsewhere are not known. Nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from pretok.base.console import Console, table
from pretok.base.errors import PretokError
from pretok.base.storage import read_json
from pretok.base.tokens import Ints
from pretok.counts.counts_file import FILE_NAME as COUNTS
from pretok.disclosure.read import read_mix
from pretok.removal.select import Selection
from pretok.shards.manifest import Manifest, has_manifest, load_manifest
from pretok.stream.mix_file import mixes_beside

EXPORT_FILE = "export.json"


@dataclass(frozen=True, slots=True)
class SourceReach:
    """Documents of one split of a source. copies: those that have only the same text as a chosen document."""

    source: str
    split: str
    documents: int
    copies: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MixReach:
    """documents: those that the mix reads at all; tokens: tokens read of them, with repetitions."""

    mix: str
    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Reach:
    """documents, tokens: in total; holds: sentences on other files that hold, or may hold, something of them and do not
    change, with the command to run."""

    documents: int
    tokens: int
    sources: tuple[SourceReach, ...]
    mixes: tuple[MixReach, ...]
    holds: tuple[str, ...]


NOTHING = Reach(0, 0, (), (), ())


def reach_of(manifest: Manifest, selection: Selection) -> Reach:
    """Find where the documents of a selection are used. Raises IntegrityError."""
    if not selection.chosen:
        return NOTHING
    # Bounds of the documents among the tokens of their source and split.
    starts, before = dict[str, Ints](), Counter[tuple[str, str]]()
    for shard in manifest.shards:
        if shard.path in {one.shard.path for one in selection.chosen}:
            starts[shard.path] = before[shard.source, shard.split] + shard.open().offsets
        before[shard.source, shard.split] += shard.tokens
    sums: dict[tuple[str, str], Ints] = {}
    for one in selection.chosen:
        tokens = np.diff(starts[one.shard.path])[one.rows].sum()
        more = np.array([len(one.rows), one.copies, tokens, one.sizes.sum()])
        key = one.shard.source, one.shard.split
        sums[key] = sums.get(key, 0) + more
    parts = tuple(SourceReach(*key, *numbers.tolist()) for key, numbers in sums.items())
    mixes, holds = list[MixReach](), list[str]()
    for path, _ in mixes_beside(manifest):
        try:
            extent = read_mix(manifest, path)
        except PretokError as error:  # such as a side file that is missing
            holds.append(f"{path} may read them, which cannot be told: {error}")
            continue
        read = [
            extent.sources[one.shard.source].tokens(starts[one.shard.path])[one.rows]
            for one in selection.chosen
            if one.shard.split == extent.split and one.shard.source in extent.sources
        ]
        every = np.concatenate([np.zeros(0, np.int64), *read])
        mixes.append(MixReach(str(path), int(np.count_nonzero(every)), int(every.sum())))
    return Reach(
        documents=sum(part.documents for part in parts),
        tokens=sum(part.tokens for part in parts),
        sources=parts,
        mixes=tuple(mixes),
        holds=(*holds, *_holds(manifest)),
    )


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


def tell_reach(reach: Reach, console: Console, *, done: bool) -> None:
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
    for mix in reach.mixes:
        console.notice(
            f"{mix.mix} reads {mix.documents:,} of the documents, {mix.tokens:,} tokens with repetitions; it "
            f"{'stays' if done else 'would stay'} valid, with EOD in their place"
            if mix.documents
            else f"{mix.mix} reads none of them"
        )
    for sentence in reach.holds:
        console.notice(sentence)
