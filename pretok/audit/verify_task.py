"""One shard -> the problems found in it: the task that `pretok verify` runs for each.

Input: a VerifyTask. Output: sentences that name the file; none if the shard is what the manifest says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.errors import IntegrityError
from pretok.base.storage import reading
from pretok.base.tokens import removed_documents
from pretok.base.tree import NODE, differing, prove_nodes, root_of
from pretok.chat.resolve import chat_tokenizer
from pretok.read.batches import hash_column, hash_texts
from pretok.shards.format import ShardReader
from pretok.shards.ledger import ledger_column, ledger_schema
from pretok.shards.manifest import RemovedCounts, Shard, TokenizerEntry
from pretok.shards.spans import ShardSpans
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import ReferenceEngine, Unencodable
from pretok.tokenizer.vocabulary import load_vocab

BLOCK_TOKENS = 1 << 22
"""Tokens checked at once: 8 or 16 MiB, whatever the size of the shard."""
ENCODE_DOCUMENTS = 64
"""Documents encoded again at once: their texts and ids are in memory together."""


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """What to check one shard against. sample: documents to decode and encode again; None: all.

    ledger_root: None for shards without one.
    documents_end: whether each sequence is one document, which ends with EOD and begins with BOS, if there is one;
    those of a materialized mix are not, so they are checked for sizes, roots and ids alone.
    markers: of conversations the added tokens that their template put, by name.
    """

    shard: Shard
    ledger_root: str | None
    tokenizer_json: Path
    tokenizer: TokenizerEntry
    sample: tuple[int, ...] | None
    documents_end: bool
    markers: Mapping[str, int] = field(default_factory=dict)


def verify_shard(task: VerifyTask, report: Callable[[dict[str, int]], None]) -> list[str]:
    """Problems of one shard, each a sentence that names the file."""
    shard = task.shard
    try:
        reader = ShardReader(shard.prefix)
    except IntegrityError as error:
        return [str(error)]
    problems = _check_tokens(shard)
    problems += _check_root(shard.index_path, shard.index_root)
    if (len(reader.tokens), len(reader)) != (shard.tokens, shard.documents):
        problems.append(
            f"{shard.prefix}: {len(reader.tokens)} tokens in {len(reader)} documents, "
            f"the manifest says {shard.tokens} in {shard.documents}"
        )
    unsound = _check_ledger(reader, task)
    gone = _removed(reader, task, sound=not unsound)
    problems += _check_ids(reader, task, gone)
    problems += unsound
    problems += _check_spans(reader, task)
    # ids of a damaged shard cannot be decoded in any useful way
    if not problems and task.documents_end and task.sample != ():
        problems += _check_documents(reader, task, gone, report)
    report({"shards": 1, "documents": len(reader), "tokens": len(reader.tokens)})
    return problems


def _check_tokens(shard: Shard) -> list[str]:
    """Its MiBs against the nodes of its tree, and these against the root."""
    path = shard.bin_path
    try:
        nodes = prove_nodes(path, shard.file_bytes, shard.root)
        with reading(path):
            damaged = list(differing(path, nodes))
    except IntegrityError as error:
        problems = [str(error)]
        return problems + (_check_root(path, shard.root) if path.exists() else [])
    if not damaged:
        return []
    first = damaged[0] * NODE
    rest = f", and {len(damaged) - 1} more of {len(nodes)} MiB" if len(damaged) > 1 else ""
    return [f"{path} is damaged in bytes {first} to {min(first + NODE, shard.file_bytes) - 1}{rest}"]


def _check_root(path: Path, expected: str) -> list[str]:
    try:
        with reading(path):
            found = root_of(path)
    except IntegrityError as error:
        return [str(error)]
    return [] if found == expected else [f"{path}: root {found}, the manifest says {expected}"]


def _check_ledger(reader: ShardReader, task: VerifyTask) -> list[str]:
    """Its root; a row for each document, with the tokens that the index says, and bytes that add up."""
    if task.ledger_root is None:
        return []
    path = task.shard.ledger_path
    if problems := _check_root(path, task.ledger_root):
        return problems
    try:
        tokens, size = ledger_column(path, "tokens"), pc.sum(ledger_column(path, "bytes")).as_py()
    except IntegrityError as error:
        return [str(error)]
    if not np.array_equal(np.asarray(tokens), reader.lengths):
        return [f"{path}: its tokens are not those of {task.shard.prefix}.idx"]
    if size != task.shard.text_bytes:
        return [f"{path}: its documents have {size} bytes, the manifest says {task.shard.text_bytes}"]
    return []


def _check_spans(reader: ShardReader, task: VerifyTask) -> list[str]:
    """Whether the spans cover the documents, with as many tokens of each kind as the manifest says."""
    shard = task.shard
    if shard.kinds is None:
        return []
    try:
        problem = ShardSpans(shard.spans_path).problem(reader.offsets, shard.kinds)
    except IntegrityError as error:
        return [str(error)]
    return [f"{shard.spans_path}: {problem}"] if problem else []


def _check_ids(reader: ShardReader, task: VerifyTask, gone: npt.NDArray[np.bool_]) -> list[str]:
    """Ids below the vocabulary size; EOD at the end of each document, BOS at its beginning, and neither elsewhere."""
    bos_id = task.tokenizer.bos_id
    kinds = [("end", task.tokenizer.eod_id, 1)] + ([] if bos_id is None else [("beginning", bos_id, 0)])
    counts = [0] * len(kinds)
    for at in range(0, len(reader.tokens), BLOCK_TOKENS):
        block = np.asarray(reader.tokens[at : at + BLOCK_TOKENS])
        if block.max() >= task.tokenizer.vocab_size or block.min() < 0:
            return [
                f"{task.shard.prefix}.bin: a token id is not below the vocabulary size {task.tokenizer.vocab_size}"
            ]
        for number, (_, token, _) in enumerate(kinds):
            counts[number] += int(np.count_nonzero(block == token))
    if not task.documents_end:
        return []
    whole, removed = ~gone, task.shard.removed or RemovedCounts(0, 0, 0)
    lost = int(gone.sum()), int(reader.lengths[gone].sum(dtype=np.int64))
    if lost != (removed.documents, removed.tokens):
        return [
            f"{task.shard.ledger_path}: {lost[0]} documents of {lost[1]} tokens are removed, the manifest says "
            f"{removed.documents} of {removed.tokens}"
        ]
    for number in np.flatnonzero(gone).tolist():
        if (np.asarray(reader[number]) != task.tokenizer.eod_id).any():
            return [f"{task.shard.prefix}.bin: document {number} was removed, and tokens of it are there"]
    for (name, token, last), count in zip(kinds, counts, strict=True):
        if count != int(whole.sum()) + lost[1] * last:
            return [f"{task.shard.prefix}.bin: {count} {name}-of-document tokens for {len(reader)} documents"]
        places = (reader.offsets[1:] - 1 if last else reader.offsets[:-1])[whole]
        if not (np.asarray(reader.tokens[places]) == token).all():
            return [f"{task.shard.prefix}: the {name} of a document is not the {name}-of-document token"]
    return []


def _removed(reader: ShardReader, task: VerifyTask, *, sound: bool) -> npt.NDArray[np.bool_]:
    """(documents,): those that were removed, by the ledger, or by their tokens where it is not sound."""
    path = task.shard.ledger_path
    if not sound:
        return removed_documents(reader.tokens, reader.offsets, task.tokenizer.eod_id)
    if task.ledger_root is None or "removed" not in ledger_schema(path).names:
        return np.zeros(len(reader), np.bool_)
    return np.asarray(ledger_column(path, "removed").is_valid())


def _check_documents(
    reader: ShardReader,
    task: VerifyTask,
    gone: npt.NDArray[np.bool_],
    report: Callable[[dict[str, int]], None],
) -> list[str]:
    """Decode documents and encode the text again with `tokenizers`: the ids must come back.

    Decoded by our own table, because `tokenizers` takes the letters of an added token for bytes.
    """
    vocab, name = load_vocab(task.tokenizer_json, task.tokenizer.eod_id), str(task.tokenizer_json)
    json = vocab.raw.decode()
    described = None if task.ledger_root is None else ledger_column(task.shard.ledger_path, "hash")
    engine = ReferenceEngine(chat_tokenizer(json, task.markers), name)
    names = {token: marker for marker, token in task.markers.items()}
    tokens = [vocab.token_bytes(i) for i in range(vocab.size)]
    head = int(task.tokenizer.bos_id is not None)
    chosen = [n for n in (range(len(reader)) if task.sample is None else task.sample) if not gone[n]]
    for at in range(0, len(chosen), ENCODE_DOCUMENTS):
        numbers = chosen[at : at + ENCODE_DOCUMENTS]
        expected = [np.asarray(reader[n][head:-1]) for n in numbers]
        texts = pa.array(
            [b"".join([tokens[i] for i in ids]).decode(errors="replace") for ids in expected],
            pa.large_string(),
        )
        if task.markers:
            for number, ids in zip(numbers, expected, strict=True):
                if not np.array_equal(_encode_between(engine, tokens, names, ids), ids):
                    return [f"{task.shard.prefix}: document {number} does not encode to its ids again"]
            if described is not None:
                bos, eod = (
                    names.get(token, "") for token in (task.tokenizer.bos_id or -1, task.tokenizer.eod_id)
                )
                if not _hashes_hold(described.take(pa.array(numbers)), texts, bos, eod):
                    return [f"{task.shard.ledger_path}: a hash is not that of its document"]
            report({"encoded again": len(numbers)})
            continue
        try:
            ids, offsets = engine.encode(texts)
        except Unencodable:  # tokenizers alone gives up on one of them: then what encoded it has to say
            ids, offsets = Encoder(json, task.tokenizer.eod_id, task.tokenizer.vocab_size, name).ids(texts)
        for i, number in enumerate(numbers):
            if not np.array_equal(ids[offsets[i] : offsets[i + 1]], expected[i]):
                return [f"{task.shard.prefix}: document {number} does not encode to its ids again"]
        if described is not None and not described.take(pa.array(numbers)).equals(
            hash_column(hash_texts(texts))
        ):
            return [f"{task.shard.ledger_path}: a hash is not that of its document"]
        report({"encoded again": len(numbers)})
    return []


def _encode_between(engine: ReferenceEngine, tokens: list[bytes], names: Mapping[int, str], ids: Any) -> Any:
    """What the text between markers encodes to, with the markers where they are."""
    at = np.flatnonzero(np.isin(ids, list(names)))
    runs = np.split(ids, np.unique(np.concatenate([at, at + 1])))
    found = []
    for run in runs:
        if len(run) == 1 and int(run[0]) in names:
            found.append(run)
        elif len(run):
            text = b"".join(tokens[i] for i in run).decode(errors="replace")
            found.append(engine.encode(pa.array([text], pa.large_string()))[0])
    return np.concatenate([np.empty(0, np.int64), *found])


def _hashes_hold(column: pa.Array, texts: pa.Array, bos: str, eod: str) -> bool:
    """Whether each hash is of its text. A template may itself put the tokens around a document: its text has them."""
    ways = [
        pa.array([head + text + tail for text in texts.to_pylist()], pa.large_string())
        for head in {"", bos}
        for tail in {"", eod}
    ]
    found = [hash_column(hash_texts(way)).to_pylist() for way in ways]
    return all(hash in same for hash, *same in zip(column.to_pylist(), *found, strict=True))
