"""What an earlier run binds, what a source must give, and inputs that change or are shared."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import signal
import threading
from fractions import Fraction
from pathlib import Path

import pytest
import tokenizing
from telling import Told

from pretok.base.console import Silent
from pretok.base.errors import InternalError, MismatchError, PartitionsFailed, Stopped, UsageError
from pretok.config import Recipe, make_recipe
from pretok.counts.counts_file import load_counts
from pretok.counts.job import run_count
from pretok.read import readers
from pretok.read.rejects import poor_sources
from pretok.shards import task
from pretok.shards.inputs import write_plan
from pretok.shards.job import run_tokenize
from pretok.shards.manifest import has_manifest, load_manifest
from pretok.shards.unfinished import unfinished


def lines(count: int, field: str = "text") -> str:
    return "".join(json.dumps({field: f"documento {i}, " * 20}) + "\n" for i in range(count))


def recipe(folder: Path, vocab: Path, field: str = "text", **settings: object) -> Recipe:
    data = {
        "out": folder / "out",
        "sources": {"it": {"inputs": [f"{folder}/*.jsonl"], "field": field}},
        "vocab": {"path": vocab},
        "shards": {"size": 4000, **settings},
    }
    return make_recipe(data, "test")


def tokenize(made: Recipe, here) -> list[str]:
    told = Told()
    run_tokenize(made, here, told)
    return told.notices


def count(made: Recipe, here):
    return run_count(made, here, Silent())


def test_the_wrong_field_is_refused_before_work_and_the_right_one_accepted(tmp_path, vocab_dir, here):
    (tmp_path / "a.jsonl").write_text(lines(9, "content"))
    for work in (tokenize, count):
        with pytest.raises(
            UsageError,
            match=r"no field 'text' in .*a\.jsonl; text fields: content; choose one with --field",
        ):
            work(recipe(tmp_path, vocab_dir), here)
        work(recipe(tmp_path, vocab_dir, "content"), here)
        with pytest.raises(MismatchError, match="field"):
            work(recipe(tmp_path, vocab_dir, "text"), here)


def test_a_source_that_gives_nothing_is_code_3_and_binds_nothing(tmp_path, vocab_dir, here):
    (tmp_path / "a.jsonl").write_text('{"content": "tutto il testo", "text": null}\n' * 9)
    said = r"source it has no documents: 9 of 9 records .*null_text 9"
    for work in (tokenize, count) * 2:  # the second time there is nothing to do, and it is still told
        with pytest.raises(PartitionsFailed, match=said):
            work(recipe(tmp_path, vocab_dir), here)
    tokenize(recipe(tmp_path, vocab_dir, "content", val_fraction="0.5"), here)
    assert load_manifest(tmp_path / "out" / "shards").totals.documents == 9
    assert not list((tmp_path / "out" / "shards").glob("rejects/*"))
    shutil.rmtree(tmp_path / "out" / "counts")  # as its message says
    assert count(recipe(tmp_path, vocab_dir, "content"), here).records["it"].read == 9


def test_a_source_without_documents_leaves_the_manifest_before_its_files_change(
    tmp_path, vocab_dir, here, monkeypatch
):
    """It is sealed anew by every run; nobody who verifies meanwhile sees a file that is not as it was sealed."""
    (tmp_path / "a.jsonl").write_text('{"text": null}\n')
    (tmp_path / "b.jsonl").write_text(lines(9))
    sources = {name: {"inputs": [f"{tmp_path}/{file}.jsonl"]} for name, file in (("it", "a"), ("en", "b"))}
    made = make_recipe({"out": tmp_path / "out", "sources": sources, "vocab": {"path": vocab_dir}}, "test")
    sealed: list[list[str]] = []

    def writing(*given):
        if has_manifest(made.shards_dir):
            sealed.append(list(load_manifest(made.shards_dir).sources))
        write_plan(*given)

    monkeypatch.setattr("pretok.shards.seal.write_plan", writing)
    for _ in range(2):
        with pytest.raises(PartitionsFailed, match="it has no documents"):
            tokenize(made, here)
    assert sealed == [["en"]]
    assert list(load_manifest(made.shards_dir).sources) == ["en", "it"]


def test_unfinished_work_without_documents_binds_nothing(tmp_path, vocab_dir, here, monkeypatch):
    from pretok.shards import job

    (tmp_path / "a.jsonl").write_text(lines(9))
    monkeypatch.setattr(job, "tokenize_partition", lambda task, report: 1 / 0)
    with pytest.raises(InternalError):
        tokenize(recipe(tmp_path, vocab_dir), here)
    monkeypatch.undo()
    assert (tmp_path / "out/shards/.state/it/plan.parquet").exists()
    notices = tokenize(recipe(tmp_path, vocab_dir, val_fraction="0.5"), here)
    assert any("is forgotten" in notice for notice in notices)


def test_too_many_rejects_are_code_3_and_all_is_kept(tmp_path, vocab_dir, here):
    (tmp_path / "a.jsonl").write_bytes(lines(4).encode() + '{"text": "è"}\n'.encode("latin-1") * 5)
    told = (
        r"source it: 5 of 9 records were rejected \(invalid_utf8 5\), more than the share of 0.02 .*"
        r"max_reject_share = 0.56 .*iconv -f ISO-8859-1 -t UTF-8"
    )
    with pytest.raises(PartitionsFailed, match=told):
        tokenize(recipe(tmp_path, vocab_dir), here)
    assert load_manifest(tmp_path / "out" / "shards").data["totals"]["documents"] == 4
    with pytest.raises(PartitionsFailed, match=told):
        count(recipe(tmp_path, vocab_dir), here)
    allowed = recipe(tmp_path, vocab_dir, max_reject_share="0.6")  # no other bytes: nothing is done again
    tokenize(allowed, here)
    assert count(allowed, here).records["it"].read == 9


def test_where_the_share_begins_to_be_too_much():
    half = {"it": (10, {"null_text": 5})}
    assert poor_sources(Fraction(1, 2), half, "") == []
    assert len(poor_sources(Fraction(49, 100), half, "")) == 1
    asked = dict.fromkeys(("duplicate", "contaminated", "too_long", "removed"), 9)
    assert poor_sources(Fraction(1, 100), {"it": (100, {**asked, "null_text": 1})}, "") == []
    assert len(poor_sources(Fraction(1, 100), {"it": (100, {**asked, "null_text": 2})}, "")) == 1
    assert "it has no documents" in poor_sources(Fraction(1), {"it": (0, {})}, "")[0]


def test_an_input_that_changes_while_it_is_read_fails_by_name(tmp_path, vocab_dir, here, monkeypatch):
    """In the middle, and to the same size: any other change is seen more easily."""
    path, changed, real = tmp_path / "a.jsonl", [], readers.read_piece
    (tmp_path / "b.jsonl").write_text(lines(10))
    made = recipe(tmp_path, vocab_dir, size=10_000_000)

    def changing(*arguments):
        for batch in real(*arguments):
            if not changed:
                changed.append(path.write_text(lines(400).replace("documento 200", "documento xyz")))
            yield batch

    monkeypatch.setattr(readers, "read_piece", changing)
    for work in (tokenize, count):
        path.write_text(lines(400))
        changed.clear()
        with contextlib.suppress(PartitionsFailed):  # counting leaves that to its command
            work(made, here)
    for failed in (unfinished(made.shards_dir)["it"].failed, load_counts(made.counts_dir).failed):
        assert [failure.file for failure in failed] == [str(path)]
        assert failed[0].error.startswith("changed ")
    tokenize(made, here)  # again, from the file as it is now
    manifest = load_manifest(made.shards_dir)
    assert not unfinished(made.shards_dir)
    assert manifest.totals.documents == 410


@pytest.mark.parametrize("work", [tokenize, count])
def test_a_signal_ends_planning(tmp_path, vocab_dir, here, monkeypatch, work):
    from pretok.counts import job as counting
    from pretok.shards import plan as source_plan

    (tmp_path / "a.jsonl").write_text(lines(9))
    waiting = threading.Event()

    def listing(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        waiting.wait(20)  # a file system that does not answer
        pytest.fail("the signal did not end the wait")

    for module in (counting, source_plan):
        monkeypatch.setattr(module, "list_inputs", listing)
    with pytest.raises(Stopped, match="received SIGTERM"):
        work(recipe(tmp_path, vocab_dir), here)


def test_a_file_that_changes_between_two_parts_is_refused(
    tmp_path, vocab_dir, here, sample_texts, monkeypatch
):
    """The rest would be read from another file than the beginning, and nobody could tell."""
    path = tmp_path / "a.jsonl.gz"
    texts = [json.dumps({"text": text}) for text in sample_texts["it"]]
    path.write_bytes(gzip.compress("\n".join(texts).encode()))
    made = tokenizing.recipe(tmp_path / "out", vocab_dir, {"it": [path]}, size=4_000)
    seal, calls = task.PartWriter.seal, []

    def killed(writer, last, *found):
        if calls:
            raise KeyboardInterrupt
        calls.append(last)
        return seal(writer, last, *found)

    monkeypatch.setattr("pretok.read.readers.BATCH_BYTES", 4_000)
    with monkeypatch.context() as patch:
        patch.setattr(task.PartWriter, "seal", killed)
        with pytest.raises(KeyboardInterrupt):
            tokenizing.run(made, here)
    assert calls == [False]
    path.write_bytes(gzip.compress("\n".join(texts[::-1]).encode()))
    with pytest.raises(MismatchError, match=r"a\.jsonl\.gz"):
        tokenizing.run(made, here)
