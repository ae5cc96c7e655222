"""Which positions read a document, and which documents a position reads: against all positions read."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from mixing import request as wish_of
from mixing import write_segment
from support import EOD, make_shards

import pretok.stream
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.storage import write_json
from pretok.documents.audit.trace import (
    Reading,
    Traced,
    open_traced,
    passages,
    positions_of_step,
    reading_at,
    readings,
)
from pretok.shards.manifest import load_manifest
from pretok.stream.continued import beginning
from pretok.stream.mix_job import run_mix

LENGTHS = {"en": [1, 90, 3, 0, 40, 17, 2, 16], "it": [300, 1, 0, 5, 250, 33, 4, 4, 60, 8, 7]}


@pytest.fixture(scope="module", params=["none", "best-fit"])
def mix(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Every document repeats an id of its own, so that a token says whose it is; three epochs of one source, not one
    of the other, in two stages."""
    folder = tmp_path_factory.mktemp("out")
    documents, number = {}, 1
    for source, lengths in LENGTHS.items():
        documents[source] = [[number + n] * length for n, length in enumerate(lengths)]
        number += len(lengths)
    make_shards(folder / "shards", documents, val={"it": [[900, 901]]})
    stages = ("300:it=0.2,en=0.8", "512:it=0.6,en=0.4")
    wish = wish_of(*stages, seq_len=16, seed=3, max_epochs=9, pack=request.param)
    run_mix(folder / "shards", folder / "mix.json", wish)
    return folder / "mix.json"


def owners() -> dict[int, tuple[str, int]]:
    """Id -> (source, number of the document)."""
    places = [(source, number) for source, lengths in LENGTHS.items() for number in range(len(lengths))]
    return dict(enumerate(places, 1))


@pytest.mark.parametrize("at", [None, 11, 33])
def test_positions_and_documents_agree_with_the_tokens(mix: Path, at: int | None) -> None:
    """Every token of every position is some document's at some place in it; EOD belongs to what stands before it. In a
    mix that continues another, too."""
    if at is not None:
        after = beginning(load_manifest(mix.parent / "shards"), mix, at)
        wish = wish_of("640:it=0.6,en=0.4", seq_len=16, seed=3, max_epochs=9, after=after)
        mix = mix.parent / f"at-{at}.json"
        run_mix(mix.parent / "shards", mix, wish)
    (traced,) = open_traced(mix, None)
    whose = {where: number for number, where in owners().items()}
    back: dict[tuple[str, int], list[Reading]] = defaultdict(list)
    for position in range(len(traced.view)):
        tokens: list[int] = []
        for passage in passages(traced, position):
            number = whose[passage.source, passage.document]
            length = LENGTHS[passage.source][passage.document]
            tokens += ([number] * length + [EOD])[passage.first : passage.first + passage.tokens]
            back[passage.source, passage.document].append(passage)
            assert (passage.source, passage.epoch, passage.sequence) == traced.view.origin(position)
        assert tokens + [EOD] * (17 - len(tokens)) == traced.view[position].tolist()
    for source, document in whose:
        assert readings(traced, source, "train", document) == back[source, document]
    assert len({reading.epoch for found in back.values() for reading in found}) > 2


def test_what_a_mix_leaves_out_is_read_nowhere(mix: Path) -> None:
    (traced,) = open_traced(mix, None)
    assert readings(traced, "it", "val", 0) == []
    alone = Traced(pretok.stream.open(mix.parent / "shards", seq_len=16, source="en"), traced.manifest)
    assert readings(alone, "it", "train", 0) == []
    assert readings(alone, "en", "train", 1)


def write_run(folder: Path, mix: Path, **changes: object) -> Path:
    """What train leaves of a run."""
    view = pretok.stream.open(mix.parent / "shards", mix)
    resolved = {"model": {"seq_len": 16}, "steps": 9}
    settings = {"model": "debug", "resolved": resolved}
    write_json(folder / "config.json", settings)
    write_segment(folder, mix.parent / "shards", view, 4, **{"mix": str(mix), **changes})
    for step, position in ((3, 12), (5, 20)):
        meta = {"step": step, "progress": {"position": position}}
        write_json(folder / "checkpoints" / f"step-{step:08d}" / "meta.json", meta)
    return folder


def test_steps_are_those_of_the_run(mix: Path, tmp_path: Path) -> None:
    """Of a global batch of 4, position 11 is read in step 3; five steps are done."""
    (traced,) = open_traced(write_run(tmp_path / "run", mix), None)
    found = readings(traced, "it", "train", 0)
    assert len(found) > 4
    for reading in found:
        assert isinstance(reading, Reading)
        assert reading.step == reading.position // 4 + 1
        assert positions_of_step([traced], reading.step)[0] is traced
        assert reading.position in positions_of_step([traced], reading.step)[1]
        assert reading.done == (reading.position < 20)
    assert {reading.done for reading in found} == {True, False}
    assert {reading.step for reading in found} <= set(range(1, 10))  # the order goes on to step 12
    with pytest.raises(UsageError, match="no position 36; the run reads positions 0 to 35"):
        reading_at([traced], 36)
    with pytest.raises(UsageError, match="no step 0"):
        positions_of_step([traced], 0)
    with pytest.raises(UsageError, match="no step 10; the run has steps 1 to 9"):
        positions_of_step([traced], 10)


def test_what_does_not_belong_together_is_refused(mix: Path, tmp_path: Path) -> None:
    run, shards = write_run(tmp_path / "run", mix), mix.parent / "shards"
    write_json(run / "checkpoints" / "step-00000005" / "meta.json", {"step": 5, "progress": {"position": 24}})
    with pytest.raises(UsageError, match="changed its data or its global batch"):
        open_traced(run, None)
    write_segment(run, shards, pretok.stream.open(shards, mix), 4, step=2)
    with pytest.raises(UsageError, match="does not say what the first steps read"):
        open_traced(run, None)
    with pytest.raises(MismatchError, match="read the stream " + "1" * 32):
        open_traced(write_run(tmp_path / "run", mix, stream="1" * 32), None)
    with pytest.raises(UsageError, match="is not the folder of a run"):
        open_traced(tmp_path, None)
    write_json(tmp_path / "config.json", {"shards": "x"})
    with pytest.raises(IntegrityError, match="resolved"):
        open_traced(tmp_path, None)
    (traced,) = open_traced(mix, None)
    with pytest.raises(UsageError, match="no position 50"):
        list(passages(traced, 50_000))
    with pytest.raises(UsageError, match="a mix has positions and no steps"):
        positions_of_step([traced], 1)
