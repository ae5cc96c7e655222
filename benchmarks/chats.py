"""Conversations beside plain text: how fast documents are read and encoded, from the same bytes.

Input: text of the corpus. Output: MB/s of processor time of conversations through a chat template, and of the same
rendered documents as plain text, in turns: of all of it, and of encoding alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.inputs import Inputs
from benchmarks.measure import Row, Table, in_turns
from pretok.chat.encode import encode_spans
from pretok.chat.read_documents import read_documents
from pretok.chat.resolve import resolve
from pretok.kernels.pretokenize import PATTERNS
from pretok.read.normalize import Normalization
from pretok.read.partition import plan
from pretok.read.probe import probe_inputs
from pretok.read.readers import Damage
from pretok.read.recognise import list_inputs
from pretok.read.record_format import Conversation, RecordFormat
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.kinds import MARKERS
from pretok.tokenizer.vocabulary import write_vocab

SIZES = (("user", 200), ("assistant", 1200)) * 2
"""Roles and characters of the messages of a conversation, about those of public instruction data."""


def conversations(text: str) -> list[list[dict[str, str]]]:
    """A text cut into conversations."""
    rows, at = [], 0
    while at < len(text):
        messages = []
        for role, size in SIZES:
            messages.append({"role": role, "content": text[at : at + size].strip() or "."})
            at += size
        rows.append(messages)
    return rows


def batches(path: Path, record: RecordFormat) -> Iterator[Any]:
    """The documents of a file."""
    files = list_inputs([str(path)], "auto").files
    (partition,) = plan("it", probe_inputs(files, (record.field,), record.field != "text"), 1 << 40, 2)
    for batch in read_documents(partition, record, Normalization()):
        if isinstance(batch, Damage):
            raise AssertionError(batch.error)
        yield batch


def run(path: Path, record: RecordFormat, encoder: Encoder, size: int) -> Row:
    """Read and encode a file with `size` bytes of rendered text."""
    began, encoding = time.process_time(), 0.0
    for batch in batches(path, record):
        before = time.process_time()
        if batch.spans is None:
            encoder.encode(batch.texts)
        else:
            encode_spans(encoder, batch.texts, batch.spans)
        encoding += time.process_time() - before
    both = time.process_time() - began
    return {"read and encode": size / max(both, 1e-9) / 1e6, "encode": size / max(encoding, 1e-9) / 1e6}


def measure(inputs: Inputs) -> Table:
    """Both, and their ratio, with the vocabulary and markers for the end of a turn."""
    special = ("<|endoftext|>", *MARKERS)
    vocab = write_vocab(inputs.folder / "chat-vocab", PATTERNS["cl100k"], special, [])
    conversation = Conversation(fields=False, template="")
    record = resolve(RecordFormat("messages", conversation=conversation), vocab, "chat")
    encoder = Encoder(vocab)
    text = "".join(inputs.texts("en"))[: inputs.scaled(50_000_000)]
    chat, plain = inputs.folder / "chat.jsonl", inputs.folder / "plain.jsonl"
    lines = [json.dumps({"messages": row}, ensure_ascii=False) + "\n" for row in conversations(text)]
    chat.write_text("".join(lines), encoding="utf-8")
    texts = [text for batch in batches(chat, record) for text in batch.texts.to_pylist()]
    lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
    plain.write_text("".join(lines), encoding="utf-8")
    size = sum(len(text.encode()) for text in texts)
    cases = {
        "conversations": lambda: run(chat, record, encoder, size),
        "plain text": lambda: run(plain, RecordFormat(), encoder, size),
    }
    for case in cases.values():
        case()  # fills the word cache and loads the kernels
    table = in_turns(cases, inputs.runs)
    both = table["conversations"], table["plain text"]
    return table | {"conversations / plain text": {name: both[0][name] / both[1][name] for name in both[0]}}
