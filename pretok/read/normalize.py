"""Text -> normalized text, for vocabulary and encoding alike.

Input: an Arrow array of texts, or a batch of documents. Output: an array of the same length, or the batch, in which
documents that became empty are rejects. The settings are part of the config fingerprint.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pretok.base.records import Record, replace
from pretok.base.texts import buffers
from pretok.read.batches import TextBatch

BOM = "\ufeff"


class Normalization(Record, frozen=True):
    """Which changes are made to every document; the default makes none."""

    unicode: str = "none"
    """"none" or "nfc"."""
    strip_bom: bool = False
    """Drop one U+FEFF at the start of a document."""
    crlf: bool = False
    """Turn CR LF into LF."""

    def __call__(self, texts: pa.LargeStringArray) -> pa.LargeStringArray:
        """Apply the changes; texts that need none are not copied."""
        if self.strip_bom:
            marked = pc.starts_with(texts, BOM)
            if pc.any(marked).as_py():
                texts = pc.if_else(marked, pc.utf8_slice_codeunits(texts, 1), texts)
        if self.crlf and pc.any(pc.match_substring(texts, "\r\n")).as_py():
            texts = pc.replace_substring(texts, "\r\n", "\n")
        # No character below U+0300 (lead byte 0xCC) is changed or composed by NFC on its own (UAX #15).
        if self.unicode == "nfc" and buffers(texts)[0].max(initial=0) >= 0xCC:
            texts = pc.utf8_normalize(texts, form="NFC")
        return texts


def normalize_batch(batch: TextBatch, normalization: Normalization) -> TextBatch:
    """Normalize the texts of a batch. A text that becomes empty is rejected, as an empty one is."""
    texts = normalization(batch.texts)
    if texts is batch.texts:
        return batch
    empty = np.asarray(pc.equal(pc.binary_length(texts), 0))
    if not empty.any():
        return replace(batch, texts=texts)
    emptied = [(number, "empty_text", "empty once normalized") for number in batch.numbers[empty].tolist()]
    return replace(batch, texts=texts).without(emptied)
