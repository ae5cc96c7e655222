"""Appends: shards behind those of a source, the same whether a folder grew or was made at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizing
from test_golden import GOLDEN
from test_seal import Killed, killed_after, look
from tokenizing import contents, run

import pretok
import pretok.stream
from pretok.base.console import Console
from pretok.base.errors import MismatchError, UsageError
from pretok.base.execute import Engine
from pretok.cli import run_command
from pretok.config import Recipe
from pretok.documents.audit.verify_job import run_verify
from pretok.shards.inputs import load_inputs
from pretok.shards.manifest import FILE_NAME, load_manifest


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Files 0 to 4 of texts that are all different, but for one in each; a bad line in each."""
    for number in range(5):
        lines = [json.dumps({"text": f"documento {number} {i} " * 20, "id": i}) for i in range(40)]
        lines[3:5] = ['{"text": "ovunque lo stesso"}', '{"text": 3}']
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def recipe(folder: Path, out: str, *appends: str, **shards: object) -> Recipe:
    """Source `a` of file 0 and `b` of file 1; appends: more, such as `a2`, file 2 appended to `a`."""
    more: dict[str, list[Path]] = {"a": [], "b": []}
    for name, number in appends:
        more[name].append(folder / f"{number}.jsonl")
    sources: dict[str, list[Path | str]] = {"a": [folder / "0.jsonl"], "b": [folder / "1.jsonl"]}
    small = {"size": 4000, "val_fraction": "0.2"} | shards
    return tokenizing.recipe(folder / out, GOLDEN, sources, ["id:integer"], more, **small)


@pytest.mark.parametrize("shards", [{}, {"duplicates": "drop"}])
def test_a_folder_that_grew_is_the_one_made_at_once(inputs: Path, here: Engine, shards: Any) -> None:
    """Byte for byte; no older file changes, byte for byte too; and the same again does nothing."""
    states, steps = [], ((), ("a2", "b3"), ("a2", "a4", "b3"))
    for appends in steps:
        made = recipe(inputs, "out", *appends, **shards)
        for _ in range(2):
            run(made, here)
            states.append(contents(made.shards_dir))
        assert states[-1] == states[-2]
    first, second, third = states[::2]
    for earlier, later in ((first, second), (second, third)):
        assert earlier.items() - later.items() == {(FILE_NAME, earlier[FILE_NAME])}
    at_once = recipe(inputs, "once", *steps[-1], **shards)
    run(at_once, here)
    assert contents(at_once.shards_dir) == third

    manifest = load_manifest(made.shards_dir)
    assert run_verify(made.shards_dir, None, here, Console())[1] == []
    assert [manifest.appends(name) for name in ("a", "b")] == [2, 1]
    assert len(manifest.history) == 2
    files = [inputs / f"{number}.jsonl" for number in (0, 2, 4)]
    assert load_inputs(manifest, "a").files() == [
        (str(path), path.stat().st_size, 40, 1 + bool(path != files[0] and shards)) for path in files
    ]
    counts = manifest.sources["a"]
    assert (counts.read, counts.documents) == (120, 117 - (2 if shards else 0))
    assert counts.compared >= 3  # at least one of each shard
    found = pretok.open(inputs / "out")
    assert found.rejects("a").read_all().num_rows == sum(counts.rejected.values())
    rows = found.documents("a", columns=["file", "position", "id"]).read_all().to_pylist()
    assert all(row["id"] in (None, row["position"] - 1) for row in rows)
    (inputs / "5.jsonl").write_text('{"text": ""}\n')
    run(recipe(inputs, "out", *steps[-1], "b5", **shards), here)
    grown = load_manifest(made.shards_dir)
    assert (grown.fingerprint, grown.history) == (manifest.fingerprint, manifest.history)


def test_a_mix_of_before_reads_what_it_read(inputs: Path, here: Engine, capsys: Any) -> None:
    made, path = recipe(inputs, "out"), str(inputs / "mix.json")
    run(made, here)
    mix = ["mix", str(made.shards_dir), "--seq-len", "32", "--out", path]
    assert run_command(mix) == 0
    before = pretok.stream.open(made.shards_dir, inputs / "mix.json")
    tokens, written = before[:], (inputs / "mix.json").read_bytes()
    run(recipe(inputs, "out", "a2", "b3"), here)
    after = pretok.stream.open(made.shards_dir, inputs / "mix.json")
    np.testing.assert_array_equal(after[:], tokens)
    assert after.fingerprint == before.fingerprint
    assert run_command(mix) == 0  # as pretok run would do it again
    assert "was made before the shards grew" in capsys.readouterr().err
    assert (inputs / "mix.json").read_bytes() == written
    work, out = str(inputs / "out"), ("--out", str(inputs / "made"))
    for command in (
        ["trace", path, "--shards", str(made.shards_dir), "--position", "5"],
        ["disclose", work, path, *out],
        ["report", work, *out],
        ["status", work],
    ):
        assert run_command(command) == 0, capsys.readouterr().err
    assert "appended to 1 time" in capsys.readouterr().out


def test_killed_anywhere(inputs: Path, here: Engine) -> None:
    """The manifest is true at every step and never loses a source; the same command finishes."""
    start, made, once = recipe(inputs, "out"), *(recipe(inputs, out, "a2", "b3") for out in ("out", "once"))
    run(start, here)
    shutil.copytree(inputs / "out", inputs / "start")
    run(once, here)
    expected = contents(once.shards_dir)
    for steps in range(200):
        try:
            with killed_after(steps):
                run(made, here)
            break
        except Killed:
            assert load_manifest(made.shards_dir).sources.keys() == {"a", "b"}
            look(made.shards_dir, here)
    assert steps > 10
    assert contents(made.shards_dir) == expected
    for step in range(0, steps, 8):
        shutil.rmtree(inputs / "out")
        shutil.copytree(inputs / "start", inputs / "out")
        with pytest.raises(Killed), killed_after(step):
            run(made, here)
        look(made.shards_dir, here)
        run(made, here)
        assert contents(made.shards_dir) == expected, step


def test_what_cannot_be_appended(inputs: Path, here: Engine, capsys: Any) -> None:
    """Is refused by name, and no file changes."""
    run(recipe(inputs, "out", "a2"), here)
    shards = inputs / "out" / "shards"
    before = contents(shards)
    for appends, error, message in (
        (["a0"], UsageError, r"append 1 of a names files that it contains already: .*0\.jsonl"),
        (["a2", "a3", "a2"], UsageError, r"append 3 of a names files that it contains already: .*2\.jsonl"),
        (["a3"], MismatchError, r"a, append 1 .*2\.jsonl is gone; .*3\.jsonl is new"),
        ([], MismatchError, r"appended to a 1 time in .*, and only 0 are named"),
        (["a2", "a9"], UsageError, "no input matches"),
    ):
        with pytest.raises(error, match=message):
            run(recipe(inputs, "out", *appends), here)
        assert contents(shards) == before
    out = ["--out", str(inputs / "cli"), "--vocab", str(GOLDEN), "--workers", "0"]
    assert run_command(["tokenize", f"a={inputs}/0.jsonl", *out, "--append", f"x={inputs}/3.jsonl"]) == 2
    assert "also give the inputs of x as when it was tokenized" in capsys.readouterr().err


@pytest.mark.parametrize(
    "other", ["./0.jsonl", "{0}/0.jsonl", "link.jsonl", "hard.jsonl", "d/../0.jsonl", "file://{0}/0.jsonl"]
)
def test_a_file_is_in_a_source_once_whatever_its_name(
    inputs: Path, other: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(inputs)
    (inputs / "d").mkdir()
    (inputs / "link.jsonl").symlink_to("0.jsonl")
    (inputs / "hard.jsonl").hardlink_to("0.jsonl")
    line = ["tokenize", "a=0.jsonl", "--out", "out", "--vocab", str(GOLDEN), "--workers", "0"]
    line += ["--append", "a=1.jsonl"]
    name = other.format(inputs)
    for grown in (False, True):  # at once, and to shards that are there
        assert run_command([*line, "--append", f"a={name}"]) == 2
        assert f"append 2 of a names files that it contains already: 0.jsonl = {name}; name new" in (
            capsys.readouterr().err
        )
        assert grown or not Path("out/shards/manifest.json").exists()
        assert run_command(line) == 3  # for the bad line in each file
    assert load_manifest(Path("out/shards")).sources["a"].read == 80


def test_an_unfinished_append_binds_its_inputs_until_it_is_deleted(inputs: Path, here: Engine) -> None:
    run(recipe(inputs, "out"), here)
    with pytest.raises(Killed), killed_after(20):  # when some partitions are done
        run(recipe(inputs, "out", "a2"), here)
    other, once = recipe(inputs, "out", "a3"), recipe(inputs, "once", "a3")
    with pytest.raises(
        MismatchError, match=r"unfinished shards of a, append 1 in .*/a\.1 were .*2\.jsonl is gone"
    ):
        run(other, here)
    shutil.rmtree(other.shards_dir / ".state" / "a.1")
    run(other, here)
    run(once, here)
    assert contents(other.shards_dir) == contents(once.shards_dir)
