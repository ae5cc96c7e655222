"""Text -> normalized text, for vocabulary and encoding alike.

Enters: an Arrow array of texts. Leaves: an array of the same length. What is done is part of the config fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pretok.texts import buffers

BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class Normalization:
    """Which changes are made to every document; the default makes none.

    unicode: "none" or "nfc"; strip_bom: drop one U+FEFF at the start of a document; crlf: turn CR LF into LF.
    """

    unicode: str = "none"
    strip_bom: bool = False
    crlf: bool = False

    def __call__(self, texts: pa.LargeStringArray) -> pa.LargeStringArray:
        """Apply the changes; texts that need none are not copied."""
        data, _ = buffers(texts)
        if self.strip_bom and pc.any(pc.starts_with(texts, BOM)).as_py():
            texts = pc.if_else(pc.starts_with(texts, BOM), pc.utf8_slice_codeunits(texts, 1), texts)
        if self.crlf and bool((data == 13).any()):
            texts = pc.replace_substring(texts, "\r\n", "\n")
        # No character below U+0300 (lead byte 0xCC) is changed or composed by NFC on its own (UAX #15).
        if self.unicode == "nfc" and bool((data >= 0xCC).any()):
            texts = pc.utf8_normalize(texts, form="NFC")
        return texts
