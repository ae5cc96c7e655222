"""Plans: quotas exact to the sequence, limits that say what would fit, reports that add up."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from support import make_shards
from typer.testing import CliRunner

import pretok.stream
from benchmarks.train_shards import bare_contents
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.records import to_json
from pretok.base.storage import fingerprint
from pretok.base.units import parse_share
from pretok.cli import run_command
from pretok.commands.export import export
from pretok.commands.mix import mix
from pretok.config import MixTable, make_recipe
from pretok.shards.contents import ShardEntry
from pretok.shards.manifest import Manifest
from pretok.stream.mix_file import MixSource, load_mix, write_mix
from pretok.stream.mix_job import MixRequest, plan_mix, recipe_request, run_mix, what_if
from pretok.stream.quota import (
    Limit,
    Stage,
    largest_remainder,
    parse_limit,
    parse_stage,
    parse_tokens,
    parse_weights,
    stage_quotas,
)

FREE = Limit(Fraction(4), cap=False)
CAPPED = Limit(Fraction(4), cap=True)


def manifest_of(tokens: dict[str, int]) -> Manifest:
    """A manifest of sources of any size, one shard each; no file is behind it."""
    shards = [
        ShardEntry(f"{name}/{name}-00000.bin", name, "train", n, 1, 2 * n, 0, "", "")
        for name, n in tokens.items()
    ]
    return Manifest(Path("/x"), bare_contents(50_000, shards))


def request(*stages: str, **changes: Any) -> MixRequest:
    return MixRequest(tuple(parse_stage(stage) for stage in stages), **changes)


def test_ninety_ten_of_1_2_trillion_tokens_is_exact() -> None:
    manifest = manifest_of({"en": 400 * 10**9 + 1, "it": 2 * 10**12})
    mix, report = plan_mix(manifest, request("1.2T:it=0.9,en=0.1"))
    assert [source.name for source in mix.sources] == ["en", "it"]
    assert mix.stages == ((29_296_875, 263_671_875),)
    assert report.tokens == 1_200_000_000_000
    assert report.sources["it"].tokens == 1_080_000_000_000
    assert report.sources["en"].tokens == 120_000_000_000
    assert report.stages[0].shares == {"en": 0.1, "it": 0.9}
    bound = report.stages[0].prefix_bound_tokens["it"]
    assert bound == pytest.approx(1.4 * 4096)
    order = mix.order()
    for n in (1, 999, 123_456_789, len(mix)):
        assert abs(order.prefix(n)[1] - Fraction(9, 10) * n) * 4096 <= bound


def test_report_adds_up() -> None:
    manifest = manifest_of({"en": 1_000, "it": 30_005, "old": 77})
    mix, report = plan_mix(manifest, request("12k:it=0.8,en=0.2", seq_len=10))
    assert to_json(report.sources["en"]) == {
        "sequences": 240,
        "tokens": 2_400,
        "epochs": 240 / 99,
        "repeated_tokens": 1_410,
        "unused_tokens": 0,
        "tail_tokens": 10,
    }
    assert report.sources["it"].unused_tokens == 30_000 - 9_600
    assert report.left_out == {"old": 77}
    assert sum(source.sequences for source in report.sources.values()) == report.sequences == len(mix)


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**6), min_size=1, max_size=50).filter(any))
def test_largest_remainder(total: int, parts: list[int]) -> None:
    weights = [Fraction(part, sum(parts)) for part in parts]
    quotas = largest_remainder(total, weights)
    assert sum(quotas) == total
    assert all(abs(quota - total * weight) < 1 for quota, weight in zip(quotas, weights, strict=True))


def test_natural_all_is_every_sequence_once() -> None:
    mix, report = plan_mix(manifest_of({"en": 1_000, "it": 30_005}), request("all:natural", seq_len=10))
    assert mix.stages == ((99, 3_000),)
    assert {source.epochs for source in report.sources.values()} == {1.0}


def test_all_is_one_epoch_of_the_scarcest() -> None:
    mix, _ = plan_mix(manifest_of({"en": 1_000, "it": 30_005}), request("all:it=0.9,en=0.1", seq_len=10))
    assert mix.stages == ((99, 891),)


def test_too_many_epochs_says_what_fits() -> None:
    manifest = manifest_of({"en": 1_001, "it": 90_001})
    with pytest.raises(UsageError) as caught:
        plan_mix(manifest, request("50k:it=0.9,en=0.1", seq_len=10))
    message = str(caught.value)
    assert "source en would be read 5.00 times, more than 4" in message
    assert "a budget of 40000 tokens fits" in message
    assert "a weight of en up to 0.08" in message
    for fits in ("40k:it=0.9,en=0.1", "50k:it=0.92,en=0.08"):
        plan_mix(manifest, request(fits, seq_len=10))
    plan_mix(manifest, request("50k:it=0.9,en=0.1", seq_len=10, limit=Limit(Fraction(5), cap=False)))


def test_cap_fills_up_with_the_others_and_says_so() -> None:
    manifest = manifest_of({"de": 2_001, "en": 1_001, "it": 90_001})
    mix, report = plan_mix(manifest, request("50k:it=0.6,de=0.3,en=0.1", seq_len=10, limit=CAPPED))
    assert mix.stages == ((800, 400, 3_800),)  # German and English at 4 epochs, Italian the rest
    assert len(report.notes) == 2
    assert "de is held at 4 epochs: 8000 tokens instead of 15000" in report.notes[0]
    with pytest.raises(UsageError, match=r"read 4 times the sources give 12000"):
        plan_mix(manifest, request("50k:de=0.5,en=0.5", seq_len=10, limit=CAPPED))


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20)), min_size=1, max_size=8),
    st.integers(1, 400),
)
def test_cap_keeps_the_budget_and_the_limit(sources: list[tuple[int, int]], total: int) -> None:
    if not (scale := sum(weight for _, weight in sources)):
        return
    found = [MixSource(f"s{number}", 0, sequences) for number, (sequences, _) in enumerate(sources)]
    weights = {f"s{number}": Fraction(weight, scale) for number, (_, weight) in enumerate(sources)}
    most = [4 * sequences if weight else 0 for sequences, weight in sources]
    stage = Stage(total, weights)
    if sum(most) < total:
        with pytest.raises(UsageError, match="lower the budget"):
            stage_quotas(stage, found, [0] * len(found), 1, CAPPED)
        return
    quotas, notes = stage_quotas(stage, found, [0] * len(found), 1, CAPPED)
    assert sum(quotas) == total
    assert all(quota <= limit for quota, limit in zip(quotas, most, strict=True))
    full = {number for number, quota in enumerate(quotas) if quota == most[number]}
    given = sum(quotas[number] for number in range(len(found)) if number not in full)
    share = sum(sources[number][1] for number in range(len(found)) if number not in full)
    for number in set(range(len(found))) - full:  # those not full keep their proportion
        assert abs(quotas[number] - given * Fraction(sources[number][1], share)) < len(found)
    if not notes:
        assert quotas == largest_remainder(total, list(weights.values()))


def test_stages_go_on_where_the_one_before_stopped(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", {"en": [range(1, 400)], "it": [range(1, 900)]})
    report = run_mix(
        shards, tmp_path / "mix.json", request("600:it=0.9,en=0.1", "400:it=0.5,en=0.5", seq_len=5)
    )
    assert [stage.tokens for stage in report.stages] == [600, 400]
    view = pretok.stream.open(shards, tmp_path / "mix.json")
    assert view.prefix_counts(120) == {"en": 12, "it": 108}
    assert view.prefix_counts(200) == {"en": 52, "it": 148}
    origins = [view.origin(position) for position in range(len(view))]
    assert len(set(origins)) == len(origins)
    assert {epoch for _, epoch, _ in origins} == {0}


def test_a_later_stage_may_use_a_source_the_first_left_out() -> None:
    manifest = manifest_of({"en": 1_001, "it": 1_001})
    mix, _ = plan_mix(manifest, request("500:it=1", "all:it=0.5,en=0.5", seq_len=10))
    assert mix.stages == ((0, 50), (50, 50))
    with pytest.raises(UsageError, match="used up by the stages before"):
        plan_mix(manifest, request("all:it=1", "all:it=0.5,en=0.5", seq_len=10))


def test_the_limit_counts_all_stages() -> None:
    manifest = manifest_of({"en": 1_001, "it": 90_001})
    stages = ("30k:it=0.9,en=0.1", "20k:it=0.9,en=0.1")
    with pytest.raises(UsageError, match=r"en would be read 5\.00 times.* a budget of 10000 tokens fits"):
        plan_mix(manifest, request(*stages, seq_len=10))
    mix, _ = plan_mix(manifest, request(*stages, seq_len=10, limit=CAPPED))
    assert mix.stages == ((300, 2_700), (100, 1_900))


def test_same_wish_same_file_other_wish_refused(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", {"en": [range(1, 400)], "it": [range(1, 900)]})
    out = tmp_path / "mix.json"
    run_mix(shards, out, request("600:it=0.9,en=0.1", seq_len=5))
    first = out.read_bytes()
    run_mix(shards, out, request("600:it=0.9,en=0.1", seq_len=5))
    assert out.read_bytes() == first
    with pytest.raises(MismatchError, match=load_mix(out).fingerprint):
        run_mix(shards, out, request("600:it=0.9,en=0.1", seq_len=5, seed=1))
    out.unlink()
    run_mix(shards, out, request("600:it=0.9,en=0.1", seq_len=5, seed=1))
    assert out.read_bytes() != first


def test_what_if_names_what_does_not_fit() -> None:
    manifest = manifest_of({"en": 1_001, "it": 90_001})
    rows = what_if(manifest, request("20k:it=0.9,en=0.1", seq_len=10))
    assert [row.tokens for row in rows] == [5_000, 10_000, 20_000, 40_000, 80_000]
    assert [row.epochs["en"] for row in rows] == [0.5, 1, 2, 4, 8]
    assert [row.problem is None for row in rows] == [True, True, True, True, False]
    capped = what_if(manifest, request("20k:it=0.9,en=0.1", seq_len=10, limit=CAPPED))
    assert capped[-1].epochs == {"en": 4, "it": 76_000 / 90_000}
    assert [row.capped for row in capped] == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("1.2T", 1_200_000_000_000), ("300B", 3 * 10**11), ("17", 17), ("2.5k", 2500), ("all", None)],
)
def test_budgets(text: str, tokens: int | None) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "x", "-3", "1.5", "3 TT", "0"])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="budget"):
        parse_tokens(text)


def test_weights() -> None:
    assert parse_weights("it=0.9, en=0.1") == {"it": Fraction(9, 10), "en": Fraction(1, 10)}
    assert parse_weights("a=0.333,b=0.333,c=0.333") == dict.fromkeys("abc", Fraction(1, 3))
    assert parse_weights("a=1e-4,b=0.9999") == {"a": Fraction(1, 10_000), "b": Fraction(9_999, 10_000)}
    for wrong, message in [
        ("it=0.9,en=0.2", "add up to 1.1"),
        ("it=0.9,it=0.1", "cannot read 'it=0.1'"),
        ("it", "cannot read"),
        ("it=x,en=1", "cannot read"),
        ("it=-1,en=2", "cannot read"),
    ]:
        with pytest.raises(UsageError, match=message):
            parse_weights(wrong)
    with pytest.raises(UsageError, match="TOKENS:WEIGHTS"):
        parse_stage("1.2T")
    with pytest.raises(UsageError, match="no source 'fr'"):
        plan_mix(manifest_of({"it": 1_001}), request("500:fr=1"))
    with pytest.raises(UsageError, match="it has 77 tokens, not one sequence of 100"):
        plan_mix(manifest_of({"it": 77}), request("500:it=1", seq_len=100))
    with pytest.raises(UsageError, match="holds no sequence of 100"):
        plan_mix(manifest_of({"it": 777}), request("50:it=1", seq_len=100))


@pytest.mark.parametrize(
    "text", ["5%", "1e-99999999", "1e9999999", "nan", "-1", "1/0", "9" * 5000, "", "1 / 2"]
)
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a share such as 0\.05 or 1/20"):
        parse_share(text)
    with pytest.raises(UsageError, match="cannot read the weight of it"):
        parse_weights(f"it={text},en=0.1")
    with pytest.raises(UsageError, match="val_fraction"):
        make_recipe(
            {"out": "x", "sources": {"it": {"inputs": ["x"]}}, "shards": {"val_fraction": text}}, "test"
        )
    with pytest.raises(UsageError, match="--max-epochs"):
        parse_limit(text, cap=False)


def test_shares() -> None:
    written = ("0.05", "1/20", "5e-2", ".05", "00.050", 0.05, Fraction(1, 20))
    assert {parse_share(text) for text in written} == {Fraction(1, 20)}
    assert parse_weights("it=2/3,en=1/3") == {"it": Fraction(2, 3), "en": Fraction(1, 3)}
    assert parse_limit(1e15, cap=False).max_epochs == 10**15


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of shards and the path of a mix of them."""
    shards = make_shards(tmp_path / "shards", {"en": [range(1, 400)], "it": [range(1, 900)]})
    run_mix(shards, tmp_path / "mix.json", request("600:it=0.9,en=0.1", seq_len=5))
    return shards, tmp_path / "mix.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_len": 0}, "the sequence length is 0"),
        ({"seq_len": 7}, "not 79 sequences"),
        ({"seq_len": 2**40}, "the sequence length is"),
        ({"seed": "x"}, "seed: expected a whole number"),
        ({"seed": 2**64}, "seed: expected a whole number"),
        ({"split": "test"}, "no split 'test'; there are train and val"),
        ({"stages": []}, "0 stages"),
        ({"stages": [{"quotas": [0, 0]}]}, "1 stages and 0 sequences"),
        ({"stages": [{"quotas": [-5, 10]}]}, "expected a whole number"),
        ({"stages": [{"quotas": [1]}]}, "1 quotas for 2 sources"),
        ({"stages": [{"quotas": [2**50, 1]}]}, "is too long; at most"),
        ({"stages": [[1, 2]]}, r"stages\[0\]: expected an object"),
        ({"sources": [{"name": "en", "tokens": -400, "sequences": 79}]}, "expected a whole number"),
        (
            {"sources": [{"name": "en", "tokens": 400, "sequences": 10**6}], "stages": [{"quotas": [5]}]},
            "not 1000000 sequences",
        ),
        ({"sources": [{"name": "en", "tokens": 400, "sequences": 79}] * 2}, "stands twice"),
        ({"sources": []}, "2 quotas for 0 sources"),
        ({"manifest": 3}, "manifest: expected a text"),
        ({"report": []}, "report: expected an object"),
        ({"more": 1}, "unknown key 'more'"),
    ],
)
def test_forged_mixes_are_refused(made: tuple[Path, Path], change: dict[str, Any], message: str) -> None:
    shards, path = made
    data = json.loads(path.read_text()) | change
    identity = {key: data[key] for key in data if key not in ("fingerprint", "report")}
    path.write_text(json.dumps(data | {"fingerprint": fingerprint(identity)}))
    with pytest.raises(IntegrityError, match=message) as caught:
        pretok.stream.open(shards, path)
    assert str(path) in str(caught.value)


def test_a_mix_is_compared_with_the_shards(made: tuple[Path, Path]) -> None:
    shards, path = made
    mix = load_mix(path)
    more = tuple(MixSource(s.name, s.tokens + 5, s.sequences + 1) for s in mix.sources)
    for sources in (more, (mix.sources[0], MixSource("fr", 1000, 199))):
        write_mix(path, replace(mix, sources=sources), {})
        with pytest.raises(IntegrityError, match=f"source {sources[1].name}|source en has 405 train tokens"):
            pretok.stream.open(shards, path)


def test_flipped_bits_in_a_mix_are_found(made: tuple[Path, Path]) -> None:
    shards, path = made
    original = path.read_bytes()
    meant = load_mix(path)
    for position in random.Random(0).sample(range(8 * len(original)), 300):
        data = bytearray(original)
        data[position // 8] ^= 1 << position % 8
        path.write_bytes(data)
        with suppress(IntegrityError, MismatchError):
            assert pretok.stream.open(shards, path).mix == meant


def test_what_is_written_can_be_opened(tmp_path: Path, made: tuple[Path, Path]) -> None:
    shards, _ = made
    absurd = request("900000T:it=0.9,en=0.1", seq_len=5, limit=parse_limit(1e15, cap=False))
    for wish in (absurd, request("600:natural", seq_len=5, seed=10**30), request("600:natural", split="x")):
        with pytest.raises(UsageError, match=r"too long|does not fit 64 bits|no split 'x'"):
            run_mix(shards, tmp_path / "absurd.json", wish)
    assert not (tmp_path / "absurd.json").exists()
    with pytest.raises(UsageError, match="does not fit 64 bits"):
        pretok.stream.open(shards, seq_len=5, seed=10**30)


def test_a_mix_that_cannot_be_written(
    tmp_path: Path,
    made: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line that names the path, exit code 2; the disk holds nothing new."""
    shards, _ = made
    (tmp_path / "file").write_text("")

    def no_space(path: Path, value: object) -> None:
        raise OSError(28, "No space left on device")

    def wish(out: Path) -> tuple[int, str]:
        code = run_command(["mix", str(shards), "--seq-len", "5", "--out", str(out)])
        return code, capsys.readouterr().err

    for out, message in (
        (tmp_path, "is a folder; name a file"),
        (tmp_path / "file" / "m.json", "cannot write"),
    ):
        code, shown = wish(out)
        assert (code, message in shown, "Traceback" in shown) == (2, True, False)
    monkeypatch.setattr("pretok.stream.mix_file.write_json", no_space)
    code, shown = wish(tmp_path / "new.json")
    assert (code, shown.count("\n")) == (2, 1)
    assert f"cannot write {tmp_path / 'new.json'}: No space left on device" in shown


def test_interrupted_by_the_user(
    made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pretok.stream.mix_job.load_manifest", interrupted)
    monkeypatch.setattr("pretok.audit.documents.load_manifest", interrupted)
    for command in (
        ["mix", str(made[0]), "--out", str(made[1])],
        ["inspect", str(made[0]), "--source", "it"],
    ):
        assert run_command(command) in (75, 130)
        assert capsys.readouterr().err.count("\n") <= 1


@pytest.fixture
def command() -> Callable[..., str]:
    """Runs `pretok mix` or `pretok export` and returns standard output."""
    app = typer.Typer()
    app.command()(mix)
    app.command()(export)

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def test_commands(tmp_path: Path, command: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    shards = make_shards(
        tmp_path / "shards", {"en": [range(1, 400)], "it": [range(1, 900)], "old": [range(9)]}
    )
    path, out = tmp_path / "mix.json", tmp_path / "mixed"
    wish = ("mix", shards, "--weights", "it=0.9,en=0.1", "--tokens", 600, "--seq-len", 5, "--seed", 3)
    report = json.loads(command(*wish, "--json"))
    assert not path.exists()
    assert report["sources"]["it"]["tokens"] == 540
    assert json.loads(command(*wish, "--json", "--out", path, "--materialize", out, "--workers", 0)) == report
    plan, written = pretok.stream.open(shards, path), pretok.stream.open(out, path)
    np.testing.assert_array_equal(plan.batch(range(120)), written.batch(range(120)))
    assert (plan.mix.seed, plan.seq_len) == (3, 5)

    assert run_command([str(word) for word in wish]) == 0
    shown, told = capsys.readouterr()
    assert shown == ""
    assert "en 10.000000%, it 90.000000%" in told
    assert "not in the mix: old, 10 tokens" in told

    stages = ("mix", shards, "--stage", "300:it=1", "--stage", "300:it=0.5,en=0.5", "--seq-len", 5)
    assert [stage["tokens"] for stage in json.loads(command(*stages, "--json"))["stages"]] == [300, 300]
    with pytest.raises(UsageError, match="not both"):
        command(*stages, "--tokens", 600)
    with pytest.raises(UsageError, match="where with --out"):
        command(*wish, "--materialize", out)

    blend = command("export", shards, "--mix", path, "--to", "megatron")
    assert len(json.loads(blend)["train"]) == 4
    assert (
        command("export", shards, "--mix", path, "--to", "megatron", "--out", tmp_path / "blend.json") == ""
    )
    assert (tmp_path / "blend.json").read_text() == blend


def test_recipes_mean_the_same(tmp_path: Path) -> None:
    tables = [
        ({"weights": {"it": "0.9", "en": "0.1"}, "tokens": "600", "seq_len": 5}, ("600:it=0.9,en=0.1",)),
        ({"seq_len": 5}, ("all:natural",)),
        (
            {"seq_len": 5, "stages": [{"tokens": "500", "weights": {"it": 1}}, {"tokens": "5"}]},
            ("500:it=1", "5:natural"),
        ),
    ]
    for table, stages in tables:
        assert recipe_request(MixTable.model_validate(table)) == request(*stages, seq_len=5)


def test_a_stream_of_a_mix_reads_every_sequence_of_every_epoch_once(tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", {"en": [range(1, 60)] * 3, "it": [range(1, 400)]})
    run_mix(shards, tmp_path / "mix.json", request("1600:it=0.6,en=0.4", seq_len=5))
    view = pretok.stream.open(shards, tmp_path / "mix.json")
    per_source = {source.name: source.sequences for source in view.mix.sources}
    seen: dict[tuple[str, int], list[int]] = {}
    for position in range(len(view)):
        source, epoch, index = view.origin(position)
        seen.setdefault((source, epoch), []).append(index)
    assert max(epoch for _, epoch in seen) == 3
    for (source, epoch), indices in seen.items():
        assert len(set(indices)) == len(indices)
        if (source, epoch + 1) in seen:  # a full epoch
            np.testing.assert_array_equal(np.sort(indices), np.arange(per_source[source]))
