"""Plans and their file: quotas exact to the sequence, limits that say what would fit, and what is wrong with a mix.json
or a request."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixing import manifest_of, request
from recording import RecordingConsole
from support import make_shards

import pretok.stream
from pretok.base.errors import MismatchError, PretokError, UsageError
from pretok.base.storage import fingerprint
from pretok.base.units import parse_share
from pretok.cli import run_command
from pretok.config import MixTable
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_job import MixRequest, plan_mix, run_mix, show_mix
from pretok.stream.quota import divide, epochs_spent, largest_remainder, parse_weights

NINETY = "it=0.9,en=0.1"


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**6), min_size=1, max_size=50).filter(any))
def test_largest_remainder(total: int, parts: list[int]) -> None:
    weights = [Fraction(part, sum(parts)) for part in parts]
    quotas = largest_remainder(total, weights)
    assert sum(quotas) == total
    assert all(abs(quota - total * weight) < 1 for quota, weight in zip(quotas, weights, strict=True))


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 4)), min_size=1, max_size=9),
)
def test_the_entries_of_a_pool_read_their_epochs_together(
    sizes: list[int], stages: list[tuple[int, int]]
) -> None:
    """Those that were there and those that joined: nobody begins an epoch before all others have ended the last."""
    given: list[list[int]] = []
    there = 1
    for quota, count in stages:
        there = max(there, min(count, len(sizes)))
        known = sizes[:there]
        if not any(known):
            continue
        before = [[*stage, *[0] * (there - len(stage))] for stage in given]
        spent = epochs_spent(known, before)
        given.append(divide(quota, known, spent))
        assert sum(given[-1]) == quota
        spent = [done + one for done, one in zip(spent, given[-1], strict=True)]
        reads = [(done // size, -(-done // size)) for done, size in zip(spent, known, strict=True) if size]
        assert max(begun for _, begun in reads) - min(ended for ended, _ in reads) <= 1


def test_what_is_appended_joins_the_current_epoch() -> None:
    """Or the one that has just ended: it is not repeated to catch up."""
    for quota, spent, three in ((3, [3, 0], [1, 2]), (8, [8, 2], [1, 2]), (9, [9, 4], [2, 1])):
        assert epochs_spent([4, 2], [[quota, 0]]) == spent
        assert divide(3, [4, 2], spent) == three


def test_budgets_and_weights_are_read_exactly() -> None:
    budgets = {"1.2T": 1_200_000_000_000, "300B": 3 * 10**11, "17": 17, "2.5k": 2500, "all": "all"}
    for text, tokens in budgets.items():
        assert request(f"{text}:natural", seq_len=1).table.all_stages[0].tokens == tokens
    assert parse_weights("it=0.9, en=0.1") == {"it": Fraction(9, 10), "en": Fraction(1, 10)}
    assert parse_weights("a=0.333,b=0.333,c=0.333") == dict.fromkeys("abc", Fraction(1, 3))
    assert parse_weights("a=1e-4,b=0.9999") == {"a": Fraction(1, 10_000), "b": Fraction(9_999, 10_000)}
    written = ("0.05", "1/20", "5e-2", ".05", "00.050", 0.05, Fraction(1, 20))
    assert {parse_share(text) for text in written} == {Fraction(1, 20)}
    assert request("all:natural", max_epochs=1e15).table.max_epochs == 10**15


WRONG = {
    "1.2T": "TOKENS:WEIGHTS",
    **dict.fromkeys([f"{t}:natural" for t in ("", "x", "-3", "1.5", "3 TT", "0")], r"\.0\.tokens: .*(all|budget)"),
    "50:it=1": "holds no sequence of 100",
    "500:fr=1": "no source or class 'fr'",
    "500:old=1": "old has 77 tokens, less than one sequence of 100",
    "500:it=0.9,en=0.2": "add up to 1.1",
    "500:it=0.9,it=0.1": "cannot read 'it=0.1'",
    "500:it": "cannot read",
    "500:it=-1,en=2": "cannot read",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_wrong_stages_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=WRONG[text]):
        plan_mix(manifest_of({"it": 10_001, "en": 10_001, "old": 77}), request(text, seq_len=100))


@pytest.mark.parametrize("text", ["5%", "1e-99999999", "1e9999999", "nan", "-1", "1/0", "9" * 5000, ""])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(UsageError, match=r"weight of it: .* is not a share such as 0\.05 or 1/20"):
        parse_weights(f"it={text},en=0.1")


def test_ninety_ten_of_1_2_trillion_tokens_is_exact() -> None:
    mix, report = plan_mix(manifest_of({"en": 400 * 10**9 + 1, "it": 2 * 10**12}), request(f"1.2T:{NINETY}"))
    assert [source.name for source in mix.sources] == ["en", "it"]
    assert [stage.quotas for stage in mix.stages] == [(29_296_875, 263_671_875)]
    assert {name: one["tokens"] for name, one in report.sources.items()} == {
        "en": 12 * 10**10,
        "it": 108 * 10**10,
    }
    assert (report.tokens, report.stages[0]["shares"]) == (12 * 10**11, {"en": 0.1, "it": 0.9})
    bound = report.stages[0]["prefix_bound_tokens"]["it"]
    assert bound == pytest.approx(1.4 * 4096)
    lengths = np.array([1, 999, 123_456_789, len(mix)])
    for n, (_, count) in zip(lengths.tolist(), mix.order().prefixes(lengths).tolist(), strict=True):
        assert abs(count - Fraction(9, 10) * n) * 4096 <= bound


def test_a_weight_too_small_for_a_sequence_is_a_note() -> None:
    wish = request("100:it=0.999,en=0.001", "100:it=1", seq_len=10)
    _, report = plan_mix(manifest_of({"en": 1_000, "it": 1_000}), wish)
    assert report.sources["en"]["sequences"] == 0
    (note,) = report.notes
    assert note.startswith("en has a weight of 0.001, too small for one of the 10 sequences")


def test_report_adds_up() -> None:
    manifest = manifest_of({"en": 1_000, "it": 30_005, "old": 77})
    mix, report = plan_mix(manifest, request("12k:it=0.8,en=0.2", seq_len=10))
    assert {name: number for name, number in report.sources["en"].items() if number} == {
        "sequences": 240,
        "tokens": 2_400,
        "epochs": 240 / 99,
        "repeated_tokens": 1_410,
        "learned_share": 1.0,
    }
    assert report.sources["it"]["unused_tokens"] == 29_990 - 9_600
    assert report.left_out == {"old": 77}
    assert sum(source["sequences"] for source in report.sources.values()) == report.sequences == len(mix)


@pytest.mark.parametrize(
    ("tokens", "stages", "quotas"),
    [
        ((1_000, 30_005), ("all:natural",), [(99, 2_999)]),  # every sequence once
        ((1_000, 30_005), (f"all:{NINETY}",), [(99, 891)]),  # one epoch of the scarcest
        ((1_010, 1_010), ("500:it=1", "all:it=0.5,en=0.5"), [(0, 50), (50, 50)]),  # of what is left
        ((1_010, 90_010), (f"30k:{NINETY}", f"10k:{NINETY}"), [(300, 2_700), (100, 900)]),
        ((1_010, 90_010), ("50k:it=0.92,en=0.08",), [(400, 4_600)]),
    ],
)
def test_quotas(tokens: tuple[int, int], stages: tuple[str, ...], quotas: list[tuple[int, int]]) -> None:
    mix, _ = plan_mix(manifest_of(dict(zip(("en", "it"), tokens, strict=True))), request(*stages, seq_len=10))
    assert [stage.quotas for stage in mix.stages] == quotas


def test_too_many_epochs_says_what_fits() -> None:
    """In all stages together."""
    manifest = manifest_of({"en": 1_010, "it": 90_010})
    more = r"more than 4 epochs of some sources: en has 1,010 \(5\.00 epochs\)\..*at most {} fit: lower --tokens, add "
    for stages, fits in (((f"50k:{NINETY}",), "40,000"), ((f"30k:{NINETY}", f"20k:{NINETY}"), "10,000")):
        with pytest.raises(UsageError, match=more.format(fits)):
            plan_mix(manifest, request(*stages, seq_len=10))
    plan_mix(manifest, request(f"50k:{NINETY}", seq_len=10, max_epochs=5))
    with pytest.raises(UsageError, match="earlier stages have used up"):
        plan_mix(manifest, request("all:it=1", "all:it=0.5,en=0.5", seq_len=10))


def test_a_mix_of_many_sources_fits_a_terminal() -> None:
    manifest, console = (
        manifest_of({f"s{number:03}": 1_010 + number for number in range(300)}),
        RecordingConsole(),
    )
    show_mix(manifest, plan_mix(manifest, request("all:natural", seq_len=10))[1], console)
    line, sources = console.shown
    assert (len(line) < 300, "and 294 more" in line, len(sources.rows)) == (True, True, 300)


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of shards and the path of a mix of them."""
    documents = {"en": [range(1, 400)], "it": [range(1, 900)], "old": [range(9)]}
    shards = make_shards(tmp_path / "shards", documents)
    run_mix(shards, tmp_path / "mix.json", request(f"600:{NINETY}", seq_len=5))
    return shards, tmp_path / "mix.json"


def test_same_wish_same_file_other_wish_refused(made: tuple[Path, Path]) -> None:
    shards, path = made
    first = path.read_bytes()
    run_mix(shards, path, request(f"600:{NINETY}", seq_len=5))
    assert path.read_bytes() == first
    with pytest.raises(MismatchError, match="other seed"):
        run_mix(shards, path, request(f"600:{NINETY}", seq_len=5, seed=1))
    assert path.read_bytes() == first


EN = {"name": "en", "tokens": 405, "sequences": 80}
IT = {"name": "it", "tokens": 1000, "sequences": 199}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_len": 0}, "seq_len: Expected `int` >= 1"),
        ({"seed": 2**64}, "seed: Expected `int`"),
        ({"split": "test"}, "split: "),
        ({"more": 1}, "Object contains unknown field `more`"),
        ({"seq_len": 7}, "reads more than its sources have"),
        ({"stages": []}, "reads more than its sources have"),
        ({"stages": [{"quotas": [1]}]}, "reads more than its sources have"),
        ({"stages": [{"quotas": [1, 2], "length": 4}]}, "reads more than its sources have"),
        ({"stages": [{"quotas": [2**50, 1]}]}, "reads more than its sources have"),
        ({"sources": [EN | {"tokens": 4, "sequences": 0}], "stages": [{"quotas": [5]}]}, "reads more than"),
        ({"sources": [EN, IT], "cuts": "fixed"}, "source en has 405 train tokens"),
        ({"sources": [IT | {"name": "fr"}], "stages": [{"quotas": [5]}], "cuts": "fixed"}, "source fr has 1000"),
        ({"fingerprint": "0" * 32}, "edited or damaged"),
    ],
)  # fmt: skip
def test_forged_mixes_are_refused(made: tuple[Path, Path], change: dict[str, Any], message: str) -> None:
    shards, path = made
    data = json.loads(path.read_text()) | change
    identity = {key: data[key] for key in data if key not in ("fingerprint", "report")}
    path.write_text(json.dumps({"fingerprint": fingerprint(identity)} | identity | change))
    with pytest.raises(PretokError, match=message):
        pretok.stream.open(shards, path)


def test_the_command(made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards, path = made[0], tmp_path / "new.json"
    out = tmp_path / "mixed"

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        return run_command([str(argument) for argument in arguments]), *capsys.readouterr()

    wish = ("mix", shards, "--weights", NINETY, "--tokens", 600, "--seq-len", 5)
    report = json.loads(run(*wish, "--json")[1])
    assert not path.exists()
    assert report["sources"]["it"]["tokens"] == 540
    written = run(*wish, "--json", "--out", path, "--materialize", out, "--workers", 0)[1]
    assert json.loads(written) == report
    plan, copy = pretok.stream.open(shards, path), pretok.stream.open(out, path)
    np.testing.assert_array_equal(plan[:], copy[:])
    code, shown, printed = run(*wish)
    assert (code, "en 10.0000%, it 90.0000%" in shown, "│ it" in shown) == (0, True, True)
    assert "not in the mix: old, 10 tokens" in printed
    (tmp_path / "file").touch()
    for line, message in (
        ((*wish, "--stage", "300:it=1"), "--stage and"),
        ((*wish, "--materialize", out), "where with --out"),
        ((*wish, "--class", "good"), "write NAME="),
        ((*wish, "--out", tmp_path), "is a folder; name a file"),
        ((*wish, "--out", tmp_path / "file" / "mix.json"), "cannot write"),
    ):
        code, _, printed = run(*line)
        assert (code, message in printed, "Traceback" in printed) == (2, True, False)


def test_recipes_mean_the_same(made: tuple[Path, Path]) -> None:
    manifest = load_manifest(made[0])
    staged = [{"tokens": "500", "weights": {"it": 1}}, {"tokens": "5"}]
    for table, stages in (
        ({"weights": {"it": "0.9", "en": "0.1"}, "tokens": "600"}, (f"600:{NINETY}",)),
        ({}, ("all:natural",)),
        ({"stages": staged}, ("500:it=1", "5:natural")),
    ):
        of_recipe = MixRequest(MixTable.model_validate({"seq_len": 5, **table}))
        assert plan_mix(manifest, of_recipe)[0] == plan_mix(manifest, request(*stages, seq_len=5))[0]
