"""`pretok.build_vocab`, `tokenize` and `mix` leave the bytes that the commands leave, and raise where these end."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from counting import contents

import pretok
from pretok.base.errors import FolderInUse, MismatchError, PartitionsFailed, UsageError
from pretok.base.joblog import LOGS
from pretok.base.lock import hold
from pretok.cli import run_command
from pretok.overview.history import read_jobs
from pretok.stream.mix_file import load_mix

pytestmark = pytest.mark.usefixtures("few_buckets")


def files(work: Path) -> dict[str, bytes]:
    """What is made in WORK, the logs apart."""
    return {name: data for name, data in contents(work).items() if not name.startswith(f"{LOGS}/")}


def inputs(folder: Path) -> dict[str, object]:
    return {"it": folder / "in" / "it-*.jsonl", "en": [str(folder / "in" / "en.jsonl")]}


def test_the_names_are_there_before_they_are_used() -> None:
    assert dir(pretok) == ["PretokError", "__version__", "build_vocab", "errors", "mix", "open", "tokenize"]
    assert issubclass(pretok.errors.UsageError, pretok.PretokError)
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
    assert repr(report).startswith(f"<pretok vocabulary {report.fingerprint}: 600 entries, ")
    assert work.mix == load_mix(made / "mix.json")
    assert planned.sequences == len(work.mix)
    ended = [(job.command, job.exit_code) for job in read_jobs(made)]
    assert ended == [("build-vocab", 0), ("tokenize", 0), ("mix", 0)]


def test_inputs_may_be_a_recipe_or_a_table_of_one(
    folder: Path, vocab_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "lr=1").mkdir()
    recipe = folder / "lr=1" / "r.toml"
    recipe.write_text('out = "../w"\n[sources.it]\ninputs = ["../in/it-*.jsonl"]\n')
    monkeypatch.chdir(vocab_dir.parent)  # where paths that are given start, but not those of the recipe
    work = pretok.tokenize(str(recipe), vocab=vocab_dir.name, workers=0, quiet=True)
    assert run_command(f"tokenize {recipe} --vocab {vocab_dir.name} --workers 0".split()) == 0
    assert (work.folder, work.sources) == (folder / "w", ("it",))
    (folder / "in" / "own.jsonl").write_text('{"body": "il mare", "id": "7"}\n')
    table = {"inputs": folder / "in" / "own.jsonl", "field": "body", "keep": ["id"]}
    call = asyncio.to_thread(pretok.tokenize, {"own": table}, folder / "o", vocab=vocab_dir, workers=0)
    work = asyncio.run(call)  # in another thread, as a notebook may
    assert work.texts(columns=["id"]).read_all().to_pylist() == [{"id": "7", "text": "il mare"}]


WRONG = [
    ("tokenize", {"val_frac": 0.1}, "^pretok.tokenize: unknown key .*val_frac .*did you mean val_fraction"),
    ("tokenize", {"val_fraction": 2}, "^pretok.tokenize: shards.val_fraction: 2: it should be less"),
    ("tokenize", {"inputs": {"it": 3}}, r"sources\.it\.inputs"),
    ("build_vocab", {"out": None}, "^pretok.build_vocab: out is missing"),
    ("build_vocab", {"inputs": "recipe"}, ".recipe. is not the path of a recipe"),
]


@pytest.mark.parametrize(("call", "given", "message"), WRONG)
def test_what_is_wrong_is_raised(folder: Path, call: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        getattr(pretok, call)(**{"inputs": inputs(folder), "out": folder / "w", **given})
    with pytest.raises(UsageError, match=r"pretok.mix: unknown key mix.wieghts .*did you mean weights"):
        pretok.mix(folder, wieghts={})


def test_where_a_command_ends_with_a_code_an_error_is_raised_and_logged(
    folder: Path, vocab_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, it = folder / "w", inputs(folder)

    def tokenize(*names: str, **settings: object) -> object:
        sources = {name: it[name] for name in names}
        return pretok.tokenize(sources, out, vocab=vocab_dir, workers=0, **settings)

    with ThreadPoolExecutor(1) as other, hold(out / "shards", "another job"), pytest.raises(FolderInUse):
        other.submit(tokenize, "it").result()
    tokenize("it")
    with pytest.raises(MismatchError, match="val_fraction"):
        tokenize("it", val_fraction=0.5)
    with pytest.raises(PartitionsFailed, match="rejected"):
        tokenize("it", "en", max_reject_share=0)
    assert "Traceback" not in capsys.readouterr().err
    ends = [(job.exit_code, bool(job.problems)) for job in read_jobs(out)]
    assert ends == [(75, True), (0, False), (2, True), (3, True)]


def test_a_ray_of_the_program_is_left_alone(
    folder: Path, vocab_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    with pytest.raises(UsageError, match="already uses Ray"):
        pretok.tokenize(inputs(folder), folder / "w", vocab=vocab_dir, workers=1, address="auto")
