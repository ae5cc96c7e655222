"""Counts of a corpus: exact, the same whatever happens on the way, added up, refused when the input changed."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import regex
from counting import Killer, contents, documents, recipe, write_lines
from support import another_job
from telling import Told
from texts import pack

from pretok.base.console import Silent
from pretok.base.errors import FolderInUse, IntegrityError, MismatchError, Stopped, UsageError
from pretok.base.execute import Engine
from pretok.base.records import replace
from pretok.base.stop import StopFlag
from pretok.chat.documents import read_documents
from pretok.config import make_recipe
from pretok.counts.buckets import read_group
from pretok.counts.counts_file import FILE_NAME, CorpusCounts, load_counts
from pretok.counts.job import _tasks, add_counts, count_config, run_count
from pretok.counts.task import SAMPLE_SEED_STEP, CountTask, _Counter, count_partition
from pretok.kernels.hashing import hash_documents, select
from pretok.kernels.pretokenize import PATTERNS

pytestmark = pytest.mark.usefixtures("few_buckets")
Words = dict[str, tuple[int, int]]


def words_of(counts: CorpusCounts, source: str) -> Words:
    found: Words = {}
    for path in counts.buckets:
        group = read_group(path, counts.sources.index(source))
        texts = [word.decode() for word in group.words().to_pylist()]
        assert texts == sorted(texts, key=str.encode)
        pairs = zip(group.counts.tolist(), group.others.tolist(), strict=True)
        found.update(zip(texts, pairs, strict=True))
    return found


def expected(texts: list[str], pattern: str, holdout: Fraction, sample: Fraction = Fraction(1)) -> Words:
    data, offsets = pack(texts)
    sampled = select(hash_documents(data, offsets, SAMPLE_SEED_STEP), sample)
    heldout = select(hash_documents(data, offsets, 0), holdout)
    counters: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for text, taken, apart in zip(texts, sampled, heldout, strict=True):
        if taken:
            counters[bool(apart)].update(regex.findall(PATTERNS[pattern], text))
    return {word: (counters[False][word], counters[True][word]) for word in counters[False] | counters[True]}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_counts_are_those_of_the_regular_expression(folder: Path, here: Engine, pattern: str) -> None:
    counts = run_count(recipe(folder, pattern=pattern), here, Silent())
    for source in ("it", "en"):
        texts = documents(folder, source)
        assert words_of(counts, source) == expected(texts, pattern, Fraction(1, 5))
        record = counts.records[source]
        assert record.documents + record.heldout_documents == len(texts)
        assert record.bytes + record.heldout_bytes == sum(len(text.encode()) for text in texts)
        assert record.read == len(texts) + sum(record.rejected.values())
    assert sum(counts.records["en"].rejected.values()) == 1
    assert counts.records["it"].heldout_documents > 5


def test_a_sample_is_chosen_by_hash(folder: Path, here: Engine) -> None:
    counts = run_count(recipe(folder, sample="0.5"), here, Silent())
    texts = documents(folder, "it")
    assert words_of(counts, "it") == expected(texts, "cl100k", Fraction(1, 5), Fraction(1, 2))
    assert 0 < counts.records["it"].unsampled < len(texts)


@pytest.mark.slow
def test_spilling_changes_nothing(folder: Path, here: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretok.read.readers.BATCH_BYTES", 2000)
    whole = run_count(recipe(folder), here, Silent())
    spilled = []

    def with_small_table(task: CountTask, report: Any) -> Any:
        spill = "pretok.counts.task._Counter._spill"
        original = __import__("pretok.counts.task", fromlist=["_Counter"])._Counter._spill
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spill, lambda self: (spilled.append(1), original(self))[1])
            return count_partition(replace(task, table_bytes=1), report)

    monkeypatch.setattr("pretok.counts.job.count_partition", with_small_table)
    parts = run_count(recipe(folder, "small"), here, Silent())
    assert len(spilled) > 4
    for source in whole.sources:
        assert words_of(parts, source) == words_of(whole, source)
    assert contents(parts.folder) == contents(whole.folder)


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 6, 9, 12, 16])
def test_a_stopped_count_continues_to_the_same_bytes(folder: Path, here: Engine, steps: int) -> None:
    whole = run_count(recipe(folder), here, Silent())
    with pytest.raises(Stopped):
        run_count(recipe(folder, "killed"), Killer(steps), Silent())
    assert not (folder / "killed" / "counts" / "counts.json").exists()
    run_count(recipe(folder, "killed"), here, Silent())
    assert contents(folder / "killed" / "counts") == contents(whole.folder)


def test_what_is_counted_is_not_counted_again(folder: Path, here: Engine) -> None:
    first = run_count(recipe(folder), here, Silent())
    (left := first.folder / ".state").mkdir()  # by a kill that came while it was deleted
    again = run_count(recipe(folder), Killer(0), Silent())
    assert again == first == load_counts(first.folder)
    assert not left.exists()


def test_workers_of_ray_give_the_same_bytes(folder: Path, here: Engine, ray_address: str) -> None:
    whole = run_count(recipe(folder), here, Silent())
    with StopFlag() as stop, Engine(2, ray_address, stop) as engine:
        other = run_count(recipe(folder, "ray"), engine, Silent())
    assert contents(other.folder) == contents(whole.folder)


def test_another_setting_or_input_is_refused(folder: Path, here: Engine) -> None:
    run_count(recipe(folder), here, Silent())
    with pytest.raises(MismatchError, match=r"pattern was 'cl100k' and is 'gpt2'"):
        run_count(recipe(folder, pattern="gpt2"), here, Silent())
    write_lines(folder / "in" / "it-2.jsonl", ["nuovo"])
    with pytest.raises(MismatchError, match=r"it-2\.jsonl is new"):
        run_count(recipe(folder), here, Silent())


def test_an_unfinished_count_refuses_another_setting(folder: Path, here: Engine) -> None:
    with pytest.raises(Stopped):
        run_count(recipe(folder), Killer(3), Silent())
    with pytest.raises(MismatchError, match="holdout"):
        run_count(recipe(folder, holdout="0.1"), here, Silent())


def test_counts_add_up(folder: Path, here: Engine) -> None:
    """Two corpora that share a source name: their sum is the count of all files together."""
    whole = run_count(recipe(folder), here, Silent())
    parts = []
    for name, globs in (("a", {"it": "it-0*"}), ("b", {"it": "it-1*", "en": "en*"})):
        sources = {source: {"inputs": [str(folder / "in" / glob)]} for source, glob in globs.items()}
        data = {"out": folder / name, "sources": sources, "vocab": {"holdout": "0.2"}}
        parts.append(run_count(make_recipe(data, "test"), here, Silent()))
    total = add_counts(parts, folder / "sum", here, Silent())
    assert total.sources == ["en", "it"]
    for source in total.sources:
        assert words_of(total, source) == words_of(whole, source)
        assert total.records[source] == whole.records[source]
    assert len(total.heldout_texts("it")) == whole.records["it"].heldout_documents


def three_counts(folder: Path, here: Engine) -> list[CorpusCounts]:
    """Counts of three corpora, each in a folder of its own."""
    parts = []
    for name, glob in (("a", "it-0*"), ("b", "it-1*"), ("c", "en*")):
        sources = {"it": {"inputs": [str(folder / "in" / glob)]}}
        data = {"out": folder / name, "sources": sources, "vocab": {"holdout": "0.2"}}
        parts.append(run_count(make_recipe(data, "test"), here, Silent()))
    return parts


def test_a_sum_is_not_taken_for_another_sum(folder: Path, here: Engine) -> None:
    a, b, c = three_counts(folder, here)
    with pytest.raises(UsageError, match="added twice"):
        add_counts([a, b, a], folder / "sum", here, Silent())
    first = contents(add_counts([a, b], folder / "sum", here, Silent()).folder)
    with pytest.raises(MismatchError, match=rf"{b.folder} is not added any more; {c.folder} is new") as error:
        add_counts([a, c], folder / "sum", here, Silent())
    assert error.value.exit_code == 2
    with pytest.raises(MismatchError, match=rf"{c.folder} is new"):
        add_counts([a, b, c], folder / "sum", here, Silent())
    for path in (a.folder, folder / "sum"):  # a sum is no count of files, and the other way round
        with pytest.raises(MismatchError):
            add_counts([b, c], path, here, Silent())
    assert contents(folder / "sum") == first
    shutil.move(b.folder, folder / "moved")
    again = add_counts(
        [load_counts(folder / "moved"), a], folder / "sum", here, Silent()
    )  # the same, elsewhere
    assert words_of(again, "it") == words_of(load_counts(folder / "sum"), "it")
    assert contents(folder / "sum") == first


@pytest.mark.parametrize("steps", [0, 1, 4, 7])
def test_a_stopped_sum_continues_to_the_same_bytes_and_to_no_other(
    folder: Path, here: Engine, steps: int
) -> None:
    a, b, c = three_counts(folder, here)
    whole = contents(add_counts([a, b], folder / "whole", here, Silent()).folder)
    with pytest.raises(Stopped):
        add_counts([a, b], folder / "sum", Killer(steps), Silent())
    with pytest.raises(MismatchError, match="is new"):
        add_counts([a, c], folder / "sum", here, Silent())
    assert contents(add_counts([a, b], folder / "sum", here, Silent()).folder) == whole


def test_two_attempts_at_one_partition_do_not_share_a_file(
    folder: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both spill: each under its own name, so that neither adds up the other's words."""
    made = recipe(folder)
    config = count_config(made, here, Silent())
    [task] = _tasks("en", config, made, folder / "state", Silent())
    task = replace(task, table_bytes=1)
    task.folder.mkdir()
    spills = []
    for process in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        counter = _Counter(task)
        for batch in read_documents(task.partition, task.record, task.config.normalize):
            counter.add(batch)
        spills.append(set(counter._spills))
    assert spills[0]
    assert not spills[0] & spills[1]
    assert all(path.name.startswith(".") and path.name.endswith(".tmp") for path in spills[0])


def test_a_resumed_count_tells_what_is_there(folder: Path, here: Engine) -> None:
    told = Told()
    with pytest.raises(Stopped, match=r"1 of 2 partitions are done and kept"):
        run_count(recipe(folder), Killer(3), Silent())
    counts = run_count(recipe(folder), here, told)
    assert told.before["partitions"] == told.counts["partitions"] == 1
    assert "2 partitions to count, 1 of them done by an earlier run" in told.notices[0]
    records = [counts.records[name] for name in counts.sources]
    for key, found in (
        ("documents", sum(r.documents + r.heldout_documents for r in records)),
        ("bytes", sum(r.bytes + r.heldout_bytes for r in records)),
        ("rejected", sum(sum(r.rejected.values()) for r in records)),
    ):
        assert told.before[key] + told.counts[key] == found


def test_counts_are_of_one_job_at_a_time(folder: Path, here: Engine) -> None:
    made = recipe(folder)
    with another_job(made.counts_dir, "count"), pytest.raises(FolderInUse):
        run_count(made, here, Silent())
    run_count(made, here, Silent())
    with another_job(made.counts_dir, "count"):
        run_count(made, here, Silent())  # finished counts are only read


def test_counts_of_different_patterns_do_not_add_up(folder: Path, here: Engine) -> None:
    parts = [run_count(recipe(folder, p, pattern=p), here, Silent()) for p in ("gpt2", "o200k")]
    with pytest.raises(MismatchError, match=r"pattern was 'o200k' and is 'gpt2'"):
        add_counts(parts, folder / "sum", here, Silent())


def test_a_damaged_input_is_counted_up_to_the_damage(folder: Path, here: Engine) -> None:
    import zstandard

    lines = b"".join(json.dumps({"text": f"parola{k} {k * 7919}"}).encode() + b"\n" for k in range(20000))
    data = zstandard.ZstdCompressor().compress(lines)
    (folder / "in" / "it-9.jsonl.zst").write_bytes(data[: len(data) // 2])
    sources = {
        "it": {"inputs": [str(folder / "in" / "it-9*")]},
        "en": {"inputs": [str(folder / "in" / "en*")]},
    }
    counts = run_count(make_recipe({"out": folder / "x", "sources": sources}, "test"), here, Silent())
    [failure] = counts.failed
    assert failure.file.endswith("it-9.jsonl.zst")
    assert counts.records["en"].documents + counts.records["en"].heldout_documents == len(
        documents(folder, "en")
    )


def test_heldout_texts_are_kept(folder: Path, here: Engine) -> None:
    counts = run_count(recipe(folder), here, Silent())
    texts = documents(folder, "it")
    heldout = select(hash_documents(*pack(texts), 0), Fraction(1, 5))
    assert counts.heldout_texts("it").to_pylist() == [t for t, h in zip(texts, heldout, strict=True) if h]


def test_a_damaged_file_of_counts_is_named(folder: Path, here: Engine) -> None:
    counts = run_count(recipe(folder), here, Silent())
    path = counts.folder / "heldout.parquet"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(IntegrityError, match=r"heldout\.parquet is damaged"):
        load_counts(counts.folder).check()
    path = counts.buckets[3]
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(IntegrityError, match=r"bucket-03\.parquet"):
        read_group(path, 0)


def test_what_is_wrong_in_counts_json_is_named(folder: Path, here: Engine) -> None:
    counts = run_count(recipe(folder), here, Silent())
    path = counts.folder / FILE_NAME
    data = json.loads(path.read_text())
    data["config"]["inputs"]["it"]["files"][0]["size"] = -1
    path.write_text(json.dumps(data))
    with pytest.raises(
        IntegrityError,
        match=r"counts\.json: config\.inputs\[...\]\.files\[0\]\.size: Expected `int`",
    ):
        load_counts(counts.folder)
