"""stats: the exact counts in a manifest, as a table and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pretok.console import notice, show, table
from pretok.manifest import load_manifest


def stats_json(shards: Path) -> dict[str, Any]:
    """Totals and per source: tokens, documents, bytes, rejected by reason, train and val; the tokenizer."""
    data = load_manifest(shards).data
    return {key: data[key] for key in ("totals", "sources", "tokenizer", "failed", "fingerprint")}


def show_stats(shards: Path, *, result: bool = False) -> None:
    """Print the counts per source and split, then rejects by reason; `result` as in `console.show`."""
    data = load_manifest(shards).data
    rows = []
    for name, counts in [*data["sources"].items(), ("total", data["totals"])]:
        for split in ("train", "val"):
            part = counts[split]
            if split == "val" and not part["documents"]:
                continue
            rejected = sum(counts["rejected"].values()) if split == "train" else 0
            rows.append(
                (
                    name if split == "train" else f"{name} (val)",
                    f"{part['tokens']:,}",
                    f"{part['documents']:,}",
                    f"{part['bytes']:,}",
                    f"{part['bytes'] / part['tokens']:.3f}" if part["tokens"] else "-",
                    f"{rejected:,}",
                )
            )
    show(
        table(
            str(shards), ("source", "tokens", "documents", "bytes of text", "bytes/token", "rejected"), rows
        ),
        result=result,
    )
    for name, counts in data["sources"].items():
        if counts["rejected"]:
            reasons = ", ".join(f"{reason} {number:,}" for reason, number in counts["rejected"].items())
            notice(f"rejected in {name}: {reasons}; listed in {shards / 'rejects' / f'{name}-00000.jsonl'}")
