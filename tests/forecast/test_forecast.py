"""What a recipe is said to give is what it gives: exact where everything is read, within its interval where not."""

from __future__ import annotations

import errno
import gzip
import json
import random
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from chatting import write_tokenizer
from telling import Told
from tokenizing import run

from pretok.base import storage
from pretok.base.console import SILENT
from pretok.base.errors import UsageError
from pretok.cli import run_command
from pretok.config import make_mix, make_recipe
from pretok.forecast import windows as module
from pretok.forecast.estimate import forecast_source
from pretok.forecast.job import Forecast, run_forecast, tables
from pretok.forecast.measure import Found, Sample
from pretok.forecast.windows import Window
from pretok.read.files import InputFile
from pretok.read.partition import Piece
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_job import MixRequest, plan_mix

WORDS = "il mare è salato e la luna sorge sopra il monte perché l'acqua canta nella notte".split()  # noqa: SIM905


def texts(count: int, seed: int, longest: int = 400) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]


def lines(found: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in found).encode()


def forecast(folder: Path, at: Path, **settings: object) -> Forecast:
    data = {"out": folder / "out", "sources": {"it": {"inputs": [str(folder / "in" / "*")]}}, **settings}
    data.setdefault("vocab", {"path": at})
    return run_forecast(make_recipe(data, "test"), 2, 0, SILENT)


def exact(folder: Path, vocab: Path) -> tuple[int, int, int]:
    """(documents, bytes, tokens) as tokenize finds them."""
    inputs = [f"it={folder}/in/*"]
    assert (
        run_command(
            ["tokenize", *inputs, "--out", str(folder / "out"), "--vocab", str(vocab), "--workers", "0"]
        )
        == 0
    )
    totals = load_manifest(folder / "out" / "shards").totals
    return totals.documents, totals.bytes, totals.tokens


def write(path: Path, form: str) -> None:
    found = texts(400, seed=len(path.name))
    if form == "parquet":
        pq.write_table(pa.table({"text": found}), path.with_suffix(".parquet"), row_group_size=64)
    elif form == "text":
        path.with_suffix(".txt").write_text("\n".join(found), encoding="utf-8")
    elif form == "zst":
        path.with_suffix(".jsonl.zst").write_bytes(zstandard.compress(lines(found)))
    elif form == "gz":
        path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(lines(found)))
    else:
        path.with_suffix(".jsonl").write_bytes(lines(found))


@pytest.mark.parametrize("form", ["jsonl", "zst", "gz", "parquet", "text"])
def test_the_total_lies_in_the_interval(form, tmp_path, vocab_dir, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 4 << 10)
    (tmp_path / "in").mkdir()
    for name in ("a", "bb", "ccc"):
        write(tmp_path / "in" / name, form)
    found = forecast(tmp_path, vocab_dir).sources["it"]
    documents, size, tokens = exact(tmp_path, vocab_dir)
    for estimate, truth in ((found.documents, documents), (found.bytes, size), (found.tokens, tokens)):
        assert estimate.low <= truth <= estimate.high
        assert estimate.value == pytest.approx(truth, rel=0.15)
    assert found.files == 3


def test_a_source_that_is_read_as_a_whole_is_exact(tmp_path, vocab_dir):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a", "text")
    found = forecast(tmp_path, vocab_dir).sources["it"]
    assert (found.documents.value, found.bytes.value, found.tokens.value) == exact(tmp_path, vocab_dir)
    assert found.tokens.low == found.tokens.high


def test_a_sum_over_all_there_is_has_no_rounding():
    piece = Piece(InputFile("x", "jsonl", "", 3, ""))
    found = [
        Found(Window(piece, 0.3, 0.1 + 0.2), documents=1, bytes=7, encoded=7, tokens=2) for _ in range(10)
    ]
    source = forecast_source(Sample(found), 10, 3, 1000, 2)
    for interval, truth in ((source.documents, 10), (source.bytes, 70), (source.tokens, 20)):
        assert (interval.low, interval.value, interval.high) == (truth, truth, truth)
    found[0].encoded = 3  # of its text not all was encoded: its tokens are an estimate
    source = forecast_source(Sample(found), 10, 3, 1000, 2)
    assert source.bytes.low == source.bytes.high
    assert source.tokens.low < source.tokens.high


def test_the_windows_of_a_source_stand_for_all_of_it(tmp_path, monkeypatch):
    from pretok.read.probe import probe_inputs
    from pretok.read.recognise import list_inputs

    monkeypatch.setattr(module, "WINDOW", 1 << 10)
    for number in range(200):  # more files than points
        (tmp_path / f"{number}.jsonl").write_bytes(lines(texts(1 + number % 7, number)))
    probes = probe_inputs(list_inputs([str(tmp_path / "*")], "auto")[0], "text", console=SILENT)
    found = list(module.windows(probes, "seed", []))
    assert sum(window.amount for window in found) == pytest.approx(sum(probe.file.size for probe in probes))
    assert len(found) == module.POINTS
    assert found == list(module.windows(probes, "seed", []))
    assert found != list(module.windows(probes, "another", []))


def test_rejects_are_expected_in_their_share_and_too_many_are_told(tmp_path, vocab_dir, monkeypatch, capsys):
    monkeypatch.setattr(module, "WINDOW", 16 << 10)
    (tmp_path / "in").mkdir()
    good = [json.dumps({"text": text}) for text in texts(3000, 1, longest=40)]
    bad = [line if number % 10 else "{broken" for number, line in enumerate(good)]
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(bad) + "\n", encoding="utf-8")
    found = forecast(tmp_path, vocab_dir).sources["it"]
    assert found.reject_share == pytest.approx(0.1, abs=0.02)
    assert set(found.rejected) == {"malformed_json"}
    line = ["plan", f"it={tmp_path}/in/*", "--out", f"{tmp_path}/out"]
    assert run_command(line) == 0
    assert "more than the share of 0.02 that max_reject_share allows; estimated" in capsys.readouterr().err


def test_a_mix_that_cannot_be_is_said_to_be_none(tmp_path, vocab_dir):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a", "jsonl")
    too_much = forecast(tmp_path, vocab_dir, mix={"tokens": "1T", "seq_len": 16}).mix
    assert too_much is not None
    assert "tokens would take more than 4 epochs of some sources: it has " in too_much.problem
    assert too_much.sure
    some = forecast(tmp_path, vocab_dir, mix={"tokens": "10k", "seq_len": 16}).mix
    assert some is not None
    assert not some.problem
    assert some.sure
    assert 0 < some.epochs["it"] < 1


def test_a_mix_of_classes_is_left_to_the_mix(tmp_path, vocab_dir):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a", "jsonl")
    console = Told()
    data = {
        "out": tmp_path,
        "sources": {"it": {"inputs": [f"{tmp_path}/in/*"]}},
        "vocab": {"path": vocab_dir},
        "mix": {"classes": {"good": "it where tokens > 40"}, "repeat": {"good": 3}},
    }
    assert run_forecast(make_recipe(data, "test"), 2, 0, console).mix is None
    assert "pretok mix says it" in console.notices[-1]


def test_of_conversations_it_is_told_what_is_learned(tmp_path, here):
    """As the shards and the mix tell it."""
    (tmp_path / "in").mkdir()
    found = texts(300, 1, longest=40)
    with (tmp_path / "in" / "chat.jsonl").open("w") as file:
        for ask, answer in pairwise(found):
            talk = [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": talk}) + "\n")
    (tmp_path / "in" / "it.jsonl").write_bytes(lines(found))
    vocab = write_tokenizer(tmp_path / "vocab", "chatml", found)
    sources = {name: {"inputs": [str(tmp_path / "in" / f"{name}.jsonl")]} for name in ("chat", "it")}
    sources["chat"] |= {"messages": "messages", "learn": ["answer"]}
    mix = {"weights": {"chat": 0.5, "it": 0.5}, "tokens": 3000, "seq_len": 64}
    told = forecast(tmp_path, vocab, sources=sources, mix=mix)
    recipe = make_recipe({"out": tmp_path / "out", "vocab": {"path": vocab}, "sources": sources}, "test")
    run(recipe, here)
    manifest = load_manifest(recipe.shards_dir)
    kinds = manifest.sources["chat"].train.kinds
    assert told.sources["chat"].learned.value == kinds["answer"]
    assert told.sources["it"].learned is None
    request = MixRequest(make_mix(mix, "test"), learn={"chat": ("answer",)})
    _, report = plan_mix(manifest, request)
    assert told.mix.problem == ""
    assert told.mix.tokens == pytest.approx(report.tokens, rel=0.02)
    epochs = {name: one["epochs"] for name, one in report.sources.items()}
    assert told.mix.epochs == pytest.approx(epochs, rel=0.05)
    assert "learned" in tables(told)[0].columns


def test_without_a_vocabulary_one_is_trained_on_a_sample(tmp_path, vocab_dir):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a", "jsonl")
    found = forecast(tmp_path, vocab_dir, vocab={"size": 400})
    assert found.vocabulary == ""
    assert found.sources["it"].tokens.value > 0
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_vocabulary_of_a_plan_is_weighed_as_the_real_one(tmp_path):
    (tmp_path / "in").mkdir()
    draw = random.Random(1)
    for name, letters in ("it", "aeiou"), ("en", "bcdfg"):
        words = ["".join(draw.choices(letters, k=6)) for _ in range(300)]
        made = [" ".join(draw.choices(words, k=80)) for _ in range(200)]
        (tmp_path / "in" / f"{name}.jsonl").write_bytes(lines(made))
    for number, weights in enumerate(({"it": 0.95, "en": 0.05}, {"it": 0.05, "en": 0.95}, {})):
        data = {
            "out": tmp_path / f"out-{number}",
            "sources": {name: {"inputs": [str(tmp_path / "in" / f"{name}.jsonl")]} for name in ("it", "en")},
            "vocab": {"size": 500, "weights": weights},
            "shards": {"val_fraction": 0.5},
            "mix": {"weights": {"it": 0.5, "en": 0.5}, "tokens": 20_000, "seq_len": 64},
        }
        found = run_forecast(make_recipe(data, "test"), 2, 0, SILENT)
        inputs = [f"{name}={tmp_path}/in/{name}.jsonl" for name in ("it", "en")]
        flags = ["--weights", ",".join(f"{name}={w}" for name, w in weights.items())] if weights else []
        out = ["--out", str(data["out"]), "--workers", "0"]
        assert run_command(["build-vocab", *inputs, *out, "--vocab-size", "500", *flags]) == 0
        assert run_command(["tokenize", *inputs, *out]) == 0
        sources = load_manifest(data["out"] / "shards").sources
        for name, source in sources.items():
            assert found.sources[name].tokens.value == pytest.approx(source.tokens, rel=0.02)
            half = found.sources[name].tokens.value / 2  # the other half is kept for validation
            assert found.mix.epochs[name] == pytest.approx(10_000 / half, rel=0.02)


@pytest.mark.parametrize(("number", "told"), [(errno.EIO, False), (errno.EACCES, True)])
def test_what_may_pass_is_read_again_and_what_does_not_is_named(
    number, told, tmp_path, vocab_dir, monkeypatch
):
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        write(tmp_path / "in" / name, "gz")
    opened, failed = module.open_input, set()

    def fails_once(path, *rest):
        if path.endswith("b.jsonl.gz") and (told or path not in failed):
            failed.add(path)
            raise OSError(number, "no")
        return opened(path, *rest)

    console = Told()
    monkeypatch.setattr(module, "open_input", fails_once)
    monkeypatch.setattr(storage, "WAITS", (0.0,))
    data = {
        "out": tmp_path,
        "sources": {"it": {"inputs": [f"{tmp_path}/in/*"]}},
        "vocab": {"path": vocab_dir},
    }
    run_forecast(make_recipe(data, "test"), 2, 0, console)
    assert failed
    assert console.notices == ([f"it: not sampled: {tmp_path}/in/b.jsonl.gz: [Errno 13] no"] if told else [])


def test_a_source_without_text_is_an_error(tmp_path, vocab_dir):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": ""}\n' * 50, encoding="utf-8")
    with pytest.raises(UsageError, match=r"source it: no text .*50 empty_text"):
        forecast(tmp_path, vocab_dir)


def test_the_command_prints_the_forecast_and_writes_nothing(tmp_path, vocab_dir, capsys):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a", "jsonl")
    command = ["plan", f"it={tmp_path}/in/*", "--out", str(tmp_path / "out"), "--workers", "8"]
    assert run_command([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["workers"] == 8
    assert said["sources"]["it"]["files"] == 1
    assert run_command(command) == 0
    assert "bytes per token" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.corpus
def test_real_text_is_predicted_within_three_percent(corpus, tmp_path, vocab_dir):
    inputs = {name: {"inputs": [f"{corpus}/{name}/*.jsonl.zst"]} for name in ("it", "en")}
    recipe = make_recipe({"out": tmp_path, "sources": inputs, "vocab": {"path": vocab_dir}}, "test")
    found = run_forecast(recipe, 2, 0, SILENT)
    command = [f"{name}={corpus}/{name}/*.jsonl.zst" for name in ("it", "en")]
    assert (
        run_command(
            ["tokenize", *command, "--out", str(tmp_path), "--vocab", str(vocab_dir), "--workers", "0"]
        )
        == 0
    )
    for name, counts in load_manifest(tmp_path / "shards").sources.items():
        assert found.sources[name].tokens.value == pytest.approx(counts.tokens, rel=0.03)
