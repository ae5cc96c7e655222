"""Normalization: each document by itself, whatever stands around it; what becomes empty is refused."""

import json
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretok.chat.documents import read_documents
from pretok.read import readers
from pretok.read.conversation import RecordFormat
from pretok.read.normalize import Normalization
from pretok.read.partition import plan
from pretok.read.probe import probe_inputs
from pretok.read.recognise import list_inputs

COMBINING = "\u0300\u0301\u0327\u0323\u1161\u11a8\u093c\u3099\u0f71"
LETTERS = "aeiounECc\u1100\uac00\u30ab\u0915\u212b\u0340 x\r\n\ufeff"


def partition_of(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    inputs, _ = list_inputs([str(path)], "auto")
    (partition,) = plan("it", probe_inputs(inputs, "text"), 1 << 20, 2)
    return partition


@given(
    st.lists(st.text(st.sampled_from(COMBINING + LETTERS), min_size=1, max_size=12), min_size=1, max_size=12),
    st.sampled_from([1, 30, 1 << 22]),
)
def test_documents_are_normalized_one_by_one(tmp_path_factory, documents, batch_bytes):
    """Combining marks at the start of a document join nothing, wherever batches end."""
    partition = partition_of(tmp_path_factory.mktemp("nfc") / "a.jsonl", documents)
    normalization = Normalization("nfc", strip_bom=True, crlf=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BATCH_BYTES", batch_bytes)
        batches = list(read_documents(partition, RecordFormat(), normalization))
    wanted = [unicodedata.normalize("NFC", d.removeprefix("\ufeff").replace("\r\n", "\n")) for d in documents]
    assert [text for batch in batches for text in batch.texts.to_pylist()] == [
        text for text in wanted if text
    ]
    numbers = [number for batch in batches for number in batch.numbers.tolist()]
    assert numbers == [i for i, text in enumerate(wanted) if text]
    rejects = [(r["record"], r["reason"]) for batch in batches for r in batch.rejects.to_pylist()]
    assert rejects == [(i, "empty_text") for i, text in enumerate(wanted) if not text]


def test_only_what_needs_it_is_copied():
    plain = pa.array(["plain", "text\n"], pa.large_string())
    assert Normalization("nfc", strip_bom=True, crlf=True)(plain) is plain
