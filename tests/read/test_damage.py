"""Flipped bytes anywhere in an input: what can be read, or CorruptInputError; never anything else."""

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pretok.chat.documents import read_documents
from pretok.read.conversation import RecordFormat
from pretok.read.files import CorruptInputError, InputFile
from pretok.read.format import Piece
from pretok.read.normalize import Normalization
from pretok.read.partition import Partition
from pretok.read.readers import read_piece

TEXTS = [f"Documento {i}: perché no? " * (i % 9 + 1) for i in range(200)]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


def parquet(path, kind, **options):
    pq.write_table(
        pa.table({"text": pa.array(TEXTS, kind), "n": range(200)}), path, row_group_size=50, **options
    )


def write(kind: str, folder) -> Piece:
    """An input of 200 documents."""
    path = folder / "input"
    if kind == "dataset":
        from datasets import Dataset

        Dataset.from_dict({"text": TEXTS}).save_to_disk(folder / "saved")
        (folder / "saved/data-00000-of-00001.arrow").rename(path)
    elif kind == "zstd":
        path.write_bytes(zstandard.ZstdCompressor().compress(LINES))
    elif kind == "gzip":
        path.write_bytes(gzip.compress(LINES))
    elif kind == "parquet":
        parquet(path, pa.string())
    else:
        parquet(path, pa.string_view(), compression="none", use_dictionary=False, data_page_version="2.0")
    file_format = {"zstd": "jsonl", "gzip": "jsonl", "parquet plain": "parquet", "dataset": "arrow"}.get(
        kind, kind
    )
    compression = kind if kind in ("zstd", "gzip") else ""
    return Piece(InputFile(str(path), file_format, compression, len(LINES), ""))


def flip(data: bytes, chosen: random.Random) -> bytes:
    """Some bits or bytes changed; metadata, which stands at the end of a Parquet file, as often as the rest."""
    changed = bytearray(data)
    for _ in range(chosen.choice([1, 1, 2, 8])):
        at = chosen.randrange(max(0, len(changed) - 900) if chosen.random() < 0.5 else 0, len(changed))
        changed[at] = (
            changed[at] ^ 1 << chosen.randrange(8) if chosen.random() < 0.5 else chosen.randrange(256)
        )
    return bytes(changed[: chosen.randrange(len(changed))] if chosen.random() < 0.1 else changed)


@pytest.mark.parametrize("kind", ["zstd", "gzip", "parquet", "parquet plain", "dataset"])
def test_flipped_bytes_are_damage_and_nothing_else(tmp_path, kind):
    piece = write(kind, tmp_path)
    whole = [text for batch in read_piece(piece, 0, RecordFormat()) for text in batch.texts.to_pylist()]
    assert whole == TEXTS
    path = tmp_path / "input"
    good = path.read_bytes()
    damaged = 0
    for seed in range(150):
        chosen = random.Random(seed)
        path.write_bytes(flip(good, chosen))
        try:
            for batch in read_piece(piece, 0, RecordFormat()):
                batch.texts.validate(full=True)
        except CorruptInputError:
            damaged += 1
    assert damaged > 10


def test_an_error_of_ours_is_not_called_damage(tmp_path, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("pretok.read.lines.parse_lines", fail)
    partition = Partition("it", 0, (write("zstd", tmp_path),), 0)
    with pytest.raises(ZeroDivisionError, match="ours"):
        list(read_documents(partition, RecordFormat(), Normalization()))


@pytest.mark.parametrize("kind", ["parquet", "zstd"])
def test_a_read_that_fails_is_damage(tmp_path, kind, monkeypatch):
    piece = write(kind, tmp_path)

    class Broken:
        closed = False

        def __init__(self, *_):
            self.file = (tmp_path / "input").open("rb")

        def __getattr__(self, name):
            return getattr(self.file, name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def read(self, size=-1):
            if self.file.tell() < 5000:
                raise OSError(5, "Input/output error")
            return self.file.read(size)

    monkeypatch.setattr("pretok.read.files.open_input", Broken)
    monkeypatch.setattr("pretok.read.parquet.open_parquet", Broken)
    with pytest.raises(CorruptInputError, match="Input/output error"):
        list(read_piece(piece, 0, RecordFormat()))
