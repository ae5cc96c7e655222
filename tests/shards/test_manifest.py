"""The manifest: whatever is flipped, edited or forged is found and named."""

from __future__ import annotations

import json
import pickle
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import make_shards
from test_golden import GOLDEN
from tokenizing import recipe, run

import pretok.stream
from pretok.base.console import Console
from pretok.base.errors import IntegrityError, MismatchError
from pretok.base.execute import Engine
from pretok.base.records import MANY, replace
from pretok.base.stop import StopFlag
from pretok.base.storage import canonical_json, fingerprint, write_json
from pretok.base.tree import root_of
from pretok.cli import run_command
from pretok.documents.audit.verify_job import notes, run_verify
from pretok.shards.inputs import load_inputs
from pretok.shards.manifest import FILE_NAME, VERSION, SideFile, inputs_name, load_manifest, write_manifest
from pretok.shards.shard_file import NOWHERE, RemovedCounts, Shard
from pretok.stream.mix_file import natural_mix

FLIPS = 60
"""In the manifest, where a bit may mean nothing. Of files with a checksum any bit tells as much as another."""


def verify(shards: Path, here: Engine, sample: int | None = 0) -> list[str]:
    return run_verify(shards, sample, here, Console())[1]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished folder with every kind of file: shards, validation, ledgers, rejects, tokenizer."""
    folder = tmp_path_factory.mktemp("sealed")
    shutil.copy(GOLDEN / "documents.jsonl", folder / "documents.jsonl")
    made = recipe(folder, GOLDEN, {"docs": [folder / "documents.jsonl"]}, val_fraction="0.2")
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        run(made, engine)
    return made.shards_dir


@pytest.fixture
def shards(sealed: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(sealed, tmp_path / "shards")


def test_every_file_is_in_the_manifest(sealed: Path, here: Engine) -> None:
    manifest = load_manifest(sealed)
    named = {*manifest.roots, *(shard.nodes_path for shard in manifest.shards), sealed / FILE_NAME}
    assert named == {path for path in sealed.rglob("*") if path.is_file()}
    assert len(manifest.side_files) == 5
    for entry in manifest.entries:  # what the root over everything is of
        assert entry == canonical_json(json.loads(entry))
    assert verify(sealed, here, None) == []


def test_seal_and_fingerprint_are_those_of_the_canonical_json(sealed: Path, tmp_path: Path) -> None:
    """The file is read, and both are computed, without the JSON values that this makes."""
    odd = '\x00\x1f"\\/\x7f\u2028é𝄞'
    free = {"config": {odd: [1e16, 0.1, None, {"b": 1, "a": odd}]}, "materialized": {}}
    write_manifest(tmp_path, replace(load_manifest(sealed), **free))
    data = json.loads((tmp_path / FILE_NAME).read_text(encoding="utf-8"))
    read = load_manifest(tmp_path)
    assert (read.config, read.materialized) == (free["config"], {})
    assert {shard.folder for shard in read.shards} == {tmp_path}
    head = {key: data.pop(key) for key in ("format", "version", "fingerprint", "seal")}
    assert head["seal"] == read.at(NOWHERE).seal == fingerprint(data)
    parts = {"tokenizer": data["tokenizer"], "shards": data["shards"]}
    assert head["fingerprint"] == fingerprint({"format": "pretok-shards", "version": 2, **parts})


def test_many_shards_are_read_as_they_were_written(
    sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks, without the slow way, which says what is wrong; names of sources and splits take memory once."""
    known, draw = load_manifest(sealed), random.Random(0)
    shards = tuple(
        Shard(
            f"{source}/{source}-{number:05}.bin",
            source,
            split,
            *(draw.randrange(2 ** draw.choice((0, 9, 31, 63))) for _ in range(4)),
            *(f"{draw.randrange(2**256):064x}" for _ in range(2)),
            draw.choice((None, {}, {"text": 2**63 - 1, "answer": 0})),
            draw.choice((None, RemovedCounts(1, 2, 3))),
        )
        for source in ("docs", "è_1")
        for split in ("train", "val")
        for number in range(MANY * 2 // 3)
    )
    files = tuple(
        SideFile(shard.path + "\u2028", draw.choice((None, shard.source)), shard.tokens, shard.root)
        for shard in shards
    )
    for count in (0, 1, MANY - 1, MANY, MANY + 1, len(shards)):
        write_manifest(
            tmp_path, replace(known, shards=shards[:count], side_files=files[:count], folder=NOWHERE)
        )
        with monkeypatch.context() as patch:
            patch.setattr("pretok.shards.manifest.decode_record", None)
            read = load_manifest(tmp_path)
        assert read.at(NOWHERE).shards == shards[:count]
        assert {type(shard) for shard in read.shards} <= {Shard}
        assert read.side_files == files[:count]
        data = json.loads((tmp_path / FILE_NAME).read_text(encoding="utf-8"))
        for key in ("format", "version", "fingerprint"):
            del data[key]
        assert data.pop("seal") == fingerprint(data)
    assert len({id(name) for shard in read.shards for name in (shard.source, shard.split)}) == 4
    place = len(shards) - 1
    for key, field in (("shards", "path"), ("shards", "index_root"), ("side_files", "source")):
        forge(tmp_path, key, place, field, value="../x")
        with pytest.raises(IntegrityError, match=rf"{key}\[{place}\]\.{field}: not "):
            load_manifest(tmp_path)
        write_manifest(tmp_path, replace(known, shards=shards, side_files=files, folder=NOWHERE))


def test_a_view_of_many_shards_is_small(sealed: Path) -> None:
    """It is what another process gets, which needs 48 bytes and a path a shard for its path, size and root."""
    known = load_manifest(sealed)
    (first, *_) = known.of("docs")
    many = tuple(
        replace(first, path=f"docs/docs-{number:05}.bin", root=f"{number:064x}") for number in range(1000)
    )
    views = []
    for shards in (many[:1], many):
        grown = replace(known, shards=shards).counted()
        views.append(pretok.stream.View(grown, natural_mix(grown, "train", 8, ["docs"], 0, None)))
    one, thousand = (len(pickle.dumps(view)) for view in views)
    assert thousand - one < 80 * 999
    files = pickle.loads(pickle.dumps(views[1])).tokens.files
    assert (files.paths[999], files.sizes[999]) == (sealed / "docs/docs-00999.bin", first.file_bytes)


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "tokenizer.json",
        "rejects/docs-00000.jsonl",
        "docs/docs-val-00000.docs.parquet",
        "docs/docs-00000.docs.parquet",
        "docs/docs-00000.bin",
        "docs/docs-00000.idx",
        "docs/docs-00000.nodes",
    ],
)
def test_a_flipped_bit_is_found_in_any_file(shards: Path, here: Engine, name: str) -> None:
    """Or it changes nothing that the file says, as in the white space between the values of JSON."""
    original = (shards / name).read_bytes()
    meant = load_manifest(shards)
    generator = random.Random(name)
    flips = FLIPS if name == FILE_NAME else FLIPS // 6
    for position in generator.sample(range(8 * len(original)), flips):
        data = bytearray(original)
        data[position // 8] ^= 1 << position % 8
        (shards / name).write_bytes(data)
        try:
            found = verify(shards, here)
        except (IntegrityError, MismatchError) as error:
            found = [str(error)]
        if not found:
            assert name == "manifest.json", position
            assert load_manifest(shards) == meant, position
        elif name != "manifest.json":
            assert any(Path(name).stem.split(".")[0] in problem for problem in found)
    (shards / name).write_bytes(original)
    assert verify(shards, here) == []


def forge(shards: Path, *path: Any, value: Any) -> None:
    """Put `value` at a path of the manifest and make fingerprint and seal right, as far as they can be."""
    data = json.loads((shards / FILE_NAME).read_text())
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    body = {k: v for k, v in data.items() if k not in ("format", "version", "fingerprint", "seal")}
    try:
        tokens = {key: body[key] for key in ("tokenizer", "shards")}
        data["fingerprint"] = fingerprint({"format": "pretok-shards", "version": 2, **tokens})
        data["seal"] = fingerprint(body)
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    write_json(shards / FILE_NAME, data)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("tokenizer", "vocab_size"), -1, r"tokenizer\.vocab_size: Expected `int`"),
        (("tokenizer", "vocab_size"), 600.0, r"tokenizer\.vocab_size: Expected `int`"),
        (("tokenizer", "vocab_size"), 10**4000, r"tokenizer\.vocab_size: Expected `int` <= "),
        (("tokenizer",), None, "tokenizer: Expected `object`, got `null`"),
        (("shards", 0, "path"), "../docs-00000.bin", "not a path inside the folder"),
        (("shards", 0, "path"), "/etc/passwd", "not a path inside the folder"),
        (("shards", 0, "source"), "../../docs", r"shards\[0\]\.source: not the name of a source"),
        (("shards", 0, "split"), "../train", r"shards\[0\]\.split: not train or val"),
        (("shards", 0, "root"), "../../OUTSIDE/it", r"shards\[0\]\.root: not 64 hexadecimal digits"),
        (("side_files", 0, "path"), "a/../../b", "not a path inside the folder"),
        (("sources", "../docs"), {}, "not the name of a source"),
        (("shards", 0, "new"), 1, r"shards\[0\]: Object contains unknown field `new`"),
        (("sources", "docs", "train"), 3, r"sources\[...\]\.train: Expected `object`"),
        (("sources", "docs", "rejected"), {"x": "y"}, r"rejected\[...\]: Expected `int`"),
        (("materialized",), 5, "materialized: Expected `object"),
        (("materialized",), {"format": "shards"}, "manifest.json holds no mix; restore it from a copy"),
        (("materialized",), {"format": "pretok-mix", "version": 3}, "Object missing required field"),
    ],
)
def test_forged_manifests_are_refused_by_key(shards: Path, path: Any, value: Any, message: str) -> None:
    forge(shards, *path, value=value)
    with pytest.raises(IntegrityError, match=message) as caught:
        pretok.stream.open(shards, seq_len=8)
    assert FILE_NAME in str(caught.value)
    assert run_command(["verify", str(shards), "--workers", "0"]) in (0, 2)


def test_a_history_is_proven(tmp_path: Path, here: Engine) -> None:
    """Not believed: what the shards cannot have grown from is refused when it is asked for, whatever the seal says."""
    first = load_manifest(make_shards(tmp_path / "first", {"it": [[1, 2]] * 7}, documents_per_shard=3))
    second = load_manifest(make_shards(tmp_path / "second", {"en": [[3]]}, since=first.folder))
    shards = make_shards(tmp_path / "third", {"it": [[4]] * 4, "en": [[5]]}, since=second.folder)
    third = load_manifest(shards)
    assert [event.fingerprint for event in third.history] == [first.fingerprint, second.fingerprint]
    for old in (first, second, third):
        was = third.was(old.fingerprint)
        assert [s.path for s in was.shards] == [s.path for s in old.shards]
        assert third.was(old.fingerprint) is was  # one replay, however many sources of a mix ask
    assert third.was("0" * 32) is None
    for path, value in (
        ((0, "fingerprint"), second.fingerprint),
        ((1, "shards", "it", "train"), 2),
        ((1, "shards"), {}),
    ):
        write_manifest(shards, third)
        forge(shards, "history", *path, value=value)
        forged = load_manifest(shards)
        said = rf"history\[{path[0]}\] does not fit the shards"
        assert any(re.search(said, problem) for problem in verify(shards, here))
        with pytest.raises(IntegrityError, match=said):
            forged.was("0" * 32)


def test_a_table_of_inputs_is_checked_by_those_who_read_it(shards: Path, here: Engine) -> None:
    """Also if the manifest has its root."""
    path = shards / inputs_name("docs")
    table = json.loads(path.read_text())
    number = [file.path for file in load_manifest(shards).side_files].index("docs/docs.files.json")
    for change, said in (({"size": 1}, "unknown field `size`"), ({"rows": []}, "its inputs gave")):
        path.write_text(json.dumps({**table, **change}))
        with pytest.raises(IntegrityError, match="checksum"):
            load_inputs(load_manifest(shards), "docs")
        forge(shards, "side_files", number, "root", value=root_of(path))
        pretok.stream.open(shards, seq_len=8)
        assert any(said in problem for problem in verify(shards, here))


def test_files_that_are_unknown_or_missing_are_named(shards: Path, here: Engine) -> None:
    left = "docs/.docs-00001.bin.host-7.tmp", ".manifest.json.host-7.tmp"
    unknown = *left, "docs/docs-00009.bin", "rejects/x"
    for name in unknown:
        (shards / name).write_bytes(b"")
    (shards / "mix.json").write_text("{}")
    found = verify(shards, here)
    assert {problem.split()[0] for problem in found} == {str(shards / name) for name in unknown}
    assert sum("left by a killed process" in problem for problem in found) == len(left)
    assert notes(load_manifest(shards)) == [f"{shards / 'mix.json'} is not in the manifest: not ours"]
    for name in ("rejects/docs-00000.jsonl", "docs/docs-val-00000.docs.parquet", "tokenizer.json"):
        (shards / name).unlink()
        assert any(name in problem for problem in verify(shards, here))


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_shard_of_another_size_is_named(shards: Path, suffix: str) -> None:
    manifest = load_manifest(shards)
    assert manifest.sized() is manifest
    path = manifest.shards[-1].bin_path.with_suffix(suffix)
    data = path.read_bytes()
    for now, said in (
        (data + b"x", f"{len(data) + 1:,} bytes"),
        (data[:-1], f"{len(data) - 1:,} bytes"),
        (None, "is missing"),
    ):
        path.unlink()
        if now is not None:
            path.write_bytes(now)
        with pytest.raises(IntegrityError, match=f"^{path} .*{said}.*; run pretok verify {shards}$"):
            manifest.sized()
        path.write_bytes(data)
    manifest.sized()


def test_another_folder_or_file_is_refused_with_what_to_do(tmp_path: Path, sealed: Path) -> None:
    assert load_manifest(sealed.parent).folder == sealed
    for path, said in ((sealed / FILE_NAME, "is a file; name"), (tmp_path, "run pretok tokenize")):
        with pytest.raises(IntegrityError, match=said):
            load_manifest(path)


@pytest.mark.parametrize("version", [VERSION - 1, True, None])
def test_another_version_is_refused_by_name(shards: Path, version: Any) -> None:
    path = shards / FILE_NAME
    write_json(path, {**json.loads(path.read_text()), "version": version})
    with pytest.raises(
        MismatchError, match=f"manifest.json has format version .*reads {VERSION}: make the shards"
    ):
        load_manifest(shards)
