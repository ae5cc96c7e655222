"""build-vocab: the merges of the reference, whatever happens on the way, and a report that agrees with the text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from counting import Killer, contents, documents, recipe
from support import needs
from telling import Told
from tokenizers import Tokenizer
from tokenizing import trained_model

from pretok.base.console import SILENT, Console, Silent
from pretok.base.errors import MismatchError, PartitionsFailed, Stopped, UsageError
from pretok.base.execute import Engine
from pretok.base.records import read_record, to_json
from pretok.base.storage import read_json
from pretok.cli import run_command
from pretok.config import Recipe
from pretok.counts.buckets import concatenate
from pretok.counts.job import run_count
from pretok.counts.weigh import weigh
from pretok.kernels.pretokenize import PATTERNS
from pretok.tokenizer.reference import Unencodable
from pretok.tokenizer.tokenizer_file import to_bytes
from pretok.tokenizer.vocabulary import load_vocab
from pretok.vocab.bpe import buffer_of, train_merges
from pretok.vocab.job import refuse_short, run_build_vocab
from pretok.vocab.measure import measure_texts
from pretok.vocab.records import MIX, VocabReport

pytestmark = pytest.mark.usefixtures("few_buckets")
SPECIAL = ["<|endoftext|>", "<|pad|>", *(f"<|reserved_{i}|>" for i in range(62))]


def report_of(
    made: Recipe, engine: Engine, console: Console = SILENT, compare: Sequence[Path] = ()
) -> dict[str, Any]:
    """The report as it stands in the file."""
    report = run_build_vocab(made, engine, console, compare)
    found: dict[str, Any] = read_json(made.vocab_dir / "report.json")
    assert found == to_json(report)
    return found


def reference(texts: list[str], pattern: str, size: int) -> dict[str, Any]:
    return trained_model(texts, pattern, SPECIAL, vocab_size=size)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_vocabulary_is_that_of_the_reference(folder: Path, here: Engine, pattern: str) -> None:
    run_build_vocab(recipe(folder, holdout="0", pattern=pattern, size=3000), here, Silent())
    model = json.loads((folder / "out" / "vocab" / "tokenizer.json").read_text())["model"]
    expected = reference(documents(folder, "it") + documents(folder, "en"), pattern, 3000)
    assert model["merges"] == expected["merges"]
    assert model["vocab"] == expected["vocab"]
    assert len(model["vocab"]) == 3000


def test_compiled_or_not_the_bytes_are_the_same(
    folder: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_build_vocab(recipe(folder, "plain", size=3000), here, Silent())
    monkeypatch.setattr("pretok.kernels.compile.FEW", -1)
    run_build_vocab(recipe(folder, "compiled", size=3000), here, Silent())
    plain, compiled = (
        {
            path.relative_to(out): path.read_bytes()
            for part in ("counts", "vocab")
            for path in out.glob(f"{part}/*.*")
        }
        for out in (folder / "plain", folder / "compiled")
    )
    assert len(plain) > 5
    assert [str(path) for path in plain | compiled if plain.get(path) != compiled.get(path)] == []


def test_weighted_counts_train_as_repeated_text_does(folder: Path, here: Engine) -> None:
    counts = run_count(recipe(folder, holdout="0"), here, Silent())
    words = concatenate([part for part, _ in weigh(counts.buckets, {"it": 3, "en": 1}, 1)])
    buffer = buffer_of(words.data, words.offsets, words.counts)
    merges = train_merges(buffer, vocab_size=2000, special_tokens=len(SPECIAL))
    made = [(merges.tokens[left], merges.tokens[right]) for left, right in merges.pairs.tolist()]
    texts = documents(folder, "it") * 3 + documents(folder, "en")
    expected = reference(texts, "cl100k", 2000)["merges"]
    assert made == [(to_bytes(left), to_bytes(right)) for left, right in expected]


def test_weights_change_the_vocabulary(folder: Path, here: Engine) -> None:
    plain = report_of(recipe(folder, size=1200), here)
    weighted = report_of(recipe(folder, "w", size=1200, weights={"it": "0.02", "en": "0.98"}), here)
    assert weighted["sources"]["en"]["weight"] == 0.98
    tokens = [made["sizes"]["1200"]["text"]["en"]["tokens"] for made in (weighted, plain)]
    assert tokens[0] < tokens[1]


def test_the_report_agrees_with_the_texts(folder: Path, here: Engine) -> None:
    report = report_of(recipe(folder, size=1200), here)
    counts = run_count(recipe(folder, size=1200), here, Silent())
    tokenizer = Tokenizer.from_file(str(folder / "out" / "vocab" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    for source in ("it", "en"):
        texts = documents(folder, source)
        heldout = counts.heldout_texts(source).to_pylist()
        tokens = sum(len(tokenizer.encode(text).ids) for text in heldout)
        row = report["compare"]["this"][source]
        assert (row["tokens"], row["bytes"]) == (tokens, sum(len(text.encode()) for text in heldout))
        row = report["sizes"]["1200"]["text"][source]
        assert row["tokens"] == sum(len(tokenizer.encode(text).ids) for text in texts) - tokens
        assert report["sources"][source]["heldout_documents"] == len(heldout)
    assert report["words"]["dropped"] == 0


@pytest.mark.parametrize("steps", [2, 14, 20, 27])
def test_a_stopped_job_continues_to_the_same_bytes(folder: Path, here: Engine, steps: int) -> None:
    run_build_vocab(recipe(folder, size=1200), here, Silent())
    with pytest.raises(Stopped):
        run_build_vocab(recipe(folder, "killed", size=1200), Killer(steps), Silent())
    run_build_vocab(recipe(folder, "killed", size=1200), here, Silent())
    for part in ("vocab", "counts"):
        assert contents(folder / "killed" / part) == contents(folder / "out" / part)


def test_what_is_made_is_kept_and_other_settings_are_refused(folder: Path, here: Engine) -> None:
    first = run_build_vocab(recipe(folder, size=1200), here, Silent())
    (left := folder / "out" / "vocab" / ".state").mkdir()  # by a kill that came while it was deleted
    assert run_build_vocab(recipe(folder, size=1200), Killer(0), Silent()) == first
    assert not left.exists()
    with pytest.raises(MismatchError, match=r"size was 1200 and is 1300"):
        run_build_vocab(recipe(folder, size=1300), here, Silent())


def test_counts_alone_are_enough(folder: Path, here: Engine) -> None:
    run_build_vocab(recipe(folder, size=1200), here, Silent())
    counts = run_count(recipe(folder, size=1200), here, Silent())
    for path in (folder / "in").iterdir():
        path.unlink()
    run_build_vocab(recipe(folder, "again", size=1200), here, Silent(), counts=counts)
    name = "tokenizer.json"
    assert (folder / "again" / "vocab" / name).read_bytes() == (folder / "out" / "vocab" / name).read_bytes()


def test_another_vocabulary_in_the_place_of_one_is_measured_anew(folder: Path, here: Engine) -> None:
    for size in (400, 1200):
        shutil.rmtree(folder / "out" / "vocab", ignore_errors=True)
        report = report_of(recipe(folder, size=size), here)
        assert report["vocabulary"]["size"] == size


def test_fewer_merges_than_asked_for(folder: Path, here: Engine) -> None:
    asked = recipe(folder, holdout="0", size=60_000)
    report = report_of(asked, here)
    size = report["vocabulary"]["size"]
    assert size < 60_000
    expected = reference(documents(folder, "it") + documents(folder, "en"), "cl100k", 60_000)
    model = json.loads((folder / "out" / "vocab" / "tokenizer.json").read_text())["model"]
    assert model["merges"] == expected["merges"]
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
    monkeypatch.setattr("pretok.vocab.job.free_memory", lambda: 1000)
    with pytest.raises(UsageError) as error:
        run_build_vocab(recipe(folder, size=600), here, SILENT)
    monkeypatch.undo()
    all_words = report_of(recipe(folder, size=600), here)["words"]
    fewer = report_of(recipe(folder, size=600, out="fewer", min_count=2), here)["words"]
    assert str(error.value).startswith(f"merging {all_words['distinct']:,} distinct words of ")
    left = fewer["distinct"] - fewer["dropped"]
    assert (
        f"1 kB are free here: min_count = 2 under [vocab] of a recipe leaves {left:,} of them, for "
        in str(error.value)
    )
    assert 0 < left < all_words["distinct"]


def test_both_libraries_open_the_folder(folder: Path, here: Engine) -> None:
    transformers = needs("transformers")
    run_build_vocab(recipe(folder, size=1200), here, Silent())
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
        ({"size": 300}, "no room for 64 special tokens and 256 bytes"),
        ({"size": 900, "sizes": (319, 1000)}, "sizes: 319, 1000 is not from 320, .* to 900"),
        ({"special_tokens": ("<|a|>", "<|a|>")}, "different from each other"),
        ({"special_tokens": ("<|a|>",), "eod": "<|b|>"}, "vocab.eod needs path or extend"),
        ({"special_tokens": ("<|a|>", "EOS")}, "'EOS' is one word"),
    ],
)
def test_impossible_settings_are_refused(
    folder: Path,
    here: Engine,
    settings: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(UsageError, match=message):
        run_build_vocab(recipe(folder, **settings), here, Silent())


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
    assert report["vocabulary"]["size"] == 800
    rows = report["compare"]
    assert rows[other]["it"]["tokens"] < rows["this"]["it"]["tokens"]


def test_what_cannot_be_compared_is_refused_before_the_work(folder: Path, here: Engine) -> None:
    other = folder / "tokenizer.json"
    other.write_text('{"model": {"type": "WordPiece"}}')
    with pytest.raises(UsageError, match=r"tokenizer\.json is not a byte-level BPE tokenizer but WordPiece"):
        run_build_vocab(recipe(folder, size=1200), here, Silent(), [other])
    assert not (folder / "out" / "counts").exists()


def test_a_tokenizer_that_gives_up_on_a_text_is_not_compared_on_it(
    folder: Path,
    here: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = (
        run_build_vocab(recipe(folder, size=1200), here, Silent())
        and folder / "out" / "vocab" / "tokenizer.json"
    )
    told = Told()
    measure = measure_texts

    def give_up(path: Path, texts: Any) -> Any:
        if path == other:
            raise Unencodable([0], "too hard")
        return measure(path, texts)

    monkeypatch.setattr("pretok.vocab.measure.measure_texts", give_up)
    report = report_of(recipe(folder, "b", size=1200), here, told, [other])
    assert report["compare"][str(other)]["it"]["tokens"] is None
    assert report["compare"][str(other)][MIX]["tokens"] is None
    assert report["compare"]["this"]["it"]["tokens"] > 0
    assert f"{other} is not compared on it: 1 documents cannot be encoded: too hard" in told.notices


@pytest.mark.slow
def test_nested_sizes_are_those_trained_alone(folder: Path, here: Engine) -> None:
    report = report_of(recipe(folder, size=1200, sizes=(700, 950, 1200)), here)
    vocab = folder / "out" / "vocab"
    assert sorted(path.name for path in vocab.iterdir() if path.is_dir()) == ["700", "950"]
    assert list(report["sizes"]) == ["1200", "950", "700"]
    merges = {}
    for size, place in ((700, vocab / "700"), (950, vocab / "950"), (1200, vocab)):
        run_build_vocab(recipe(folder, f"alone-{size}", size=size), here, Silent())
        assert contents(place).keys() >= {
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
        }
        alone = folder / f"alone-{size}" / "vocab"
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            assert (place / name).read_bytes() == (alone / name).read_bytes()
        assert load_vocab(place).size == size
        merges[size] = json.loads((place / "tokenizer.json").read_text())["model"]["merges"]
    assert merges[950][: len(merges[700])] == merges[700]
    assert merges[1200][: len(merges[950])] == merges[950]
    assert report_of(recipe(folder, size=1200, sizes=(950, 700)), here) == report
    with pytest.raises(MismatchError, match=r"sizes was \[950, 700\] and is \[\]"):
        run_build_vocab(recipe(folder, size=1200), here, Silent())


def test_the_option_for_several_sizes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["build-vocab", f"it={folder / 'in' / 'it'}*", "--workers", "0", "--out", str(folder / "out")]
    assert run_command([*command, "--sizes", "800,600"]) == 0
    assert load_vocab(folder / "out" / "vocab").size == 800
    assert load_vocab(folder / "out" / "vocab" / "600").size == 600
    assert run_command([*command, "--sizes", "800,600", "--vocab-size", "800"]) == 2
    assert "leave out --vocab-size" in capsys.readouterr().err
    assert run_command([*command, "--sizes", "8k"]) == 2
    assert "cannot read --sizes 8k" in capsys.readouterr().err


def test_a_recipe_with_a_tokenizer_trains_none_over_it(tmp_path, vocab_dir, capsys):
    (tmp_path / "tok").mkdir()
    held = shutil.copy(vocab_dir / "tokenizer.json", tmp_path / "tok")
    (tmp_path / "r.toml").write_text(
        'out = "work"\n[sources.it]\ninputs = ["sample:it"]\n[vocab]\npath = "tok"\nsize = 600\n'
    )
    assert run_command(["build-vocab", str(tmp_path / "r.toml"), "--workers", "0"]) == 2
    assert "nothing is to be trained" in " ".join(capsys.readouterr().err.split())
    assert Path(held).read_bytes() == (vocab_dir / "tokenizer.json").read_bytes()
    assert list((tmp_path / "tok").iterdir()) == [Path(held)]
