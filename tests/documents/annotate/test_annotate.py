"""Columns joined to documents afterwards, against brute force over what was joined and what the documents are."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from recording import Gauges
from tokenizing import make_work

from pretok.base import sql
from pretok.base.console import NO_CONSOLE
from pretok.base.errors import UsageError
from pretok.base.execute import Engine
from pretok.base.records import replace
from pretok.cli import run_command
from pretok.documents.annotate import annotate_job as annotate_job
from pretok.documents.annotate import rows as annotate_rows
from pretok.documents.annotate.annotate_job import AnnotateRequest, run_annotate
from pretok.documents.audit.verify_job import run_verify
from pretok.shards import ledger
from pretok.shards.annotations import Annotations, open_annotations, write_annotations
from pretok.shards.manifest import SPLITS, Manifest, load_manifest

Row = dict[str, Any]
COUNT = 320
"""Records of a source."""
WINDOW = 20
"""Documents of a row group, so that shards have several."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Path:
    """Shards of two sources whose ids clash: those of `en` are numbers. A record of each is none, some texts stand
    twice."""
    rows = {
        name: [
            {"id": kind(i), "text": f"{name} documento {i % 280} " * (i != 5), "lang": name}
            for i in range(COUNT)
        ]
        for name, kind in (("it", str), ("en", int))
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "WINDOW", WINDOW)
        keeps = {"it": ["id"], "en": ["id:integer"]}
        return make_work(
            tmp_path_factory.mktemp("annotate"), vocab_dir, rows, keeps=keeps, size=3000
        ).shards_dir


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
    return run_annotate(AnnotateRequest(shards, tuple(files), tuple(by.split(",")), **more), NO_CONSOLE)


def documents(manifest: Manifest) -> list[Row]:
    """What is known of every document without annotations, brute force from ledgers; record is the line."""
    return [
        {**row, "source": source, "split": split, "doc": doc, "position": int(row["id"]) + 1}
        | {"hash": row["hash"].hex(), "id": str(row["id"])}  # id: number of the line
        for source, split in product(manifest.sources, SPLITS)
        for doc, row in enumerate(
            row
            for shard in manifest.of(source, split)
            for row in pq.read_table(shard.ledger_path).to_pylist()
        )
    ]


def joined(manifest: Manifest, one: Annotations) -> list[Row]:
    """The rows of the annotations in the order of `documents`, by its windows."""
    shards = [shard for name in manifest.sources for split in SPLITS for shard in manifest.of(name, split)]
    return [
        row for shard in shards for rows in one.windows(shard, list(one.types)) for row in rows.to_pylist()
    ]


def expected(rows: Sequence[Row], known: Sequence[Row], by: str, columns: Sequence[str]) -> list[Row]:
    """The join as two loops."""
    keys = by.split(",")
    table = {tuple(str(row[key]) for key in keys): row for row in rows}
    found = [table.get(tuple(str(document[key]) for key in keys)) for document in known]
    return [
        {"notes_matched": row is not None, **{name: (row or {}).get(name) for name in columns}}
        for row in found
    ]


@pytest.mark.parametrize(
    ("by", "form"),
    [("id", "jsonl"), ("source,id", "jsonl.zst"), ("hash", "jsonl"), ("hash", "parquet"),
     ("file,position", "jsonl.zst"), ("source,split,doc", "parquet")],
)  # fmt: skip
def test_every_document_has_the_row_of_its_key(by: str, form: str, shards: Path, tmp_path: Path) -> None:
    """Rows of two files in any order; some have no document, some are repeated. The bar ends with the last document."""
    manifest, keys, chance = load_manifest(shards), by.split(","), random.Random(by + form)
    known = documents(manifest)
    first_of = {tuple(document[name] for name in keys): n for n, document in reversed([*enumerate(known)])}
    rows: list[Row] = []
    for key, number in chance.sample([*first_of.items()], int(0.6 * len(first_of))):
        values = {"score": chance.random(), "topic": chance.choice(["à", "b\n", None, "2024-01-05"])}
        rows.append({**dict(zip(keys, key, strict=True)), **values, "n": number, "good": number % 3 > 0})
    unknown = [f"{10**6 + i:032}" if keys[-1] in ("id", "hash") else 10**6 + i for i in range(20)]
    rows += [{**row, keys[-1]: name} for row, name in zip(rows, unknown, strict=False)]
    chance.shuffle(rows)
    rows += rows[:3]
    files = [str(tmp_path / f"{name}.{form}") for name in "ab"]
    for path, part in zip(files, (rows[::2], rows[1::2]), strict=True):
        if form == "parquet":
            told = [row | ({"hash": bytes.fromhex(row["hash"])} if by == "hash" else {}) for row in part]
            pq.write_table(pa.Table.from_pylist(told), path)
        else:
            write_lines(Path(path), part)
    gauges = Gauges()
    one = run_annotate(AnnotateRequest(shards, tuple(files), tuple(keys)), gauges)
    assert gauges.whole("annotate") == (len(known), len(known), "documents")
    assert open_annotations(load_manifest(shards)) == [one]
    wanted = expected(rows, known, by, ["score", "topic", "n", "good"])
    assert joined(manifest, one) == [{name: row[name] for name in one.types} for row in wanted]
    assert (one.rows, one.repeated, one.rows - one.rows_matched) == (len(rows) - 3, 3, 20)
    assert (one.documents, one.matched) == (len(known), sum(row["notes_matched"] for row in wanted))
    assert 0 < one.matched < len(known)
    assert len(one.parts) > 4


def test_threads_and_memory_change_no_byte(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(annotate_rows, "BLOCK", 1 << 18)
    chance = random.Random(0)
    rows = [{"source": "it", "id": f"{i}", "t": chance.randbytes(500).hex()} for i in range(20_000)]
    file, checksums = write_lines(tmp_path / "a.jsonl", rows), []
    monkeypatch.setattr(sql, "free_memory", lambda: 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4))
    for threads, memory in ((1, 1 << 30), (4, 1 << 30), (1, 16 << 20)):  # the last goes to disk
        monkeypatch.setattr(sql, "LEAST_MEMORY", memory)
        monkeypatch.setattr(annotate_job, "free_memory", lambda n=threads: n * annotate_job.MEMORY)
        one = annotate(shards, [file], "source,id")
        checksums.append([*one.roots.values()])
    assert checksums[0] == checksums[1] == checksums[2]
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2 << 20))
    with pytest.raises(MemoryError, match="failed to offload"):
        annotate(shards, [file], "source,id")


def rows_for(known: Sequence[Row], **more: Any) -> list[Row]:
    return [{"source": d["source"], "id": d["id"], **more} for d in known]


def test_others_show_what_was_joined(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """query, inspect and disclose; a source that came later has no joined columns."""
    known = documents(load_manifest(shards))
    some = [(i, d["hash"]) for i, d in enumerate(known) if i % 3]
    by_hash = {name: {"hash": name, "score": i / 7, "language": name[0]} for i, name in some}
    annotate(shards, [write_lines(tmp_path / "a.jsonl", [*by_hash.values()])], "hash", name="quality")
    flagged = [d for d in known if d["source"] == "it" and int(d["id"]) % 5 == 0]
    file = write_lines(tmp_path / "b.jsonl", rows_for(flagged))
    one = annotate(shards, [file], "source,id", name="flagged")
    columns = ["source", "split", "doc", "score", "quality_matched", "flagged_matched"]
    for d in known:
        d |= {"quality_matched": d["hash"] in by_hash, "flagged_matched": d in flagged}
        d["score"] = by_hash[d["hash"]]["score"] if d["quality_matched"] else None

    def ask(*words: str) -> tuple[str, str]:
        assert run_command([words[0], str(shards), *words[1:]]) == 0
        return capsys.readouterr()

    query = f"select {', '.join(columns)} from documents order by source != 'en', split, doc"
    shown = [json.loads(line) for line in ask("query", query, "--format", "json")[0].splitlines()]
    assert shown == [{name: d[name] for name in columns} for d in known]
    d = next(d for d in known if d["split"] == "val" and d["quality_matched"])
    place = ("--source", d["source"], "--split", "val", "--doc", str(d["doc"]))
    kept = json.loads(ask("inspect", *place, "--json")[0])["kept"]
    assert kept.items() >= {name: d[name] for name in columns[3:]}.items()
    tokens: Counter[str | None] = Counter()
    for d in known:
        if d["split"] == "train":
            tokens[d["hash"][0] if d["quality_matched"] else None] += d["tokens"]
    listed = json.loads(ask("disclose", "--format", "json")[0])["general"]["languages"]["listed"]
    assert {entry["value"]: entry["tokens"] for entry in listed} == tokens
    parts = {shard: part for shard, part in one.parts.items() if shard.startswith("it/")}
    write_annotations(replace(one, parts=parts))  # as if `en` had come later
    out, printed = ask("query", "select count(*) from documents where flagged_matched is null")
    assert int(out.split()[1]) == sum(d["source"] == "en" for d in known)
    assert "the annotations flagged do not cover en: null there" in printed


def test_running_again_replaces_and_a_kill_changes_nothing(
    shards: Path, tmp_path: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of other people in the folder stay."""
    theirs = shards / "annotations" / "notes" / "thesis.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")
    before = {path: path.read_bytes() for path in shards.rglob("*") if path.is_file()}
    manifest = load_manifest(shards)
    known = documents(manifest)
    first = annotate(shards, [write_lines(tmp_path / "a.jsonl", rows_for(known, q=1))], "source,id")
    second = write_lines(tmp_path / "b.jsonl", rows_for(known[:50], r="x"))
    with monkeypatch.context() as patch:
        patch.setattr(annotate_job, "write_annotations", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):  # which passes through everything
            annotate(shards, [second], "source,id")
    assert open_annotations(manifest) == [first]
    assert any("is not in the manifest" in problem for problem in run_verify(shards, 0, here, NO_CONSOLE)[1])
    one = annotate(shards, [second], "source,id")
    assert tuple(one.types) == ("notes_matched", "r")
    assert [row["r"] for row in joined(manifest, one)].count("x") == 50
    assert {path: path.read_bytes() for path in before} == before
    added = {path for path in shards.rglob("*") if path.is_file()} - before.keys()
    assert added == {one.folder / "annotations.json", *one.roots}
    theirs.unlink()
    assert run_verify(shards, 10, here, NO_CONSOLE)[1] == []


def test_what_was_changed_since_is_found(shards: Path, tmp_path: Path, here: Engine) -> None:
    """A flipped bit, an edited record, ledgers of a source that are others than those joined to."""
    rows = rows_for(documents(load_manifest(shards)), q=1)
    one = annotate(shards, [write_lines(tmp_path / "a.jsonl", rows)], "source,id")
    [shard, part], record = next(iter(one.parts.items())), one.folder / "annotations.json"
    path = one.folder / part.path
    sealed, whole = record.read_text(), path.read_bytes()
    path.write_bytes(whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:])
    problems = run_verify(shards, 0, here, NO_CONSOLE)[1]
    path.write_bytes(whole)
    record.write_text(sealed.replace('"repeated": 0', '"repeated": 1'))
    problems += run_verify(shards, 0, here, NO_CONSOLE)[1]
    write_annotations(replace(one, parts=one.parts | {shard: replace(part, ledger="0" * 64)}))
    problems += run_verify(shards, 0, here, NO_CONSOLE)[1]
    others = f"the documents of {Path(shard).parent} are others than those it was joined to; run pretok annotate again"
    for message, problem in zip((str(path), "edited or damaged", others), problems, strict=True):
        assert message in problem


@pytest.mark.parametrize(
    ("rows", "by", "message"),
    [
        ([{"id": "1", "q": 1}, *[{"id": "2"}] * 300, {"id": 1, "q": 2}], "id",
         "rows with the same key differ: .*a.jsonl, line or row 1, and .*a.jsonl, line or row 302"),
        ([{"id": 1, "q": 1}, {"id": 2, "q": True}], "id", "row 1 or after it: q: Expected integer, got bool; a column"),
        ([{"source": "it", "doc": 3, "split": "train", "ID": 1}], "source,split,doc",
         "column ID: documents have one of that name"),
        ([{"id": "1", "split": 1}], "id", "column split: documents have one"),
        ([{"id": "1", "File_Row_Number": 1}], "id", "column File_Row_Number: documents have one"),
        ([{"id": "1", "q": 1}, {"id": "2", "q": 2**63}], "id", "q: .*too large.*; .*64 bits"),
        ([{"id": "1", "q": 1}, {"id": "2", "q": -(2**70)}], "id", "q: .*too large"),
        ([{"id": i, "q": q} for i, q in enumerate([2**60 + 1, *[1] * 300, 1.5])], "id", "q: no float is 1152921"),
        ([{"id": i, "q": q} for i, q in enumerate([1.5, *[1] * 300, 2**60 + 1])], "id", "q: Integer value 1152921"),
        ([{"id": "1", "q": 1, "Q": 2}], "id", "two columns have the name Q"),
        ([{"id": "1", "q": [1]}], "id", "q: it is list<.*leave it out with --columns"),
        ([{"id": 1.5, "q": 1}], "id", "id: it is double; a key is text or a whole number"),
        ([{"name": "1", "q": 1}], "id", "no column 'id'; the columns are name, q"),
        ([{"id": "1", "q": "x" * 20_000}], "id", "q: a value is too large; .* at most 16384 bytes"),
        ([{"id": "1"}], "url", "--by url: documents have only .*, id, .*tokenize them with --keep url"),
        ([{"id": "1"}], "source,split", "--by must tell documents apart"),
        ('{"id": "1", "q": 1}{"id": "2", "q": 2}\n', "id", "line 1 is not one JSON object"),
        ('{"id": "1",\n"q": 3}\n', "id", "line 1 is not one JSON object"),
        ('{"id": "1", "q": 1.5}\n{"id": "2", "q": 1e999}\n', "id", "line 2 is not one JSON .*out of range"),
        (pa.Table.from_arrays([["1"], [1], [2]], ["id", "q", "q"]), "id", "a.parquet: two columns have the name q"),
        (pa.table({"id": [b"\xff"], "q": [1]}), "id", "id: Invalid UTF8 payload"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(rows: Any, by: str, message: str, shards: Path, tmp_path: Path) -> None:
    path = tmp_path / ("a.parquet" if isinstance(rows, pa.Table) else "a.jsonl")
    if isinstance(rows, pa.Table):
        pq.write_table(rows, path)
    elif isinstance(rows, str):
        path.write_text(rows)
    else:
        write_lines(path, rows)
    with pytest.raises(UsageError, match=message):
        annotate(shards, [str(path)], by)
    assert not (shards / "annotations").exists()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.binary())])
def test_types_of_parquet(kind: pa.DataType, shards: Path, tmp_path: Path) -> None:
    """Bytes of a key are text; dates, times and decimal numbers become text as Arrow writes them."""
    keys, numbers = pa.array([f"{i}".encode() for i in range(300)]).cast(kind), pa.array(range(300))
    values = {
        "day": numbers.cast(pa.int32()).cast(pa.date32()),
        "at": numbers.cast(pa.timestamp("us", "Europe/Rome")),
        "price": numbers.cast(pa.decimal128(21, 2)),
    }
    half = pa.array(np.arange(300, dtype=np.float16))
    table = pa.table({"id": keys, "source": ["it"] * 300, **values, "half": half})
    pq.write_table(table, tmp_path / "a.parquet")
    one = annotate(shards, [str(tmp_path / "a.parquet")], "source,id")
    assert one.matched == one.rows - 1 == 299  # one text is empty
    texts = {name: column.cast(pa.string()).to_pylist() for name, column in values.items()}
    for row in filter(lambda row: row["notes_matched"], joined(load_manifest(shards), one)):
        for name, some in texts.items():
            assert row[name] == some[int(row["half"])]


def test_types_of_a_column_go_together_over_files_and_blocks(shards: Path, tmp_path: Path) -> None:
    """Blank lines are no rows; a null is no key; a column that is not taken may hold anything."""
    known = documents(load_manifest(shards))
    rows = rows_for([d for d in known if d["source"] == "it"])
    for i, row in enumerate(rows):
        row |= {"late": None if i < 100 else "à", "n": i if i < 160 else 1e300 + i / 2, "never": None}
    rows[0]["id"] = None
    (tmp_path / "a.jsonl").write_text("\n\n" + "\n \n".join(json.dumps(r | {"other": [2**70]}) for r in rows))
    columns = ("late", "n", "never")
    one = annotate(shards, [str(tmp_path / "a.jsonl")], "source,id", columns=columns)
    assert one.columns == {"late": "text", "n": "float", "never": "text"}
    assert joined(load_manifest(shards), one) == expected(rows, known, "source,id", columns)
    clashes = {"late": "it is integer, text in rows before", "Late": "rows before have the column late"}
    for name, said in clashes.items():
        write_lines(tmp_path / "b.jsonl", [{"source": "it", "id": "999", name: 3}])
        with pytest.raises(UsageError, match=f"b.jsonl, line or row 1 or after it: {name}: {said}"):
            annotate(shards, [str(tmp_path / "[ab].jsonl")], "source,id", columns=(*columns, name))
