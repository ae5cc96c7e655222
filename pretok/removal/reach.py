"""What documents are to others: in which mixes they are read and how often, and which files hold them too.

Input: a manifest and a Selection. Output: `Reach`. Mixes, exports, materialized mixes and counts are looked for beside
the shards and in the folders there: what lies elsewhere nobody can know. Nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pretok.base.console import Console, table
from pretok.base.errors import PretokError
from pretok.base.storage import read_json
from pretok.base.tokens import Ints
from pretok.counts.counts_file import FILE_NAME as COUNTS
from pretok.disclosure.read import read_mix
from pretok.removal.select import Selection
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
    """documents: that a mix reads at all; tokens: read of them, repetitions counted."""

    mix: str
    documents: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Reach:
    """documents, tokens: in all; holds: sentences on other files that hold texts, tokens or words of them and are left
    as they are, with what to run, or of which nobody can tell."""

    documents: int
    tokens: int
    sources: tuple[SourceReach, ...]
    mixes: tuple[MixReach, ...]
    holds: tuple[str, ...]


NOTHING = Reach(0, 0, (), (), ())


def reach_of(manifest: Manifest, selection: Selection) -> Reach:
    """What a selection reaches. Raises IntegrityError."""
    if not selection.chosen:
        return NOTHING
    # Where each document begins and the last one ends among the tokens of its source and split.
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
    """What is found near the shards and is not changed."""
    work = manifest.folder.parent
    for folder in sorted(path for pattern in ("*/", "*/*/") for path in work.glob(pattern)):
        if folder == manifest.folder or manifest.folder in folder.parents:
            continue
        with suppress(PretokError):
            if (folder / EXPORT_FILE).exists():
                made_of = _value(folder / EXPORT_FILE, "shards")
                what, again = "an export that may hold their tokens", "pretok export"
            elif has_manifest(folder):
                made_of = _value(folder / FILE_NAME, "materialized", "manifest")
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


def _value(path: Path, *keys: str) -> Any:
    """What stands in a JSON file under some keys; None where nothing does."""
    value: Any = read_json(path)
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def tell_reach(reach: Reach, console: Console, *, done: bool) -> None:
    """The same in words; done: whether it was removed."""
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
