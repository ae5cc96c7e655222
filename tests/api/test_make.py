"""`pretok.build_vocab`, `tokenize` and `mix` leave the bytes that the commands leave, and raise where these end."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from counting import contents

import pretok
from pretok.base.errors import FolderInUse, MismatchError, PartitionsFailed, UsageError
from pretok.base.history import read_jobs
from pretok.base.joblog import LOGS
from pretok.base.lock import hold
from pretok.cli import run_command
from pretok.stream.mix_file import load_mix

pytestmark = pytest.mark.usefixtures("few_buckets")


def files(work: Path) -> dict[str, bytes]:
    """What is made in WORK, the logs apart."""
    return {name: data for name, data in contents(work).items() if not name.startswith(f"{LOGS}/")}


def inputs(folder: Path) -> dict[str, object]:
    return {"it": folder / "in" / "it-*.jsonl", "en": [str(folder / "in" / "en.jsonl")]}


def test_the_names_are_there_before_they_are_used() -> None:
    assert dir(pretok) == ["__version__", "build_vocab", "mix", "open", "tokenize"]
    with pytest.raises(AttributeError, match="tokenise"):
        pretok.tokenise  # noqa: B018


def test_python_leaves_the_bytes_of_the_commands(folder: Path) -> None:
    made, typed = folder / "made", folder / "typed"
    report = pretok.build_vocab(inputs(folder), made, size=600, weights={"it": 0.9, "en": "0.1"}, workers=0)
    work = pretok.tokenize(inputs(folder), made, val_fraction="0.1", workers=0)
    planned = pretok.mix(work.folder, weights={"it": 0.5, "en": 0.5}, seq_len=32)
    named = [f"it={folder}/in/it-*.jsonl", f"en={folder}/in/en.jsonl", "--out", str(typed), "--workers", "0"]
    weights = ["--weights", "it=0.9,en=0.1"]
    assert run_command(["build-vocab", *named, "--vocab-size", "600", *weights]) == 0
    assert run_command(["tokenize", *named, "--val-fraction", "0.1"]) == 0
    mix = ["--out", str(typed / "mix.json"), "--weights", "it=0.5,en=0.5", "--seq-len", "32"]
    assert run_command(["mix", str(typed / "shards"), *mix]) == 0
    assert files(made) == files(typed)
    assert report.size == 600
    assert work.mix == load_mix(made / "mix.json")
    assert planned.sequences == len(work.mix)
    assert [(job.command, job.exit_code) for job in read_jobs(made)] == [
        (name, 0) for name in ("build-vocab", "tokenize", "mix")
    ]


def test_a_recipe_stands_for_the_inputs(folder: Path, vocab_dir: Path) -> None:
    (folder / "r.toml").write_text('out = "w"\n[sources.it]\ninputs = ["in/it-*.jsonl"]\n', encoding="utf-8")
    work = pretok.tokenize(folder / "r.toml", vocab=vocab_dir, workers=0, quiet=True)
    assert (work.folder, work.sources) == (folder / "w", ("it",))


def test_a_source_may_be_a_table_of_a_recipe(folder: Path, vocab_dir: Path) -> None:
    (folder / "in" / "own.jsonl").write_text('{"body": "il mare", "id": "7"}\n')
    table = {"inputs": folder / "in" / "own.jsonl", "field": "body", "keep": ["id"]}
    work = pretok.tokenize({"own": table}, folder / "w", vocab=vocab_dir, workers=0)
    assert work.texts(columns=["id"]).read_all().to_pylist() == [{"id": "7", "text": "il mare"}]


def test_what_is_wrong_is_raised(folder: Path, vocab_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, it = folder / "w", inputs(folder)
    for call, message in (
        (
            lambda: pretok.tokenize(it, out, val_frac=0.1),
            r"pretok.tokenize: .*shards.val_frac .*val_fraction",
        ),
        (
            lambda: pretok.tokenize(it, out, val_fraction=2),
            r"^pretok.tokenize: val_fraction: 2: it should be less",
        ),
        (
            lambda: pretok.build_vocab(it, out, weights={"fr": 1}),
            r"^pretok.build_vocab: weights names fr, but",
        ),
        (
            lambda: pretok.mix(out, seq_len=0),
            r"^pretok.mix: seq_len: 0: it should be greater than or equal to 1",
        ),
        (
            lambda: pretok.mix(out, wieghts={"it": 1}),
            r"pretok.mix: unknown key mix.wieghts \(did you mean weights",
        ),
        (lambda: pretok.tokenize({"it": 3}, out), r"sources\.it\.inputs"),
        (lambda: pretok.build_vocab(it), "where the results go"),
        (
            lambda: pretok.tokenize({"it": folder / "nowhere" / "*"}, out, vocab=vocab_dir, workers=0),
            "nowhere",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            call()
    with ThreadPoolExecutor(1) as other, hold(out / "shards", "another job"), pytest.raises(FolderInUse):
        other.submit(pretok.tokenize, it, out, vocab=vocab_dir, workers=0).result()
    pretok.tokenize({"it": it["it"]}, out, vocab=vocab_dir, workers=0)
    with pytest.raises(MismatchError, match="val_fraction"):
        pretok.tokenize({"it": it["it"]}, out, vocab=vocab_dir, workers=0, val_fraction=0.5)
    with pytest.raises(PartitionsFailed, match="rejected"):
        pretok.tokenize({"it": it["it"], "en": it["en"]}, out, vocab=vocab_dir, workers=0, max_reject_share=0)
    assert "Traceback" not in capsys.readouterr().err
    ends = [(job.exit_code, bool(job.problems)) for job in read_jobs(out)]
    assert ends == [(2, True), (75, True), (0, False), (2, True), (3, True)]


def test_a_ray_of_the_program_is_left_alone(
    folder: Path, vocab_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    with pytest.raises(UsageError, match="a Ray of its own"):
        pretok.tokenize(inputs(folder), folder / "w", vocab=vocab_dir, workers=1, address="auto")


def test_it_works_in_another_thread(folder: Path, vocab_dir: Path) -> None:
    made = asyncio.run(
        asyncio.to_thread(pretok.tokenize, inputs(folder), folder / "w", vocab=vocab_dir, workers=0)
    )
    assert made.sources == ("en", "it")
