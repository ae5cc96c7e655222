"""The benchmarks run, on a corpus of kilobytes whose figures mean nothing: three of them had rotted unseen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard
from counting import write_lines
from support import needs

from benchmarks.__main__ import TITLES, report
from benchmarks.inputs import Inputs
from benchmarks.measure import RESULTS, load_results

PACKAGES = {"remote": "s3fs", **dict.fromkeys(("object_store", "loader", "train_ranks", "start"), "torch")}
FEWER: dict[str, dict[str, object]] = {
    "object_store": {"RATES": (10_000_000,), "LATENCIES": (0.02,)},
    "plain": {"COPIES": (1,), "BAD": {"text null": b'{"text": null}'}},
}
"""Constants of a benchmark -> fewer cases, each of which starts processes."""
QUICK = {"parts", "packing", "chats", "certificate", "train_ranks"}


@pytest.fixture(scope="module")
def inputs(
    tmp_path_factory: pytest.TempPathFactory, sample_texts: dict[str, list[str]], vocab_dir: Path
) -> Iterator[Inputs]:
    """A corpus of the embedded sample, for all benchmarks of a session."""
    corpus = tmp_path_factory.mktemp("corpus")
    for language, texts in sample_texts.items():
        write_lines(plain := corpus / f"{language}.jsonl", texts)
        (corpus / language).mkdir()
        (corpus / language / "all.jsonl.zst").write_bytes(zstandard.compress(plain.read_bytes()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRETOK_CORPUS", str(corpus))
        yield Inputs(tmp_path_factory.mktemp("work"), vocab_dir, scale=0.002, runs=1)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in TITLES]
)
def test_a_benchmark_runs(name: str, inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(PACKAGES.get(name, "pyarrow"))
    module = import_module(f"benchmarks.{name}")
    for constant, fewer in FEWER.get(name, {}).items():
        assert type(fewer) is type(getattr(module, constant))
        monkeypatch.setattr(module, constant, fewer)
    table = module.measure(inputs)
    assert len(table) >= 2
    for row in table.values():
        assert all(math.isfinite(value) for value in row.values())
        assert any(row.values())  # a difference of two starts may be below zero for kilobytes


def test_the_page_is_made_of_the_results() -> None:
    """Nobody edited it by hand."""
    assert RESULTS.with_suffix(".md").read_text(encoding="utf-8") == report(load_results())


def test_the_points_of_vocabularies_give_the_quoted_differences() -> None:
    """docs/vocabulary.md quotes them."""
    needs("torch")
    arms = import_module("benchmarks.arms")
    table = arms.table(pq.read_table(arms.POINTS).to_pylist())
    found = {name.split(",")[0]: row for name, row in table.items()}
    for name, difference, error in (("plain-2k", -0.133, 0.090), ("plain-8k", 0.089, 0.086)):
        assert (round(found[name]["difference"], 3), round(found[name]["+-"], 3)) == (difference, error)


@pytest.mark.parametrize("script", ["learning_curve", "train_gpu"])
def test_a_script_can_be_imported(script: str) -> None:
    needs("torch")
    import_module(f"benchmarks.{script}")
