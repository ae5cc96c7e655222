"""Columns joined to documents afterwards, against brute force over what was joined and what the documents are."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from telling import Told
from tokenizing import recipe, run

from pretok.annotate import job as annotate_job
from pretok.annotate import rows as annotate_rows
from pretok.annotate.job import Request, run_annotate
from pretok.audit.verify_job import run_verify
from pretok.base import sql
from pretok.base.console import SILENT
from pretok.base.errors import UsageError
from pretok.base.execute import Engine
from pretok.base.records import replace
from pretok.base.stop import StopFlag
from pretok.cli import run_command
from pretok.shards import ledger
from pretok.shards.annotations import Annotations, open_annotations, write_annotations
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
    """Every way of cutting happens: windows, blocks."""
    monkeypatch.setattr(annotate_rows, "BLOCK", 3000)
    monkeypatch.setattr(annotate_rows, "BATCH_ROWS", 97)
    for module in (ledger, annotate_job):
        monkeypatch.setattr(module, "WINDOW", WINDOW)


def write_lines(path: Path, rows: Sequence[Row]) -> str:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(zstandard.ZstdCompressor().compress(data) if path.suffix == ".zst" else data)
    return str(path)


def annotate(shards: Path, files: Sequence[str], by: str, **more: Any) -> Annotations:
    return run_annotate(Request(shards, tuple(files), tuple(by.split(",")), **more), Told())


def documents(manifest: Manifest) -> list[Row]:
    """What is known of every document without annotations, brute force from ledgers; record is the line."""
    found = []
    for source in manifest.sources:
        for split in ("train", "val"):
            doc = 0
            for shard in manifest.of(source, split):
                for row in pq.read_table(shard.ledger_path).to_pylist():
                    text = text_of(source, line := int(row["id"]))  # ids are the numbers of lines
                    names = {"source": source, "split": split, "doc": doc, "position": line + 1, "text": text}
                    found.append({**row, **names, "hash": row["hash"].hex(), "id": str(row["id"])})
                    doc += 1
    return found


def joined(manifest: Manifest, one: Annotations) -> list[Row]:
    """The rows of the annotations in the order of `documents`, by its windows."""
    found: list[Row] = []
    for source in manifest.sources:
        for split in ("train", "val"):
            for shard in manifest.of(source, split):
                rows = [row for w in one.windows(shard, one.columns) for row in w.to_pylist()]
                assert len(rows) == shard.documents
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
def test_every_document_has_the_row_of_its_key(by: str, form: str, shards: Path, tmp_path: Path) -> None:
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
            value = {
                "score": chance.random(),
                "topic": chance.choice(["à", "b\n", None, "2024-01-05"]),
                "n": number,
            }
            rows.append({**dict(zip(keys, key, strict=True)), **value, "good": chance.choice([True, False])})
    nobody = [
        {**row, **{keys[-1]: str(10**6 + i) if keys[-1] in ("id", "hash") else 10**6 + i}}
        for i, row in enumerate(rows[:20])
    ]
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
    one = annotate(shards, files, by)
    assert open_annotations(load_manifest(shards)) == [one]
    columns = ["score", "topic", "n", "good"]
    wanted = expected(rows, known, by, columns)
    assert joined(manifest, one) == wanted
    counts = one.record.counts
    assert (counts.rows, counts.repeated) == (len(rows) - 3, 3)
    assert counts.rows - counts.rows_matched == 20
    matched = sum(row["notes_matched"] for row in wanted)
    assert (counts.documents, counts.documents_matched) == (len(known), matched)
    assert 0 < matched < len(known)
    assert len(one.record.parts) > 4
    assert manifest == load_manifest(shards)


def test_what_fits_no_memory_goes_to_disk_and_gives_the_same_bytes(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(annotate_rows, "BLOCK", 1 << 20)
    chance = random.Random(0)
    rows = [{"source": "it", "id": f"{i}", "t": chance.randbytes(500).hex()} for i in range(40_000)]
    file, found = write_lines(tmp_path / "a.jsonl", rows), []
    for module in (sql, annotate_job):
        monkeypatch.setattr(module, "free_memory", lambda: 0)
    for memory in (1 << 30, 16 << 20):
        monkeypatch.setattr(sql, "LEAST_MEMORY", memory)
        annotate(shards, [file], "source,id")
        (one,) = open_annotations(load_manifest(shards))
        found.append([file.checksum for file in one.files.values()])
    assert found[0] == found[1]
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2 << 20))
    with pytest.raises(MemoryError, match="failed to offload"):
        annotate(shards, [file], "source,id")


def test_others_show_what_was_joined(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """query, inspect and disclose; a source that came later has no joined columns."""
    known = documents(load_manifest(shards))
    scores = {d["hash"]: i / 7 for i, d in enumerate(known) if i % 3}
    rows = [{"hash": digest, "score": score, "language": digest[0]} for digest, score in scores.items()]
    annotate(shards, [write_lines(tmp_path / "a.jsonl", rows)], "hash", name="quality")
    fifth = [d for d in known if d["source"] == "it" and int(d["id"]) % 5 == 0]
    annotate(shards, [write_lines(tmp_path / "b.jsonl", rows_for(fifth))], "source,id", name="flagged")
    wanted = [
        {
            **{name: d[name] for name in ("source", "split", "doc")},
            "score": scores.get(d["hash"]),
            "quality_matched": d["hash"] in scores,
            "flagged_matched": d in fifth,
        }
        for d in known
    ]
    query = f"select {', '.join(wanted[0])} from documents order by source != 'it', split, doc"
    assert run_command(["query", str(shards.parent), query, "--format", "json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told == sorted(wanted, key=lambda row: (row["source"] != "it", row["split"], row["doc"]))
    row = next(r for r in wanted if r["split"] == "val" and r["quality_matched"] and r["source"] == "it")
    asked = f"inspect {shards} --source it --split val --doc {row['doc']} --json"
    assert run_command(asked.split()) == 0
    kept = json.loads(capsys.readouterr().out)["kept"]
    assert kept.items() >= {name: row[name] for name in list(row)[3:]}.items()
    assert run_command(["disclose", str(shards), "--format", "json"]) == 0
    tokens: Counter[str | None] = Counter()
    for d in known:
        if d["split"] == "train":
            tokens[d["hash"][0] if d["hash"] in scores else None] += d["tokens"]
    listed = json.loads(capsys.readouterr().out)["general"]["languages"]["listed"]
    assert {entry["value"]: entry["tokens"] for entry in listed} == tokens
    (one,) = [one for one in open_annotations(load_manifest(shards)) if one.name == "flagged"]
    parts = tuple(part for part in one.record.parts if part.source == "it")  # as if `en` had come later
    write_annotations(one.folder, replace(one.record, parts=parts))
    count = "select count(*) from documents where flagged_matched is null"
    assert run_command(["query", str(shards), count]) == 0
    shown = capsys.readouterr()
    assert int(shown.out.split()[1]) == sum(d["source"] == "en" for d in known)
    assert "the annotations flagged know nothing of en: null there" in shown.err
    assert run_command(["query", str(shards), "select * from ledger limit 1", "--format", "json"]) == 0
    assert not {"score", "quality_matched"} & json.loads(capsys.readouterr().out).keys()


def rows_for(known: Sequence[Row], **more: Any) -> list[Row]:
    return [{"source": d["source"], "id": d["id"], **more} for d in known]


def test_running_again_replaces_and_a_kill_changes_nothing(
    shards: Path, tmp_path: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in shards.rglob("*") if path.is_file()}
    manifest = load_manifest(shards)
    known = documents(manifest)
    annotate(shards, [write_lines(tmp_path / "a.jsonl", rows_for(known, q=1))], "source,id")
    (one,) = open_annotations(manifest)

    class Killed(KeyboardInterrupt):
        """Passes through everything."""

    def dying(*_: Any) -> Any:
        raise Killed

    second = write_lines(tmp_path / "b.jsonl", rows_for(known[:50], r="x"))
    with monkeypatch.context() as patch:
        patch.setattr(annotate_job, "write_annotations", dying)
        with pytest.raises(Killed):
            annotate(shards, [second], "source,id")
    assert open_annotations(manifest) == [one]
    assert any("is not in the manifest" in problem for problem in run_verify(shards, 0, here, SILENT)[1])
    annotate(shards, [second], "source,id")
    (one,) = open_annotations(manifest)
    assert one.columns == ("notes_matched", "r")
    assert [row["r"] for row in joined(manifest, one)].count("x") == 50
    assert {path: path.read_bytes() for path in before} == before
    added = {path for path in shards.rglob("*") if path.is_file()} - before.keys()
    assert added == {one.folder / "annotations.json", *one.files}
    assert run_verify(shards, 10, here, SILENT)[1] == []


def test_what_was_changed_since_is_found(
    shards: Path, tmp_path: Path, here: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = load_manifest(shards)
    annotate(shards, [write_lines(tmp_path / "a.jsonl", rows_for(documents(manifest), q=1))], "source,id")
    (one,) = open_annotations(manifest)
    path = one.folder / one.record.parts[2].path
    whole = path.read_bytes()
    path.write_bytes(whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:])
    problems = run_verify(shards, 0, here, SILENT)[1]
    assert len(problems) == 1
    assert str(path) in problems[0]
    path.write_bytes(whole)
    path.with_name("stray.parquet").write_bytes(b"")
    assert "is not in the manifest" in run_verify(shards, 0, here, SILENT)[1][0]
    path.with_name("stray.parquet").unlink()
    record = one.folder / "annotations.json"
    text = record.read_text()
    record.write_text(text.replace('"repeated": 0', '"repeated": 1'))
    assert "edited or damaged" in run_verify(shards, 0, here, SILENT)[1][0]
    record.write_text(text)
    # a source that was made anew since: the ledgers of its shards are others
    part = one.record.parts[0]
    old = replace(one.record, parts=(replace(part, ledger="0" * 32), *one.record.parts[1:]))
    write_annotations(one.folder, old)
    assert f"the documents of {part.source} are others" in run_verify(shards, 0, here, SILENT)[1][0]
    for command in (["query", str(shards), "select 1"], ["inspect", str(shards), "--source", "it"]):
        assert run_command(command) == 2
        assert "run pretok annotate again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "by", "message"),
    [
        ([{"id": 1, "q": 1}, {"id": "1", "q": 2}], "id", "id '1': q is 1 in .*line or row 1 and 2 in"),
        ([{"id": 1, "q": 1}, {"id": 2, "q": True}], "id", "line or row 2: q is True, which is"),
        ([{"id": "1", "q": 1}, {"id": "2"}, {"id": "1", "q": 2}], "id",
         r"id '1': q is 1 in .*a.jsonl, line or row 1 and 2 in .*a.jsonl, line or row 3"),
        ([{"id": "1", "LANG": 1}], "id", "column LANG: documents have one of that name"),
        ([{"id": "1", "split": 1}], "id", "column split: documents have one"),
        ([{"id": "1", "File_Row_Number": 1}], "id", "column File_Row_Number: documents have one"),
        ([{"id": "1", "q": 1}, {"id": "2", "q": -(2**63) - 1}], "id",
         "line or row 2: q is -9223372036854775809, which is too large"),
        ([{"id": "1", "q": 1, "Q": 2}], "id", "two columns are called Q"),
        ([{"id": "1", "q": [1]}], "id", "q holds list.*leave it out with --columns"),
        ([{"id": 1.5, "q": 1}], "id", "id is double; a key is text or a whole number"),
        ([{"name": "1", "q": 1}], "id", "no column 'id'; there are name, q"),
        ([{"id": "1", "q": "x" * 20_000}], "id", "line or row 1: q is .*which cannot be kept"),
        ([{"id": "1"}], "url", "--by url: documents have only .*, id, .*tokenize them with --keep url"),
        ([{"id": "1"}], "source,split", "--by must tell documents apart"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(rows: list[Row], by: str, message: str, shards: Path, tmp_path: Path) -> None:
    if "LANG" in rows[0]:
        message = message.replace("LANG", "ID")
        rows = [{"source": "it", "doc": 3, "split": "train", "ID": 1}]
        by = "source,split,doc"
    with pytest.raises(UsageError, match=message):
        annotate(shards, [write_lines(tmp_path / "a.jsonl", rows)], by)
    assert not (shards / "annotations").exists()


def test_a_float_may_be_large_and_numbers_that_are_not_taken_may_be_anything(
    shards: Path, tmp_path: Path
) -> None:
    rows = [
        {"source": "it", "id": "1", "q": 1e300, "n": 2**70},
        {"source": "it", "id": "2", "q": 2.5, "n": 1},
    ]
    one = annotate(shards, [write_lines(tmp_path / "a.jsonl", rows)], "source,id", columns=("q",))
    found = joined(load_manifest(shards), one)
    assert sorted(row["q"] for row in found if row["notes_matched"]) == [2.5, 1e300]


@pytest.mark.parametrize("rest", ["\n", '{"id": "3",\n"q": 3}\n'])
def test_a_file_that_is_not_a_table_is_named(rest: str, shards: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "1", "q": 1}{"id": "2", "q": 2}\n' + rest)
    with pytest.raises(UsageError, match="line 1 is not one object"):
        annotate(shards, [str(tmp_path / "a.jsonl")], "id")
    ids = pa.array(["1", "2"])
    pq.write_table(pa.Table.from_arrays([ids, ids, ids], ["id", "q", "q"]), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match=r"a.parquet: two columns are called q"):
        annotate(shards, [str(tmp_path / "a.parquet")], "id")


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.binary())])
def test_a_key_of_bytes_is_the_text_that_they_are(kind: pa.DataType, shards: Path, tmp_path: Path) -> None:
    keys = [f"{i}".encode() for i in range(300)]
    table = pa.table({"id": pa.array(keys).cast(kind), "source": ["it"] * 300, "q": list(range(300))})
    pq.write_table(table, tmp_path / "a.parquet")
    made = annotate(shards, [str(tmp_path / "a.parquet")], "source,id")
    assert made.record.counts.documents_matched == made.record.counts.rows - 1 == 299  # one text is empty
    table = table.set_column(0, "id", pa.array([b"\xff"] * 300))
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="id holds bytes that are no text"):
        annotate(shards, [str(tmp_path / "a.parquet")], "source,id")


def test_files_of_others_are_not_deleted(shards: Path, tmp_path: Path) -> None:
    theirs = shards / "annotations" / "notes" / "thesis.parquet"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    for q in (1, 2):
        rows = write_lines(tmp_path / "a.jsonl", [{"source": "it", "id": "1", "q": q}])
        annotate(shards, [rows], "source,id")
    assert theirs.read_text() == "mine"
    assert len(list(theirs.parent.glob("it-*.parquet"))) == len(load_manifest(shards).of("it")) + len(
        load_manifest(shards).of("it", "val")
    )


def test_types_of_a_column_go_together_over_files_and_blocks(shards: Path, tmp_path: Path) -> None:
    manifest = load_manifest(shards)
    known = [d for d in documents(manifest) if d["source"] == "it"]
    rows = rows_for(known)
    for i, row in enumerate(rows):
        row |= {"late": None if i < 300 else "à", "n": i if i < 500 else i / 2, "never": None}
    (tmp_path / "a.jsonl").write_text("\n\n" + "\n \n".join(map(json.dumps, rows)))  # blank lines between
    one = annotate(shards, [str(tmp_path / "a.jsonl")], "source,id")
    assert one.record.columns == {"late": "text", "n": "float", "never": "text"}
    wanted = expected(rows, documents(manifest), "source,id", ["late", "n", "never"])
    assert joined(manifest, one) == wanted
    write_lines(tmp_path / "b.jsonl", [{"source": "it", "id": "999", "late": 3}])
    with pytest.raises(
        UsageError, match=r"b.jsonl, line or row 1: late is integer here and text in rows before"
    ):
        annotate(shards, [str(tmp_path / "[ab].jsonl")], "source,id")
    bad = [{"source": "it", "id": None, "n": 1}, {"source": "it", "id": "7", "n": 1}]
    one = annotate(shards, [write_lines(tmp_path / "c.jsonl", bad)], "source,id")
    counts = one.record.counts
    assert (counts.rows, counts.rows_matched, counts.documents_matched) == (2, 1, 1)
