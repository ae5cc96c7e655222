"""Every format gives the same documents, whatever the size of batches and of the file; damage and changes are named."""

from __future__ import annotations

import gzip
import json
import random
import unicodedata
from io import FileIO
from itertools import count
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from reading import inputs_of, lines_of, read, wet

from pretok.chat.read_documents import read_documents
from pretok.config import make_recipe
from pretok.read import readers
from pretok.read.format import Piece
from pretok.read.formats import FORMATS
from pretok.read.normalize import Normalization
from pretok.read.partition import Partition, plan
from pretok.read.probe import probe_inputs
from pretok.read.readers import Damage, read_piece
from pretok.read.record_format import FormatName, RecordFormat

TEXTS = [f"Documento n. {i}: perché no? L'è così.\n" * (i % 7 + 1) for i in range(200)]
NUMBERED = dict(enumerate(TEXTS))
PACKS = {"jsonl": bytes, "gz": gzip.compress, "zst": zstandard.compress}
ARROW = {
    "string": pa.string(), "large_string": pa.large_string(), "string_view": pa.string_view(),
    "binary": pa.binary(), "large_binary": pa.large_binary(), "binary_view": pa.binary_view(),
    "dictionary": pa.string(), "large dictionary": pa.large_string(), "binary dictionary": pa.binary(),
    "parquet path": pa.string(),
}  # fmt: skip


def documents(*pieces, record=RecordFormat(), normalization=Normalization()):  # noqa: B008 - frozen
    """What a partition of these pieces gives, Arrow as Python."""
    return [
        (item.piece, item.error)
        if isinstance(item, Damage)
        else (item.piece, item.end, item.numbers.tolist(), item.texts.to_pylist(), item.rejects.to_pylist())
        for item in read_documents(Partition("it", 0, pieces, 0), record, normalization)
    ]


@pytest.fixture(
    params=[
        *PACKS,
        "nested",
        "jsonl path",
        "dataset",
        "dataset path",
        "stream",
        "separator",
        "wet",
        "wet.gz",
        *ARROW,
    ]
)
def same_texts(request, tmp_path):
    """The same documents in every format."""
    kind, path = request.param, tmp_path / "a"
    record = RecordFormat("meta.text" if kind.endswith("path") else "text")
    if kind in PACKS:  # two frames or members
        half = len(lines_of(TEXTS)) // 2
        parts = (lines_of(TEXTS)[:half], lines_of(TEXTS)[half:])
        path.write_bytes(b"".join(map(PACKS[kind], parts)))
    elif kind == "nested":
        path.write_text("".join(json.dumps({"a": {"text": 0}, "text": text}) + "\n" for text in TEXTS))
    elif kind == "jsonl path":
        path.write_text("".join(json.dumps({"text": 1, "meta": {"text": text}}) + "\n" for text in TEXTS))
    elif kind.startswith("dataset"):
        from datasets import Dataset

        nested = {"meta": [{"n": 1, "text": text} for text in TEXTS]}
        Dataset.from_dict(nested if kind == "dataset path" else {"text": TEXTS}).save_to_disk(path)
    elif kind == "stream":
        path, table = tmp_path / "a.stream", pa.table({"text": TEXTS})
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table, max_chunksize=50)
    elif kind == "separator":
        path = tmp_path / "a.txt"
        path.write_text("<END>".join([*TEXTS, ""]), encoding="utf-8")
        record = RecordFormat(separator="<END>")
    elif kind.startswith("wet"):
        path.write_bytes(wet(TEXTS, gzip.compress if kind == "wet.gz" else bytes))
    else:
        texts = [text.encode() for text in TEXTS] if "binary" in kind else TEXTS
        column = pa.array(texts, ARROW[kind])
        column = column.dictionary_encode() if kind.endswith("dictionary") else column
        table = pa.table({"id": range(len(TEXTS)), "text": column})
        if kind == "parquet path":
            meta = pa.StructArray.from_arrays([column, column], ["text", "other"])
            table = pa.table({"text": range(len(TEXTS)), "meta": meta})
        pq.write_table(table, path, row_group_size=50)
    return path, record


def test_every_format_gives_the_same_documents(same_texts, monkeypatch):
    """Also in pieces, as a plan cuts it; a small file is then read at once. In batches of every size."""
    path, record = same_texts
    (file,) = inputs_of(path)
    planned = plan("it", probe_inputs([file], (record.field,)), 5000, 2)
    pieces = [piece for partition in planned for piece in partition.pieces]
    stream, lines = path.suffix == ".stream", (file.format, file.compression) == ("jsonl", "")
    assert (len(pieces) > 2) == (file.format == "parquet" or stream or lines)
    for batch_bytes in (1, 1000, 1 << 22):
        monkeypatch.setattr(readers, "BATCH_BYTES", batch_bytes)
        assert read(path, record) == (NUMBERED, {}, "", []), batch_bytes
        batches = documents(*pieces, record=record)
        assert [text for batch in batches for text in batch[3]] == TEXTS, batch_bytes
        assert {batch[0] for batch in batches} == {*range(len(pieces))}


def test_a_source_may_declare_every_format():
    assert get_args(FormatName) == tuple(FORMATS)
    for name in FORMATS:
        more = {"tokens": {"tokenizer": "old"}} if name == "tokens" else {}
        source = {"inputs": ["a"], "format": name, **more}
        assert make_recipe({"sources": {"it": source}, "out": "w"}, "").sources["it"].declared_format == name


def test_columns_by_path_and_by_name_among_many(tmp_path):
    path = tmp_path / "a.parquet"
    meta = [{"text": "x"}, None, {"text": None}, {"text": "y"}]
    many = {f"c{i}": pa.array([7] * 4, pa.int8()) for i in range(1_000)}
    pq.write_table(pa.table({"a.b": ["a"] * 4, "meta": meta, **many}), path)
    assert read(path, RecordFormat("meta.text")) == (
        {0: "x", 3: "y"},
        dict.fromkeys((1, 2), "null_text"),
        "",
        [],
    )
    assert read(path, RecordFormat("a.b")).texts == dict.fromkeys(range(4), "a")
    assert "type struct<text: string>" in read(path, RecordFormat("meta")).error
    error = read(path, RecordFormat("meta.x")).error
    assert error.startswith("no column 'meta.x'; the columns are a.b, meta.text, c0,")
    assert error.endswith("c47 and 952 more")


def test_bytes_that_are_not_utf8(tmp_path):
    """Also where texts of a block are only wrong together: a text that ends inside of a character, then the rest."""
    values = [b"a", b"\xff", b"\xc3", b"\xa8", b"c"]
    pq.write_table(pa.table({"text": pa.array(values, pa.binary())}), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_bytes(b"".join(b'{"text":"%s"}\n' % value for value in values))
    for name in ("a.parquet", "a.jsonl"):
        found = read(tmp_path / name, RecordFormat())
        assert found == ({0: "a", 4: "c"}, dict.fromkeys((1, 2, 3), "invalid_utf8"), "", [])


@given(st.lists(st.text(st.characters(exclude_characters="|\ufeff", exclude_categories=["Cs"])), max_size=8))
def test_separated_text_is_split_like_lines(tmp_path_factory, parts):
    """Without a byte order mark, which is removed at the beginning of a file."""
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("".join(part + "|" for part in parts), encoding="utf-8", newline="")
    found = read(path, RecordFormat(separator="|"), "text")
    assert found.texts == {number: part for number, part in enumerate(parts) if part}
    assert found.rejects == {number: "empty_text" for number, part in enumerate(parts) if not part}


@pytest.mark.parametrize("batch_bytes", [50, 1 << 22])
def test_texts_and_lines_that_are_too_long_are_named(tmp_path, batch_bytes, monkeypatch):
    """What is dropped while it is read and what is found too long in a batch are told alike."""
    monkeypatch.setattr(readers, "BATCH_BYTES", batch_bytes)
    texts = ["a", "b" * 100, "è" * 51, "c" * 101, "d", "e" * 5000]
    (tmp_path / "a.jsonl").write_bytes(lines_of(texts))
    (tmp_path / "a.txt").write_text("|".join(texts), encoding="utf-8")
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.txt", "a.parquet"):
        found = read(tmp_path / name, RecordFormat(separator="|", max_document=100))
        assert found == ({0: "a", 1: "b" * 100, 4: "d"}, dict.fromkeys((2, 3, 5), "too_long"), "", [])
    assert read(tmp_path / "a.txt", RecordFormat(max_document=100)).rejects == {0: "too_long"}
    record = RecordFormat(max_document=1000)
    lines = [b'{"o":"%s","text":"a"}' % (b"x" * (record.max_line - 18 + extra)) for extra in (-1, 0)]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    assert read(tmp_path / "a.jsonl", record) == ({0: "a"}, {1: "too_long"}, "", [])


def test_batches_are_bounded_in_records_and_bytes(tmp_path, monkeypatch):
    """A file of empty texts is millions of rejects; rows of which few are long may be decoded together."""
    monkeypatch.setattr(readers, "BATCH_RECORDS", 10)
    texts = [f"{i}" if i % 3 else "" for i in range(55)]
    (tmp_path / "a.jsonl").write_bytes(lines_of(texts))
    (tmp_path / "a.txt").write_text("|".join([*texts, ""]))
    record = RecordFormat(separator="|")
    for name in ("a.jsonl", "a.txt"):
        batches = read_piece(Piece(*inputs_of(tmp_path / name)), 0, record)
        assert [batch.records for batch in batches] == [10] * 5 + [5]
        assert read(tmp_path / name, record).texts == {i: f"{i}" for i in range(55) if i % 3}
    monkeypatch.setattr(readers, "BATCH_BYTES", 100)
    pq.write_table(pa.table({"text": ["a"] * 30 + ["b" * 150] * 7}), tmp_path / "a.parquet")
    batches = read_piece(Piece(*inputs_of(tmp_path / "a.parquet")), 0, record)
    assert [batch.records for batch in batches] == [10, 1, 10, 1, 8, *[1] * 7]


@pytest.mark.parametrize(("batch_bytes", "records"), [(1, 1 << 18), (7, 1), (50, 1 << 18), (1 << 22, 1)])
def test_blank_lines_are_no_records(tmp_path, batch_bytes, records, monkeypatch):
    """Wherever the reader's blocks end, every other record keeps the number of its line."""
    monkeypatch.setattr(readers, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(readers, "BATCH_RECORDS", records)
    lines = ["", "", "A", "", " \t", "", "B", "C", "7", "", "D", "", ""]
    data = "".join((json.dumps({"text": x}) if x.isalpha() else x) + "\n" for x in lines)
    (tmp_path / "a.jsonl").write_text(data)
    found = read(tmp_path / "a.jsonl", RecordFormat())
    assert found == ({2: "A", 6: "B", 7: "C", 10: "D"}, {8: "not_an_object"}, "", [])
    assert documents(Piece(*inputs_of(tmp_path / "a.jsonl")))[-1][1] == len(lines)


def test_a_small_file_that_changes_before_it_is_read_fails_and_afterwards_does_not(tmp_path, monkeypatch):
    path, data = tmp_path / "a.jsonl", lines_of(TEXTS)
    path.write_bytes(data)
    piece = Piece(*inputs_of(path))
    planned = documents(piece)
    path.write_bytes(data.replace(b"n. 20:", b"n. xx:"))
    assert documents(piece)[-1] == (0, "changed since it was planned: it begins or ends otherwise")
    path.write_bytes(data)
    real = readers.read_piece

    def changing(*arguments):
        path.write_bytes(data + data)
        yield from real(*arguments)

    monkeypatch.setattr(readers, "read_piece", changing)
    assert documents(piece) == planned


# Damage and normalization


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet"])
def test_a_read_that_fails_is_tried_again_then_damage_and_an_error_of_ours_is_neither(
    tmp_path, name, monkeypatch
):
    path, texts = tmp_path / name, [random.Random(n).randbytes(50).hex() for n in range(4000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=50)
    if name == "a.jsonl.zst":
        path.write_bytes(b"".join(zstandard.compress(lines_of([text])) for text in texts))
    piece, calls = Piece(*inputs_of(path)), count()

    class Failing(FileIO):
        def __init__(self, *_):
            super().__init__(path)

        def read(self, size=-1):
            if next(calls) in failing:
                raise OSError(5, "Input/output error")
            return super().read(size)

    def fail(*_):
        raise ZeroDivisionError("ours")

    with monkeypatch.context() as patch:
        patch.setattr("pretok.read.files.open_input", Failing)
        patch.setattr("pretok.read.formats.parquet.open_parquet", Failing)
        failing = range(7, 8)
        assert read(path, RecordFormat()).texts == dict(enumerate(texts))
        assert next(calls) > 8
        calls, failing = count(), range(7, 99)
        found = read(path, RecordFormat())
    assert "Input/output error" in found.error
    assert 0 < len(found.texts) < len(texts)
    monkeypatch.setattr("pretok.read.formats.jsonl.parse_lines", fail)
    monkeypatch.setattr("pretok.read.formats.tables.column_records", fail)
    with pytest.raises(ZeroDivisionError, match="ours"):
        documents(piece)


COMBINING = "\u0300\u0301\u0327\u0323\u1161\u11a8\u093c\u3099\u0f71"
LETTERS = "aeiounECc\u1100\uac00\u30ab\u0915\u212b\u0340 x\r\n\ufeff"


@given(
    st.lists(st.text(st.sampled_from(COMBINING + LETTERS), min_size=1, max_size=12), min_size=1, max_size=12),
    st.sampled_from([1, 30, 1 << 22]),
)
def test_documents_are_normalized_one_by_one(tmp_path_factory, texts, batch_bytes):
    """Combining marks at the start of a document join nothing, wherever batches end. What becomes empty is rejected."""
    path: Path = tmp_path_factory.mktemp("nfc") / "a.jsonl"
    path.write_bytes(lines_of(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BATCH_BYTES", batch_bytes)
        batches = documents(
            Piece(*inputs_of(path)), normalization=Normalization("nfc", strip_bom=True, crlf=True)
        )
    wanted = [unicodedata.normalize("NFC", t.removeprefix("\ufeff").replace("\r\n", "\n")) for t in texts]
    found = {n: text for _, _, numbers, given, _ in batches for n, text in zip(numbers, given, strict=True)}
    assert found == {n: text for n, text in enumerate(wanted) if text}
    rejects = {reject["record"]: reject["reason"] for *_, found in batches for reject in found}
    assert rejects == {n: "empty_text" for n, text in enumerate(wanted) if not text}
    plain = pa.array(["plain", "text\n"], pa.large_string())
    assert Normalization("nfc", strip_bom=True, crlf=True)(plain) is plain
