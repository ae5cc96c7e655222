"""Streams inside other trainers: the exact order on any ranks at any resume, through the classes that each one takes.

What every rank is handed is hashed and compared with what `train` logs for the same mix. The classes for torchtitan
and OLMo-core are the examples of docs/trainers.md, as they stand there. Where a trainer is installed its own base
classes are used (.ci/run installs those that go beside us), elsewhere stand-ins with the same small interface.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handed import Handed, train_hashes
from hypothesis import given, settings
from hypothesis import strategies as st
from support import EOD, ROOT, make_shards, needs

import pretok.stream
from pretok.base import version as tried
from pretok.base.errors import MismatchError, UsageError
from pretok.integrations import checks
from pretok.shards.manifest import load_manifest
from pretok.stream import View
from pretok.stream.continued import beginning
from pretok.stream.mix_job import run_mix
from tests.mixing import request as wish

torch: Any = needs("torch")
pytorch: Any = importlib.import_module("pretok.integrations.pytorch")

SEQ_LEN, BATCH = 8, 12


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    documents = {"en": [range(1, 30)] * 40, "it": [range(30, 47)] * 90}
    return make_shards(tmp_path_factory.mktemp("shards"), documents)


@pytest.fixture(scope="module")
def mix(shards: Path) -> Path:
    run_mix(shards, shards / "mix.json", wish("1920:it=0.75,en=0.25", seq_len=SEQ_LEN))
    return shards / "mix.json"


@pytest.fixture(scope="module")
def view(shards: Path, mix: Path) -> View:
    return pretok.stream.open(shards, mix)


@pytest.fixture(scope="module")
def trained(shards: Path, mix: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The `data_hash` of each step of `train`."""
    sequences = len(pretok.stream.open(shards, mix))
    return train_hashes(tmp_path_factory.mktemp("train"), shards, mix, BATCH, sequences)


def stand_in_torchtitan() -> dict[str, types.SimpleNamespace]:
    class BaseDataLoader:
        @dataclass(kw_only=True, slots=True)
        class Config:
            dataset: str = ""
            dataset_path: str | None = None

            def build(self, **named: Any) -> Any:
                return self._owner(self, **named)  # type: ignore[attr-defined]

        def __init_subclass__(cls) -> None:
            cls.Config._owner = cls  # type: ignore[attr-defined]

    return {"torchtitan.components.dataloader": types.SimpleNamespace(BaseDataLoader=BaseDataLoader)}


def stand_in_olmo() -> dict[str, types.SimpleNamespace]:
    class DataLoaderBase:
        def __init__(self, *, global_batch_size: int, dp_world_size: int, dp_rank: int, **_: Any) -> None:
            self.global_batch_size = global_batch_size
            self.dp_world_size, self.dp_rank = dp_world_size, dp_rank
            self.batches_processed, self._epoch = 0, None

        @property
        def rank_batch_size(self) -> int:
            return self.global_batch_size // self.dp_world_size

        def __iter__(self) -> Iterator[Any]:
            for batch in self._iter_batches():  # type: ignore[attr-defined]
                self.batches_processed += 1
                yield batch

    return {"olmo_core.data.data_loader": types.SimpleNamespace(DataLoaderBase=DataLoaderBase)}


def stand_in_megatron() -> dict[str, types.SimpleNamespace]:
    return {"megatron.core.datasets.utils": types.SimpleNamespace(Split=Enum("Split", ["train", "valid"]))}


STAND_INS = {
    "torchtitan": ("torchtitan", stand_in_torchtitan),
    "OLMo-core": ("olmo_core", stand_in_olmo),
    "megatron": ("megatron", stand_in_megatron),
}
INSTALLED = {package for package, _ in STAND_INS.values() if importlib.util.find_spec(package)}


@pytest.fixture(scope="module")
def module() -> Iterator[Callable[[str], Any]]:
    """The module for a trainer, or its example, over the trainer itself or a stand-in."""
    patch = pytest.MonkeyPatch()

    @cache
    def load(name: str) -> Any:
        package, stand_in = STAND_INS[name]
        with pytest.MonkeyPatch.context() as importing, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a trainer's own, and torch's while it is imported
            if package not in INSTALLED:
                importing.setattr(tried, "version", lambda _: "0.16.1")
                for path, found in stand_in().items():
                    parts = path.split(".")
                    for end in range(1, len(parts)):
                        patch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(parts[end - 1]))
                    patch.setitem(sys.modules, path, found)
            if name == "megatron":
                return importlib.import_module("pretok.integrations.megatron")
            example = types.ModuleType("example")
            # By itself: what this file imports from the future is none of its.
            code = compile(first_snippet(name), f"docs/trainers.md, {name}", "exec", dont_inherit=True)
            exec(code, vars(example))
            return example

    yield load
    patch.undo()


def first_snippet(section: str) -> str:
    """The first Python of a section of the page."""
    page = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    return page.split(f"\n## {section}\n")[1].split("```python\n")[1].split("```")[0]


@dataclass
class GPTDatasetConfig:
    """What of Megatron-core's is read."""

    sequence_length: int = SEQ_LEN
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False
    create_attention_mask: bool = False
    tokenizer: Any = field(default_factory=lambda: types.SimpleNamespace(vocab_size=1024))


class Megatron:
    """Our dataset behind a sampler that reads in order from the samples consumed on, as Megatron-LM's `single` does."""

    def __init__(self, dataset: Any, micro: int, rank: int, ranks: int, state: Any) -> None:
        self.dataset, self.micro, self.rank, self.ranks = dataset, micro, rank, ranks
        self.consumed = state["position"] if state else 0

    def __iter__(self) -> Iterator[Any]:
        while self.consumed + self.micro * self.ranks <= len(self.dataset):
            first = self.consumed + self.rank * self.micro
            self.consumed += self.micro * self.ranks
            items = [list(range(first, first + self.micro))]
            yield next(iter(torch.utils.data.DataLoader(self.dataset, batch_sampler=items)))

    def state_dict(self) -> Any:
        return {"position": self.consumed}


def open_loader(
    name: str, module: Any, view: View, shards: Path, micro: int, rank: int, ranks: int, state: Any
) -> Any:
    """This rank's loader of a trainer, as the trainer builds it, after it has loaded `state`."""
    if name == "megatron":
        dataset = module(name).PretokDataset(view, GPTDatasetConfig())
        return Megatron(dataset, micro, rank, ranks, state)
    if name == "torchtitan":
        config = module(name).PretokDataLoader.Config(shards=str(shards), mix=str(shards / "mix.json"))
        loader = config.build(dp_world_size=ranks, dp_rank=rank, tokenizer=None, seq_len=SEQ_LEN,
                              local_batch_size=micro, snapshot_every_n_steps=None)  # fmt: skip
    elif name == "OLMo-core":
        split = {"dp_world_size": ranks, "dp_rank": rank, "fs_local_rank": rank}
        size = micro * ranks * SEQ_LEN
        loader = module(name).PretokDataLoader(view, global_batch_size=size, work_dir=shards, **split)
        loader.reshuffle(1)
    else:
        loader = pytorch.Loader(view, micro, rank=rank, ranks=ranks)
    if state:
        loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def ids_of(batch: Any) -> Any:
    """(n, seq_len + 1) ids from what a trainer gets."""
    if isinstance(batch, tuple):
        inputs, labels = batch[0]["input"], batch[1]
    else:
        inputs, labels = batch.get("input_ids", batch.get("tokens")), batch["labels"]
    return np.concatenate([inputs.numpy(), labels.numpy()[:, -1:]], axis=1)


@pytest.mark.parametrize("name", ["pytorch", "torchtitan", "OLMo-core", "megatron"])
def test_stopped_at_an_odd_step_and_resumed_with_other_ranks_it_reads_what_train_reads(
    name: str, module: Any, view: View, shards: Path, trained: list[str]
) -> None:
    """4 ranks for 3 steps of 12 sequences, then 2 ranks to the end, with other micro-batches where they may differ."""
    handed = Handed(BATCH)
    state = None
    for ranks, micro, steps in ((4, 3, 3), (2, 6 if name == "OLMo-core" else 2, 17)):
        opened = partial(open_loader, name, module, view, shards, micro)
        loaders = [opened(rank, ranks, state) for rank in range(ranks)]
        batches = [iter(loader) for loader in loaders]
        for _ in range(steps * BATCH // (ranks * micro)):
            for each in batches:
                handed.add(ids_of(next(each)))
        states = [loader.state_dict() for loader in loaders]
        assert all(one == states[0] for one in states)
        state = states[0]
        del batches
    assert state["position"] == 20 * BATCH == len(view)
    assert handed.hashes == trained


divided = st.sampled_from([(1, 1), (1, 4), (1, 12), (2, 3), (3, 1), (3, 4), (4, 1), (4, 3)])
layouts = st.tuples(divided, st.integers(0, 3), st.integers(0, 2))


@given(st.lists(layouts, min_size=1, max_size=5), st.integers(1, 200))
@settings(max_examples=25, deadline=None)
def test_any_attempts_read_what_an_uninterrupted_run_reads(
    view: View, trained: list[str], attempts: list[tuple[tuple[int, int], int, int]], message: int
) -> None:
    """Each attempt reads some steps of 12, saves, and reads some more that are lost with it; messages of any size."""
    handed, state = Handed(BATCH), None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytorch, "_MESSAGE", message)
        for (ranks, micro), steps, lost in [*attempts, ((1, 12), 2, 0)]:
            loaders = [pytorch.Loader(view, micro, rank=rank, ranks=ranks) for rank in range(ranks)]
            for loader in loaders if state else ():
                loader.load_state_dict(state)
            batches = [iter(loader) for loader in loaders]
            rounds = min(steps * BATCH, len(view) - handed.read) // (ranks * micro)
            for _ in range(rounds):
                for each in batches:
                    handed.add(ids_of(next(each)))
            state = loaders[0].state_dict()
            for _ in range(lost * BATCH // (ranks * micro)):
                for each in batches:
                    next(each, None)
    assert handed.hashes == trained[: len(handed.hashes)]
    assert state["position"] == handed.read


@pytest.mark.parametrize(
    ("sequences", "start", "read"),
    [(None, 0, 240), (48, 0, 48), (48, 32, 16), (50, 0, 48), (50, 7, 40), (48, 48, 0), (0, 0, 0)],
)
def test_a_loader_ends_after_the_sequences_that_were_asked_for(
    view: View, sequences: int | None, start: int, read: int
) -> None:
    """Two ranks of four sequences each, from a state with processes that read ahead: a loop needs no `break`."""
    workers = 2 if start else 0
    for rank in range(2):
        loader = pytorch.Loader(view, 4, rank=rank, ranks=2, sequences=sequences, workers=workers)
        loader.load_state_dict(pytorch.Loader(view, 4, position=start).state_dict())
        assert len(loader) == read // 8
        found = [ids_of(batch).tolist() for batch in loader]
        first = range(start + 4 * rank, start + read, 8)
        assert found == [view.batch(range(at, at + 4)).tolist() for at in first]
        assert loader.position == start + read


def test_a_state_from_after_the_end_is_refused(view: View) -> None:
    loader = pytorch.Loader(view, 4, sequences=48)
    with pytest.raises(UsageError, match="position 49 lies outside the 48 sequences that are to be read"):
        loader.load_state_dict({**loader.state_dict(), "position": 49})


@pytest.mark.parametrize("workers", [0, 2])
def test_labels_and_starts_of_documents(view: View, workers: int) -> None:
    loader = pytorch.Loader(view, 5, documents=True, workers=workers)
    batch = next(iter(loader))
    ids = view.batch(range(5))
    assert batch["input_ids"].tolist() == ids[:, :-1].tolist()
    assert batch["labels"].tolist() == ids[:, 1:].tolist()
    starts = np.zeros((5, SEQ_LEN), bool)
    starts[:, 0] = True
    starts[:, 1:] = ids[:, :-2] == EOD
    assert (batch["position_ids"].numpy() == 0).tolist() == starts.tolist()
    assert batch["cu_seqlens"].tolist() == [*np.flatnonzero(starts), 5 * SEQ_LEN]
    assert loader.state_dict()["position"] == 5  # though others are read ahead


def test_what_fills_a_sequence_up_is_not_learned(view: View) -> None:
    """An EOD behind an EOD, which belongs to the document before it."""
    ids = np.array([[5, EOD, EOD, EOD, 6, EOD, 7, EOD, EOD]])
    batch = pytorch.make_batch(view, ids, True)
    assert batch.labels.tolist() == [[EOD, -100, -100, 6, EOD, 7, EOD, -100]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 0, 1]]
    assert batch.cu_seqlens.tolist() == [0, 4, 6, 8]


def test_torchtitan_gets_positions_and_refuses_what_is_not_the_mixes(
    module: Any, shards: Path, mix: Path, view: View
) -> None:
    ours = module("torchtitan").PretokDataLoader
    given = {"dp_world_size": 2, "dp_rank": 1, "tokenizer": None, "seq_len": SEQ_LEN, "local_batch_size": 3}
    config = ours.Config(shards=str(shards), mix=str(mix))
    inputs, labels = next(iter(config.build(**given)))
    assert labels.tolist() == view.batch(range(3, 6))[:, 1:].tolist()
    assert (inputs["positions"][:, 1:] == 0).tolist() == (inputs["input"][:, :-1] == EOD).tolist()
    with pytest.raises(MismatchError, match="sequences of 8 tokens, not 9"):
        config.build(**given | {"seq_len": 9})
    fresh = config.build(**given)
    fresh.load_state_dict({})
    with pytest.raises(MismatchError, match="no position of pretok"):
        fresh.load_state_dict({"dp_rank_0": b"", "world_size": 4})


def test_olmo_counts_batches_in_tokens_and_documents_by_length(
    module: Any, view: View, tmp_path: Path
) -> None:
    ours = module("OLMo-core").PretokDataLoader
    given = {"work_dir": tmp_path, "dp_world_size": 2, "dp_rank": 0, "fs_local_rank": 0}
    loader = ours(view, global_batch_size=BATCH * SEQ_LEN, **given)
    loader.reshuffle(1)
    assert loader.total_batches == 20
    mock = loader.get_mock_batch()
    first = next(iter(loader))
    assert all((first[name] == mock[name]).all() for name in ("input_ids", "labels", "doc_lens"))
    assert (first["doc_lens"].sum(dim=1) == SEQ_LEN).all()
    assert first["max_doc_lens"] == first["doc_lens"].max(dim=1).values.tolist()
    begins = torch.cumsum(first["doc_lens"], 1)[first["doc_lens"] > 0]
    assert len(begins) == 6 + int((first["input_ids"][:, :-1] == EOD).sum())
    assert (loader.total_batches, loader.global_num_tokens_in_batch(first)) == (20, BATCH * SEQ_LEN)
    with pytest.raises(AssertionError, match="epochs inside"):
        loader.reshuffle(2)
    with pytest.raises(AssertionError, match="whole number of sequences"):
        ours(view, global_batch_size=BATCH * SEQ_LEN + 2, **given)


def test_megatron_gets_the_samples_of_its_own_dataset(module: Any, view: View) -> None:
    megatron = module("megatron")
    config = GPTDatasetConfig(create_attention_mask=True, eod_mask_loss=True)
    dataset = megatron.PretokDataset(view, config, samples=240)
    ids = view.batch(range(40))
    at = int(np.flatnonzero((ids[:, 1:-2] == EOD).any(axis=1))[0])
    plain = dataset[at]
    assert plain["tokens"].tolist() == ids[at, :-1].tolist()
    assert plain["labels"].tolist() == ids[at, 1:].tolist()
    assert plain["loss_mask"].tolist() == (ids[at, :-1] != EOD).tolist()
    assert plain["position_ids"].tolist() == list(range(SEQ_LEN))
    hidden = ~np.tri(SEQ_LEN, dtype=bool)
    assert plain["attention_mask"].tolist() == hidden[None].tolist()
    config.reset_position_ids = config.reset_attention_mask = True
    reset = dataset[at]
    document = np.cumsum(np.insert(ids[at, :-2] == EOD, 0, False))
    starts = [int(np.argmax(document == number)) for number in document]
    assert reset["position_ids"].tolist() == [at - start for at, start in enumerate(starts)]
    assert reset["attention_mask"][0].tolist() == (hidden | (document[:, None] != document)).tolist()
    assert dataset[None]["loss_mask"].sum() == 0
    with pytest.raises(UsageError, match="reads 241"):
        megatron.PretokDataset(view, config, 241)
    for changed, message in (
        ({"sequence_length": 16}, "is set to sequences of 16 tokens, but the mix has 8"),
        ({"tokenizer": types.SimpleNamespace(vocab_size=999)}, "999 rows .* 1000 ids"),
        ({"tokenizer": types.SimpleNamespace(vocab_size=128_256)}, "another tokenizer"),
    ):
        with pytest.raises(MismatchError, match=message):
            megatron.PretokDataset(view, GPTDatasetConfig(**changed))


def test_a_state_goes_on_with_a_mix_that_continues_its_own(view: View, shards: Path, mix: Path) -> None:
    after = beginning(load_manifest(shards), mix, 48)
    longer = shards / "longer.json"
    table = {"seq_len": SEQ_LEN, "seed": after.seed, "max_epochs": 99}
    run_mix(shards, longer, wish("960:it=0.5,en=0.5", after=after, **table))
    state = pytorch.Loader(view, 4, position=48).state_dict()
    loader = pytorch.Loader(pretok.stream.open(shards, longer), 4)
    loader.load_state_dict(state)
    assert loader.position == 48
    words = f"read 60 sequences of the stream {view.fingerprint}.*only the first 48"
    with pytest.raises(MismatchError, match=words):
        loader.load_state_dict({**state, "position": 60})
    with pytest.raises(MismatchError, match="only the first 240"):
        pytorch.Loader(view, 4).load_state_dict({**state, "position": 241})


def test_a_tokenizer_that_is_not_the_shards_is_refused(view: View, tmp_path: Path) -> None:
    from pretok.tokenizer.vocabulary import write_vocab

    write_vocab(tmp_path, ".", ["<eod>"], [])
    with pytest.raises(MismatchError, match="name the tokenizer of the shards"):
        checks.check_model(view, tokenizer=tmp_path)
    checks.check_model(view, tokenizer="a/name/that/is/no/folder", rows=1000, seq_len=SEQ_LEN)


def test_a_version_that_nobody_tried_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tried, "version", lambda package: "0.31.0")
    words = r"torchtitan 0\.31\.0 on \S+ is not known to work .* known are 0\.3\.\*"
    with pytest.raises(UsageError, match=words):
        tried.refuse_untried("torchtitan", "0.3")
    monkeypatch.setattr(tried, "version", lambda package: "0.3")
    tried.refuse_untried("torchtitan", "0.3")


def test_the_snippets_of_the_page_run(
    view: View, shards: Path, mix: Path, trained: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those for trainers that need no module of ours, over the shards that they name."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "shards").symlink_to(shards)
    (tmp_path / "work" / "mix.json").symlink_to(mix)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"batch_size": 4, "device": "cpu"}
    exec(first_snippet("nanoGPT"), names)
    for first in (0, 4):
        inputs, targets = names["get_batch"]("train")
        expected = view.batch(range(first, first + 4))
        assert (inputs.tolist(), targets.tolist()) == (expected[:, :-1].tolist(), expected[:, 1:].tolist())
    litgpt = types.ModuleType("litgpt.data")
    litgpt.DataModule = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "litgpt", types.ModuleType("litgpt"))
    monkeypatch.setitem(sys.modules, "litgpt.data", litgpt)
    exec(first_snippet("litgpt, Lightning, NeMo"), names)
    module = names["Pretok"]()
    module.connect(batch_size=4)
    assert next(iter(module.train_dataloader())).tolist() == view.batch(range(4)).tolist()
    linear = torch.nn.Embedding(1000, 1000)
    names = {"rank": 0, "ranks": 1, "steps": 2, "global_batch": 8, "resumed": False, "model": linear}
    names["cross_entropy"] = torch.nn.functional.cross_entropy
    exec(first_snippet("PyTorch and accelerate"), names)
    names = {"positions": range(BATCH), "ids": view.batch(range(BATCH)), "previous": ""}
    exec(first_snippet("Compare two runs"), names)
    assert names["previous"] == trained[0]
