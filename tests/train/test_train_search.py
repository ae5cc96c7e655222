"""A plan with a pipeline counts what its fullest rank holds; a search proposes what fits and why it is fast."""

from __future__ import annotations

import json

import pytest
from support import needs

torch = needs("torch")
from pretok.base.errors import UsageError
from pretok.base.records import replace
from train.config import TrainConfig
from train.model.sizes import PRESETS
from train.model.transformer import Decoder
from train.parallel.layout import Layout, bubble, split_layers
from train.parallel.pipeline import take_part
from train.tools.memory import HEADROOM, count_tensors
from train.tools.plan import main
from train.tools.search import Machine, search

MODEL = PRESETS["italia-9b"]
LEONARDO = (
    "--model italia-9b --nodes 64 --devices-per-node 4 --device A100-SXM-64GB --mfu 0.4 --global-batch 1024"
)
MACHINE = Machine(devices=32, per_node=4, memory=64, flops=1.4e14, inside=2e11, between=1.25e10)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_parameters_of_the_fullest_rank_are_those_of_its_parts(schedule: str) -> None:
    config = TrainConfig(pipeline=4, pipeline_schedule=schedule)
    blocks = split_layers(MODEL, 8 if schedule == "interleaved" else 4)
    ranks = [0] * 4
    for stage in range(len(blocks)):
        with torch.device("meta"):
            part = Decoder(MODEL)
        take_part(part, stage, blocks)
        ranks[stage % 4] += sum(parameter.numel() for parameter in part.parameters())
    assert sum(ranks) == MODEL.parameters
    counted = count_tensors(MODEL, Layout(1, 1, 1, 4), 1, 8, 4096, config)
    assert counted.parameters // 4 in ranks
    assert counted.gradients == 2 * counted.parameters  # whole ones of a step, and what remains of them
    one = count_tensors(MODEL, Layout(1, 1, 1), 1, 8, 4096, TrainConfig())
    assert counted.parameters < one.parameters / 3


def test_more_micro_batches_are_in_memory_with_gpipe_and_no_more_with_1f1b() -> None:
    def held(schedule: str, passes: int) -> int:
        config = TrainConfig(pipeline=4, pipeline_schedule=schedule, checkpointing="full")
        buffers = 2 * passes * 4096 * MODEL.dim * 2  # of what is received
        return count_tensors(MODEL, Layout(1, 4, 1, 4), 1, passes, 4096, config).activations - buffers

    assert held("1f1b", 32) == held("1f1b", 8)
    assert held("gpipe", 32) > held("gpipe", 8) > held("1f1b", 8)


def test_a_search_proposes_what_fits_fastest_first() -> None:
    config = TrainConfig(global_batch=1024)
    found = search(MODEL, config, 4096, MACHINE)
    assert found == sorted(found, key=lambda choice: (round(choice.seconds, 2), choice.memory))
    for choice in found:
        batch, layout = choice.batch, choice.layout
        assert layout.pipeline * layout.replicate * layout.shard * layout.tensor == 32
        assert batch.micro_batch * batch.accumulation * layout.data_ranks == 1024
        sizes = (batch.micro_batch, batch.accumulation, 4096)
        assert count_tensors(MODEL, layout, *sizes, choice.config).total == choice.memory
        assert choice.memory <= HEADROOM * 64e9
        products = choice.seconds - choice.recomputing - choice.waiting - choice.tensor - choice.data
        assert products == pytest.approx(1024 * 4096 * MODEL.flops_per_token(4096) / 32 / 1.4e14)
        if layout.pipeline > 1:
            waits = choice.waiting / (choice.seconds - choice.data)
            assert waits == pytest.approx(bubble(choice.config, batch.accumulation))
    # Where no dimension of the mesh may help, a share of the blocks recomputed is faster than all of them.
    alone = [one for one in found if one.layout.tensor == one.layout.pipeline == 1 and one.recomputing]
    assert min(alone, key=lambda choice: choice.seconds).config.checkpointing == "0.25"
    # Less memory costs time, slower links cost time, and what is far too small fits nothing.
    small = search(MODEL, config, 4096, replace(MACHINE, memory=24))
    assert small[0].seconds > found[0].seconds
    slow = search(MODEL, config, 4096, replace(MACHINE, inside=1e10, between=1e9))
    assert slow[0].seconds > found[0].seconds
    assert search(MODEL, config, 4096, replace(MACHINE, devices=2, per_node=2)) == []


def test_the_example_of_the_documents_fits_and_a_bubble_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    main([*LEONARDO.split(), "--micro-batch", "4", "--checkpointing", "full", "--tokens", "1.2T"])
    assert "\nfits: 39.9 GiB counted" in capsys.readouterr().out
    main([*LEONARDO.split(), "--micro-batch", "1", "--pipeline", "4", "--checkpointing", "ops"])
    told = "devices wait 15.8% of a step for other stages; interleaved with 2 stages a rank: 8.6%"
    assert told in capsys.readouterr().out
    search_on_8 = [*LEONARDO.replace("--nodes 64", "--nodes 8").split(), "--search"]
    main(search_on_8)
    text = capsys.readouterr().out
    main([*search_on_8, "--json"])
    best = json.loads(capsys.readouterr().out)[0]
    assert f"--micro-batch {best['batch']['micro_batch']}" in text.splitlines()[2]
    with pytest.raises(UsageError, match="--search needs --global-batch"):
        main(["--model", "1b", "--search"])
