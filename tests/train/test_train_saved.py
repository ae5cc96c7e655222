"""A checkpoint's files: nothing in them is run, damage is found before they are loaded, and old ones still load."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import needs

torch = needs("torch")
from safetensors.torch import load_file

from pretok.base.errors import IntegrityError, Stopped
from pretok.base.storage import NewFile, checksum
from tests.train_support import flags, random_shards, read_tensors, reseal, run_ranks, tiny_config
from train import loop
from train.__main__ import main
from train.checkpoint import meta, save
from train.checkpoint.export import export
from train.checkpoint.meta import check_files, read_meta
from train.config import TrainConfig

FIRST, SECOND, INDEX = "rank-00000.safetensors", "rank-00001.safetensors", "index-00000.json"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks, each of which wrote a file, with checkpoints at steps 2 and 4."""
    folder = tmp_path_factory.mktemp("saved")
    random_shards(folder / "shards")
    run_ranks(2, flags(settings(folder, folder / "run", shard=2)), folder)
    return folder / "run"


def settings(folder: Path, out: Path, **more: Any) -> TrainConfig:
    return tiny_config(folder / "shards", folder, **{"out": str(out), "steps": 4, "save_every": "2", **more})


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _record_again(checkpoint: Path) -> None:
    """State sizes and checksums of what is there now, as whoever plants something would."""
    names = json.loads((checkpoint / "meta.json").read_text())["files"]
    files = {
        name: {"size": (checkpoint / name).stat().st_size, "checksum": checksum(checkpoint / name)}
        for name in names
    }
    reseal(checkpoint, files=files)


def _resume(checkpoint: Path, folder: Path, out: Path) -> None:
    del out
    loop.train(settings(folder, checkpoint.parents[1], steps=6))


def _init_from(checkpoint: Path, folder: Path, out: Path) -> None:
    loop.train(settings(folder, out, init_from=str(checkpoint)))


def _export(checkpoint: Path, folder: Path, out: Path) -> None:
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr("train.checkpoint.export.tokenizer_files", lambda *_: {})
        export([checkpoint], None, out, torch.float32)


def _no_header(checkpoint: Path) -> None:
    flip(checkpoint / FIRST, 6)


def _no_index(checkpoint: Path) -> None:
    (checkpoint / INDEX).write_text("[" * 9999)


def _another_box(checkpoint: Path) -> None:
    """As if a row more were to be had."""
    index = json.loads((checkpoint / INDEX).read_text())
    index["kinds"][0]["boxes"][0][2][0] += 1
    index["kinds"][0]["boxes"][1][1][0] += 1
    (checkpoint / INDEX).write_text(json.dumps(index))


def _no_box(checkpoint: Path) -> None:
    index = json.loads((checkpoint / INDEX).read_text())
    del index["kinds"][0]["boxes"][1]
    (checkpoint / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize("load", [_resume, _init_from, _export])
@pytest.mark.parametrize("damage", [_no_header, _no_index, _another_box, _no_box])
def test_what_somebody_made_of_a_checkpoint_is_named(
    run: Path,
    trained: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    load: Callable[[Path, Path, Path], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """With sizes, checksums and seal of its own. Nothing in safetensors and JSON can be run."""
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    checkpoint = run / "checkpoints" / "step-00000004"
    assert {path.suffix for path in checkpoint.iterdir()} == {".safetensors", ".json"}
    damage(checkpoint)
    _record_again(checkpoint)
    with pytest.raises(IntegrityError) as caught:
        load(checkpoint, trained.parent, tmp_path / "out")
    assert f"{checkpoint}" in f"{caught.value}{capfd.readouterr().out}"


def test_others_read_the_files(run: Path) -> None:
    """Each by itself is a file of safetensors; together they are the tensors."""
    checkpoint = run / "checkpoints" / "step-00000004"
    parts = [load_file(checkpoint / name) for name in (FIRST, SECOND)]
    for name, value in read_tensors(checkpoint).items():
        found = [part[name].float() for part in parts if name in part]
        assert torch.equal(torch.cat(found) if value.ndim else found[0], value)


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_one_flipped_bit_is_found(
    run: Path, trained: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["verify", str(run)])
    assert capsys.readouterr().out.count(": good\n") == 2
    newest = run / "checkpoints" / "step-00000004"
    flip(newest / name, (newest / name).stat().st_size // 2)
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(run)])
    assert caught.value.code == 2
    output = capsys.readouterr()
    assert f"{newest / name} is damaged" in output.out
    assert "1 of 2 checkpoints are damaged" in output.err
    loop.train(settings(trained.parent, run))
    text = capsys.readouterr().out
    assert f"{newest} is damaged, trying the previous one: {newest / name} is damaged" in text
    assert "resumed from step 2\n" in text
    main(["verify", str(run)])  # the broken one was made anew
    flip(newest / FIRST, 1000)
    with pytest.raises(IntegrityError, match="is damaged"):
        loop.train(settings(trained.parent, run.parent / "new", init_from=str(newest)))


def test_two_ranks_find_what_one_of_them_reads(run: Path, trained: Path) -> None:
    newest = run / "checkpoints" / "step-00000004"
    flip(newest / SECOND, 1000)
    text = run_ranks(2, flags(settings(trained.parent, run)), run.parent)
    assert "is damaged, trying the previous one" in text
    assert "resumed from step 2\n" in text


def test_meta_json_is_sealed(run: Path, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sequences that were not read would be left out, or read again, without a word."""
    newest = run / "checkpoints" / "step-00000004"
    before = (newest / "meta.json").read_text()
    (newest / "meta.json").write_text(before.replace('"position": 32', '"position": 36'))
    with pytest.raises(SystemExit, match="2"):
        main(["verify", str(run)])
    assert f"{newest / 'meta.json'} does not match its seal" in capsys.readouterr().out
    (newest / "meta.json").write_text(before)
    loop.train(settings(trained.parent, run, steps=6))
    assert "resumed from step 4\n" in capsys.readouterr().out


def test_a_record_that_lacks_something_is_refused(run: Path) -> None:
    newest = run / "checkpoints" / "step-00000004"
    meta = json.loads((newest / "meta.json").read_text())
    for text, message in (("[]", "expected an object"), ('{"step": 4}', "seal"), (None, "lacks the key")):
        (newest / "meta.json").write_text(text or '{"seal": ""}')
        if text is None:
            reseal(newest, step=4, version=2)
        with pytest.raises(IntegrityError, match=message):
            read_meta(newest)
    (newest / "meta.json").write_text(json.dumps(meta))
    read_meta(newest)


def test_the_rank_that_reads_a_file_finds_that_it_is_missing(run: Path) -> None:
    newest = run / "checkpoints" / "step-00000004"
    (newest / FIRST).unlink()
    with pytest.raises(IntegrityError, match=f"cannot read {newest / FIRST}: No such file"):
        check_files(newest, read_meta(newest))


@pytest.mark.parametrize("files", [None, [], {"../x": 3}, {"x": None}, {"x": {"size": "1"}}, {"x": {"a": 1}}])
def test_a_list_of_files_that_is_none_is_refused(run: Path, files: Any) -> None:
    newest = run / "checkpoints" / "step-00000004"
    reseal(newest, files=files)
    with pytest.raises(IntegrityError, match=r"meta\.json.* files"):
        read_meta(newest)


def _fail_once(monkeypatch: pytest.MonkeyPatch, where: object, name: str, error: int) -> None:
    """The second call of a function or method raises an OSError."""
    original, calls = getattr(where, name), []

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(0)
        if len(calls) == 2:
            raise OSError(error, os.strerror(error))
        return original(*arguments, **named)

    monkeypatch.setattr(where, name, call)


@pytest.mark.parametrize(
    ("where", "name", "error"),
    [
        (NewFile, "write", errno.ENOSPC),
        (os, "fsync", errno.EIO),
        (save, "write_meta", errno.EDQUOT),
        (Path, "mkdir", errno.ESTALE),
    ],
)
def test_a_save_that_fails_is_tried_again_while_the_run_goes_on(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: object,
    name: str,
    error: int,
) -> None:
    config = settings(trained.parent, tmp_path / "run", save_every="2", steps=5)
    original, begun = loop._save, []

    def begin(run: Any) -> None:
        if not begun:
            _fail_once(monkeypatch, where, name, error)
        begun.append(run.progress.step)
        original(run)

    monkeypatch.setattr(save, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(loop, "_save", begin)
    loop.train(config)
    text = capsys.readouterr().out
    assert text.count(f": {os.strerror(error)}") == 1, text
    assert (tmp_path / "run/done.json").exists()
    folder = tmp_path / "run" / "checkpoints"
    assert max(folder.iterdir()).name == "step-00000005"
    assert not list(folder.glob(".*"))
    main(["verify", config.out])


def test_each_save_holds_what_there_is_then(trained: Path) -> None:
    """The copy on the host is used again."""
    first, second = (read_tensors(trained / f"checkpoints/step-0000000{step}") for step in (2, 4))
    assert first.keys() == second.keys()
    moved = [name for name, value in first.items() if not torch.equal(value, second[name])]
    assert len(moved) > len(first) / 2


def test_saves_that_keep_failing_stop_the_run(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail_once(monkeypatch, save, "write_pieces", errno.ENOSPC)
    monkeypatch.setattr(save, "PATIENCE", 0.0)
    config = settings(trained.parent, tmp_path / "run")
    with pytest.raises(
        Stopped, match="the checkpoint of step 4 could not be written: No space left"
    ) as caught:
        loop.train(config)
    assert "\n" not in f"{caught.value}"
    folder = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002"]
    main(["verify", config.out])
    loop.train(config)
    assert max(folder.iterdir()).name == "step-00000004"


@pytest.mark.parametrize("passes", [True, False])
def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged(
    run: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    original, calls = meta.checksum, []

    def read(path: Path) -> str:
        calls.append(path)
        if len(calls) == 1 or not passes:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return original(path)

    monkeypatch.setattr(meta, "checksum", read)
    newest = run / "checkpoints" / "step-00000004"
    if passes:
        loop.train(settings(trained.parent, run))
    else:
        with pytest.raises(Stopped, match=r"step-00000004 cannot be read now: .*Stale file handle"):
            loop.train(settings(trained.parent, run))
    assert newest.exists()
    assert len({path.parent for path in calls}) == 1
