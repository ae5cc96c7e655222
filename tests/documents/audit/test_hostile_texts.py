"""Documents, kept values and names of files that want to move a cursor, forge a line or stand raw in a page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tokenizing import recipe, run

from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.base.visible import visible
from pretok.cli import run_command
from pretok.read import paths

HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e\r\x00\x7f"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    name = folder / "it\x1b[2J\n\x9b.jsonl"
    value = f"{HOSTILE}\nlicence: cc0"
    rows = [{"text": f"{HOSTILE} numero {i}", "license": value, "id": f"{i}"} for i in range(30)]
    name.write_text("\n".join([*map(json.dumps, rows), f'{{"text": {HOSTILE!r}']))
    made = recipe(folder / "work", vocab_dir, {"it": [name]}, ["license", "id"], max_reject_share=0.5)
    with pytest.MonkeyPatch.context() as patch, StopFlag() as stop, Engine(0, None, stop) as engine:
        patch.setattr(paths, "_check_name", str)  # as in shards of others
        run(made, engine)
    mix = f"mix {made.shards_dir} --out {made.out}/mix.json --seq-len 8"
    assert run_command(mix.split()) == 0
    return made.out


@pytest.mark.parametrize(
    "command",
    [
        "status WORK",
        "status WORK --json",
        "inspect WORK/shards --source it",
        "inspect WORK/shards --source it --json",
        "query WORK FILES --format table",
        "query WORK FILES --format json",
        "trace WORK/mix.json --position 3",
        "trace WORK/mix.json --position 3 --json",
        "disclose WORK",
        "disclose WORK --format html",
        "disclose WORK --format md",
        "report WORK --out PAGE",
        "inspect WORK/shards --doc nobody\x1b[2J",
    ],
)
def test_nothing_shown_holds_a_control_character(
    work: Path, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    names = {"WORK": str(work), "FILES": "select file, license from documents", "PAGE": str(page)}
    words = [re.sub("|".join(names), lambda found: names[found[0]], word) for word in command.split(" ")]
    capsys.readouterr()
    assert run_command(words) == (2 if "nobody" in command else 0)
    shown = capsys.readouterr()
    texts = [shown.out, shown.err, page.read_text() if page.exists() else ""]
    assert not any(map(CONTROLS.search, texts))


def test_a_value_begins_no_line_and_json_keeps_it(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["inspect", str(work / "shards"), "--source", "it"]) == 0
    heading = capsys.readouterr().out.partition("tokens, the last")[0]
    assert "license: \\x1b]0;owned\\x07\\x9b2J\\u202e\\x0d\\x00\\x7f\\x0alicence: cc0" in heading
    assert run_command(["inspect", str(work / "shards"), "--source", "it", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"]["license"] == f"{HOSTILE}\nlicence: cc0"


def test_other_texts_stay() -> None:
    text = "città, “日本語”\t\n\u200b\u00a0👩‍👩‍👧"
    assert visible(text) == text
    assert visible("a\udcffb\ud800") == "a\\udcffb\\ud800"
