"""Plans cover every byte, row group and row once and depend on the inputs alone; a wrong field is told before any
work."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import inputs_of, lines_of

from pretok.base.errors import UsageError
from pretok.read.files import InputFile
from pretok.read.format import Probe
from pretok.read.formats import jsonl, parquet
from pretok.read.kept import parse_keep
from pretok.read.partition import MAX_SHARD, MIN_SHARD, plan, shard_bytes
from pretok.read.probe import PROBED_FILES, check_kept, probe_inputs
from pretok.read.readers import read_piece
from pretok.read.record_format import RecordFormat

RECORD = {
    "url": "http://a",
    "content": "una frase",
    "n": 1,
    "tags": ["x"],
    "data": {"text": "dentro", "id": 7},
}


@given(
    files=st.lists(st.lists(st.text('a{"è\r', max_size=40).map(str.encode), max_size=60), min_size=1, max_size=4),
    target=st.integers(1, 200),
)  # fmt: skip
def test_byte_ranges_cover_every_byte_once_and_start_at_lines(tmp_path_factory, files, target):
    folder = tmp_path_factory.mktemp("plan")
    for i, content in enumerate(files):
        (folder / f"{i}.jsonl").write_bytes(b"".join(line + b"\n" for line in content))
    inputs = inputs_of(folder / "*.jsonl")
    partitions = plan("it", probe_inputs(inputs, ("text",)), target, 2)
    assert [p.number for p in partitions] == list(range(len(partitions)))
    pieces = [piece for p in partitions for piece in p.pieces]
    for i, file in enumerate(inputs):
        data = (folder / f"{i}.jsonl").read_bytes()
        mine = [(p.start or 0, len(data) if p.stop is None else p.stop) for p in pieces if p.file == file]
        assert b"".join(data[a:b] for a, b in mine) == data
        assert all(a == 0 or data[a - 1 : a] == b"\n" for a, _ in mine)
        assert mine[0][0] == 0


def test_partitions_are_near_the_target(tmp_path):
    """Large files are cut, small ones share a partition."""
    line = b'{"text":"' + b"x" * 87 + b'"}\n'
    (tmp_path / "a.jsonl").write_bytes(line * 10_000)
    # Of 100,000 bytes of text.
    partitions = plan("it", probe_inputs(inputs_of(tmp_path / "a.jsonl"), ("text",)), 50_000, 2)
    sizes = [(p.pieces[0].stop or 0) - (p.pieces[0].start or 0) for p in partitions]
    assert len(partitions) == 10
    assert max(sizes) - min(sizes) <= len(line)
    for i in range(20):
        (tmp_path / f"{i:02d}.txt").write_bytes(b"x" * 100)
    partitions = plan("it", probe_inputs(inputs_of(tmp_path / "*.txt"), ("text",)), 500, 2)
    assert [len(p.pieces) for p in partitions] == [10, 10]


def test_row_groups_cover_every_row_once_and_a_footer_is_read_once(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["ciao " * (i % 50) for i in range(1000)]}), path, row_group_size=37)
    inputs, asked, real = inputs_of(path), [], parquet.open_parquet
    monkeypatch.setattr(parquet, "open_parquet", lambda path: asked.append(path) or real(path))
    probes = probe_inputs(inputs, ("text",))
    pieces = [piece for partition in plan("it", probes, 2000, 2) for piece in partition.pieces]
    assert asked == [str(path)]
    assert len(pieces) > 5
    assert pieces[0].start == pieces[0].first == 0
    assert all((b.start, b.first) == (a.stop, 37 * (a.stop or 0)) for a, b in pairwise(pieces))
    assert pieces[-1].stop == pq.ParquetFile(path).num_row_groups


@pytest.mark.parametrize(
    ("size", "expected"), [(1 << 20, MIN_SHARD), (1 << 33, 1 << 26), (1 << 42, MAX_SHARD)]
)
def test_automatic_shard_size(size, expected):
    assert shard_bytes([Probe(InputFile("a", "jsonl", "", size, ""), size)], 2) == expected


@pytest.mark.parametrize("kind", ["jsonl", "gzip", "parquet", "dataset"])
def test_an_absent_field_is_refused_with_the_fields_that_are_there(tmp_path: Path, kind: str) -> None:
    path, lines = tmp_path / "a", f"{json.dumps(RECORD)}\n".encode() * 3
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([RECORD] * 3), path)
    elif kind == "dataset":
        from datasets import Dataset

        Dataset.from_list([RECORD] * 3).save_to_disk(path)
    else:
        path.write_bytes(gzip.compress(lines) if kind == "gzip" else lines)
    inputs = inputs_of(path)
    for field, says in (
        ("text", f"^no field 'text' in {inputs[0].path}; text fields: content, data.text, url; choose "),
        ("data", "the field 'data' is not text"),
        ("n", "the field 'n' is not text"),
    ):
        with pytest.raises(UsageError, match=says):
            probe_inputs(inputs, (field,))
    probes = probe_inputs(inputs, ("data.text",))
    check_kept(
        "it", [parse_keep(field) for field in ("n:integer", "data.id:float", "url", "nn:text")], probes
    )
    for field, says in (
        ("n", f"keep: 'n' is integer in {inputs[0].path}, not text; write n:integer$"),
        ("id=data.id", "'data.id' is integer .*; write id=data.id:integer$"),
        ("tags", "'tags' is list .*, not text; leave it out$"),
        *([] if kind in ("jsonl", "gzip") else [("url:boolean", "is text .*, not boolean; write url:text$")]),
        *([] if kind in ("jsonl", "gzip") else [("data:text", "'data' is other in .*; leave it out$")]),
    ):
        with pytest.raises(UsageError, match=says):
            check_kept("it", [parse_keep(field)], probes)
    for field in ("nn", "data"):
        says = f"no field '{field}' .* are content, data.id, data.text, n, tags, url; .* {field}:text"
        with pytest.raises(UsageError, match=says):
            check_kept("it", [parse_keep(field)], probes)


def test_only_some_of_many_files_are_looked_into(tmp_path):
    for number in range(100):
        (tmp_path / f"{number}.jsonl").write_bytes(lines_of(["a"]))
    probes = probe_inputs(inputs_of(tmp_path / "*"), ("text",))
    assert PROBED_FILES // 2 < sum(bool(probe.fields) for probe in probes) <= PROBED_FILES


def test_a_file_is_looked_into_once_for_all_its_pieces(tmp_path, monkeypatch):
    lines = [json.dumps({"testo": f"documento {n}"}) for n in range(1000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    [file] = inputs_of(tmp_path / "a.jsonl")
    pieces = [piece for piece, _ in jsonl.split(jsonl.probe(file, True), 1000)]
    looks, probe = [], jsonl.probe
    monkeypatch.setattr(jsonl, "probe", lambda *given: looks.append(given) or probe(*given))
    record = RecordFormat(fields=("text", "testo"))
    texts = [
        text for piece in pieces for batch in read_piece(piece, 0, record) for text in batch.texts.to_pylist()
    ]
    assert texts == [f"documento {n}" for n in range(1000)]
    assert len(pieces) > 10
    assert len(looks) == 1


def test_a_damaged_footer_ends_no_job(tmp_path):
    """pyarrow would end the process at the size of a column: the file is planned whole, and judged when read."""
    table = pa.table({"id": [1, 2, 3] * 50, "text": ["ciao"] * 150, "url": ["u"] * 150})
    pq.write_table(table, tmp_path / "whole.parquet", row_group_size=50)
    data = (tmp_path / "whole.parquet").read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for at in range(footer, len(data) - 8, 3):
        damaged = data[:at] + bytes([data[at] ^ 1 << (at % 8)]) + data[at + 1 :]
        (tmp_path / f"{at}.parquet").write_bytes(damaged)
    probes = probe_inputs(inputs_of(tmp_path / "*.parquet"), ("text",))
    assert probes[-1].parts  # the whole one
    assert sum(not probe.parts for probe in probes) > 5
