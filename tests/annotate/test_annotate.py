"""Columns joined to documents afterwards, against brute force over what was joined and what the documents are."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard
from telling import Told
from tokenizing import recipe, run

from pretok.annotate import index_task, join_task, spill, values
from pretok.annotate import job as annotate_job
from pretok.annotate.job import AnnotateSummary, Request, run_annotate
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.shards import annotations, ledger
from pretok.shards.annotations import Annotations, open_annotations, unknown_sources
from pretok.shards.manifest import Manifest, load_manifest

Row = dict[str, Any]
WINDOW = 20
"""Documents of a row group, so that shards have several."""


def text_of(name: str, number: int) -> str:
    return f"{name} documento {number % 900} " * (1 + number * 7 % 5)  # some texts stand twice


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Path:
    """A WORK of two sources whose ids clash: those of `en` are numbers. A record of each is none."""
    folder = tmp_path_factory.mktemp("annotate")
    for name in ("it", "en"):
        rows = [
            {"id": f"{i}" if name == "it" else i, "text": text_of(name, i) if i != 5 else "", "lang": name}
            for i in range(1000)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = recipe(
        folder / "work", vocab_dir, {n: [folder / f"{n}.jsonl"] for n in ("it", "en")}, ["id"], size=16_000
    )
    with StopFlag() as stop, Engine(0, None, stop) as engine, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "WINDOW", WINDOW)
        run(made, engine)
    return made.shards_dir


@pytest.fixture
def shards(finished: Path, tmp_path: Path) -> Path:
    """A copy that may be written to."""
    shutil.copytree(finished, tmp_path / "work" / "shards")
    return tmp_path / "work" / "shards"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way of cutting happens: many buckets, files of rows, windows, blocks of lines."""
    monkeypatch.setattr(spill, "BUCKET_BYTES", 4000)
    monkeypatch.setattr(annotate_job, "PART_DOCUMENTS", 300)
    monkeypatch.setattr(values, "BLOCK", 3000)
    monkeypatch.setattr(values, "BATCH_ROWS", 97)
    monkeypatch.setattr(join_task, "CHUNK", 2)
    for module in (ledger, join_task, annotations):
        monkeypatch.setattr(module, "WINDOW", WINDOW)


def write_lines(path: Path, rows: Sequence[Row]) -> str:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(zstandard.ZstdCompressor().compress(data) if path.suffix == ".zst" else data)
    return str(path)


def annotate(shards: Path, files: Sequence[str], by: str, engine: Engine, **more: Any) -> AnnotateSummary:
    return run_annotate(Request(shards, tuple(files), tuple(by.split(",")), **more), engine, Told())


def documents(manifest: Manifest) -> list[Row]:
    """What is known of every document without annotations, brute force from ledgers; record is the line."""
    found = []
    for source in manifest.sources:
        for split in ("train", "val"):
            doc = 0
            for shard in manifest.of(source, split):
                for row in pq.read_table(ledger.ledger_path(shard.prefix)).to_pylist():
                    text = text_of(source, line := int(row["id"]))  # ids are the numbers of lines
                    names = {"source": source, "split": split, "doc": doc, "position": line + 1, "text": text}
                    found.append({**row, **names, "hash": row["hash"].hex(), "id": str(row["id"])})
                    doc += 1
    return found


def joined(manifest: Manifest, one: Annotations) -> list[Row]:
    """The rows of the annotations in the order of `documents`, by its windows and by the row of each document."""
    found: list[Row] = []
    for source in manifest.sources:
        for split in ("train", "val"):
            for shard in manifest.of(source, split):
                rows = [row for w in one.windows(manifest, shard, one.columns) for row in w.to_pylist()]
                assert len(rows) == shard.documents
                assert one.row(manifest, shard, 7 % shard.documents) == rows[7 % shard.documents]
                found += rows
    return found


def expected(rows: Sequence[Row], known: Sequence[Row], by: str, columns: Sequence[str]) -> list[Row]:
    """The join as two loops."""
    keys = by.split(",")
    table = {tuple(str(row[key]) for key in keys): row for row in rows}
    result = []
    for document in known:
        row = table.get(tuple(str(document[key]) for key in keys))
        result.append(
            {"notes_matched": row is not None, **{name: row.get(name) if row else None for name in columns}}
        )
    return result


@pytest.mark.parametrize("by", ["id", "source,id", "hash", "file,position", "source,split,doc"])
@pytest.mark.parametrize("form", ["jsonl", "jsonl.zst", "parquet"])
def test_every_document_has_the_row_of_its_key(by: str, form: str, shards: Path, tmp_path: Path, here: Engine) -> None:
    manifest = load_manifest(shards)
    known = documents(manifest)
    keys = by.split(",")
    chance = random.Random(by + form)
    rows: list[Row] = []
    seen = set()
    for number, document in enumerate(known):
        key = tuple(document[name] for name in keys)
        if chance.random() < 0.6 and key not in seen:
            seen.add(key)
            value = {"score": chance.random(), "topic": chance.choice(["à", "b\n", None, "2024-01-05"]), "n": number}
            rows.append({**dict(zip(keys, key, strict=True)), **value, "good": chance.choice([True, False])})
    nobody = [{**row, **{keys[-1]: str(10**6 + i) if keys[-1] in ("id", "hash") else 10**6 + i}} for i, row in enumerate(rows[:20])]
    rows += nobody
    chance.shuffle(rows)
    rows += rows[:3]  # said again
    half = len(rows) // 2
    files = []
    for name, part in (("a", rows[:half]), ("b", rows[half:])):
        path = tmp_path / f"{name}.{form}"
        if form == "parquet":
            pq.write_table(pa.Table.from_pylist(part), path)
            files.append(str(path))
        else:
            files.append(write_lines(path, part))
    summary = annotate(shards, files, by, here)
    (one,) = open_annotations(load_manifest(shards))
    columns = ["score", "topic", "n", "good"]
    wanted = expected(rows, known, by, columns)
    assert joined(manifest, one) == wanted
    counts = summary.counts
    assert (counts.rows, counts.repeated) == (len(rows) - 3, 3)
    assert counts.rows - counts.rows_matched == 20
    matched = sum(row["notes_matched"] for row in wanted)
    assert (counts.documents, counts.documents_matched) == (len(known), matched)
    assert 0 < matched < len(known)
    assert summary.unmatched is not None
    listed = pq.read_table(summary.unmatched).to_pylist()
    place = {
        (row[keys[-1]], row["given_file"], row["line"]) for row in listed
    }
    given = {(str(row[keys[-1]]), files[i >= half], (i if i < half else i - half) + 1) for i, row in enumerate(rows[:-3]) if row in nobody}
    assert place == given
    assert len(one.record.parts) > 4
    assert len(summary.lonely) == len(summary.unused) == 5
    assert manifest == load_manifest(shards)
