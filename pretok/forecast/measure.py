"""Windows -> the contents of each: documents, bytes of text, tokens, rejects by reason.

Input: the windows of a source, how its records are read, an encoder. Output: a `Found` for each window.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pretok.chat.documents import documents_of
from pretok.chat.encode import encode_spans
from pretok.forecast.windows import Window, windows
from pretok.read.batches import TextBatch, buffers
from pretok.read.conversation import RecordFormat
from pretok.read.files import CorruptInputError
from pretok.read.format import Probe
from pretok.read.normalize import Normalization
from pretok.read.readers import read_piece
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable


@dataclass(slots=True)
class Found:
    """The contents of a window. tokens: of the first `encoded` bytes of its text, ends of documents included; parsing,
    encoding: seconds that `bytes` and `encoded` bytes took."""

    window: Window
    documents: int = 0
    bytes: int = 0
    encoded: int = 0
    tokens: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    parsing: float = 0.0
    encoding: float = 0.0


@dataclass(slots=True)
class Sample:
    """The contents of all windows of a source. errors: files and windows that could not be read."""

    found: list[Found] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Bytes of text parsed and encoded per second, without decompression, in the second half of the windows: by
        then the encoder's word cache is warm."""
        late = self.found[len(self.found) // 2 :]
        parsing = sum(found.parsing for found in late) / max(1, sum(found.bytes for found in late))
        encoding = sum(found.encoding for found in late) / max(1, sum(found.encoded for found in late))
        return 1 / max(parsing + encoding, 1e-12)


def measure(
    probes: Sequence[Probe], seed: str, record: RecordFormat, normalization: Normalization, encoder: Encoder
) -> Sample:
    """Read every window of a source once."""
    sample, documents = Sample(), documents_of(record, normalization)
    for window in windows(probes, seed, sample.errors):
        found = Found(window)
        began = time.monotonic()
        try:
            for batch in map(documents, read_piece(window.piece, 0, record)):
                found.rejected.update(batch.rejects["reason"].to_pylist())
                found.documents += len(batch.texts)
                found.bytes += len(buffers(batch.texts)[0])
                if len(batch.texts) and found.encoded < window.text:
                    _encode(found, batch, encoder)
        except CorruptInputError as error:
            sample.errors.append(f"{window.piece.file.path}: {error}")
            continue
        found.parsing = max(0.0, time.monotonic() - began - found.encoding)
        sample.found.append(found)
    return sample


def _encode(found: Found, batch: TextBatch, encoder: Encoder) -> None:
    """Count the tokens of a batch, up to the text that the window may encode."""
    _, offsets = buffers(batch.texts)
    # Only whole documents are encoded, within the limit of the window; at least one, however long.
    count = max(1, int(np.searchsorted(offsets, found.window.text - found.encoded)))
    texts = batch.texts.slice(0, count)
    began = time.monotonic()
    try:
        if batch.spans is None:
            _, sizes = encoder.encode(texts)
        else:
            _, sizes, _ = encode_spans(encoder, texts, batch.spans.slice(0, len(texts)))
    except Unencodable as error:
        found.rejected["unencodable"] += len(error.documents)
        return
    found.encoding += time.monotonic() - began
    found.encoded += len(buffers(texts)[0])
    found.tokens += int(sizes.sum())
