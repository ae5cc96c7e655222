"""Readers: every format gives the same documents; every bad record is located; memory stays bounded."""

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pretok import readers
from pretok.files import CorruptInputError, list_inputs
from pretok.partition import Piece, plan
from pretok.readers import RecordFormat, read_piece

TEXTS = [f"Documento n. {i}: perché no? L'è così.\n" * (i % 7 + 1) for i in range(300)]


def read(path: Path | str, record: RecordFormat = RecordFormat(), declared: str = "auto"):  # noqa: B008 - frozen
    """(texts, numbers, rejects, error) of a whole file."""
    (file,), _ = list_inputs([str(path)], declared)
    texts, numbers, rejects, records = [], [], [], 0
    error = None
    try:
        for batch in read_piece(Piece(file), 0, record):
            assert batch.first == records
            records += batch.records
            assert len(batch.texts) + len(batch.rejects) == batch.records
            texts += batch.texts.to_pylist()
            numbers += batch.numbers.tolist()
            rejects += [(r.record, r.reason) for r in batch.rejects]
    except CorruptInputError as caught:
        error = str(caught)
    assert sorted(numbers + [r for r, _ in rejects]) == list(range(records))
    return texts, numbers, rejects, error


def jsonl(texts=TEXTS) -> bytes:
    return b"".join(json.dumps({"text": t, "id": i}).encode() + b"\n" for i, t in enumerate(texts))


@pytest.fixture(
    params=["jsonl", "gz", "zst", "parquet", "dictionary", "binary", "dataset", "separator", "nested"]
)
def same_texts(request, tmp_path):
    """The same documents in every format."""
    kind, record = request.param, RecordFormat()
    path = tmp_path / {"gz": "a.jsonl.gz", "zst": "a.jsonl.zst", "dataset": "saved"}.get(kind, "a.jsonl")
    if kind == "jsonl":
        path.write_bytes(jsonl())
    elif kind == "gz":
        half = len(jsonl()) // 2
        path.write_bytes(gzip.compress(jsonl()[:half]) + gzip.compress(jsonl()[half:]))
    elif kind == "zst":
        half = len(jsonl()) // 2
        frame = zstandard.ZstdCompressor().compress
        path.write_bytes(frame(jsonl()[:half]) + frame(jsonl()[half:]))
    elif kind == "dataset":
        from datasets import Dataset

        Dataset.from_dict({"text": TEXTS}).save_to_disk(path)
    elif kind == "separator":
        path = tmp_path / "a.txt"
        path.write_text("<END>".join(TEXTS) + "<END>", encoding="utf-8")
        record = RecordFormat(separator="<END>")
    elif kind == "nested":
        path.write_bytes(b"".join(json.dumps({"a": {"text": 0}, "text": t}).encode() + b"\n" for t in TEXTS))
    else:
        kinds = {"parquet": pa.string(), "dictionary": pa.string(), "binary": pa.binary()}
        column = pa.array([t.encode() if kind == "binary" else t for t in TEXTS], kinds[kind])
        column = column.dictionary_encode() if kind == "dictionary" else column
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"id": range(len(TEXTS)), "text": column}), path, row_group_size=50)
    return path, record


@pytest.mark.parametrize("batch_bytes", [1, 1000, 1 << 22])
def test_every_format_gives_the_same_documents(same_texts, batch_bytes, monkeypatch):
    monkeypatch.setattr(readers, "BATCH_BYTES", batch_bytes)
    path, record = same_texts
    assert read(path, record) == (TEXTS, list(range(len(TEXTS))), [], None)


@pytest.mark.parametrize("suffix", ["", ".zst", ".gz"])
def test_batches_are_bounded(tmp_path, suffix):
    words = TEXTS[0].split()
    choose = random.Random(0).choices
    data = jsonl([" ".join(choose(words, k=1000)) for _ in range(6 * readers.BATCH_BYTES // 6000)])
    pack = {"": bytes, ".zst": zstandard.ZstdCompressor().compress, ".gz": gzip.compress}[suffix]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(pack(data))
    (file,), _ = list_inputs([str(path)], "auto")
    sizes = [batch.texts.nbytes for batch in read_piece(Piece(file), 0, RecordFormat())]
    assert len(sizes) >= 3
    assert max(sizes) < 1.5 * readers.BATCH_BYTES


def test_bad_lines_are_located_and_the_good_ones_kept(tmp_path):
    bad = [
        (b'{"text": "cut', "malformed_json"),
        (b'{"id": 1}', "missing_field"),
        (b'{"text": null}', "null_text"),
        (b'{"text": 7}', "text_not_a_string"),
        (b'{"text": "\xff\xfe"}', "invalid_utf8"),
        (b'{"text": "\xc3"}', "invalid_utf8"),
        (b'{"text": "\\ud800"}', "lone_surrogate"),
        (b'{"text": ""}', "empty_text"),
        (b"", "blank_line"),
        (b'"text"', "not_an_object"),
    ]
    lines, expected = [], []
    for line, reason in bad:
        lines.append(b'{"text": "buono"}')
        expected.append((len(lines), reason))
        lines.append(line)
    lines.append(b'{"text": "\xa8 continuation"}')
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    texts, _, rejects, error = read(tmp_path / "a.jsonl")
    assert texts == ["buono"] * len(bad)
    assert rejects == [*expected, (len(lines) - 1, "invalid_utf8")]
    assert error is None


def test_a_bom_and_missing_last_line_end(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"}')
    assert read(tmp_path / "a.jsonl")[0] == ["a", "b"]


@pytest.mark.parametrize("suffix", ["zst", "gz"])
def test_truncated_files_keep_what_came_before(tmp_path, suffix):
    packed = zstandard.ZstdCompressor().compress(jsonl()) if suffix == "zst" else gzip.compress(jsonl())
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(packed[: len(packed) - 9])
    texts, _, rejects, error = read(path)
    assert "truncated" in error
    assert texts == TEXTS[: len(texts)]
    assert rejects == []


def test_parquet_nulls_wrong_column_and_damage(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", None, "", "b"], "n": [1, 2, 3, 4]}), path)
    assert read(path) == (["a", "b"], [0, 3], [(1, "null_text"), (2, "empty_text")], None)
    assert "no column 'body'; the columns are text, n" in read(path, RecordFormat("body"))[3]
    assert "type int64" in read(path, RecordFormat("n"))[3]
    path.write_bytes(path.read_bytes()[:-20])
    assert "damaged Parquet" in read(path)[3]


def test_parquet_binary_with_invalid_utf8(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array([b"a", b"\xff", b"c"], pa.binary())}), path)
    assert read(path) == (["a", "c"], [0, 2], [(1, "invalid_utf8")], None)


@given(st.lists(st.text(st.characters(exclude_characters="|", exclude_categories=["Cs"])), max_size=8))
def test_separated_text_is_split_like_lines(tmp_path_factory, parts):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("".join(part + "|" for part in parts), encoding="utf-8", newline="")
    texts, numbers, rejects, _ = read(path, RecordFormat(separator="|"), "text")
    assert texts == [part for part in parts if part]
    assert numbers == [i for i, part in enumerate(parts) if part]
    assert rejects == [(i, "empty_text") for i, part in enumerate(parts) if not part]


def test_one_document_a_file(tmp_path):
    (tmp_path / "a.txt").write_text("Uno.\n\nDue.\n", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes(b"")
    assert read(tmp_path / "a.txt")[0] == ["Uno.\n\nDue.\n"]
    assert read(tmp_path / "b.txt")[2] == [(0, "empty_text")]


def test_a_hub_dataset_is_streamed_shard_by_shard(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.jsonl").write_bytes(jsonl(TEXTS[i * 10 : i * 10 + 10]))
    inputs, _ = list_inputs([f"hub:{tmp_path}"], "auto")  # the library takes a local folder for an id
    partitions = plan("it", inputs, "text", 1000, 2)
    texts = [
        text
        for partition in partitions
        for piece in partition.pieces
        for batch in read_piece(piece, 0, RecordFormat())
        for text in batch.texts.to_pylist()
    ]
    assert len(partitions) == 3
    assert texts == TEXTS[:30]
