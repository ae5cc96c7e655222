"""The ledger: each row is the record that the document was; size, hash and windows as documented."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard
from support import ROOT
from tokenizing import contents, recipe, run

from pretok.audit.verify_job import run_verify
from pretok.base.console import SILENT
from pretok.base.errors import IntegrityError, MismatchError, NoSpace, UsageError
from pretok.base.execute import Engine
from pretok.config import make_recipe
from pretok.read.batches import hash_column, hash_texts
from pretok.removal.job import Request, run_remove
from pretok.shards.format import ShardReader
from pretok.shards.inputs import load_inputs
from pretok.shards.ledger import (
    SCHEMA,
    WINDOW,
    LedgerWriter,
    ledger_path,
    ledger_rows,
    ledger_schema,
    ledger_windows,
)
from pretok.shards.manifest import Manifest, load_manifest


def documents(count: int, seed: int = 0) -> list[str]:
    """Texts of very different lengths, some twice."""
    random = np.random.default_rng(seed)
    words = ["la", "casa", "è", "bella", "e", "il", "mare", "calmo", "perché", "no", "日本", "ok"]
    return [
        f"{'' if i % 7 else i} {' '.join(random.choice(words, random.integers(1, 60)))}" for i in range(count)
    ]


def rows_of(manifest: Manifest, source: str) -> list[dict[str, Any]]:
    """Every row of a source's ledgers with its shard's ids and its absolute record, from 0."""
    before = load_inputs(manifest, source).lines_before()
    found = []
    for split in ("train", "val"):
        for shard in manifest.of(source, split):
            reader = ShardReader(shard.prefix)
            rows = pq.read_table(shard.ledger_path).to_pylist()
            assert len(rows) == len(reader)
            for number, row in enumerate(rows):
                assert row["tokens"] == len(reader[number])
                at = before[row["file"], row["start"]] + row["record"]
                found.append({**row, "split": split, "at": at})
    return found


def records(texts: list[str]) -> list[dict[str, Any]]:
    """Texts with what comes with them."""
    return [
        {
            "id": f"it/{i}",
            "text": text,
            "n": None if i % 11 == 0 else i * 10**12,
            "meta": {"score": i / 3, "ok": i % 2 == 0, "url": f'http://à.it/{i}\n"'},
        }
        for i, text in enumerate(texts)
    ]


KEEP = ("id", "n:integer", "score=meta.score:float", "ok=meta.ok:boolean", "url=meta.url")


def write_inputs(folder: Path, rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The records as a large and a packed JSON Lines file, and as Parquet of small row groups; what stands where."""
    third = len(rows) // 3
    parts = {"a.jsonl": rows[:third], "b.jsonl.zst": rows[third : 2 * third], "c.parquet": rows[2 * third :]}
    for name, part in parts.items():
        lines = "".join(json.dumps(row) + "\n" for row in part).encode()
        if name.endswith("parquet"):
            pq.write_table(pa.Table.from_pylist(part), folder / name, row_group_size=50)
        else:
            (folder / name).write_bytes(
                zstandard.ZstdCompressor().compress(lines) if name.endswith("zst") else lines
            )
    return {str(folder / name): part for name, part in parts.items()}


def test_every_row_is_its_record(tmp_path: Path, vocab_dir: Path, here: Engine) -> None:
    texts = documents(10_000)
    texts[5] = texts[4000] = texts[9000] = ""  # rejects between documents
    where = write_inputs(tmp_path, records(texts))
    made = recipe(tmp_path / "out", vocab_dir, {"it": list(where)}, KEEP, size=100_000)
    run(made, here)
    manifest = load_manifest(made.shards_dir)
    assert len(manifest.of("it")) > 5
    rows = rows_of(manifest, "it")
    assert {row["split"] for row in rows} == {"train", "val"}
    assert sum(row["start"] > 0 for row in rows) > 100  # the large file was cut
    for row in rows:
        record = where[row["file"]][row["at"]]
        text, meta = record["text"].encode(), record["meta"]
        assert row["bytes"] == len(text)
        assert row["hash"] == xxhash.xxh64_digest(text, 0) + xxhash.xxh64_digest(text, 1)
        assert (row["id"], row["n"], row["url"]) == (record["id"], record["n"], meta["url"])
        assert (row["score"], row["ok"]) == (meta["score"], meta["ok"])
    assert len({(row["file"], row["at"]) for row in rows}) == len(rows) == len(texts) - 3
    plain = recipe(tmp_path / "plain", vocab_dir, {"it": list(where)}, size=100_000)
    run(plain, here)
    other = load_manifest(plain.shards_dir)
    assert other.fingerprint == manifest.fingerprint  # what is kept changes no token
    assert other.side_files != manifest.side_files
    assert run_verify(made.shards_dir, None, here, SILENT)[1] == []


def test_a_field_with_the_name_of_a_column_is_kept_under_another(
    tmp_path: Path, vocab_dir: Path, here: Engine
) -> None:
    rows = [{"text": f"Il testo {n}.", "source": f"wiki {n}"} for n in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources: dict[str, list[Path | str]] = {"it": [tmp_path / "a.jsonl"]}
    with pytest.raises(UsageError, match=r"a column 'source'; name the kept one otherwise: my_source=source"):
        recipe(tmp_path / "out", vocab_dir, sources, ["source"])
    made = recipe(tmp_path / "out", vocab_dir, sources, ["my_source=source"])
    run(made, here)
    manifest = removed(made.shards_dir, "my_source = 'wiki 3'")
    assert run_verify(manifest.folder, None, here, SILENT)[1] == []
    assert {row["my_source"] for row in rows_of(manifest, "it")} == {
        f"wiki {n}" for n in range(20) if n != 3
    } | {None}


def removed(shards: Path, where: str) -> Manifest:
    run_remove(Request(shards, "why", where=where), SILENT)
    return load_manifest(shards)


def test_kept_values_of_a_row_group_are_held_once(tmp_path: Path) -> None:
    """With what writing one column takes; putting them together at the end took them twice. In a process of its own, as
    Arrow counts what a process ever took."""
    code = """
import sys, numpy as np, pyarrow as pa
from pathlib import Path
from pretok.shards.ledger import SCHEMA, WINDOW, LedgerWriter, ledger_rows
schema = pa.schema([*SCHEMA, pa.field("id", pa.large_string())])
n = np.arange(1000)
with LedgerWriter(Path(sys.argv[1]), schema) as writer:
    for start in range(0, WINDOW + 1, 1000):
        kept = pa.array([f"{'x' * 1000}{start + i:024}" for i in range(1000)], pa.large_string())
        rows = (n, n, n.astype(np.int32), n, np.zeros((1000, 2), np.uint64))
        writer.append(ledger_rows(pa.array(["f"] * 1000), *rows, [kept], schema))
    writer.seal("it")
print(pa.default_memory_pool().max_memory() / (1024 * WINDOW))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "a")]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert float(done.stdout) < 1.6, done.stderr


@pytest.mark.parametrize(
    ("line", "rejected"), [('{"o": "' + "x" * (2 << 20) + '"}', {"too_long": 1}), ("\n" * (5 << 20), {})]
)
@pytest.mark.parametrize("kept", [[], ["id"]])
def test_what_is_dropped_while_it_is_read_is_a_reject_beside_kept_values(
    tmp_path: Path, vocab_dir: Path, here: Engine, line: str, rejected: dict[str, int], kept: list[str]
) -> None:
    """A line beyond all limits; and blank ones over several batches, which are nothing."""
    rows = [json.dumps({"text": text, "id": text[:5]}) for text in ("prima", "seconda")]
    (tmp_path / "a.jsonl").write_text(f"{rows[0]}\n{line}\n{rows[1]}\n")
    source = {"inputs": [str(tmp_path / "a.jsonl")], "keep": kept, "max_document": 1000}
    made = make_recipe(
        {"out": tmp_path / "w", "sources": {"it": source}, "vocab": {"path": vocab_dir}}, "test"
    )
    run(made, here)
    manifest = load_manifest(made.shards_dir)
    assert manifest.sources["it"].rejected == rejected
    assert [row.get("id") for row in rows_of(manifest, "it")] == (["prima", "secon"] if kept else [None] * 2)


def test_blank_lines_move_no_position(tmp_path: Path, vocab_dir: Path, here: Engine) -> None:
    """Of files that are cut too, in which a run of blank lines may go over a cut."""
    lines = [json.dumps({"text": text}) for text in documents(9000)]
    for at in range(0, 9000, 50):
        lines[at] += "\n" * (at % 130)
    lines[4000] += "\n" * 300_000 + "falso\n\n"
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    made = recipe(tmp_path / "out", vocab_dir, {"it": [tmp_path / "a.jsonl"]}, size=100_000)
    run(made, here)
    read = (tmp_path / "a.jsonl").read_text().splitlines()
    manifest = load_manifest(made.shards_dir)
    rows = rows_of(manifest, "it")
    assert sum(row["start"] > 0 for row in rows) > 100
    for row in rows:
        text = json.loads(read[row["at"]])["text"].encode()
        assert row["hash"] == xxhash.xxh64_digest(text, 0) + xxhash.xxh64_digest(text, 1)
    lines = (made.shards_dir / "rejects/it-00000.jsonl").read_text().splitlines()
    rejects = [json.loads(line) for line in lines]
    assert [read[reject["position"] - 1] for reject in rejects] == ["falso"]
    counts = manifest.data["sources"]["it"]
    assert (
        counts["read"] == len(rows) + len(rejects) == counts["documents"] + sum(counts["rejected"].values())
    )
    assert run_verify(made.shards_dir, None, here, SILENT)[1] == []


def test_a_value_of_another_type_is_null_and_counted(tmp_path: Path, vocab_dir: Path, here: Engine) -> None:
    rows: list[dict[str, Any]] = [{"text": f"testo {i}", "q": i} for i in range(1000)]
    rows[500]["q"], rows[700]["q"], rows[800]["q"] = "alto", 7.5, None
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources: dict[str, list[Path | str]] = {"it": [tmp_path / "a.jsonl"]}
    made = recipe(tmp_path / "null", vocab_dir, sources, ["q:integer"])
    run(made, here)
    manifest = load_manifest(made.shards_dir)
    found = {row["at"]: row["q"] for row in rows_of(manifest, "it")}
    assert found == {i: row["q"] if isinstance(row["q"], int) else None for i, row in enumerate(rows)}
    assert manifest.sources["it"].mismatches == {"q": 2}
    assert manifest.totals.mismatches == {}
    with pytest.raises(MismatchError, match=r"keep was \['q:integer'\] and is \[\]"):
        run(recipe(tmp_path / "null", vocab_dir, sources), here)


@pytest.mark.parametrize("after", [1, 3, 6])
def test_kept_columns_are_the_same_after_a_kill(
    after: int, tmp_path: Path, vocab_dir: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies while the n-th ledger is sealed, also between two parts of a packed file; then it goes on."""
    rows = records(documents(4000))
    where = write_inputs(tmp_path, rows)
    (tmp_path / "b.jsonl.zst").unlink()
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode() * 12
    (tmp_path / "b.jsonl.zst").write_bytes(
        zstandard.ZstdCompressor().compress(lines)
    )  # several batches and parts
    finished = recipe(tmp_path / "finished", vocab_dir, {"it": list(where)}, KEEP, size=400_000)
    run(finished, here)
    assert any(shard.prefix.name.endswith("-1") for shard in load_manifest(finished.shards_dir).shards)
    real, sealed = LedgerWriter.seal, []

    class Killed(KeyboardInterrupt):
        """Passes through everything."""

    def dying(self: LedgerWriter, *of: Any) -> Any:
        sealed.append(1)
        if len(sealed) == after:
            raise Killed
        return real(self, *of)

    made = recipe(tmp_path / "made", vocab_dir, {"it": list(where)}, KEEP, size=400_000)
    monkeypatch.setattr(LedgerWriter, "seal", dying)
    with pytest.raises(Killed):
        run(made, here)
    monkeypatch.setattr(LedgerWriter, "seal", real)
    run(made, here)
    assert contents(made.shards_dir) == contents(finished.shards_dir)


def write(prefix: Path, rows: pa.RecordBatch, step: int) -> bytes:
    with LedgerWriter(ledger_path(prefix)) as writer:
        for at in range(0, len(rows), step):
            writer.append(rows.slice(at, step))
        writer.seal("it")
    return ledger_path(prefix).read_bytes()


def many_rows(count: int) -> pa.RecordBatch:
    random = np.random.default_rng(1)
    return ledger_rows(
        pa.array(["in.jsonl"] * count),
        np.full(count, 7),
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


def test_merged_ledgers_are_as_one(tmp_path: Path) -> None:
    rows = many_rows(WINDOW + 10)
    whole = write(tmp_path / "whole", rows, 1000)
    for name, part in (("a", rows.slice(0, 70)), ("b", rows.slice(70))):
        write(tmp_path / name, part, 1000)
    with LedgerWriter(ledger_path(tmp_path / "merged"), ledger_schema(ledger_path(tmp_path / "a"))) as writer:
        for name in ("a", "b"):
            for window in ledger_windows(ledger_path(tmp_path / name)):
                writer.append(window)
        writer.seal("it")
    assert ledger_path(tmp_path / "merged").read_bytes() == whole


def test_what_is_no_ledger_is_named(tmp_path: Path) -> None:
    path = ledger_path(tmp_path / "a")
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(IntegrityError, match="is not a ledger: its columns are x"):
        ledger_schema(path)
    path.write_bytes(b"PAR1")
    with pytest.raises(IntegrityError, match=r"cannot read .*a\.docs\.parquet"):
        ledger_schema(path)


def test_the_hash_is_what_the_library_gives() -> None:
    texts = ["", "a", "è" * 100, "x" * 31, "y" * 32]
    column = hash_column(hash_texts(pa.array(texts, pa.large_string())))
    assert column.to_pylist() == [
        xxhash.xxh64_digest(t.encode(), 0) + xxhash.xxh64_digest(t.encode(), 1) for t in texts
    ]
    assert SCHEMA.field("hash").type == column.type


def fill(prefix: Path) -> None:
    """Write a ledger of some documents."""
    count = 100
    numbers, files = np.arange(count), pa.array(["a.jsonl"] * count)
    with LedgerWriter(ledger_path(prefix)) as writer:
        hashes = hash_texts(pa.array(documents(count), pa.large_string()))
        writer.append(ledger_rows(files, numbers, numbers, numbers.astype(np.int32), numbers, hashes))
        writer.seal("it")


def test_a_full_disk_leaves_no_ledger_and_is_told_with_its_path(tmp_path: Path) -> None:
    fill(tmp_path / "whole")
    size = ledger_path(tmp_path / "whole").stat().st_size
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in (0, size // 2, size - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limit[1]))
        try:
            with pytest.raises(NoSpace, match=str(ledger_path(tmp_path / "it-00000"))):
                fill(tmp_path / "it-00000")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert len(list(tmp_path.iterdir())) == 1
