"""docs/coming-from.md: every command of ours runs, and the programs that are installed give the same ids."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support import ROOT, needs
from tokenizing import ids_of_library

from pretok.base.storage import read_json
from pretok.base.tokens import DTYPE_CODES
from pretok.cli import run_command
from pretok.shards.shard_file import index_bytes

PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"(?ms)^## (\S+).*?\n(.*?)(?=^## |\Z)", PAGE))
"""The first word of a heading -> its section."""


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", SECTIONS[section])


@pytest.fixture
def expected(
    tmp_path: Path, texts: list[str], vocab_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> list[list[int]]:
    """The ids of the documents of it.jsonl, in a folder with what the page names."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(vocab_dir, "model")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    Path("model/tokenizer_config.json").write_text(json.dumps(config))
    rows = [{"id": f"{n}", "text": text} for n, text in enumerate(texts[:60])]
    Path("it.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ids = [[*one, 0] for one in ids_of_library(read_json(vocab_dir / "tokenizer.json"), texts[:60])]
    Path("old").mkdir()
    np.concatenate([np.array(one, "<u2") for one in ids]).tofile("old/a.bin")
    Path("old/a.idx").write_bytes(index_bytes(np.array(list(map(len, ids)), np.int32), DTYPE_CODES[8]))
    shutil.copy("old/a.bin", "old/a.npy")
    return ids


def made(folder: str = "work/shards") -> list[list[int]]:
    found = []
    for path in sorted(Path(folder).rglob("it*.bin")):
        tokens = np.fromfile(path, "<u2")
        found += [tokens[a:b].tolist() for a, b in pairwise([0, *(np.flatnonzero(tokens == 0) + 1)])]
    return sorted(found)


def run_ours(section: str, *more: str) -> None:
    for block in blocks(section, "sh"):
        for line in block.splitlines():
            if line.startswith("pretok"):
                words = shlex.split(line)[1:]
                again = ("--val-fraction", "0", "--workers", "0") if words[0] == "tokenize" else ()
                assert run_command([*words, *again, *more]) == 0, line


@pytest.mark.parametrize("section", [name for name in SECTIONS if "pretok " in SECTIONS[name]])
def test_our_commands_give_the_ids_of_tokenizers(section: str, expected: list[list[int]]) -> None:
    run_ours(section)
    assert made() == sorted(expected)


def test_the_recipe_for_tokens_gives_the_ids_that_they_were(expected: list[list[int]]) -> None:
    (table,) = blocks("Tokens", "toml")
    Path("r.toml").write_text(f'out = "work"\nvocab.path = "model"\nshards.val_fraction = 0\n{table}')
    assert run_command(["tokenize", "r.toml", "--workers", "0"]) == 0
    assert made() == sorted(expected)


def test_map_of_datasets_gives_the_same_ids(
    expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("datasets"), needs("transformers")
    monkeypatch.setenv("HF_HOME", str(Path.cwd() / "cache"))
    names: dict[str, object] = {}
    exec(blocks("torchtitan", "python")[0], names)
    data: list[dict[str, list[int]]] = names["data"]  # type: ignore[assignment]
    assert sorted([*row["input_ids"], 0] for row in data) == sorted(expected)


@pytest.mark.peers
def test_datatrove_gives_the_same_ids_and_its_files_are_read(expected: list[list[int]]) -> None:
    needs("datatrove.executor"), needs("datatrove.pipeline.readers"), needs("datatrove.pipeline.tokens")
    exec(blocks("datatrove:", "python")[0], {})
    old = str(next(Path("tokens").rglob("*.ds")).parent)
    inputs = [f"it={old}/*.ds", "--tokens", "it=model", "--out", "again", "--vocab", "model"]
    assert run_command(["tokenize", *inputs, "--val-fraction", "0"]) == 0
    assert made("again/shards") == sorted(expected)


OTHERS = {
    "Megatron-LM:": (
        "megatron",
        "megatron-core einops pybind11 triton (Python 3.12), and clone Megatron-LM into it",
    ),
    "dolma": ("dolma", "dolma s3fs==2023.6.0 boto3==1.28.17"),
    "NeMo": ("curator", "nemo-curator 'transformers<5'"),
}
"""Section -> the environment below PRETOK_OTHERS that runs its program, which wants other packages than we; what to
install in it."""


@pytest.mark.peers
@pytest.mark.parametrize("section", OTHERS)
def test_other_programs_give_the_same_ids_and_their_files_are_read(
    section: str, expected: list[list[int]]
) -> None:
    """Their block as printed; then our command for what they wrote."""
    name, packages = OTHERS[section]
    place = Path(os.environ.get("PRETOK_OTHERS", "/none")) / name
    if not place.exists():
        pytest.skip(
            f"python3 -m venv FOLDER/{name} && FOLDER/{name}/bin/pip install {packages}; PRETOK_OTHERS=FOLDER"
        )
    if name == "dolma":  # it strips texts, and has tokenizers 0.19, which reads merges as strings only
        data = read_json(path := Path("model/tokenizer.json"))
        texts = [json.loads(line)["text"].strip() for line in Path("it.jsonl").read_text().splitlines()]
        expected = [[*one, 0] for one in ids_of_library(data, texts)]
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
        path.write_text(json.dumps(data))
    if name == "megatron":
        Path("tools").symlink_to(place / "Megatron-LM" / "tools")
    command = next(block for language in ("python", "sh") for block in blocks(section, language))
    if "import" in command:
        Path("block.py").write_text(command)
        command = "python block.py"
    there = os.environ | {
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(place / "Megatron-LM"),
    }
    ended = subprocess.run(shlex.split(command), env=there, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    files = [*Path("tokens").glob("*.npy"), *Path("tokens").glob("*.bin"), *Path().glob("it_*.bin")]
    dtype = ', dtype = "uint16"' if name == "dolma" else ""
    Path("r.toml").write_text(
        f'out = "again"\nvocab.path = "model"\nshards.val_fraction = 0\n[sources.it]\n'
        f'inputs = {json.dumps(list(map(str, files)))}\ntokens = {{ tokenizer = "model"{dtype} }}\n'
    )
    assert run_command(["tokenize", "r.toml", "--workers", "0"]) == 0
    (old,), (new,) = files, Path("again/shards/it").glob("*.bin")
    assert old.read_bytes() == new.read_bytes()
    assert made("again/shards") == sorted(expected)
