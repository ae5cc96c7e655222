"""Sources whose files have their text in different fields, and options of one source; right values by json."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pretok
from pretok.cli import run_command

FIELDS = ("text", "testo", "content")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Four files; the texts of each, of which some have another of FIELDS too, which does not count."""
    monkeypatch.chdir(tmp_path)
    texts = {name: [f"documento {n} di {name}" for n in range(9)] for name in "abcd"}
    Path("in").mkdir()
    rows = [{"testo": text, "content": "altro"} for text in texts["a"]]
    Path("in/a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rows = [{"content": text, "text": 7} for text in texts["b"]]
    Path("in/b.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    pq.write_table(pa.table({"content": ["altro"] * 9, "text": texts["c"]}), "in/c.parquet")
    pq.write_table(pa.table({"testo": texts["d"]}), "in/d.parquet")
    return texts


@pytest.mark.parametrize("command", ["count", "tokenize"])
def test_a_file_has_its_text_in_the_first_field_that_it_has(
    command: str, data: dict[str, list[str]], vocab_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--vocab", str(vocab_dir)] if command == "tokenize" else ["--json"]
    line = [command, "it=in", "--field", ",".join(FIELDS), "--out", "work", "--workers", "0", *options]
    assert run_command(line) == 0
    said = capsys.readouterr()
    assert (
        "it: the text is in 'content' in 1 file (in/b.jsonl.gz); the text is in 'testo' in 2 files (in/a.jsonl and 1 "
        "more); the text is in 'text' in 1 file (in/c.parquet)"
    ) in said.err
    if command == "count":
        counts = json.loads(said.out)["sources"]["it"]
        whole = [text for texts in data.values() for text in texts]
        assert counts["documents"] + counts["heldout_documents"] == len(whole)
        assert counts["bytes"] + counts["heldout_bytes"] == sum(map(len, whole))
    else:
        assert pretok.open("work").texts().read_all()["text"].to_pylist() == [
            text for name in sorted(data) for text in data[name]
        ]
    assert run_command(line) == 0  # nothing has changed


def test_an_option_of_one_source(data: dict[str, list[str]], vocab_dir: Path) -> None:
    """`NAME=VALUE`; a value without a name is for the others."""
    Path("e.jsonl").write_text('{"content": "e"}')
    line = [
        "tokenize",
        "a=in/a.jsonl",
        "b=in/b.jsonl.gz",
        "d=in/d.parquet",
        "e=e.jsonl",
        "--field",
        "content",
    ]
    line += ["--field", "a=testo", "--field", "d=testo", "--keep", "b=k=text:integer"]
    assert run_command([*line, "--vocab", str(vocab_dir), "--out", "work", "--workers", "0"]) == 0
    work = pretok.open("work")
    found = {name: work.texts(name).read_all()["text"].to_pylist() for name in "abde"}
    assert found == {**{name: data[name] for name in "abd"}, "e": ["e"]}
    assert work.documents("b", columns=["k"]).read_all()["k"].to_pylist() == [7] * 9
