"""What was removed does not come back: in the same source, in another one, in another project."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from removal_recipe import recipe
from test_remove import remove, rows_of
from tokenizing import run

from pretok.base.console import Console
from pretok.base.errors import IntegrityError
from pretok.base.execute import Engine
from pretok.documents.audit.verify_job import run_verify
from pretok.shards.manifest import load_manifest

GONE = ("a3", "b9", "b5")
"""Of the last the text stands in `a` and in what was appended to it too."""


def test_the_same_texts_are_rejected(removable: Path, work: Path, here: Engine) -> None:
    """In what is appended to a source, and in a source that is new."""
    texts = [(removable / f"{name}.jsonl").read_text() for name in ("b", "a")]
    again = "".join(texts).replace('"id": "', '"id": "new')
    (work / "again.jsonl").write_text(again)
    gone = {row["hash"] for row in rows_of(removable) if row["id"] in GONE}
    remove(work, where=f"id in {GONE}")
    run(recipe(removable, work, ("more", "append", "source")), here)
    manifest = load_manifest(work / "shards")
    assert [event.removal is not None for event in manifest.history] == [False, True, False, False]
    assert [manifest.sources[name].rejected for name in "bc"] == [{"removed": 4}] * 2
    came = [row for row in rows_of(work) if str(row["id"]).startswith("new")]
    assert len(came) == 2 * (again.count("\n") - 4)
    assert gone.isdisjoint(row["hash"] for row in came)
    rejects = (work / "shards" / "rejects").glob("*.jsonl")
    found = [json.loads(line) for path in rejects for line in path.read_text().splitlines()]
    assert [line["detail"].partition(": ")[2] for line in found] == ["perché sì"] * 8
    assert run_verify(work / "shards", None, here, Console())[1] == []
    assert manifest.as_of(load_manifest(removable / "shards").fingerprint) is not None


def test_a_list_that_is_gone_lets_nothing_in(
    removable: Path, work: Path, tmp_path: Path, here: Engine
) -> None:
    """The manifest says that it is there: neither tokenize nor another removal goes on without it."""
    shutil.copy(removable / "b.jsonl", work / "again.jsonl")
    remove(work, where=f"id in {GONE}")
    before = load_manifest(work / "shards").fingerprint
    kept = (work / "shards" / "removed.parquet").rename(tmp_path / "removed.parquet")
    with pytest.raises(IntegrityError, match=r"removed\.parquet"):
        remove(work, where="id = 'a7'")
    with pytest.raises(IntegrityError, match=r"removed\.parquet"):
        run(recipe(removable, work, ("more", "append")), here)
    assert load_manifest(work / "shards").fingerprint == before
    kept.rename(work / "shards" / "removed.parquet")
    run(recipe(removable, work, ("more", "append")), here)
    assert load_manifest(work / "shards").sources["b"].rejected == {"removed": 2}


@pytest.mark.parametrize("duplicates", ["keep", "drop"])
def test_another_project_is_given_the_list(
    removable: Path, work: Path, tmp_path: Path, here: Engine, duplicates: str
) -> None:
    remove(work, where=f"id in {GONE}")
    removed = work / "shards" / "removed.parquet"
    other = recipe(removable, tmp_path / "other", ("more",), removed=removed, duplicates=duplicates)
    run(other, here)
    rejected = {name: counts.rejected for name, counts in load_manifest(other.shards_dir).sources.items()}
    assert rejected == {"a": {"removed": 3}, "b": {"removed": 2}}
    for path, message in (
        (tmp_path / "nothing.parquet", r"nothing\.parquet"),
        (work / "shards" / "a" / "a-00000.docs.parquet", "not a list of removed texts"),
    ):
        with pytest.raises(IntegrityError, match=message):
            run(recipe(removable, tmp_path / "third", ("more",), removed=path), here)
