"""An option that nothing reads in its combination is refused by name before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretok.cli import run_command

UNREAD = {
    "build-vocab it=sample:it --out w --counts c --field x": "--field",
    "build-vocab it=sample:it --out w --extend x --vocab-size 900": "size",
    "build-vocab it=sample:it --out w --add 900": "add",
    "tokenize it=sample:it --out w --eod x": "eod",
    "tokenize it=sample:it --out w --workers 0 --address auto": "--address",
    "remove w --reason x --where true --missing-ok": "--missing-ok",
    "remove w --reason x --ids f --all": "--all",
    "verify w --full --sample 3": "--sample",
    "mix w --out m.json --workers 2": "--workers",
    "mix w --stage 1k:it=1 --tokens 1k": "tokens",
    "export w --to megatron --stage 1": "--stage",
    "export w --to megatron --mix m --workers 1 --address auto": "--address",
    "inspect w --doc 1 --source it --seed 0": "--seed",
    "inspect w --text x --source it --split val": "--source, --split",
    "inspect w --doc x --split val": "--split",
    "inspect w --source it --search x --random 3": "one of --doc, --search and --random",
    "disclose w --format csv --domains 3": "--domains",
    "disclose w --out d.csv --domains 3": "--domains",
    "preflight w --collect --gpus 0 --min-free 1GiB --json": "--gpus, --min-free, --json",
    "preflight w --nodes a": "--nodes",
    "certify run --step 1 --root x": "--root",
}


@pytest.mark.parametrize("line", UNREAD)
def test_an_option_that_nothing_reads_is_refused(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "500")
    assert run_command(line.split()) == 2
    error = capsys.readouterr().err
    assert UNREAD[line] in error
    assert not list(tmp_path.rglob("*.json"))
    assert "Traceback" not in error
