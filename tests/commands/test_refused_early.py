"""What cannot be is said before anything is read; a shell completes commands and options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizing import contents

from pretok.cli import run_command

IMPOSSIBLE = {
    "weights": ("[mix]\nweights = {it = 0.5}", "add up to 0.5, not to 1"),
    "pattern": ('[vocab]\npattern = "x"', "there is no pattern 'x'"),
    "size": ("[vocab]\nsize = 300", "64 special tokens and 256 bytes take 320"),
    "benchmark": ('[shards]\nagainst = "none"', "is not a folder; against"),
    "train": ("[train]\nmicro_bach = 4", "micro_batch"),
    "tokenizer": ('[vocab]\npath = "none"', "no tokenizer at"),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_what_a_recipe_cannot_be_is_said_before_anything_is_read(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tables, message = IMPOSSIBLE[what]
    Path("r.toml").write_text(f'out = "work"\n[sources.it]\ninputs = ["sample:it"]\n{tables}\n')
    before = contents(tmp_path)
    for command in (["plan"], ["run", "--workers", "0"]):
        assert run_command([*command, "r.toml"]) == 2
        assert message in capsys.readouterr().err
        read = {name for name in contents(tmp_path).keys() - before.keys() if "/logs/" not in f"/{name}"}
        assert not read


@pytest.mark.usefixtures("few_buckets")
def test_a_budget_that_does_not_fit_is_said_before_verification(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "r.toml"
    tables = '[sources.it]\ninputs = ["sample:it"]\n[vocab]\nsize = 600\n[mix]\nseq_len = 16\ntokens = "1G"\n'
    recipe.write_text('out = "work"\n' + tables)
    assert run_command(["plan", str(recipe)]) == 2
    assert "the mix is not possible: " in capsys.readouterr().err
    assert run_command(["run", str(recipe), "--workers", "0"]) == 2
    printed = capsys.readouterr().err
    assert "tokenize: 1 partition" in printed
    assert "verif" not in printed
    assert run_command(["run", str(recipe), "--workers", "0"]) == 2  # the shards are there and say it at once


COMPLETE = (
    'eval "$(_PRETOK_COMPLETE=source_bash pretok)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
    '_pretok_completion pretok; printf "%s\\n" "${COMPREPLY[@]}"'
)


@pytest.mark.skipif(not Path(sys.executable).with_name("pretok").exists(), reason="pretok is not on the PATH")
@pytest.mark.parametrize("words", ["pretok ins[pect]", "pretok tokenize --dup[licates]"])
def test_bash_completes_commands_and_options(words: str) -> None:
    typed, rest = words.rstrip("]").split("[")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", *typed.split()], env={**os.environ, "PATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout.split()[:1], done.stderr) == ([typed.split()[-1] + rest], "")
