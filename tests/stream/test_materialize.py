"""Materialized mixes: what they hold, what does not agree with them, and a run that was stopped. That they read as
their plan does is in test_model.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from mixing import request
from support import make_shards
from tokenizing import contents

import pretok.stream
from pretok.base.console import Console
from pretok.base.errors import IntegrityError, MismatchError, PartitionsFailed, UsageError
from pretok.base.execute import Engine, Report
from pretok.documents.audit.verify_job import run_verify
from pretok.shards.manifest import FILE_NAME, load_manifest
from pretok.shards.shard_file import ShardReader
from pretok.stream.materialize import MaterializeTask, run_materialize, write_shard
from pretok.stream.mix_job import run_mix
from pretok.tokenizer.vocabulary import TOKENIZER_FILE

SEQ_LEN = 6
SHARD_BYTES = 20 * (SEQ_LEN + 1) * 2  # 20 sequences


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a mix.json, and an other.json, beside their manifest."""
    folder = tmp_path_factory.mktemp("shards")
    make_shards(folder, {"en": [range(1, 150)] * 2, "it": [range(200, 900)]}, chats={"en": 6})
    (folder / TOKENIZER_FILE).write_text("{}")
    run_mix(folder, folder / "mix.json", request("300:it=0.9,en=0.1", "600:it=0.5,en=0.5", seq_len=SEQ_LEN))
    run_mix(folder, folder / "other.json", request("300:it=1", seq_len=SEQ_LEN))
    return folder


def run(shards: Path, out: Path, here: Engine, mix: str = "mix") -> None:
    run_materialize(shards, shards / f"{mix}.json", out, here, Console(), shard_bytes=SHARD_BYTES)


def test_it_is_a_stream_and_shards(shards: Path, tmp_path: Path, here: Engine) -> None:
    run(shards, tmp_path, here)
    plan, view = pretok.stream.open(shards, shards / "mix.json"), pretok.stream.open(tmp_path)
    assert [view.origin(i) for i in range(len(view))] == [plan.origin(i) for i in range(len(plan))]
    assert (view.fingerprint, view.manifest_fingerprint) == (plan.fingerprint, plan.manifest_fingerprint)
    assert (view.eod_id, view.vocab_size, view.dtype) == (plan.eod_id, plan.vocab_size, plan.dtype)
    manifest = load_manifest(tmp_path)
    assert [shard.documents for shard in manifest.shards] == [20] * 7 + [10]
    assert ShardReader(manifest.shards[1].prefix)[3].tolist() == plan[23].tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE_NAME, "mix", TOKENIZER_FILE]
    assert not [problem for problem in run_verify(tmp_path, 0, here, Console())[1] if "spans" in problem]


def test_what_does_not_agree_is_refused(shards: Path, tmp_path: Path, here: Engine) -> None:
    run(shards, tmp_path, here)
    with pytest.raises(MismatchError, match="not 7"):
        pretok.stream.open(tmp_path, seq_len=7)
    for more in ({"source": "it"}, {"split": "val"}, {"learn": {"en": ["user"]}}):
        with pytest.raises(UsageError, match="in the shards that the mix was made of"):
            pretok.stream.open(tmp_path, **more)
    fingerprint = pretok.stream.open(tmp_path).fingerprint
    for act in (
        lambda: pretok.stream.open(tmp_path, shards / "other.json"),
        lambda: run(shards, tmp_path, here, "other"),
    ):
        with pytest.raises(MismatchError, match=fingerprint):
            act()
    manifest = (tmp_path / FILE_NAME).read_text()
    (tmp_path / FILE_NAME).write_text(manifest.replace('"seq_len": 6', '"seq_len": 13'))
    with pytest.raises(IntegrityError, match="edited or damaged"):
        pretok.stream.open(tmp_path)


def test_a_stopped_run_goes_on(
    shards: Path, tmp_path: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards that were finished are not written again; the result is the same to the byte."""
    whole, out, room = tmp_path / "whole", tmp_path / "stopped", 3
    run(shards, whole, here)
    written: list[str] = []

    def write(task: MaterializeTask, report: Report) -> None:
        if len(written) == room:
            raise OSError("disk full")
        written.append(task.name)
        write_shard(task, report)

    monkeypatch.setattr(pretok.stream.materialize, "write_shard", write)
    failed = r"5 shards failed.*\n.*mix-00003: OSError: disk full"
    with pytest.raises(PartitionsFailed, match=failed):
        run(shards, out, here)
    with pytest.raises(IntegrityError, match="no finished shards"):
        pretok.stream.open(out)
    with pytest.raises(MismatchError, match="unfinished shards of another plan"):
        run(shards, out, here, "other")
    room = 99
    for _ in range(2):
        run(shards, out, here)
    assert sorted(written) == [f"mix-{number:05d}" for number in range(8)]
    assert contents(out) == contents(whole)
