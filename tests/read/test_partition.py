"""Plans cover every byte, row group and row exactly once, and depend on the inputs alone."""

import random
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretok.read.files import InputFile
from pretok.read.format import Probe
from pretok.read.partition import MAX_SHARD, MIN_SHARD, plan, shard_bytes
from pretok.read.probe import probe_inputs
from pretok.read.recognise import list_inputs

lines = st.lists(st.text('a{"è\r', max_size=40).map(str.encode), max_size=60)


@given(files=st.lists(lines, min_size=1, max_size=4), target=st.integers(1, 200))
def test_jsonl_ranges_cover_every_byte_once_and_start_at_lines(tmp_path_factory, files, target):
    folder = tmp_path_factory.mktemp("plan")
    for i, content in enumerate(files):
        (folder / f"{i}.jsonl").write_bytes(b"".join(line + b"\n" for line in content))
    inputs, _ = list_inputs([f"{folder}/*.jsonl"], "auto")
    partitions = plan("it", probe_inputs(inputs, "text"), target, 2)
    assert [p.number for p in partitions] == list(range(len(partitions)))
    pieces = [piece for p in partitions for piece in p.pieces]
    for i, file in enumerate(inputs):
        data = (folder / f"{i}.jsonl").read_bytes()
        mine = [(p.start or 0, len(data) if p.stop is None else p.stop) for p in pieces if p.file == file]
        assert b"".join(data[a:b] for a, b in mine) == data
        assert all(a == 0 or data[a - 1 : a] == b"\n" for a, _ in mine)
        assert mine[0][0] == 0


def test_cuts_are_near_the_target(tmp_path):
    line = b'{"text":"' + b"x" * 87 + b'"}\n'
    (tmp_path / "a.jsonl").write_bytes(line * 10_000)
    inputs, _ = list_inputs([f"{tmp_path}/a.jsonl"], "auto")
    partitions = plan("it", probe_inputs(inputs, "text"), 50_000, 2)  # 25,000 tokens, 100,000 bytes of text
    sizes = [p.pieces[0].stop - p.pieces[0].start for p in partitions]
    assert len(partitions) == 10
    assert max(sizes) - min(sizes) <= len(line)


def test_small_files_share_a_partition(tmp_path):
    for i in range(20):
        (tmp_path / f"{i:02d}.jsonl").write_bytes(b"x" * 100)
    inputs, _ = list_inputs([f"{tmp_path}/*"], "jsonl")
    partitions = plan("it", probe_inputs(inputs, "text"), 500, 2)  # 1,000 bytes of text
    assert [len(p.pieces) for p in partitions] == [10, 10]


def test_row_groups_cover_every_row_once(tmp_path):
    table = pa.table({"text": ["ciao " * random.Random(i).randrange(50) for i in range(1000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=37)
    inputs, _ = list_inputs([f"{tmp_path}/a.parquet"], "auto")
    partitions = plan("it", probe_inputs(inputs, "text"), 2000, 2)
    spans = [(p.start, p.stop) for q in partitions for p in q.pieces]
    assert len(spans) > 5
    assert spans[0][0] == 0
    assert all(b == c for (_, b), (c, _) in pairwise(spans))
    assert spans[-1][1] == pq.ParquetFile(tmp_path / "a.parquet").num_row_groups


@pytest.mark.parametrize(
    ("size", "expected"), [(1 << 20, MIN_SHARD), (1 << 33, 1 << 26), (1 << 42, MAX_SHARD)]
)
def test_automatic_shard_size(size, expected):
    assert shard_bytes([Probe(InputFile("a", "jsonl", "", size, ""), size)], 2) == expected
