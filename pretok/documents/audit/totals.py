"""Show the exact counts in a manifest, as a table and as JSON, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pretok.base.console import Console, table
from pretok.base.units import plural
from pretok.read.rejects_file import most_in
from pretok.shards.inputs import load_inputs
from pretok.shards.manifest import SPLITS, Manifest, SourceCounts, load_manifest
from pretok.shards.unfinished import incomplete, refuse_unfinished


def stats_of(shards: Path) -> dict[str, Any]:
    """Return what `pretok status --json` prints of shards.

    incomplete: sentences on what is missing; history: earlier states of the folder, the oldest first; root: over all
    files. Raises IntegrityError.
    """
    manifest = _load(shards)
    named = ("totals", "sources", "tokenizer", "history", "fingerprint", "root")
    return {
        **{name: getattr(manifest, name) for name in named},
        "incomplete": incomplete(manifest),
    }


def show_stats(shards: Path, console: Console, *, result: bool = False) -> None:
    """Show the counts per source and split, rejects by reason, and what is missing; `result` as in `Console.show`."""
    manifest = _load(shards)
    rows = [
        row
        for name, counts in [*manifest.sources.items(), ("total", manifest.totals)]
        for row in _rows(name, counts)
    ]
    columns = ("source", "tokens", "documents", "bytes of text", "bytes/token", "rejected")
    console.show(table(str(shards), columns, rows), result=result)
    for name, counts in manifest.sources.items():
        for split, part in (("", counts.train), (" (val)", counts.val)):
            if part.kinds is not None and part.tokens:
                kinds = ", ".join(f"{kind} {number:,}" for kind, number in part.kinds.items())
                share = f"{part.learned / part.tokens:.1%}"
                console.notice(
                    f"learned in {name}{split}: {part.learned:,} tokens, {share}; tokens by kind: {kinds}"
                )
        if counts.rejected:
            reasons = ", ".join(f"{reason} {number:,}" for reason, number in counts.rejected.items())
            console.notice(
                f"rejected in {name}: {reasons}; listed in {', '.join(map(str, manifest.rejects(name)))}"
            )
        for column, number in counts.mismatches.items():
            console.notice(
                f"{name}: {plural(number, 'value')} of {column} of another type, null in the ledger"
            )
        files = load_inputs(manifest, name).remarks() if counts.remarks else {}
        for remark, number in counts.remarks.items():
            where = most_in(files[remark])
            console.notice(f"{name}: {plural(number, 'document')} of tokens {remark}: {where}")
    for event in manifest.history:
        if (gone := event.removal) is not None:
            console.notice(
                f"removed {gone.at}, {plural(gone.documents, 'document')} of {plural(gone.tokens, 'token')}: "
                f"{gone.reason} (fingerprint before {event.fingerprint})"
            )
            continue
        was = manifest.was(event.fingerprint)
        tokens = sum(shard.tokens for shard in was.shards) if was else 0
        console.notice(
            f"grown from {plural(tokens, 'token')} of {', '.join(event.shards)} (fingerprint {event.fingerprint})"
        )
    for sentence in incomplete(manifest):
        console.notice(sentence)
    console.show(f"fingerprint {manifest.fingerprint}, root {manifest.root}", result=result)


def _load(shards: Path) -> Manifest:
    refuse_unfinished(shards)
    return load_manifest(shards)


def _rows(name: str, counts: SourceCounts) -> list[tuple[str, ...]]:
    """Return a line for each split of a source that holds documents."""
    return [
        (
            name if split == "train" else f"{name} (val)",
            f"{part.tokens:,}",
            f"{part.documents:,}",
            f"{part.bytes:,}",
            f"{part.bytes / part.tokens:.3f}" if part.tokens else "-",
            f"{sum(counts.rejected.values()) if split == 'train' else 0:,}",
        )
        for split, part in zip(SPLITS, (counts.train, counts.val), strict=True)
        if split == "train" or part.documents
    ]
