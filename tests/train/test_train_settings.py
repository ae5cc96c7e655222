"""Settings: where they come from, what is refused and how, how ranks and batches are divided, what `train plan` and
`train tune` make of them."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, needs, until

from pretok.base.errors import UsageError

torch = needs("torch")
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from pretok.base.records import replace
from pretok.base.storage import read_lines
from tests.train_support import Trial, column, model_file, parsed, run_jobs, tiny_flags
from train import launch, loop, tune
from train.__main__ import main
from train.config import TrainConfig, add_flags, check_table, options, refuse_unread, whole_number
from train.model.sizes import PRESETS
from train.model.transformer import Decoder
from train.parallel.layout import (
    BatchSizes,
    Layout,
    bubble,
    bubble_over_ideal,
    check_pipeline,
    check_split,
    compiles,
    passes_held,
    solve_batch,
    solve_layout,
    split_layers,
)
from train.parallel.pipeline import TORCHS, take_part
from train.plan import Memory, count_tensors, largest_micro_batch

ITALIA = PRESETS["italia-9b"]


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('lr = 1\nsteps = 50\ncompile = true\nsave_every = 7\nmodel = "1b"\n')
    config = parsed("--config", str(path), "--steps", "1k", "--no-compile")
    assert config == TrainConfig(lr=1.0, steps=1000, compile=False, save_every="7", model="1b")


IN_A_FILE = {
    "micro_bach = 3": "run.toml: unknown setting 'micro_bach'; the nearest known is 'micro_batch'",
    "steps = 1.5": "steps is 1.5; it must be of type int",
    "attention = 'local'": "attention is 'local'; it must be one of causal, document",
    "keep_last = 0": "keep_last is 0; it must be at least 1",
    "decay = 1000": "decay is 1000.0; it must be at least 0 and at most 1",
    "seed = 9223372036854775808": "seed is 9223372036854775808; .* at most 9223372036854775807",
    "beta2 = 1": "beta2 is 1.0; it must be at least 0 and at most 0.999999",
    "keep_best = 2\nval_every = 0": "keep_best ranks checkpoints by validation loss: val_every must not be 0",
    "save_every = '0m'": "save_every is '0m'",
    "checkpointing = 1.0": r"checkpointing is '1.0'; it must be .* or a share of blocks \(0.5\)",
    "lr = nan": "lr is nan; it must be at least 0",
    "tokens = '1.5'": "tokens: '1.5' is not a whole number",
    "lr = ": "run.toml: Invalid value",
    "lr = " + "1" * 5000: "run.toml: Exceeds the limit",
    "model = '\udcff'": "run.toml: 'utf-8' codec can't decode",
    "[[phases]]\nlr = 1": "phase 1 has no start; give it in tokens",
    "[[phases]]\nat = 5\nlearning_rate = 1": "phase 1: unknown setting 'learning_rate'",
    "[[phases]]\nat = 5\nmodel = '1b'": "phase 1: unknown setting 'model'",
    "[[phases]]\nat = 5\n[[phases]]\nat = 5": "the one at 5 tokens follows the one at 5",
    "[[phases]]\nat = 5\nlr = -1": "lr is -1.0; it must be at least 0",
    "phases = 3": "phases is not a list of tables",
    "phases = '{'": "phases is not JSON",
    "backup = 's3://id:key@bucket/run'": r"backup is s3://\*\*\*@bucket/run; it must be a folder, not a URL",
    "out = 'gs://bucket/run'": "out is gs://bucket/run; it must be a folder",
    "cache = 'https://host/cache'": "cache is https://host/cache; it must be a folder",
    "shards = 's3://id:key@bucket/shards'": "credentials in environment variables",
    "shards = 'https://host/shards?signature=key'": "credentials in environment variables",
}
SIZES = {
    "dim = 'x'": r"model.toml: Expected `int`, got `str` - at `\$.dim`",
    "dim = 0\nlayers = 1\nheads = 1\nkv_heads = 1\nhidden = 1": "dim is 0; it",
    "dims = 1": "unknown field `dims`",
}


def test_wrong_settings_are_refused_with_what_where_and_the_nearest_that_is_right(tmp_path: Path) -> None:
    """In a file, in a file of a model's sizes, in the table of a recipe, as flags."""
    path, model = tmp_path / "run.toml", tmp_path / "model.toml"
    for text, message in IN_A_FILE.items():
        path.write_text(text, "utf-8", "surrogateescape")
        with pytest.raises(UsageError, match=message) as caught:
            parsed("--config", str(path))
        assert not re.search("[:=]key", f"{caught.value}")  # which logs would keep
    for text, message in SIZES.items():
        model.write_text(text)
        with pytest.raises(UsageError, match=message):
            check_table({"model": str(model)})
    with pytest.raises(UsageError, match=r"\[train\]: unknown setting 'micro_bach'; the nearest known is"):
        check_table({"micro_bach": 3})
    for flag, more in (("--mirco-batch", "; the nearest known is '--micro-batch'"), ("--frobnicate", "")):
        with pytest.raises(UsageError, match=f"^unknown argument '{flag}'{more}$"):
            parsed(f"{flag}=3")


UNREAD = {
    "cache_bytes = 2000000": ("without cache", 'cache = "c"'),
    "val_sequences = 5\nval_every = 0": ("without val_every", None),
    "decay = 0.5": ('without schedule = "wsd"', 'schedule = "wsd"'),
    'decay_shape = "1-sqrt"': ('without schedule = "wsd"', 'schedule = "wsd"'),
    'min_lr = 0.5\nschedule = "constant"': ("without a schedule that decays", None),
    'min_lr = 0\nschedule = "constant"\nphases = [{at = 9, lr = 1}]': (
        "without a schedule that decays",
        None,
    ),
}
"""A setting: what it needs, and a line that gives this."""


@pytest.mark.parametrize("text", UNREAD)
def test_a_setting_that_nothing_reads_is_refused_by_name(tmp_path: Path, text: str) -> None:
    need, gives = UNREAD[text]
    path = tmp_path / "train.toml"
    path.write_text(text)
    name = text.partition(" ")[0]
    with pytest.raises(UsageError, match=f"^{name}: nothing reads it {need}; leave it out$"):
        refuse_unread(parsed("--config", str(path)))
    if gives:
        path.write_text(f"{text}\n{gives}")
        refuse_unread(parsed("--config", str(path)))


NEED = r"steps of {} sequences need more data: there are \d+ sequences of 16 tokens, enough for {}"
IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "10000 " + NEED.format(8, r"\d+"): {"steps": 10_000},
    "1 " + NEED.format(1024, "0 steps"): {"steps": None, "global_batch": 1024},
    "not both": {"steps": 5, "tokens": 5},
    r"--tokens 1 are less than one step of 8 sequences of 16 tokens \(128": {"steps": None, "tokens": 1},
    "--model 7b is not a preset": {"model": "7b"},
    "sequence": {"seq_len": 100_000},
    "--shards is missing": {"shards": ""},
    "--vocab-map needs --init-from": {"vocab_map": "x"},
    "--init-from: PUT/THE/MODEL/HERE is not a folder; name a": {"init_from": "PUT/THE/MODEL/HERE"},
    "has no validation sequence of 600 tokens: tokenize": {"val_every": 1, "seq_len": 600, "steps": 1},
    "needs the package wandb": {"val_every": 1, "val_sequences": 1, "wandb": "p"},
}


@pytest.mark.parametrize("message", IMPOSSIBLE)
def test_impossible_runs_are_refused(trial: Trial, message: str) -> None:
    trial.patch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=message):
        loop.train(TrainConfig(**trial.config().as_dict() | IMPOSSIBLE[message]))
    assert not (trial.run / "metrics.jsonl").exists()
    assert trial.run.exists() == ("shards" not in IMPOSSIBLE[message])


def test_the_help_shows_what_a_person_sets() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    shown = set(re.findall(r"^  --([a-z0-9-]+)", parser.format_help(), re.M))
    assert len(shown) < 45
    often = {name.replace("_", "-") for name, (_, option) in options().items() if not option.rare}
    assert shown == {"config", *often}


TABLE = {"model": "1b", "micro-batch": 4, "tokens": "64MiB", "lr": 1, "save_every": 100}
WITHOUT = f"""
import sys
sys.modules["torch"] = None
from train.config import check_table
from train.__main__ import main
check_table({TABLE})
for command in ("plan", "--shards=x"):
    try:
        main([command])
    except SystemExit as end:
        print(end.code)
"""


def test_what_needs_torch() -> None:
    """A good table of a recipe is checked without it; a command says what to install."""
    command = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "2\n2\n"
    assert done.stderr.count("train: the package torch is not installed for this Python: run pip") == 2


def test_counts() -> None:
    """What they may be is in tests/config/test_config.py."""
    assert whole_number("16k") == 16_000
    with pytest.raises(UsageError, match="is not a"):
        whole_number("many")


sizes = st.integers(1, 64)


@given(ranks=sizes, micro=st.none() | sizes, whole=st.integers(1, 4096))
def test_a_batch_divides_or_is_refused_with_values_that_do(ranks: int, micro: int | None, whole: int) -> None:
    unit = ranks * (micro or 1)
    if whole % unit == 0:
        solved = solve_batch(ranks, whole, micro)
        assert (solved.global_batch, solved.micro_batch) == (whole, micro or whole // ranks)
        assert solved.micro_batch * solved.accumulation * ranks == whole
        return
    with pytest.raises(UsageError, match="nearest: ") as caught:
        solve_batch(ranks, whole, micro)
    nearest = [int(text) for text in str(caught.value).rpartition("nearest: ")[2].split(" or ")]
    assert nearest
    for value in nearest:
        assert solve_batch(ranks, value, micro).accumulation >= 1
        assert abs(value - whole) < unit


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ((16, 4, None, 1), (4, 4, 1)),  # one copy a node
        ((16, 4, None, 2), (4, 2, 2)),
        ((16, 4, 1, 1), (16, 1, 1)),
        ((16, 4, 16, 1), (1, 16, 1)),
        ((3, 4, None, 1), (1, 3, 1)),
        ((16, 4, None, 1, 1, 8), (2, 8, 1)),  # neighbours beyond the node share sequences
        ((16, 4, 8, 1, 1, 4), (2, 8, 1)),
    ],
)
def test_the_shape_of_a_mesh(arguments: tuple[Any, ...], shape: tuple[int, int, int]) -> None:
    layout = solve_layout(*arguments)
    assert (layout.replicate, layout.shard, layout.tensor) == shape
    assert layout.data_ranks * layout.context * layout.tensor == arguments[0]


def split(seq_len: int = 4096, **settings: Any) -> None:
    check_split(TrainConfig(**settings), PRESETS["1b"], seq_len)


def pipeline(batch: BatchSizes = BatchSizes(8, 1, 8, 1), layers: int = 40, **changes: Any) -> None:  # noqa: B008
    sizes = replace(ITALIA, layers=layers, tied=changes.pop("tied", False))
    check_pipeline(TrainConfig(pipeline=4, **changes), sizes, batch)


def scheduled(kind: str, passes: int = 8, **more: Any) -> None:
    pipeline(BatchSizes(passes, 1, passes, 1), pipeline_schedule=kind, **more)


@pytest.mark.parametrize(
    ("message", "ask"),
    [
        (r"shard = 3 does not divide 16 .* valid: \[1, 2, 4, 8, 16\]", lambda: solve_layout(16, 4, 3, 1)),
        (r"groups of context = 4; valid: \[4, 8, 16\]", lambda: solve_layout(16, 4, 2, 1, 1, 4)),
        ("tensor = 3 does not divide the 16 ranks", lambda: solve_layout(16, 4, None, 3)),
        ("pipeline = 3 does not divide the 8 groups", lambda: solve_layout(16, 4, None, 2, 3)),
        (r"--tensor 2 x --context 8 does not divide kv_heads \(8\)", lambda: split(tensor=2, context=8)),
        (r"--tensor 8 does not divide seq_len \(4100\)", lambda: split(4100, tensor=8)),
        ("muon with --offload would", lambda: split(optimizer="muon", offload=True)),
        ("float8 works neither with --tensor nor", lambda: split(tensor=2, precision="float8")),
        ("needs a separate output matrix", lambda: pipeline(tied=True)),
        ("4 has 4 stages, more than the 3 blocks", lambda: pipeline(layers=3)),
        ("zero-bubble has 8 stages, more than the 7 blocks", lambda: scheduled("zero-bubble", layers=7)),
        ("dualpipe needs at least 8 micro-batches per .* there are 7", lambda: scheduled("dualpipe", 7)),
        (r"interleaved needs .* \(a multiple of 4\); there are 9", lambda: scheduled("interleaved", 9)),
        ("zero-bubble works neither with --compile", lambda: scheduled("zero-bubble", compile=True)),
        ("nor with --checkpointing 0.5: torch", lambda: scheduled("dualpipe", checkpointing="0.5")),
        ("at least 4 micro-batches per step and rank; there are 2", lambda: pipeline(BatchSizes(8, 4, 2, 1))),
    ],
)
def test_what_cannot_be_divided_is_refused_with_what_can(message: str, ask: Callable[[], None]) -> None:
    with pytest.raises(UsageError, match=message):
        ask()


def test_blocks_are_compiled_where_they_can_be() -> None:
    def compiled(able: bool = True, **settings: Any) -> bool:
        return compiles(TrainConfig(**settings), able=able)

    assert compiled()
    assert compiled(tensor=2, checkpointing="full")
    assert compiled(able=False, compile=True)
    assert not compiled(able=False)
    assert not compiled(compile=False)
    assert not compiled(pipeline=2, pipeline_schedule="zero-bubble")
    assert compiled(pipeline=2, pipeline_schedule="interleaved")


def test_blocks_are_divided_by_their_time() -> None:
    """The last stage has the output matrix, which is about one block of this model."""
    assert [len(part) for part in split_layers(ITALIA, 4)] == [10, 10, 11, 9]
    for layers in range(2, 12):
        for stages in range(1, layers + 1):
            found = split_layers(replace(ITALIA, layers=layers), stages)
            assert all(found)
            assert [number for part in found for number in part] == list(range(layers))
    assert bubble(TrainConfig(pipeline=4), 12) == pytest.approx(3 / 15)
    assert bubble(TrainConfig(), 12) == 0.0


COSTS = {"F": 1, "B": 2, "I": 1, "W": 1}
"""Time of the forward pass of a stage, of its backward pass, and of the two halves of that."""


def played(kind: str, ranks: int, passes: int) -> tuple[float, list[int]]:
    """Play torch's own order: the time that it takes, and for each rank the most passes of a stage in memory."""
    orders = [
        [part for action in order if action is not None for part in (action.sub_actions or (action,))]
        for order in get_schedule_ops(TORCHS[kind], ranks, passes, 2)
    ]
    ends: dict[tuple[str, int, int], float] = {}
    clocks, held, most = [0.0] * ranks, [0] * ranks, [0] * ranks
    while any(orders):
        for rank, order in enumerate(orders):
            while order:
                action = order[0]
                stage, number, what = (
                    action.stage_index,
                    action.microbatch_index,
                    action.computation_type.value,
                )
                needs = [("F", stage - 1, number)] * (what == "F" and stage > 0)
                if what in "BI":
                    last = stage == 2 * ranks - 1
                    needs = [("F", stage, number) if last else ("I", stage + 1, number)]
                if not all(need in ends for need in needs):
                    break
                order.pop(0)
                clocks[rank] = max([clocks[rank], *(ends[need] for need in needs)]) + COSTS[what]
                ends[what.replace("B", "I"), stage, number] = clocks[rank]
                held[rank] += {"F": 1, "I": 0}.get(what, -1)
                most[rank] = max(most[rank], held[rank])
    return max(clocks), most


@pytest.mark.parametrize("kind", ["interleaved", "zero-bubble", "dualpipe"])
@pytest.mark.parametrize(("ranks", "passes"), [(2, 4), (2, 9), (3, 6), (4, 8), (4, 12), (4, 32), (8, 16)])
def test_bubble_and_memory_are_those_of_torchs_schedules(kind: str, ranks: int, passes: int) -> None:
    config = TrainConfig(pipeline=ranks, pipeline_schedule=kind)
    if kind == "interleaved" and passes % (passes // ranks):
        pytest.skip("torch refuses it, as we do")
    time, most = played(kind, ranks, passes)
    assert bubble_over_ideal(config, passes) == pytest.approx(time / (2 * passes * COSTS["F"] * 3) - 1)
    assert [2 * passes_held(config, passes, rank) for rank in range(ranks)] == most


def count(layout: Layout, seq_len: int = 4096, passes: int = 2, **more: Any) -> Memory:
    """What a rank holds of italia-9b, with micro-batches of one sequence."""
    config = TrainConfig(**{"precision": "bf16", "pipeline": layout.pipeline, **more})
    return count_tensors(ITALIA, layout, 1, passes, seq_len, config)


def test_plan_counts_what_a_rank_holds() -> None:
    """Split as the mesh splits it. Ranks that share sequences keep the outputs of attention twice, for the exchange."""
    memory, divided = count(Layout(64, 4, 1)), count(Layout(64, 2, 2))
    shared = count(Layout(16, 16, 1, 1, 4), 4 * 4096)
    for one, ranks in ((memory, 4), (divided, 4), (shared, 16)):
        assert one.parameters == pytest.approx(4 * ITALIA.parameters / ranks, rel=1e-3)
        assert one.optimizer == 2 * one.parameters == 2 * one.gradients
    assert divided.activations < memory.activations
    assert shared.activations == memory.activations + ITALIA.layers * ITALIA.attention_dim * 2 * 4096


def test_plan_counts_the_fullest_stage_of_a_pipeline() -> None:
    """With no more micro-batches than there are stages."""
    ranks = []
    for stage in range(4):
        with torch.device("meta"):
            part = Decoder(ITALIA)
        take_part(part, stage, split_layers(ITALIA, 4))
        ranks.append(sum(parameter.numel() for parameter in part.parameters()))
    assert sum(ranks) == ITALIA.parameters
    staged = count(Layout(1, 1, 1, 4), passes=8)
    assert staged.parameters // 4 in ranks
    assert staged.gradients == 2 * staged.parameters  # whole ones of a step, and what remains of them
    received = 2 * 4096 * ITALIA.dim * 2
    deep = {passes: count(Layout(1, 4, 1, 4), passes=passes, checkpointing="full") for passes in (4, 8, 32)}
    assert len({memory.activations - passes * received for passes, memory in deep.items()}) == 1


def test_plan_shows_bytes_by_the_names_that_others_use(capsys: pytest.CaptureFixture[str]) -> None:
    common = "plan --model italia-9b --nodes 2 --devices-per-node 4 --micro-batch 1 --precision bf16"

    def plan(*more: str) -> Any:
        main([*common.split(), "--json", *more])
        return json.loads(capsys.readouterr().out)

    flags = {"DDP": ["--shard", "1"], "ZeRO-3": ["--shard", "8"], "hybrid": []}
    flags["ZeRO-1, ZeRO-2"] = ["--shard", "8", "--no-reshard"]
    found = {name: sum(plan(*more)["count"].values()) for name, more in flags.items()}
    assert all(plan(*more)["bytes_by_name"] == found for more in flags.values())
    assert found["DDP"] > found["ZeRO-1, ZeRO-2"] > found["ZeRO-3"]
    assert found["DDP"] > found["hybrid"] > found["ZeRO-3"]
    main(common.split())
    assert f"in GiB by name: DDP {found['DDP'] / 2**30:.2f}; ZeRO-1, ZeRO-2 " in capsys.readouterr().out


def test_plan_counts_the_one_moment_of_muon() -> None:
    """Of what a rank of four has of each matrix in a block."""
    adamw, muon = (count(Layout(1, 4, 1), optimizer=name) for name in ("adamw", "muon"))
    assert adamw.optimizer - muon.optimizer == 4 * ITALIA.layers * ITALIA.block_weights // 4
    assert replace(muon, optimizer=adamw.optimizer) == adamw


def test_plan_knows_what_offloading_moves(capsys: pytest.CaptureFixture[str]) -> None:
    there, moved = (count(Layout(1, 8, 1), offload=offload) for offload in (False, True))
    assert (moved.parameters, moved.gradients, moved.optimizer) == (0, 0, 0)
    assert (moved.gathered, moved.activations, moved.loss) == (there.gathered, there.activations, there.loss)
    staged = count(Layout(1, 1, 1, 4), passes=8)  # which keeps whole gradients of a step too
    assert count(Layout(1, 1, 1, 4), passes=8, offload=True).gradients == staged.gradients // 2
    main(["plan", "--model", "italia-9b", "--devices-per-node", "8", "--shard", "8", "--offload"])
    host = there.parameters + there.parameters + there.optimizer
    assert f"host memory: {host / 2**30:.1f} GiB for each device" in capsys.readouterr().out


def test_plan_finds_the_largest_micro_batch() -> None:
    config, layout = TrainConfig(precision="bf16", compile=True), Layout(1, 1, 1)

    def total(size: int) -> int:
        return count_tensors(PRESETS["1b"], layout, size, 1, 4096, config).total

    size = largest_micro_batch(PRESETS["1b"], layout, 1, 4096, config, 80)
    assert size > 1
    assert total(size) <= 0.9 * 80e9 < total(size + 1)
    assert largest_micro_batch(ITALIA, layout, 1, 4096, config, 40) == 0


def test_plan_says_what_fits_and_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    """Loudly what does not."""
    common = "--model italia-9b --nodes 64 --devices-per-node 4 --global-batch 1024 --tokens 1.2T"

    def plan(more: str) -> str:
        main(["plan", *common.split(), "--micro-batch", *more.split()])
        return capsys.readouterr().out

    with pytest.raises(SystemExit):
        plan("2 --device H100 --peak 300 --memory 64")
    assert "--device: nothing reads it beside --peak and --memory; leave it out" in capsys.readouterr().err
    found = json.loads(plan("2 --peak 300 --mfu 0.5 --json"))
    seconds = 1024 * 4096 * ITALIA.flops_per_token(4096) / (150e12 * 256)
    assert found["step_seconds"] == pytest.approx(seconds)
    assert found["steps"] == 1_200_000_000_000 // (1024 * 4096)
    assert found["node_hours"] == pytest.approx(64 * seconds * found["steps"] / 3600)
    assert found["checkpoint_bytes"] == pytest.approx(12 * ITALIA.parameters)
    device = "--device A100-SXM-64GB"
    for more, words in (
        ("2", "accumulation 2 x 256 data-parallel ranks"),
        (f"2 {device} --mfu 0.4", "DOES NOT FIT: 82.6 GiB counted, 53.6 GiB are 90% of 64 GB"),
        (f"2 {device} --mfu 0.4", "step: n/a; steps: 286102; run: n/a; n/a\n"),
        ("2 --milestone 100k", "kept and one being written: 657.7 GB"),
        ("2 --device A100", "the memory of the device is not known; give --memory"),
        ("2 --device A100 --memory 80 --json", '"fits": false'),
        (f"4 {device} --checkpointing full", "\nfits: 39.9 GiB counted"),
        (f"1 {device} --pipeline 4 --checkpointing ops", "devices wait for other stages 15.8% of each"),
        (f"1 {device} --pipeline 4 --checkpointing ops", "1f1b 18.8%, interleaved 9.4%, zero-bubble 3.1%"),
        (
            f"1 {device} --pipeline 4 --pipeline-schedule dualpipe",
            "other stages 3.0% of each step, 3.1% over",
        ),
    ):
        assert words in plan(more)
    # The command of the documentation fits.
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").replace("\\\n", " ")
    command = next(words for line in page.splitlines() if (words := line.split())[:2] == ["train", "plan"])
    main(command[1:])
    assert "\nfits: " in capsys.readouterr().out


def test_tune_takes_out_of_memory_as_a_result(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One real trial in a process of its own; the others answer as trials do that do not fit or fail."""
    started = []
    failures = {4: "torch.OutOfMemoryError: CUDA out of memory.", 1: "train: something else\n===="}

    def run(command: list[str], **options: Any) -> Any:
        settings = tomllib.loads(Path(command[-1]).read_text())
        size = settings["micro_batch"]
        assert settings["global_batch"] == 8 * size  # four passes for each stage of the longest pipeline
        started.append(size)
        assert options["env"]["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)  # from any folder
        assert command[:3] == [sys.executable, "-m", "train"]
        if size != 4:  # a trial that fails may have done steps
            run_jobs([(1, command[3:])], tmp_path)
        return types.SimpleNamespace(returncode=int(size != 2), stderr=failures.get(size, ""))

    monkeypatch.setattr(tune.subprocess, "run", run)
    command = ["tune", "--shards", str(shards), "--model", model_file(tmp_path), "--seq-len", "16"]
    for tried in ("micro-batch=8,4,1,2", "checkpointing=none", "compile=no", "pipeline=1,2"):
        command += ["--try", tried]
    main([*command, "--out", str(tmp_path / "😀"), "--trial-steps", "5", "--workers", "0"])
    records = read_lines(tmp_path / "😀/tune.jsonl")
    outcomes = [[record["outcome"] for record in records if record["pipeline"] == n] for n in (1, 2)]
    assert outcomes == [
        ["failed: train: something else", "ok", "out of memory", "out of memory"],
        ["failed: pipeline = 2 does not divide the 1 groups of tensor ranks"] * 4,
    ]
    assert started == [1, 2, 4]  # 8 cannot fit where 4 does not
    tuned = (tmp_path / "😀/tuned.toml").read_text()
    assert tuned == 'micro_batch = 2\ncheckpointing = "none"\ncompile = false\npipeline = 1\n'
    assert "best: micro_batch 2 " in capsys.readouterr().out


def test_what_a_setting_cannot_be_is_not_tried() -> None:
    lists = tune.lists_of(["checkpointing=ops,0.5", "reshard=yes,no"])
    assert (lists["checkpointing"], lists["reshard"]) == (["ops", "0.5"], [True, False])
    assert lists["micro_batch"] == tune.TRIED["micro_batch"]
    for text in ("tensr=2", "tensor=two", "checkpointing=half"):
        with pytest.raises(UsageError):
            tune.lists_of([text])


@pytest.mark.slow
def test_the_table_of_a_gpu_is_made_without_one(tmp_path: Path) -> None:
    script = [sys.executable, ROOT / "benchmarks" / "train_gpu.py", "--json", tmp_path / "rows.json"]
    more = ["--models", "debug", "--lengths", "32", "--micro-batch", "1", "--steps", "5"]
    done = subprocess.run([*map(str, script), *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["attention"], row["outcome"]) for row in rows] == [("causal", "ok"), ("document", "ok")]
    assert rows[0]["tokens_per_second_per_device"] > 0
    assert "dense bf16 peak n/a" in done.stdout
    assert "debug: loss alone, forward and backward: eager" in done.stdout


def test_a_launcher_that_ends_its_ranks_does_not_say_that_they_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stopped(_: object) -> None:
        raise SignalException("SIGHUP", signal.SIGHUP)

    monkeypatch.setattr("torch.distributed.run.run", stopped)
    monkeypatch.setattr(launch.signal, "signal", lambda *_: None)
    assert launch.main(["-m", "train"]) == 129


NODES = """
set -euo pipefail
srun() { while [[ $1 == --* ]]; do shift; done; "$@"; }
logs=$2
source "$1/slurm/link.sh"
node_local=$2/a
link_compiled load a
mkdir -p "$node_local/inductor"
echo code >"$node_local/inductor/x"
link_compiled save a
node_local=$2/b
link_compiled load b c
cat "$node_local/inductor/x"
"""


def test_compiled_code_goes_from_one_link_to_the_next(tmp_path: Path) -> None:
    command = ["bash", "-c", NODES, "_", ROOT, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "code\n"


SAVES_LONG = """
import signal, sys, time
from pathlib import Path

here = Path(sys.argv[1])

def save(*_):
    (here / "asked").touch()
    while not (here / "go").exists():
        time.sleep(0.01)
    (here / "saved").touch()
    sys.exit(3)

signal.signal(signal.SIGTERM, save)
(here / "ready").touch()
signal.pause()
"""


def test_a_launcher_leaves_its_ranks_the_time_of_a_save(tmp_path: Path) -> None:
    """torchrun would kill them after TORCH_ELASTIC_SHUTDOWN_TIMEOUT. The exit code is theirs, and not 75."""
    (tmp_path / "rank.py").write_text(SAVES_LONG)
    command = [sys.executable, "-m", "train.launch", "--standalone", "--nproc-per-node=1", "rank.py"]
    environment = os.environ | {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "0", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*command, tmp_path], cwd=tmp_path, env=environment)
    until((tmp_path / "ready").exists)
    process.send_signal(signal.SIGTERM)
    until(lambda: (tmp_path / "asked").exists() or process.poll() is not None)
    (tmp_path / "go").touch()
    assert process.wait() == 3
    assert (tmp_path / "saved").exists()


@pytest.mark.slow
def test_torchrun_runs_the_module(shards: Path, tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "train"]
    command = [sys.executable, *torchrun, *tiny_flags(shards, tmp_path, steps=2)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 ranks: 2 shards on" in done.stdout
    assert len(column(tmp_path / "run", "loss")) == 2
