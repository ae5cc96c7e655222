"""`train compare`: the same text for every arm, equal compute, exact bits per byte, and what may be said of them."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support import needs

torch = needs("torch")
from safetensors.torch import load_file, save_file

from benchmarks.train_shards import bare_manifest
from pretok.base.errors import IntegrityError, MismatchError, PretokError, Stopped, UsageError
from pretok.base.records import replace
from pretok.base.storage import read_json, write_json
from pretok.base.tokens import token_dtype
from pretok.base.vocab_map import MapEnd, write_map
from pretok.shards.format import ShardWriter
from pretok.shards.ledger import LedgerWriter, hash_texts, ledger_rows
from pretok.shards.manifest import load_manifest, shard_entry, write_manifest
from pretok.stream.quota import parse_weights
from tests.train_support import filled
from train.__main__ import main
from train.compare import command as tool
from train.compare import point as compare_point
from train.compare.command import parse_asked
from train.compare.point import Point, PointSpec, micro_batches, run_point, score_stream
from train.compare.report import (
    MIXED,
    T95,
    draw_points,
    equal_text_differences,
    paired_differences,
    read_points,
    report_points,
    write_points,
)
from train.compare.text import (
    Arm,
    check_same,
    choose_validation,
    open_arm,
    order_documents,
    read_along,
    text_weights,
    write_documents,
)
from train.model.sizes import ModelConfig, model_config, transformers_config
from train.model.transformer import Decoder, initial_tensor
from train.parallel.devices import find_device
from train.parallel.group import process_group
from train.steps.evaluate import bits_per_byte

VOCAB, ALIAS = 60, 30
Documents = Mapping[tuple[str, str], Sequence[str]]


def plain(text: str, _rng: np.random.Generator) -> list[int]:
    """A letter a token: ids 1 to 26."""
    return [ord(letter) - 96 for letter in text]


def pairs(text: str, _rng: np.random.Generator) -> list[int]:
    """As `plain`, but "qu" is one token, 28."""
    return [28 if part == "Q" else plain(part, _rng)[0] for part in text.replace("qu", "Q")]


def noisy(text: str, rng: np.random.Generator) -> list[int]:
    """The planted worse one: every letter has two ids and a coin decides, a bit for each byte that nobody can learn."""
    return [token + ALIAS * int(rng.integers(2)) for token in plain(text, rng)]


def decode(ids: Sequence[int]) -> str:
    letters = {0: "|", 28: "qu"} | {code - 96: chr(code) for code in range(97, 123)}
    return "".join(letters[token % ALIAS if token > 28 else token] for token in ids)


def some_documents(train: int = 60) -> Documents:
    """Texts of four letters by chance, two bits a byte, in two sources with both splits."""
    rng = np.random.default_rng(0)

    def text() -> str:
        return "".join(rng.choice(list("acqu"), rng.integers(20, 200)))

    return {
        (source, split): [text() for _ in range(count)]
        for source in ("it", "en")
        for split, count in (("train", train if source == "it" else train // 2), ("val", 6))
    }


def make_work(work: Path, documents: Documents, encode: Any, per_shard: int = 90) -> Path:
    """WORK with shards and ledgers of these documents, each split cut into shards of so many documents."""
    rng = np.random.default_rng(1)
    dtype, entries = token_dtype(VOCAB), []
    for (source, split), texts in documents.items():
        for number, start in enumerate(range(0, len(texts), per_shard)):
            held = texts[start : start + per_shard]
            name = f"{source}/{source}{'' if split == 'train' else '-val'}-{number:05d}"
            ids = [[*encode(text, rng), 0] for text in held]
            lengths = np.array([len(row) for row in ids], np.int32)
            with ShardWriter(work / "shards" / name, dtype) as writer:
                writer.append(np.concatenate([np.array(row, dtype) for row in ids]), lengths)
                sealed = writer.seal()
            sizes = np.array([len(text) for text in held])
            entries.append(shard_entry(f"{name}.bin", source, split, sealed, int(sizes.sum())))
            hashes = hash_texts(pa.array(held, pa.large_string()))
            records = np.arange(start, start + len(held))
            files = pa.array([f"{source}.jsonl"] * len(held))
            with LedgerWriter(work / "shards" / name) as ledger:
                ledger.append(ledger_rows(files, np.zeros_like(records), records, lengths, sizes, hashes))
                ledger.seal()
    write_manifest(work / "shards", bare_manifest(VOCAB, entries))
    return work


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, documents = tmp_path_factory.mktemp("works"), some_documents(600)
    other = {
        key: list(reversed(texts)) for key, texts in documents.items()
    }  # other shards, another order in them
    return {
        "plain": make_work(folder / "plain", documents, plain),
        "pairs": make_work(folder / "pairs", other, pairs, per_shard=130),
        "noisy": make_work(folder / "noisy", documents, noisy),
    }


def open_all(works: Mapping[str, Path]) -> list[Arm]:
    return [open_arm(name, work) for name, work in works.items()]


def test_all_arms_read_the_same_text_in_the_same_order(works: dict[str, Path], tmp_path: Path) -> None:
    arms = open_all(works)
    check_same(arms)
    weights = {"en": 0.3, "it": 0.7}
    texts = []
    for seed in (0, 1):
        found = []
        for arm in arms:
            ordered = order_documents(arm, weights, seed)
            write_documents(arm, ordered, tmp_path / "stream", 200)
            ids = np.fromfile(tmp_path / "stream", arm.manifest.tokenizer.dtype)
            stream = read_along(arm, ordered)
            assert len(ids) == stream.tokens[199] + 1
            text = decode(ids.tolist())
            assert stream.sizes[199] == len(text.replace("|", ""))
            assert stream.text_bytes(int(stream.tokens[199])) == stream.sizes[199]
            found.append(text)
        assert found[0] == found[1] == found[2]
        texts.append(found[0])
    assert texts[0] != texts[1]


def test_the_mix_holds_in_bytes_of_text_up_to_a_document(works: dict[str, Path]) -> None:
    arm = open_arm("plain", works["plain"])
    weights = {"en": 0.2, "it": 0.8}
    ordered = order_documents(arm, weights, 3)
    sizes = np.diff(read_along(arm, ordered).sizes, prepend=0)
    longest = max(arm.texts[source, "train"].sizes.max() for source in weights)
    for number, source in enumerate(ordered.sources):
        done = np.cumsum(np.where(ordered.source == number, sizes, 0))
        assert np.abs(done - weights[source] * np.cumsum(sizes)).max() <= longest
    assert len(set(zip(ordered.source.tolist(), ordered.document.tolist(), strict=True))) == len(sizes)
    # It ends where one source has nothing left, and only there.
    left = {
        s: len(arm.texts[s, "train"].sizes) - int((ordered.source == n).sum()) for n, s in enumerate(weights)
    }
    assert min(left.values()) == 0


def test_arms_with_other_documents_are_refused(tmp_path: Path) -> None:
    documents = {key: list(texts) for key, texts in some_documents().items()}
    first = open_arm("plain", make_work(tmp_path / "plain", some_documents(), plain))
    documents["it", "train"][5] += "a"
    changed = open_arm("changed", make_work(tmp_path / "changed", documents, plain))
    with pytest.raises(
        MismatchError, match=r"source it, split train: 1 of arm plain .* record 5 of it.jsonl"
    ):
        check_same([first, changed])
    moved = {key: list(texts) for key, texts in some_documents().items()}
    moved["en", "train"].append(moved["en", "val"].pop())
    with pytest.raises(MismatchError, match="source en, split train: 1 of arm moved"):
        check_same([first, open_arm("moved", make_work(tmp_path / "moved", moved, plain))])
    alone = {key: texts for key, texts in some_documents().items() if key[0] == "it"}
    with pytest.raises(MismatchError, match="arm alone it; all arms"):
        check_same([first, open_arm("alone", make_work(tmp_path / "alone", alone, plain))])
    next((tmp_path / "alone/shards/it").glob("*.docs.parquet")).unlink()
    with pytest.raises(IntegrityError, match=r"it-00000\.docs\.parquet"):
        open_arm("alone", tmp_path / "alone")


def test_weights_name_sources_with_text(works: dict[str, Path]) -> None:
    arm = open_arm("plain", works["plain"])
    assert text_weights(arm, parse_weights("it=3/4,en=1/4")) == {"en": 0.25, "it": 0.75}
    assert text_weights(arm, parse_weights("it=1,en=0")) == {"it": 1.0}
    natural = text_weights(arm, None)
    assert natural["it"] == pytest.approx(
        arm.texts["it", "train"].sizes.sum() / sum(arm.texts[s, "train"].sizes.sum() for s in ("it", "en"))
    )
    with pytest.raises(UsageError, match="no source fr"):
        text_weights(arm, parse_weights("fr=1"))


def tiny(folder: Path) -> str:
    (folder / "tiny.toml").write_text(
        "dim = 16\nlayers = 1\nheads = 2\nkv_heads = 1\nhidden = 32\nseq_len = 16\n"
    )
    return str(folder / "tiny.toml")


def flags(works: Mapping[str, Path], folder: Path, *more: str) -> list[str]:
    arms = [f"--arm={name}={work}" for name, work in works.items()]
    shared = ["--model", tiny(folder), "--global-batch", "4", "--threads", "1", "--lr", "1e-2"]
    return [*arms, *shared, "--out", str(folder / "out"), *more]


def spec_of(works: Mapping[str, Path], folder: Path, compute: str = "2e8") -> PointSpec:
    asked = parse_asked(flags(works, folder, "--compute", compute, "--seeds", "1"))
    arms = open_all(works)
    weights = text_weights(arms[0], None)
    held = {"weights": weights, "val_bytes": {}, "val_documents": {}}
    return tool._specify(asked, arms[0], asked.compute[0], 0, order_documents(arms[0], weights, 0), held)


def test_a_run_spends_its_compute_and_no_more(works: dict[str, Path], tmp_path: Path) -> None:
    spec = spec_of(works, tmp_path)
    with torch.device("meta"):
        model = Decoder(spec.sizes)
    # By hand: 6 for each weight that multiplies, the output matrix once, and attention over the whole sequence.
    matrices = sum(p.numel() for name, p in model.layers.named_parameters() if p.ndim == 2)
    head = model.embed_tokens.weight.numel()
    per_token = 6 * (matrices + head) + 12 * 1 * 16 * 16
    step = 4 * 16 * per_token
    assert spec.flops == spec.steps * step
    assert spec.flops <= 2e8 < spec.flops + step
    assert spec.config.warmup == spec.steps // 20


def test_bits_per_byte_are_of_every_token_of_the_validation_documents(
    works: dict[str, Path], tmp_path: Path
) -> None:
    arm = open_arm("pairs", works["pairs"])
    chosen = choose_validation(arm, "it", 400)
    sizes, numbers = arm.texts["it", "val"].sizes, chosen.document
    assert 0 < sizes[numbers].sum() <= 400
    left_out = np.setdiff1d(np.arange(len(sizes)), numbers)
    assert all(sizes[numbers[numbers < n]].sum() + sizes[n] > 400 for n in left_out)
    write_documents(arm, chosen, tmp_path / "val")
    ids = np.fromfile(tmp_path / "val", arm.manifest.tokenizer.dtype)
    assert len(decode(ids.tolist()).replace("|", "")) == sizes[numbers].sum()

    spec, device = spec_of(works, tmp_path), find_device()
    with process_group(device, 60, tmp_path, lambda _error: None):
        trainee = compare_point._build(compare_point.PointJob(spec, "", {}, "", 1), device)
        found = score_stream(trainee, ids)
        expected = 0.0
        for start in range(0, len(ids) - 1, 16):
            part = torch.from_numpy(ids[start : start + 17].astype(np.int64))
            with torch.no_grad():
                logits = trainee.model(part[None, :-1])[0, :, :VOCAB]
            expected += float(torch.nn.functional.cross_entropy(logits, part[1:], reduction="sum"))
    assert found == pytest.approx(expected, rel=1e-5)


def test_micro_batches_are_the_sequences_of_the_text_shuffled_by_the_seed(
    works: dict[str, Path], tmp_path: Path
) -> None:
    found = {}
    for seed in (0, 1):
        spec = replace(spec_of(works, tmp_path), steps=8, seed=seed)
        batches = list(micro_batches(np.arange(spec.tokens + 1), spec, torch.device("cpu")))
        assert len(batches) == 8
        rows = np.concatenate([batch.numpy() for batch, *_ in batches])
        found[seed] = rows[:, 0].tolist()
        assert np.array_equal(rows, rows[:, :1] + np.arange(17))
        assert sorted(found[seed]) == list(range(0, spec.tokens, 16))  # each once
    assert found[0] != found[1]
    assert sorted(found[0]) not in found.values()


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs without fresh processes, which import torch; the names of those that were done."""
    done: list[str] = []

    class Finished:
        returncode = 0

        def poll(self) -> int:
            return 0

        def communicate(self) -> tuple[str, str]:
            return "", ""

    def start(job: compare_point.PointJob) -> Finished:
        done.append(Path(job.out).stem)
        tool.write_json(Path(job.out), tool.to_json(run_point(job)))
        Path(job.out).with_suffix(".job").touch()
        return Finished()

    monkeypatch.setattr(tool, "_start", start)
    return done


def test_a_worse_vocabulary_loses_and_what_is_done_stays(
    works: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = in_this_process(monkeypatch)
    steady = ("--global-batch", "16", "--lr", "6e-3")
    two = {name: works[name] for name in ("plain", "noisy")}
    main(["compare", *flags(two, tmp_path, "--compute", "4e8", "--seeds", "3", *steady)])
    assert done == [f"{arm}-4e+08-{seed}" for seed in range(3) for arm in two]
    text = capsys.readouterr().out
    assert "too short" in text  # letters by chance: there is nothing to learn but how frequent they are
    assert "cannot: that a winner here" in text
    points = read_points(tmp_path / "out/points.parquet")
    for source in (MIXED, "it", "en"):
        (found,) = [d for d in paired_differences(points, "plain") if d.source == source]
        assert found.mean == pytest.approx(1.0, abs=0.35)  # the bit that the coin costs
        assert found.half is not None
        assert found.half < found.mean
    assert (tmp_path / "out/compare.svg").read_text().startswith("<svg")
    assert not list((tmp_path / "out/text").glob("*"))

    done.clear()
    more = {name: works[name] for name in ("plain", "pairs")}
    main(["compare", *flags(more, tmp_path, "--compute", "4e8", "--seeds", "1", *steady)])
    assert done == ["pairs-4e+08-0"]
    every = {(p.spec.arm, p.spec.seed) for p in read_points(tmp_path / "out/points.parquet")}
    assert every == {*((arm, seed) for arm in two for seed in range(3)), ("pairs", 0)}
    done.clear()
    with pytest.raises(SystemExit, match="2"):
        main(
            [
                "compare",
                *flags(works, tmp_path, "--compute", "4e8", "--seeds", "1", *steady[:2], "--lr", "2e-2"),
            ]
        )
    assert "another comparison (settings" in capsys.readouterr().err
    assert not done


@pytest.fixture
def begun(works: dict[str, Path], tmp_path: Path) -> list[str]:
    """A model of the plain vocabulary, and a map to that of the pairs: the flags."""
    before, after = (load_manifest(works[name] / "shards").tokenizer for name in ("plain", "pairs"))
    sizes = replace(model_config(tiny(tmp_path)), vocab_size=VOCAB)
    model = tmp_path / "model"
    model.mkdir()
    weights = {
        name if name.startswith("lm_head") else f"model.{name}": value[:VOCAB].clone()
        if "embed" in name
        else value
        for name, value in filled(sizes, partial(initial_tensor, sizes, 7)).state_dict().items()
    }
    save_file(weights, model / "model.safetensors")
    write_json(model / "config.json", transformers_config(sizes, 0))
    ends = MapEnd(VOCAB, before.fingerprint), MapEnd(VOCAB, after.fingerprint)
    write_map(tmp_path / "map.json", *ends, {28: (17, 21)})
    return ["--init-from", str(model), "--vocab-map", f"pairs={tmp_path / 'map.json'}"]


def test_arms_begin_with_one_model(
    works: dict[str, Path],
    begun: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = in_this_process(monkeypatch)
    two = {name: works[name] for name in ("plain", "pairs")}
    main(["compare", *flags(two, tmp_path, "--compute", "0,1e8", "--seeds", "2", *begun)])
    assert done == ["plain-0-0", "pairs-0-0", *(f"{a}-1e+08-{seed}" for seed in (0, 1) for a in two)]
    assert "0 FLOPs is that model before its first step" in capsys.readouterr().out
    assert (tmp_path / "out/compare.svg").read_text().count("<circle") == 6
    points = {(p.spec.arm, p.spec.compute): p for p in read_points(tmp_path / "out/points.parquet")}
    start = points["plain", 0.0]
    assert (start.spec.steps, start.loss, start.spec.text_bytes) == (0, None, 0)
    spec, device = start.spec, find_device()
    arm = open_arm("plain", works["plain"])
    write_documents(arm, choose_validation(arm, "it", 10**6), tmp_path / "val")
    job = compare_point.PointJob(spec, "", {}, "", 1, begun[1])
    with process_group(device, 60, tmp_path, lambda _error: None):
        trainee = compare_point._build(job, device)
        nats = score_stream(trainee, np.fromfile(tmp_path / "val", spec.dtype))
        model = trainee.model.state_dict()["embed_tokens.weight"].full_tensor()
    assert bits_per_byte(nats, spec.val_bytes["it"]) == pytest.approx(start.bits["it"])
    stored = load_file(tmp_path / "model" / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(model[:VOCAB], stored)

    done.clear()
    with pytest.raises(SystemExit, match="2"):  # another beginning, the same folder
        main(["compare", *flags(two, tmp_path, "--compute", "1e8", "--seeds", "1")])
    assert "beginning" in capsys.readouterr().err
    assert not done


def test_a_map_of_another_pair_is_named(
    works: dict[str, Path], begun: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = {name: works[name] for name in ("plain", "pairs")}
    write_map(tmp_path / "map.json", MapEnd(VOCAB, "a"), MapEnd(VOCAB, "b"), {28: (17, 21)})
    with pytest.raises(SystemExit, match="2"):
        main(["compare", *flags(two, tmp_path, "--compute", "1e8", *begun)])
    assert "leads to another vocabulary" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_fresh_processes_give_the_same_points(works: dict[str, Path], tmp_path: Path) -> None:
    two = {name: works[name] for name in ("plain", "pairs")}
    arguments = flags(two, tmp_path, "--compute", "1e8", "--seeds", "1", "--jobs", "2")
    points = tool.compare(parse_asked(arguments))
    names = sorted(path.name for path in (tmp_path / "out/points").iterdir())
    assert names == ["pairs-1e+08-0.json", "plain-1e+08-0.json"]
    again = read_json(tmp_path / "out/points/plain-1e+08-0.json")
    plain_point = next(point for point in points if point.spec.arm == "plain")
    assert again["bits"] == plain_point.bits
    pairs_point = next(point for point in points if point.spec.arm == "pairs")
    assert pairs_point.spec.flops == plain_point.spec.flops
    assert pairs_point.spec.text_bytes > plain_point.spec.text_bytes  # fewer tokens for the same text


def test_a_stop_ends_the_runs_that_are_under_way(
    works: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    class Running:
        returncode = None

        def poll(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        def terminate(self) -> None:
            ended.append("terminated")

        def communicate(self) -> tuple[str, str]:
            return "", ""

    monkeypatch.setattr(tool, "_start", lambda _job: Running())
    two = {name: works[name] for name in ("plain", "pairs")}
    with pytest.raises(Stopped, match="received SIGTERM: the points that are done are kept"):
        tool.compare(parse_asked(flags(two, tmp_path, "--compute", "1e8", "--seeds", "1", "--jobs", "2")))
    assert ended == ["terminated"] * 2


def test_a_run_that_fails_is_named(
    works: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = {name: works[name] for name in ("plain", "pairs")}
    monkeypatch.setattr(tool.sys, "executable", "/bin/false")
    with pytest.raises(PretokError, match=r"the run of arm plain, 1e\+08 FLOPs, seed 0 failed: exit code 1"):
        tool.compare(parse_asked(flags(two, tmp_path, "--compute", "1e8", "--seeds", "1")))
    assert not list((tmp_path / "out/points").glob("*.json"))


def test_a_loss_that_is_no_number_ends_the_run(
    works: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_point, "learning_rate", lambda *_: math.nan)
    spec = spec_of(works, tmp_path)
    np.ones(spec.tokens + 1, spec.dtype).tofile(tmp_path / "text")
    with pytest.raises(PretokError, match=f"the loss is nan at step 2 of {spec.steps}; lower --lr"):
        run_point(compare_point.PointJob(spec, str(tmp_path / "text"), {}, "", 1))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--compute", "1e6"], "steps of arm plain"),
        (["--compute", "1e12"], "a source would be read again"),
        (["--compute", "2e8", "--val-bytes", "3"], "no validation document of at most 3 bytes"),
        (["--compute", "nine"], "--compute nine: it must be numbers above 0"),
        (["--compute", "2e8", "--weights", "it=2"], "add up to 2, not to 1"),
        (["--compute", "2e8", "--weights", "it=0.5,fr=0.5"], "no source fr"),
        (["--compute", "2e8", "--arm", "plain=x"], "NAME=WORK, each name once"),
        (["--compute", "2e8", "--seeds", "0"], "must be at least 1"),
        (["--compute", "0"], "above 0 (or 0 with --init-from)"),
        (["--compute", "2e8", "--vocab-map", "pairs=x"], "--vocab-map needs --init-from"),
        (["--compute", "2e8", "--init-from", "nowhere"], "nowhere is no folder of transformers"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    works: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compare", *flags(works, tmp_path, *more)])
    assert message in capsys.readouterr().err


def test_settings_of_a_file_are_the_shared_ones(works: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("beta2 = 0.99\nlr = 1.0\n")
    asked = parse_asked(flags(works, tmp_path, "--compute", "1e8", "--config", str(tmp_path / "c.toml")))
    assert (asked.config.beta2, asked.config.lr) == (0.99, 1e-2)  # flags win
    (tmp_path / "c.toml").write_text("steps = 3\n")
    with pytest.raises(UsageError, match="steps cannot be set for a comparison"):
        parse_asked(flags(works, tmp_path, "--compute", "1e8", "--config", str(tmp_path / "c.toml")))


def point(arm: str, compute: float, seed: int, bits: float, text: float = 1e6) -> Point:
    sizes = ModelConfig(vocab_size=VOCAB, dim=16, layers=1, heads=2, kv_heads=1, hidden=32, seq_len=16)
    settings: dict[str, object] = {"global_batch": 4}
    spec = PointSpec(
        arm=arm,
        compute=compute,
        seed=seed,
        model="tiny",
        sizes=sizes,
        settings=settings,
        steps=50,
        shards="f",
        eod_id=0,
        dtype="uint16",
        text_bytes=text,
        weights={"en": 0.25, "it": 0.75},
        val_bytes={"en": 10, "it": 20},
        val_documents={"en": 1, "it": 1},
    )
    known = {"en": 5.0, "it": 5.0}
    return Point(
        spec, {"en": bits + 1, "it": bits - 1 / 3}, known, {"en": 5, "it": 9}, 1.0, 0, 2.0, "cpu", "2"
    )


def test_quantiles_of_t_by_integration() -> None:
    x = np.linspace(0, 20, 400_001)
    for degrees, limit in enumerate(T95, 1):
        scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(
            degrees * math.pi
        )
        density = scale * (1 + x**2 / degrees) ** (-(degrees + 1) / 2)
        inside = density[x <= limit]
        assert 2 * np.trapezoid(inside, dx=x[1]) == pytest.approx(0.95, abs=2e-4)


def test_differences_are_paired_by_seed_with_the_interval_of_t() -> None:
    base, arm = [2.0, 2.5, 3.0], [2.1, 2.62, 3.14]
    points = [point("a", 1e13, seed, bits) for seed, bits in enumerate(base)]
    points += [point("b", 1e13, seed, bits) for seed, bits in enumerate(arm)]
    points += [point("b", 1e13, 9, 99.0), point("b", 3e13, 0, 99.0)]  # without a partner
    mixed, english, italian = paired_differences(points, "a")
    assert (mixed.source, english.source, italian.source) == (MIXED, "en", "it")
    each = np.array(arm) - base
    assert (mixed.seeds, mixed.mean) == (3, pytest.approx(each.mean()))
    assert mixed.half == pytest.approx(4.303 * each.std(ddof=1) / math.sqrt(3))
    assert (mixed.baseline, mixed.verdict) == (pytest.approx(2.5), "worse")
    (one,) = [d for d in paired_differences(points[:1] + points[3:4], "a") if d.source == MIXED]
    assert (one.half, one.verdict) == (None, "no statement")
    untrained = [replace(p, frequency_bits={"en": 2.6, "it": 2.6}) for p in points]
    assert paired_differences(untrained, "a")[0].verdict == "too short"
    wide = [point("b", 1e13, 0, 1.0), point("b", 1e13, 1, 3.0), *points[:2]]
    assert paired_differences(wide, "a")[0].verdict == "no statement"


def test_equal_text_is_read_off_between_two_runs_of_the_arm() -> None:
    def bits(text: float) -> float:
        return 5 - 0.2 * math.log(text)

    points = [point("a", c, 0, 2.0, text) for c, text in ((1e13, 1e6), (3e13, 3e6))]
    points += [point("b", c, 0, bits(text), text) for c, text in ((1e13, 1.3e6), (3e13, 3.9e6))]
    (found,) = equal_text_differences(points, "a")  # at 1e6 bytes the arm has no run that read less
    assert (found.compute, found.mean) == (3e13, pytest.approx(bits(3e6) - 2.0))


def test_points_survive_their_file_and_the_report_names_every_arm(tmp_path: Path) -> None:
    points = [
        point(arm, c, s, 2.0 + s, c / 1e7) for arm in ("a", "<b>") for c in (1e13, 3e13) for s in (0, 1)
    ]
    write_points(points, tmp_path / "p.parquet")
    assert read_points(tmp_path / "p.parquet") == points
    text = report_points(points)
    assert "no arm has runs" not in text
    assert text.count("no statement") == 8  # no difference at all
    draw_points(points, tmp_path / "p.svg")
    svg = (tmp_path / "p.svg").read_text()
    assert "&lt;b&gt;" in svg
    assert svg.count("<circle") == 8
