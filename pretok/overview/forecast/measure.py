"""Windows -> the contents of each: documents, bytes of text, tokens, rejects by reason.

Input: the windows of a source, how its records are read, an encoder. Output: a `Measured` for each window.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import UNSET

from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.base.texts import buffers
from pretok.chat.encode import encode_spans
from pretok.chat.limits import LIMITS, TemplateLimits
from pretok.chat.read_documents import documents_of
from pretok.overview.forecast.windows import Window, windows
from pretok.read.batches import NOT_CANONICAL, TextBatch, hash_ids
from pretok.read.files import CorruptInputError
from pretok.read.format import Probe
from pretok.read.formats.tokens import TokenDecoder
from pretok.read.normalize import Normalization
from pretok.read.readers import read_piece
from pretok.read.record_format import RecordFormat
from pretok.read.rejects import NOT_LOST
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable


@dataclass(slots=True)
class Measured:
    """The contents of a window."""

    window: Window
    documents: int = 0
    bytes: int = 0
    encoded: int = 0
    tokens: int = 0
    """Of the first `encoded` bytes of its text, ends of documents included."""
    rejected: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    """Bytes of rejected records."""
    defect: str = ""
    """The first record that was lost, and why."""
    remarks: Counter[str] = field(default_factory=Counter)
    parsing: float = 0.0
    """Seconds that `bytes` took."""
    encoding: float = 0.0
    """Seconds that `encoded` bytes took."""

    @property
    def records(self) -> int:
        """How many were read."""
        return self.documents + self.rejected.total()

    @property
    def lost(self) -> int:
        """Records that give no document though no setting asked for it."""
        return self.rejected.total() - sum(self.rejected[reason] for reason in NOT_LOST)


@dataclass(slots=True)
class MeasuredSource:
    """The contents of all windows of a source."""

    windows: list[Measured] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    """Path -> why the file, or a window of it, could not be read."""

    @property
    def rate(self) -> float:
        """Bytes of text parsed and encoded per second, without decompression.

        Only the second half of the windows counts: by then the encoder's word cache is warm.
        """
        late = self.windows[len(self.windows) // 2 :]
        parsing = sum(window.parsing for window in late) / max(1, sum(window.bytes for window in late))
        encoding = sum(window.encoding for window in late) / max(1, sum(window.encoded for window in late))
        return 1 / max(parsing + encoding, 1e-12)


def measure(
    probes: Sequence[Probe],
    seed: str,
    record: RecordFormat,
    normalization: Normalization,
    encoder: Encoder,
    limits: TemplateLimits = LIMITS,
) -> MeasuredSource:
    """Read every window of a source once."""
    sample, documents = MeasuredSource(), documents_of(record, normalization, limits)
    old = None if record.tokens is UNSET else Encoder(TokenDecoder.of(record.tokens).vocab)
    for window in windows(probes, seed, sample.errors):
        measured = Measured(window)
        began = time.monotonic()
        try:
            for batch in map(documents, read_piece(window.piece, 0, record)):
                measured.rejected.update(batch.rejects["reason"].to_pylist())
                measured.refused += batch.refused
                measured.defect = measured.defect or _first_lost(window, batch)
                measured.documents += len(batch.texts)
                measured.bytes += len(buffers(batch.texts)[0])
                measured.remarks.update(batch.remarks)
                if old is not None and batch.before is not None and len(batch.texts):
                    measured.remarks[NOT_CANONICAL] += int(
                        (hash_ids(*old.ids(batch.texts)) != batch.before).sum()
                    )
                if len(batch.texts) and measured.encoded < window.text:
                    _encode(measured, batch, encoder)
        except CorruptInputError as error:
            sample.errors.setdefault(window.path, str(error))
            continue
        except UsageError as error:
            raise UsageError(f"{_place(window)}: {error}") from None
        measured.parsing = max(0.0, time.monotonic() - began - measured.encoding)
        sample.windows.append(measured)
    return sample


def _place(window: Window) -> str:
    return replace(window.piece, file=replace(window.piece.file, path=window.path)).place


def _first_lost(window: Window, batch: TextBatch) -> str:
    """Say which record of a batch is the first that is lost, and why; "" if none is."""
    for reject in batch.rejects.to_pylist():
        if reject["reason"] not in NOT_LOST:
            what = ": ".join(filter(None, (reject["reason"], reject["detail"])))
            counted = "line" if window.piece.file.format == "jsonl" else "record"
            return f"{_place(window)} {counted} {reject['record'] + 1}: {what}"
    return ""


def _encode(measured: Measured, batch: TextBatch, encoder: Encoder) -> None:
    """Count the tokens of a batch, up to the text that the window may encode."""
    _, offsets = buffers(batch.texts)
    # Only whole documents are encoded, within the limit of the window; at least one, however long.
    count = max(1, int(np.searchsorted(offsets, measured.window.text - measured.encoded)))
    texts = batch.texts.slice(0, count)
    began = time.monotonic()
    try:
        if batch.spans is None:
            _, sizes = encoder.encode(texts)
        else:
            _, sizes, _ = encode_spans(encoder, texts, batch.spans.slice(0, len(texts)))
    except Unencodable as error:
        measured.rejected["unencodable"] += len(error.documents)
        return
    measured.encoding += time.monotonic() - began
    measured.encoded += len(buffers(texts)[0])
    measured.tokens += int(sizes.sum())
