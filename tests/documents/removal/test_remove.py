"""Removal: exactly the documents that are meant go, everywhere, and everything else stays bit for bit."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import Gauges
from support import another_job
from test_golden import GOLDEN
from tokenizing import recipe as tokenized
from tokenizing import run

import pretok
import pretok.stream
from pretok.base.console import Console
from pretok.base.errors import IntegrityError, UsageError
from pretok.base.execute import Engine
from pretok.base.lock import share
from pretok.base.records import replace
from pretok.base.stop import StopFlag
from pretok.cli import run_command
from pretok.documents.audit.find import find_named
from pretok.documents.audit.verify_job import run_verify
from pretok.documents.removal.remove_job import RemoveRequest, run_remove
from pretok.shards.manifest import Manifest, load_manifest, write_manifest

EOD = 0
FACTS = ("source", "split", "shard", "doc", "file", "position", "tokens", "bytes", "hash")
"""What is known of a document that was removed."""


def copy_of(work: Path, folder: Path) -> Path:
    return shutil.copytree(work, folder)


def rows_of(work: Path) -> list[dict[str, Any]]:
    """Every document, as pretok query tells of it, with its ids."""
    manifest = load_manifest(work / "shards")
    table = pretok.open(work).documents().read_all().to_pylist()
    ids = [shard.open()[n].tolist() for shard in manifest.shards for n in range(shard.documents)]
    return [{**row, "ids": one} for row, one in zip(table, ids, strict=True)]


def texts_in(folder: Path, texts: Sequence[str]) -> list[str]:
    """Files in which a text stands, as bytes or as values of Parquet."""
    import pyarrow.parquet as pq

    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix == ".parquet":
                data += str(pq.read_table(path, partitioning=None).to_pylist()).encode()
            found += [f"{path}: {text}" for text in texts if text.encode() in data]
    return found


def check(before: Path, after: Path, gone: set[str], here: Engine) -> None:
    """`gone`: hashes of what went. The rest is what it was."""
    was, now = rows_of(before), rows_of(after)
    for old, new in zip(was, now, strict=True):
        wanted = {**old, "removed": None, "removed_reason": None}
        if old["hash"] in gone:
            stays = {name: old[name] for name in FACTS}
            wanted = dict.fromkeys(old) | stays | {"ids": [EOD] * len(old["ids"]), "q_matched": False}
            wanted |= {"removed": new["removed"], "removed_reason": "perché sì"}
        assert {"removed": None, "removed_reason": None, **new} == wanted
    manifest, former = load_manifest(after / "shards"), load_manifest(before / "shards")
    then = manifest.as_of(former.fingerprint)
    assert then is not None
    assert (then.fingerprint, len(then.shards)) == (former.fingerprint, len(former.shards))
    for name in ("mix.json", "classes.json"):
        old_view, new_view = (pretok.stream.open(work / "shards", work / name) for work in (before, after))
        assert new_view.fingerprint == old_view.fingerprint
        assert ((new_view[:] == old_view[:]) | (new_view[:] == EOD)).all()
    assert run_verify(after / "shards", None, here, Console())[1] == []
    urls = [row["url"] for row in was if row["hash"] in gone]
    notes = [row["note"] for row in was if row["hash"] in gone and row["note"]]
    texts = [f'{one}"' for one in urls] + [f"'{one}'" for one in urls + notes]
    assert texts_in(after / "shards", texts) == []


def removed_tokens(manifest: Manifest, rows: list[dict[str, Any]], gone: set[str]) -> dict[str, Any]:
    """Path of each `.bin` -> which of its tokens went."""
    masks: dict[str, list[Any]] = {}
    for row in rows:
        masks.setdefault(row["shard"], []).append(np.full(row["tokens"], row["hash"] in gone))
    return {f"shards/{s.path}": np.concatenate(masks[s.prefix.name]) for s in manifest.shards}


def remove(work: Path, **what: Any) -> Any:
    return run_remove(RemoveRequest(work / "shards", "perché sì", **what), Console())


@settings(max_examples=3)
@given(data=st.data())
def test_random_removals_agree_with_brute_force(
    removable: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("one")
    work = copy_of(removable, folder / "work")
    hashes = sorted({row["hash"] for row in rows_of(removable)})
    gone: set[str] = set()
    for _ in range(data.draw(st.integers(1, 3))):
        some = data.draw(st.lists(st.sampled_from(hashes), min_size=1, max_size=20, unique=True))
        (folder / "ids").write_text("\n".join(some))
        report = remove(work, ids=folder / "ids")
        fresh = set(some) - gone
        gone |= fresh
        assert report.already == sum(row["hash"] in set(some) - fresh for row in rows_of(removable))
        assert report.reach.documents == sum(row["hash"] in fresh for row in rows_of(removable))
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        check(removable, work, gone, engine)
    shutil.rmtree(folder)


def test_a_predicate_takes_copies_everywhere(
    removable: Path, work: Path, tmp_path: Path, here: Engine
) -> None:
    """The bar ends with the last shard that changes."""
    was = rows_of(removable)
    [same] = {row["hash"] for row in was if row["id"] == "a5"}
    report = remove(work, where="id = 'a5'")
    assert (report.reach.documents, sum(part.copies for part in report.reach.sources)) == (3, 2)
    check(removable, work, {same}, here)
    gauges, roots = Gauges(), load_manifest(work / "shards").roots
    where = "url like 'https://y%' and score > 10"
    run_remove(RemoveRequest(work / "shards", "perché sì", where=where), gauges)
    after = load_manifest(work / "shards").roots
    shards = sum(after[path] != root for path, root in roots.items() if path.suffix == ".bin")
    assert shards > 1
    assert gauges.whole("remove") == (shards, shards, "shards")
    gone = {row["hash"] for row in was if row["url"].startswith("https://y") and (row["score"] or 0) > 10}
    check(removable, work, gone | {same}, here)
    assert [removal.documents for removal in load_manifest(work / "shards").removals] == [3, len(gone)]


def command(work: Path, *options: str) -> int:
    return run_command(["remove", str(work / "shards"), "--reason", "perché sì", *options])


def snapshot(work: Path) -> dict[str, bytes]:
    files = (path for path in (work / "shards").rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("ids", "options", "said"),
    [
        ("a3\nnobody\n", ["--ids"], "nobody"),
        ("", ["--ids"], "names no document"),
        (None, ["--where", "source = 'b'"], "add --all"),
        (None, ["--where", "nothing = 1"], "the columns are"),
        (None, ["--where", "tokens > (select 3)"], "subquery"),
        (None, ["--where", "tokens"], "not a condition"),
        (None, [], "one of --where and --ids"),
    ],
)
def test_what_is_no_removal_changes_nothing(
    work: Path, tmp_path: Path, capsys: Any, ids: str | None, options: list[str], said: str
) -> None:
    if ids is not None:
        (tmp_path / "ids").write_text(ids)
        options = [*options, str(tmp_path / "ids")]
    before = snapshot(work)
    for more in ([], ["--dry-run"]):
        assert command(work, *options, *more) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    assert snapshot(work) == before


def test_names_of_every_kind(removable: Path, work: Path, tmp_path: Path, here: Engine, capsys: Any) -> None:
    """A dry run says what goes, and changes nothing."""
    rows = {row["id"]: row for row in rows_of(removable)}
    names = ["a3", rows["b9"]["hash"].upper(), "more.jsonl:8", str(removable / "b.jsonl") + ":2", "nobody"]
    (tmp_path / "ids").write_text("\n".join(names) + "\n\n")
    before = snapshot(work)
    options = ("--ids", str(tmp_path / "ids"), "--missing-ok", "--json")
    assert command(work, *options, "--dry-run") == 0
    assert snapshot(work) == before
    would, _ = capsys.readouterr()
    assert command(work, *options) == 0
    reach = json.loads(capsys.readouterr().out)["reach"]
    assert json.loads(would)["reach"] == reach
    hashes = {rows[name]["hash"] for name in ("a3", "b9", "more7", "b1")}
    gone = [row for row in rows.values() if row["hash"] in hashes]
    for part in reach["sources"]:
        some = [row for row in gone if (row["source"], row["split"]) == (part["source"], part["split"])]
        counts = [len(some), sum(row["tokens"] for row in some), sum(row["bytes"] for row in some)]
        assert [part["documents"], part["tokens"], part["bytes"]] == counts
    assert sum(part["documents"] for part in reach["sources"]) == len(gone)
    check(removable, work, hashes, here)
    assert command(work, "--where", "source = 'b'", "--all") == 0
    assert load_manifest(work / "shards").sources["b"].removed.documents == 60  # type: ignore[union-attr]


ODD = (
    "a\u2028b", "c\x85d", "e\x0cf", "g\x0bh", "  i", "j ", "k\rl", " ", 32 * "7", "m:1",
    "0123456789abcdefABCDEF0123456789",
)  # fmt: skip
"""Ids that are one line each."""
PARTS = (*"abcdefghijklm", "7", "0123456789abcdefabcdef0123456789", "nobody:2")
"""What other readers of lines would make of them, and more that no list names."""


def hash_of(text: str) -> str:
    return "".join(xxhash.xxh64_hexdigest(text.encode(), seed) for seed in (0, 1))


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """WORK of three files, two of which are called x.jsonl, with ids that are odd, or fit another document as well."""
    work = tmp_path_factory.mktemp("named")
    texts = {"first": "uno", hash_of("uno"): "due", "in.jsonl:1": "tre", hash_of("quattro"): "quattro"}
    texts |= {id: f"il documento numero {n}" for n, id in enumerate((*ODD, *PARTS))}
    inputs: list[Path | str] = []
    for name, some in {"in": texts, "one/x": {"1": "cinque"}, "two/x": {"2": "sei"}}.items():
        inputs.append(path := work / f"{name}.jsonl")
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in some.items()))
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        run(tokenized(work, GOLDEN / "tokenizer.json", {"it": inputs}, keep=["id"]), engine)
    return work


def test_a_list_of_names_is_read_line_by_line_and_nothing_is_stripped(
    named: Path, tmp_path: Path, capsys: Any
) -> None:
    work, ids = copy_of(named, tmp_path / "work"), tmp_path / "ids"
    ids.write_bytes("\r\n".join((*ODD, "", "nobody", "nobody ", 32 * "0", "in.jsonl:999")).encode())
    assert command(work, "--ids", str(ids)) == 2
    assert "no document of 4 of the names" in (said := " ".join(capsys.readouterr().err.split()))
    assert f"nobody, nobody , {32 * '0'}, in.jsonl:999;" in said
    assert command(work, "--ids", str(ids), "--missing-ok") == 0
    removed = {row["id"] for row in rows_of(named)} - {row["id"] for row in rows_of(work)}
    assert removed == set(ODD)


def test_a_name_that_fits_two_documents_is_refused(named: Path, tmp_path: Path, capsys: Any) -> None:
    """In two ways, or as a line of two files; where it fits one text in two ways, it is clear."""
    for name, what in (
        (hash_of("uno"), "the hash of a text and a kept id"),
        ("in.jsonl:1", f"a line of {named}/in.jsonl and a kept id"),
        ("x.jsonl:1", f"a line of {named}/one/x.jsonl and a line of {named}/two/x.jsonl"),
    ):
        (tmp_path / "ids").write_text(f"{name}\na\n")
        assert command(named, "--ids", str(tmp_path / "ids"), "--dry-run") == 2
        assert f"{name} is {what}" in " ".join(capsys.readouterr().err.split())
        with pytest.raises(UsageError, match="different documents in different ways"):
            find_named(load_manifest(named / "shards"), name, 9)
    (tmp_path / "ids").write_text(f"one/x.jsonl:1\n{named}/in.jsonl:1\n{hash_of('quattro')}")
    assert command(named, "--ids", str(tmp_path / "ids"), "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["reach"]["documents"] == 3


def test_a_disk_that_cannot_be_written_is_named_first(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    before, real = snapshot(work), os.open

    def refusing(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if str(path).endswith(".bin") and flags & os.O_WRONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refusing)
    assert command(work, "--where", "id = 'a3'") == 2
    said = capsys.readouterr().err
    assert ".bin" in said
    assert "file system" in said
    assert snapshot(work) == before


def test_two_jobs_do_not_meet(work: Path, capsys: Any) -> None:
    before = snapshot(work)
    for other in (another_job(work / "shards", "remove"), share(work / "shards", "export")):
        with other:
            assert command(work, "--where", "id = 'a3'") == 75
    assert "export" in capsys.readouterr().err
    assert snapshot(work) == before


def test_shards_that_differ_otherwise_are_refused(work: Path) -> None:
    """A history is proven: a former root that is none, another kind, a time that stands twice."""
    remove(work, where="id = 'a3'")
    manifest = load_manifest(work / "shards")
    grown, event = manifest.history
    assert event.removal is not None
    other = dict.fromkeys(event.removal.former, "0" * 64)
    for wrong in (replace(event.removal, former=other), replace(event.removal, former={}), None):
        history = (grown, replace(event, removal=wrong))
        write_manifest(work / "shards", replace(manifest, history=history))
        forged = load_manifest(work / "shards")
        with pytest.raises(IntegrityError, match=r"history\[[01]\] does not fit"):
            list(forged.versions())
