"""What other trainers read: the blend for Megatron-LM, and files for OLMo-core; their readers give our documents."""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from mixing import request
from support import EOD, make_shards, needs

import pretok
from pretok.base.console import NO_CONSOLE
from pretok.base.errors import MismatchError, PartitionsFailed, UsageError
from pretok.base.execute import Engine
from pretok.base.storage import checksum, read_json
from pretok.base.tree import Tree
from pretok.cli import run_command
from pretok.documents.export import export_job as job
from pretok.documents.export.export_job import Export, Learn, run_export
from pretok.documents.export.text import megatron_blend
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_job import run_mix

SEQ_LEN = 8
DOCUMENTS = {
    "en": [range(500 + start, 500 + start + 40) for start in range(0, 400, 40)],
    "it": [range(1 + start, 1 + start + 70) for start in range(0, 420, 70)],
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    return make_shards(folder, DOCUMENTS, val={"it": [range(1, 100)]}, documents_per_shard=4)


def export(shards: Path, out: Path, here: Engine, learn: Learn | None = None) -> Export:
    return run_export(load_manifest(shards), out, {"it": 900, "en": 100}, here, NO_CONSOLE, learn or {})


def ids(source: str) -> list[int]:
    return [token for document in DOCUMENTS[source] for token in (*document, EOD)]


def test_files_hold_all_tokens_in_order_and_the_list_matches_them(
    shards: Path, tmp_path: Path, here: Engine
) -> None:
    made = export(shards, tmp_path, here)
    for source in DOCUMENTS:
        files = [file for file in made.files if (file.source, file.split) == (source, "train")]
        data = b"".join((tmp_path / file.path).read_bytes() for file in files)
        assert np.frombuffer(data, made.dtype).tolist() == ids(source)
    names = [shard.prefix.name for shard in load_manifest(shards).shards]
    assert [Path(file.path).stem for file in made.files] == names
    for file in made.files:
        stem = (tmp_path / file.path).as_posix().removesuffix(".npy")
        assert {suffix: Path(stem + suffix).stat().st_size for suffix in file.sizes} == file.sizes
        assert {suffix: checksum(Path(stem + suffix)) for suffix in file.checksums} == file.checksums
        assert set(file.sizes) == {".npy", ".csv.gz"}
    assert made.weights == {"it": 0.9, "en": 0.1}
    assert made.tokens == sum(len(ids(source)) for source in DOCUMENTS) + 100
    assert not [path for path in tmp_path.rglob(".*") if path.name != ".lock"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    assert export(shards, tmp_path, here) == made
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")} == before
    with pytest.raises(MismatchError, match="choose another folder"):
        export(shards, tmp_path, here, {"en": ("answer",)})


def test_finished_files_are_kept(
    shards: Path, tmp_path: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = itertools.repeat(OSError("disk full"))
    monkeypatch.setattr(job, "Tree", Mock(side_effect=itertools.chain([Tree(), Tree(), Tree()], full)))
    with pytest.raises(PartitionsFailed, match="disk full"):
        export(shards, tmp_path, here)
    monkeypatch.undo()
    done = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    assert len(done) == 3
    with pytest.raises(MismatchError, match="unfinished shards of another plan"):
        export(shards, tmp_path, here, {"en": ("answer",)})
    made = export(shards, tmp_path, here)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert not list(tmp_path.rglob(".*.tmp"))
    assert export(shards, tmp_path / "whole", here) == made


def test_the_command(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, blend = str(tmp_path / "out"), tmp_path / "blend.json"
    for options, code, message in (
        (
            f"jax --out {out}",
            2,
            "known are megatron, olmo. For what reads a mix in Python see docs/trainers.md",
        ),
        ("olmo", 2, "name it with --out"),
        (f"megatron --out {blend}", 0, f"{blend}: the megatron files for {shards}\n"),
    ):
        assert run_command(f"export {shards} --workers 0 --to {options}".split()) == code
        assert message in "".join(capsys.readouterr())


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_olmo_core_reads_the_files(shards: Path, tmp_path: Path, here: Engine) -> None:
    needs("olmo_core")
    from olmo_core.data import NumpyFSLDataset
    from olmo_core.data.utils import iter_document_indices

    made = export(shards, tmp_path, here)
    paths = [tmp_path / file.path for file in made.files if file.source == "it" and file.split == "train"]
    tokens = {"pad_token_id": EOD, "eos_token_id": EOD, "vocab_size": 1000, "dtype": np.uint16}
    dataset = NumpyFSLDataset(*paths, sequence_length=16, **tokens)
    dataset.prepare()
    starts = [*range(0, 284 - 15, 16), *range(284, 426 - 15, 16)]  # of two files
    expected = [ids("it")[start : start + 16] for start in starts]
    assert [dataset[i]["input_ids"].tolist() for i in range(len(dataset))] == expected
    spans = [list(iter_document_indices(path, use_array_if_local=False)) for path in paths]
    assert spans == [[(start, start + 71) for start in range(0, size, 71)] for size in (284, 142)]


def test_masks_say_what_is_learned_of_conversations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A byte for each token of every file; ids of conversations say of which kind they are."""
    shards = make_shards(tmp_path / "shards", DOCUMENTS, documents_per_shard=4, chats={"en": 6})
    mix, out = tmp_path / "mix.json", tmp_path / "out"
    weights = {"it": 0.5, "en": 0.5}
    pretok.mix(shards, mix, learn={"en": ["user", "answer"]}, weights=weights, tokens=320, seq_len=8)
    assert run_command(f"export {shards} --mix {mix} --workers 0 --to megatron".split()) == 0
    assert "it will learn every token" in capsys.readouterr().err
    export = f"export {shards} --workers 0 --to olmo --out {out} --mix".split()
    assert run_command([*export, str(mix)]) == 0
    assert "it will learn every token" not in capsys.readouterr().err
    for file in read_json(out / "export.json")["files"]:
        learned = np.frombuffer((out / file["path"]).with_suffix(".mask").read_bytes(), np.bool_).tolist()
        tokens = np.fromfile(out / file["path"], np.uint16).tolist()
        assert len(learned) == len(tokens)
        kinds = [6 if token == EOD else (token - 1) % 7 for token in tokens]
        assert learned == [file["source"] == "it" or kind in (2, 6) for kind in kinds]
    other = tmp_path / "other.json"
    pretok.mix(shards, other, learn={"en": ["user"]}, weights=weights, tokens=320, seq_len=8)
    assert run_command([*export, str(other)]) == 2


@pytest.fixture(scope="module")
def mix(shards: Path) -> Path:
    path = shards / "mix.json"
    run_mix(shards, path, request("320:it=0.75,en=0.25", seq_len=SEQ_LEN))
    return path


def test_weights_follow_the_mix(shards: Path, mix: Path) -> None:
    blend = megatron_blend(shards, mix, None)
    assert blend["test"] is None
    assert blend["valid"][1::2] == [str(shards / "it" / "it-val-00000")]
    weights = dict(zip(blend["train"][1::2], map(float, blend["train"][::2]), strict=True))
    assert len(weights) == 5
    assert sum(weights.values()) == pytest.approx(320)
    italian = [weight for prefix, weight in weights.items() if Path(prefix).name.startswith("it")]
    assert italian == pytest.approx([240 * 4 / 6, 240 * 2 / 6])
    natural = megatron_blend(shards, None, None)
    assert [float(weight) for weight in natural["train"][::2]] == [4 * 41, 4 * 41, 2 * 41, 4 * 71, 2 * 71]


def test_stages_are_chosen(shards: Path, tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    run_mix(shards, path, request("160:it=1", "160:it=0.5,en=0.5", seq_len=SEQ_LEN))
    for stage, message in ((None, "choose with --stage"), (3, "no stage 3")):
        with pytest.raises(UsageError, match=message):
            megatron_blend(shards, path, stage)
    assert {Path(p).name[:2] for p in megatron_blend(shards, path, 1)["train"][1::2]} == {"it"}
    assert len(megatron_blend(shards, path, 2)["train"]) == 10


@pytest.fixture
def process_group() -> Iterator[None]:
    """One rank: megatron-core asks for it before it writes its indices."""
    torch = needs("torch")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore")  # megatron-core's imports warn about packages for GPUs
@pytest.mark.peers
def test_megatron_core_reads_our_shards(shards: Path, mix: Path, tmp_path: Path) -> None:
    needs("megatron.core")
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import get_blend_from_list

    blend = megatron_blend(shards, mix, None)
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=SEQ_LEN,
        blend_per_split=[get_blend_from_list(blend[split]) for split in ("train", "valid", "test")],
        path_to_cache=str(tmp_path),
        tokenizer=types.SimpleNamespace(vocab_size=1000, eod=EOD, unique_identifiers={}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    train, valid, _ = BlendedMegatronDatasetBuilder(GPTDataset, [40, 4, 0], lambda: True, config).build()
    sources = [0, 0]
    for index in range(40):
        sample = train[index]
        tokens = [*sample["tokens"].tolist(), sample["labels"][-1].item()]
        assert len(tokens) == SEQ_LEN + 1
        italian = max(tokens) < 500
        sources[italian] += 1
        starts = [document[0] for document in DOCUMENTS["it" if italian else "en"]]
        for before, after in itertools.pairwise(tokens):  # documents are ranges, whole and each ended by EOD
            assert after in starts if before == EOD else after in (before + 1, EOD)
    assert sources == [10, 30]
    assert len(valid) >= 4
    found = [document.tolist() for document in IndexedDataset(str(shards / "it" / "it-00000"))]
    assert found == [[*document, EOD] for document in DOCUMENTS["it"][:4]]
