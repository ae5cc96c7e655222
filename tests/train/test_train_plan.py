"""`train plan`: what a rank holds, what fits, what a run costs."""

from __future__ import annotations

import json

import pytest
from support import ROOT, needs

torch = needs("torch")
from train.__main__ import main
from train.config import TrainConfig
from train.model.sizes import PRESETS
from train.model.transformer import Decoder
from train.parallel.layout import Layout, split_layers
from train.parallel.pipeline import take_part
from train.plan import GIB, count_tensors, largest_micro_batch
from train.plan import main as plan_main


def test_plan_counts_what_a_rank_holds() -> None:
    """Parameters, gradients and moments on the meta device, split as the mesh splits them."""
    model = PRESETS["italia-9b"]
    config = TrainConfig(precision="bf16")
    memory = count_tensors(model, Layout(64, 4, 1), 1, 2, 4096, config)
    assert memory.parameters == pytest.approx(4 * model.parameters / 4, rel=1e-3)
    assert memory.optimizer == 2 * memory.parameters
    assert memory.gradients == memory.parameters
    split = count_tensors(model, Layout(64, 2, 2), 1, 2, 4096, config)
    assert split.parameters == pytest.approx(memory.parameters, rel=1e-3)
    assert split.activations < memory.activations
    shared = count_tensors(model, Layout(16, 16, 1, 1, 4), 1, 2, 4 * 4096, config)
    again = (
        model.layers * model.attention_dim * 2 * 4096
    )  # the outputs of attention, which the exchange copies
    assert shared.activations == memory.activations + again
    kept = {
        kind: count_tensors(
            model, Layout(1, 4, 1), 1, 1, 4096, TrainConfig(precision="bf16", checkpointing=kind)
        ).activations
        for kind in ("none", "ops", "0.5", "full")
    }
    assert kept["none"] > kept["ops"] > kept["0.5"] > kept["full"]


def test_plan_finds_the_largest_micro_batch() -> None:
    config = TrainConfig(precision="bf16", compile=True)
    arguments = (PRESETS["1b"], Layout(1, 1, 1), 1, 4096, config)
    size = largest_micro_batch(*arguments, 80)
    model, layout, accumulation, seq_len, _ = arguments
    assert size > 1
    assert count_tensors(model, layout, size, accumulation, seq_len, config).total <= 0.9 * 80e9
    assert count_tensors(model, layout, size + 1, accumulation, seq_len, config).total > 0.9 * 80e9
    assert largest_micro_batch(PRESETS["italia-9b"], *arguments[1:], 40) == 0


def test_plan_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--model", "italia-9b", "--nodes", "64", "--devices-per-node", "4"]
    command += ["--global-batch", "1024", "--micro-batch", "2", "--tokens", "1.2T"]
    main(command)
    text = capsys.readouterr().out
    assert "accumulation 2 x 256 data-parallel ranks" in text
    assert "step: n/a" in text
    main([*command, "--peak", "300", "--mfu", "0.5", "--json"])
    plan = json.loads(capsys.readouterr().out)
    model = PRESETS["italia-9b"]
    seconds = 1024 * 4096 * model.flops_per_token(4096) / (150e12 * 256)
    assert plan["step_seconds"] == pytest.approx(seconds)
    assert plan["steps"] == 1_200_000_000_000 // (1024 * 4096)
    assert plan["node_hours"] == pytest.approx(64 * seconds * plan["steps"] / 3600)
    assert plan["checkpoint_bytes"] / GIB == pytest.approx(12 * model.parameters / GIB)


def test_plan_says_loudly_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--model", "italia-9b", "--nodes", "64", "--devices-per-node", "4", "--mfu", "0.4"]
    command += ["--global-batch", "1024", "--tokens", "1.2T", "--micro-batch", "2"]
    main([*command, "--device", "A100-SXM-64GB"])
    text = capsys.readouterr().out
    assert "DOES NOT FIT: 82.6 GiB counted, 53.6 GiB are 90% of 64 GB" in text
    assert "step: n/a; steps: 286102; run: n/a; n/a\n" in text
    main([*command, "--device", "A100-SXM-64GB", "--checkpointing", "full", "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert plan["fits"] is True
    assert plan["hours"] > 0
    main([*command, "--device", "A100"])
    assert "the memory of the device is not known; give --memory" in capsys.readouterr().out
    main([*command, "--device", "A100", "--memory", "80", "--json"])
    assert json.loads(capsys.readouterr().out)["fits"] is False


def test_the_plan_in_the_documentation_fits(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    lines = [line.split() for line in text.replace("\\\n", " ").splitlines()]
    command = next(words for words in lines if words[:2] == ["train", "plan"])
    main(command[1:])
    assert "\nfits: " in capsys.readouterr().out


MODEL = PRESETS["italia-9b"]
LEONARDO = (
    "--model italia-9b --nodes 64 --devices-per-node 4 --device A100-SXM-64GB --mfu 0.4 --global-batch 1024"
)


def test_parameters_of_the_fullest_rank_are_those_of_its_part() -> None:
    config = TrainConfig(pipeline=4)
    ranks = []
    for stage in range(4):
        with torch.device("meta"):
            part = Decoder(MODEL)
        take_part(part, stage, split_layers(MODEL, 4))
        ranks.append(sum(parameter.numel() for parameter in part.parameters()))
    assert sum(ranks) == MODEL.parameters
    counted = count_tensors(MODEL, Layout(1, 1, 1, 4), 1, 8, 4096, config)
    assert counted.parameters // 4 in ranks
    assert counted.gradients == 2 * counted.parameters  # whole ones of a step, and what remains of them
    one = count_tensors(MODEL, Layout(1, 1, 1), 1, 8, 4096, TrainConfig())
    assert counted.parameters < one.parameters / 3


def test_no_more_micro_batches_are_in_memory_than_stages() -> None:
    def held(passes: int) -> int:
        config = TrainConfig(pipeline=4, checkpointing="full")
        buffers = 2 * passes * 4096 * MODEL.dim * 2  # of what is received
        return count_tensors(MODEL, Layout(1, 4, 1, 4), 1, passes, 4096, config).activations - buffers

    assert held(32) == held(8) == held(4)


def test_the_example_of_the_documents_fits_and_a_bubble_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    plan_main([*LEONARDO.split(), "--micro-batch", "4", "--checkpointing", "full", "--tokens", "1.2T"])
    assert "\nfits: 39.9 GiB counted" in capsys.readouterr().out
    plan_main([*LEONARDO.split(), "--micro-batch", "1", "--pipeline", "4", "--checkpointing", "ops"])
    told = "devices wait for other stages 15.8% of each step\n"
    assert told in capsys.readouterr().out
