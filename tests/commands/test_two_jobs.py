"""Two commands in one WORK: what may go on side by side, and who is refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import another_job

from pretok.base.lock import share
from pretok.cli import run_command
from pretok.shards.manifest import load_manifest


@pytest.fixture
def work(tmp_path: Path, vocab_dir: Path) -> Path:
    """WORK with the sealed shards of `it`, one of whose inputs is damaged, and of `en`."""
    for name in ("it", "en"):
        lines = [json.dumps({"text": f"Il {name} numero {n} di molti."}) for n in range(40)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    damaged = tmp_path / "it-2.jsonl.gz"
    damaged.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\0 and then no gzip")
    assert tokenize(tmp_path, vocab_dir) == 3
    return tmp_path


def tokenize(work: Path, vocab: Path) -> int:
    """The shards of both sources."""
    inputs = [f"it={work}/it*.jsonl*", f"en={work}/en.jsonl"]
    return run_command(["tokenize", *inputs, "--out", str(work), "--vocab", str(vocab), "--workers", "0"])


def test_a_day_of_tokenize_stops_neither_mix_nor_annotate_of_finished_shards(work: Path) -> None:
    rows, shards = work / "rows.jsonl", str(work / "shards")
    rows.write_text(json.dumps({"file": str(work / "en.jsonl"), "position": 3, "score": 7}))
    with another_job(work / "shards", "tokenize"):
        leftover = work / "shards" / ".it-00000.bin.elsewhere-1.tmp"
        leftover.touch()
        mix = ["mix", shards, "--out", str(work / "mix.json"), "--weights", "en=1", "--seq-len", "16"]
        assert run_command(mix) == 0
        join = ["annotate", shards, str(rows), "--name", "q", "--by", "file,position"]
        assert run_command(join) == 0
        export = ["export", shards, "--to", "megatron", "--out", str(work / "m"), "--workers", "0"]
        assert run_command(export) == 0
    assert [path for path in work.rglob(".*") if path.is_file()] == [leftover]


def test_shards_grow_beside_a_job_that_reads_them_and_what_it_reads_stays(
    work: Path, vocab_dir: Path
) -> None:
    """A source whose inputs were repaired is added at once, when all of it is done; readers still find every file."""
    before = load_manifest(work / "shards")
    read = {path: path.read_bytes() for path in before.roots}
    (work / "it-2.jsonl.gz").write_bytes(b"")
    with share(work / "shards", "export"):
        assert tokenize(work, vocab_dir) == 0
    now = load_manifest(work / "shards")
    assert (sorted(before.sources), sorted(now.sources)) == (["en"], ["en", "it"])
    assert {path: path.read_bytes() for path in before.roots} == read
    assert [event.fingerprint for event in now.history] == [before.fingerprint]
    assert now.was(before.fingerprint).shards == before.shards


def test_run_holds_from_its_start_what_its_last_steps_write(work: Path, vocab_dir: Path, monkeypatch) -> None:
    two, recipe = work / "two", work / "recipe.toml"
    recipe.write_text(
        'out = "two"\n[vocab]\nsize = 400\n[sources.en]\ninputs = ["en.jsonl"]\n'
        "[mix]\nweights = {en = 1}\nseq_len = 16\n"
    )
    options = ["--out", str(two), "--vocab", str(vocab_dir), "--workers", "0"]
    tokens = ["tokenize", f"en={work}/en.jsonl", *options]
    mix = ["mix", str(work / "shards"), "--weights", "en=1", "--seq-len", "16", "--out", f"{two}/mix.json"]
    codes = []

    def vocabulary_step(*_: object) -> None:
        with ThreadPoolExecutor(1) as other:
            codes.extend(other.map(run_command, (tokens, mix)))
        raise KeyboardInterrupt

    monkeypatch.setattr("signal.signal", lambda *_: None)  # which threads may not call
    monkeypatch.setattr("pretok.steps.run_build_vocab", vocabulary_step)
    assert run_command(["run", str(recipe), "--workers", "0"]) == 75
    assert codes == [75, 75]
    assert not (two / "shards").exists()


def test_what_a_killed_job_left_is_removed_by_the_next(work: Path) -> None:
    left = work / "vocab" / ".report.json.elsewhere-1.tmp"
    left.parent.mkdir()
    left.touch()
    options = ["--out", str(work), "--vocab-size", "330", "--workers", "0"]
    assert run_command(["build-vocab", f"en={work}/en.jsonl", *options]) == 0
    assert not left.exists()
