"""mix.json and the commands that write and read it: forged, damaged, interrupted, of other shards."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mixing import request
from support import make_shards
from typer.testing import CliRunner

import pretok.stream
from pretok.base.errors import IntegrityError, MismatchError, PretokError, UsageError
from pretok.base.records import replace
from pretok.base.storage import fingerprint
from pretok.cli import app, run_command
from pretok.config import MixTable
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_file import MixSource, load_mix, write_mix
from pretok.stream.mix_job import MixRequest, plan_mix, run_mix


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of shards and the path of a mix of them."""
    shards = make_shards(tmp_path / "shards", {"en": [range(1, 400)], "it": [range(1, 900)]})
    run_mix(shards, tmp_path / "mix.json", request("600:it=0.9,en=0.1", seq_len=5))
    return shards, tmp_path / "mix.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_len": 0}, "seq_len: Expected `int` >= 1"),
        ({"seed": 2**64}, "seed: Expected `int`"),
        ({"split": "test"}, "split: "),
        ({"more": 1}, "Object contains unknown field `more`"),
        ({"seq_len": 7}, "reads more than its sources have"),
        ({"stages": []}, "reads more than its sources have"),
        ({"stages": [{"quotas": [1]}]}, "reads more than its sources have"),
        ({"stages": [{"quotas": [1, 2], "length": 4}]}, "reads more than its sources have"),
        ({"stages": [{"quotas": [2**50, 1]}]}, "is too long; at most"),
        (
            {"sources": [{"name": "en", "tokens": 4, "sequences": 0}], "stages": [{"quotas": [5]}]},
            "reads more than its sources have",
        ),
    ],
)
def test_forged_mixes_are_refused(made: tuple[Path, Path], change: dict[str, Any], message: str) -> None:
    shards, path = made
    data = json.loads(path.read_text()) | change
    identity = {key: data[key] for key in data if key not in ("fingerprint", "report")}
    path.write_text(json.dumps(data | {"fingerprint": fingerprint(identity)}))
    with pytest.raises(PretokError, match=message):
        pretok.stream.open(shards, path)


def test_a_mix_is_compared_with_the_shards(made: tuple[Path, Path]) -> None:
    shards, path = made
    mix = load_mix(path)
    more = tuple(MixSource(s.name, s.tokens + 5, s.sequences + 1) for s in mix.sources)
    for sources in (more, (mix.sources[0], MixSource("fr", 1000, 199))):
        write_mix(path, replace(mix, sources=sources), {})
        with pytest.raises(IntegrityError, match=f"source {sources[1].name}|source en has 405 train tokens"):
            pretok.stream.open(shards, path)


def test_flipped_bits_in_a_mix_are_found(made: tuple[Path, Path]) -> None:
    shards, path = made
    original = path.read_bytes()
    meant = load_mix(path)
    for position in random.Random(0).sample(range(8 * len(original)), 300):
        data = bytearray(original)
        data[position // 8] ^= 1 << position % 8
        path.write_bytes(data)
        with suppress(IntegrityError, MismatchError):
            assert pretok.stream.open(shards, path).mix == meant


def test_a_mix_that_cannot_be_written(
    tmp_path: Path,
    made: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line that names the path, exit code 2; the disk holds nothing new."""
    shards, _ = made
    (tmp_path / "file").write_text("")

    def no_space(path: Path, value: object) -> None:
        raise OSError(28, "No space left on device")

    def wish(out: Path) -> tuple[int, str]:
        code = run_command(["mix", str(shards), "--seq-len", "5", "--out", str(out)])
        return code, capsys.readouterr().err

    for out, message in (
        (tmp_path, "is a folder; name a file"),
        (tmp_path / "file" / "m.json", "cannot write"),
    ):
        code, shown = wish(out)
        assert (code, message in shown, "Traceback" in shown) == (2, True, False)
    monkeypatch.setattr("pretok.stream.mix_file.write_json", no_space)
    code, shown = wish(tmp_path / "new.json")
    assert (code, shown.count("\n")) == (75, 1)
    assert f"cannot write {tmp_path / 'new.json'}: No space left on device" in shown


def test_interrupted_by_the_user(
    made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pretok.stream.mix_job.load_mix", interrupted)
    monkeypatch.setattr("pretok.audit.documents.load_manifest", interrupted)
    for command in (
        ["mix", str(made[0]), "--out", str(made[1])],
        ["inspect", str(made[0]), "--source", "it"],
    ):
        assert run_command(command) in (75, 130)
        assert capsys.readouterr().err.count("\n") <= 1


@pytest.fixture
def command() -> Callable[..., str]:
    """Runs `pretok mix` or `pretok export` and returns standard output."""

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def test_commands(tmp_path: Path, command: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    shards = make_shards(
        tmp_path / "shards", {"en": [range(1, 400)], "it": [range(1, 900)], "old": [range(9)]}
    )
    path, out = tmp_path / "mix.json", tmp_path / "mixed"
    wish = ("mix", shards, "--weights", "it=0.9,en=0.1", "--tokens", 600, "--seq-len", 5)
    report = json.loads(command(*wish, "--json"))
    assert not path.exists()
    assert report["sources"]["it"]["tokens"] == 540
    assert json.loads(command(*wish, "--json", "--out", path, "--materialize", out, "--workers", 0)) == report
    plan, written = pretok.stream.open(shards, path), pretok.stream.open(out, path)
    np.testing.assert_array_equal(plan.batch(range(120)), written.batch(range(120)))
    assert (plan.mix.seed, plan.seq_len) == (0, 5)

    assert run_command([str(word) for word in wish]) == 0
    shown, told = capsys.readouterr()
    assert "en 10.0000%, it 90.0000%" in shown
    assert "│ it" in shown
    assert "not in the mix: old, 10 tokens" in told

    stages = ("mix", shards, "--stage", "300:it=1", "--stage", "300:it=0.5,en=0.5", "--seq-len", 5)
    assert [stage["tokens"] for stage in json.loads(command(*stages, "--json"))["stages"]] == [300, 300]
    with pytest.raises(UsageError, match="--stage and tokens exclude each other"):
        command(*stages, "--tokens", 600)
    with pytest.raises(UsageError, match="where with --out"):
        command(*wish, "--materialize", out)

    blend = command("export", shards, "--mix", path, "--to", "megatron")
    assert len(json.loads(blend)["train"]) == 4
    assert (
        command("export", shards, "--mix", path, "--to", "megatron", "--out", tmp_path / "blend.json") == ""
    )
    assert (tmp_path / "blend.json").read_text() == blend


def test_recipes_mean_the_same(made: tuple[Path, Path]) -> None:
    manifest = load_manifest(made[0])
    tables = [
        ({"weights": {"it": "0.9", "en": "0.1"}, "tokens": "600", "seq_len": 5}, ("600:it=0.9,en=0.1",)),
        ({"seq_len": 5}, ("all:natural",)),
        (
            {"seq_len": 5, "stages": [{"tokens": "500", "weights": {"it": 1}}, {"tokens": "5"}]},
            ("500:it=1", "5:natural"),
        ),
    ]
    for table, stages in tables:
        of_recipe = MixRequest(MixTable.model_validate(table))
        assert plan_mix(manifest, of_recipe)[0] == plan_mix(manifest, request(*stages, seq_len=5))[0]
