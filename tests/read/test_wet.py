"""WET: every record of text is a document, its headers are fields, and damage is named after the last whole record."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
from reading import inputs_of, read, warc_record, wet

from pretok.read import readers
from pretok.read.format import Piece
from pretok.read.kept import parse_keep
from pretok.read.readers import read_piece
from pretok.read.record_format import Conversation, RecordFormat

TEXTS = ["uno\nWARC/1.0\r\n\r\n", "perché?", "tre\r\n\r\n"]
ONE, TWO, THREE = (warc_record("conversion", text.encode()) for text in TEXTS)
DAMAGED = "damaged WET: record 2 "


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_headers_are_fields(tmp_path, pack):
    (tmp_path / "a.wet").write_bytes(wet(TEXTS, pack))
    names = ("WARC-Target-URI", "WARC-Date", "uuid=warc-record-id", "WARC-Type", "no")
    found = read(tmp_path / "a.wet", RecordFormat(), keep=[parse_keep(f"{name}:text") for name in names])
    assert found.texts == dict(enumerate(TEXTS))
    assert found.kept == [
        (f"http://example.org/{n}", f"2026-01-01T00:00:0{n}Z", f"<urn:uuid:{n}>", "conversion", None)
        for n in range(3)
    ]
    joined = RecordFormat("", conversation=Conversation(fields=True, template="{WARC-Date}: {text}"))
    raw = read(tmp_path / "a.wet", joined).texts
    assert raw[1] == '{"WARC-Date":"2026-01-01T00:00:01Z","text":"perché?"}'


@pytest.mark.parametrize(
    ("data", "texts", "error"),
    [
        (ONE + TWO + THREE, TEXTS, ""),
        ((ONE + TWO).replace(b"\r\nContent", b"\nContent") + b"\n\n\n" + THREE, TEXTS, ""),
        (ONE + TWO.replace(b"text/plain", b"text/\r\n plain") + THREE, TEXTS, ""),
        (ONE + TWO.lower().replace(b"warc/", b"WARC/") + THREE, TEXTS, ""),
        (ONE + TWO.rstrip(b"\r\n"), TEXTS[:2], ""),
        (ONE + warc_record("resource", b"no") + THREE, [TEXTS[0], TEXTS[2]], ""),
        (ONE + TWO[:-9], TEXTS[:1], f"{DAMAGED}is longer or shorter"),
        (ONE + TWO[:40], TEXTS[:1], f"{DAMAGED}does not begin with the headers of WARC"),
        (ONE + b"what is this" + TWO, TEXTS[:1], f"{DAMAGED}does not begin with the headers of WARC"),
        (ONE + TWO[:9] + b"x" * (1 << 17) + TWO[9:], TEXTS[:1], f"{DAMAGED}does not begin with"),
        (ONE + TWO.replace(b"Content-Length: 8", b"Content-Length: 7"), TEXTS[:1], f"{DAMAGED}is longer"),
        (ONE + TWO.replace(b"Content-Length: 8", b"Content-Length: 50") + THREE, TEXTS[:1], f"{DAMAGED}is longer"),
        (ONE + TWO.replace(b"Content-Length: 8", b"Content-Length: -8"), TEXTS[:1], f"{DAMAGED}has no Content-Length"),
        (ONE + TWO.replace(b"Content-Length: 8", b"Content-Length: " + b"9" * 5000), TEXTS[:1], f"{DAMAGED}has no"),
        (gzip.compress(ONE) + gzip.compress(TWO)[:-40], TEXTS[:1], "the gzip stream ends in the middle of a frame"),
        (gzip.compress(ONE + TWO) + b"garbage", TEXTS[:2], "other bytes follow the last frame of gzip"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("batch_bytes", [1, 1 << 22])
def test_damage_comes_after_the_last_whole_record(tmp_path, data, texts, error, batch_bytes, monkeypatch):
    monkeypatch.setattr(readers, "BATCH_BYTES", batch_bytes)
    (tmp_path / "a.wet").write_bytes(data)
    found = read(tmp_path / "a.wet", RecordFormat())
    assert found.texts == dict(enumerate(texts))
    assert found.error.startswith(error)
    assert bool(found.error) == bool(error)


def test_rejects_and_a_text_that_is_too_long_is_never_in_memory(tmp_path):
    data = ONE + warc_record("conversion", b"\xff") + warc_record("conversion", b"")
    (tmp_path / "a.wet").write_bytes(gzip.compress(data + warc_record("conversion", bytes(64 << 20)) + THREE))
    (file,) = inputs_of(tmp_path / "a.wet")
    tracemalloc.start()
    for _ in read_piece(Piece(file), 0, RecordFormat(max_document=1000)):
        pass
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 32 << 20
    found = read(tmp_path / "a.wet", RecordFormat(max_document=1000))
    assert found.texts == {0: TEXTS[0], 4: TEXTS[2]}
    assert found.rejects == {1: "invalid_utf8", 2: "empty_text", 3: "too_long"}
