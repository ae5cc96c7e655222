"""Every command that reads a mix knows classes, appends and packing."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import EOD

import pretok
import pretok.stream
from pretok.cli import run_command
from pretok.shards.manifest import load_manifest
from pretok.stream import audit
from pretok.stream.mix_file import load_mix
from pretok.stream.tapes import path_of


@pytest.fixture(scope="module")
def work(
    tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path, sample_texts: dict[str, list[str]]
) -> Path:
    """Two sources, one of them appended to; mix.json of before, with a class, and mix2.json, which goes on; packed."""
    folder = tmp_path_factory.mktemp("selection")
    texts = {"it1": sample_texts["it"][:80], "it2": sample_texts["it"][80:], "en": sample_texts["en"]}
    for name, some in texts.items():
        rows = [{"text": text, "quality": n % 10} for n, text in enumerate(some)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inputs = [f"it={folder}/it1.jsonl", f"en={folder}/en.jsonl"]
    options = ["--out", str(folder), "--vocab", str(vocab_dir), "--keep", "quality:float", "--workers", "0"]
    good, shards = ["--class", "good=it where quality >= 5 and tokens < 300"], str(folder / "shards")
    mixes = [str(folder / name) for name in ("mix.json", "mix2.json")]
    weights = "good=0.5,it=0.2,en=0.3"
    asked, stage = ["--max-epochs", "9", *good], ["--stage", f"40k:{weights}"]
    packed = ["--weights", weights, "--tokens", "40k", "--seq-len", "128", "--pack", "best-fit"]
    for line in (
        ["tokenize", *inputs, *options],
        ["mix", shards, "--out", mixes[0], *packed, *asked],
        ["tokenize", *inputs, *options, "--append", f"it={folder}/it2.jsonl"],
        ["mix", shards, "--out", mixes[1], "--continue", mixes[0], "--at", "99", *stage, *asked],
    ):
        assert run_command(line) == 0
    return folder


Say = Callable[..., tuple[str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Standard output and error of a command, which ends with `code`."""

    def run(*line: str | Path, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        assert run_command([str(part) for part in line]) == code
        printed = capsys.readouterr()
        return printed.out, " ".join(printed.err.split())

    return run


def test_verify_reads_the_side_files(work: Path, say: Say) -> None:
    say("verify", work / "shards", "--workers", "0")
    digest = next(source.tape for source in load_mix(work / "mix2.json").sources if source.pool == "good")
    path = path_of(work / "side_files", digest)
    data = path.read_bytes()
    path.write_bytes(b"x" + data[1:])
    try:
        assert path.name in say("verify", work / "shards", "--workers", "0", code=2)[1]
    finally:
        path.write_bytes(data)


def test_trace_finds_documents_of_classes_and_appends(work: Path, say: Say) -> None:
    view, seen = pretok.stream.open(work / "shards", work / "mix2.json"), set()
    for number in range(20):  # of what was appended
        out, _ = say("trace", work / "mix2.json", "--doc", f"{work}/it2.jsonl:{number + 1}", "--json")
        for row in json.loads(out):
            assert row["position"] >= 99
            assert view.origin(row["position"])[0].partition("+")[0] == row["of_class"]
            seen.add((row["of_class"], number % 10 >= 5))
    assert {("good", True), ("it", False)} <= seen <= {("good", True), ("it", False), ("it", True)}
    assert "never reads it" in say("trace", work / "mix.json", "--doc", f"{work}/it2.jsonl:6")[1]


def test_trace_says_the_class_and_what_only_fills_up(work: Path, say: Say) -> None:
    view = pretok.stream.open(work / "shards", work / "mix2.json")
    everything = view[:]
    filling = ((everything[:, 1:] == EOD) & (everything[:, :-1] == EOD)).sum(axis=1)
    position = next(n for n in range(len(view)) if view.origin(n)[0] == "good" and filling[n] > 3)
    out, _ = say("trace", work / "mix2.json", "--position", str(position), "--tokens")
    assert "of good, a class of it, epoch" in out
    assert f"the last {filling[position]} are padding:" in out


def test_disclose_counts_each_document_of_all_classes_once(work: Path, say: Say) -> None:
    data = json.loads(say("disclose", work, work / "mix2.json", "--format", "json")[0])
    view = pretok.stream.open(work / "shards", work / "mix2.json")
    sources = {source["name"]: source for source in data["sources"]["sources"]}
    counts = view.prefix_counts(len(view))
    assert sources["it"]["sequences"] == sum(count for name, count in counts.items() if name != "en")
    lengths = sum(tokens for position in range(len(view)) for *_, tokens in audit.pieces(view, position))
    assert data["general"]["tokens"] == lengths  # what fills up is of no document
    assert sources["it"]["documents"] <= sum(s.documents for s in load_manifest(work / "shards").of("it"))


def test_report_and_status_say_what_the_mix_is(work: Path, say: Say) -> None:
    say("report", work)
    text = re.sub(r"<[^>]+>", "", (work / "report.html").read_text())
    assert re.search(r"good is a class: it where quality &gt;= 5", text)
    assert re.search(r"it is packed: \d+ documents, \d+ longer ones cut, \d+ tokens of padding", text)
    assert "It was made before the shards grew" in text
    out, _ = say("status", work)
    assert "packed" in out
    assert "appended to 1 time" in out


def test_export_says_what_it_does_not_keep(work: Path, say: Say, tmp_path: Path) -> None:
    export = ("export", work / "shards", "--to", "megatron", "--stage", "1", "--mix")
    assert "weighs classes (good, it)" in say(*export, work / "mix.json", code=2)[1]
    packed = tmp_path / "packed.json"
    say("mix", work / "shards", "--out", packed, "--weights", "en=1", "--seq-len", "64", "--pack", "best-fit")
    assert "takes the shares of this mix and not its packing" in say(*export, packed)[1]


def test_annotations_of_other_documents_are_refused(tmp_path: Path, vocab_dir: Path, say: Say) -> None:
    for name in ("ours", "theirs"):
        rows = [{"id": n, "text": f"il documento {n} di {name}"} for n in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = f"--keep id:integer --vocab {vocab_dir} --workers 0 --out {tmp_path}/{name}"
        say("tokenize", f"it={tmp_path}/{name}.jsonl", *options.split())
    ours, theirs = (tmp_path / name / "shards" for name in ("ours", "theirs"))
    (tmp_path / "q.jsonl").write_text("".join(json.dumps({"id": n, "score": n}) + "\n" for n in range(60)))
    say("annotate", theirs, tmp_path / "q.jsonl", "--by", "id", "--name", "q")
    mix = ("--seq-len", "8", "--class", "good=it where score > 9", "--weights", "good=1", "--out")
    say("mix", theirs, *mix, theirs.with_name("mix.json"))
    shutil.copytree(theirs / "annotations", ours / "annotations")
    _, printed = say("mix", ours, *mix, ours.with_name("mix.json"), code=2)
    assert "annotations/q/it-00000" in printed
    assert "the documents of it are others than those it was joined to; run pretok annotate again" in printed
    assert not list(ours.parent.rglob("mix.json")) + list(ours.parent.rglob("*.side"))


TEXTS = ["Il mare è salato.", "La luna è lontana.", "Perché no?"]


@pytest.fixture
def columns(tmp_path: Path) -> Path:
    """A folder with the same texts in files of three formats that name their field differently."""
    for name in ("text", "testo", "content"):
        rows = [{"n": number, name: text, "meta": {"text": 0}} for number, text in enumerate(TEXTS)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines)
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet", row_group_size=1)
    return tmp_path


@pytest.mark.parametrize(
    ("fields", "files"),
    [
        ("text,testo,content", 9),
        ("it=text --field it=testo,content", 9),
        ("content --field it=testo", 3),
        ("testo", 3),
    ],
)
def test_files_of_a_source_may_name_their_text_differently(
    columns: Path, vocab_dir: Path, say: Say, fields: str, files: int
) -> None:
    inputs = columns if files == 9 else columns / "testo.*"
    options = f"--vocab {vocab_dir} --out {columns}/w --workers 0 --field {fields}"
    _, said = say("tokenize", f"it={inputs}", *options.split())
    manifest = load_manifest(columns / "w" / "shards")
    assert manifest.totals.documents == files * len(TEXTS)
    texts = [text for batch in pretok.open(columns / "w").texts() for text in batch["text"].to_pylist()]
    assert sorted(texts) == sorted(TEXTS * files)
    if files == 9:
        assert f"the text is in 'testo' of {columns}/testo.jsonl, {columns}/testo.jsonl.gz" in said


def test_a_field_of_one_source_leaves_the_others_alone(columns: Path, vocab_dir: Path, say: Say) -> None:
    out, inputs = columns / "w", f"it={columns}/testo.parquet en={columns}/text.jsonl"
    options = "--field it=testo --keep it=n:integer --keep en=number=n:integer --workers 0"
    say(*f"tokenize {inputs} --out {out} --vocab {vocab_dir} {options}".split())
    manifest = load_manifest(out / "shards")
    assert {name: counts.train.documents for name, counts in manifest.sources.items()} == {"en": 3, "it": 3}
    kept = pretok.open(out).documents("en").read_all()["number"].to_pylist()
    assert kept == pretok.open(out).documents("it").read_all()["n"].to_pylist() == [0, 1, 2]
