"""The benchmarks run, on a corpus of kilobytes whose figures mean nothing: three of them had rotted unseen."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest
import zstandard
from counting import write_lines
from support import needs

import benchmarks
from benchmarks.chats import run as measure_chats
from benchmarks.files import write_files
from benchmarks.inputs import Inputs, prepare, texts_of
from benchmarks.measure import load_results
from benchmarks.parts import PARTS, run_parts
from benchmarks.report import markdown
from benchmarks.words import widen
from pretok.cli import run_command
from pretok.counts.buckets import concatenate, read_group
from pretok.counts.counts_file import load_counts

NAMES = sorted(
    module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__"
)


@pytest.fixture
def inputs(
    tmp_path: Path, sample_texts: dict[str, list[str]], vocab_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Inputs:
    """All that is derived from a corpus of the embedded sample."""
    corpus = tmp_path / "corpus"
    for language, texts in sample_texts.items():
        write_lines(plain := tmp_path / f"{language}.jsonl", texts)
        (corpus / language).mkdir(parents=True)
        (corpus / language / f"{language}.jsonl.zst").write_bytes(zstandard.compress(plain.read_bytes()))
    monkeypatch.setenv("PRETOK_CORPUS", str(corpus))
    return prepare(tmp_path / "work", vocab_dir)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_imported(name: str) -> None:
    needs("torch")
    importlib.import_module(f"benchmarks.{name}")


def test_the_inputs_hold_the_corpus(inputs: Inputs, sample_texts: dict[str, list[str]]) -> None:
    every = sample_texts["it"] + sample_texts["en"]
    assert inputs.text_bytes == sum(len(text.encode()) for text in every)
    assert texts_of(inputs.single) == every
    grown = [texts_of(Path(path)) for path in inputs.grown(2)["it"]]
    assert [len(texts) for texts in grown] == [len(sample_texts["it"])] * 2
    assert sorted(map(len, grown[0])) == sorted(map(len, grown[1]))
    assert grown[0] != grown[1]
    write_files(inputs.slices, inputs.folder / "small", 10)
    assert len(list((inputs.folder / "small").rglob("*.jsonl"))) == 10
    write_files(inputs.slices, inputs.folder / "short", 10, short=True)
    [short] = {len(path.read_bytes().splitlines()) for path in (inputs.folder / "short").rglob("*.jsonl")}
    assert short == 3


def test_the_parts_are_measured(inputs: Inputs) -> None:
    paths = [path for found in inputs.zst.values() for path in found]
    seconds = run_parts(paths, inputs.vocab / "tokenizer.json", inputs.folder / "parts.bin")
    assert seconds.pop("bytes") == inputs.text_bytes
    assert set(seconds) == set(PARTS)
    assert min(seconds.values()) > 0


def test_words_are_joined_of_halves(inputs: Inputs) -> None:
    sources = [f"{name}={path}" for name, paths in inputs.zst.items() for path in paths]
    assert run_command(["count", *sources, "--workers", "0", "--out", str(inputs.folder / "counted")]) == 0
    widen(inputs.folder / "counted" / "counts", inputs.folder / "wide", 9000)
    counts = load_counts(inputs.folder / "wide")
    for source in range(len(counts.sources)):
        found = concatenate([read_group(path, source) for path in counts.buckets])
        words = found.words().to_pylist()
        assert len(set(words)) == len(words) == 9000
        assert all(word.decode() for word in words)


def test_the_tables_are_those_of_the_results() -> None:
    """The report is made of results.json, and nobody edited it by hand."""
    assert Path(benchmarks.__path__[0], "results.md").read_text(encoding="utf-8") == markdown(load_results())


def test_conversations_and_plain_text_are_measured(sample_texts: dict[str, list[str]]) -> None:
    found = measure_chats("".join(sample_texts["en"])[:60_000])
    assert found.keys() >= {"chat / plain", "encode chat / plain"}
    assert all(value > 0 for value in found.values())
