"""What every job begins with: for which inputs workers load before the plan says how much there is to do."""

from __future__ import annotations

import pytest

from pretok import session
from pretok.config import make_recipe
from pretok.session import start_engine

CASES = {
    "a small file": (["a.jsonl"], None, False),
    "a sample": (["sample:it", "a.jsonl"], None, False),
    "a file that is as large as all small ones": (["b.jsonl"], None, True),
    "two that are together": (["a.jsonl", "c.jsonl"], None, True),
    "a glob": (["a*.jsonl"], None, True),
    "a folder": (["."], None, True),
    "a URL": (["s3://bucket/a.jsonl"], None, True),
    "a small file, but workers": (["a.jsonl"], 2, True),
    "no workers": (["b.jsonl"], 0, False),
}


@pytest.mark.parametrize(("inputs", "workers", "early"), CASES.values(), ids=CASES)
def test_workers_load_early_unless_the_inputs_are_small(tmp_path, monkeypatch, inputs, workers, early):
    monkeypatch.setattr(session, "TINY", 1000)
    monkeypatch.setattr("pretok.base.execute._cpus", lambda: 2)
    monkeypatch.chdir(tmp_path)
    for name, size in (("a", 500), ("b", 1000), ("c", 500)):
        (tmp_path / f"{name}.jsonl").write_text("x" * size)
    recipe = make_recipe({"out": tmp_path / "work", "sources": {"it": {"inputs": inputs}}}, "test")
    with start_engine(workers, None, "json", recipe) as engine:
        assert (engine._workers is not None) == early
