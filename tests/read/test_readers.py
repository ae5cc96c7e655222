"""Readers: every format gives the same documents; every bad record is located; memory stays bounded."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pretok.read import readers
from pretok.read.conversation import RecordFormat
from pretok.read.files import CorruptInputError
from pretok.read.format import Piece
from pretok.read.readers import read_piece
from pretok.read.recognise import list_inputs

TEXTS = [f"Documento n. {i}: perché no? L'è così.\n" * (i % 7 + 1) for i in range(300)]


def read(path: Path | str, record: RecordFormat = RecordFormat(), declared: str = "auto"):  # noqa: B008 - frozen
    """(texts, numbers, rejects, error) of a whole file."""
    (file,), _ = list_inputs([str(path)], declared)
    texts, numbers, rejects, records = [], [], [], 0
    error = None
    try:
        for batch in read_piece(Piece(file), 0, record):
            assert batch.end == records + batch.records
            records += batch.records
            assert len(batch.texts) + len(batch.rejects) == batch.records
            texts += batch.texts.to_pylist()
            numbers += batch.numbers.tolist()
            rejects += [(r["record"], r["reason"]) for r in batch.rejects.to_pylist()]
    except CorruptInputError as caught:
        error = str(caught)
    assert sorted(numbers + [r for r, _ in rejects]) == list(range(records))
    return texts, numbers, rejects, error


PARQUET_KINDS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "dictionary": pa.string(),
    "large dictionary": pa.large_string(),
    "binary dictionary": pa.binary(),
}


def jsonl(texts=TEXTS) -> bytes:
    return b"".join(json.dumps({"text": t, "id": i}).encode() + b"\n" for i, t in enumerate(texts))


PACKS = {"jsonl": bytes, "gz": gzip.compress, "zst": zstandard.compress}
RECORDS = {
    "nested": lambda text: {"a": {"text": 0}, "text": text},
    "jsonl path": lambda text: {"text": 1, "meta": {"text": text}},
}


@pytest.fixture(
    params=[*PACKS, *RECORDS, "dataset", "dataset path", "separator", "parquet path", *PARQUET_KINDS]
)
def same_texts(request, tmp_path):
    """The same documents in every format."""
    kind, path = request.param, tmp_path / "a"
    record = RecordFormat("meta.text" if kind.endswith("path") else "text")
    if kind in PACKS:
        half = len(jsonl()) // 2
        path.write_bytes(PACKS[kind](jsonl()[:half]) + PACKS[kind](jsonl()[half:]))
    elif kind in RECORDS:
        path.write_text("".join(json.dumps(RECORDS[kind](text)) + "\n" for text in TEXTS))
    elif kind.startswith("dataset"):
        from datasets import Dataset

        nested = {"meta": [{"n": 1, "text": text} for text in TEXTS]}
        columns = nested if kind == "dataset path" else {"text": TEXTS}
        Dataset.from_dict({**columns, "id": range(len(TEXTS))}).save_to_disk(path)
    elif kind == "separator":
        path.write_text("<END>".join(TEXTS) + "<END>", encoding="utf-8")
        record = RecordFormat(separator="<END>")
    else:
        of_kind = PARQUET_KINDS.get(kind, pa.string())
        is_bytes = "binary" in str(of_kind)
        column = pa.array([t.encode() if is_bytes else t for t in TEXTS], of_kind)
        if kind.endswith("dictionary"):
            column = column.dictionary_encode()
        table = pa.table({"id": range(len(TEXTS)), "text": column})
        if kind == "parquet path":
            meta = pa.StructArray.from_arrays([column, column], ["text", "other"])
            table = pa.table({"text": range(len(TEXTS)), "meta": meta})
        pq.write_table(table, path, row_group_size=50)
    return path, record


@pytest.mark.parametrize("batch_bytes", [1, 1000, 1 << 22])
def test_every_format_gives_the_same_documents(same_texts, batch_bytes, monkeypatch):
    monkeypatch.setattr(readers, "BATCH_BYTES", batch_bytes)
    path, record = same_texts
    assert read(path, record) == (TEXTS, list(range(len(TEXTS))), [], None)


def test_columns_by_path_and_by_name(tmp_path):
    path = tmp_path / "a.parquet"
    meta = [{"text": "x"}, None, {"text": None}, {"text": "y"}]
    pq.write_table(pa.table({"a.b": ["a"] * 4, "meta": meta}), path)
    nulls = [(1, "null_text"), (2, "null_text")]
    assert read(path, RecordFormat("meta.text")) == (["x", "y"], [0, 3], nulls, None)
    assert read(path, RecordFormat("a.b"))[0] == ["a"] * 4
    assert "type struct<text: string>" in read(path, RecordFormat("meta"))[3]
    assert "no column 'meta.x'; the columns are a.b, meta.text" in read(path, RecordFormat("meta.x"))[3]


def test_bytes_that_are_not_utf8(tmp_path):
    """Also where texts of a block are only wrong together: a text that ends inside of a character, then the rest."""
    values = [b"a", b"\xff", b"\xc3", b"\xa8", b"c"]
    wanted = (["a", "c"], [0, 4], [(n, "invalid_utf8") for n in (1, 2, 3)], None)
    pq.write_table(pa.table({"text": pa.array(values, pa.binary())}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == wanted
    (tmp_path / "a.jsonl").write_bytes(b"".join(b'{"text":"%s"}\n' % value for value in values))
    assert read(tmp_path / "a.jsonl") == wanted


@given(st.lists(st.text(st.characters(exclude_characters="|", exclude_categories=["Cs"])), max_size=8))
def test_separated_text_is_split_like_lines(tmp_path_factory, parts):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("".join(part + "|" for part in parts), encoding="utf-8", newline="")
    texts, numbers, rejects, _ = read(path, RecordFormat(separator="|"), "text")
    assert texts == [part for part in parts if part]
    assert numbers == [i for i, part in enumerate(parts) if part]
    assert rejects == [(i, "empty_text") for i, part in enumerate(parts) if not part]


@pytest.mark.parametrize("batch_bytes", [50, 1 << 22])
def test_texts_that_are_too_long_are_named_in_every_format(tmp_path, batch_bytes, monkeypatch):
    """What is dropped while it is read and what is found too long in a batch are told alike."""
    monkeypatch.setattr(readers, "BATCH_BYTES", batch_bytes)
    texts = ["a", "b" * 100, "è" * 51, "c" * 101, "d", "e" * 5000]
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts))
    (tmp_path / "a.txt").write_text("|".join(texts), encoding="utf-8")
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.txt", "a.parquet"):
        found = read(tmp_path / name, RecordFormat(separator="|", max_document=100))
        assert found == (["a", "b" * 100, "d"], [0, 1, 4], [(i, "too_long") for i in (2, 3, 5)], None)
    assert read(tmp_path / "a.txt", RecordFormat(max_document=100))[2] == [(0, "too_long")]


def test_a_line_that_is_too_long_is_not_parsed(tmp_path):
    record = RecordFormat(max_document=1000)
    other = b"x" * (record.max_line - len(b'{"o":"","text":"a"}'))
    lines = [b'{"o":"%s","text":"a"}' % other, b'{"o":"%sx","text":"a"}' % other, b'{"text":"b"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    assert read(tmp_path / "a.jsonl", record) == (["a", "b"], [0, 2], [(1, "too_long")], None)
    (tmp_path / "a.jsonl").write_bytes(lines[1])
    (file,), _ = list_inputs([str(tmp_path / "a.jsonl")], "auto")
    (batch,) = read_piece(Piece(file), 0, record)
    assert batch.rejects["detail"][0].as_py() == f"more than {record.max_line} bytes"


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_batches_hold_a_bounded_number_of_records(tmp_path, name, monkeypatch):
    """A file of empty texts is millions of rejects."""
    monkeypatch.setattr(readers, "BATCH_RECORDS", 10)
    texts = [f"{i}" if i % 3 else "" for i in range(55)]
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts))
    (tmp_path / "a.txt").write_text("|".join([*texts, ""]))
    record = RecordFormat(separator="|")
    (file,), _ = list_inputs([str(tmp_path / name)], "auto")
    assert [batch.records for batch in read_piece(Piece(file), 0, record)] == [10] * 5 + [5]
    wanted = [i for i in range(55) if i % 3]
    empty = [(i, "empty_text") for i in range(55) if i % 3 == 0]
    assert read(tmp_path / name, record) == ([texts[i] for i in wanted], wanted, empty, None)


@pytest.mark.parametrize("batch_bytes", [1, 7, 50, 1 << 22])
@pytest.mark.parametrize("records", [1, 1 << 18])
def test_blank_lines_are_no_records(tmp_path, batch_bytes, records, monkeypatch):
    """However long, and wherever the reader's blocks end; every other record keeps the number of its line."""
    monkeypatch.setattr(readers, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(readers, "BATCH_RECORDS", records)
    lines = ["", "", "A", "", " \t", "", "B", "C", "7", "", "D", "", ""]
    data = "".join((json.dumps({"text": x}) if x.isalpha() else x) + "\n" for x in lines)
    (tmp_path / "a.jsonl").write_text(data)
    (file,), _ = list_inputs([str(tmp_path / "a.jsonl")], "auto")
    batches = list(read_piece(Piece(file), 0, RecordFormat()))
    found = [(n, t) for b in batches for n, t in zip(b.numbers.tolist(), b.texts.to_pylist(), strict=True)]
    assert found == [(2, "A"), (6, "B"), (7, "C"), (10, "D")]
    assert [(r["record"], r["reason"]) for b in batches for r in b.rejects.to_pylist()] == [
        (8, "not_an_object")
    ]
    assert sum(b.records for b in batches) == 5
    assert batches[-1].end == len(lines)


def test_a_table_of_ten_thousand_columns(tmp_path):
    """Batches follow the size of the one column that is read, not of all."""
    path = tmp_path / "a.parquet"
    columns = {f"c{i}": pa.array([7] * len(TEXTS), pa.int8()) for i in range(10_000)}
    pq.write_table(pa.table({**columns, "text": TEXTS}), path)
    (file,), _ = list_inputs([str(path)], "auto")
    (batch,) = read_piece(Piece(file), 0, RecordFormat())
    assert batch.texts.to_pylist() == TEXTS
    error = read(path, RecordFormat("body"))[3]
    assert error.startswith("no column 'body'; the columns are c0, c1,")
    assert error.endswith("c49 and 9,951 more")
