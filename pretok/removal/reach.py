"""What documents are to others: in which mixes they are read and how often, and which files hold them too.

Input: a manifest and a Selection. Output: `Reach`. Mixes, exports, materialized mixes and counts are looked for beside
the shards and in the folders there: what lies elsewhere nobody can know. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pretok.base.console import Console, table
from pretok.base.errors import PretokError
from pretok.base.storage import read_json
from pretok.counts.counts_file import FILE_NAME as COUNTS
from pretok.counts.counts_file import load_counts
from pretok.disclosure.read import read_mix
from pretok.removal.select import Chosen, Selection
from pretok.screen.removed import find_removed
from pretok.shards.manifest import FILE_NAME, Manifest, has_manifest
from pretok.stream.mix_file import mixes_beside

EXPORT_FILE = "export.json"


@dataclass(frozen=True, slots=True)
class SourceReach:
    """Documents of one split of a source; copies: those among them that have the text of another that was meant."""

    source: str
    split: str
    documents: int
    copies: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MixReach:
    """documents: that a mix reads at all; tokens: read of them, repetitions counted; times: how often each of their
    tokens is read on average; unreadable: why nothing is known of a mix, such as a side file that is missing."""

    mix: str
    documents: int
    tokens: int
    times: float
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class Reach:
    """documents, tokens: in all; holds: sentences on other files that hold texts, tokens or words of them and are left
    as they are, with what to run."""

    documents: int
    tokens: int
    sources: tuple[SourceReach, ...]
    mixes: tuple[MixReach, ...]
    holds: tuple[str, ...]


def reach_of(manifest: Manifest, selection: Selection) -> Reach:
    """What a selection reaches. Raises IntegrityError."""
    offsets = {one.shard.path: one.shard.open().offsets for one in selection.chosen}
    sources: dict[tuple[str, str], list[int]] = {}
    for one in selection.chosen:
        lengths = np.diff(offsets[one.shard.path])[one.rows]
        sums = sources.setdefault((one.shard.source, one.shard.split), [0, 0, 0, 0])
        more = (len(one.rows), one.copies, int(lengths.sum()), int(one.sizes.sum()))
        sums[:] = [held + new for held, new in zip(sums, more, strict=True)]
    parts = tuple(SourceReach(*name, *sums) for name, sums in sources.items())
    return Reach(
        documents=sum(part.documents for part in parts),
        tokens=sum(part.tokens for part in parts),
        sources=parts,
        mixes=tuple(_mixes(manifest, selection.chosen, offsets)) if parts else (),
        holds=tuple(_holds(manifest, selection)) if parts else (),
    )


def _mixes(manifest: Manifest, chosen: tuple[Chosen, ...], offsets: dict[str, Any]) -> Iterator[MixReach]:
    """Every mix of these shards that lies beside their folder."""
    starts: dict[str, int] = {}
    sums: dict[tuple[str, str], int] = {}
    for shard in manifest.shards:
        key = shard.source, shard.split
        starts[shard.path] = sums.get(key, 0)
        sums[key] = starts[shard.path] + shard.tokens
    for path, _ in mixes_beside(manifest):
        try:
            extent = read_mix(manifest, path)
        except PretokError as error:
            yield MixReach(str(path), 0, 0, 0.0, unreadable=str(error))
            continue
        documents = tokens = held = 0
        for one in chosen:
            if one.shard.split != extent.split or one.shard.source not in extent.sources:
                continue
            bounds = starts[one.shard.path] + offsets[one.shard.path]
            read = extent.sources[one.shard.source].tokens(bounds)[one.rows]
            documents, tokens = documents + int((read > 0).sum()), tokens + int(read.sum())
            held += int(np.diff(bounds)[one.rows].sum())
        yield MixReach(str(path), documents, tokens, tokens / held if held else 0.0)


def _holds(manifest: Manifest, selection: Selection) -> Iterator[str]:
    """What is found near the shards and is not changed."""
    work = manifest.folder.parent
    for folder in sorted(path for pattern in ("*/", "*/*/") for path in work.glob(pattern)):
        if folder == manifest.folder or manifest.folder in folder.parents:
            continue
        with suppress(PretokError):
            if (folder / EXPORT_FILE).exists():
                data = read_json(folder / EXPORT_FILE)
                if isinstance(data, dict) and manifest.was(str(data.get("shards"))) is not None:
                    yield f"{folder} is an export that may hold their tokens: delete it and run pretok export again"
            elif has_manifest(folder):
                data = read_json(folder / FILE_NAME)
                mix = data.get("materialized") if isinstance(data, dict) else None
                if isinstance(mix, dict) and manifest.was(str(mix.get("manifest"))) is not None:
                    yield (
                        f"{folder} is a materialized mix that may hold their tokens: delete it and run pretok mix "
                        "--materialize again"
                    )
            elif (folder / COUNTS).exists():
                yield from _counted(folder, selection)
    for page in sorted(work.glob("*.html")):
        yield f"{page} was made before and may show them: make it again"


def _counted(folder: Path, selection: Selection) -> Iterator[str]:
    counts = load_counts(folder)
    texts = sum(
        int(find_removed(counts.heldout_texts(name), selection.hashes).sum()) for name in counts.sources
    )
    if texts:
        yield (
            f"{counts.heldout_path} holds {texts:,} of the texts, kept to compare tokenizers: "
            "delete the folder, or run pretok count again without them"
        )
    yield f"{folder} may have counted their words, which is not undone; nor is a vocabulary made of them"


def tell_reach(reach: Reach, console: Console, *, done: bool) -> None:
    """The same in words; done: whether it was removed."""
    rows = [
        (
            part.source if part.split == "train" else f"{part.source} (val)",
            f"{part.documents:,}",
            f"{part.copies:,}",
            f"{part.tokens:,}",
            f"{part.bytes:,}",
        )
        for part in reach.sources
    ]
    columns = ("source", "documents", "of them copies", "tokens", "bytes of text")
    console.show(table("removed" if done else "would be removed", columns, rows), result=True)
    for mix in reach.mixes:
        if mix.unreadable:
            console.notice(f"{mix.mix} may read them, which cannot be told: {mix.unreadable}")
            continue
        console.notice(
            f"{mix.mix} reads {mix.documents:,} of the documents, {mix.tokens:,} tokens, each {mix.times:.2f} times on "
            f"average; it {'stays' if done else 'would stay'} valid, with EOD in their place"
            if mix.documents
            else f"{mix.mix} reads none of them"
        )
    for sentence in reach.holds:
        console.notice(sentence)
