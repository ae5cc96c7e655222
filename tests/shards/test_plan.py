"""What an earlier run binds, what a source must give, and inputs that change while a job runs."""

from __future__ import annotations

import json
import os
import signal
import threading
from fractions import Fraction
from pathlib import Path

import pytest
import tokenizing

import pretok
from pretok.base.console import Console
from pretok.base.errors import MismatchError, PartitionsFailed, Stopped, UsageError
from pretok.config import Recipe, make_recipe
from pretok.read import readers
from pretok.read.rejects import poor_sources
from pretok.shards.manifest import load_manifest
from pretok.shards.unfinished import unfinished
from pretok.vocab.counts.count_job import run_count


def lines(count: int, field: str = "text") -> str:
    return "".join(json.dumps({field: f"documento {i}, " * 20}) + "\n" for i in range(count))


def recipe(folder: Path, vocab: Path, field: str = "text", **settings: object) -> Recipe:
    """Source `it` of all files in the folder, and `good` of the one in `good`, if there is one."""
    sources = {"it": {"inputs": [f"{folder}/*.jsonl"], "field": field}}
    if (folder / "good").exists():
        sources["good"] = {"inputs": [f"{folder}/good/a.jsonl"], "field": "text"}
    shards = {"size": 4000, **settings}
    return make_recipe(
        {"out": folder / "out", "sources": sources, "vocab": {"path": vocab}, "shards": shards}, "test"
    )


def tokenize(made: Recipe, here) -> list[str]:
    return tokenizing.run(made, here)[1]


def count(made: Recipe, here):
    return run_count(made, here, Console())


@pytest.mark.parametrize("work", [tokenize, count])
def test_the_wrong_field_is_refused_before_work_and_the_right_one_accepted(tmp_path, vocab_dir, here, work):
    (tmp_path / "a.jsonl").write_text(lines(9, "content"))
    said = r"no field 'text' in .*a\.jsonl; text fields: content; choose one with --field"
    with pytest.raises(UsageError, match=said):
        work(recipe(tmp_path, vocab_dir), here)
    work(recipe(tmp_path, vocab_dir, "content"), here)
    with pytest.raises(MismatchError, match="field"):
        work(recipe(tmp_path, vocab_dir, "text"), here)


def test_a_source_without_documents_is_code_3_and_binds_nothing(tmp_path, vocab_dir, here):
    """It is not sealed, and the others are."""
    (tmp_path / "a.jsonl").write_text('{"content": "tutto il testo", "text": null}\n' * 9)
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "a.jsonl").write_text(lines(9))
    shards = tmp_path / "out" / "shards"
    for _ in range(2):  # the second time there is nothing to do, and the message is the same
        with pytest.raises(
            PartitionsFailed, match=r"source it has no documents: 9 of 9 records .*null_text 9"
        ):
            tokenize(recipe(tmp_path, vocab_dir), here)
        assert list(load_manifest(shards).sources) == ["good"]
        assert list(unfinished(shards)) == ["it"]
    notices = tokenize(recipe(tmp_path, vocab_dir, "content"), here)
    assert any("wrote no document; starting over" in notice for notice in notices)
    assert load_manifest(shards).sources["it"].documents == 9
    assert not list(shards.glob("rejects/*"))


def test_too_many_rejects_are_code_3_and_all_is_kept(tmp_path, vocab_dir, here):
    (tmp_path / "a.jsonl").write_bytes(lines(4).encode() + '{"text": "è"}\n'.encode("latin-1") * 5)
    said = (
        r"(?s)source it: 5 of 9 records were rejected \(invalid_utf8 5\), more than the share of 0.02 .*"
        r"a.jsonl: 5, the first at line 5 \(invalid_utf8: byte 0xe8 at 0.*all are in .*/rejects/it.*jsonl.*"
        r"max_reject_share = 0.56 .*iconv -f ISO-8859-1 -t UTF-8"
    )
    for work in (tokenize, count):
        with pytest.raises(PartitionsFailed, match=said):
            work(recipe(tmp_path, vocab_dir), here)
    assert load_manifest(tmp_path / "out" / "shards").totals.documents == 4
    allowed = recipe(tmp_path, vocab_dir, max_reject_share="0.6")  # no other bytes: nothing is done again
    assert any("nothing to do" in notice for notice in tokenize(allowed, here))
    assert count(allowed, here).records["it"].read == 9


ASKED = dict.fromkeys(("duplicate", "contaminated", "too_long", "removed"), 9)


@pytest.mark.parametrize(
    ("limit", "read", "rejected", "complaints"),
    [
        ("1/2", 10, {"null_text": 5}, 0),
        ("49/100", 10, {"null_text": 5}, 1),
        ("1/100", 100, {**ASKED, "null_text": 1}, 0),
        ("1/100", 100, {**ASKED, "null_text": 2}, 1),
        ("1", 0, {}, 1),
    ],
)
def test_where_the_share_begins_to_be_too_much(limit, read, rejected, complaints):
    assert len(poor_sources(Fraction(limit), {"it": (read, rejected)}, str)) == complaints


def test_an_input_that_changes_while_it_is_read_fails_by_name(tmp_path, vocab_dir, here, monkeypatch):
    """In the middle, and to the same size: any other change is seen more easily. A small file would be read at once."""
    path, changed, real = tmp_path / "a.jsonl", [], readers.read_piece
    (tmp_path / "b.jsonl").write_text(lines(10))
    made = recipe(tmp_path, vocab_dir, size=10_000_000)

    def changing(*arguments):
        for batch in real(*arguments):
            if not changed:
                changed.append(path.write_text(lines(4000).replace("documento 200", "documento xyz")))
            yield batch

    monkeypatch.setattr(readers, "read_piece", changing)
    path.write_text(lines(4000))
    with pytest.raises(PartitionsFailed, match=rf"{path}: changed "):
        tokenize(made, here)
    path.write_text(lines(4000))
    changed.clear()
    with pytest.raises(PartitionsFailed, match=rf"{path}: changed "):
        count(made, here)
    tokenize(made, here)  # again, from the file as it is now
    assert load_manifest(made.shards_dir).totals.documents == 4010


@pytest.mark.parametrize(
    "after",
    [
        lines(800) + lines(9),  # grown, as by a download that goes on
        lines(800).replace("documento 400", "documento xyz"),  # which only the time of the file tells
    ],
)
def test_a_source_starts_again_if_an_input_changed_between_its_parts(
    after, tmp_path, vocab_dir, here, monkeypatch
):
    """With the same command; others do not."""
    path, calls, real = tmp_path / "a.jsonl", [], readers.read_piece
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "a.jsonl").write_text(lines(9))
    path.write_text(lines(800))
    made = recipe(tmp_path, vocab_dir)

    def changing(piece, *arguments):
        if piece.file.path == str(path):
            calls.append(piece)
            if len(calls) == 25:  # the middle has been read
                path.write_text(after)
        return real(piece, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(readers, "read_piece", changing)
        with pytest.raises(
            PartitionsFailed, match=rf"{path}: changed since .*; all of it starts again, as "
        ) as error:
            tokenize(made, here)
    assert "repair" not in str(error.value)
    assert list(load_manifest(made.shards_dir).sources) == ["good"]
    assert unfinished(made.shards_dir)["it"][0] > 0
    assert "it: an input changed while its parts were read; starting over" in tokenize(made, here)
    texts = [row["text"] for row in pretok.open(made.out).texts("it").read_all().to_pylist()]
    assert sorted(texts) == sorted(json.loads(line)["text"] for line in after.splitlines())


def test_a_signal_ends_planning(tmp_path, vocab_dir, here, monkeypatch):
    (tmp_path / "a.jsonl").write_text(lines(9))
    waiting = threading.Event()

    def listing(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        waiting.wait(20)  # a file system that does not answer
        pytest.fail("the signal did not end the wait")

    monkeypatch.setattr("pretok.config.changes.list_inputs", listing)
    with pytest.raises(Stopped, match="received SIGTERM"):
        tokenize(recipe(tmp_path, vocab_dir), here)
