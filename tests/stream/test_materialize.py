"""Materialized mixes: the view over the result equals the view over the plan, however often the writing was stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mixing import request
from support import make_shards

import pretok.stream
import pretok.stream.materialize
from pretok.base.console import Silent
from pretok.base.errors import IntegrityError, MismatchError, PartitionsFailed, UsageError
from pretok.base.execute import Engine, Report
from pretok.base.stop import StopFlag
from pretok.shards.format import ShardReader
from pretok.shards.manifest import FILE_NAME, load_manifest
from pretok.stream.loader import identity_of
from pretok.stream.materialize import MaterializeTask, run_materialize, write_shard
from pretok.stream.mix_job import run_mix
from pretok.tokenizer.vocabulary import TOKENIZER_FILE

SEQ_LEN = 6
SHARD_BYTES = 20 * (SEQ_LEN + 1) * 2  # 20 sequences


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    make_shards(folder, {"en": [range(1, 150)] * 2, "it": [range(200, 900)]})
    (folder / TOKENIZER_FILE).write_text("{}")
    return folder


@pytest.fixture(scope="module")
def mix(shards: Path) -> Path:
    run_mix(shards, shards / "mix.json", request("300:it=0.9,en=0.1", "600:it=0.5,en=0.5", seq_len=SEQ_LEN))
    return shards / "mix.json"


def run(shards: Path, mix: Path, out: Path, workers: int = 0) -> None:
    with StopFlag() as stop, Engine(workers, None, stop) as engine:
        run_materialize(shards, mix, out, engine, Silent(), shard_bytes=SHARD_BYTES)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_view_over_the_result_equals_the_view_over_the_plan(shards: Path, mix: Path, tmp_path: Path) -> None:
    run(shards, mix, tmp_path)
    plan = pretok.stream.open(shards, mix)
    for view in (
        pretok.stream.open(tmp_path),
        pretok.stream.open(tmp_path, mix, seq_len=SEQ_LEN),
    ):
        everything = range(len(plan))
        np.testing.assert_array_equal(view.batch(everything), plan.batch(everything))
        assert [view.origin(i) for i in everything] == [plan.origin(i) for i in everything]
        assert view.prefix_counts(77) == plan.prefix_counts(77)
        assert identity_of(view) == identity_of(plan)
        assert (view.eod_id, view.vocab_size, view.dtype) == (plan.eod_id, plan.vocab_size, plan.dtype)
    manifest = load_manifest(tmp_path)
    assert [shard.documents for shard in manifest.shards] == [20] * 7 + [10]
    assert ShardReader(manifest.shards[1].prefix)[3].tolist() == plan[23].tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE_NAME, "mix", TOKENIZER_FILE]


def test_what_does_not_agree_is_refused(shards: Path, mix: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(shards, mix, out)
    with pytest.raises(MismatchError, match="not 7"):
        pretok.stream.open(out, seq_len=7)
    with pytest.raises(UsageError, match="in the shards that the mix was made of"):
        pretok.stream.open(out, source="it")
    other = tmp_path / "other.json"
    run_mix(shards, other, request("300:it=1", seq_len=SEQ_LEN))
    for act in (lambda: pretok.stream.open(out, other), lambda: run(shards, other, out)):
        with pytest.raises(MismatchError, match=pretok.stream.open(out).fingerprint):
            act()
    manifest = (out / FILE_NAME).read_text()
    (out / FILE_NAME).write_text(manifest.replace('"seq_len": 6', '"seq_len": 13'))
    with pytest.raises(IntegrityError, match="edited or damaged"):
        pretok.stream.open(out)


def test_a_stopped_run_goes_on(
    shards: Path, mix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards that were finished are not written again; the result is the same to the byte."""
    run(shards, mix, tmp_path / "whole")
    written: list[str] = []

    def failing(task: MaterializeTask, report: Report) -> None:
        if len(written) == 3:
            raise OSError("disk full")
        written.append(task.name)
        write_shard(task, report)

    monkeypatch.setattr(pretok.stream.materialize, "write_shard", failing)
    out = tmp_path / "stopped"
    with pytest.raises(PartitionsFailed, match=r"5 shards failed.*\n.*mix-00003: OSError: disk full"):
        run(shards, mix, out)
    with pytest.raises(IntegrityError, match="no finished shards"):
        pretok.stream.open(out)
    other = tmp_path / "other.json"
    run_mix(shards, other, request("300:it=1", seq_len=SEQ_LEN))
    with pytest.raises(MismatchError, match="unfinished shards of another plan"):
        run(shards, other, out)
    done = set(written)
    written.clear()
    monkeypatch.setattr(
        pretok.stream.materialize,
        "write_shard",
        lambda task, report: (written.append(task.name), write_shard(task, report))[1],
    )
    run(shards, mix, out)
    assert not done & set(written)
    assert files(out) == files(tmp_path / "whole")
    written.clear()
    run(shards, mix, out)
    assert not written
