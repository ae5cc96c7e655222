"""Windows -> what was found in each: documents, bytes of text, tokens, rejects by reason, and new words.

Input: the windows of a source, how its records are read, an encoder. Output: a `Found` for each window, and the growth
of the number of distinct words with the text (Heaps, "Information Retrieval", 1978: k times n to the power beta).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pretok.base.kinds import KINDS, LEARNED, TEXT
from pretok.base.tokens import Ints
from pretok.chat.documents import documents_of
from pretok.chat.encode import encode_spans
from pretok.counts.table import WordTable
from pretok.forecast.windows import Window, windows
from pretok.read.batches import TextBatch, buffers
from pretok.read.files import CorruptInputError
from pretok.read.kept import Keep
from pretok.read.normalize import Normalization
from pretok.read.probe import Probe
from pretok.read.readers import NOTHING, RecordFormat, read_piece
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable


@dataclass(slots=True)
class Found:
    """What a window holds. tokens: of the first `encoded` bytes of its text, ends of documents included; rows: of these
    documents their tokens, bytes and kept columns; learned: in the same parts, how many tokens of each are learned;
    parsing, encoding: seconds that `bytes` and `encoded` bytes took."""

    window: Window
    documents: int = 0
    bytes: int = 0
    encoded: int = 0
    tokens: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    rows: list[pa.Table] = field(default_factory=list)
    learned: list[Ints] = field(default_factory=list)
    parsing: float = 0.0
    encoding: float = 0.0


@dataclass(slots=True)
class Sample:
    """What all windows of a source gave. words: (bytes of text encoded so far, distinct words in it) after each window;
    errors: files and windows that could not be read."""

    found: list[Found] = field(default_factory=list)
    words: list[tuple[int, int]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Text that was encoded."""
        return sum(found.encoded for found in self.found)

    @property
    def rate(self) -> float:
        """Bytes of text parsed and encoded a second, decompressing not counted, in the second half of the windows: by
        then the encoder's word cache is no longer empty."""
        late = self.found[len(self.found) // 2 :]
        parsing = sum(found.parsing for found in late) / max(1, sum(found.bytes for found in late))
        encoding = sum(found.encoding for found in late) / max(1, sum(found.encoded for found in late))
        return 1 / max(parsing + encoding, 1e-12)

    def distinct_words(self, size: float) -> float:
        """Distinct words in `size` bytes of such text: the power law through the second half of the sample."""
        points = [(math.log(n), math.log(v)) for n, v in self.words[len(self.words) // 2 :] if n and v]
        if len(points) < 2 or points[0][0] == points[-1][0]:
            return float(self.words[-1][1]) if self.words else 0.0
        x, y = np.array(points).T
        beta, log_k = np.polyfit(x, y, 1)
        return float(math.exp(log_k + min(beta, 1.0) * math.log(max(size, 1.0))))


def measure(
    probes: Sequence[Probe],
    seed: str,
    record: RecordFormat,
    normalization: Normalization,
    encoder: Encoder,
    pattern: str,
    keep: Keep = NOTHING,
    learn: Collection[str] = LEARNED,
) -> Sample:
    """Read every window of a source once. learn: kinds that are learned of conversations; of plain text all is."""
    sample, table, read = Sample(), WordTable(), 0
    documents = documents_of(record, normalization)
    wanted = np.isin(KINDS, [*learn, KINDS[TEXT]])
    for window in windows(probes, seed, sample.errors):
        found = Found(window)
        began = time.monotonic()
        try:
            for batch in read_piece(window.piece, 0, record, keep):
                _add(found, documents(batch), encoder, table, pattern, keep, wanted)
        except CorruptInputError as error:
            sample.errors.append(f"{window.piece.file.path}: {error}")
            continue
        found.parsing = max(0.0, time.monotonic() - began - found.encoding)
        read += found.encoded
        sample.words.append((read, len(table)))
        sample.found.append(found)
    return sample


def _add(
    found: Found,
    batch: TextBatch,
    encoder: Encoder,
    table: WordTable,
    pattern: str,
    keep: Keep,
    wanted: npt.NDArray[np.bool_],
) -> None:
    """Count a batch; encode it unless the window already has its share."""
    found.rejected.update(batch.rejects.by_reason())
    if not len(batch.texts):
        return
    data, offsets = buffers(batch.texts)
    found.documents += len(batch.texts)
    found.bytes += len(data)
    room = found.window.text - found.encoded
    if room <= 0:
        return
    count = max(1, int(np.searchsorted(offsets, room)))  # at least one document, however long
    texts = batch.texts.slice(0, count)
    data, offsets = buffers(texts)
    began = time.monotonic()
    try:
        lengths, learned = _encode(encoder, texts, batch.spans, wanted)
    except Unencodable as error:
        found.rejected["unencodable"] += len(error.documents)
        return
    found.encoding += time.monotonic() - began
    table.add_documents(data, offsets, np.zeros(len(texts), np.bool_), pattern)
    found.encoded += len(data)
    found.tokens += int(lengths.sum())
    found.learned.append(learned)
    kept = {
        column.name: values.slice(0, count) for column, values in zip(keep.columns, batch.kept, strict=True)
    }
    found.rows.append(pa.table({"tokens": lengths, "bytes": np.diff(offsets), **kept}))


def _encode(
    encoder: Encoder,
    texts: pa.LargeStringArray,
    spans: pa.LargeListArray | None,
    wanted: npt.NDArray[np.bool_],
) -> tuple[Ints, Ints]:
    """(n,), (n,): tokens of each document, and those that are learned. wanted: (kinds,) bool."""
    if spans is None:
        lengths = encoder.encode(texts)[1].astype(np.int64)
        return lengths, lengths
    _, sizes, kinds = encode_spans(encoder, texts, spans.slice(0, len(texts)))
    before: Ints = np.cumsum([0, *wanted[kinds]], dtype=np.int64)
    ends: Ints = np.cumsum(sizes, dtype=np.int64)
    return sizes.astype(np.int64), np.diff(before[ends], prepend=0)
