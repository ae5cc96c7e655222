"""A damaged file among good ones: named, read again alone once it is repaired, or left out whole.

The right values come from the good files alone: a folder in which the damaged file never was, and json.
"""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recording import RecordingConsole
from tokenizing import contents

import pretok
from pretok.base.errors import PartitionsFailed, UsageError
from pretok.base.execute import Engine
from pretok.cli import run_command
from pretok.config import Recipe, make_recipe
from pretok.overview.forecast.forecast_job import run_forecast
from pretok.overview.report.page import run_report
from pretok.overview.status import next_of, status_of
from pretok.read import readers
from pretok.shards.inputs import load_inputs
from pretok.shards.manifest import load_manifest
from pretok.shards.tokenize_job import run_tokenize
from pretok.vocab.counts.count_job import run_count

STEPS = {"count": run_count, "tokenize": run_tokenize}


def texts(name: str, number: int = 40) -> list[str]:
    return [f"documento {k} di {name}, con qualche parola" for k in range(number)]


def packed(name: str) -> bytes:
    return gzip.compress(
        b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts(name)), mtime=0
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Five good files, in several partitions, the third of which is a Parquet file."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "abde":
        (folder / f"{name}.json.gz").write_bytes(packed(name))
    pq.write_table(pa.table({"text": texts("c")}), folder / "c.parquet")
    return folder


def damage(data: Path, *names: str) -> None:
    for name in names:
        path = data / f"{name}.json.gz"
        path.write_bytes(packed(name)[:-60])


class Job:
    """Steps over the files, and what they say."""

    def __init__(self, data: Path, vocab: Path, engine: Engine) -> None:
        self.data, self.vocab, self.engine, self.console = data, vocab, engine, RecordingConsole()

    def recipe(self, out: str = "work", append: str = "", **source: object) -> Recipe:
        appended = [{"inputs": [str(self.data / append)]}] if append else []
        return make_recipe(
            {
                "out": self.data.parent / out,
                "sources": {"it": {"inputs": [f"{self.data}/*"], "append": appended, **source}},
                "vocab": {"path": self.vocab, "holdout": "0.2"},
                "shards": {"size": 400, "duplicates": "drop", "val_fraction": "0.2"},
            },
            "test",
        )

    def run(self, *steps: str, out: str = "work", append: str = "", **source: object) -> Recipe:
        made = self.recipe(out, append, **source)
        for step in steps:
            STEPS[step](made, self.engine, self.console)
        return made


@pytest.fixture
def job(data: Path, vocab_dir: Path, here: Engine) -> Job:
    return Job(data, vocab_dir, here)


both = pytest.mark.parametrize("step", STEPS)


def results(made: Recipe) -> dict[str, bytes]:
    return {name: data for name, data in contents(made.out).items() if not name.startswith("logs")}


def texts_of(made: Recipe) -> list[str]:
    return sorted(pretok.open(made.out).texts().read_all()["text"].to_pylist())


def reading(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read, real = [], readers.read_piece
    monkeypatch.setattr(
        readers,
        "read_piece",
        lambda piece, *more: read.append(Path(piece.file.path).name) or real(piece, *more),
    )
    return read


@both
def test_a_damaged_file_is_named_and_left_out_only_if_asked(
    job: Job, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(job.data, "b")
    with pytest.raises(PartitionsFailed, match=r"b\.json\.gz: the gzip stream ends in the middle of a frame"):
        job.run(step)
    assert sum("failed" in text for text in job.console.notices) == 1
    rows = status_of(job.data.parent / "work")
    assert "read in part: b.json.gz" in "; ".join(row.detail for row in rows)
    read = reading(monkeypatch)
    made = job.run(step, skip_damaged=True)
    assert any("left out, damaged" in text and "b.json.gz" in text for text in job.console.notices)
    # Only its own partition.
    assert not {"c.parquet", "d.json.gz", "e.json.gz"} & {*read} or step == "count"
    # The same bytes by the option from the first try on, in another folder; and nothing is left to do.
    other = results(job.run(step, out="other", skip_damaged=True))
    assert results(made) == other
    assert results(job.run(step, skip_damaged=True)) == other
    assert sum("failed" in text for text in job.console.notices) == 1  # what is left out is no failure


def test_what_was_left_out_stands_everywhere(job: Job) -> None:
    data = job.data
    damage(data, "b")
    made = job.run("count", "tokenize", skip_damaged=True)
    work, manifest = pretok.open(made.out), load_manifest(made.shards_dir)
    size = (data / "b.json.gz").stat().st_size
    [left] = manifest.sources["it"].left_out
    reason = "the gzip stream ends in the middle of a frame: the file is truncated"
    assert (left.file, left.bytes, left.reason) == (str(data / "b.json.gz"), size, reason)
    assert manifest.sources["it"].rejected["damaged_file"] == 1
    rejects = work.rejects().read_all().to_pylist()
    assert [(row["file"], row["position"], row["reason"], row["detail"]) for row in rejects] == [
        (left.file, 0, "damaged_file", reason)
    ]
    assert texts_of(made) == sorted(text for name in "acde" for text in texts(name))
    assert (left.file, size, 1, 1) in load_inputs(manifest, "it").files()
    rows = [row for row in status_of(made.out) if row.what in ("words", "shards of it")]
    assert ["left out, damaged: b.json.gz" in row.detail for row in rows] == [True, True]
    run_report(made.out, made.out / "report.html")
    page = (made.out / "report.html").read_text().partition('id="left-out"')[2].partition("</table>")[0]
    assert f"<code>{left.file}</code></td><td>it</td>" in page
    assert f'data-value="{size}"' in page
    assert f">{reason}<" in page


@pytest.mark.parametrize(
    ("skip", "damaged", "what", "many"),
    [
        (True, "b", "left out, damaged", []),
        (True, "bd", "left out, damaged", ["it: 2 damaged files of 5, and max_damaged allows 1"]),
        (False, "b", "not sampled", []),
    ],
)
def test_a_plan_says_which_files_are_damaged_and_whether_they_are_too_many(
    job: Job, skip: bool, damaged: str, what: str, many: list[str]
) -> None:
    damage(job.data, *damaged)
    found = run_forecast(job.recipe(skip_damaged=skip), 1, job.console).sources["it"]
    reason = "the gzip stream ends in the middle of a frame: the file is truncated"
    notices = [text for text in job.console.notices if ".json.gz" in text and "max_damaged" not in text]
    assert notices == [f"it: {what}: {job.data}/{name}.json.gz: {reason}" for name in damaged]
    said = [text.partition(" to be")[0] for text in job.console.notices if "max_damaged" in text]
    assert said == many
    assert round(found.documents.value) == sum(len(texts(name)) for name in {*"abcde"} - {*damaged})


@both
def test_a_file_of_another_kind_is_damaged(job: Job, step: str) -> None:
    """It ends the command before its first step, with the names of all such files, or is left out whole."""
    data, other = job.data, {"b.json.gz": b"<html>404", "e.json.gz": b'[\n{"text": "x"}]'}
    for name, content in other.items():
        (data / name).write_bytes(content)
    html = f"{data}/b.json.gz is an HTML page; extract the text first, to JSON Lines or to .txt files"
    array = f"{data}/e.json.gz is one JSON array, not JSON Lines; write an object a line, as jq -c '.[]' does"
    many = "; 2 damaged files of 5, and max_damaged allows 1 to be left out"
    for skip in (False, True):
        with pytest.raises(UsageError) as error:
            job.run(step, skip_damaged=skip)
        assert str(error.value).endswith(f"{html}; {array}{many * skip}")
    assert not list(data.parent.glob("work/*/.state"))
    made = job.run(step, skip_damaged=True, max_damaged=2)
    for name in other:
        (data / name).unlink()
    fewer = job.run(step, out="other")
    if step == "tokenize":
        [both, alone] = (load_manifest(each.shards_dir).sources["it"] for each in (made, fewer))
        left = [(left.file, left.bytes) for left in both.left_out]
        assert left == [(str(data / name), len(content)) for name, content in other.items()]
        assert both.tokens == alone.tokens
        expected = sorted(text for name in "acd" for text in texts(name))
        assert texts_of(made) == texts_of(fewer) == expected


def test_a_repaired_file_is_appended(job: Job) -> None:
    damage(job.data, "b")
    made = job.run("count", "tokenize", skip_damaged=True)
    before = load_manifest(made.shards_dir)
    (job.data / "b.json.gz").write_bytes(packed("b"))
    for append in ("", "b.json.gz"):
        job.run("count", "tokenize", append=append, skip_damaged=True)
    manifest = load_manifest(made.shards_dir)
    assert manifest.sources["it"].documents == before.sources["it"].documents + len(texts("b"))
    assert manifest.was(before.fingerprint) is not None


@both
@pytest.mark.parametrize(("most", "damaged"), [(None, "bd"), (1, "bd"), (0, "b"), (9, "abde")])
def test_no_more_files_than_allowed_are_left_out(job: Job, step: str, most: int | None, damaged: str) -> None:
    """Nor all of them."""
    (job.data / "c.parquet").unlink()
    damage(job.data, *damaged)
    with pytest.raises(PartitionsFailed, match=rf"{damaged[0]}\.json\.gz: the gzip stream ends"):
        job.run(step, skip_damaged=True, max_damaged=most)
    assert any("max_damaged allows" in text for text in job.console.notices)


@both
def test_excluded_files_are_not_read(job: Job, step: str) -> None:
    damage(job.data, "b")
    (job.data / "c.parquet").write_bytes(b"PAR1 no")
    made = job.run(step, exclude=["**/b.*", str(job.data / "c*")])
    (job.data / "b.json.gz").unlink()
    (job.data / "c.parquet").unlink()
    assert results(made) == results(job.run(step, out="other"))


def test_the_status_proposes_the_command_that_goes_on(
    data: Path, vocab_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(data, "b")
    out = str(data.parent / "work")
    command = ["build-vocab", f"it={data}/*", "--out", out, "--vocab-size", "340", "--workers", "0"]
    assert run_command(command) == 3
    rows = status_of(Path(out))
    assert ("unfinished", "read in part: b.json.gz") in [(row.state, row.detail[:24]) for row in rows]
    assert next_of(rows) == f"pretok {shlex.join(command)}"
    (data / "b.json.gz").write_bytes(packed("b"))
    assert run_command(command) == 0


@pytest.mark.parametrize("command", ["count", "build-vocab", "tokenize"])
def test_rejects_are_named_where_most_of_them_are(
    command: str, data: Path, vocab_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a command that counts as by one that tokenizes; and can be asked for, also without shards."""
    bad = {"f": 3, "g": 9, "h": 7, "i": 5}
    for name, number in bad.items():
        lines = ['{"text": "uno"}', *["{"] * number, '{"text": null}']
        (data / f"{name}.jsonl").write_text("\n".join(lines))
    out = data.parent / "work"
    options = ["--vocab", str(vocab_dir)] if command == "tokenize" else []
    assert run_command([command, f"it={data}/*", "--out", str(out), *options, "--workers", "0"]) == 3
    said = capsys.readouterr().err
    places = [
        said.index(f"{data / name}.jsonl: {bad[name] + 1}, the first at line 2 (malformed_json: ")
        for name in "ghi"
    ]
    assert places == sorted(places)
    assert f"{data / 'f'}.jsonl" not in said
    path = out / ("shards/rejects/it-00000.jsonl" if options else "counts/rejects/it.jsonl")
    assert f"all are in {path}" in said
    query = "select file, position, reason from rejects order by all"
    assert run_command(["query", str(out), query, "--format", "csv"]) == 0
    expected = sorted(
        (str(data / f"{name}.jsonl"), line, "null_text" if line == number + 2 else "malformed_json")
        for name, number in bad.items()
        for line in range(2, number + 3)
    )
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"{file},{line},{reason}" for file, line, reason in expected
    ]


def test_a_glob_over_folders_says_what_to_write(
    tmp_path: Path, vocab_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("2024", "2025"):
        (tmp_path / "in" / name / "b").mkdir(parents=True)
        (tmp_path / "in" / name / "b" / "x.jsonl.gz").write_bytes(packed(name))
    command = ["tokenize", "--vocab", str(vocab_dir), "--out", str(tmp_path / "work"), "--workers", "0"]
    assert run_command([*command, f"it={tmp_path}/in/*"]) == 2
    said = capsys.readouterr().err
    pattern = f"{tmp_path}/in/**/*.jsonl.gz"
    assert f"{tmp_path}/in/* matches folders alone; name {tmp_path}/in itself, or {pattern!r}" in said
    assert run_command([*command, f"it={pattern}"]) == 0
