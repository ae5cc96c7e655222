"""Documents found by hash and by file and line, and the command that says where a mix reads them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from mixing import request
from tokenizing import recipe, run

from pretok.audit.find import find_named
from pretok.audit.trace import open_traced, readings
from pretok.base.errors import UsageError
from pretok.base.execute import Engine
from pretok.cli import run_command
from pretok.shards.documents import documents_at
from pretok.shards.manifest import Manifest, load_manifest
from pretok.stream.mix_job import run_mix


@pytest.fixture
def manifest(folder: Path, vocab_dir: Path, here: Engine) -> Manifest:
    inputs: dict[str, list[Path | str]] = {
        "it": [folder / "in" / "it-0.jsonl", folder / "in" / "it-1.jsonl"],
        "en": [folder / "in" / "en.jsonl"],
    }
    made = recipe(folder / "out", vocab_dir, inputs)
    run(made, here)
    return load_manifest(made.shards_dir)


def test_every_document_is_found_by_hash_and_by_place(manifest: Manifest) -> None:
    by_hash: dict[str, list[tuple[str, str, int]]] = {}
    places = []
    before: Counter[tuple[str, str]] = Counter()
    for shard in manifest.shards:
        for number, row in enumerate(pq.read_table(shard.ledger_path).to_pylist()):
            place = (shard.source, shard.split, before[shard.source, shard.split] + number)
            by_hash.setdefault(row["hash"].hex(), []).append(place)
            known = documents_at(manifest, shard, [number])[0]
            places.append(((known["file"], known["position"]), place))
        before[shard.source, shard.split] += shard.documents
    for digits, expected in list(by_hash.items())[::7]:
        assert find_named(manifest, digits.upper(), 99) == expected
    for (file, position), expected_place in places[::7]:
        for name in (file, Path(file).name):
            assert find_named(manifest, f"{name}:{position}", 99) == [expected_place]


def test_a_name_of_no_document_is_explained(manifest: Manifest) -> None:
    lines = (manifest.folder.parents[1] / "in" / "en.jsonl").read_text("utf-8").count("\n")
    for name, message in (
        (f"en.jsonl:{lines}", "a rejected record"),
        ("en.jsonl:100000", "a line that is not there"),
        (32 * "0", "not the hash of any text"),
        ("other.jsonl:1", "no column id was kept"),
    ):
        with pytest.raises(UsageError, match=message):
            find_named(manifest, name, 9)


def test_the_command_says_what_the_functions_say(
    manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifest.folder.parent / "mix.json"
    run_mix(manifest.folder, path, request("20000:it=0.3,en=0.7", seq_len=64, max_epochs=9))
    shard = manifest.of("en")[0]
    [known] = documents_at(manifest, shard, [3])
    file, line = known["file"], known["position"]
    found = readings(open_traced(path, None)[0], "en", "train", 3)
    assert run_command(["trace", str(path), "--doc", f"{file}:{line}", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["position"], row["first"], row["tokens"]) for row in told] == [
        (reading.position, reading.first, reading.tokens) for reading in found
    ]
    assert {(row["file"], row["line"], row["document"], row["step"]) for row in told} == {
        (file, line, 3, None)
    }
    assert run_command(["trace", str(path), "--position", str(found[0].position), "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert told[0] in there
    assert sum(row["tokens"] for row in there) == 65
    assert run_command(["trace", str(path), "--doc", f"{file}:{line}"]) == 0
    assert str(found[-1].position) in capsys.readouterr().out
    assert run_command(["trace", str(path)]) == 2
    assert "one of --doc, --position and --step" in capsys.readouterr().err
