"""Counts of a corpus: exact, the same whatever happens on the way, added up, refused when the input changed."""

from __future__ import annotations

import json
import os
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
import regex
import zstandard
from counting import Killer, contents, documents, recipe, write_lines
from support import another_job
from telling import Told
from texts import pack

from pretok.base.console import SILENT
from pretok.base.errors import FolderInUse, IntegrityError, MismatchError, Stopped, UsageError
from pretok.base.execute import Engine
from pretok.base.records import replace
from pretok.base.stop import StopFlag
from pretok.config import make_recipe
from pretok.counts.buckets import read_group
from pretok.counts.counts_file import CorpusCounts, load_counts
from pretok.counts.job import add_counts, run_count
from pretok.counts.task import SAMPLE_SEED_STEP, _Counter, count_partition
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


def test_counts_are_those_of_the_regular_expression(folder: Path, here: Engine) -> None:
    counts = run_count(recipe(folder, pattern="gpt2"), here, SILENT)
    for source in ("it", "en"):
        texts = documents(folder, source)
        assert words_of(counts, source) == expected(texts, "gpt2", Fraction(1, 5))
        heldout = select(hash_documents(*pack(texts), 0), Fraction(1, 5))
        assert counts.heldout_texts(source).to_pylist() == [
            t for t, h in zip(texts, heldout, strict=True) if h
        ]
        record = counts.records[source]
        assert record.documents + record.heldout_documents == len(texts)
        assert record.bytes + record.heldout_bytes == sum(len(text.encode()) for text in texts)
        assert record.read == len(texts) + sum(record.rejected.values())
    assert sum(counts.records["en"].rejected.values()) == 1
    assert counts.records["it"].heldout_documents > 5


def test_a_sample_is_chosen_by_hash(folder: Path, here: Engine) -> None:
    counts = run_count(recipe(folder, sample="0.5"), here, SILENT)
    texts = documents(folder, "it")
    assert words_of(counts, "it") == expected(texts, "cl100k", Fraction(1, 5), Fraction(1, 2))
    assert 0 < counts.records["it"].unsampled < len(texts)


def test_spilling_changes_nothing(folder: Path, here: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt at a partition spills under names of its own, so that none adds up the words of another."""
    monkeypatch.setattr("pretok.read.readers.BATCH_BYTES", 2000)
    whole = run_count(recipe(folder), here, SILENT)
    spills: list[Path] = []
    spill = _Counter._spill
    monkeypatch.setattr(_Counter, "_spill", lambda self: (spill(self), spills.append(self._spills[-1])))
    monkeypatch.setattr(
        "pretok.counts.job.count_partition",
        lambda task, report: count_partition(replace(task, table_bytes=1), report),
    )
    parts = run_count(recipe(folder, "small"), here, SILENT)
    assert contents(parts.folder) == contents(whole.folder)
    assert len(set(spills)) == len(spills) > 4
    assert all(path.name.startswith(".") and path.name.endswith(".tmp") for path in spills)
    assert all(str(os.getpid()) in path.name for path in spills)


@pytest.mark.parametrize("steps", [0, 1, 4, 9, 16])
def test_a_stopped_count_continues_to_the_same_bytes(folder: Path, here: Engine, steps: int) -> None:
    whole = run_count(recipe(folder), here, SILENT)
    with pytest.raises(Stopped):
        run_count(recipe(folder, "killed"), Killer(steps), SILENT)
    assert not (folder / "killed" / "counts" / "counts.json").exists()
    run_count(recipe(folder, "killed"), here, SILENT)
    assert contents(folder / "killed" / "counts") == contents(whole.folder)


def test_what_is_counted_is_not_counted_again(folder: Path, here: Engine) -> None:
    first = run_count(recipe(folder), here, SILENT)
    (left := first.folder / ".state").mkdir()  # by a kill that came while it was deleted
    again = run_count(recipe(folder), Killer(0), SILENT)
    assert again == first == load_counts(first.folder)
    assert not left.exists()


def test_workers_of_ray_give_the_same_bytes(folder: Path, here: Engine, ray_address: str) -> None:
    whole = run_count(recipe(folder), here, SILENT)
    with StopFlag() as stop, Engine(2, ray_address, stop) as engine:
        other = run_count(recipe(folder, "ray"), engine, SILENT)
    assert contents(other.folder) == contents(whole.folder)


def test_another_setting_or_input_is_refused(folder: Path, here: Engine) -> None:
    with pytest.raises(Stopped):
        run_count(recipe(folder), Killer(3), SILENT)
    with pytest.raises(MismatchError, match="holdout"):  # it is begun
        run_count(recipe(folder, holdout="0.1"), here, SILENT)
    run_count(recipe(folder), here, SILENT)
    with pytest.raises(MismatchError, match=r"pattern was 'cl100k' and is 'gpt2'"):
        run_count(recipe(folder, pattern="gpt2"), here, SILENT)
    write_lines(folder / "in" / "it-2.jsonl", ["nuovo"])
    with pytest.raises(MismatchError, match=r"it-2\.jsonl is new"):
        run_count(recipe(folder), here, SILENT)


def test_counts_add_up(folder: Path, here: Engine) -> None:
    """Two corpora that share a source name: their sum is the count of all files together."""
    whole = run_count(recipe(folder), here, SILENT)
    parts = []
    for name, globs in (("a", {"it": "it-0*"}), ("b", {"it": "it-1*", "en": "en*"})):
        sources = {source: {"inputs": [str(folder / "in" / glob)]} for source, glob in globs.items()}
        data = {"out": folder / name, "sources": sources, "vocab": {"holdout": "0.2"}}
        parts.append(run_count(make_recipe(data, "test"), here, SILENT))
    total = add_counts(parts, folder / "sum", here, SILENT)
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
        parts.append(run_count(make_recipe(data, "test"), here, SILENT))
    return parts


def test_a_stopped_sum_continues_to_the_same_bytes_and_to_no_other(folder: Path, here: Engine) -> None:
    a, b, c = three_counts(folder, here)
    whole = contents(add_counts([a, b], folder / "whole", here, SILENT).folder)
    for steps in (4, 7):
        target = folder / f"sum{steps}"
        with pytest.raises(Stopped):
            add_counts([a, b], target, Killer(steps), SILENT)
        with pytest.raises(MismatchError, match="added was"):
            add_counts([a, c], target, here, SILENT)
        assert contents(add_counts([a, b], target, here, SILENT).folder) == whole
    with pytest.raises(UsageError, match="added twice"):
        add_counts([a, b, a], folder / "sum", here, SILENT)
    for others, path in (([a, c], target), ([a, b, c], target), ([b, c], a.folder)):
        with pytest.raises(MismatchError, match="added was"):
            add_counts(others, path, here, SILENT)
    assert contents(target) == whole
    other = run_count(recipe(folder, "other", pattern="o200k"), here, SILENT)
    with pytest.raises(MismatchError, match=r"pattern was 'o200k' and is 'cl100k'"):
        add_counts([a, other], folder / "sum", here, SILENT)


def test_a_resumed_count_tells_what_is_there(folder: Path, here: Engine) -> None:
    told = Told()
    with pytest.raises(Stopped, match=r"1 of 2 partitions are done and kept"):
        run_count(recipe(folder), Killer(3), SILENT)
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
        run_count(made, here, SILENT)
    run_count(made, here, SILENT)
    with another_job(made.counts_dir, "count"):
        run_count(made, here, SILENT)  # finished counts are only read


def test_a_damaged_input_is_counted_up_to_the_damage(folder: Path, here: Engine) -> None:
    lines = b"".join(json.dumps({"text": f"parola{k} {k * 7919}"}).encode() + b"\n" for k in range(20000))
    data = zstandard.ZstdCompressor().compress(lines)
    (folder / "in" / "it-9.jsonl.zst").write_bytes(data[: len(data) // 2])
    sources = {
        "it": {"inputs": [str(folder / "in" / "it-9*")]},
        "en": {"inputs": [str(folder / "in" / "en*")]},
    }
    counts = run_count(make_recipe({"out": folder / "x", "sources": sources}, "test"), here, SILENT)
    [failure] = counts.failed
    assert failure.file.endswith("it-9.jsonl.zst")
    assert counts.records["en"].documents + counts.records["en"].heldout_documents == len(
        documents(folder, "en")
    )


def test_a_damaged_file_of_counts_is_named(folder: Path, here: Engine) -> None:
    counts = run_count(recipe(folder), here, SILENT)
    path = counts.folder / "heldout.parquet"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(IntegrityError, match=r"heldout\.parquet is damaged"):
        load_counts(counts.folder).check()
    path = counts.buckets[3]
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(IntegrityError, match=r"bucket-03\.parquet"):
        read_group(path, 0)
