"""Counts of a corpus: exact, the same whatever happens on the way, added up, refused when the input changed."""

from __future__ import annotations

import json
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
import regex
import zstandard
from counting import Killer, contents, documents, recipe, write_lines
from recording import RecordingConsole
from support import another_job
from texts import pack

from pretok.base.console import NO_CONSOLE
from pretok.base.errors import (
    FolderInUse,
    IntegrityError,
    MismatchError,
    PartitionsFailed,
    Stopped,
    UsageError,
)
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.config import make_recipe
from pretok.kernels.hashing import hash_documents, select
from pretok.kernels.pretokenize import PATTERNS
from pretok.read import readers
from pretok.vocab.counts import count_task as task
from pretok.vocab.counts.buckets import read_group, split_buckets
from pretok.vocab.counts.count_job import add_counts, run_count
from pretok.vocab.counts.count_task import SAMPLE_SEED_STEP
from pretok.vocab.counts.counts_file import CorpusCounts, load_counts

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


@pytest.mark.parametrize(("pattern", "sample"), [("gpt2", "1"), ("cl100k", "0.5")])
def test_counts_are_those_of_the_regular_expression(
    folder: Path, here: Engine, pattern: str, sample: str
) -> None:
    """Of documents that are chosen for the sample, and held out, by hash."""
    counts = run_count(recipe(folder, pattern=pattern, sample=sample), here, NO_CONSOLE)
    for source in ("it", "en"):
        texts = documents(folder, source)
        assert words_of(counts, source) == expected(texts, pattern, Fraction(1, 5), Fraction(sample))
        record = counts.records[source]
        assert record.documents + record.heldout_documents + record.unsampled == len(texts)
        assert record.read == len(texts) + sum(record.rejected.values())
        assert (record.unsampled > 0) == (sample != "1")
        if sample == "1":
            heldout = select(hash_documents(*pack(texts), 0), Fraction(1, 5))
            kept = [text for text, apart in zip(texts, heldout, strict=True) if apart]
            assert counts.heldout_texts(source).to_pylist() == kept
            assert record.bytes + record.heldout_bytes == sum(len(text.encode()) for text in texts)
    assert sum(counts.records["en"].rejected.values()) == 1
    assert counts.records["it"].heldout_documents > 5


def test_full_tables_change_nothing(folder: Path, here: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretok.read.readers.BATCH_BYTES", 2000)
    whole = run_count(recipe(folder), here, NO_CONSOLE)
    monkeypatch.setattr(task, "TABLE_BYTES", 1 << 15)
    runs = []
    monkeypatch.setattr(task, "split_buckets", lambda words: runs.append(words) or split_buckets(words))
    parts = run_count(recipe(folder, "small"), here, NO_CONSOLE)
    assert len(runs) > 6
    assert contents(parts.folder) == contents(whole.folder)


def test_a_stopped_count_continues_to_the_same_bytes(folder: Path, here: Engine) -> None:
    whole = run_count(recipe(folder), here, NO_CONSOLE)
    found = set()
    for steps in (0, 1, 4, 9, 16):
        killed = recipe(folder, f"killed-{steps}")
        with pytest.raises(Stopped):
            run_count(killed, Killer(steps), NO_CONSOLE)
        assert not (killed.counts_dir / "counts.json").exists()
        if steps == 4:
            with pytest.raises(MismatchError, match="holdout"):
                run_count(recipe(folder, "killed-4", holdout="0.1"), here, NO_CONSOLE)
        console = RecordingConsole()
        counts = run_count(killed, here, console)
        assert contents(counts.folder) == contents(whole.folder), steps
        found.add(done := console.before["partitions"])
        if done:
            assert f"2 partitions to count, {done} of them done by an earlier run" in console.notices[0]
        read = sum((Counter(record.counts()) for record in counts.records.values()), Counter(partitions=2))
        assert Counter(console.before) + Counter({key: console.counts[key] for key in read}) == read
    assert found >= {0, 2}  # kills at the beginning and when all is counted


def test_finished_counts_are_only_read(folder: Path, here: Engine) -> None:
    made = recipe(folder)
    with another_job(made.counts_dir, "count"), pytest.raises(FolderInUse):
        run_count(made, here, NO_CONSOLE)
    first = run_count(made, here, NO_CONSOLE)
    (left := first.folder / ".state").mkdir()  # by a kill that came while it was deleted
    with another_job(made.counts_dir, "count"):
        assert run_count(made, Killer(0), NO_CONSOLE) == first == load_counts(first.folder)
    assert not left.exists()
    with pytest.raises(MismatchError, match=r"pattern was 'cl100k' and is 'gpt2'"):
        run_count(recipe(folder, pattern="gpt2"), here, NO_CONSOLE)
    write_lines(folder / "in" / "it-2.jsonl", ["nuovo"])
    with pytest.raises(MismatchError, match=r"it-2\.jsonl is new"):
        run_count(recipe(folder), here, NO_CONSOLE)


def test_workers_of_ray_give_the_same_bytes(folder: Path, here: Engine, ray_address: str) -> None:
    whole = run_count(recipe(folder), here, NO_CONSOLE)
    with StopFlag() as stop, Engine(2, ray_address, stop) as engine:
        other = run_count(recipe(folder, "ray"), engine, NO_CONSOLE)
    assert contents(other.folder) == contents(whole.folder)


def counts_of(folder: Path, here: Engine, out: str, **globs: str) -> CorpusCounts:
    """Counts of some files, in a folder of their own."""
    sources = {name: {"inputs": [str(folder / "in" / glob)]} for name, glob in globs.items()}
    data = {"out": folder / out, "sources": sources, "vocab": {"holdout": "0.2"}}
    return run_count(make_recipe(data, "test"), here, NO_CONSOLE)


def test_counts_add_up(folder: Path, here: Engine) -> None:
    """Corpora that share a source name: their sum is the count of all files together. A stopped sum continues to the
    same bytes, and to no other sum."""
    whole = run_count(recipe(folder), here, NO_CONSOLE)
    a = counts_of(folder, here, "a", it="it-0*")
    b = counts_of(folder, here, "b", it="it-1*", en="en*")
    c = counts_of(folder, here, "c", it="en*")
    total = add_counts([a, b], folder / "sum", here, NO_CONSOLE)
    assert total.sources == ["en", "it"]
    for source in total.sources:
        assert words_of(total, source) == words_of(whole, source)
        assert total.records[source] == whole.records[source]
    assert len(total.heldout_texts("it")) == whole.records["it"].heldout_documents
    for steps in (4, 7):
        target = folder / f"sum{steps}"
        with pytest.raises(Stopped):
            add_counts([a, b], target, Killer(steps), NO_CONSOLE)
        with pytest.raises(MismatchError, match="added was"):
            add_counts([a, c], target, here, NO_CONSOLE)
        assert contents(add_counts([a, b], target, here, NO_CONSOLE).folder) == contents(total.folder)
    more = add_counts([total, c], folder / "more", here, NO_CONSOLE)
    ac = add_counts([a, c], folder / "ac", here, NO_CONSOLE)
    # Two that hold the same, by themselves, in a sum, in a sum of sums or in two sums.
    for parts, same in (
        ([a, b, a], (a, a)),
        ([total, a], (total, a)),
        ([more, a], (more, a)),
        ([b, more], (b, more)),
        ([total, ac], (total, ac)),
        ([more, ac], (more, ac)),
    ):
        one, two = (re.escape(str(part.folder)) for part in same)
        with pytest.raises(
            UsageError, match=f"^{one} and {two} hold the same counts, which would be added twice"
        ):
            add_counts(parts, folder / "twice", here, NO_CONSOLE)
    assert not (folder / "twice").exists()
    it, en = (words_of(whole, source) for source in ("it", "en"))
    both = {
        word: tuple(map(sum, zip(it.get(word, (0, 0)), en.get(word, (0, 0)), strict=True)))
        for word in it | en
    }
    assert (words_of(more, "it"), words_of(more, "en")) == (both, en)
    earlier = json.loads((total.folder / "counts.json").read_text())
    del earlier["config"]["leaves"]
    (total.folder / "counts.json").write_text(json.dumps(earlier))
    with pytest.raises(UsageError, match=rf"sum is a sum that does not say .*: {a.folder}, {b.folder}$"):
        add_counts([load_counts(total.folder), c], folder / "twice", here, NO_CONSOLE)
    for others, path in (([a, c], target), ([b, c], a.folder)):
        with pytest.raises(MismatchError, match="added was"):
            add_counts(others, path, here, NO_CONSOLE)
    other = run_count(recipe(folder, "other", pattern="o200k"), here, NO_CONSOLE)
    with pytest.raises(MismatchError, match=r"pattern was 'o200k' and is 'cl100k'"):
        add_counts([a, other], folder / "twice", here, NO_CONSOLE)


def test_a_damaged_file_is_read_again_alone(
    folder: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repaired, it gives the counts of a file that was never damaged; what was counted is not read again."""
    lines = b"".join(json.dumps({"text": f"parola{k} {k * 7919}"}).encode() + b"\n" for k in range(20000))
    data, path = zstandard.ZstdCompressor().compress(lines), folder / "in" / "damaged.jsonl.zst"
    path.write_bytes(data)
    whole = counts_of(folder, here, "whole", it="damaged*", en="en*")
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(PartitionsFailed, match=r"it-00000: .*damaged.jsonl.zst: the zstd stream ends in"):
        counts_of(folder, here, "x", it="damaged*", en="en*")
    assert not (folder / "x" / "counts" / "counts.json").exists()
    path.write_bytes(data)
    read, real = [], readers.read_piece
    monkeypatch.setattr(readers, "read_piece", lambda piece, *more: read.append(piece) or real(piece, *more))
    counts = counts_of(folder, here, "x", it="damaged*", en="en*")
    assert [piece.file.path for piece in read] == [str(path)]
    assert contents(counts.folder) == contents(whole.folder)


def test_damaged_counts_are_named(folder: Path, here: Engine) -> None:
    counts = counts_of(folder, here, "x", it="it*", en="en*")
    for path in (counts.heldout_path, counts.buckets[3]):
        whole = path.read_bytes()
        path.write_bytes(whole[:-40])
        with pytest.raises(IntegrityError, match=f"{path.name} is damaged"):
            load_counts(counts.folder).check()
        if path != counts.heldout_path:
            with pytest.raises(IntegrityError, match=path.name):
                read_group(path, 0)
        path.write_bytes(whole)
