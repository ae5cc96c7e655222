"""Plans: quotas exact to the sequence, limits that say what would fit, reports that add up."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from mixing import manifest_of, request
from support import make_shards
from telling import Told

from pretok.base.errors import MismatchError, UsageError
from pretok.stream.mix_job import plan_mix, run_mix, show_mix


def test_ninety_ten_of_1_2_trillion_tokens_is_exact() -> None:
    manifest = manifest_of({"en": 400 * 10**9 + 1, "it": 2 * 10**12})
    mix, report = plan_mix(manifest, request("1.2T:it=0.9,en=0.1"))
    assert [source.name for source in mix.sources] == ["en", "it"]
    assert [stage.quotas for stage in mix.stages] == [(29_296_875, 263_671_875)]
    assert report.tokens == 1_200_000_000_000
    assert report.sources["it"]["tokens"] == 1_080_000_000_000
    assert report.sources["en"]["tokens"] == 120_000_000_000
    assert report.stages[0]["shares"] == {"en": 0.1, "it": 0.9}
    bound = report.stages[0]["prefix_bound_tokens"]["it"]
    assert bound == pytest.approx(1.4 * 4096)
    order = mix.order()
    for n in (1, 999, 123_456_789, len(mix)):
        assert abs(order.prefix(n)[1] - Fraction(9, 10) * n) * 4096 <= bound


def test_report_adds_up() -> None:
    manifest = manifest_of({"en": 1_000, "it": 30_005, "old": 77})
    mix, report = plan_mix(manifest, request("12k:it=0.8,en=0.2", seq_len=10))
    assert {name: number for name, number in report.sources["en"].items() if number} == {
        "sequences": 240,
        "tokens": 2_400,
        "epochs": 240 / 99,
        "repeated_tokens": 1_410,
        "tail_tokens": 10,
        "learned_share": 1.0,
    }
    assert report.sources["it"]["unused_tokens"] == 29_990 - 9_600
    assert report.left_out == {"old": 77}
    assert sum(source["sequences"] for source in report.sources.values()) == report.sequences == len(mix)


def test_natural_all_is_every_sequence_once() -> None:
    mix, report = plan_mix(manifest_of({"en": 1_000, "it": 30_005}), request("all:natural", seq_len=10))
    assert [stage.quotas for stage in mix.stages] == [(99, 2_999)]
    assert {source["epochs"] for source in report.sources.values()} == {1.0}


def test_all_is_one_epoch_of_the_scarcest() -> None:
    mix, _ = plan_mix(manifest_of({"en": 1_000, "it": 30_005}), request("all:it=0.9,en=0.1", seq_len=10))
    assert [stage.quotas for stage in mix.stages] == [(99, 891)]


def test_too_many_epochs_says_what_fits() -> None:
    manifest = manifest_of({"en": 1_010, "it": 90_010})
    with pytest.raises(UsageError) as caught:
        plan_mix(manifest, request("50k:it=0.9,en=0.1", seq_len=10))
    message = str(caught.value)
    assert "more than 4 epochs of some sources: en has 1,010 (5.00 epochs)." in message
    assert "at most 40,000 fit: lower --tokens, add text, or raise --max-epochs" in message
    for fits in ("40k:it=0.9,en=0.1", "50k:it=0.92,en=0.08"):
        plan_mix(manifest, request(fits, seq_len=10))
    plan_mix(manifest, request("50k:it=0.9,en=0.1", seq_len=10, max_epochs=5))


def test_a_later_stage_may_use_a_source_the_first_left_out() -> None:
    manifest = manifest_of({"en": 1_010, "it": 1_010})
    mix, _ = plan_mix(manifest, request("500:it=1", "all:it=0.5,en=0.5", seq_len=10))
    assert [stage.quotas for stage in mix.stages] == [(0, 50), (50, 50)]
    with pytest.raises(UsageError, match="earlier stages have used up"):
        plan_mix(manifest, request("all:it=1", "all:it=0.5,en=0.5", seq_len=10))


def test_the_limit_counts_all_stages() -> None:
    manifest = manifest_of({"en": 1_010, "it": 90_010})
    stages = ("30k:it=0.9,en=0.1", "20k:it=0.9,en=0.1")
    with pytest.raises(UsageError, match=r"en has 1,010 \(5\.00 epochs\).* at most 10,000 fit"):
        plan_mix(manifest, request(*stages, seq_len=10))
    mix, _ = plan_mix(manifest, request(stages[0], "10k:it=0.9,en=0.1", seq_len=10))
    assert [stage.quotas for stage in mix.stages] == [(300, 2_700), (100, 900)]


def test_same_wish_same_file_other_wish_refused(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", {"en": [range(1, 400)], "it": [range(1, 900)]})
    out = tmp_path / "mix.json"
    run_mix(shards, out, request("600:it=0.9,en=0.1", seq_len=5))
    first = out.read_bytes()
    run_mix(shards, out, request("600:it=0.9,en=0.1", seq_len=5))
    assert out.read_bytes() == first
    with pytest.raises(MismatchError, match="with seed = 0, not seed = 1"):
        run_mix(shards, out, request("600:it=0.9,en=0.1", seq_len=5, seed=1))
    out.unlink()
    run_mix(shards, out, request("600:it=0.9,en=0.1", seq_len=5, seed=1))
    assert out.read_bytes() != first


def test_a_mix_of_many_sources_fits_a_terminal() -> None:
    manifest = manifest_of({f"s{number:03}": 1_010 + number for number in range(300)})
    wanted = request("all:natural", seq_len=10)
    report, told = plan_mix(manifest, wanted)[1], Told()
    show_mix(manifest, report, told)
    assert len(report.stages[0]["shares"]) == 300
    line, sources = told.shown
    assert len(line) < 300
    assert "and 294 more" in line
    assert len(sources.rows) == 300


def test_what_is_shown_says_what_it_is_of() -> None:
    """A count of sequences of three tokens, 0.65 of all, may be 0.5 + 0.65 away from its share: 3.45 tokens."""
    manifest, told = manifest_of({"en": 4_000, "it": 4_000}), Told()
    first = request("3000:it=0.65,en=0.35", seq_len=3)
    _, report = plan_mix(manifest, first)
    show_mix(manifest, report, told)
    assert "never more than 4 tokens off at any prefix" in told.shown[0]
