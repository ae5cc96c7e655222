"""Check one shard: the task of `pretok verify`.

Input: a ShardCheck. Output: sentences that name the file; none if the shard is what the manifest says. On request also
check that nothing removed is left: no document decodes to a removed text, and neither the ledger nor joined columns say
anything about removed documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.errors import IntegrityError, PretokError
from pretok.base.execute import Report
from pretok.base.storage import reading
from pretok.base.tokens import removed_documents
from pretok.base.tree import NODE, compare_root, differing, prove_nodes
from pretok.read.batches import hash_column, hash_texts
from pretok.screen.removed import COLUMNS, find_removed, read_removed, removed_path
from pretok.shards.annotations import matched_column, open_annotations
from pretok.shards.document_table import scan
from pretok.shards.inputs import load_inputs
from pretok.shards.ledger import SCHEMA, ledger_column, ledger_schema
from pretok.shards.manifest import Manifest, RemovedCounts, Shard, load_manifest
from pretok.shards.shard_file import ShardReader
from pretok.shards.spans import ShardSpans
from pretok.shards.texts import load_decoder, load_vocabulary, shard_texts
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import ReferenceEngine, Unencodable
from pretok.tokenizer.vocabulary import Vocabulary

BLOCK_TOKENS = 1 << 22
"""Tokens checked at once: 8 or 16 MiB, whatever the size of the shard."""
ENCODE_DOCUMENTS = 64
"""Documents encoded again at once: their texts and ids are in memory together."""
Gone = npt.NDArray[np.bool_]
"""(documents,): those that were removed."""


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """A shard of a folder, and what to check."""

    folder: Path
    shard: Shard
    sample: tuple[int, ...] | None
    """Documents to decode and encode again, None: all."""
    removed: bool = False
    """Decode all documents and compare them with the texts that were removed."""


def collect(problems: Iterable[str]) -> list[str]:
    """Return all problems; an error that ends the search for them is one too."""
    sentences: list[str] = []
    try:
        for problem in problems:
            sentences.append(problem)
    except PretokError as error:
        sentences.append(str(error))
    return sentences


def check_shard(task: ShardCheck, report: Report) -> list[str]:
    """Return the problems of one shard, each a sentence that names the file."""
    manifest, shard = load_manifest(task.folder), task.shard
    reader = ShardReader(shard.prefix)
    gone = removed_documents(reader.tokens, reader.offsets, manifest.tokenizer.eod_id)
    problems = [
        *collect(_check_tokens(shard)),
        *collect(_check_index(shard, reader)),
        *collect(_check_ledger(manifest, shard, reader, gone)),
        *collect(_check_ids(manifest, shard, reader, gone)),
        *collect(_check_spans(shard, reader)),
    ]
    # A materialized mix has sequences instead of documents; the ids of a damaged shard decode to nothing useful.
    if not problems and manifest.materialized is None and task.sample != ():
        wanted = range(len(reader)) if task.sample is None else task.sample
        problems += collect(
            _check_documents(manifest, shard, reader, [n for n in wanted if not gone[n]], report)
        )
    if task.removed:
        hashes = read_removed([removed_path(task.folder)])["hash"].combine_chunks()
        problems += collect(_find_removed(manifest, shard, hashes, report))
        problems += collect(_find_traces(manifest, shard, hashes))
    report({"shards": 1, "documents": len(reader), "tokens": len(reader.tokens)})
    return problems


def _check_index(shard: Shard, reader: ShardReader) -> Iterator[str]:
    if (len(reader.tokens), len(reader)) != (shard.tokens, shard.documents):
        yield (
            f"{shard.prefix}: {len(reader.tokens)} tokens in {len(reader)} documents, "
            f"the manifest says {shard.tokens} in {shard.documents}"
        )
    compare_root(shard.index_path, shard.index_root)


def _check_tokens(shard: Shard) -> Iterator[str]:
    """Compare its MiBs with the nodes of its tree, and these with the root."""
    path = shard.bin_path
    try:
        nodes = prove_nodes(path, shard.file_bytes, shard.root)
    except IntegrityError as error:
        yield str(error)
        compare_root(path, shard.root)
        return
    with reading(path):
        damaged = list(differing(path, nodes))
    if damaged:
        first = damaged[0] * NODE
        rest = f", and {len(damaged) - 1} more of {len(nodes)} MiB" if len(damaged) > 1 else ""
        yield f"{path} is damaged in bytes {first} to {min(first + NODE, shard.file_bytes) - 1}{rest}"


def _check_ledger(manifest: Manifest, shard: Shard, reader: ShardReader, gone: Gone) -> Iterator[str]:
    """Check the root of a ledger, its tokens, its bytes, and which documents were removed.

    Each row must have as many tokens as the index says, and bytes must add up.
    """
    path = shard.ledger_path
    if path not in manifest.roots:
        return
    compare_root(path, manifest.roots[path])
    if not np.array_equal(np.asarray(ledger_column(path, "tokens")), reader.lengths):
        yield f"{path}: its tokens are not those of {shard.prefix}.idx"
    size = pc.sum(ledger_column(path, "bytes")).as_py()
    if size != shard.text_bytes:
        yield f"{path}: its documents have {size} bytes, the manifest says {shard.text_bytes}"
    marked = np.zeros(len(reader), np.bool_)
    if COLUMNS[0] in ledger_schema(path).names:
        marked = np.asarray(ledger_column(path, COLUMNS[0]).is_valid())
    for number in np.flatnonzero(marked != gone)[:1].tolist():  # the first of many
        yield f"{shard.prefix}: document {number} is removed in one of its tokens and its ledger, not in both"


def _check_spans(shard: Shard, reader: ShardReader) -> Iterator[str]:
    """Check that the spans cover the documents, with as many tokens of each kind as the manifest says."""
    if shard.kinds is not None:
        problem = ShardSpans(shard.spans_path).problem(reader.offsets, shard.kinds)
        yield from [f"{shard.spans_path}: {problem}"] if problem else ()


def _check_ids(manifest: Manifest, shard: Shard, reader: ShardReader, gone: Gone) -> Iterator[str]:
    """Check that ids are those of entries, and where BOS and EOD are.

    Each document ends with EOD and begins with BOS, and has neither elsewhere.
    """
    path, tokenizer, holes = shard.bin_path, manifest.tokenizer, load_vocabulary(manifest).holes
    around = [("end", tokenizer.eod_id), ("beginning", tokenizer.bos_id)]
    counts = dict.fromkeys(around, 0)
    for at in range(0, len(reader.tokens), BLOCK_TOKENS):
        block = np.asarray(reader.tokens[at : at + BLOCK_TOKENS])
        # Later checks look up the bytes of each id, so they run only where all have some.
        if block.max() >= tokenizer.vocab_size or block.min() < 0:
            yield f"{path}: a token id is not below the vocabulary size {tokenizer.vocab_size}"
            return
        if holes and np.isin(block, holes).any():
            yield f"{path}: a token id is that of no entry of the vocabulary"
            return
        for name, token in around:
            counts[name, token] += int(np.count_nonzero(block == token)) if token is not None else 0
    if manifest.materialized is not None:
        return
    stated = shard.removed or RemovedCounts(0, 0, 0)
    documents, tokens = int(gone.sum()), int(reader.lengths[gone].sum(dtype=np.int64))
    if (documents, tokens) != (stated.documents, stated.tokens):
        yield (
            f"{shard.ledger_path}: {documents} documents of {tokens} tokens are removed, the manifest says "
            f"{stated.documents} of {stated.tokens}"
        )
    places = reader.offsets[1:] - 1, reader.offsets[:-1]
    for ((name, token), count), place, filling in zip(counts.items(), places, (tokens, 0), strict=True):
        if token is None:
            continue
        if count != len(reader) - documents + filling:
            yield f"{path}: {count} {name}-of-document tokens for {len(reader)} documents"
        if not (np.asarray(reader.tokens[place[~gone]]) == token).all():
            yield f"{path}: the {name} of a document is not the {name}-of-document token"


def _check_documents(
    manifest: Manifest, shard: Shard, reader: ShardReader, chosen: list[int], report: Report
) -> Iterator[str]:
    """Check that decoded documents, encoded again, have the same ids.

    The text between the markers of a template is encoded with `tokenizers`.
    """
    vocab, markers = load_vocabulary(manifest), dict[str, int]()
    if shard.kinds is not None:
        markers = load_inputs(manifest, shard.source).settings.get("conversation", {}).get("markers", {})
    marked, around = vocab.with_special(markers), _around(vocab, shard)
    engine = ReferenceEngine(marked)
    pieces = [vocab.token_bytes(token) for token in range(vocab.size)]
    hashes = ledger_column(shard.ledger_path, "hash") if shard.ledger_path in manifest.roots else None
    head = int(vocab.bos_id is not None)

    def decoded(many: Iterable[Any]) -> pa.Array:
        texts = [b"".join([pieces[token] for token in ids]).decode(errors="replace") for ids in many]
        return pa.array(texts, pa.large_string())

    for at in range(0, len(chosen), ENCODE_DOCUMENTS):
        numbers = chosen[at : at + ENCODE_DOCUMENTS]
        documents = [np.asarray(reader[number][head:-1]) for number in numbers]
        runs = [
            (number, run)
            for number, ids in zip(numbers, documents, strict=True)
            for run in _between(ids, list(markers.values()))
        ]
        texts = decoded(run for _, run in runs)
        try:
            ids, offsets = engine.encode(texts)
        except Unencodable:  # only tokenizers gives up on one of them: compare with the encoder that made it
            ids, offsets = Encoder(marked).ids(texts)
        for (number, run), first, end in zip(runs, offsets[:-1], offsets[1:], strict=True):
            if not np.array_equal(ids[first:end], run):
                yield f"{shard.prefix}: document {number} does not encode to its ids again"
                return
        if hashes is not None:
            stated, as_stated = hashes.take(pa.array(numbers)), np.zeros(len(numbers), np.bool_)
            for whole in _as_hashed(decoded(documents), around):
                as_stated |= np.asarray(pc.equal(stated, hash_column(hash_texts(whole))))
            if not as_stated.all():
                yield f"{shard.ledger_path}: a hash is not that of its document"
                return
        report({"encoded again": len(numbers)})


def _between(ids: npt.NDArray[Any], markers: list[int]) -> list[npt.NDArray[Any]]:
    """Return the runs of ids between markers."""
    at = np.flatnonzero(np.isin(ids, markers))
    runs = np.split(ids, np.unique(np.concatenate([at, at + 1])))
    return [run for run in runs if len(run) and int(run[0]) not in markers]


def _around(vocab: Vocabulary, shard: Shard) -> list[tuple[str, str]]:
    """Return the (head, tail) pairs that may surround a text as it was hashed.

    The template of a conversation may write BOS and EOD itself.
    """
    if shard.kinds is None:
        return [("", "")]
    bos, eod = (
        "" if token is None else vocab.token_bytes(token).decode(errors="replace")
        for token in (vocab.bos_id, vocab.eod_id)
    )
    return [(head, tail) for head in dict.fromkeys(("", bos)) for tail in ("", eod)]


def _as_hashed(texts: pa.LargeStringArray, around: list[tuple[str, str]]) -> Iterator[pa.LargeStringArray]:
    """Yield the decoded texts in every way in which they may have been hashed."""
    for pair in around:
        head, tail, between = (pa.scalar(part, pa.large_string()) for part in (*pair, ""))
        yield pc.binary_join_element_wise(head, texts, tail, between)


def _find_removed(manifest: Manifest, shard: Shard, hashes: pa.Array, report: Report) -> Iterator[str]:
    """Find documents that decode to a removed text."""
    around = _around(load_vocabulary(manifest), shard)
    for first, texts in shard_texts(shard, load_decoder(manifest)):
        removed = np.zeros(len(texts), np.bool_)
        for whole in _as_hashed(texts, around):
            removed |= find_removed(whole, hashes)
        for number in np.flatnonzero(removed).tolist():
            yield f"{shard.prefix}: document {first + number} holds a text that was removed"
        report({"decoded": len(texts)})


def _find_traces(manifest: Manifest, shard: Shard, hashes: pa.Array) -> Iterator[str]:
    """Find columns that still describe removed documents, and unmarked documents with a removed text."""
    path, joined = shard.ledger_path, open_annotations(manifest)
    matched = {matched_column(notes.name) for notes in joined}
    kept = [name for name in ledger_schema(path).names if name not in (*SCHEMA.names, *COLUMNS)]
    kept += [name for notes in joined for name in notes.types]
    problems = dict[str, None]()
    for _, _, rows in scan(manifest, ["hash", COLUMNS[0], *kept], [(shard, 0)], joined):
        gone = rows[COLUMNS[0]].is_valid()
        if pc.any(pc.and_not(pc.is_in(rows["hash"], value_set=hashes), gone)).as_py():
            problems[f"{path}: a document whose text was removed is not marked as removed"] = None
        for name in kept:
            column = rows[name].filter(gone)
            if column.cast(pa.bool_()).true_count if name in matched else len(column) - column.null_count:
                problems[f"{path}: {name} still describes a removed document"] = None
    yield from problems
