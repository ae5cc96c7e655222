"""Phases: what changes in mid-run, what goes on as if nothing had been, and what is refused by name."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from support import needs

torch = needs("torch")
from mixing import request

import pretok.stream
from pretok.base.errors import MismatchError, PretokError, UsageError
from pretok.base.storage import read_json, read_lines
from pretok.cluster.chain import recipe_flags
from pretok.config import make_recipe
from pretok.shards.manifest import load_manifest
from pretok.stream.continued import beginning, run_position
from pretok.stream.mix_job import run_mix
from tests.train_support import column, mix_of, model_file, run_jobs
from train import loop
from train.config import TrainConfig, add_flags, from_mapping, parse
from train.model import loss

BATCH, LENGTH = 8, 16
STEP = BATCH * LENGTH
"""Tokens of a step."""


def settings(shards: Path, folder: Path, out: str = "run", **more: Any) -> TrainConfig:
    values: dict[str, Any] = {"shards": str(shards), "out": str(folder / out), "model": model_file(folder)}
    values |= {
        "global_batch": BATCH,
        "steps": 8,
        "workers": 0,
        "lr": 0.01,
        "warmup": 2,
        "save_every": "never",
    }
    if more.get("mix") is None:
        values["seq_len"] = LENGTH
    values |= more
    return from_mapping({name: value for name, value in values.items() if value is not None}, "test")


def numbers(folder: Path, out: str = "run") -> list[list[Any]]:
    return [column(folder / out, name) for name in ("loss", "grad_norm", "lr", "tokens", "data_hash")]


def changes(run: Path) -> list[dict[str, Any]]:
    """What the logs of a run say of changed settings."""
    logs = sorted((run / "logs").iterdir(), key=lambda path: path.stat().st_mtime)
    return [line for path in logs for line in read_lines(path) if line["event"] == "changes"]


def test_phases_of_a_file_are_read_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"

    def parsed(text: str) -> TrainConfig:
        path.write_text(text)
        parser = argparse.ArgumentParser(allow_abbrev=False)
        add_flags(parser)
        return parse(parser, ["--config", str(path), "--lr", "1"])[0]

    config = parsed(
        'steps = 9\n[[phases]]\nat = "1k"\nglobal-batch = 16\n[[phases]]\nat = 2000\nz_loss = 1\n'
    )
    assert list(config.phases) == [{"at": 1000, "global_batch": 16}, {"at": 2000, "z_loss": 1.0}]
    starts = config.in_phases()
    assert [(at, c.global_batch, c.z_loss, c.lr) for at, c, _ in starts] == [
        (0, 8, 0, 1), (1000, 16, 0, 1), (2000, 16, 1, 1),
    ]  # fmt: skip
    written = {name: value for name, value in config.as_dict().items() if value is not None}
    assert from_mapping(written, "again") == config
    recipe = make_recipe(
        {
            "out": tmp_path,
            "sources": {"it": {"inputs": ["sample:it"]}},
            "train": {"phases": config.as_dict()["phases"]},
        },
        "",
    )
    flags = recipe_flags(recipe)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    assert parse(parser, flags)[0].phases == config.phases
    for text, message in (
        ("[[phases]]\nlr = 1", "phase 1 has no start; give it in tokens"),
        (
            "[[phases]]\nat = 5\nlearning_rate = 1",
            "phase 1: unknown setting 'learning_rate'",
        ),
        ("[[phases]]\nat = 5\nmodel = '1b'", "phase 1: unknown setting 'model'"),
        ("[[phases]]\nat = 5\n[[phases]]\nat = 5", "the one at 5 tokens follows the one at 5"),
        ("[[phases]]\nat = 5\nlr = -1", "lr is -1.0; it must be at least 0"),
        ("phases = 3", "phases is not a list of tables"),
        ("phases = '{'", "phases is not JSON"),
    ):
        with pytest.raises(UsageError, match=message):
            parsed(text)


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_a_phase_that_changes_nothing_changes_no_bit(shards: Path, tmp_path: Path, schedule: str) -> None:
    mix = mix_of(shards, tmp_path / "mix.json", (30, 60))
    phases = [
        {"at": 2 * STEP - 3},
        {"at": 4 * STEP, "mix": mix, "seq_len": LENGTH, "global_batch": BATCH, "clip": 1},
    ]
    loop.train(settings(shards, tmp_path, "plain", mix=mix, schedule=schedule))
    loop.train(settings(shards, tmp_path, "phases", mix=mix, schedule=schedule, phases=phases))
    assert numbers(tmp_path, "phases") == numbers(tmp_path, "plain")
    assert [(line["step"], line["by"], line["changes"]) for line in changes(tmp_path / "phases")] == [
        (2, "phase", {}),
        (4, "phase", {"seq_len": [None, LENGTH]}),
    ]


def test_data_length_batch_and_positions_change_and_moments_stay(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the same steps of two runs; the sequences are those of the streams, in their order."""
    first = mix_of(shards, tmp_path / "first.json", (30, 60))
    long = mix_of(shards, tmp_path / "long.json", (10, 12), seq_len=2 * LENGTH, seed=5)
    read: list[list[list[int]]] = []
    original = loop.train_step

    def train_step(trainee: Any, batches: Any, *rest: Any, **named: Any) -> Any:
        def watched() -> Any:
            for tokens, *others in batches:
                read.append(tokens.tolist())
                yield tokens, *others

        seen.append(
            (trainee.model.config.rope_theta, trainee.optimizer.state[trainee.parameters[0]]["step"].item())
        )
        return original(trainee, watched(), *rest, **named)

    seen: list[tuple[float, float]] = []
    monkeypatch.setattr(loop, "train_step", train_step)
    phase = {
        "at": 3 * STEP,
        "mix": long,
        "rope_theta": 1e6,
        "global_batch": 4,
        "lr": 0.001,
        "schedule": "constant",
    }
    loop.train(settings(shards, tmp_path, mix=first, steps=6, phases=[phase | {"warmup": 0}]))
    views = pretok.stream.open(shards, first), pretok.stream.open(shards, long)
    assert read == [
        *(views[0].batch(range(BATCH * n, BATCH * n + BATCH)).tolist() for n in range(3)),
        *(views[1].batch(range(4 * n, 4 * n + 4)).tolist() for n in range(3)),
    ]
    assert [theta for theta, _ in seen] == [5e5] * 3 + [1e6] * 3
    assert [step for _, step in seen] == list(range(6))
    assert column(tmp_path / "run", "tokens") == [
        STEP,
        2 * STEP,
        *(3 * STEP + n * 8 * LENGTH for n in range(4)),
    ]
    lr = column(tmp_path / "run", "lr")
    assert lr[:2] == [0.005, 0.01]
    assert lr[2] == pytest.approx(
        0.001
    )  # the first schedule ends, by a decay of one step, where the second begins
    assert lr[3:] == [0.001] * 3
    text = capsys.readouterr().out
    assert f"phase at {3 * STEP:,} tokens: mix was " in text
    assert "rope_theta was None, is 1000000.0" in text
    assert "reads its stream from sequence 0" in text


def test_a_stop_anywhere_and_other_ranks_give_the_same_run(shards: Path, tmp_path: Path) -> None:
    """Also at the very step where a phase begins."""
    first = mix_of(shards, tmp_path / "first.json", (30, 60))
    other = mix_of(shards, tmp_path / "other.json", (40, 20), seed=5)
    toml = tmp_path / "run.toml"
    toml.write_text(
        f'[[phases]]\nat = {2 * STEP}\nmix = "{other}"\n[[phases]]\nat = {4 * STEP}\nglobal_batch = {2 * BATCH}\n'
    )
    shared = ["--config", toml, "--shards", shards, "--mix", first, "--model", model_file(tmp_path)]
    shared += ["--workers", 0, "--global-batch", BATCH, "--lr", 0.01, "--warmup", 1]
    shared += ["--schedule", "constant", "--keep-last", 99]
    jobs = [(1, [*shared, "--steps", 6, "--out", tmp_path / "whole"])]
    for ranks, steps in [(1, 2), (2, 3), (1, 4), (2, 6)]:
        jobs.append((ranks, [*shared, "--steps", steps, "--out", tmp_path / "run"]))
    text = run_jobs(jobs, tmp_path)
    assert [step for step in range(7) if f"resumed from step {step}\n" in text] == [2, 3, 4]
    assert column(tmp_path / "run", "data_hash") == column(tmp_path / "whole", "data_hash")
    assert column(tmp_path / "run", "loss") == pytest.approx(column(tmp_path / "whole", "loss"), rel=1e-5)
    begun = [line for line in changes(tmp_path / "run") if line["by"] == "phase"]
    assert [(line["step"], line["position"]) for line in begun] == [(2, 0), (4, 2 * BATCH)]
    assert [line["step"] for line in changes(tmp_path / "whole")] == [2, 4]


def test_what_may_change_by_hand_is_shown_and_kept(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batch, learning rate and positions; and a mix that begins as the one before, of which the file is told too."""
    short = mix_of(shards, tmp_path / "short.json", (16, 24))
    longer = mix_of(shards, tmp_path / "longer.json", (16, 24), (10, 70))
    common = {"save_every": "99", "schedule": "constant", "warmup": 10}
    loop.train(settings(shards, tmp_path, mix=short, steps=3, **common))
    loop.train(
        settings(shards, tmp_path, mix=longer, steps=6, global_batch=16, rope_theta=1e4, z_loss=0.1, **common)
    )
    text = capsys.readouterr().out
    assert "settings: " in text
    assert ", global_batch was 8, is 16, " in text
    assert "rope_theta was None, is 10000.0" in text
    [line] = changes(tmp_path / "run")
    assert (line["step"], line["tokens"], line["position"], line["by"]) == (3, 3 * STEP, 3 * BATCH, "hand")
    assert line["changes"]["mix"] == [short, longer]
    assert column(tmp_path / "run", "tokens") == [STEP * n for n in (1, 2, 3, 5, 7, 9)]
    # The warm-up counts in steps of the batch that it began with.
    assert column(tmp_path / "run", "lr") == pytest.approx([0.001 * n for n in (1, 2, 3, 4, 6, 8)])
    # The beginning is the same, so the sequences are those of the longer mix from the first to the last.
    loop.train(settings(shards, tmp_path, "whole", mix=longer, steps=3, **common))
    assert column(tmp_path / "whole", "data_hash") == column(tmp_path / "run", "data_hash")[:3]
    assert read_json(tmp_path / "run/config.json")["resolved"]["global_batch"] == 16


def test_the_batch_is_the_same_on_any_ranks(shards: Path, tmp_path: Path) -> None:
    """The schedule, in its warm-up, counts in such steps too."""
    flags = ["--shards", shards, "--model", model_file(tmp_path), "--seq-len", LENGTH, "--workers", 0]
    run, whole = tmp_path / "run", tmp_path / "whole"
    resumed = (1, [*flags, "--out", run, "--steps", 4])
    alone = (1, [*flags, "--out", whole, "--steps", 4])
    begun = (2, [*flags, "--out", run, "--steps", 2])
    run_jobs([begun, resumed, alone], tmp_path)
    for name in ("tokens", "lr", "data_hash"):
        assert column(run, name) == column(whole, name)


def test_a_run_goes_on_with_a_continued_mix(shards: Path, tmp_path: Path) -> None:
    """In the middle of a stage, where the newest checkpoint is; what was read by then must be the same."""
    first = mix_of(shards, tmp_path / "first.json", (16, 64))
    common = {"save_every": "99", "schedule": "constant"}
    loop.train(settings(shards, tmp_path, mix=first, steps=3, **common))
    manifest, new = load_manifest(shards), {}
    for name, at in (("early", 2 * BATCH), ("new", run_position(tmp_path / "run", Path(first)))):
        after = beginning(manifest, Path(first), at)
        wish = request(f"{8 * STEP}:en=0.75,it=0.25", seq_len=LENGTH, seed=after.seed, after=after)
        run_mix(shards, tmp_path / f"{name}.json", wish)
        new[name] = str(tmp_path / f"{name}.json")
    with pytest.raises(MismatchError, match="the data differs from sequence 16 on, and 24 are already read"):
        loop.train(settings(shards, tmp_path, mix=new["early"], steps=6, **common))
    loop.train(settings(shards, tmp_path, mix=new["new"], steps=6, **common))
    loop.train(settings(shards, tmp_path, "whole", mix=new["new"], steps=6, **common))
    assert numbers(tmp_path) == numbers(tmp_path, "whole")
    loop.train(settings(shards, tmp_path, "old", mix=first, steps=6, **common))
    hashes = [column(tmp_path / out, "data_hash") for out in ("run", "old")]
    assert hashes[0][:3] == hashes[1][:3]
    assert hashes[0][3] != hashes[1][3]


def test_what_must_not_change_is_refused_by_name(shards: Path, tmp_path: Path) -> None:
    mix = mix_of(shards, tmp_path / "mix.json", (16, 24), (30, 40))
    apart = mix_of(shards, tmp_path / "apart.json", (16, 24), (40, 30))
    other = mix_of(shards, tmp_path / "other.json", (17, 24), (30, 40))
    common = {"save_every": "99", "schedule": "constant"}
    loop.train(settings(shards, tmp_path, mix=mix, steps=6, **common))

    def again(**more: Any) -> None:
        loop.train(settings(shards, tmp_path, **{"mix": mix, "steps": 7, **common, **more}))

    (tmp_path / "wide").mkdir()
    wide = Path(model_file(tmp_path / "wide"))
    wide.write_text(wide.read_text().replace("hidden = 64", "hidden = 32"))
    for change, message in (
        ({"model": str(wide)}, r"model\.hidden was 64, is 32\. Resume"),
        ({"seed": 3}, "seed was 0, is 3"),
        ({"mix": other}, "the data differs from sequence 0 on, and 48 are already read"),
        (
            {"mix": apart},
            rf"the data differs from sequence 40 on, and 48 are already read; .*at = {6 * STEP} and",
        ),
        ({"mix": None, "seq_len": 8}, "model.seq_len was 16, is 8; stream was"),
        (
            {"phases": [{"at": 2 * STEP, "mix": other}]},
            f"the phase at {2 * STEP} tokens begins before the {6 * STEP}",
        ),
    ):
        with pytest.raises(MismatchError, match=message):
            again(**change)
    with pytest.raises(UsageError, match="the run has done 6 steps already"):
        again(steps=5)
    again(phases=[{"at": 6 * STEP, "mix": other}])  # and so it is done
    assert len(column(tmp_path / "run", "loss")) == 7
    with pytest.raises(MismatchError, match=f"in the phase at = {6 * STEP}, which"):
        again(steps=8)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # what torch looks at while it traces
def test_compiled_blocks_know_the_length_of_each_phase(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that holds for any length is slower, and torch makes such of what it sees change."""
    compiled: list[set[type]] = []

    def look(graph: Any, inputs: list[Any]) -> Any:
        compiled.append({type(size) for value in inputs for size in getattr(value, "shape", (value,))})
        return graph.forward

    original = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **given: original(self, backend=look, **given)
    )
    monkeypatch.setattr(loss, "_compiled", lambda function: function)
    lengths = (8, 12, 20, 24, 28, 32, 36, 40, 44)
    phases = [{"at": 3 * STEP * number, "seq_len": length} for number, length in enumerate(lengths, 1)]
    tokens = 3 * STEP * (len(lengths) + 2)
    loop.train(settings(shards, tmp_path, compile=True, phases=phases, tokens=tokens, steps=None))
    assert len(compiled) == 1 + len(lengths)
    assert set.union(*compiled) == {int}


def test_too_little_data_in_a_phase_is_told_at_the_start(shards: Path, tmp_path: Path) -> None:
    small = mix_of(shards, tmp_path / "small.json", (5, 6))
    with pytest.raises(UsageError, match="8 steps of 8 sequences need more data: there are 11 sequences"):
        loop.train(settings(shards, tmp_path, phases=[{"at": 4 * STEP, "mix": small}]))
    with pytest.raises(PretokError, match="phase at 512 tokens: global_batch 9 is not a multiple"):
        loop.train(settings(shards, tmp_path, micro_batch=2, phases=[{"at": 4 * STEP, "global_batch": 9}]))


@pytest.mark.parametrize("second", [2 * STEP - 1, 2 * STEP])
def test_phases_closer_than_a_step_are_refused_before_the_first_step(
    shards: Path, tmp_path: Path, second: int
) -> None:
    """Both would begin with the same step; a run that ended there would seem to be done."""
    phases = [{"at": STEP + 1}, {"at": second}, {"at": 6 * STEP}]
    with pytest.raises(UsageError, match=f"at {STEP + 1} and at {second} tokens both begin with step 3"):
        loop.train(settings(shards, tmp_path, phases=phases))
    assert not (tmp_path / "run/metrics.jsonl").exists()
    phases[1]["at"] = 2 * STEP + 1  # begins a step later
    loop.train(settings(shards, tmp_path, phases=phases))
    assert len(column(tmp_path / "run", "loss")) == 8


def test_a_decay_takes_its_share_of_the_tokens(shards: Path, tmp_path: Path) -> None:
    """As many tokens, however the batch grows."""
    phases = [{"at": 4 * STEP, "global_batch": 2 * BATCH}]
    loop.train(settings(shards, tmp_path, schedule="wsd", decay=0.5, min_lr=0, warmup=0, phases=phases))
    # 12 steps' worth of tokens in 8 steps; the last 6 of them decay.
    assert column(tmp_path / "run", "lr") == pytest.approx(
        [0.01 * left / 6 for left in (6, 6, 6, 6, 6, 4, 2, 0)]
    )
