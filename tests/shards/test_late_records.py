"""Files that another node wrote and this one does not see at once, as on a network file system."""

from __future__ import annotations

from pathlib import Path

import pytest
from counting import contents
from counting import recipe as counted
from tokenizing import recipe, run

from pretok.base import storage
from pretok.base.console import NO_CONSOLE
from pretok.base.errors import IntegrityError
from pretok.base.execute import Engine
from pretok.vocab.counts.count_job import run_count


def count(folder: Path, _vocab: Path, here: Engine) -> dict[str, bytes]:
    run_count(counted(folder), here, NO_CONSOLE)
    return {name: data for name, data in contents(folder / "out").items() if name.endswith(".parquet")}


def tokenize(folder: Path, vocab: Path, here: Engine) -> dict[str, bytes]:
    run(recipe(folder / "out", vocab, {"it": [folder / "in" / "it.jsonl"]}), here)
    return {name: data for name, data in contents(folder / "out").items() if name.endswith(".bin")}


@pytest.mark.parametrize("appears", [True, False])
@pytest.mark.parametrize(
    ("job", "late"),
    [(count, "it-00000.parquet"), (count, "bucket-07.parquet"), (tokenize, "it-00000.json")],
)
def test_a_late_file_is_waited_for_and_nothing_is_left_out(
    tmp_path: Path, vocab_dir: Path, here: Engine, monkeypatch: pytest.MonkeyPatch, job, late, appears
) -> None:
    for name in ("once", "late"):
        for source in ("it", "en"):
            (tmp_path / name / "in").mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "in" / f"{source}.jsonl").write_text('{"text": "uno"}\n')
    expected = job(tmp_path / "once", vocab_dir, here)
    waited: list[float] = []
    exists = Path.exists

    def seen(path: Path) -> bool:
        return exists(path) and (path.name != late or (appears and sum(waited) >= 2))

    monkeypatch.setattr(Path, "exists", seen)
    monkeypatch.setattr(storage, "WAITS", (0.2, 2.0, 20.0))
    monkeypatch.setattr(storage.time, "sleep", waited.append)
    if appears:
        assert job(tmp_path / "late", vocab_dir, here) == expected
    else:
        with pytest.raises(IntegrityError, match=f"{late} is written, but this node does not see it"):
            job(tmp_path / "late", vocab_dir, here)
    assert [wait for wait in waited if wait] == [0.2, 2.0, *([] if appears else [20.0])]
