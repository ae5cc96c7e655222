"""A checkpoint's files: nothing in them is run, damage is found before they are loaded, and old ones still load."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Any

import pytest
from support import needs

torch = needs("torch")
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, BytesStorageMetadata, MetadataIndex

from pretok.base.errors import IntegrityError, Stopped
from pretok.base.storage import checksum
from tests.train_support import random_shards, reseal, run_ranks, tiny_config
from train.__main__ import main
from train.checkpoint import save, saved
from train.checkpoint.export import export
from train.checkpoint.restore import Reader, _Unpickler, restore
from train.checkpoint.saved import SummedWriter, read_meta
from train.config import TrainConfig
from train.run import loop
from train.tools.tune import flags


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


class _Program:
    """Unpickling it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def _record_again(checkpoint: Path) -> None:
    """State sizes and checksums of what is there now, as whoever plants something would."""
    names = json.loads((checkpoint / "meta.json").read_text())["files"]
    files = {
        name: {"size": (checkpoint / name).stat().st_size, "checksum": checksum(checkpoint / name)}
        for name in names
    }
    reseal(checkpoint, files=files)


def _in_metadata(checkpoint: Path, made: Path) -> None:
    (checkpoint / ".metadata").write_bytes(pickle.dumps(_Program(made)))


def _in_a_value(checkpoint: Path, made: Path) -> None:
    """Behind a parameter that `.metadata` now calls a value without a tensor, which torch unpickles freely."""
    name = "model.embed_tokens.weight"
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    metadata.state_dict_metadata[name] = BytesStorageMetadata()
    place = next(info for index, info in metadata.storage_data.items() if index.fqn == name)
    path = checkpoint / place.relative_path
    place.offset = path.stat().st_size
    with path.open("ab") as file:
        torch.save(_Program(made), file)
    place.length = path.stat().st_size - place.offset
    metadata.storage_data[MetadataIndex(name)] = place
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))


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


@pytest.mark.parametrize("load", [_resume, _init_from, _export])
@pytest.mark.parametrize("plant", [_in_metadata, _in_a_value])
def test_no_program_in_a_checkpoint_is_run(
    run: Path,
    trained: Path,
    tmp_path: Path,
    plant: Callable[[Path, Path], None],
    load: Callable[[Path, Path, Path], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    checkpoint = run / "checkpoints" / "step-00000004"
    made = tmp_path / "made"
    plant(checkpoint, made)
    _record_again(checkpoint)
    with pytest.raises(IntegrityError) as caught:
        load(checkpoint, trained.parent, tmp_path / "out")
    assert not made.exists()
    named = f"{checkpoint / '.metadata'}" if plant is _in_metadata else f"{checkpoint}"
    assert named in f"{caught.value}{capfd.readouterr().out}"
    # What was planted works: read as torch does, it makes its file.
    if plant is _in_metadata:
        pickle.loads((checkpoint / ".metadata").read_bytes())
        assert made.exists()


class _ByName:
    """Pickled as `getattr` of something, as Python 3.11.0 to 3.11.3 pickle a member of an enumeration."""

    def __init__(self, of: object, name: str) -> None:
        self._asked = of, name

    def __reduce__(self) -> tuple[object, tuple[object, str]]:
        return getattr, self._asked


def test_getattr_in_a_checkpoint_gives_members_of_enumerations_alone() -> None:
    member = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    data = pickle.dumps(_ByName(_MEM_FORMAT_ENCODING, member.name))
    assert _Unpickler(io.BytesIO(data)).load() is member
    for of, name in ((PosixPath, "home"), (_MEM_FORMAT_ENCODING, "mro")):
        with pytest.raises((pickle.UnpicklingError, KeyError), match=name):
            _Unpickler(io.BytesIO(pickle.dumps(_ByName(of, name)))).load()


def test_metadata_that_leads_out_of_its_folder_is_refused(run: Path) -> None:
    checkpoint = run / "checkpoints" / "step-00000004"
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = f"../step-00000002/{info.relative_path}"
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(IntegrityError, match="leads out of its folder"):
        Reader(checkpoint)


@pytest.mark.parametrize("damage", [b"", b"\x80\x05.", b"not a pickle", b"(" * 100])
def test_damaged_metadata_is_named(run: Path, damage: bytes) -> None:
    checkpoint = run / "checkpoints" / "step-00000004"
    (checkpoint / ".metadata").write_bytes(damage)
    with pytest.raises(IntegrityError, match=r"step-00000004/\.metadata is damaged"):
        Reader(checkpoint)


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp"])
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
    assert f"{newest / name} was damaged" in output.out
    assert "1 of 2 checkpoints are damaged" in output.err
    (newest.parent / "latest").write_text("step-00000009\n")
    main(["verify", str(run), "--step", "2"])
    assert "latest names step-00000009, and the newest checkpoint is step-00000004" in capsys.readouterr().out
    loop.train(settings(trained.parent, run))
    text = capsys.readouterr().out
    assert f"{newest} is broken, trying the one before: {newest / name} was damaged" in text
    assert "resumed from step 2\n" in text
    main(["verify", str(run)])  # the broken one was made anew
    flip(newest / "__0_0.distcp", 1000)
    with pytest.raises(IntegrityError, match="was damaged"):
        loop.train(settings(trained.parent, run.parent / "new", init_from=str(newest)))


def test_two_ranks_find_what_one_of_them_reads(run: Path, trained: Path) -> None:
    newest = run / "checkpoints" / "step-00000004"
    flip(newest / "__1_0.distcp", 1000)
    text = run_ranks(2, flags(settings(trained.parent, run)), run.parent)
    assert "is broken, trying the one before" in text
    assert "resumed from step 2\n" in text


def test_meta_json_is_sealed_and_compared_with_the_legs(
    run: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sequences that were not read would be left out, or read again, without a word."""
    newest = run / "checkpoints" / "step-00000004"
    before = (newest / "meta.json").read_text()
    (newest / "meta.json").write_text(before.replace('"position": 32', '"position": 36'))
    with pytest.raises(SystemExit, match="2"):
        main(["verify", str(run)])
    assert f"{newest / 'meta.json'} does not match its seal" in capsys.readouterr().out
    reseal(newest)
    with pytest.raises(
        IntegrityError, match=r"36 sequences and 512 tokens .*segments\.jsonl says 32 and 512"
    ):
        loop.train(settings(trained.parent, run, steps=6))
    (newest / "meta.json").write_text(before)
    loop.train(settings(trained.parent, run, steps=6))
    assert "resumed from step 4\n" in capsys.readouterr().out


def test_a_record_that_lacks_something_is_refused(run: Path) -> None:
    newest = run / "checkpoints" / "step-00000004"
    meta = json.loads((newest / "meta.json").read_text())
    for text, message in (("[]", "expected an object"), ('{"step": 4}', "seal"), (None, "lacks the key")):
        (newest / "meta.json").write_text(text or '{"seal": ""}')
        if text is None:
            reseal(newest, step=4)
        with pytest.raises(IntegrityError, match=message):
            read_meta(newest)
    (newest / "meta.json").write_text(json.dumps(meta))
    read_meta(newest)


def test_one_rank_alone_asks_for_the_sizes_of_files(run: Path) -> None:
    newest = run / "checkpoints" / "step-00000004"
    (newest / "__0_0.distcp").unlink()
    with pytest.raises(IntegrityError, match="is missing"):
        read_meta(newest)
    assert read_meta(newest, sizes=False).step == 4


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
        (saved._SummedStream, "write", errno.ENOSPC),  # torch makes "unexpected pos 704 vs 598" of it
        (os, "fsync", errno.EIO),
        (save, "write_meta", errno.EDQUOT),
        (Path, "mkdir", errno.ESTALE),
        (save, "read_meta", errno.ESTALE),
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

    monkeypatch.setattr(save, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(loop, "_save", begin)
    loop.train(config)
    text = capsys.readouterr().out
    assert text.count(f": {os.strerror(error)}") == 1, text
    assert (tmp_path / "run/done.json").exists()
    folder = tmp_path / "run" / "checkpoints"
    assert (folder / "latest").read_text() == "step-00000005\n"
    assert not list(folder.glob(".*"))
    main(["verify", config.out])


def test_the_plan_of_a_save_is_made_once(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is saved by it is what a run that saves once has; the next run of the process plans anew."""
    original, plans = DefaultSavePlanner._create_global_plan, []

    def plan(self: DefaultSavePlanner, every: Any) -> Any:
        plans.append(len(every))
        return original(self, every)

    monkeypatch.setattr(DefaultSavePlanner, "_create_global_plan", plan)
    found = []
    for often in ("1", "4"):
        loop.train(settings(trained.parent, tmp_path / often, save_every=often))
        found.append(read_tensors(tmp_path / often / "checkpoints/step-00000004"))
    assert plans == [1, 1]
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_ranks_whose_plans_are_kept_save_what_they_have(trained: Path) -> None:
    """The second checkpoint of two ranks is by the plan of the first, and other numbers."""
    first, second = (read_tensors(trained / f"checkpoints/step-0000000{step}") for step in (2, 4))
    assert first.keys() == second.keys()
    moved = [name for name, value in first.items() if not torch.equal(value, second[name])]
    assert len(moved) > len(first) / 2


def read_tensors(checkpoint: Path) -> dict[str, Any]:
    """All of a checkpoint by name."""
    reader = Reader(checkpoint)
    state = {name: torch.empty(of.size) for name, of in reader.read_metadata().state_dict_metadata.items()}
    restore(state, reader)
    return state


def test_saves_that_keep_failing_stop_the_run(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail_once(monkeypatch, SummedWriter, "write_data", errno.ENOSPC)
    monkeypatch.setattr(save, "PATIENCE", 0.0)
    config = settings(trained.parent, tmp_path / "run")
    with pytest.raises(
        Stopped, match="the checkpoint of step 4 could not be written: No space left"
    ) as caught:
        loop.train(config)
    assert "\n" not in f"{caught.value}"
    folder = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "step-00000002"]
    main(["verify", config.out])
    loop.train(config)
    assert (folder / "latest").read_text() == "step-00000004\n"


@pytest.mark.parametrize("passes", [True, False])
def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged(
    run: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    original, calls = saved.checksum, []

    def read(path: Path) -> str:
        calls.append(path)
        if len(calls) == 1 or not passes:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return original(path)

    monkeypatch.setattr(saved, "checksum", read)
    monkeypatch.setattr(save, "READ_WAITS", (0.0,))
    newest = run / "checkpoints" / "step-00000004"
    if passes:
        loop.train(settings(trained.parent, run))
    else:
        with pytest.raises(Stopped, match=r"step-00000004 cannot be read now: .*Stale file handle"):
            loop.train(settings(trained.parent, run))
    assert newest.exists()
    assert len({path.parent for path in calls}) == 1
