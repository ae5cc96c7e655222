"""Classes of documents in a mix: conditions that are no conditions, files that are not the mix's, and what goes on.
What the positions of such a mix hold is in test_model.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from mixing import request, write_ledgers
from support import make_shards

import pretok.stream
from pretok.base.errors import IntegrityError, UsageError
from pretok.shards.manifest import load_manifest
from pretok.stream import same_until
from pretok.stream.continued import beginning
from pretok.stream.mix_file import load_mix
from pretok.stream.mix_job import run_mix
from pretok.stream.tapes import FOLDER

CLASSES = {
    "good": "it where quality >= 7",
    "middle": "it where quality >= 3 and quality < 7 and tokens > 4",
    "short": "en where tokens <= 6",
}
LENGTHS = {"en": [1, 4, 90, 2, 5, 40, 3] * 40, "it": [30, 1, 0, 5, 25, 33, 4, 6, 12] * 40}
Qualities = dict[str, list[int | None]]


def write(folder: Path) -> Path:
    """Shards with ledgers; every token says which document it is of. The quality of a document may be None."""
    rng = np.random.default_rng(1)
    documents, quality, number = {}, Qualities(), 1
    for source, lengths in LENGTHS.items():
        documents[source] = [[number + n] * length for n, length in enumerate(lengths)]
        quality[source] = [None if n == 9 else int(n) for n in rng.integers(0, 10, len(lengths))]
        number += len(lengths)
    make_shards(folder, documents, documents_per_shard=95, vocab_size=60_000)
    write_ledgers(folder, quality)
    return folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("classes") / "shards")


def test_a_mix_that_goes_on_keeps_its_classes(tmp_path: Path) -> None:
    """What came is divided by conditions that are said again, under the same names."""
    shards = write(tmp_path / "shards")
    table = {"seq_len": 16, "max_epochs": 99}
    run_mix(shards, tmp_path / "0.json", request("1600:good=1", classes=CLASSES, **table))
    since = shutil.copytree(shards, tmp_path / "since")
    make_shards(shards, {"it": [[999] * 30] * 9}, since=since, vocab_size=60_000)
    write_ledgers(shards, {name: [9] * (len(some) + 9) for name, some in LENGTHS.items()})
    after = beginning(load_manifest(shards), tmp_path / "0.json", 40)
    for classes, message in (
        ({}, "divides it into good, middle, .* give the condition of each"),
        (CLASSES | {"new": "it where quality > 0"}, "divides it into good, middle"),
        (CLASSES | {"good": "en where tokens > 1"}, "class good: it must have a name of its own"),
    ):
        wish = request("1600:good=1", after=after, classes=classes, **table)
        with pytest.raises(UsageError, match=message):
            run_mix(shards, tmp_path / "no.json", wish)
    wish = request("1600:good=1", after=after, classes=CLASSES, **table)
    with pytest.raises(IntegrityError, match=f"missing.*{FOLDER}"):
        run_mix(shards, tmp_path / "elsewhere" / "1.json", wish)
    run_mix(shards, tmp_path / "1.json", wish)
    view = pretok.stream.open(shards, tmp_path / "1.json")
    assert (view[40:] == 999).sum() > 0
    assert same_until(load_mix(tmp_path / "0.json"), view.mix) == 40


def test_repeat_is_a_weight(shards: Path, tmp_path: Path) -> None:
    wish = request(seq_len=16, classes=CLASSES, repeat={"good": 3, "short": "1/2"})
    sources = run_mix(shards, tmp_path / "mix.json", wish).sources
    assert [round(one["epochs"], 1) for one in sources.values()] == [1, 3, 1, 1, 0.5]
    for table, message in (
        ({"repeat": {"good": 5}}, "more than max_epochs"),
        ({"repeat": {"good": 2}, "weights": {"good": 1}}, "repeat and weights exclude each other"),
        ({"repeat": {"fr": 2}}, "which the mix does not have"),
    ):
        with pytest.raises(UsageError, match=message):
            run_mix(shards, tmp_path / "no.json", request(seq_len=16, classes=CLASSES, **table))


def test_a_split_has_the_columns_of_its_source(tmp_path: Path) -> None:
    """Also where it has no document of the source."""
    some = {"en": [[n] * 9 for n in range(1, 30)], "it": [[n] * 9 for n in range(30, 90)]}
    shards = make_shards(tmp_path / "shards", some, val={"en": some["en"]})
    write_ledgers(shards, {"en": [7] * 58, "it": [7] * 60})
    wish = request(split="val", seq_len=8, classes={"good": "it where quality >= 7"})
    with pytest.raises(UsageError, match="good has 0 documents with 0 tokens"):
        run_mix(shards, tmp_path / "no.json", wish)


WRONG = {
    "quality > 3": "SOURCE where CONDITION",
    "fr where quality > 3": "fr must be a source",
    "it where qualty > 3": "class good: Referenced column .qualty. not found[^\\n]*\\n[^\\n]*\\nthe columns are",
    "it where quality > ": "class good",
    "it where quality": "not a condition",
    "it where quality = 'high'": "class good",
    "it where file > 3": "class good",
    "it where max(quality) > 3": "aggregate functions are not allowed",
    "it where random() > 0.5": "side effects",
    "it where quality > (select 3)": "cannot use subquery",
    "it where row_number() over () > 3": "window functions are not allowed",
    "it where exists (from 'x.csv')": "class good",
    "it where quality > 100": "good has 0 documents",
    "it where doc = 1": "less than one sequence",
    "it where quality < 7": "middle and good overlap",
}


@pytest.mark.parametrize("condition", [*WRONG, ""])
def test_what_is_wrong_with_a_class_is_said_and_nothing_stands(
    shards: Path, tmp_path: Path, condition: str
) -> None:
    classes = {"middle": CLASSES["middle"], "good": condition} if condition else {"en": CLASSES["good"]}
    with pytest.raises(UsageError, match=WRONG.get(condition, "class en: it must have a name of its own")):
        run_mix(shards, tmp_path / "mix.json", request("all:natural", seq_len=64, classes=classes))
    assert not (tmp_path / "mix.json").exists()
    assert not list(tmp_path.glob(f"{FOLDER}/*.side"))
