"""The ledger: each row is the record that the document was; size, hash and windows as documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard
from tokenizing import recipe, run

from pretok.base.errors import IntegrityError
from pretok.base.execute import Engine
from pretok.shards.format import ShardReader
from pretok.shards.ledger import (
    SCHEMA,
    WINDOW,
    LedgerWriter,
    hash_column,
    hash_texts,
    ledger_path,
    ledger_row,
    ledger_rows,
    merge_ledgers,
)
from pretok.shards.manifest import Manifest, load_manifest
from pretok.shards.plan import SourcePlan
from pretok.shards.seal import lines_before


def documents(count: int, seed: int = 0) -> list[str]:
    """Texts of very different lengths, some twice."""
    random = np.random.default_rng(seed)
    words = ["la", "casa", "è", "bella", "e", "il", "mare", "calmo", "perché", "no", "日本", "ok"]
    return [
        f"{'' if i % 7 else i} {' '.join(random.choice(words, random.integers(1, 60)))}" for i in range(count)
    ]


def rows_of(manifest: Manifest, source: str) -> list[dict[str, Any]]:
    """Every row of a source's ledgers with its shard's ids and its absolute record, from 0."""
    plan = SourcePlan.from_json(source, manifest.contents.plans[source])
    before = lines_before(plan, manifest.contents.parts[source])
    found = []
    for split in ("train", "val"):
        for shard in manifest.of(source, split):
            reader = ShardReader(shard.prefix)
            rows = pq.read_table(ledger_path(shard.prefix)).to_pylist()
            assert len(rows) == len(reader)
            for number, row in enumerate(rows):
                assert row["tokens"] == len(reader[number])
                at = before[row["file"], row["start"]] + row["record"]
                found.append({**row, "split": split, "at": at})
    return found


def write_inputs(folder: Path, texts: list[str]) -> dict[str, list[str]]:
    """The texts as a large and a packed JSON Lines file, and as Parquet of small row groups; what stands where."""
    third = len(texts) // 3
    parts = {
        "a.jsonl": texts[:third],
        "b.jsonl.zst": texts[third : 2 * third],
        "c.parquet": texts[2 * third :],
    }
    for name, part in parts.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in part).encode()
        if name.endswith("parquet"):
            pq.write_table(pa.table({"text": part}), folder / name, row_group_size=50)
        else:
            (folder / name).write_bytes(
                zstandard.ZstdCompressor().compress(lines) if name.endswith("zst") else lines
            )
    return {str(folder / name): part for name, part in parts.items()}


def test_every_row_is_its_record(tmp_path: Path, vocab_dir: Path, here: Engine) -> None:
    texts = documents(10_000)
    texts[5] = texts[4000] = texts[9000] = ""  # rejects between documents
    where = write_inputs(tmp_path, texts)
    made = recipe(tmp_path / "out", vocab_dir, {"it": list(where)}, size=100_000)
    run(made, here)
    manifest = load_manifest(made.shards_dir)
    assert len(manifest.of("it")) > 5
    rows = rows_of(manifest, "it")
    assert {row["split"] for row in rows} == {"train", "val"}
    assert sum(row["start"] > 0 for row in rows) > 100  # the large file was cut
    for row in rows:
        text = where[row["file"]][row["at"]].encode()
        assert row["bytes"] == len(text)
        assert row["hash"] == xxhash.xxh64_digest(text, 0) + xxhash.xxh64_digest(text, 1)
    assert len({(row["file"], row["at"]) for row in rows}) == len(rows) == len(texts) - 3
    size = sum(ledger_path(shard.prefix).stat().st_size for shard in manifest.of("it"))
    assert manifest.contents.fingerprint == load_manifest(made.shards_dir).fingerprint
    assert size / len(rows) < 40  # of small shards; docs/ledger.md has the size of large ones


def write(prefix: Path, rows: pa.RecordBatch, step: int) -> bytes:
    with LedgerWriter(prefix) as writer:
        for at in range(0, len(rows), step):
            writer.append(rows.slice(at, step))
        writer.seal()
    return ledger_path(prefix).read_bytes()


def many_rows(count: int) -> pa.RecordBatch:
    random = np.random.default_rng(1)
    return ledger_rows(
        ("in.jsonl", 7),
        np.cumsum(random.integers(1, 3, count)),
        random.integers(1, 5000, count).astype(np.int32),
        random.integers(1, 20_000, count),
        random.integers(0, 2**63, (count, 2)).astype(np.uint64),
    )


def test_bytes_do_not_depend_on_how_rows_came_and_are_few(tmp_path: Path) -> None:
    rows = many_rows(2 * WINDOW + 100)
    written = {write(tmp_path / str(step), rows, step) for step in (997, WINDOW, WINDOW + 1, len(rows))}
    assert len(written) == 1
    assert len(written.pop()) / len(rows) < 24
    meta = pq.read_metadata(ledger_path(tmp_path / "997"))
    assert [meta.row_group(i).num_rows for i in range(meta.num_row_groups)] == [WINDOW, WINDOW, 100]
    assert pq.read_table(ledger_path(tmp_path / "997")).equals(pa.Table.from_batches([rows]))
    assert ledger_row(ledger_path(tmp_path / "997"), WINDOW + 3) == rows.slice(WINDOW + 3, 1).to_pylist()[0]


def test_merged_ledgers_are_as_one(tmp_path: Path) -> None:
    rows = many_rows(WINDOW + 10)
    whole = write(tmp_path / "whole", rows, 1000)
    for name, part in (("a", rows.slice(0, 70)), ("b", rows.slice(70))):
        write(tmp_path / name, part, 1000)
    merge_ledgers([ledger_path(tmp_path / "a"), ledger_path(tmp_path / "b")], tmp_path / "merged")
    assert ledger_path(tmp_path / "merged").read_bytes() == whole


def test_what_is_no_ledger_is_named(tmp_path: Path) -> None:
    path = ledger_path(tmp_path / "a")
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(IntegrityError, match="is not a ledger: its columns are x"):
        ledger_row(path, 0)
    path.write_bytes(b"PAR1")
    with pytest.raises(IntegrityError, match=r"cannot read .*a\.docs\.parquet"):
        ledger_row(path, 0)


def test_the_hash_is_what_the_library_gives() -> None:
    texts = ["", "a", "è" * 100, "x" * 31, "y" * 32]
    column = hash_column(hash_texts(pa.array(texts, pa.large_string())))
    assert column.to_pylist() == [
        xxhash.xxh64_digest(t.encode(), 0) + xxhash.xxh64_digest(t.encode(), 1) for t in texts
    ]
    assert SCHEMA.field("hash").type == column.type
