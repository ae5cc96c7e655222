"""inspect: tokens in brackets, bounded search, draws, what a mix read."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from counting import write_lines
from mixing import request, write_segment
from support import ROOT, make_shards
from tokenizers import Tokenizer
from tokenizing import recipe, run

import pretok.stream
from pretok.audit import find
from pretok.audit.documents import run_inspect
from pretok.audit.show import marked
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.cli import run_command
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_job import run_mix

DOCUMENTS = [f"Il mare {n} è salato, 日 \x1b[2J." for n in range(60)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    write_lines(folder / "it.jsonl", DOCUMENTS)
    write_lines(folder / "en.jsonl", ["The sea is salt."] * 20)
    inputs = {"it": [folder / "it.jsonl"], "en": [folder / "en.jsonl"]}
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        run(recipe(folder / "work", vocab_dir, inputs, size=2_000), engine)
    made = folder / "work"
    run_mix(made / "shards", made / "mix.json", request("all:natural", seq_len=16))
    return made / "shards"


def on_a_terminal(*command: str, **environment: str) -> str:
    """What a command writes where standard output and error are a terminal."""
    ours, theirs = pty.openpty()
    known = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "pretok", *command], cwd=ROOT, stdout=theirs, stderr=theirs,
        env={**known, "TERM": "xterm-256color", "COLUMNS": "200", **environment},
    )  # fmt: skip
    os.close(theirs)
    data = b""
    while True:
        try:
            data += os.read(ours, 65_536)
        except OSError:  # how a terminal ends on Linux
            break
    process.wait(60)
    os.close(ours)
    return data.decode()


def test_tokens_stand_in_brackets_and_none_moves_the_cursor(shards: Path) -> None:
    shown = on_a_terminal("inspect", str(shards), "--source", "it", "--doc", "3")
    assert "[<|endoftext|>]" in shown
    assert "[\\x" in shown  # the bytes of a sign that is no token
    assert "\x1b[2J" not in shown
    assert "\\x1b" in shown
    assert marked(["a", "b"], [False, True]) == "(a)[b]"


def test_errors_are_red_on_a_terminal_alone(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["inspect", "nowhere", "--source", "it"], ["inspect", str(shards), "--sorce", "it"]):
        assert "\x1b[31m" in on_a_terminal(*wrong)
        assert "\x1b[31m" not in on_a_terminal(*wrong, NO_COLOR="1")
        assert run_command(wrong) == 2
        assert "\x1b" not in capsys.readouterr().err


def test_search_finds_the_first_match(
    shards: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pretok.shards.texts.WINDOW_TOKENS", 100)
    manifest = load_manifest(shards)
    for wanted, source, position in (("mare 17 è", None, 18), ("mare", "it", None), ("sea", None, None)):
        place = find.search_text(manifest, source, None, wanted)
        assert place is not None
        found = run_inspect(shards, place[0], place[2], place[1])
        assert wanted in "".join(found.tokens)
        assert position in (None, found.position)
        assert source is not None or place[0] == ("it" if "mare" in wanted else "en")
    assert run_command(["inspect", str(shards), "--search", "nowhere"]) == 2
    assert "no document contains 'nowhere'" in capsys.readouterr().err


def test_draws_are_even_and_the_same_for_a_seed(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = load_manifest(shards)
    assert set(find.random_places(manifest, None, None, 80, 0)) == {
        (source, split, number)
        for source in manifest.sources
        for split in ("train", "val")
        for number in range(getattr(manifest.sources[source], split).documents)
    }
    counts = Counter(find.random_places(manifest, None, None, 1, seed)[0] for seed in range(2_000))
    assert len(counts) == 80
    assert max(counts.values()) < 60  # 25 are expected
    command = ["inspect", str(shards), "--random", "2", "--seed", "5", "--json"]
    assert run_command(command) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert run_command(["inspect", str(shards), "--random", "81"]) == 2
    assert "there are 80 documents" in capsys.readouterr().err


def test_a_position_is_what_the_stream_gives(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mix = shards.parent / "mix.json"
    view = pretok.stream.open(shards, mix)
    for position in (0, len(view) - 1):
        command = ["inspect", str(shards), "--mix", str(mix), "--position", str(position)]
        assert run_command([*command, "--json"]) == 0
        seen = json.loads(capsys.readouterr().out)
        assert seen["ids"] == view[position].tolist()
        assert (seen["source"], seen["epoch"], seen["sequence"]) == view.origin(position)
        at = 0
        for row in seen["documents"]:
            whole = run_inspect(shards, row["source"], row["document"]).ids
            assert seen["ids"][at : at + row["tokens"]] == whole[row["first"] : row["first"] + row["tokens"]]
            at += row["tokens"]
        assert at == 17
        assert run_command(command) == 0
        assert f"position {position}: sequence" in capsys.readouterr().out


def test_a_step_of_a_run_shows_its_first_positions(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mix = shards.parent / "mix.json"
    view = pretok.stream.open(shards, mix)
    config = {"model": "debug", "resolved": {"model": {"seq_len": 16}, "steps": 9}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_segment(tmp_path, shards, view, 5)
    command = ["inspect", str(shards), "--mix", str(tmp_path), "--step", "3", "--json"]
    assert run_command(command) == 0
    told = capsys.readouterr()
    assert [seen["ids"] for seen in json.loads(told.out)] == view[10:13].tolist()
    assert "step 3 read positions 10 to 14: the first 3 are shown" in told.err


def test_what_cannot_be_shown_is_refused(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare, work, mix = (
        make_shards(tmp_path / "bare", {"it": [[5, 6]]}),
        str(shards),
        str(shards.parent / "mix.json"),
    )
    for arguments, message in (
        ((work, "--source", "it", "--position", "1"), "name it with --mix"),
        ((work, "--mix", mix), "either --position or --step"),
        ((work, "--mix", mix, "--position", "1", "--step", "1"), "either --position or --step"),
        ((str(bare), "--search", "x"), "no tokenizer"),
        ((str(tmp_path), "--text", "a"), "no tokenizer at"),
        ((work, "--text", "a\udcff"), "not UTF-8"),
        ((work, "--text", "a", "--search", "b"), "or give a --text"),
    ):
        assert run_command(["inspect", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_a_text_is_split_as_tokenizers_does(
    shards: Path, vocab_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the vocabulary of the shards or, before there are any, by the one beside them."""
    text = "Il mare è salato, <|endoftext|> 日"
    expected = Tokenizer.from_file(str(vocab_dir / "tokenizer.json"))
    expected.encode_special_tokens = True
    (tmp_path / "work").mkdir()
    shutil.copytree(vocab_dir, tmp_path / "work" / "vocab")
    for folder in (shards, shards.parent, vocab_dir, tmp_path / "work"):
        assert run_command(["inspect", str(folder), "--text", text, "--json"]) == 0
        made = json.loads(capsys.readouterr().out)
        assert made["ids"] == expected.encode(text, add_special_tokens=False).ids
        assert "".join(made["tokens"]).startswith("Il mare è salato, <|endoftext|> ")
    assert run_command(["inspect", str(shards), "--text", "Il mare"]) == 0
    assert re.fullmatch(r"\d+ tokens, \d\.\d\d bytes per token:\n(\[[^]]+\])+\n", capsys.readouterr().out)
