"""What a recipe is said to give is what it gives: exact where everything is read, within its interval where not."""

from __future__ import annotations

import errno
import gzip
import json
import random
import re
from functools import partial
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from chatting import write_tokenizer
from recording import RecordingConsole
from tokenizing import run

from pretok.base import storage
from pretok.base.console import NO_CONSOLE, Console
from pretok.base.errors import UsageError
from pretok.cli import run_command
from pretok.config import make_recipe
from pretok.overview.forecast import windows as module
from pretok.overview.forecast.estimate import forecast_source
from pretok.overview.forecast.forecast_job import Forecast, run_forecast
from pretok.overview.forecast.measure import Measured, MeasuredSource
from pretok.overview.forecast.windows import Window
from pretok.read.files import InputFile
from pretok.read.format import Piece
from pretok.read.probe import probe_inputs
from pretok.read.recognise import list_inputs
from pretok.shards.manifest import Manifest, load_manifest

WORDS = "il mare è salato e la luna sorge sopra il monte perché l'acqua canta nella notte".split()  # noqa: SIM905


def texts(count: int, seed: int, longest: int = 400) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]


def lines(found: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in found).encode()


def forecast(folder: Path, at: Path, console: Console = NO_CONSOLE, **settings: object) -> Forecast:
    data = {"out": folder / "out", "sources": {"it": {"inputs": [str(folder / "in" / "*")]}}, **settings}
    return run_forecast(make_recipe({"vocab": {"path": at}, **data}, "test"), 2, console)


def tokenized(out: Path, vocab: Path, *inputs: str) -> Manifest:
    """The manifest of what tokenize makes of inputs."""
    options = ("--out", str(out), "--vocab", str(vocab), "--workers", "0")
    assert run_command(["tokenize", *inputs, *options]) == 0
    return load_manifest(out / "shards")


def write(path: Path, form: str = "jsonl") -> None:
    path.parent.mkdir(exist_ok=True)
    found = texts(400, seed=len(path.name))
    if form == "parquet":
        pq.write_table(pa.table({"text": found}), path.with_suffix(".parquet"), row_group_size=64)
    elif form == "txt":
        path.with_suffix(".txt").write_text("\n".join(found))
    else:
        gzipped = partial(gzip.compress, mtime=0)  # else two files are no copies if a second passes between
        pack = {"jsonl.zst": zstandard.compress, "jsonl.gz": gzipped, "jsonl": bytes}[form]
        path.with_suffix(f".{form}").write_bytes(pack(lines(found)))


@pytest.mark.parametrize("form", ["jsonl", "jsonl.zst", "jsonl.gz", "parquet", "txt", "one txt"])
def test_the_total_lies_in_the_interval_and_is_exact_if_all_is_read(form, tmp_path, vocab_dir, monkeypatch):
    whole = form == "one txt"  # a single text file is read from its start to its end
    names = ("a",) if whole else ("a", "bb", "ccc")
    monkeypatch.setattr(module, "WINDOW", (128 if whole else 4) << 10)
    for name in names:
        write(tmp_path / "in" / name, form.split()[-1])
    source = forecast(tmp_path, vocab_dir).sources["it"]
    totals = tokenized(tmp_path / "out", vocab_dir, f"it={tmp_path}/in/*").totals
    for name in ("documents", "bytes", "tokens"):
        estimate, truth = getattr(source, name), getattr(totals, name)
        assert estimate.low <= truth <= estimate.high
        assert estimate.value == pytest.approx(truth, rel=0 if whole else 0.15)
        assert not whole or estimate.low == estimate.high
    assert source.files == len(names)


def test_only_what_was_not_encoded_is_estimated():
    """A sum over windows that are all there is has no rounding."""
    window = Window(Piece(InputFile("x", "jsonl", "", 3, "")), 0.3, 0.1 + 0.2)
    measured = [Measured(window, documents=1, bytes=7, encoded=7, tokens=2) for _ in range(10)]
    source = forecast_source(MeasuredSource(measured), 10, 3, 1000, 2)
    bounds = source.documents.high, source.bytes.low, source.tokens.low, source.tokens.high
    assert bounds == (10, 70, 20, 20)
    measured[0].encoded = 3
    source = forecast_source(MeasuredSource(measured), 10, 3, 1000, 2)
    assert source.bytes.low == source.bytes.high
    assert source.tokens.low < source.tokens.high


def test_the_windows_of_a_source_stand_for_all_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 1 << 10)
    for number in range(200):  # more files than points
        (tmp_path / f"{number}.jsonl").write_bytes(lines(texts(1 + number % 7, number)))
    probes = probe_inputs(list_inputs([str(tmp_path / "*")], "auto")[0], ("text",), console=NO_CONSOLE)
    found, again, other = (list(module.windows(probes, seed, {})) for seed in ("seed", "seed", "another"))
    assert sum(window.amount for window in found) == pytest.approx(sum(probe.file.size for probe in probes))
    assert len(found) == module.POINTS
    assert found == again != other


def test_rejects_are_expected_in_their_share_and_too_many_are_named(tmp_path, vocab_dir, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 16 << 10)
    good = [json.dumps({"text": text}) for text in texts(3000, 1, longest=40)]
    bad = [line if number % 10 else "{broken" for number, line in enumerate(good)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(bad) + "\n", encoding="utf-8")
    console = RecordingConsole()
    found = forecast(tmp_path, vocab_dir, console).sources["it"]
    assert found.reject_share == pytest.approx(0.1, abs=0.02)
    assert set(found.rejected) == {"malformed_json"}
    assert console.notices[-1].startswith("it: of ")
    assert f" cannot be read ({tmp_path}/in/a.jsonl" in console.notices[-1]
    assert console.notices[-1].endswith("more than the share of 0.02 that max_reject_share allows")


def rows(good: int, bad: int, words: int) -> bytes:
    """`good` records of so many words, the bad ones after the third."""
    made = [json.dumps({"text": " ".join(WORDS[0] for _ in range(words))}).encode() for _ in range(good)]
    return b"\n".join([*made[:3], *[b'{"text": "du'] * bad, *made[3:], b""])


MANY = {f"{n:03}.jsonl": rows(*(70, 101, 1) if n == 50 else (10, 0, 300)) for n in range(100)}


@pytest.fixture(scope="module")
def long_documents() -> dict[str, pa.Table]:
    """Tables: 2,809 long documents, and one without the column."""
    return {
        "g.parquet": pa.table({"text": [" ".join(WORDS * 40)] * 2809}),
        "n.parquet": pa.table({"body": ["x" * 900] * 500}),
    }


@pytest.mark.parametrize(
    ("files", "share", "off"),
    [
        # Beside the tables 101 of 2,980 records, as tokenize counts.
        pytest.param({"t.jsonl": rows(70, 101, 1)}, 101 / 2980, 0.01, id="a small file"),
        pytest.param({"t.jsonl.gz": gzip.compress(rows(70, 101, 1))}, 101 / 2980, 0.01, id="also packed"),
        pytest.param({"t.jsonl": rows(171, 0, 1)}, 0, 0, id="none"),
        pytest.param(
            dict.fromkeys(("0.jsonl", "1.jsonl", "2.jsonl"), rows(90, 10, 300)), 30 / 3109, 0.1, id="as many"
        ),
        # Of a hundred files only some are read. By the bytes that they stand for, the dirty one is at most one point.
        pytest.param(MANY, 0, 1 / 64, id="one of many"),
    ],
)
@pytest.mark.parametrize("seed", ["it", "pt"])  # of the points: "pt" has one in the dirty file of many
def test_the_share_of_rejects_is_taken_per_file(seed, files, share, off, long_documents, tmp_path, vocab_dir):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, table in long_documents.items():
        pq.write_table(table, folder / name, row_group_size=200)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    console = RecordingConsole()
    found = forecast(tmp_path, vocab_dir, console, sources={seed: {"inputs": [str(folder)]}}).sources[seed]
    wanted = pytest.approx(share, rel=off) if share else pytest.approx(0, abs=off)
    assert found.reject_share == wanted
    printed = "\n".join(console.notices)
    for name in ("n.parquet", *(files if share and len(files) == 1 else ())):
        assert printed.count(f"/{name}") == 1
    if share and len(files) == 1:
        place = rf"\(\S+/{next(iter(files))} line 4: malformed_json: "
        assert re.search(rf"of 2,\d+ sampled records, 101 cannot be read {place}", printed)
    assert ("max_reject_share allows" in printed) == (share > 0.02)


def test_a_window_at_the_end_of_a_file_is_no_larger_than_others(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines(["uno due"] * 100_000 + ["x" * 300_000]))
    probe = probe_inputs(list_inputs([str(tmp_path / "a.jsonl")], "auto")[0], ("text",))[0]
    whole = 100_000 * len(lines(["uno due"])) + len(lines(["x" * 300_000]))
    for place in (0.0, 0.99, 1 - 1e-9):
        (window,) = module._of_plain(probe.file, [place], whole)
        assert window.units <= module.WINDOW * 4 + 300_000


def test_the_forecast_says_whether_a_mix_is_possible(tmp_path, vocab_dir):
    write(tmp_path / "in" / "a")
    too_much = forecast(tmp_path, vocab_dir, mix={"tokens": "1T", "seq_len": 16}).mix
    assert "tokens would take more than 4 epochs of some sources: it has " in too_much.problem
    assert too_much.sure
    some = forecast(tmp_path, vocab_dir, mix={"tokens": "10k", "seq_len": 16}).mix
    assert (some.problem, some.sure) == ("", True)
    assert 0 < some.epochs["it"] < 1
    console, classes = (
        RecordingConsole(),
        {"classes": {"good": "it where tokens > 40"}, "repeat": {"good": 3}},
    )
    assert forecast(tmp_path, vocab_dir, console, mix=classes).mix is None
    assert "run pretok mix after tokenizing" in console.notices[-1]


def test_conversations_have_the_tokens_that_they_get(tmp_path, here):
    (tmp_path / "in").mkdir()
    found = texts(300, 1, longest=40)
    with (tmp_path / "in" / "chat.jsonl").open("w") as file:
        for ask, answer in pairwise(found):
            talk = [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": talk}) + "\n")
    vocab = write_tokenizer(tmp_path / "vocab", "chatml", found)
    sources = {"chat": {"inputs": [str(tmp_path / "in" / "*")], "messages": "messages"}}
    expected = forecast(tmp_path, vocab, sources=sources).sources["chat"].tokens.value
    recipe = make_recipe({"out": tmp_path / "out", "vocab": {"path": vocab}, "sources": sources}, "test")
    run(recipe, here)
    assert expected == load_manifest(recipe.shards_dir).totals.tokens


@pytest.mark.usefixtures("few_buckets")
@pytest.mark.parametrize("weights", [{}, {"it": 0.25, "en": 0.75}])
def test_the_vocabulary_of_a_plan_is_weighed_as_the_real_one(weights, tmp_path):
    (tmp_path / "in").mkdir()
    draw, names = random.Random(1), ("it", "en")
    for name, letters in zip(names, ("aeiou", "bcdfg"), strict=True):
        words = ["".join(draw.choices(letters, k=6)) for _ in range(300)]
        made = [" ".join(draw.choices(words, k=80)) for _ in range(200)]
        (tmp_path / "in" / f"{name}.jsonl").write_bytes(lines(made))
    data = {
        "sources": {name: {"inputs": [str(tmp_path / "in" / f"{name}.jsonl")]} for name in names},
        "vocab": {"size": 500, "weights": weights},
        "shards": {"val_fraction": 0.5},
        "mix": {"weights": {"it": 0.5, "en": 0.5}, "tokens": 20_000, "seq_len": 64},
    }
    found = forecast(tmp_path, tmp_path, **data)
    assert found.vocabulary == ""
    assert not (tmp_path / "out").exists()
    inputs = [f"{name}={tmp_path}/in/{name}.jsonl" for name in names]
    flags = ["--weights", ",".join(f"{name}={w}" for name, w in weights.items())] if weights else []
    command = ["build-vocab", *inputs, "--out", str(tmp_path / "out"), "--workers", "0"]
    assert run_command([*command, "--vocab-size", "500", *flags]) == 0
    for name, source in tokenized(tmp_path / "out", tmp_path / "out" / "vocab", *inputs).sources.items():
        assert found.sources[name].tokens.value == pytest.approx(source.tokens, rel=0.02)
        half = found.sources[name].tokens.value / 2  # the other half is kept for validation
        assert found.mix.epochs[name] == pytest.approx(10_000 / half, rel=0.02)


@pytest.mark.parametrize(("number", "is_named"), [(errno.EIO, False), (errno.EACCES, True)])
def test_what_may_pass_is_read_again_and_what_does_not_is_named(
    number, is_named, tmp_path, vocab_dir, monkeypatch
):
    for name in ("a", "b"):
        write(tmp_path / "in" / name, "jsonl.gz")
    opened, failed = module.open_input, set()

    def fails_once(path, *rest):
        if path.endswith("b.jsonl.gz") and (is_named or path not in failed):
            failed.add(path)
            raise OSError(number, "no")
        return opened(path, *rest)

    console = RecordingConsole()
    monkeypatch.setattr(module, "open_input", fails_once)
    monkeypatch.setattr(storage, "WAITS", (0.0,))
    forecast(tmp_path, vocab_dir, console)
    assert failed
    copies, *notices = console.notices  # both files are the same
    assert "it seems to read copies" in copies
    assert notices == ([f"it: not sampled: {tmp_path}/in/b.jsonl.gz: [Errno 13] no"] if is_named else [])


def test_a_source_without_text_is_an_error(tmp_path, vocab_dir):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": ""}\n' * 50, encoding="utf-8")
    with pytest.raises(UsageError, match=r"source it: no text .*50 empty_text"):
        forecast(tmp_path, vocab_dir)


def test_the_command_prints_the_forecast_and_writes_nothing(tmp_path, capsys):
    write(tmp_path / "in" / "a")
    command = ["plan", f"it={tmp_path}/in/*", "--out", str(tmp_path / "out"), "--workers", "8"]
    assert run_command([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["workers"], said["sources"]["it"]["files"]) == (8, 1)
    assert run_command(command) == 0
    assert "bytes per token" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.corpus
def test_real_text_is_predicted_within_three_percent(corpus, tmp_path, vocab_dir):
    inputs = {name: f"{corpus}/{name}/*.jsonl.zst" for name in ("it", "en")}
    found = forecast(tmp_path, vocab_dir, sources={name: {"inputs": [one]} for name, one in inputs.items()})
    manifest = tokenized(tmp_path, vocab_dir, *(f"{name}={one}" for name, one in inputs.items()))
    for name, counts in manifest.sources.items():
        assert found.sources[name].tokens.value == pytest.approx(counts.tokens, rel=0.03)
