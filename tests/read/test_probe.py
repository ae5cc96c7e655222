"""Planning looks at the first records: the wrong field is told before any work."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pretok.base.errors import UsageError
from pretok.read import parquet
from pretok.read.partition import plan, shard_bytes
from pretok.read.probe import PROBED_FILES, probe_inputs
from pretok.read.recognise import list_inputs

RECORD = {"url": "http://a", "content": "una frase lunga", "n": 1, "data": {"text": "dentro", "id": 7}}


def write(path: Path, kind: str, records: list[dict]) -> Path:
    if kind == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif kind == "gzip":
        path.write_bytes(gzip.compress("\n".join(json.dumps(record) for record in records).encode()))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        from datasets import Dataset

        Dataset.from_list(records).save_to_disk(path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "gzip", "parquet", "dataset"])
def test_a_field_that_is_not_there_is_told_with_those_that_are(tmp_path, kind):
    inputs, _ = list_inputs([str(write(tmp_path / "a", kind, [RECORD] * 3))], "auto")
    with pytest.raises(UsageError) as caught:
        probe_inputs(inputs, "text")
    told = str(caught.value)
    assert told.startswith(
        f"no field 'text' in {inputs[0].path}; text fields: content, data.text, url; choose "
    )
    for field in ("data", "n"):
        with pytest.raises(UsageError, match=f"the field '{field}' is not text"):
            probe_inputs(inputs, field)
    for field in ("content", "data.text"):
        assert probe_inputs(inputs, field)[0].fields


@pytest.mark.parametrize(
    "content",
    [
        b'{"text": null}\n',
        b'{"text": "a"',
        b"rotto\n{}",
        b'{"other": 1}\n{"text": "a"}',
        b"[" * 3000,
        b"",
        b'{"text":' + b"1" * 9000,
    ],
)
def test_where_the_first_records_tell_nothing_the_run_will(tmp_path, content):
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "b.jsonl").write_bytes(b"\xef\xbb\xbf" + b'{"text": "a"}')
    inputs, _ = list_inputs([f"{tmp_path}/*"], "auto")
    probe_inputs(inputs, "text")


def test_only_some_of_many_files_are_looked_into(tmp_path, monkeypatch):
    for number in range(100):
        write(tmp_path / f"{number}.jsonl", "jsonl", [{"text": "a"}])
    inputs, _ = list_inputs([f"{tmp_path}/*"], "auto")
    assert (
        PROBED_FILES // 2 < sum(bool(found.fields) for found in probe_inputs(inputs, "text")) <= PROBED_FILES
    )


def test_a_footer_is_read_once(tmp_path, monkeypatch):
    table = pa.table({"text": ["ciao " * 100] * 200})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    inputs, _ = list_inputs([f"{tmp_path}/a.parquet"], "auto")
    asked = []
    real = parquet.open_parquet
    monkeypatch.setattr(parquet, "open_parquet", lambda path: asked.append(path) or real(path))
    probes = probe_inputs(inputs, "text")
    assert shard_bytes(probes, 2)
    assert len(plan("it", probes, 2000, 2)) > 5
    assert asked == [inputs[0].path]


def test_a_damaged_footer_ends_no_job(tmp_path):
    """pyarrow would end the process at the size of a column: the file is planned whole, and judged when read."""
    table = pa.table({"id": [1, 2, 3] * 50, "text": ["ciao"] * 150, "url": ["u"] * 150})
    pq.write_table(table, tmp_path / "whole.parquet", row_group_size=50)
    data = (tmp_path / "whole.parquet").read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for at in range(footer, len(data) - 8, 3):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        (tmp_path / f"{at}.parquet").write_bytes(damaged)
    inputs, _ = list_inputs([f"{tmp_path}/*.parquet"], "auto")
    probes = probe_inputs(inputs, "text")
    assert [found.file for found in probes] == inputs
    assert probes[-1].parts  # the whole one
    assert sum(not found.parts for found in probes) > 5
