"""Phases: what changes in mid-run, what goes on as if nothing had been, and what is refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support import needs

torch = needs("torch")
from mixing import request

from pretok.base.errors import MismatchError, PretokError, UsageError
from pretok.base.storage import read_json, read_lines
from pretok.cluster.chain import recipe_flags
from pretok.config import make_recipe
from pretok.shards.manifest import load_manifest
from pretok.stream.continued import beginning, run_position
from pretok.stream.mix_job import run_mix
from tests.train_support import Trial, column, model_file, parsed, set_tokenizer
from train import loop, step
from train.config import from_mapping
from train.model import loss

BATCH, LENGTH = 8, 16
STEP = BATCH * LENGTH
"""Tokens of a step."""
CONSTANT = {"schedule": "constant", "save_every": "99"}
DEFAULTS = {"lr": 0.01, "warmup": 2, "save_every": "never"}


def numbers(folder: Path, out: str = "run") -> list[list[Any]]:
    return [column(folder / out, name) for name in ("loss", "grad_norm", "lr", "tokens", "data_hash")]


def changes(run: Path) -> list[dict[str, Any]]:
    """What the logs of a run say of changed settings."""
    logs = sorted((run / "logs").iterdir(), key=lambda path: path.stat().st_mtime)
    return [line for path in logs for line in read_lines(path) if line["event"] == "changes"]


TWO = '[[phases]]\nat = "1k"\nglobal-batch = 16\n[[phases]]\nat = 2000\nz_loss = 1\n'


def test_phases_of_a_file_are_read(tmp_path: Path) -> None:
    """And they come back from JSON and from the recipe of a chain of jobs."""
    path = tmp_path / "run.toml"
    path.write_text(f"steps = 9\n{TWO}")
    config = parsed("--config", str(path), "--lr", "1")
    assert list(config.phases) == [{"at": 1000, "global_batch": 16}, {"at": 2000, "z_loss": 1.0}]
    starts = [(at, phase.global_batch, phase.z_loss, phase.lr) for at, phase, _ in config.in_phases()]
    assert starts == [(0, 8, 0, 1), (1000, 16, 0, 1), (2000, 16, 1, 1)]
    written = {name: value for name, value in config.as_dict().items() if value is not None}
    assert from_mapping(written, "again") == config
    sources, train = {"it": {"inputs": ["sample:it"]}}, {"phases": config.as_dict()["phases"]}
    recipe = make_recipe({"out": tmp_path, "sources": sources, "train": train}, "")
    assert parsed(*recipe_flags(recipe)).phases == config.phases


def test_a_phase_that_changes_nothing_changes_no_bit(trial: Trial) -> None:
    mix = trial.mix((30, 60))
    same = {"mix": mix, "seq_len": LENGTH, "global_batch": BATCH, "clip": 1}
    phases = ({"at": 2 * STEP - 3}, {"at": 4 * STEP, **same})
    trial.train("plain", mix=mix, schedule="wsd")
    trial.train("phases", mix=mix, schedule="wsd", phases=phases)
    assert numbers(trial.folder, "phases") == numbers(trial.folder, "plain")
    assert [(line["step"], line["by"], line["changes"]) for line in changes(trial.folder / "phases")] == [
        (2, "phase", {}),
        (4, "phase", {"seq_len": [None, LENGTH]}),
    ]


def test_each_phase_ends_documents_with_the_token_of_its_shards(trial: Trial) -> None:
    """Shards made with one tokenizer may differ in it, and the run knows padding by it."""
    other = Path(shutil.copytree(trial.shards, trial.folder / "other"))
    set_tokenizer(other, eod_id=59)
    seen: list[int] = []
    trial.around(step, "targets_of", lambda _tokens, eod_id, *_: seen.append(eod_id))
    trial.train(steps=3, phases=({"at": 2 * STEP, "shards": str(other)},))
    assert seen == [0, 0, 59]


def test_length_batch_and_positions_change_and_moments_stay(trial: Trial) -> None:
    """Which sequences are read is in test_train_trace.py."""
    first = trial.mix((30, 60))
    long = trial.mix((10, 12), name="long.json", seq_len=2 * LENGTH, seed=5)
    seen: list[tuple[float, float]] = []

    def look(state: Any, *_: Any) -> None:
        moments = state.optimizer.state[state.parameters[0]]
        seen.append((state.model.config.rope_theta, moments["step"].item()))

    trial.around(loop, "train_step", look)
    phase = {"at": 3 * STEP, "mix": long, "rope_theta": 1e6, "global_batch": 4}
    phase |= {"lr": 0.001, "schedule": "constant", "warmup": 0}
    trial.train(mix=first, steps=6, phases=(phase,))
    assert seen == [(5e5, 0), (5e5, 1), (5e5, 2), (1e6, 3), (1e6, 4), (1e6, 5)]
    assert column(trial.run, "tokens") == [STEP * n for n in range(1, 7)]
    # The first schedule ends, by a decay of one step, where the second begins.
    assert column(trial.run, "lr") == pytest.approx([0.005, 0.01] + 4 * [0.001])
    text = trial.said()
    assert f"phase at {3 * STEP:,} tokens: mix was " in text
    assert "rope_theta was None, is 1000000.0" in text
    assert "reads its stream from sequence 0\n" in text


def test_what_may_change_by_hand_is_shown_and_kept(trial: Trial) -> None:
    """Batch, learning rate and positions; and a mix that begins as the one before."""
    short = trial.mix((16, 24), name="short.json")
    longer = trial.mix((16, 24), (10, 70), name="longer.json")
    common = {"warmup": 10, **CONSTANT}
    trial.train(mix=short, steps=3, **common)
    trial.train(mix=longer, global_batch=16, rope_theta=1e4, steps=6, **common)
    text = trial.said()
    assert ", global_batch was 8, is 16, " in text
    assert "rope_theta was None, is 10000.0" in text
    [line] = changes(trial.run)
    assert (line["step"], line["tokens"], line["position"], line["by"]) == (3, 3 * STEP, 3 * BATCH, "hand")
    assert line["changes"]["mix"] == [short, longer]
    assert column(trial.run, "tokens") == [STEP * n for n in (1, 2, 3, 5, 7, 9)]
    # The warm-up counts in steps of the batch that it began with.
    assert column(trial.run, "lr") == pytest.approx([0.001 * n for n in (1, 2, 3, 4, 6, 8)])
    assert read_json(trial.run / "config.json")["resolved"]["global_batch"] == 16


def test_a_run_goes_on_with_a_continued_mix(trial: Trial) -> None:
    """In the middle of a stage, where the newest checkpoint is; what was read by then must be the same."""
    first = trial.mix((16, 64))
    trial.train(mix=first, steps=3, **CONSTANT)
    new = {}
    for name, at in (("early", 2 * BATCH), ("new", run_position(trial.run, Path(first)))):
        after = beginning(load_manifest(trial.shards), Path(first), at)
        wish = request(f"{8 * STEP}:en=0.75,it=0.25", seq_len=LENGTH, seed=after.seed, after=after)
        run_mix(trial.shards, trial.folder / f"{name}.json", wish)
        new[name] = str(trial.folder / f"{name}.json")
    with pytest.raises(MismatchError, match="the data differs from sequence 16 on, and 24 are already read"):
        trial.train(mix=new["early"], steps=6, **CONSTANT)
    for out in ("run", "whole"):
        trial.train(out, mix=new["new"], steps=6, **CONSTANT)
    assert numbers(trial.folder) == numbers(trial.folder, "whole")


def test_what_must_not_change_is_refused_by_name(trial: Trial) -> None:
    """All of it, nothing else, and with what to do; the checkpoints stay."""
    mix = trial.mix((16, 24), (30, 40))
    apart = trial.mix((16, 24), (40, 30), name="apart.json")
    other = trial.mix((17, 24), (30, 40), name="other.json")
    trial.train(mix=mix, steps=6, **CONSTANT)

    def again(**more: Any) -> None:
        trial.train(**{"mix": mix, "steps": 7, **CONSTANT, **more})

    wide = trial.folder / "wide.toml"
    wide.write_text(Path(model_file(trial.folder)).read_text().replace("hidden = 64", "hidden = 32"))
    early = ({"at": 2 * STEP, "mix": other},)
    for change, message in (
        ({"model": str(wide)}, r"run was started with other settings: model\.hidden was 64, is 32\. Resume"),
        ({"seed": 3}, r"settings: seed was 0, is 3\. Resume"),
        ({"optimizer": "muon"}, r"settings: optimizer was adamw, is muon\. Resume"),
        ({"mix": other}, "the data differs from sequence 0 on, and 48 are already read"),
        (
            {"mix": apart},
            rf"the data differs from sequence 40 on, and 48 are already read; .*at = {6 * STEP} and",
        ),
        ({"mix": None, "seq_len": 8}, "model.seq_len was 16, is 8; stream was"),
        ({"phases": early}, f"the phase at {2 * STEP} tokens begins before the {6 * STEP}"),
    ):
        with pytest.raises(MismatchError, match=message):
            again(**change)
    for length, words in (({"steps": 5}, "--steps 5"), ({"steps": None, "tokens": 5 * STEP}, "--tokens 640")):
        with pytest.raises(UsageError, match=f"{words}: the run has done 6 steps already"):
            again(**length)
    assert (trial.run / "checkpoints/step-00000006").is_dir()
    again(phases=({"at": 6 * STEP, "mix": other},))  # and so it is done
    assert len(column(trial.run, "loss")) == 7
    with pytest.raises(MismatchError, match=f"in the phase at = {6 * STEP}, which"):
        again(steps=8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # what torch looks at while it traces
def test_compiled_blocks_know_the_length_of_each_phase(trial: Trial) -> None:
    """One that holds for any length is slower, and torch makes such of what it sees change."""
    compiled: list[set[type]] = []

    def look(graph: Any, inputs: list[Any]) -> Any:
        compiled.append({type(size) for value in inputs for size in getattr(value, "shape", (value,))})
        return graph.forward

    original = torch.nn.Module.compile
    traced = lambda self, **given: original(self, backend=look, **given)  # noqa: E731
    trial.patch.setattr(torch.nn.Module, "compile", traced)
    trial.patch.setattr(loss, "_compiled", lambda function: function)
    lengths = (8, 12, 20, 24, 28, 32, 36, 40, 44)
    phases = tuple({"at": 3 * STEP * number, "seq_len": length} for number, length in enumerate(lengths, 1))
    trial.train(compile=True, phases=phases, tokens=3 * STEP * (len(lengths) + 2), steps=None)
    assert len(compiled) == 1 + len(lengths)
    assert set.union(*compiled) == {int}


def test_phases_that_cannot_be_are_refused_before_the_first_step(trial: Trial) -> None:
    small = trial.mix((5, 6), name="small.json")

    def close(second: int) -> tuple[dict[str, Any], ...]:
        return {"at": STEP + 1}, {"at": second}, {"at": 6 * STEP}

    both = "at {} and at {} tokens both begin with step 3"  # a run that ended there would seem to be done
    for phases, message in (
        (({"at": 4 * STEP, "mix": small},), "8 steps of 8 sequences need more data: there are 11 sequences"),
        (({"at": 4 * STEP, "seq_len": 600, "global_batch": 2},), "has no validation sequence of 600 tokens"),
        (({"at": 4 * STEP, "global_batch": 9},), "phase at 512 tokens: global_batch 9 is not a multiple"),
        (close(2 * STEP - 1), both.format(STEP + 1, 2 * STEP - 1)),
        (close(2 * STEP), both.format(STEP + 1, 2 * STEP)),
    ):
        trial.ends_with(PretokError, message, micro_batch=2, phases=phases, val_every=1)
    assert not (trial.run / "metrics.jsonl").exists()
    trial.train(phases=close(2 * STEP + 1))  # begins a step later
    assert len(column(trial.run, "loss")) == 8


def test_a_decay_takes_its_share_of_the_tokens(trial: Trial) -> None:
    """As many tokens, however the batch grows."""
    phases = ({"at": 4 * STEP, "global_batch": 2 * BATCH},)
    trial.train(schedule="wsd", decay=0.5, min_lr=0, warmup=0, phases=phases)
    # 12 steps' worth of tokens in 8 steps; the last 6 of them decay.
    rates = [0.01 * left / 6 for left in (6, 6, 6, 6, 6, 4, 2, 0)]
    assert column(trial.run, "lr") == pytest.approx(rates)
