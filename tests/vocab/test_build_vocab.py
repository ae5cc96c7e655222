"""build-vocab: the merges of the reference, whatever happens on the way, and a report that agrees with the text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from counting import Killer, contents, documents, recipe
from recording import Gauges, RecordingConsole
from support import needs
from tokenizers import Tokenizer
from tokenizing import trained_model

from pretok.base.console import NO_CONSOLE, Console
from pretok.base.errors import MismatchError, PartitionsFailed, Stopped, UsageError
from pretok.base.execute import Engine
from pretok.base.records import read_record, to_json
from pretok.base.storage import read_json
from pretok.cli import run_command
from pretok.config import Recipe, Vocab
from pretok.config.settings import Normalize
from pretok.tokenizer.reference import Unencodable
from pretok.tokenizer.tokenizer_file import to_bytes
from pretok.vocab.bpe import REPORTED, train_merges
from pretok.vocab.build_vocab_job import refuse_short, run_build_vocab
from pretok.vocab.counts.buckets import concatenate
from pretok.vocab.counts.count_job import run_count
from pretok.vocab.counts.weigh import weigh
from pretok.vocab.measure import measure_texts
from pretok.vocab.report_file import MIX, VocabReport
from pretok.vocab.symbols import buffer_of

pytestmark = pytest.mark.usefixtures("few_buckets")
SPECIAL = ["<|endoftext|>", "<|pad|>", *(f"<|reserved_{i}|>" for i in range(62))]


def report_of(
    made: Recipe, engine: Engine, console: Console = NO_CONSOLE, compare: Sequence[Path] = ()
) -> dict[str, Any]:
    """The report as it stands in the file."""
    report = run_build_vocab(made, engine, console, compare)
    found: dict[str, Any] = read_json(made.vocab_dir / "report.json")
    assert found == to_json(report)
    return found


def reference(texts: list[str], pattern: str, size: int) -> dict[str, Any]:
    return trained_model(texts, pattern, SPECIAL, vocab_size=size)


def test_weighted_counts_train_as_repeated_text_does(folder: Path, here: Engine) -> None:
    counts = run_count(recipe(folder, holdout="0"), here, NO_CONSOLE)
    words = concatenate([part for part, _ in weigh(counts.buckets, {"it": 3, "en": 1}, 1)])
    buffer = buffer_of(words.data, words.offsets, words.counts)
    merges = train_merges(buffer, vocab_size=2000, special_tokens=len(SPECIAL))
    made = [(merges.tokens[left], merges.tokens[right]) for left, right in merges.pairs.tolist()]
    texts = documents(folder, "it") * 3 + documents(folder, "en")
    expected = reference(texts, "cl100k", 2000)["merges"]
    assert made == [(to_bytes(left), to_bytes(right)) for left, right in expected]


def test_the_bar_ends_with_the_last_entry(folder: Path, here: Engine) -> None:
    made, gauges = recipe(folder, size=1220), Gauges()
    run_build_vocab(made, here, gauges)
    entries = 1220 - 256 - len(made.vocab.special_tokens)
    assert gauges.whole("merge") == (entries - entries % REPORTED, entries, "entries")


def test_a_stopped_job_continues_to_the_same_bytes(folder: Path, here: Engine) -> None:
    run_build_vocab(recipe(folder, size=700), here, NO_CONSOLE)
    for steps in (2, 14, 20, 27):
        killed = recipe(folder, f"killed-{steps}", size=700)
        with pytest.raises(Stopped):
            run_build_vocab(killed, Killer(steps), NO_CONSOLE)
        run_build_vocab(killed, here, NO_CONSOLE)
        for part in ("vocab", "counts"):
            assert contents(killed.out / part) == contents(folder / "out" / part), steps


@pytest.mark.parametrize("place", ["tokenizer.json", "600/tokenizer.json"])
def test_a_tokenizer_of_others_is_not_overwritten(folder: Path, here: Engine, place: str) -> None:
    made = recipe(folder, size=1200, sizes=[600])
    other = made.vocab_dir / place
    other.parent.mkdir(parents=True)
    other.write_text("of others")
    with pytest.raises(UsageError, match="is not build-vocab's"):
        run_build_vocab(made, here, NO_CONSOLE)
    assert other.read_text() == "of others"
    other.unlink()
    run_build_vocab(made, here, NO_CONSOLE)
    (made.vocab_dir / "report.json").unlink()
    with pytest.raises(UsageError, match="is not build-vocab's"):  # nothing but the report tells whose it is
        run_build_vocab(made, here, NO_CONSOLE)


def test_a_vocabulary_is_made_once_for_its_settings_and_counts_alone_are_enough(
    folder: Path, here: Engine
) -> None:
    made = recipe(folder, size=1200)
    first = run_build_vocab(made, here, NO_CONSOLE)
    assert run_build_vocab(made, Killer(0), NO_CONSOLE) == first
    with pytest.raises(MismatchError, match=r"size was 1200 and is 1300"):
        run_build_vocab(recipe(folder, size=1300), here, NO_CONSOLE)
    tokenizer, counts = (made.vocab_dir / "tokenizer.json").read_bytes(), run_count(made, here, NO_CONSOLE)
    shutil.rmtree(made.vocab_dir)  # another one in its place is measured anew
    assert report_of(recipe(folder, size=400), here)["size"] == 400
    for path in (folder / "in").iterdir():
        path.unlink()
    again = recipe(folder, "again", size=1200)
    run_build_vocab(again, here, NO_CONSOLE, counts=counts)
    assert (again.vocab_dir / "tokenizer.json").read_bytes() == tokenizer


def test_counts_of_words_of_another_pattern_are_refused(folder: Path, here: Engine) -> None:
    counts = run_count(recipe(folder, pattern="gpt2"), here, NO_CONSOLE)
    with pytest.raises(
        UsageError, match=r"counts words of the pattern gpt2, but .* by cl100k: give --pattern"
    ):
        run_build_vocab(recipe(folder, "other", size=600), here, NO_CONSOLE, counts=counts)
    run_build_vocab(recipe(folder, "other", size=600, pattern="gpt2"), here, NO_CONSOLE, counts=counts)


def test_settings_of_counting_that_finished_counts_do_not_have_are_refused(
    folder: Path, here: Engine
) -> None:
    made: dict[str, Any] = {"size": 600, "holdout": "0.02", "seed": 3}
    counts = run_count(recipe(folder, **made), here, NO_CONSOLE)
    for changed, message in (
        (
            {"sample": "0.5"},
            "vocab.sample is 1/2, but .*counts was counted with 1, and nothing else reads it",
        ),
        ({"holdout": "0.5"}, r"vocab.holdout is 1/2, but .* was counted with 1/50"),
        ({"seed": 7}, "vocab.seed is 7, but .* was counted with 3"),
        ({}, r"\[normalize\] is not what .* was counted with"),
    ):
        other = recipe(folder, "other", **(made | changed))
        if not changed:
            other = other.model_copy(update={"normalize": Normalize(unicode="nfc")})
        with pytest.raises(UsageError, match=message):
            run_build_vocab(other, here, NO_CONSOLE, counts=counts)
    left_out = recipe(folder, "other", **made)
    left_out = left_out.model_copy(update={"vocab": Vocab(size=600, pattern=left_out.vocab.pattern)})
    run_build_vocab(left_out, here, NO_CONSOLE, counts=counts)


def test_fewer_merges_than_asked_for(folder: Path, here: Engine) -> None:
    asked = recipe(folder, holdout="0", size=60_000)
    report = report_of(asked, here)
    size = report["size"]
    assert size < 60_000
    expected = reference(documents(folder, "it") + documents(folder, "en"), "cl100k", 60_000)
    model = json.loads((folder / "out" / "vocab" / "tokenizer.json").read_text())["model"]
    assert (model["merges"], model["vocab"]) == (expected["merges"], expected["vocab"])
    assert report_of(asked, here) == report
    with pytest.raises(
        PartitionsFailed, match=rf"has {size:,} entries, not the 60,000 asked for.*--vocab-size {size} "
    ):
        refuse_short(read_record(VocabReport, report, Path("report.json")), asked.vocab)
    accepted = recipe(folder, holdout="0", size=size)
    assert report_of(accepted, here) == report
    refuse_short(read_record(VocabReport, report, Path("report.json")), accepted.vocab)


def test_words_that_memory_does_not_hold_are_refused_before_they_are_merged(
    folder: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pretok.vocab.build_vocab_job.free_memory", lambda: 1000)
    with pytest.raises(UsageError, match="too many to merge here: words and bytes together may be 100"):
        run_build_vocab(recipe(folder, size=600), here, NO_CONSOLE)


def test_both_libraries_open_the_folder(folder: Path, here: Engine) -> None:
    transformers = needs("transformers")
    run_build_vocab(recipe(folder, size=1200), here, NO_CONSOLE)
    path = str(folder / "out" / "vocab")
    fast = transformers.AutoTokenizer.from_pretrained(path)
    plain = Tokenizer.from_file(path + "/tokenizer.json")
    text = "L'acqua è più fresca, perché no? <3\n\n  12345"
    assert fast(text)["input_ids"] == plain.encode(text).ids
    assert plain.decode(plain.encode(text).ids) == text
    assert (fast.eos_token_id, fast.pad_token_id, len(fast)) == (0, 1, 1200)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pattern": "bert"}, "no pattern 'bert'"),
        ({"size": 300}, "300 entries cannot be made: 64 special tokens and 256 bytes take 320"),
        ({"size": 900, "sizes": (319,)}, "319 entries cannot be made"),
        ({"size": 900, "sizes": (1000,)}, "1,000 entries cannot be made.* may exceed the main one, 900"),
        ({"special_tokens": ("<|a|>", "<|a|>")}, "all different"),
        ({"special_tokens": ("<|a|>",), "eod": "<|b|>"}, "vocab.eod needs path or extend"),
        ({"special_tokens": ("<|a|>", "EOS")}, "'EOS' is one word"),
        ({"add": 10}, "vocab.add needs extend"),
        ({"extend": "old", "special_tokens": ("<x>",)}, "special_tokens and extend exclude each other"),
    ],
)
def test_impossible_settings_are_refused(
    folder: Path,
    here: Engine,
    settings: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(UsageError, match=message):
        run_build_vocab(recipe(folder, **settings), here, NO_CONSOLE)


def test_the_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [f"{name}={folder / 'in' / name}*" for name in ("it", "en")]

    def run(command: str, inputs: list[str], out: str, *options: str) -> int:
        return run_command([command, *inputs, "--workers", "0", "--out", str(folder / out), *options])

    assert run("count", sources[:1], "a", "--json") == 0
    assert json.loads(capsys.readouterr().out)["sources"]["it"]["documents"] > 100
    assert run("count", sources[1:], "b") == 0
    both = [str(folder / name / "counts") for name in ("a", "b")]
    assert run("count", both, "c") == 0
    assert run("count", [both[0], sources[1]], "d") == 2
    settings = ["--counts", str(folder / "c" / "counts"), "--weights", "it=0.9,en=0.1", "--vocab-size"]
    assert run("build-vocab", sources, "e", *settings, "900") == 0
    capsys.readouterr()
    other = str(folder / "e" / "vocab" / "tokenizer.json")
    assert run("build-vocab", sources, "f", *settings, "800", "--json", "--compare", other) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["size"] == 800
    rows = report["compare"]
    assert rows[other]["it"]["tokens"] < rows["this"]["it"]["tokens"]


def test_what_cannot_be_compared_is_refused_before_the_work(folder: Path, here: Engine) -> None:
    other = folder / "tokenizer.json"
    other.write_text('{"model": {"type": "WordPiece"}}')
    with pytest.raises(UsageError, match=r"tokenizer\.json is not a byte-level BPE tokenizer but WordPiece"):
        run_build_vocab(recipe(folder, size=1200), here, NO_CONSOLE, [other])
    assert not (folder / "out" / "counts").exists()


def test_a_tokenizer_that_gives_up_on_a_text_is_not_compared_on_it(
    folder: Path,
    here: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_build_vocab(recipe(folder, size=1200), here, NO_CONSOLE)
    other, console = folder / "out" / "vocab" / "tokenizer.json", RecordingConsole()

    def give_up(path: Path, texts: Any) -> Any:
        if path == other:
            raise Unencodable([0], "too hard")
        return measure_texts(path, texts)

    monkeypatch.setattr("pretok.vocab.measure.measure_texts", give_up)
    report = report_of(recipe(folder, "b", size=1200), here, console, [other])
    assert report["compare"][str(other)]["it"]["tokens"] is None
    assert report["compare"][str(other)][MIX]["tokens"] is None
    assert report["compare"]["this"]["it"]["tokens"] > 0
    assert f"{other} is not compared on it: 1 documents cannot be encoded: too hard" in console.notices


def test_sizes_are_those_trained_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def build(out: str, *options: str) -> int:
        inputs = f"it={folder / 'in' / 'it'}*"
        return run_command(["build-vocab", inputs, "--workers", "0", "--out", str(folder / out), *options])

    assert build("out", "--vocab-size", "800", "--sizes", "600,700") == 0
    vocab = folder / "out" / "vocab"
    assert sorted(path.name for path in vocab.iterdir() if path.is_dir()) == ["600", "700"]
    for size, place in ((600, vocab / "600"), (700, vocab / "700"), (800, vocab)):
        assert build(f"alone-{size}", "--vocab-size", str(size)) == 0
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            assert (place / name).read_bytes() == (folder / f"alone-{size}" / "vocab" / name).read_bytes()
    assert list(read_json(vocab / "report.json")["sizes"]) == ["800", "700", "600"]
    for options, message in (
        (("--vocab-size", "800"), r"sizes was [700, 600] and is []"),
        (("--sizes", "many"), "'many' is not a count"),
    ):
        assert build("out", *options) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_recipe_with_a_tokenizer_trains_none_over_it(tmp_path, vocab_dir, capsys):
    (tmp_path / "tok").mkdir()
    held = shutil.copy(vocab_dir / "tokenizer.json", tmp_path / "tok")
    (tmp_path / "r.toml").write_text(
        'out = "work"\n[sources.it]\ninputs = ["sample:it"]\n[vocab]\npath = "tok"\nsize = 600\n'
    )
    assert run_command(["build-vocab", str(tmp_path / "r.toml"), "--workers", "0"]) == 2
    assert "there is nothing to train" in " ".join(capsys.readouterr().err.split())
    assert Path(held).read_bytes() == (vocab_dir / "tokenizer.json").read_bytes()
    assert list((tmp_path / "tok").iterdir()) == [Path(held)]
