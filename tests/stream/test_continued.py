"""Mixes that continue another: the same beginning bit for bit, every source from where it was, and proof of both.
What the positions of such a mix hold is in test_model.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mixing import request, write_ledgers
from support import make_shards

import pretok.stream
from pretok.base.errors import MismatchError, UsageError
from pretok.base.records import replace
from pretok.cli import run_command
from pretok.shards.manifest import load_manifest
from pretok.stream import audit, same_until
from pretok.stream.continued import beginning, run_position
from pretok.stream.mix_file import Mix, MixSource, Stage, load_mix, mix_json, natural_mix, write_mix
from pretok.stream.mix_job import run_mix

SOURCES = {"en": [range(1, 400)], "it": [range(1, 500), range(3, 403)]}
"""Sequences of 5 tokens: 80 of en, 180 of it."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("shards"), SOURCES)


@pytest.fixture(scope="module")
def grown(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shards and new sources, one of which stands before the old ones."""
    new = {"code": [range(500, 800)], "math": [range(800, 990)]}
    return make_shards(tmp_path_factory.mktemp("grown"), new, since=shards)


@pytest.fixture(scope="module")
def old(shards: Path) -> Path:
    """150 sequences at 90 to 10, then 200 at half and half, in which it ends at 235 of 180 and en at 115 of 80."""
    stages = ("750:it=0.9,en=0.1", "1000:it=0.5,en=0.5")
    run_mix(shards, shards / "old.json", request(*stages, seq_len=5, seed=3, max_epochs=10))
    return shards / "old.json"


def test_what_two_mixes_have_in_common(shards: Path, grown: Path) -> None:
    manifest = load_manifest(shards)
    mix = natural_mix(manifest, "train", 5, ["en", "it"], 3)
    assert same_until(mix, mix) == len(mix) == 259
    for other in (
        replace(mix, seed=4),
        replace(mix, cuts="epoch"),
        replace(mix, split="val"),
        replace(mix, manifest="other"),
        natural_mix(manifest, "train", 6, ["en", "it"], 3),
        natural_mix(load_manifest(grown), "train", 5, ["en", "it"], 3),  # equal tokens, but nothing says so
        replace(mix, sources=mix.sources[::-1]),
        replace(mix, sources=(replace(mix.sources[0], tape="0" * 32), mix.sources[1])),  # other documents
        replace(mix, stages=(Stage((79, 100)),)),
    ):
        assert same_until(mix, other) == same_until(other, mix) == 0


def test_what_cannot_be_continued(shards: Path, old: Path, tmp_path: Path) -> None:
    manifest = load_manifest(shards)
    for at in (0, 351):
        with pytest.raises(UsageError, match=f"has 350 sequences; it cannot be continued at {at}"):
            beginning(manifest, old, at)
    changed = load_manifest(make_shards(tmp_path / "changed", {**SOURCES, "en": [range(2, 401)]}))
    with pytest.raises(MismatchError, match=r"old.json: the mix was made for .* has not grown from those"):
        beginning(changed, old, 100)


def test_text_of_less_than_one_sequence_waits_for_the_next_append(
    shards: Path, old: Path, tmp_path: Path
) -> None:
    path, since = old, shards
    for number, (size, read) in enumerate(((3, 0), (4, 9))):
        since = make_shards(tmp_path / f"{number}", {"it": [range(1, 1 + size)]}, since=since)
        after = beginning(load_manifest(since), path, 100)
        wish = request("50:it=1", seq_len=5, seed=3, max_epochs=10, after=after)
        path = tmp_path / f"{number}.json"
        notes = run_mix(since, path, wish).notes
        assert [one for one in notes if "the 4 tokens appended to it are" in one] or read
        assert load_mix(path).sources[-1].tokens == (read or 4)


@pytest.mark.parametrize("again", [{}, {"all": "it where true"}])
@pytest.mark.parametrize("stage", ["300:it=0.5,en=0.5", "300:it=1", "all:it=1"])
@pytest.mark.parametrize("pack", ["none", "best-fit"])
def test_a_weight_for_a_rest_without_documents_is_refused(
    tmp_path: Path, stage: str, again: dict[str, str], pack: str
) -> None:
    """Its classes have all of them, and no entry stands for the rest."""
    shards = make_shards(tmp_path / "shards", SOURCES)
    write_ledgers(shards)
    first = request("500:all=0.5,en=0.5", seq_len=5, classes={"all": "it where true"}, pack=pack)
    run_mix(shards, tmp_path / "0.json", first)
    after = beginning(load_manifest(shards), tmp_path / "0.json", 50)
    with pytest.raises(
        UsageError, match=r"it has a weight but no documents outside .* \(all\).*weight to these"
    ):
        run_mix(shards, tmp_path / "1.json", request(stage, seq_len=5, after=after, classes=again))


def test_a_source_that_was_empty_gets_an_entry_of_its_own(tmp_path: Path) -> None:
    before = make_shards(tmp_path / "before", {"en": [], "it": [range(1, 100)]})
    run_mix(before, tmp_path / "0.json", request("all:natural", seq_len=5))
    shards = make_shards(tmp_path / "after", {"en": [range(100, 200)]}, since=before)
    after = beginning(load_manifest(shards), tmp_path / "0.json", 7)
    run_mix(shards, tmp_path / "1.json", request("40:en=1", seq_len=5, after=after))
    view = pretok.stream.open(shards, tmp_path / "1.json")
    assert view.order.names == ("en", "it", "en+1")
    assert audit.entries_of(view, "en") == ["en", "en+1"]
    assert len(audit.positions(view, "en+1", 0, 101)) == 8


def test_the_fingerprint_of_a_mix_never_changes() -> None:
    """And it covers where a stage was left."""
    sources = (MixSource("en", 401, 80), MixSource("it", 905, 180))
    mix = Mix("m" * 32, "train", 5, 3, "fixed", sources, (Stage((15, 135)), Stage((100, 100))))
    assert json.dumps(mix_json(mix)) == (
        '{"fingerprint": "e33ec02b2454da1b95ff046f8fa2e333", "format": "pretok-mix", "version": 3, "manifest": "'
        + "m" * 32
        + '", "split": "train", "seq_len": 5, "seed": 3, "cuts": "fixed", "sources": '
        '[{"name": "en", "tokens": 401, "sequences": 80}, '
        '{"name": "it", "tokens": 905, "sequences": 180}], "stages": [{"quotas": [15, 135]}, {"quotas": [100, 100]}]}'
    )
    assert len({mix.fingerprint, mix.first(200).fingerprint, mix.first(201).fingerprint}) == 3


def checkpoint(run: Path, step: int, position: int, stream: str, mix: Mix | None = None) -> Path:
    folder = run / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    identity = {"stream": stream} | ({"mix": mix_json(mix)} if mix else {})
    meta = {"progress": {"position": position}, "identity": identity}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder / "meta.json"


def test_where_a_run_is(old: Path, tmp_path: Path) -> None:
    run, mix = tmp_path / "run", load_mix(old)
    with pytest.raises(UsageError, match="no checkpoint; give the sequence"):
        run_position(run, old)
    checkpoint(run, 9, 90, mix.fingerprint)
    checkpoint(run, 10, 100, mix.fingerprint)
    (run / "checkpoints" / "step-00000011.tmp").mkdir()
    assert run_position(run, old) == 100
    checkpoint(run, 12, 120, replace(mix, seed=4).fingerprint)
    with pytest.raises(MismatchError, match="has read 120 sequences of the stream"):
        run_position(run, old)
    write_mix(tmp_path / "longer.json", replace(mix, stages=(*mix.stages, Stage((1, 1)))), {})
    meta = checkpoint(run, 13, 130, mix.fingerprint, mix)
    assert run_position(run, tmp_path / "longer.json") == 130
    meta.write_text("{}")
    with pytest.raises(MismatchError, match="has no position of the run"):
        run_position(run, old)


def test_command(shards: Path, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new.json"
    checkpoint(tmp_path / "run", 10, 120, load_mix(old).fingerprint)
    (tmp_path / "run" / "config.json").write_text("{}")
    wish = ["mix", str(shards), "--out", str(out), "--continue", str(old), "--stage", "300:it=0.5,en=0.5"]
    assert run_command([*wish, "--at", str(tmp_path / "run"), "--max-epochs", "10"]) == 0
    assert "the first 120 sequences are those of the previous mix" in capsys.readouterr().err
    assert same_until(load_mix(old), load_mix(out)) == 120
    first = out.read_bytes()
    assert run_command([*wish, "--at", "120", "--max-epochs", "10", "--seq-len", "5"]) == 0
    assert out.read_bytes() == first
    for more, message in (
        ([], "needs --at, a position or a run"),
        (["--at", "7", "--pack", "best-fit"], "keeps its seed and packing"),
        (["--at", "7", "--seq-len", "10"], "For 10 make a separate mix"),
        (["--at", "7"], "holds another mix"),
    ):
        capsys.readouterr()
        assert run_command([*wish, *more]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert run_command(["mix", str(shards), "--at", "7"]) == 2
