"""The ledgers as SQL and as plain Parquet, against brute force over the inputs; documents found by what they are."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from support import needs
from tokenizing import recipe, run

from pretok.audit.documents import run_inspect
from pretok.audit.find import find_named
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.cli import run_command
from pretok.config import Recipe
from pretok.counts.buckets import SCHEMA
from pretok.shards.format import ShardReader
from pretok.shards.manifest import load_manifest


@pytest.fixture(scope="module")
def rows() -> dict[str, list[dict[str, Any]]]:
    """Records of two sources; one record of each is none."""

    def make(name: str, count: int) -> list[dict[str, Any]]:
        return [
            {
                "id": f"{name}-{i}",
                "text": f"{name} documento {i} " * (1 + i * 7 % 23) if i != 5 else "",
                "meta": {
                    "url": f"https://www{i % 4}.example.{name}/p/{i}",
                    "license": ["cc0", "cc-by", None][i % 3],
                },
            }
            for i in range(count)
        ]

    return {"it": make("it", 700), "en": make("en", 300)}


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path, rows: dict[str, list[dict[str, Any]]]
) -> Recipe:
    # Readers of Parquet take the names of such folders for columns, in the place of those of the file.
    folder = (
        tmp_path_factory.mktemp("it's [a] query") / "license=mit" / "tokens=1" / "count=2" / "reason=none"
    )
    folder.mkdir(parents=True)
    for name, records in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))
    sources: dict[str, list[Path | str]] = {
        name: [str(folder / f"{name}.jsonl").replace("[", "[[]")] for name in rows
    }
    keep = ["id", "url=meta.url", "license=meta.license", "filename=meta.url"]
    built = recipe(folder / "work", vocab_dir, sources, keep)
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        run(built, engine)
    return built


def ask(made: Recipe, capsys: pytest.CaptureFixture[str], sql: str) -> list[list[str]]:
    """Rows of `pretok query` as CSV, without the names."""
    capsys.readouterr()
    assert run_command(["query", str(made.out), sql]) == 0
    return list(csv.reader(io.StringIO(capsys.readouterr().out)))[1:]


@pytest.fixture(scope="module")
def tokens(made: Recipe) -> dict[str, int]:
    """Tokens by id of the document, from the shards and the line each document came from."""
    manifest = load_manifest(made.shards_dir)
    found = {}
    for name in manifest.sources:
        for split in ("train", "val"):
            lengths = [n for s in manifest.of(name, split) for n in ShardReader(s.prefix).lengths.tolist()]
            for number, length in enumerate(lengths):
                position = run_inspect(made.shards_dir, name, number, split).position
                found[f"{name}-{position - 1}"] = length
    return found


def test_columns_are_those_of_the_inputs(
    made: Recipe,
    tokens: dict[str, int],
    rows: dict[str, list[dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    records = {row["id"]: row for part in rows.values() for row in part if row["text"]}
    kept = {
        name: [row["meta"]["license"] or "", row["meta"]["url"], str(tokens[name])]
        for name, row in records.items()
    }
    found = ask(made, capsys, "select id, license, url, tokens from documents")
    assert {name: values for name, *values in found} == kept
    assert len(found) == len(kept) == len(tokens)


def test_views(
    made: Recipe, rows: dict[str, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = load_manifest(made.shards_dir)
    for source, split, doc, position, digest in ask(
        made, capsys, "select source, split, doc, position, hash from documents using sample 40"
    ):
        found = run_inspect(made.shards_dir, source, int(doc), split)
        text = rows[source][int(position) - 1]["text"].encode()
        assert found.position == int(position)
        assert digest == (xxhash.xxh64_hexdigest(text, 0) + xxhash.xxh64_hexdigest(text, 1))
    shards = ask(made, capsys, "select source, split, sum(tokens) from shards group by all order by all")
    assert shards == ask(
        made, capsys, "select source, split, sum(tokens) from documents group by all order by all"
    )
    assert ask(made, capsys, "select source, documents, read, rejected from sources order by 1") == [
        ["en", "299", "300", "1"],
        ["it", "699", "700", "1"],
    ]
    assert ask(made, capsys, "select source, position, reason from rejects order by 1") == [
        ["en", "6", "empty_text"],
        ["it", "6", "empty_text"],
    ]
    assert [int(n) for (n,) in ask(made, capsys, "select bytes from sources order by source")] == [
        manifest.sources[name].bytes for name in ("en", "it")
    ]


def test_words_are_the_sums_of_the_counts(made: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made.out / "counts"
    folder.mkdir()
    for name, words, counts in (("00", ["la", "è"], [3, 4]), ("01", ["la"], [5])):
        columns = {"word": [word.encode() for word in words], "count": counts, "heldout": counts}
        pq.write_table(pa.table(columns, schema=SCHEMA), folder / f"bucket-{name}.parquet")
    assert ask(made, capsys, "select word, count, heldout from words order by count") == [
        ["è", "4", "4"],
        ["la", "8", "8"],
    ]


def test_what_is_wrong_is_said(made: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["query", str(made.out), "select licence from documents"]) == 2
    assert "license" in capsys.readouterr().err  # DuckDB names the nearest column
    assert run_command(["query", str(made.out), "select 1", "--format", "xml"]) == 2
    assert run_command(["query", str(made.out), "select 1 as a, 'è' as b", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"a": 1, "b": "è"}
    assert run_command(["query", str(made.out), "select 1 as one", "--format", "table"]) == 0
    assert "one" in capsys.readouterr().out


@pytest.mark.parametrize("reader", ["polars", "pandas"])
def test_others_open_ledgers_as_they_are(made: Recipe, tokens: dict[str, int], reader: str) -> None:
    library = needs(reader)
    paths = sorted(made.shards_dir.glob("it/*.docs.parquet"))
    frame = library.concat(
        [library.read_parquet(path.read_bytes() if reader == "polars" else path) for path in paths]
    )
    expected = {name: count for name, count in tokens.items() if name.startswith("it")}
    assert dict(zip(frame["id"], frame["tokens"], strict=True)) == expected


def test_documents_are_found(
    made: Recipe, rows: dict[str, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    row = rows["it"][321]
    digest = xxhash.xxh64_hexdigest(row["text"].encode(), 0) + xxhash.xxh64_hexdigest(row["text"].encode(), 1)
    [(_, split, found_as)] = find_named(load_manifest(made.shards_dir), "it-321", 2)
    assert split == "train"
    for how in (
        ["--doc", "it-321"],
        ["--doc", digest],
        ["--doc", "it.jsonl:322"],
        ["--source", "it", "--doc", str(found_as)],
        ["--search", "documento 321 "],
        ["--source", "it", "--search", "documento 321 "],
    ):
        capsys.readouterr()
        assert run_command(["inspect", str(made.shards_dir), *how, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        kept = {"id": row["id"], "url": row["meta"]["url"], "license": row["meta"]["license"]}
        kept["filename"] = row["meta"]["url"]
        assert (found["position"], found["kept"]) == (322, kept), how
    for how, message in (
        (["--doc", "nobody"], "has no document 'nobody'"),
        (["--doc", "it-1", "--random", "1"], "one of --doc"),
        (["--source", "it", "--doc", "it-1"], "with --source it is a number"),
        ([], "one of --doc"),
    ):
        assert run_command(["inspect", str(made.shards_dir), *how]) == 2
        assert message in capsys.readouterr().err
    capsys.readouterr()
    assert run_command(["inspect", str(made.shards_dir), "--search", "it documento"]) == 0
    assert "license:" in capsys.readouterr().out
