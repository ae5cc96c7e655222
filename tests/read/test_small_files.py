"""Small files, which are read at once: the same documents as from any other, and only those that were planned."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from pretok.chat.documents import read_documents
from pretok.read import readers
from pretok.read.conversation import RecordFormat
from pretok.read.files import IDENTITY_BYTES, InputFile, read_small
from pretok.read.format import Piece
from pretok.read.normalize import Normalization
from pretok.read.partition import Partition
from pretok.read.readers import Damage
from pretok.read.recognise import list_inputs

LINES = "".join(json.dumps({"text": f"documento {i}, perché no?"}) + "\n" for i in range(40)).encode()
PACKED = zstandard.compress(LINES)
FILES = {
    "a.jsonl": LINES,
    "bom.jsonl": b"\xef\xbb\xbf" + LINES,
    "cut off.jsonl": LINES[:-20],
    "damaged.jsonl.zst": PACKED[:30] + bytes([PACKED[30] ^ 255]) + PACKED[31:],
    "empty.jsonl": b"",
    "frames.jsonl.zst": PACKED + PACKED,
    "gzip.jsonl.gz": gzip.compress(LINES),
    "invalid.jsonl": LINES + b'{"text": "\xff"}\n{"text": 7}\n\n',
    "largest.jsonl": b'{"text": "%s"}' % (b"a" * (IDENTITY_BYTES - 12)),
    "no end.jsonl": LINES[:-1],
    "parts.txt": b"uno|due||tre|",
    "truncated.jsonl.gz": gzip.compress(LINES)[:-30],
}


def inputs(folder: Path) -> list[InputFile]:
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    return list_inputs([f"{folder}/*"], "auto")[0]


def read(pieces: list[Piece], record: RecordFormat) -> list[tuple[object, ...]]:
    return [
        (item.piece, item.error)
        if isinstance(item, Damage)
        else (
            item.piece,
            item.end,
            item.records,
            item.numbers.tolist(),
            item.texts.to_pylist(),
            item.rejects.to_pylist(),
        )
        for item in read_documents(Partition("it", 0, tuple(pieces), 0), record, Normalization())
    ]


@pytest.mark.parametrize("batch_bytes", [100, 4 << 20])
@pytest.mark.parametrize("separator", ["", "|"])
def test_a_small_file_gives_what_any_file_gives(tmp_path, monkeypatch, separator, batch_bytes):
    monkeypatch.setattr(readers, "BATCH_BYTES", batch_bytes)
    files = inputs(tmp_path)
    assert all(read_small(file) == FILES[Path(file.path).name] for file in files)
    pieces = [Piece(file) for file in files]
    pieces += [Piece(files[0], start, stop) for start, stop in ((0, 500), (500, 900), (900, len(LINES)))]
    record = RecordFormat(separator=separator, max_document=IDENTITY_BYTES - 100)
    found = read(pieces, record)
    assert {item[0] for item in found} == {*range(len(pieces))} - {list(FILES).index("empty.jsonl")}
    assert sum(len(item) == 2 for item in found) == 2  # both damaged ones, and no other
    monkeypatch.setattr(readers, "read_small", lambda file: None)
    assert read(pieces, record) == found


def test_a_small_file_that_changes_before_it_is_read_fails_and_afterwards_does_not(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * (IDENTITY_BYTES + 1))
    (file,), _ = list_inputs([str(path)], "auto")
    assert read_small(file) is None
    path.write_bytes(LINES)
    (file,), _ = list_inputs([str(path)], "auto")
    path.write_bytes(LINES.replace(b"documento 20", b"documento xx"))
    *_, (_, error) = read([Piece(file)], RecordFormat())
    assert error == "changed since it was planned: it begins or ends otherwise"
    path.write_bytes(LINES)
    real = readers.read_piece

    def changing(*arguments):
        path.write_bytes(LINES + LINES)
        yield from real(*arguments)

    monkeypatch.setattr(readers, "read_piece", changing)
    ((_, _, records, _, texts, _),) = read([Piece(file)], RecordFormat())  # what was planned, and no damage
    assert records == 40
    assert texts == [json.loads(line)["text"] for line in LINES.splitlines()]
