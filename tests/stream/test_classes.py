"""A mix of classes reads what a plain list of their documents says, and the readers find each document again."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mixing import request, write_ledgers, write_segment
from support import EOD, make_shards
from tokenizing import contents

import pretok.stream
from pretok.audit.trace import Traced, passages, readings
from pretok.base.console import Silent
from pretok.base.errors import IntegrityError, UsageError
from pretok.base.execute import Engine
from pretok.base.records import replace
from pretok.cli import run_command
from pretok.disclosure.read import read_mix
from pretok.shards.manifest import load_manifest
from pretok.stream import audit, same_until
from pretok.stream.continued import beginning
from pretok.stream.materialize import run_materialize
from pretok.stream.mix_file import load_mix
from pretok.stream.mix_job import run_mix
from pretok.stream.segments import open_segments, written_segments
from pretok.stream.tapes import FOLDER

CLASSES = {
    "good": "it where quality >= 7",
    "middle": "it where quality >= 3 and quality < 7 and tokens > 4",
    "short": "en where tokens <= 6",
}
Documents = dict[str, list[list[int]]]


def make(
    folder: Path, lengths: dict[str, list[int]], seed: int
) -> tuple[Path, Documents, dict[str, list[int | None]]]:
    """Shards with ledgers; every token says which document it is of. quality: of each document, None now and then."""
    rng = np.random.default_rng(seed)
    documents, quality, number = {}, {}, 1
    for source, some in lengths.items():
        documents[source] = [[number + n] * length for n, length in enumerate(some)]
        quality[source] = [None if n == 9 else int(n) for n in rng.integers(0, 10, len(some))]
        number += len(some)
    make_shards(
        folder / "shards", documents, documents_per_shard=int(rng.integers(1, 200)), vocab_size=60_000
    )
    write_ledgers(folder / "shards", quality)
    return folder / "shards", documents, quality


LENGTHS = {"en": [1, 4, 90, 2, 5, 40, 3] * 40, "it": [30, 1, 0, 5, 25, 33, 4, 6, 12] * 40}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Documents, dict[str, list[int | None]]]:
    return make(tmp_path_factory.mktemp("classes"), LENGTHS, 1)


@pytest.mark.parametrize("pack", ["none", "best-fit"])
def test_every_document_is_found_where_it_is_read(
    made: tuple[Path, Documents, dict[str, list[int | None]]], pack: str
) -> None:
    shards, documents, _ = made
    path = shards.parent / f"found-{pack}.json"
    stage = "9000:good=0.4,it=0.2,short=0.3,en=0.1"
    run_mix(shards, path, request(stage, seq_len=16, max_epochs=99, classes=CLASSES, pack=pack))
    view, manifest = pretok.stream.open(shards, path), load_manifest(shards)
    traced = Traced(view, manifest)
    expected: dict[int, dict[int, int]] = defaultdict(dict)
    for position in range(len(view)):
        ids, counts = np.unique(view[position], return_counts=True)
        expected[position] = dict(zip(ids.tolist(), counts.tolist(), strict=True))
        back: dict[int, int] = defaultdict(int)
        for passage in passages(traced, position):
            tokens = [*documents[passage.source][passage.document], EOD]
            for token in tokens[passage.first : passage.first + passage.tokens]:
                back[token] += 1
        back[EOD] += 17 - _tokens(view, position)
        assert +Counter(back) == expected[position]
    read = slice(None, -1 if pack == "none" else None)  # the last token of a cut sequence is only predicted
    inputs = np.bincount(np.concatenate([view[p][read] for p in range(len(view))]), minlength=60_000)
    reading = read_mix(manifest, path).sources
    for source, some in documents.items():
        bounds = np.cumsum([0, *(len(document) + 1 for document in some)])
        disclosed = reading[source].tokens(bounds, 0)
        for number, document in enumerate(some[:60]):
            found = {
                r.position: min(r.first + r.tokens, len(document)) - r.first
                for r in readings(traced, source, "train", number)
                if r.first < len(document)
            }
            assert found == {p: c[document[0]] for p, c in expected.items() if document and document[0] in c}
            if document:
                assert 0 <= disclosed[number] - inputs[document[0]] <= inputs[EOD]
        assert reading[source].sequences == sum(
            view.prefix_counts(len(view))[n] for n in audit.entries_of(view, source)
        )
    assert sum(
        reading[s].tokens(np.cumsum([0, *(len(d) + 1 for d in documents[s])]), 0).sum() for s in documents
    ) == sum(_tokens(view, p) - (pack == "none") for p in range(len(view)))


def _tokens(view: pretok.stream.View, position: int) -> int:
    """Those that are of documents."""
    return sum(tokens for *_, tokens in audit.pieces(view, position))


def test_other_members_are_another_stream(
    made: tuple[Path, Documents, dict[str, list[int | None]]], tmp_path: Path
) -> None:
    shards, *_ = made
    wish = request("1600:good=1", seq_len=16, classes=CLASSES)
    run_mix(shards, tmp_path / "mix.json", wish)
    run_mix(shards, tmp_path / "mix.json", request("1600:good=1", seq_len=16, classes=CLASSES))
    run_mix(
        shards,
        tmp_path / "swapped.json",
        request("1600:good=1", seq_len=16, classes={"good": "it where quality < 3"}),
    )
    one, other = (load_mix(tmp_path / name) for name in ("mix.json", "swapped.json"))
    assert same_until(one, other) == 0
    entry = one.sources[0]
    like = replace(one, sources=(replace(entry, tape="0" * 32), *one.sources[1:]))
    assert same_until(one, like) == 0 != same_until(one, load_mix(tmp_path / "mix.json"))


def test_a_mix_that_goes_on_keeps_its_classes(tmp_path: Path) -> None:
    """What came is divided by conditions that are said again, under the same names."""
    shards, documents, _ = make(tmp_path, LENGTHS, 2)
    table = {"seq_len": 16, "max_epochs": 99}
    run_mix(shards, tmp_path / "0.json", request("1600:good=1", classes=CLASSES, **table))
    since = shutil.copytree(shards, tmp_path / "since")
    make_shards(shards, {"it": [[999] * 30] * 9}, since=since, vocab_size=60_000)
    write_ledgers(shards, {name: [9] * (len(some) + 9) for name, some in documents.items()})
    after = beginning(load_manifest(shards), tmp_path / "0.json", 40)
    for classes, told in (
        ({}, "give the conditions of good, middle again"),
        (CLASSES | {"new": "it where quality > 0"}, "class new: .* it"),
        (CLASSES | {"good": "en where tokens > 1"}, "class good belongs to it"),
    ):
        with pytest.raises(UsageError, match=told):
            run_mix(
                shards, tmp_path / "no.json", request("1600:good=1", after=after, classes=classes, **table)
            )
    wish = request("1600:good=1", after=after, classes=CLASSES, **table)
    with pytest.raises(IntegrityError, match=f"missing.*{FOLDER}"):
        run_mix(shards, tmp_path / "elsewhere" / "1.json", wish)
    run_mix(shards, tmp_path / "1.json", wish)
    view = pretok.stream.open(shards, tmp_path / "1.json")
    assert (view[40:] == 999).sum() > 0
    assert same_until(load_mix(tmp_path / "0.json"), view.mix) == 40


def test_an_export_of_classes_is_refused_by_name(
    made: tuple[Path, Documents, dict[str, list[int | None]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(tmp_path / "mix.json")
    run_mix(made[0], Path(path), request("1600:good=1", seq_len=16, max_epochs=99, classes=CLASSES))
    assert run_command(["export", str(made[0]), "--mix", path, "--to", "megatron"]) == 2
    told = capsys.readouterr()
    assert "weighs classes (good)" in told.err
    assert "--materialize" in told.err
    assert not told.out


def test_repeat_is_a_weight(
    made: tuple[Path, Documents, dict[str, list[int | None]]], tmp_path: Path
) -> None:
    shards, *_ = made
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
    classes = {"good": "it where quality >= 7"}
    with pytest.raises(UsageError, match="good has 0 documents with 0 tokens"):
        run_mix(shards, tmp_path / "no.json", request(split="val", seq_len=8, classes=classes))


@pytest.mark.parametrize(
    ("classes", "told"),
    [
        ({"good": "quality > 3"}, "SOURCE where CONDITION"),
        ({"good": "fr where quality > 3"}, "fr is not a source"),
        ({"en": "it where quality > 3"}, "is a source itself"),
        (
            {"good": "it where qualty > 3"},
            "class good: Referenced column .qualty. not found[^\\n]*\\n[^\\n]*\\nthe columns are",
        ),
        ({"good": "it where quality > "}, "class good"),
        ({"good": "it where quality"}, "not a condition"),
        ({"good": "it where quality = 'high'"}, "class good"),
        ({"good": "it where file > 3"}, "class good"),
        ({"good": "it where max(quality) > 3"}, "uses max"),
        ({"good": "it where random() > 0.5"}, "uses random"),
        ({"good": "it where quality > (select 3)"}, "uses another query"),
        ({"good": "it where row_number() over () > 3"}, "uses other documents"),
        ({"good": "it where exists (from 'x.csv')"}, "class good"),
        ({"good": "it where quality > 100"}, "good has 0 documents"),
        ({"good": "it where doc = 0"}, "less than one sequence"),
        ({"good": "it where quality > 3", "best": "it where quality > 7"}, "good and best overlap"),
    ],
)
def test_what_is_wrong_with_a_class_is_said_and_nothing_stands(
    made: tuple[Path, Documents, dict[str, list[int | None]]],
    tmp_path: Path,
    classes: dict[str, str],
    told: str,
) -> None:
    with pytest.raises(UsageError, match=told):
        run_mix(made[0], tmp_path / "mix.json", request("all:natural", seq_len=64, classes=classes))
    assert not (tmp_path / "mix.json").exists()
    assert not list(tmp_path.glob(f"{FOLDER}/*.side"))


CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}


def killed_at(change: int, folder: Path, work: Callable[[], object]) -> bool:
    """Do it in a process that dies right before its `change`-th change to files of a folder, from 1; False where it has
    not so many."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    left = count(1)

    def look(event: str, args: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        path = str(args[:2])
        own = str(folder) in path and ".lock" not in path  # that of a lock stands in its own tests
        if own and (writes or event in CHANGES) and next(left) == change:
            os._exit(9)

    sys.addaudithook(look)
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


@pytest.mark.slow
def test_a_mix_that_goes_on_may_be_killed_at_any_file(tmp_path: Path) -> None:
    """With classes, an append and packing: what stood stands, and the same command again finishes."""
    shards, documents, _ = make(tmp_path, {"en": [9, 5, 3] * 9, "it": [20, 1, 9] * 9}, 3)
    stage = request("900:good=0.5,it=0.5", seq_len=16, max_epochs=99, classes=CLASSES, pack="best-fit")
    run_mix(shards, tmp_path / "old.json", stage)
    since = shutil.copytree(shards, tmp_path / "since")
    make_shards(shards, {"it": [[99] * 30] * 9}, since=since, vocab_size=60_000)
    write_ledgers(shards, {name: [9] * (len(some) + 9) for name, some in documents.items()})
    old = pretok.stream.open(shards, tmp_path / "old.json")[:]

    def go_on(folder: Path) -> dict[str, bytes]:
        after = beginning(load_manifest(shards), folder / "old.json", 20)
        wish = request("900:good=0.5,it=0.5", seq_len=16, max_epochs=99, classes=CLASSES, after=after)
        run_mix(shards, folder / "new.json", wish)
        return {name: data for name, data in contents(folder).items() if ".lock" not in name}

    def fresh() -> Path:
        folder = tmp_path / "mixes"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / FOLDER, folder / FOLDER)
        shutil.copy(tmp_path / "old.json", folder)
        return folder

    expected = go_on(fresh())
    folder, change = fresh(), 1
    while killed_at(
        change, folder, lambda: go_on(folder)
    ):  # each gets one change further than the one before
        np.testing.assert_array_equal(pretok.stream.open(shards, folder / "old.json")[:], old)
        if (folder / "new.json").exists():
            assert (folder / "new.json").read_bytes() == expected["new.json"]
            pretok.stream.open(shards, folder / "new.json")[-1]
        change += 1
    assert change > 20
    assert go_on(folder) == expected
    for once in range(2, change, 11):
        folder = fresh()
        assert killed_at(once, folder, partial(go_on, folder))
        assert go_on(folder) == expected


@pytest.mark.parametrize("how", ["missing", "cut", "damaged", "of another mix"])
def test_a_side_file_that_is_not_that_of_the_mix_is_named(
    made: tuple[Path, Documents, dict[str, list[int | None]]], tmp_path: Path, how: str
) -> None:
    run_mix(made[0], tmp_path / "mix.json", request("1600:good=1", seq_len=16, classes=CLASSES))
    digest = load_mix(tmp_path / "mix.json").sources[0].tape
    (path,) = tmp_path.rglob(f"{digest}.side")
    other = next(one for one in tmp_path.rglob("*.side") if one != path)
    data = path.read_bytes()
    changed = {"cut": data[:-9], "damaged": b"x" + data[1:], "of another mix": other.read_bytes()}
    path.unlink()
    if how in changed:
        path.write_bytes(changed[how])
    with pytest.raises(IntegrityError, match=digest):
        pretok.stream.open(made[0], tmp_path / "mix.json")[0]


def test_a_run_and_a_materialized_mix_read_the_same(
    made: tuple[Path, Documents, dict[str, list[int | None]]], tmp_path: Path, here: Engine
) -> None:
    shards, *_ = made
    path = tmp_path / "mix.json"
    run_mix(shards, path, request("1600:good=0.5,it=0.5", seq_len=16, max_epochs=99, classes=CLASSES))
    view = pretok.stream.open(shards, path)
    run_materialize(shards, path, tmp_path / "out", here, Silent())
    copy = pretok.stream.open(tmp_path / "out")
    np.testing.assert_array_equal(copy[:], view[:])
    assert copy.fingerprint == view.fingerprint
    write_segment(tmp_path, shards, view, 4, mix=str(path))
    (again,) = open_segments(written_segments(tmp_path), load_manifest(shards))
    np.testing.assert_array_equal(again[:], view[:])
    write_segment(tmp_path, shards, view, 4)
    with pytest.raises(UsageError, match="name the mix"):
        open_segments(written_segments(tmp_path), load_manifest(shards))


def test_the_command_takes_classes(
    made: tuple[Path, Documents, dict[str, list[int | None]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = [
        "mix",
        str(made[0]),
        "--seq-len",
        "16",
        "--class",
        f"good={CLASSES['good']}",
        "--weights",
        "good=1",
    ]
    assert run_command(line) == 0
    assert not (made[0].parent / "mix.json").exists()
    assert run_command([*line, "--out", str(tmp_path / "mix.json")]) == 0
    assert load_mix(tmp_path / "mix.json").sources[1].of == "it"
    assert run_command([*line, "--class", "good", "--out", str(tmp_path / "mix.json")]) == 2
    assert "write NAME=" in capsys.readouterr().err
