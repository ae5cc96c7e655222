"""A step: loss and gradient are means over the learned tokens, bad steps are skipped, and the device is asked nothing;
and what validation says, against sums written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mixing import request
from support import EOD, make_shards, needs

torch = needs("torch")
import pretok.stream
from pretok.base.errors import PretokError
from pretok.base.records import replace
from pretok.base.storage import read_lines
from pretok.base.tokens import IGNORE
from pretok.shards.manifest import load_manifest
from pretok.stream.continued import beginning
from pretok.stream.mix_file import load_mix
from pretok.stream.mix_job import run_mix
from pretok.tokenizer.vocabulary import tokenizer_data
from tests.train_support import Trial, add_tokenizer, column, filled, model_file
from train import loop, step
from train import optimizer as optim
from train.config import TrainConfig
from train.evaluate import validation_sources
from train.model.sizes import model_config
from train.model.transformer import Decoder
from train.optimizer import WINDOW, Guard, learning_rate
from train.parallel.layout import Layout
from train.plan import count_tensors

LENGTH = 16
DEFAULTS = {"save_every": "3"}


def test_schedules() -> None:
    def rates(**settings: Any) -> list[float]:
        config = TrainConfig(lr=1.0, min_lr=0.1, **{"warmup": 4, **settings})
        return [learning_rate(config, number, 20) for number in range(20)]

    cosine, constant = rates(schedule="cosine"), rates(schedule="constant")
    stable = rates(schedule="wsd", decay=0.25)
    rooted = rates(schedule="wsd", decay=0.25, decay_shape="1-sqrt")
    for found in (cosine, constant, stable):
        assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert cosine[3:] == sorted(cosine[3:], reverse=True)
    assert (cosine[3], cosine[11], cosine[19]) == (1.0, pytest.approx(0.55), pytest.approx(0.1))
    assert stable[4:15] == rooted[4:15] == [1.0] * 11
    assert stable[15:] == pytest.approx([0.82, 0.64, 0.46, 0.28, 0.1])
    assert rooted[15:] == pytest.approx([0.1 + 0.9 * (1 - (done / 5) ** 0.5) for done in (1, 2, 3, 4, 5)])
    for shape in ("linear", "1-sqrt"):  # a decay of one step
        assert rates(schedule="wsd", decay=0.05, decay_shape=shape)[18:] == pytest.approx([1.0, 0.1])
    assert rates(schedule="cosine", warmup=19)[18:] == pytest.approx([1.0, 0.1])
    assert rates(warmup=0.2) == rates()
    assert rates(schedule="wsd", decay=0.0)[4:] == constant[4:] == [1.0] * 16


Judge = Callable[..., int]


def judge_of(**settings: Any) -> tuple[Guard, Judge]:
    """A guard, and what asks it about noisy steps around these values: how many of them it would skip."""
    guard, config = Guard(torch.device("cpu")), TrainConfig(**settings)
    generator = torch.Generator().manual_seed(0)

    def judge(norm: float, loss: float = 2.0, times: int = 1, growth: float = 1.0) -> int:
        """growth: of the norm from step to step."""
        skips = 0
        for number in range(times):
            noise = 1 + 0.05 * torch.randn(2, generator=generator)
            skips += bool(guard.judge(norm * growth**number * noise[0], loss * noise[1], config))
        return skips

    return guard, judge


def test_guard_skips_what_is_not_finite_or_far_out() -> None:
    guard, judge = judge_of(clip=0.1)
    assert judge(float("nan")) == judge(1.0, float("inf")) == 1
    assert judge(50.0) == 0  # not yet enough to compare with
    assert judge(1.0, times=2 * WINDOW) == 0
    # A spike of the norm, one of the loss, and what is not finite.
    assert judge(30.0) == judge(1.0, 9.0) == judge(float("inf")) == 1
    assert (guard.skipped.item(), guard.in_a_row.item()) == (5, 3)
    assert judge(1.0) == 0
    assert guard.in_a_row.item() == 0
    assert torch.isfinite(guard.norms).all()
    for _ in range(10):  # again and again, and they do not hide each other
        assert judge(20.0) == 1
        assert judge(1.0, times=WINDOW) == 0
    _, off = judge_of(skip_sigma=0.0)
    assert off(1.0, times=2 * WINDOW) == off(99.0) == 0


@pytest.mark.parametrize("rise", [1.3, 100.0])
def test_a_lasting_rise_is_skipped_a_few_times_and_then_usual(rise: float) -> None:
    for values in ((rise, 2.0), (1.0, 2.0 * rise)):
        guard, judge = judge_of(clip=0.1)
        judge(1.0, times=2 * WINDOW)
        assert judge(*values, times=2 * WINDOW) <= 6 < optim.MAX_SKIPS
        assert guard.in_a_row.item() == 0


def test_slow_growth_and_what_is_clipped_little_are_no_outliers() -> None:
    assert judge_of(clip=0.1)[1](1.0, times=500, growth=1.02) == 0  # to 20,000 times what it was
    _, judge = judge_of(clip=1.0)
    judge(0.01, times=2 * WINDOW)
    assert judge(0.9) == 0  # 90 times the usual, and below what clipping lets pass
    assert judge(1.5) == 1
    guard, judge = judge_of()
    judge(0.5, 2.0, times=2 * WINDOW)
    guard.losses.fill_(2.0)
    for loss, skipped in ((2.09, False), (2.2, True)):
        assert bool(guard.judge(torch.tensor(0.5), torch.tensor(loss), TrainConfig())) is skipped


def test_hyper_parameters_are_those_of_the_settings_after_a_resume(trial: Trial) -> None:
    """Another weight decay and other betas take effect at once."""
    seen = []

    def look(optimizer: Any, *rest: Any) -> None:
        names = ("betas", "eps", "weight_decay")
        seen.append([tuple(group[name] for name in names) for group in optimizer.param_groups])

    trial.around(step, "update", look)
    trial.train(steps=3)
    trial.train(steps=4, beta1=0.5, beta2=0.6, eps=1e-3, weight_decay=5.0)
    assert seen[0] == [((0.9, 0.95), 1e-8, 0.0), ((0.9, 0.95), 1e-8, 0.1)]
    assert seen[3] == [((0.5, 0.6), 1e-3, 0.0), ((0.5, 0.6), 1e-3, 5.0)]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_step_without_learned_tokens_changes_nothing(trial: Trial, conversations: Path, kind: str) -> None:
    """Neither parameters nor moments."""
    trial.shards, states = conversations, []

    def keep(_: Any, optimizer: Any, parameters: Any, *rest: Any) -> None:
        moments = [value for state in optimizer.state.values() for value in state.values()]
        states.append([getattr(t, "to_local", lambda t=t: t)().clone() for t in [*parameters, *moments]])

    trial.around(step, "update", None, keep)
    run = trial.train(mix=trial.mix((0, 16), (8, 0), (0, 8)), steps=4, optimizer=kind)
    assert [bool(learned) for learned in column(run, "learned")] == [True, True, False, True]
    assert [loss is None for loss in column(run, "loss")] == [False, False, True, False]
    assert column(run, "skipped") == [0, 0, 1, 1]
    assert [all(map(torch.equal, *pair)) for pair in pairwise(states)] == [False, True, False]


@pytest.mark.parametrize(
    ("steps", "inf", "message"),
    [
        (range(3, 100), False, r"the last 4 steps up to 6 were skipped"),
        (range(5, 6), True, r"not finite|were skipped"),
    ],
)
def test_a_run_that_is_lost_ends_and_spares_the_checkpoints(
    trial: Trial, steps: range, inf: bool, message: str
) -> None:
    """inf: the parameters themselves are spoiled, not gradients of some steps."""
    updates: list[int] = []

    def spoil(_: Any, parameters: Any, *rest: Any) -> None:
        updates.append(0)
        if len(updates) in steps:
            with torch.no_grad():
                (parameters[0] if inf else parameters[3].grad).to_local().fill_(torch.inf)

    trial.around(step, "update", spoil)
    trial.patch.setattr(loop, "MAX_SKIPS", 3)
    trial.ends_with(PretokError, message)
    assert [path.name for path in (trial.run / "checkpoints").glob("step-*")] == ["step-00000003"]
    assert not (trial.run / "done.json").exists()


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_no_host_synchronisation_inside_a_step(trial: Trial, kind: str) -> None:
    """A profile of a step of four micro-batches holds nothing that makes the host wait for the device."""
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    steps: list[int] = []

    def begin(*_: Any) -> None:
        steps.append(0)
        if len(steps) == 2:  # the first one also makes what all others use
            profile.start()

    trial.around(loop, "train_step", begin, lambda *_: len(steps) == 2 and profile.stop())
    trial.train(micro_batch=2, steps=2, optimizer=kind, schedule="constant")
    waiting = {"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal"}

    def inside(event: Any) -> set[str]:
        names = set()
        while event is not None:
            names.add(event.name)
            event = event.cpu_parent
        return names

    found = [inside(event) for event in profile.events()]
    assert sum("aten::embedding" in names for names in found) >= 4
    assert any("aten::_fused_adamw_" in names for names in found)
    # The CPU's kernel of the optimizer reads its scalars on the CPU; a GPU's reads them where they are.
    assert not [names for names in found if names & waiting and "aten::_fused_adamw_" not in names]


def answers(before: int, token: int) -> bool:
    """Whether a token of the conversations is learned: ids say of which kind they are."""
    return bool(before or token) and (not token or (token - 1) % 7 > 3)


CASES = [
    ("shards", 1.0, "adamw"),
    ("conversations", 0.5, "adamw"),
    ("conversations", 0.0, "adamw"),
    ("shards", 1.0, "muon"),
]


@pytest.mark.parametrize(("source", "clip", "kind"), CASES)
def test_one_process_equals_a_plain_loop(
    request: pytest.FixtureRequest, trial: Trial, source: str, clip: float, kind: str
) -> None:
    """A few lines of torch that know nothing of the trainer but the model: each micro-batch counts by its tokens."""
    trial.shards, steps = request.getfixturevalue(source), 4
    model_path, mix = model_file(trial.folder, tied=source == "shards"), trial.mix((0, 8 * steps))
    more = {"steps": steps, "clip": clip, "lr": 0.01, "warmup": 2, "micro_batch": 2, "optimizer": kind}
    run = trial.train(model=model_path, mix=mix, **more)
    view = pretok.stream.open(trial.shards, mix)
    model = filled(replace(model_config(model_path), vocab_size=view.vocab_size))
    groups: list[Any] = [{"params": [], "weight_decay": 0.0}, {"params": [], "weight_decay": 0.1}]
    matrices = []
    for name, parameter in model.named_parameters():
        decays = name.endswith("proj.weight") or name == "lm_head.weight"
        muon = kind == "muon" and name.endswith("proj.weight")
        (matrices if muon else groups[decays]["params"]).append(parameter)
    optimizers: list[Any] = [torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"))
    losses, norms = [], []
    for number in range(steps):
        tokens = torch.from_numpy(view.batch(range(8 * number, 8 * number + 8)))
        targets = tokens[:, 1:].clone()
        if source == "conversations":
            learned = [[answers(*pair) for pair in pairwise(row)] for row in tokens.tolist()]
            targets[~torch.tensor(learned)] = IGNORE
        logits = model(tokens[:, :-1])[..., : view.vocab_size]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())  # a mean over them
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip or 1e9).item())
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(TrainConfig(lr=0.01, warmup=2), number, steps)
            optimizer.step()
            optimizer.zero_grad()
    assert column(run, "loss") == pytest.approx(losses, rel=1e-5)
    assert column(run, "grad_norm") == pytest.approx(norms, rel=1e-4)


def test_bf16_is_near_and_not_equal(trial: Trial) -> None:
    runs = [trial.train(kind, precision=kind, micro_batch=2, lr=0.01, steps=4) for kind in ("fp32", "bf16")]
    losses = [column(run, "loss") for run in runs]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] != pytest.approx(losses[0], rel=1e-6)


def test_an_epoch_of_a_packed_mix_learns_its_targets(trial: Trial) -> None:
    """As the mix counted them."""
    run_mix(trial.shards, trial.folder / "mix.json", request("all:it=1", seq_len=63, pack="best-fit"))
    (source,) = load_mix(trial.folder / "mix.json").sources
    batch = max(n for n in range(1, 100) if source.sequences % n == 0)
    more = {"global_batch": batch, "steps": source.sequences // batch, "attention": "document"}
    run = trial.train(mix=str(trial.folder / "mix.json"), **more)
    assert sum(column(run, "learned")) == source.targets


@pytest.mark.parametrize(
    ("tied", "reshard", "times"),
    # In 8 passes of 2 steps each block twice, the ends of the model once each if there are two; or all once a step.
    [(False, True, 8 * (2 * 4 + 2)), (True, True, 8 * 2 * 4), (False, False, 2 * (4 + 3))],
)
def test_parameters_are_gathered_as_the_plan_counts(
    trial: Trial, tied: bool, reshard: bool, times: int
) -> None:
    """For each use, or once a step, as ZeRO-2 keeps them. Of an embedding and an output matrix one at a time is there,
    of the blocks two."""
    kind_of_group = torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup
    groups, most, gathered = set(), {"blocks": 0, "ends": 0}, []

    def look(_: Any, group: Any, *rest: Any) -> None:
        groups.add(group)
        here = [group for group in groups if group.is_unsharded or group._all_gather_result is not None]
        held = dict.fromkeys(most, 0)
        for parameter in (one for group in here for one in group.fsdp_params):
            kind = "blocks" if "layers." in parameter._param_fqn else "ends"
            held[kind] += 4 * parameter._orig_size.numel()
        most.update({kind: max(size, most[kind]) for kind, size in held.items()})

    trial.around(kind_of_group, "unshard", None, look)
    count = lambda group: None if group.is_unsharded else gathered.append(1)  # noqa: E731
    trial.around(kind_of_group, "_to_unsharded", count)
    sizes = trial.folder / "sizes.toml"
    text = Path(model_file(trial.folder, tied=tied)).read_text()
    sizes.write_text(text.replace("layers = 2", "layers = 4"))
    more = {"model": str(sizes), "steps": 2, "micro_batch": 2, "precision": "fp32", "save_every": "never"}
    config = trial.config(reshard=reshard, **more)
    loop.train(config)
    model = model_config(str(sizes))
    counted = count_tensors(model, Layout(1, 1, 1), 2, 4, LENGTH, config).gathered
    assert sum(most.values()) == counted - 2 * 4 * model.block_parameters  # less a block's gradients
    assert len(gathered) == times


def scored(
    model: Decoder, tokens: Any, vocab: int, learned: Callable[[int, int], bool]
) -> tuple[float, list[int]]:
    """The sum of the losses of what is learned, one sequence at a time, and what that is."""
    nats, targets = 0.0, list[int]()
    for start in range(0, len(tokens) - LENGTH, LENGTH):
        sequence = torch.from_numpy(tokens[start : start + LENGTH + 1])
        with torch.no_grad():
            losses = -model(sequence[None, :-1])[0, :, :vocab].double().log_softmax(1)
        for at, (before, target) in enumerate(pairwise(sequence.tolist())):
            if learned(before, target):
                nats += losses[at, target].item()
                targets.append(target)
    return nats, targets


def test_bits_per_byte_are_those_of_a_plain_sum(trial: Trial) -> None:
    """Short documents have more ends: two sources differ in bytes per token. Of conversations the learned tokens count
    and their own bytes: ids from 257 on have two, the end of a document none."""
    rng = np.random.default_rng(0)
    pairs = [(bytes([first]), bytes([second])) for first in range(65, 75) for second in range(97, 107)]

    def documents(count: int, shortest: int, longest: int) -> list[list[int]]:
        return [rng.integers(1, 357, rng.integers(shortest, longest)).tolist() for _ in range(count)]

    train = {name: documents(20, 20, 90) for name in ("it", "en", "chat")}
    val = {"it": documents(6, 20, 90), "en": documents(30, 1, 6), "chat": documents(9, 5, 60)}
    trial.shards = shards = make_shards(trial.folder / "shards", train, val=val, chats={"chat": 6})
    add_tokenizer(shards, tokenizer_data(".", ["<eod>"], pairs))
    wish, mix = request("320:chat=0.5,it=0.25,en=0.25", seq_len=LENGTH), trial.folder / "mix.json"
    run_mix(shards, mix, replace(wish, learn={"chat": ["answer", "user"]}))
    run = trial.train(mix=str(mix), steps=1, val_every=1, lr=0.0, val_sequences=1000)
    (record,) = read_lines(run / "validation.jsonl")
    manifest = load_manifest(shards)
    model = filled(replace(model_config(model_file(trial.folder)), vocab_size=1000))
    sums = []
    for name in val:
        paths = [shard.bin_path for shard in manifest.of(name, "val")]
        tokens = np.concatenate([np.fromfile(path, "<u2") for path in paths]).astype(np.int64)
        if name == "chat":
            nats, targets = scored(model, tokens, 1000, lambda _, b: b == EOD or (b - 1) % 7 in (2, 6))
            assert len(targets) < len(tokens) / 2
            text_bytes = sum(0 if target == 0 else 1 if target < 257 else 2 for target in targets)
        else:
            nats, targets = scored(model, tokens, 1000, lambda *_: True)
            # These shards have 4 bytes a token of text.
            text_bytes = len(targets) * 4 * (tokens != EOD).mean()
        sums.append((nats, text_bytes))
        assert record["sources"][name] == pytest.approx(nats / len(targets), rel=1e-5)
        assert record["bits_per_byte"][name] == pytest.approx(nats / math.log(2) / text_bytes, rel=1e-5)
    nats, text_bytes = map(sum, zip(*sums, strict=True))
    assert record["val_bits_per_byte"] == pytest.approx(nats / math.log(2) / text_bytes, rel=1e-5)
    assert record["bits_per_byte"]["en"] > 1.1 * record["bits_per_byte"]["it"]
    line = next(line for line in trial.said().splitlines() if "validation loss" in line)
    assert f"({record['val_bits_per_byte']:.4f} bits per byte)" in line
    assert f"en {record['sources']['en']:.4f} ({record['bits_per_byte']['en']:.4f})" in line


def test_validation_stays_what_it_was(tmp_path: Path) -> None:
    """Of the shards that a mix began with, however often it was continued; a mix of its own has all there is."""
    text = {"it": [list(range(1, 101))]}
    shards = make_shards(tmp_path / "0", text, val=text)
    run_mix(shards, tmp_path / "0.json", request("50:it=1", seq_len=5))
    for number in (1, 2):
        more = {"it": [list(range(200, 300))], "en": [list(range(300, 400))]}
        shards = make_shards(tmp_path / str(number), more, val=more, since=shards)
        after = beginning(load_manifest(shards), tmp_path / f"{number - 1}.json", 10)
        run_mix(shards, tmp_path / f"{number}.json", request("50:it=1", seq_len=5, after=after))
    run_mix(shards, tmp_path / "new.json", request("50:it=1", seq_len=5))

    def found(folder: str, mix: str) -> dict[str, Any]:
        config = TrainConfig(shards=str(tmp_path / folder))
        views = validation_sources(config, load_mix(tmp_path / mix))
        return {name: (one.view[:].tolist(), one.bytes_per_token) for name, one in views.items()}

    assert found("2", "2.json") == found("0", "0.json")
    assert {name: len(view) for name, (view, _) in found("2", "new.json").items()} == {"it": 60, "en": 40}
