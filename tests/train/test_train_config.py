"""Settings: what is refused, how a batch is solved, how the mesh is."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import needs

from pretok.base.errors import UsageError

needs("torch")
from train_support import flags

from train.config import (
    TrainConfig,
    add_flags,
    check_table,
    parse,
    recomputed,
    whole_number,
)
from train.model.sizes import PRESETS
from train.parallel.layout import check_split, compiles, solve_batch, solve_layout
from train.tune import write_toml


def parsed(*arguments: str) -> TrainConfig:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return parse(parser, arguments)[0]


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('lr = 1\nsteps = 50\ncompile = true\nsave_every = 7\nmodel = "1b"\n')
    config = parsed("--config", str(path), "--steps", "1k", "--no-compile")
    assert (config.lr, config.steps, config.compile, config.save_every) == (1.0, 1000, False, "7")
    assert config.model == "1b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("micro_bach = 3", "unknown setting 'micro_bach'; the nearest known is 'micro_batch'"),
        ("steps = 1.5", "steps is 1.5; it must be of type int"),
        ("compile = 1", "compile is 1; it must be of type bool"),
        ("attention = 'local'", "attention is 'local'; it must be one of causal, document"),
        ("keep_last = 0", "keep_last is 0; it must be at least 1"),
        ("save_every = 'soon'", "save_every is 'soon'"),
        ("checkpointing = 'most'", "checkpointing is 'most'"),
        ("checkpointing = 1.0", "checkpointing is '1.0'; it must be .* or a share of blocks"),
        ("lr = ", "Invalid value"),
        ("lr = " + "1" * 5000, "run.toml: Exceeds the limit"),
        ("model = '\udcff'", "run.toml: 'utf-8' codec can't decode"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        parsed("--config", str(path))


def test_unknown_flag_names_the_nearest() -> None:
    with pytest.raises(
        UsageError, match="unknown argument '--mirco-batch'; the nearest known is '--micro-batch'"
    ):
        parsed("--mirco-batch", "3")


def test_a_word_like_none_has_no_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        parsed("--frobnicate=1")
    assert str(caught.value) == "unknown argument '--frobnicate'"


def test_the_help_shows_what_a_person_sets() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    shown = set(re.findall(r"^  --([a-z0-9-]+)", parser.format_help(), re.M))
    assert len(shown) <= 40
    often = {item.name.replace("_", "-") for item in fields(TrainConfig) if not item.metadata["rare"]}
    assert shown == {"config", *often}
    assert "\nparallelism:\n  --shard" in parser.format_help()
    assert parsed("--eps", "1e-6", "--no-reshard") == TrainConfig(eps=1e-6, reshard=False)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"micro_bach": 3}, r"\[train\]: unknown setting 'micro_bach'; the nearest known is 'micro_batch'"),
        ({"learning_rate": 3e-4}, "unknown setting 'learning_rate'"),
        ({"steps": "-5"}, "steps: '-5' is not a"),
        ({"warmup": -1}, "warmup is -1.0; it must be at least 0"),
        ({"lr": "nan"}, "lr is nan; it must be at least 0"),
        ({"tokens": "1.5"}, "tokens: '1.5' is not a whole number"),
        ({"schedule": "linear"}, "schedule is 'linear'; it must be one of cosine, wsd, constant"),
        ({"model": "7b"}, "--model 7b is not a preset"),
        ({"model": "none.toml"}, "--model none.toml is not a preset"),
    ],
)
def test_a_table_of_a_recipe_is_checked(table: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_table(table)


def test_a_good_table_passes_without_torch() -> None:
    script = "import sys; sys.modules['torch'] = None\nfrom train.config import check_table\n"
    script += "check_table({'model': '1b', 'micro-batch': 4, 'tokens': '64MiB', 'lr': 1, 'save_every': 100})"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dim = 'x'", r"model.toml: Expected `int`, got `str` - at `\$.dim`"),
        ("dim = 0\nlayers = 1\nheads = 1\nkv_heads = 1\nhidden = 1", "dim is 0; it"),
        ("dims = 1", "unknown field `dims`"),
        ("dim =", "model.toml: Invalid value"),
    ],
)
def test_bad_sizes_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "model.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        check_table({"model": str(path)})


def test_tune_writes_a_file_of_the_same_settings(tmp_path: Path) -> None:
    config = TrainConfig(shards='s"', compile=True, reshard=False, lr=0.1, steps=7, save_every="10m")
    write_toml(tmp_path / "trial.toml", config.as_dict() | {"phases": None})
    assert parsed("--config", str(tmp_path / "trial.toml")) == config
    assert parsed(*flags(config)) == config


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("1_000", 1000),
        ("16k", 16_000),
        ("1.2T", 1_200_000_000_000),
        ("0.5B", 5 * 10**8),
        ("2MiB", 2**21),
    ],
)
def test_counts(text: str, value: int) -> None:
    assert whole_number(text) == value


@pytest.mark.parametrize("text", ["many", "-5", "1.5", "", "1e-6"])
def test_count_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a"):
        whole_number(text)


def test_what_of_each_block_is_recomputed() -> None:
    def kinds(setting: str) -> str:
        return " ".join(recomputed(setting, block) for block in range(4))

    assert kinds("full") == "full full full full"
    assert (kinds("none"), kinds("ops")) == ("none none none none", "ops ops ops ops")
    assert kinds("0.5") == "ops full ops full"
    assert kinds("0.25") == "ops ops ops full"
    assert sum(recomputed("0.3", block) == "full" for block in range(1000)) == 300


sizes = st.integers(1, 64)


@given(ranks=sizes, micro=sizes, accumulation=sizes)
def test_the_accumulation_follows(ranks: int, micro: int, accumulation: int) -> None:
    whole = ranks * micro * accumulation
    solved = solve_batch(ranks, whole, micro)
    assert (solved.global_batch, solved.micro_batch, solved.accumulation) == (whole, micro, accumulation)
    assert solve_batch(ranks, ranks * micro, None).micro_batch == micro


@given(ranks=sizes, micro=sizes, whole=st.integers(1, 4096))
def test_what_does_not_divide_is_refused_with_values_that_do(ranks: int, micro: int, whole: int) -> None:
    if whole % (ranks * micro) == 0:
        return
    with pytest.raises(UsageError, match="nearest: ") as caught:
        solve_batch(ranks, whole, micro)
    nearest = [int(text) for text in str(caught.value).rpartition("nearest: ")[2].split(" or ")]
    assert nearest
    for value in nearest:
        assert solve_batch(ranks, value, micro).accumulation >= 1
        assert abs(value - whole) < ranks * micro


def test_layout() -> None:
    def shape(*arguments: int | None) -> tuple[int, int, int]:
        layout = solve_layout(*arguments)  # type: ignore[arg-type]
        return layout.replicate, layout.shard, layout.tensor

    assert shape(16, 4, None, 1) == (4, 4, 1)  # one copy a node
    assert shape(16, 4, None, 2) == (4, 2, 2)
    assert shape(16, 4, 1, 1) == (16, 1, 1)
    assert shape(16, 4, 16, 1) == (1, 16, 1)
    assert shape(3, 4, None, 1) == (1, 3, 1)
    with pytest.raises(UsageError, match=r"shard = 3 does not divide 16 .* valid: \[1, 2, 4, 8, 16\]"):
        solve_layout(16, 4, 3, 1)
    assert shape(16, 4, None, 1, 1, 8) == (2, 8, 1)  # neighbours beyond the node share sequences
    assert solve_layout(16, 4, 8, 1, 1, 4).data_ranks == 4
    with pytest.raises(UsageError, match=r"groups of context = 4; valid: \[4, 8, 16\]"):
        solve_layout(16, 4, 2, 1, 1, 4)
    with pytest.raises(UsageError, match=r"--tensor 2 x --context 8 does not divide kv_heads \(8\)"):
        check_split(TrainConfig(tensor=2, context=8), PRESETS["1b"], 4096)
    with pytest.raises(UsageError, match="tensor = 3"):
        solve_layout(16, 4, None, 3)
    check_split(TrainConfig(tensor=8), PRESETS["1b"], 4096)
    with pytest.raises(UsageError, match=r"--tensor 16 does not divide kv_heads \(8\)"):
        check_split(TrainConfig(tensor=16), PRESETS["1b"], 4096)
    with pytest.raises(UsageError, match=r"--tensor 8 does not divide seq_len \(4100\)"):
        check_split(TrainConfig(tensor=8), PRESETS["1b"], 4100)
    with pytest.raises(UsageError, match="--precision float8 works neither with --tensor nor with widths"):
        check_split(TrainConfig(tensor=2, precision="float8"), PRESETS["1b"], 4096)
    check_split(TrainConfig(precision="float8"), PRESETS["1b"], 4096)
    for settings, able, compiled in (
        ({}, True, True),
        ({}, False, False),
        ({"tensor": 2, "checkpointing": "full"}, True, False),
        ({"tensor": 2, "checkpointing": "ops"}, True, True),
        ({"compile": False}, True, False),
        ({"compile": True}, False, True),
    ):
        assert compiles(TrainConfig(**settings), PRESETS["1b"], able=able) is compiled
    check_split(TrainConfig(tensor=2, compile=True, checkpointing="ops"), PRESETS["1b"], 4096)
    with pytest.raises(UsageError, match=r"does not work with --checkpointing 0\.5; use ops or none"):
        check_split(TrainConfig(tensor=2, compile=True, checkpointing="0.5"), PRESETS["1b"], 4096)


def test_trainer_needs_torch_numpy_safetensors_and_xxhash_alone() -> None:
    script = (
        "import sys\n"
        "import train.loop, train.checkpoint.export, train.plan, train.tune, train.__main__\n"
        "bad = {'pydantic', 'typer', 'ray', 'pyarrow', 'gigatoken', 'transformers'}\n"
        "print(sorted(bad & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout == "[]\n"
