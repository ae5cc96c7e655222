"""Documents as SQL, as plain Parquet, by name, by their text, at random and in a mix: against brute force."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import xxhash
from mixing import request, write_segment
from support import make_shards
from tokenizers import Tokenizer
from tokenizing import make_work

import pretok.stream
from pretok.cli import run_command
from pretok.documents.audit import find
from pretok.documents.audit.inspection import run_inspect
from pretok.documents.audit.show import marked
from pretok.documents.audit.trace import open_traced, readings
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_job import run_mix


def record(name: str, i: int) -> dict[str, Any]:
    """Record 5 of a source is not a document."""
    text = f"{name} documento {i} è 日 \x1b[2J. " * (1 + i * 7 % 23) if i != 5 else ""
    meta = {"url": f"https://www{i % 4}.example.{name}/p/{i}", "license": ["cc0", "cc-by", None][i % 3]}
    return {"id": f"{name}-{i}", "text": text, "meta": meta}


ROWS = {name: [record(name, i) for i in range(count)] for name, count in (("it", 300), ("en", 100))}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Path:
    # Readers of Parquet take the names of such folders for columns, in the place of those of the file.
    odd = "license=mit/tokens=1/count=2/reason=none"
    folder = tmp_path_factory.mktemp("it's [a] query") / odd
    folder.mkdir(parents=True)
    keep = ("id", "url=meta.url", "license=meta.license", "filename=meta.url")
    make_work(folder, vocab_dir, ROWS, *keep, size=40_000)
    wish = request("20000:it=0.3,en=0.7", seq_len=16, max_epochs=9)
    run_mix(folder / "work" / "shards", folder / "work" / "mix.json", wish)
    return folder / "work"


def output_of(capsys: pytest.CaptureFixture[str], *command: object, code: int = 0) -> str:
    """Standard output of a command, or its errors where it fails."""
    capsys.readouterr()
    assert run_command([*map(str, command)]) == code
    shown = capsys.readouterr()
    return " ".join(shown.err.split()) if code else shown.out


def ask(work: Path, capsys: pytest.CaptureFixture[str], sql: str) -> list[list[str]]:
    """Rows of `pretok query` as CSV, without the names."""
    return list(csv.reader(io.StringIO(output_of(capsys, "query", work, sql))))[1:]


def hash_of(row: dict[str, Any]) -> str:
    data = row["text"].encode()
    return xxhash.xxh64_hexdigest(data, 0) + xxhash.xxh64_hexdigest(data, 1)


def test_columns_are_those_of_the_inputs(work: Path, capsys: Any) -> None:
    """`doc` is the number with which inspect shows it."""
    wanted = {
        row["id"]: [name, str(number), hash_of(row), row["meta"]["license"] or "", row["meta"]["url"]]
        for name, rows in ROWS.items()
        for number, row in enumerate(rows, 1)
        if row["text"]
    }
    columns = "id, source, position, hash, license, url, split, doc, tokens"
    found = ask(work, capsys, f"select {columns} from documents order by random()")
    assert {name: values[:5] for name, *values in found} == wanted
    assert len(found) == len(wanted)
    for name, source, *_, split, doc, tokens in found[:9]:
        shown = run_inspect(work / "shards", source, int(doc), split)
        assert (shown.kept["id"], len(shown.ids)) == (name, int(tokens))


def test_views_agree_with_the_manifest(work: Path, capsys: Any) -> None:
    by_split = "select source, split, sum(tokens) from {} group by all order by all"
    assert ask(work, capsys, by_split.format("shards")) == ask(work, capsys, by_split.format("documents"))
    sizes = load_manifest(work / "shards").sources
    found = ask(work, capsys, "select source, documents, read, rejected, bytes from sources order by 1")
    assert found[0] == ["en", "99", "100", "1", str(sizes["en"].bytes)]
    assert found[1:] == [["it", "299", "300", "1", str(sizes["it"].bytes)]]
    rejects = [["en", "6", "empty_text"], ["it", "6", "empty_text"]]
    assert ask(work, capsys, "select source, position, reason from rejects order by 1") == rejects
    # DuckDB names the nearest column.
    assert "license" in output_of(capsys, "query", work, "select licence from documents", code=2)
    assert "known are" in output_of(capsys, "query", work, "select 1", "--format", "xml", code=2)
    json_line = output_of(capsys, "query", work, "select 1 as a, 'è' as b", "--format", "json")
    assert json.loads(json_line) == {"a": 1, "b": "è"}
    assert "one" in output_of(capsys, "query", work, "select 1 as one", "--format", "table")


def test_documents_are_found(work: Path, capsys: Any) -> None:
    row, shards = ROWS["it"][221], work / "shards"
    [(_, split, number)] = find.find_named(load_manifest(shards), "it-221", 2)
    for how in (
        ["--doc", "it-221"], ["--doc", hash_of(row).upper()], ["--doc", "it.jsonl:222"],
        ["--source", "it", "--split", split, "--doc", number], ["--search", "documento 221 "],
        ["--source", "it", "--search", "documento 221 "],
    ):  # fmt: skip
        found = json.loads(output_of(capsys, "inspect", shards, *how, "--json"))
        kept = {"id": row["id"], "url": row["meta"]["url"], "license": row["meta"]["license"]}
        assert (found["position"], found["kept"]) == (222, {**kept, "filename": row["meta"]["url"]}), how
    assert "license:" in output_of(capsys, "inspect", shards, "--search", "it documento")


def test_what_is_not_there_is_explained(work: Path, tmp_path: Path, capsys: Any) -> None:
    shards, bare = work / "shards", make_shards(tmp_path / "bare", {"it": [[5, 6]]})
    for arguments, message in (
        ((shards, "--doc", "nobody"), "a name is the hash of a text, FILE:LINE of a record"),
        ((shards, "--doc", "it.jsonl:6"), "that was not rejected"),
        ((shards, "--search", "nowhere"), "no document contains 'nowhere'"),
        ((shards, "--random", "399"), "there are 398 documents"),
        ((shards, "--doc", "it-1", "--random", "1"), "one of --doc"),
        ((shards, "--source", "it", "--doc", "it-1"), "with --source give a number"),
        ((shards,), "one of --doc"),
        ((shards, "--source", "fr"), "the sources are en, it"),
        ((shards, "--source", "it", "--split", "valid"), "no split 'valid'; the splits are train and val"),
        ((shards, "--source", "it", "--split", "val", "--doc", "999"), "there is no val document 999"),
        ((bare, "--search", "x"), "no tokenizer"),
        ((tmp_path, "--text", "a"), "no tokenizer at"),
        ((shards, "--text", "a\udcff"), "not UTF-8"),
        ((shards, "--text", "a", "--search", "b"), "or give a --text"),
    ):
        assert message in output_of(capsys, "inspect", *arguments, code=2)


def test_a_search_decodes_every_shard(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretok.shards.texts.WINDOW_TOKENS", 100)
    manifest = load_manifest(work / "shards")
    for n in (0, 33, 99):
        place = find.search_text(manifest, "en", None, f"en documento {n} ")
        assert run_inspect(work / "shards", place[0], place[2], place[1]).position == n + 1


def test_draws_are_even_and_the_same_for_a_seed(work: Path, capsys: Any) -> None:
    manifest = load_manifest(work / "shards")
    counts = {
        (s, split): getattr(manifest.sources[s], split) for s in ("it", "en") for split in ("train", "val")
    }
    everything = {(*where, number) for where, of in counts.items() for number in range(of.documents)}
    assert set(find.random_places(manifest, None, None, 398, 0)) == everything
    drawn = Counter(find.random_places(manifest, "en", "train", 1, seed)[0] for seed in range(2_000))
    assert drawn.keys() == {place for place in everything if place[:2] == ("en", "train")}
    assert max(drawn.values()) < 60  # some 22 are expected
    command = ["inspect", work / "shards", "--random", "2", "--seed", "5", "--json"]
    assert len(json.loads(first := output_of(capsys, *command))) == 2
    assert output_of(capsys, *command) == first


def test_a_position_is_what_the_stream_gives(work: Path, capsys: Any) -> None:
    mix, shards = work / "mix.json", work / "shards"
    view = pretok.stream.open(work / "shards", work / "mix.json")
    for position in (0, len(view) - 1):
        command = ["trace", mix, "--position", position, "--tokens"]
        [seen] = json.loads(output_of(capsys, *command, "--json"))
        assert seen["ids"] == view[position].tolist()
        assert (seen["source"], seen["epoch"], seen["sequence"]) == view.origin(position)
        at = 0
        for row in seen["documents"]:
            whole = run_inspect(shards, row["source"], row["document"]).ids
            assert seen["ids"][at : at + row["tokens"]] == whole[row["first"] : row["first"] + row["tokens"]]
            at += row["tokens"]
        assert at == 17
        assert f"position {position}: sequence" in output_of(capsys, *command)


def test_a_step_of_a_run_shows_its_first_positions(work: Path, tmp_path: Path, capsys: Any) -> None:
    view = pretok.stream.open(work / "shards", work / "mix.json")
    config = {"model": "debug", "resolved": {"model": {"seq_len": 16}, "steps": 9}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_segment(tmp_path, work / "shards", view, 5)
    printed = output_of(capsys, "trace", tmp_path, "--step", "3", "--tokens", "--json")
    assert [seen["ids"] for seen in json.loads(printed)] == view[10:13].tolist()


def test_trace_says_what_the_functions_say(work: Path, capsys: Any) -> None:
    """The path of a file stands whole above its table."""
    path, known = work / "mix.json", run_inspect(work / "shards", "en", 3)
    found = readings(open_traced(path, None)[0], "en", "train", 3)
    name = f"{known.file}:{known.position}"
    printed = json.loads(output_of(capsys, "trace", path, "--doc", name, "--json"))
    parts = [(row["position"], row["first"], row["tokens"]) for row in printed]
    assert parts == [(reading.position, reading.first, reading.tokens) for reading in found]
    origins = {(row["file"], row["line"], row["document"], row["step"]) for row in printed}
    assert origins == {(known.file, known.position, 3, None)}
    there = json.loads(output_of(capsys, "trace", path, "--position", found[0].position, "--json"))
    assert printed[0] in there
    assert sum(row["tokens"] for row in there) == 17
    shown = output_of(capsys, "trace", path, "--doc", name)
    assert shown.splitlines()[0] == known.file
    assert str(found[-1].position) in shown
    assert "one of --doc, --position and --step" in output_of(capsys, "trace", path, code=2)


def test_a_text_is_split_as_tokenizers_does(work: Path, vocab_dir: Path, tmp_path: Path, capsys: Any) -> None:
    """By the vocabulary of the shards or, before there are any, by the one beside them."""
    text = "Il mare è salato, <|endoftext|> 日"
    expected = Tokenizer.from_file(str(vocab_dir / "tokenizer.json"))
    expected.encode_special_tokens = True
    shutil.copytree(vocab_dir, tmp_path / "work" / "vocab")
    for folder in (work / "shards", work, vocab_dir, tmp_path / "work"):
        made = json.loads(output_of(capsys, "inspect", folder, "--text", text, "--json"))
        assert made["ids"] == expected.encode(text, add_special_tokens=False).ids
        assert "".join(made["tokens"]).startswith("Il mare è salato, <|endoftext|> ")
    shown = output_of(capsys, "inspect", work, "--text", "Il mare")
    assert re.fullmatch(r"\d+ tokens, \d\.\d\d bytes per token:\n(\[[^]]+\])+\n", shown)


def test_tokens_stand_in_brackets_and_bytes_are_spelled_out(work: Path, capsys: Any) -> None:
    shown = output_of(capsys, "inspect", work / "shards", "--source", "it", "--doc", "3")
    assert "[<|endoftext|>]" in shown
    assert "[\\x" in shown  # the bytes of a sign that is no token
    assert marked(["a", "b"], [False, True]) == "(a)[b]"
