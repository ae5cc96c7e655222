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
from recording import RecordingConsole
from tokenizing import recipe, run

from pretok.base.console import NO_CONSOLE
from pretok.base.errors import IntegrityError
from pretok.base.execute import Engine
from pretok.config import make_recipe
from pretok.documents.audit.verify_job import run_verify
from pretok.read.batches import hash_column, hash_texts
from pretok.screen.removed import rows_of as rows_of_list
from pretok.screen.removed import write_removed
from pretok.shards.inputs import load_inputs
from pretok.shards.ledger import (
    WINDOW,
    LedgerWriter,
    ledger_path,
    ledger_rows,
    ledger_schema,
)
from pretok.shards.manifest import Manifest, load_manifest
from pretok.shards.shard_file import ShardReader
from pretok.steps import tokenize_step
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import Unencodable


def documents(count: int) -> list[str]:
    """Texts of very different lengths, some twice."""
    random = np.random.default_rng(0)
    words = ["la", "casa", "è", "bella", "e", "il", "mare", "calmo", "perché", "no", "日本", "ok"]
    return [
        f"{'' if i % 7 else i} {' '.join(random.choice(words, random.integers(1, 60)))}" for i in range(count)
    ]


def rows_of(manifest: Manifest, source: str) -> list[dict[str, Any]]:
    """Every row of a source's ledgers with its split and its absolute record, from 0."""
    before = load_inputs(manifest, source).lines_before()
    found = []
    for shard in manifest.shards:
        rows, reader = pq.read_table(shard.ledger_path).to_pylist(), ShardReader(shard.prefix)
        assert [row["tokens"] for row in rows] == [len(reader[number]) for number in range(len(reader))]
        for row in rows:
            at = before[row["file"], row["start"]] + row["record"]
            found.append({**row, "split": shard.split, "at": at})
    return found


KEEP = ("id", "n:integer", "score=meta.score:float", "ok=meta.ok:boolean", "url=meta.url")


def test_every_row_is_its_record(tmp_path: Path, vocab_dir: Path, here: Engine) -> None:
    """Of a large file that is cut, in which blank lines go over cuts, of a packed one and of small row groups.

    A value of another type is null and counted.
    """
    texts = documents(4_000)
    texts[5] = texts[1300] = texts[3000] = ""  # rejects between documents
    rows: list[dict[str, Any]] = [
        {
            "id": f"it/{i}",
            "text": text,
            "n": None if i % 11 == 0 else i * 10**12,
            "meta": {"score": i / 3, "ok": i % 2 == 0, "url": f'http://à.it/{i}\n"'},
        }
        for i, text in enumerate(texts)
    ]
    rows[500]["n"], rows[2300]["n"] = "alto", 7.5
    lines = [json.dumps(row) for row in rows]
    for at in range(0, 2000, 50):
        lines[at] += "\n" * (at % 130)
    lines[1000] += "\n" * 300_000 + "falso\n\n"
    (tmp_path / "a.jsonl").write_text("\n".join(lines[:2000]) + "\n")
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress("\n".join(lines[2000:3000]).encode()))
    pq.write_table(pa.Table.from_pylist(rows[3000:]), tmp_path / "c.parquet", row_group_size=50)
    read = (tmp_path / "a.jsonl").read_text().splitlines()
    where = {
        "a.jsonl": [json.loads(line) if line.startswith("{") else line for line in read],
        "b.jsonl.zst": rows[2000:3000],
        "c.parquet": rows[3000:],
    }
    inputs: list[Path | str] = [tmp_path / name for name in where]
    made, plain = (
        recipe(tmp_path / name, vocab_dir, {"it": inputs}, keep, size=40_000)
        for name, keep in (("kept", KEEP), ("plain", []))
    )
    run(made, here)
    run(plain, here)
    manifest = load_manifest(made.shards_dir)
    assert len(manifest.of("it")) > 5
    found = rows_of(manifest, "it")
    assert {row["split"] for row in found} == {"train", "val"}
    assert sum(row["start"] > 0 for row in found) > 100  # the large file was cut
    for row in found:
        record = where[Path(row["file"]).name][row["at"]]
        text, meta = record["text"].encode(), record["meta"]
        assert row["bytes"] == len(text)
        assert row["hash"] == xxhash.xxh64_digest(text, 0) + xxhash.xxh64_digest(text, 1)
        assert (row["id"], row["url"]) == (record["id"], meta["url"])
        assert row["n"] == (record["n"] if isinstance(record["n"], int) else None)
        assert (row["score"], row["ok"]) == (meta["score"], meta["ok"])
    assert len({(row["file"], row["at"]) for row in found}) == len(found) == len(texts) - 3
    (bad,) = [one for one in manifest.reject_lines("it") if one["reason"] == "malformed_json"]
    assert read[bad["position"] - 1] == "falso"
    counts = manifest.sources["it"]
    assert (counts.read, counts.mismatches, manifest.totals.mismatches) == (len(texts) + 1, {"n": 2}, {})
    assert run_verify(made.shards_dir, None, here, NO_CONSOLE)[1] == []
    assert load_manifest(plain.shards_dir).fingerprint == manifest.fingerprint  # kept columns change no token


@pytest.mark.parametrize(
    ("line", "rejected"), [('{"o": "' + "x" * (2 << 20) + '"}', {"too_long": 1}), ("\n" * (5 << 20), {})]
)
def test_what_is_dropped_while_it_is_read_moves_no_kept_value(
    tmp_path: Path, vocab_dir: Path, here: Engine, line: str, rejected: dict[str, int]
) -> None:
    """A line beyond all limits is a reject; blank ones over several batches are nothing."""
    rows = [json.dumps({"text": text, "id": text[:5]}) for text in ("prima", "seconda")]
    (tmp_path / "a.jsonl").write_text(f"{rows[0]}\n{line}\n{rows[1]}\n")
    source = {"inputs": [str(tmp_path / "a.jsonl")], "keep": ["id"], "max_document": 1000}
    data = {"out": tmp_path / "w", "sources": {"it": source}, "vocab": {"path": vocab_dir}}
    run(made := make_recipe(data, "test"), here)
    manifest = load_manifest(made.shards_dir)
    assert manifest.sources["it"].rejected == rejected
    assert [row["id"] for row in rows_of(manifest, "it")] == ["prima", "secon"]


def test_bytes_do_not_depend_on_how_rows_came_and_are_few(tmp_path: Path) -> None:
    random, count = np.random.default_rng(1), 2 * WINDOW + 100
    rows = ledger_rows(
        {
            "file": pa.array(["in.jsonl"] * count),
            "start": np.full(count, 7),
            "record": np.cumsum(random.integers(1, 3, count)),
            "tokens": random.integers(1, 5000, count).astype(np.int32),
            "bytes": random.integers(1, 20_000, count),
            "hash": random.integers(0, 2**63, (count, 2)).astype(np.uint64),
        }
    )
    written = set()
    for step in (997, WINDOW, WINDOW + 1, count):
        path = ledger_path(tmp_path / str(step))
        with LedgerWriter(path) as writer:
            for at in range(0, count, step):
                writer.append(rows.slice(at, step))
            writer.seal("it")
        written.add(path.read_bytes())
    assert len(written) == 1
    assert len(written.pop()) / count < 24
    meta = pq.read_metadata(path)
    assert [meta.row_group(i).num_rows for i in range(meta.num_row_groups)] == [WINDOW, WINDOW, 100]
    assert pq.read_table(path).equals(pa.Table.from_batches([rows]))


def test_what_is_no_ledger_is_named(tmp_path: Path) -> None:
    path = ledger_path(tmp_path / "a")
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(IntegrityError, match="is not a ledger: its columns are x"):
        ledger_schema(path)
    path.write_bytes(b"PAR1")
    with pytest.raises(IntegrityError, match=r"cannot read .*a\.docs\.parquet"):
        ledger_schema(path)


@pytest.mark.parametrize("name", ["in.jsonl", "in.parquet"])
@pytest.mark.parametrize("why", ["kept", "duplicate", "removed", "contaminated", "empty_text", "unencodable"])
def test_a_mismatch_is_counted_with_the_document_that_is_written(
    why: str, name: str, tmp_path: Path, vocab_dir: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each other value of a column of whole numbers is text. None of what is screened out counts."""
    words = "uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici"
    refused = "\ufeff" if why == "empty_text" else words
    texts = [text for n in range(12) for text in (refused, refused, f"documento {n}")]
    values = [n if n % 2 else str(n) for n in range(len(texts))]
    if name == "in.jsonl":
        lines = (json.dumps({"text": text, "n": n}) for text, n in zip(texts, values, strict=True))
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    else:  # a column of a table has one type: all its values are above 64 bits with a sign
        large = pa.array([2**63 + n for n in range(len(texts))], pa.uint64())
        pq.write_table(pa.table({"text": texts, "n": large}), tmp_path / name)
    shards: dict[str, Any] = {}
    match why:
        case "duplicate":
            shards = {"duplicates": "drop"}
        case "removed":
            hashes = hash_column(hash_texts(pa.array([words], pa.large_string())))
            write_removed(tmp_path / "removed.parquet", rows_of_list(hashes, "2026-01-01", "asked"))
            shards = {"removed": tmp_path / "removed.parquet"}
        case "contaminated":
            (tmp_path / "items").mkdir()
            (tmp_path / "items" / "quiz.jsonl").write_text(json.dumps({"question": words}) + "\n")
            shards = {"against": tmp_path / "items", "reject_contaminated": "0.5"}
        case "unencodable":
            whole = Encoder.encode

            def encode(self: Encoder, batch: pa.LargeStringArray) -> Any:
                if bad := [n for n, text in enumerate(batch.to_pylist()) if text == words]:
                    raise Unencodable(bad, "no engine takes it")
                return whole(self, batch)

            monkeypatch.setattr(Encoder, "encode", encode)
    shards["max_reject_share"] = "0.9"
    made = recipe(tmp_path / "out", vocab_dir, {"it": [tmp_path / name]}, ["n:integer"], **shards)
    made = made.model_copy(update={"normalize": made.normalize.model_copy(update={"strip_bom": True})})
    tokenize_step(made, here, RecordingConsole())
    manifest = load_manifest(made.shards_dir)
    written = [values[row["at"]] for row in rows_of(manifest, "it")]
    assert (len(written) == len(texts)) == (why == "kept")
    assert manifest.sources["it"].rejected == ({} if why == "kept" else {why: len(texts) - len(written)})
    wrong = sum(isinstance(value, str) for value in written) if name == "in.jsonl" else len(written)
    assert manifest.sources["it"].mismatches == {"n": wrong}
