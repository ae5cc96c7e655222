"""A shards folder of somebody else: finishing its removal writes nothing but the tokens and files of its manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_remove import remove

from pretok.base.errors import IntegrityError
from pretok.base.storage import checksum, fingerprint
from pretok.shards.manifest import load_manifest

SUM = f"xxh3:{'0' * 32}"
BEFORE = b"a thesis, of which nobody wants a byte to change" * 4


@pytest.fixture
def log(work: Path) -> dict[str, Any]:
    """The log of a removal that does nothing."""
    entry = load_manifest(work / "shards").tokenizer
    removal = {"at": "2026-01-01T00:00:00.000Z", "reason": "x", "documents": 0, "tokens": 0, "former": {}}
    head = {"request": "0" * 32, "removal": removal, "eod_id": entry.eod_id, "dtype": entry.dtype}
    return {**head, "shards": {}, "files": []}


def finish(work: Path, log: dict[str, Any]) -> None:
    folder = work / "shards" / ".removal"
    folder.mkdir(exist_ok=True)
    (folder / "0").write_bytes(b"a key of somebody else")
    (folder / "log.json").write_text(json.dumps(log))
    remove(work, where="id = 'nobody'")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shards": {"../thesis.txt": [[0, 10]]}}, "not a path inside the folder"),
        ({"shards": {"{outside}": [[0, 10]]}}, "not a path inside the folder"),
        ({"shards": {"a/extra.txt": [[0, 10]]}}, r"no such tokens of a/extra\.txt"),
        ({"shards": {"{shard}": [[0, 1 << 20]]}}, r"no such tokens of a/"),
        ({"shards": {"{shard}": [[5, 5]]}}, r"no such tokens of a/"),
        ({"files": [["0", "../thesis.txt", SUM]]}, "not a path inside the folder"),
        ({"files": [["0", "{outside}", SUM]]}, "not a path inside the folder"),
        ({"files": [["0", "a/extra.txt", SUM]]}, r"a/extra\.txt is no file of the manifest"),
        ({"files": [["0", "{shard}", SUM]]}, r"a/.*\.bin is no file of the manifest"),
        ({"files": [["../manifest.json", "manifest.json", SUM]]}, r"files.*Expected `str` matching"),
        ({"dtype": "int8"}, "its tokenizer is not the one"),
        ({"eod_id": 1}, "its tokenizer is not the one"),
    ],
)
def test_a_log_names_only_what_the_manifest_has(
    work: Path, log: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    shard = load_manifest(work / "shards").shards[0]
    outside, extra = work / "thesis.txt", work / "shards" / "a" / "extra.txt"
    for path in (outside, extra):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(BEFORE)
    before = shard.bin_path.read_bytes()
    text = json.dumps(log | change).replace("{outside}", str(outside)).replace("{shard}", shard.path)
    with pytest.raises(IntegrityError, match=rf"log\.json.*{message}"):
        finish(work, json.loads(text))
    assert outside.read_bytes() == extra.read_bytes() == BEFORE
    assert shard.bin_path.read_bytes() == before


@pytest.mark.parametrize("new", [False, True], ids=["finished", "new"])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_that_leaves_the_folder_is_not_written(
    work: Path, log: dict[str, Any], what: str, new: bool
) -> None:
    shard = load_manifest(work / "shards").shards[0]
    moved = shard.bin_path if what == "file" else shard.bin_path.parent
    outside = moved.rename(work / "outside")
    moved.symlink_to(outside)
    files = [outside] if what == "file" else sorted(outside.iterdir())
    before = [file.read_bytes() for file in files]
    with pytest.raises(IntegrityError, match="leads out of the folder"):  # noqa: PT012
        if new:
            remove(work, where="id in ('a1', 'a2', 'a3', 'a4')")
        else:
            finish(work, log | {"shards": {shard.path: [[0, 10]]}})
    assert [file.read_bytes() for file in files] == before
    assert (work / "shards" / ".removal").exists() != new


def test_a_folder_of_a_removal_that_is_a_link_is_refused(work: Path, log: dict[str, Any]) -> None:
    outside = work / "outside"
    outside.mkdir()
    (work / "shards" / ".removal").symlink_to(outside)
    with pytest.raises(IntegrityError, match=r"\.removal is a link"):
        finish(work, log)
    assert sorted(file.name for file in outside.iterdir()) == ["0", "log.json"]


@pytest.mark.parametrize("said", ["is damaged", "is a link"])
def test_what_is_moved_into_place_is_what_the_removal_wrote(
    work: Path, log: dict[str, Any], said: str
) -> None:
    manifest, staged = work / "shards" / "manifest.json", work / "shards" / ".removal" / "0"
    before, sealed = manifest.read_bytes(), checksum(manifest)
    if said == "is a link":
        staged.parent.mkdir()
        (work / "outside.json").write_bytes(before)
        staged.symlink_to(work / "outside.json")
    with pytest.raises(IntegrityError, match=rf"\.removal/0 {said}"):
        finish(work, log | {"files": [["0", "manifest.json", sealed]]})
    assert manifest.read_bytes() == before
    assert not manifest.is_symlink()


@pytest.mark.parametrize("named", ["../../../outside.parquet", "/outside.parquet", "a//b", ".", "a\0b", ""])
def test_annotations_name_only_files_of_their_folder(work: Path, named: str) -> None:
    path = work / "shards" / "annotations" / "q" / "annotations.json"
    data = json.loads(path.read_text())
    next(iter(data["parts"].values()))["path"] = named
    body = {key: value for key, value in data.items() if key not in ("format", "version", "seal")}
    path.write_text(json.dumps(data | {"seal": fingerprint(body)}))
    with pytest.raises(IntegrityError, match=r"annotations\.json"):
        remove(work, where="id = 'a3'")


def test_a_removal_by_ids_is_repeatable(work: Path, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("a3\nb9\n")
    first = remove(work, ids=tmp_path / "ids")
    again = remove(work, ids=tmp_path / "ids")
    assert (again.removal, again.fingerprint) == (first.removal, first.fingerprint)
    assert again.reach.documents == 0
