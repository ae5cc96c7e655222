"""A checkpoint's files: nothing in them is run, damage is found before they are loaded, and who reads them."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support import needs

torch = needs("torch")

from pretok.base.errors import IntegrityError, Stopped
from pretok.base.storage import NewFile, checksum, read_json, write_json
from tests.train_support import (
    TWO_RANKS,
    Trial,
    around,
    column,
    flags,
    model_file,
    read_tensors,
    reseal,
    run_jobs,
)
from train import loop
from train.__main__ import main
from train.checkpoint import meta, save, tensors
from train.checkpoint.export import export
from train.checkpoint.meta import read_meta

FIRST, SECOND, INDEX = "rank-00000.safetensors", "rank-00001.safetensors", "index-00000.json"
DEFAULTS = TWO_RANKS | {"shard": None}


@pytest.fixture
def newest(trial: Trial, trained: Path) -> Path:
    """The newest checkpoint of a copy of the run."""
    shutil.copytree(trained, trial.run)
    return trial.run / "checkpoints" / "step-00000004"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def another_box(checkpoint: Path) -> None:
    """As if a row more were to be had."""
    index = read_json(checkpoint / INDEX)
    index["kinds"][0]["boxes"][0][2][0] += 1
    index["kinds"][0]["boxes"][1][1][0] += 1
    write_json(checkpoint / INDEX, index)


def no_box(checkpoint: Path) -> None:
    index = read_json(checkpoint / INDEX)
    del index["kinds"][0]["boxes"][1]
    write_json(checkpoint / INDEX, index)


COPIED = [(5, torch.float32), (3, torch.bfloat16), (0, torch.float32), (1000, torch.float64)]
CRAFTED: list[Callable[[Path], object]] = [
    lambda newest: flip(newest / FIRST, 6),
    lambda newest: (newest / INDEX).write_text("[" * 9999),
    another_box,
    no_box,
]


def _show_what_is_read() -> None:
    counts = list[int]()
    around(tensors.Reader, "fill", lambda _, __, ___, piece, ____: counts.append(piece.numel()))
    report = lambda *_: print("read", sum(counts), "numbers by", os.environ["RANK"], counts.clear())  # noqa: E731
    around(tensors, "restore", None, report)


def test_replicas_divide_what_they_save_and_read(trial: Trial) -> None:
    """And what comes back is the run of one process, of which each rank holds exactly what it writes."""
    meshes = [(4, 1), (4, 2), (3, 1), (1, 1)]
    more = {"steps": 8, "global_batch": 12, "save_every": "2", "keep_last": 9, "schedule": "constant"}
    jobs = [(1, flags(trial.config("whole", **more, shard=1)))]
    for steps, (ranks, shard) in zip((2, 4, 6, 8), meshes, strict=True):
        jobs.append((ranks, flags(trial.config(**more | {"steps": steps}, shard=shard))))
    text = run_jobs(jobs, trial.folder, before=_show_what_is_read)
    whole = trial.folder / "whole"
    assert column(trial.run, "data_hash") == column(whole, "data_hash")
    assert column(trial.run, "loss") == pytest.approx(column(whole, "loss"), rel=1e-5)
    for number, (ranks, _) in enumerate(meshes):
        checkpoint = trial.run / f"checkpoints/step-{2 * number + 2:08d}"
        sizes = [path.stat().st_size for path in checkpoint.glob("rank-*")]
        assert len(sizes) == ranks
        assert max(sizes) < 1.3 * sum(sizes) / ranks
    found = [int(number) for number in re.findall(r"read (\d+) numbers", text)]
    one = 3 * 22_688  # the model and its two moments
    assert one <= max(found) < 1.01 * one  # one process
    for ranks in (4, 3):
        assert sum(number < 1.3 * one / ranks for number in found) >= ranks


def test_a_save_does_not_meet_what_the_stages_of_a_pipeline_send(trial: Trial) -> None:
    """Both go from rank to rank, at the same time, where the pipeline has all ranks."""
    more = {"steps": 16, "global_batch": 8, "micro_batch": 1, "model": model_file(trial.folder, tied=False)}
    whole = trial.config("whole", **more, save_every="never", shard=1)
    parts = trial.config(**more, save_every="1", pipeline=2, shard=1)
    run_jobs([(1, flags(whole)), (2, flags(parts))], trial.folder)
    assert column(trial.run, "loss") == pytest.approx(column(trial.folder / "whole", "loss"), rel=1e-5)


def test_copies_on_the_host_take_no_more_than_what_is_copied() -> None:
    pieces = {f"{i}": torch.arange(size, dtype=dtype) for i, (size, dtype) in enumerate(COPIED)}
    copies = save._host_copies(pieces, pinned=False)
    assert len({copy.untyped_storage().data_ptr() for copy in copies.values()}) == 1
    most = 64 * len(pieces) + sum(piece.nbytes for piece in pieces.values())
    assert copies["0"].untyped_storage().nbytes() <= most
    for name, piece in pieces.items():
        copies[name].copy_(piece)
    for name, piece in pieces.items():
        assert torch.equal(copies[name], piece)
        assert copies[name].dtype == piece.dtype
        assert copies[name].data_ptr() % 64 == copies["0"].data_ptr() % 64


@pytest.mark.parametrize("damage", CRAFTED)
def test_what_somebody_made_of_a_checkpoint_is_named(
    trial: Trial, newest: Path, damage: Callable[[Path], object]
) -> None:
    """With sizes, checksums and seal of its own. Nothing in safetensors and JSON can be run."""
    shutil.rmtree(newest.with_name("step-00000002"))
    assert {path.suffix for path in newest.iterdir()} == {".safetensors", ".json"}
    damage(newest)
    files = {
        name: {"size": (newest / name).stat().st_size, "checksum": checksum(newest / name)}
        for name in read_json(newest / "meta.json")["files"]
    }
    reseal(newest, files=files)
    with pytest.raises(IntegrityError):
        trial.train(steps=6)
    assert f"{newest}" in trial.said()
    for load in (
        lambda: trial.train("new", init_from=str(newest)),
        lambda: export([newest], None, trial.folder / "out", torch.float32),
    ):
        with pytest.raises(IntegrityError, match=f"{newest}"):
            load()


def no_keys(checkpoint: Path) -> None:
    write_json(checkpoint / "meta.json", {"seal": ""})
    reseal(checkpoint, step=4, version=2)


def another_position(checkpoint: Path) -> None:
    path = checkpoint / "meta.json"
    flip(path, path.read_text().index('"position": 32') + 12)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "bit": (lambda newest: flip(newest / FIRST, 9000), f"{FIRST} is damaged: its checksum"),
    "no tensors": (lambda newest: (newest / SECOND).unlink(), f"{SECOND}: No such file"),
    "no meta.json": (lambda newest: (newest / "meta.json").unlink(), "meta.json does not exist"),
    "digit": (another_position, "meta.json does not match its seal"),
    "no keys": (no_keys, "meta.json: Object missing required field `progress`"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_and_the_checkpoint_before_used(trial: Trial, newest: Path, kind: str) -> None:
    (damage, words), before = DAMAGE[kind], read_tensors(newest)
    verify = ["verify", str(trial.run)]
    main(verify)
    assert trial.said().count(": good\n") == 2
    damage(newest)
    with pytest.raises(SystemExit, match="2"):
        main(verify)
    output = trial.capture.readouterr()
    assert words in output.out
    assert "1 of 2 checkpoints are damaged" in output.err
    trial.ends_with(IntegrityError, "step-00000004", "new", init_from=str(newest))
    trial.train()
    text = trial.said()
    assert f"{newest} is damaged, trying the previous one: " in text
    assert words in text
    assert "resumed from step 2\n" in text
    main(verify)  # the broken one was made anew
    for name, value in read_tensors(newest).items():
        torch.testing.assert_close(value, before[name], rtol=1e-5, atol=1e-6)
    assert newest.with_name("step-00000004.damaged").is_dir()


def test_a_checkpoint_that_a_run_deletes_meanwhile_is_not_taken_for_damaged(
    trial: Trial, newest: Path
) -> None:
    trial.around(meta, "read_meta", lambda path: path.name == "step-00000002" and shutil.rmtree(path))
    main(["verify", str(trial.run)])
    assert trial.said() == f"{newest}: good\n"


def test_where_all_are_damaged_nothing_is_changed(trial: Trial, newest: Path) -> None:
    for path in newest.parent.glob("*/meta.json"):
        path.write_text("{")
    trial.ends_with(IntegrityError, r"no checkpoint in .* can be read")
    assert len(list(newest.parent.glob("step-????????"))) == 2


def test_two_ranks_find_what_one_of_them_reads(trial: Trial, newest: Path) -> None:
    flip(newest / SECOND, 1000)
    text = run_jobs([(2, flags(trial.config(shard=2)))], trial.folder)
    assert "is damaged, trying the previous one" in text
    assert "resumed from step 2\n" in text


FILE = {"size": 1, "checksum": "xxh3:" + "0" * 32}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "lists no file"),
        ({"../x": FILE}, "not the name of a file"),
        ({"below/x": FILE}, "not the name of a file"),
    ],
)
def test_a_checkpoint_of_no_file_or_one_elsewhere_is_refused(
    newest: Path, files: dict[str, object], message: str
) -> None:
    reseal(newest, files=files)
    with pytest.raises(IntegrityError, match=message):
        read_meta(newest)


@pytest.mark.parametrize(
    ("where", "name", "error"), [(NewFile, "write", errno.ENOSPC), (Path, "mkdir", errno.ESTALE)]
)
def test_a_save_that_fails_is_tried_again_while_the_run_goes_on(
    trial: Trial, where: object, name: str, error: int
) -> None:
    """The second call since the first save began fails."""
    saves, calls = list[int](), list[int]()

    def fail(*_: Any) -> None:
        calls.append(0)
        if len(calls) == 2:
            raise OSError(error, os.strerror(error))

    def begin(*_: Any) -> None:
        if not saves:
            trial.around(where, name, fail)
        saves.append(0)

    trial.patch.setattr(save, "RETRY_SECONDS", 0.0)
    trial.around(loop, "_save", begin)
    run = trial.train(steps=5)
    assert trial.said().count(f": {os.strerror(error)}") == 1
    assert (run / "done.json").exists()
    assert max((run / "checkpoints").iterdir()).name == "step-00000005"
    assert not list((run / "checkpoints").glob(".*"))
    main(["verify", str(run)])


@pytest.mark.parametrize("passes", [True, False])
def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged(
    trial: Trial, newest: Path, passes: bool
) -> None:
    calls: list[Path] = []

    def read(path: Path) -> None:
        calls.append(path)
        if len(calls) == 1 or not passes:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    trial.around(meta, "checksum", read)
    words = r"step-00000004 cannot be read now: .*Stale file handle"
    with nullcontext() if passes else pytest.raises(Stopped, match=words):
        trial.train()
    assert newest.exists()
    assert len({path.parent for path in calls}) == 1


@pytest.mark.parametrize("best", [1, 2])
def test_what_was_a_best_checkpoint_when_it_was_saved_is_copied(trial: Trial, best: int) -> None:
    """By a plain path below the current folder; also what is no longer among the best, but not what never was."""
    trial.patch.chdir(trial.folder)
    losses = iter([3.0, 1.0, 2.0, 4.0])

    def rated(*_: object) -> dict[str, Any]:
        return {"val_loss": next(losses), "val_bits_per_byte": 0.0, "sources": {}, "bits_per_byte": {}}

    trial.patch.setattr(loop, "evaluate", rated)
    more = {"save_every": "1", "val_every": 1, "keep_last": 1, "backup": "copies/of it"}
    run = trial.train(steps=4, keep_best=best, **more)
    copies = {path.name: path for path in (trial.folder / "copies" / "of it").iterdir()}
    assert sorted(copies) == ["step-00000001", "step-00000002", "step-00000003"][: best + 1]
    for path in copies.values():
        meta.check_files(path, read_meta(path))
    kept = {path.name for path in (run / "checkpoints").iterdir()}
    assert kept == {*[f"step-0000000{step}" for step in (2, 3)][:best], "step-00000004"}


@pytest.mark.parametrize("damaged", [False, True])
def test_milestones_are_copied_whole_or_not_at_all(trial: Trial, damaged: bool) -> None:
    """Also those that retention deletes right after; what an attempt that was killed left is replaced."""
    copies = trial.folder / "copies"
    left = copies / f".step-00000002{save.TEMPORARY_SUFFIX}"
    left.mkdir(parents=True)
    (left / "half").touch()
    real = save.shutil.copytree

    def copytree(source: Path, target: Path) -> None:
        real(source, target)
        if damaged:
            with (target / "rank-00000.safetensors").open("r+b") as file:
                file.seek(-1, 2)
                last = file.read(1)
                file.seek(-1, 2)
                file.write(bytes([last[0] ^ 1]))

    trial.patch.setattr(save.shutil, "copytree", copytree)
    run = trial.train(steps=4, save_every="1", milestone=2, keep_last=1, backup=str(copies))
    copied = sorted(path.name for path in copies.glob("step-*"))
    if damaged:
        assert copied == []
        assert "warning: " in (said := trial.said())
        assert "is damaged: its checksum is not the recorded one" in said
        return
    assert copied == ["step-00000002", "step-00000004"]
    assert not left.exists()
    for name in copied:
        meta.check_files(copies / name, read_meta(copies / name))
        assert read_meta(copies / name) == read_meta(run / "checkpoints" / name)
