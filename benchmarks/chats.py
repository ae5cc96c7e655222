"""Conversations beside plain text: how fast documents are read and encoded, from the same bytes.

Input: text of a corpus. Output: MB/s of processor time of conversations through a chat template, and of the same
rendered documents as plain text, in turns: of all of it, and of encoding alone.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

from pretok.base.kinds import MARKERS
from pretok.chat.documents import read_documents
from pretok.chat.encode import encode_spans
from pretok.chat.resolve import resolve
from pretok.kernels.pretokenize import PATTERNS
from pretok.read.conversation import Conversation
from pretok.read.normalize import Normalization
from pretok.read.partition import plan
from pretok.read.probe import probe_inputs
from pretok.read.readers import Damage, RecordFormat
from pretok.read.recognise import list_inputs
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.vocabulary import load_vocab, write_vocab

ROUNDS = 5
SIZES = {"question": 200, "answer": 1200}
"""Characters of a message of each role: those of public instruction data, about."""


def conversations(text: str, turns: int = 2) -> list[list[dict[str, str]]]:
    """A text cut into conversations."""
    made, at = [], 0
    while at < len(text):
        messages = []
        for _ in range(turns):
            for role, size in (("user", SIZES["question"]), ("assistant", SIZES["answer"])):
                messages.append({"role": role, "content": text[at : at + size].strip() or "."})
                at += size
        made.append(messages)
    return made


def run(text: str, vocab_dir: Path | None = None) -> dict[str, float]:
    """MB/s, and `chat / plain` of both; medians of the rounds. vocab_dir: of a tokenizer with a template."""
    with tempfile.TemporaryDirectory(prefix="pretok-") as name:
        folder = Path(name)
        if vocab_dir is None:
            special = ("<|endoftext|>", *MARKERS)
            vocab = write_vocab(folder / "vocab", PATTERNS["cl100k"], special, [])
        else:
            vocab = load_vocab(vocab_dir)
        record = resolve(
            RecordFormat("messages", conversation=Conversation(fields=False, template="")), vocab, "chat"
        )
        encoder = Encoder(vocab.raw.decode(), vocab.eod_id, vocab.size)
        rows = conversations(text)
        chat, plain = folder / "chat.jsonl", folder / "plain.jsonl"
        chat.write_text("".join(json.dumps({"messages": row}, ensure_ascii=False) + "\n" for row in rows))
        parts = {"chat": _partition(chat, "messages")}
        texts = [t for batch in read_documents(parts["chat"], record, Normalization())
                 if not isinstance(batch, Damage) for t in batch.texts.to_pylist()]  # fmt: skip
        size = sum(len(t.encode()) for t in texts)
        plain.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts))
        parts["plain"] = _partition(plain, "text")
        formats = {"chat": record, "plain": RecordFormat()}
        rates: dict[str, list[float]] = {
            name: [] for name in ("chat", "plain", "encode chat", "encode plain")
        }
        for _ in range(ROUNDS + 1):
            for way in ("chat", "plain"):
                began, encoding = time.process_time(), 0.0
                for batch in read_documents(parts[way], formats[way], Normalization()):
                    if isinstance(batch, Damage):
                        raise AssertionError(batch.error)
                    before = time.process_time()
                    if batch.spans is None:
                        encoder.encode(batch.texts)
                    else:
                        encode_spans(encoder, batch.texts, batch.spans)
                    encoding += time.process_time() - before
                rates[way].append(size / (time.process_time() - began) / 1e6)
                rates[f"encode {way}"].append(size / encoding / 1e6)
        found = {name: statistics.median(values[1:]) for name, values in rates.items()}
        for name in ("chat", "encode chat"):
            pairs = zip(rates[name][1:], rates[name.replace("chat", "plain")][1:], strict=True)
            found[f"{name} / plain"] = statistics.median(a / b for a, b in pairs)
        return found


def _partition(path: Path, field: str):  # type: ignore[no-untyped-def]
    inputs, _ = list_inputs([str(path)], "auto")
    (partition,) = plan("it", probe_inputs(inputs, field, field != "text"), 1 << 40, 2)
    return partition
