"""Damage: no command derives files or statements from shards that are not as they were sealed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pretok.cli import run_command
from pretok.shards.ledger import ledger_column

MIX = "mix WORK/shards --out WORK/mix.json --seq-len 16 --materialize OUT --workers 0"
EXPORT = "export WORK/shards --to olmo --out OUT --workers 0"
ANNOTATE = "annotate WORK/shards HERE/it.jsonl --by id --name notes --columns text"
TOKENIZE = "tokenize --out WORK --vocab VOCAB --keep id --duplicates drop --workers 0"
BUILD_VOCAB = "build-vocab it=none --counts WORK/counts --out OUT --vocab-size 400 --workers 0"
BIN, INDEX, LEDGER = (f"shards/it/it-00000.{suffix}" for suffix in ("bin", "idx", "docs.parquet"))


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Path:
    """A WORK with shards, what was joined to them and a mix; beside it another source and rows to join."""
    folder = tmp_path_factory.mktemp("damage")
    for name in ("it", "en"):
        rows = [{"id": f"{name}{i}", "text": f"{name} documento {i} " * 9, "score": i} for i in range(80)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    names = {"WORK": folder / "work", "HERE": folder, "VOCAB": vocab_dir}
    for command in (
        f"{TOKENIZE} it=HERE/it.jsonl",
        "count it=HERE/it.jsonl --out WORK --workers 0",
        "annotate WORK/shards HERE/it.jsonl --by id --columns score --name marks",
        "mix WORK/shards --out WORK/mix.json --seq-len 16",
    ):
        assert run_command(words(command, names)) == 0
    return folder


def words(command: str, names: dict[str, Path]) -> list[str]:
    for name, path in names.items():
        command = command.replace(name, str(path))
    return command.split()


@pytest.mark.parametrize(
    ("command", "damaged"),
    [
        (MIX, BIN),
        (MIX, "shards/tokenizer.json"),
        ("remove WORK/shards --where doc=0 --reason why", BIN),
        (EXPORT, BIN),
        (EXPORT, INDEX),
        (EXPORT, "shards/tokenizer.json"),
        (ANNOTATE, LEDGER),
        (f"{TOKENIZE} it=HERE/it.jsonl en=HERE/en.jsonl", LEDGER),
        (BUILD_VOCAB, "counts/bucket-01.parquet"),
        ("disclose WORK --out OUT", LEDGER),
        ("disclose WORK --out OUT", "shards/annotations/marks/*.parquet"),
        ("report WORK --out OUT", BIN),
        ("report WORK --out OUT", LEDGER),
        ("inspect WORK/shards --source it", LEDGER),
        ("inspect WORK/shards --source it", INDEX),
        ("trace WORK/mix.json --position 1", INDEX),
    ],
)
def test_damage_is_not_passed_on(
    sealed: Path,
    vocab_dir: Path,
    command: str,
    damaged: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    work, out = shutil.copytree(sealed / "work", tmp_path / "work"), tmp_path / "out"
    names = {"WORK": work, "OUT": out, "HERE": sealed, "VOCAB": vocab_dir}
    [path] = work.glob(damaged)
    damage(path)
    capsys.readouterr()
    assert run_command(words(command, names)) == 2
    assert f"{path} is damaged: its checksum is not the one" in capsys.readouterr().err
    assert not any(one.is_file() and one.stat().st_size for one in [out, *out.glob("*.json")])
    assert not (work / "shards" / "annotations" / "notes").exists()


def damage(path: Path) -> None:
    """Where no reader of the format sees it."""
    data = bytearray(path.read_bytes())
    at = len(data) // 2
    if path.name.endswith(".docs.parquet"):
        at = data.index(ledger_column(path, "hash")[20].as_py())
    elif path.suffix == ".idx":  # a token goes from the first document to the second
        index = np.frombuffer(data, "<i4", 2, 34), np.frombuffer(data, "<i8", 1, 34 + 4 * 80 + 8)
        index[0][:] += (-1, 1)
        index[1][:] -= 2
        path.write_bytes(data)
        return
    elif path.suffix == ".json":
        at = data.rindex(b'"') - 1  # a letter of the last merge
    data[at] ^= 1
    path.write_bytes(data)
