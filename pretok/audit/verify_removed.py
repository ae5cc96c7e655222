"""What was removed, against everything that a folder of shards holds: a part of `pretok verify --removed`.

Input: the folder and a shard. Output: sentences, none where nothing of the removed texts is left: the shard decodes to
none of them, and its ledger and what was joined say nothing of their documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.errors import PretokError
from pretok.screen.removed import COLUMNS, find_removed, read_removed, removed_path
from pretok.shards.annotations import open_annotations
from pretok.shards.ledger import SCHEMA, ledger_schema, ledger_windows
from pretok.shards.manifest import Manifest, Shard, load_manifest
from pretok.shards.texts import load_decoder, load_vocabulary, shard_texts


def verify_removed(task: tuple[Path, str], report: Callable[[dict[str, int]], None]) -> list[str]:
    """Problems of (folder, path of a shard)."""
    folder, path = task
    try:
        manifest = load_manifest(folder)
        shard = next(shard for shard in manifest.shards if shard.path == path)
        hashes = read_removed([removed_path(folder)])["hash"].combine_chunks()
        return [*_texts(manifest, shard, hashes, report), *_rows(manifest, shard, hashes)]
    except PretokError as error:
        return [str(error)]


def _texts(
    manifest: Manifest, shard: Shard, hashes: pa.Array, report: Callable[[dict[str, int]], None]
) -> Iterator[str]:
    """Documents that decode to a text that was removed. A template of conversations may have put the tokens around a
    document itself: then they belong to its text."""
    vocab = load_vocabulary(manifest)
    around = [("", "")]
    if shard.kinds is not None:
        bos = "" if vocab.bos_id is None else vocab.token_bytes(vocab.bos_id).decode(errors="replace")
        eod = vocab.token_bytes(vocab.eod_id).decode(errors="replace")
        around = [(head, tail) for head in dict.fromkeys(("", bos)) for tail in ("", eod)]
    for first, texts in shard_texts(shard, load_decoder(manifest)):
        found = np.zeros(len(texts), np.bool_)
        for head, tail in around:
            before, behind, between = (pa.scalar(part, pa.large_string()) for part in (head, tail, ""))
            found |= find_removed(pc.binary_join_element_wise(before, texts, behind, between), hashes)
        for number in np.flatnonzero(found).tolist():
            yield f"{shard.prefix}: document {first + number} holds a text that was removed"
        report({"decoded": len(texts)})


def _rows(manifest: Manifest, shard: Shard, hashes: pa.Array) -> Iterator[str]:
    """What is still said of documents that were removed, and documents of these texts that are not said to be."""
    path, gone = shard.ledger_path, []
    kept = [name for name in ledger_schema(path).names if name not in (*SCHEMA.names, *COLUMNS)]
    for rows in ledger_windows(path):
        removed = np.zeros(len(rows), np.bool_)
        if COLUMNS[0] in rows.schema.names:
            removed = np.asarray(rows[COLUMNS[0]].is_valid())
        gone.append(removed)
        if (np.asarray(pc.is_in(rows["hash"], value_set=hashes)) & ~removed).any():
            yield f"{path}: a document whose text was removed is not said to be"
        for name in kept:
            if (removed & np.asarray(rows[name].is_valid())).any():
                yield f"{path}: {name} of a document that was removed is there"
    every = np.concatenate([np.zeros(0, np.bool_), *gone])
    for one in open_annotations(manifest):
        first = 0
        for rows in one.windows(shard, one.columns):
            here = pa.array(every[first : first + len(rows)])
            if pc.any(rows[0].filter(here)).as_py() or any(
                column.filter(here).null_count < pc.sum(here).as_py() for column in rows.columns[1:]
            ):
                yield f"{one.folder}: of a document of {shard.path} that was removed something is there"
            first += len(rows)
