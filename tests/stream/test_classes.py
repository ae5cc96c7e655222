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
from pretok.audit.trace import Traced, passages, readings
from pretok.base.errors import IntegrityError, UsageError
from pretok.base.records import replace
from pretok.cli import run_command
from pretok.shards.manifest import load_manifest
from pretok.stream import View, same_until
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


@pytest.mark.parametrize("pack", ["none", "best-fit"])
def test_a_document_is_found_where_a_class_reads_it(shards: Path, tmp_path: Path, pack: str) -> None:
    """From its side, and from that of the positions."""
    stage = "3000:good=0.4,it=0.2,short=0.3,en=0.1"
    run_mix(
        shards, tmp_path / "mix.json", request(stage, seq_len=16, max_epochs=99, classes=CLASSES, pack=pack)
    )
    traced = Traced(pretok.stream.open(shards, tmp_path / "mix.json"), load_manifest(shards))
    there, back = set(), set()
    for position in range(len(traced.view)):
        ids = set(traced.view[position].tolist())
        for one in passages(traced, position):
            there.add((one.source, one.document, position, one.first, one.tokens))
            length = LENGTHS[one.source][one.document]
            number = one.document + 1 + (len(LENGTHS["en"]) if one.source == "it" else 0)
            assert number in ids or one.first == length
    for source, lengths in LENGTHS.items():
        for document in range(len(lengths)):
            found = readings(traced, source, "train", document)
            back |= {(source, document, one.position, one.first, one.tokens) for one in found}
    assert there == back


def test_other_members_are_another_stream(shards: Path, tmp_path: Path) -> None:
    for name, condition in (("one", CLASSES["good"]), ("other", "it where quality < 3")):
        wish = request("1600:good=1", seq_len=16, classes={"good": condition})
        run_mix(shards, tmp_path / f"{name}.json", wish)
    one, other = (load_mix(tmp_path / f"{name}.json") for name in ("one", "other"))
    assert same_until(one, other) == 0
    changed = replace(one.sources[0], tape="0" * 32)
    assert same_until(one, replace(one, sources=(changed, *one.sources[1:]))) == 0
    with pytest.raises(UsageError, match="which lies beside its mix: name the mix"):
        View(load_manifest(shards), one)


def test_a_mix_that_goes_on_keeps_its_classes(tmp_path: Path) -> None:
    """What came is divided by conditions that are said again, under the same names."""
    shards = write(tmp_path / "shards")
    table = {"seq_len": 16, "max_epochs": 99}
    run_mix(shards, tmp_path / "0.json", request("1600:good=1", classes=CLASSES, **table))
    since = shutil.copytree(shards, tmp_path / "since")
    make_shards(shards, {"it": [[999] * 30] * 9}, since=since, vocab_size=60_000)
    write_ledgers(shards, {name: [9] * (len(some) + 9) for name, some in LENGTHS.items()})
    after = beginning(load_manifest(shards), tmp_path / "0.json", 40)
    for classes, told in (
        ({}, "give the conditions of good, middle again"),
        (CLASSES | {"new": "it where quality > 0"}, "class new: .* it"),
        (CLASSES | {"good": "en where tokens > 1"}, "class good belongs to it"),
    ):
        wish = request("1600:good=1", after=after, classes=classes, **table)
        with pytest.raises(UsageError, match=told):
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
    report = run_mix(shards, tmp_path / "mix.json", wish)
    epochs = {name: round(one["epochs"], 1) for name, one in report.sources.items()}
    assert epochs == {"en": 1, "good": 3, "it": 1, "middle": 1, "short": 0.5}
    for table, told in (
        ({"repeat": {"good": 5}}, "more than max_epochs"),
        ({"repeat": {"good": 2}, "weights": {"good": 1}}, "repeat and weights exclude each other"),
        ({"repeat": {"fr": 2}}, "which the mix does not have"),
    ):
        with pytest.raises(UsageError, match=told):
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
    "fr where quality > 3": "fr is not a source",
    "it where qualty > 3": "class good: Referenced column .qualty. not found[^\\n]*\\n[^\\n]*\\nthe columns are",
    "it where quality > ": "class good",
    "it where quality": "not a condition",
    "it where quality = 'high'": "class good",
    "it where file > 3": "class good",
    "it where max(quality) > 3": "uses max",
    "it where random() > 0.5": "uses random",
    "it where quality > (select 3)": "uses another query",
    "it where row_number() over () > 3": "uses other documents",
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
    with pytest.raises(UsageError, match=WRONG.get(condition, "class en: en is a source itself")):
        run_mix(shards, tmp_path / "mix.json", request("all:natural", seq_len=64, classes=classes))
    assert not (tmp_path / "mix.json").exists()
    assert not list(tmp_path.glob(f"{FOLDER}/*.side"))


@pytest.mark.parametrize("how", ["missing", "cut", "damaged", "of another mix"])
def test_a_side_file_that_is_not_that_of_the_mix_is_named(shards: Path, tmp_path: Path, how: str) -> None:
    run_mix(shards, tmp_path / "mix.json", request("1600:good=1", seq_len=16, classes=CLASSES))
    digest = load_mix(tmp_path / "mix.json").sources[0].tape
    (path,) = tmp_path.rglob(f"{digest}.side")
    other = next(one for one in tmp_path.rglob("*.side") if one != path)
    data = path.read_bytes()
    changed = {"cut": data[:-9], "damaged": b"x" + data[1:], "of another mix": other.read_bytes()}
    path.unlink()
    if how in changed:
        path.write_bytes(changed[how])
    with pytest.raises(IntegrityError, match=digest):
        pretok.stream.open(shards, tmp_path / "mix.json")[0]


def test_the_commands(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a mix by classes, or a packed one, an export says what it does not keep."""
    mix, packed = str(tmp_path / "mix.json"), str(tmp_path / "packed.json")
    line = [
        "mix",
        str(shards),
        "--seq-len",
        "16",
        "--weights",
        "good=1",
        "--class",
        f"good={CLASSES['good']}",
    ]
    assert run_command(line) == 0
    assert not (shards.parent / "mix.json").exists()
    assert run_command([*line, "--out", mix]) == 0
    assert load_mix(Path(mix)).sources[1].of == "it"
    assert run_command(["mix", str(shards), "--seq-len", "16", "--pack", "best-fit", "--out", packed]) == 0
    export = ["export", str(shards), "--to", "megatron", "--mix"]
    for command, code, words in (
        ([*line, "--class", "good", "--out", mix], 2, ("write NAME=",)),
        ([*export, mix], 2, ("weighs classes (good)", "--materialize")),
        ([*export, packed], 0, ("warning: megatron cuts the documents by itself",)),
    ):
        capsys.readouterr()
        assert run_command(command) == code
        told = capsys.readouterr()
        assert all(word in told.err for word in words), told.err
        assert bool(told.out) == (code == 0)
