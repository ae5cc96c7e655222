"""`train losses` finds the documents behind a spike: losses are those of a plain loop, and garbled text comes first."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import needs
from tokenizing import make_work

torch = needs("torch")
from train_support import filled, read_tensors, run_jobs, tiny_flags

import pretok.stream
from pretok.base.errors import UsageError
from pretok.documents.audit.find import find_named
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_file import natural_mix, write_mix
from train.__main__ import main
from train.checkpoint.meta import read_meta
from train.model.sizes import LOSS_CHUNK

LENGTH, BEFORE, BATCH = 64, 40, 8
WORDS = (
    *("la", "pioggia", "cadeva", "lenta", "sul", "porto", "e", "il", "vento"),
    *("portava", "odore", "di", "sale", "mentre", "una", "barca", "tornava", "piano"),
)
GARBLED = 20


def documents(count: int, seed: int, garbled: int = 0) -> Iterator[dict[str, str]]:
    """Texts that go round in a circle of words; `garbled` of them, anywhere, are letters by chance."""
    rng = random.Random(seed)
    bad = set(rng.sample(range(count), garbled))
    for number in range(count):
        start, words = rng.randrange(len(WORDS)), rng.randrange(8, 20)
        text = " ".join(itertools.islice(itertools.cycle(WORDS), start, start + words))
        if number in bad:
            text = "".join(rng.choices("bcdfghjklmnpqrstvwxz ", k=rng.randrange(30, 90)))
        yield {"text": text, "id": f"{'bad' if number in bad else 'good'}-{number}"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Path:
    """Trained on clean text for some steps; then one step reads 833 documents, of which 20 are garbled."""
    folder = tmp_path_factory.mktemp("losses")
    rows = {"clean": documents(800, 1), "later": documents(833, 2, GARBLED)}
    make_work(folder, vocab_dir, rows, "id", val_fraction="0", size=1_000_000)
    shards = folder / "work" / "shards"
    manifest = load_manifest(shards)
    for name in rows:
        write_mix(folder / f"{name}.json", natural_mix(manifest, "train", LENGTH, [name], 0), {})
    whole = len(pretok.stream.open(shards, folder / "later.json"))
    phase = {"at": BEFORE * BATCH * LENGTH, "mix": str(folder / "later.json"), "global_batch": whole}
    settings: dict[str, Any] = {"steps": BEFORE + 1, "global_batch": BATCH, "lr": 0.02, "warmup": 1}
    settings |= {"mix": str(folder / "clean.json"), "seq_len": None, "phases": (phase,)}
    settings["save_every"] = str(BEFORE)
    main(tiny_flags(shards, folder, **settings))
    return folder / "run"


def found(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    main(["losses", *map(str, arguments), "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def by_hand(run: Path) -> dict[int, tuple[float, int]]:
    """Document of `later` -> mean loss and learned tokens, one sequence after the other."""
    checkpoint = run / "checkpoints" / f"step-{BEFORE:08d}"
    tensors, sizes = read_tensors(checkpoint), read_meta(checkpoint).identity.model
    model = filled(sizes, lambda name, *_: tensors[f"model.{name}"])
    manifest = load_manifest(run.parent / "work" / "shards")
    view = pretok.stream.open(manifest.folder, run.parent / "later.json")
    ends = np.cumsum(np.concatenate([np.diff(shard.open().offsets) for shard in manifest.of("later")]))
    sums: dict[int, list[float]] = {}
    for position in range(len(view)):
        ids = torch.from_numpy(view[position].astype(np.int64))
        with torch.no_grad():
            logits = model(ids[None, :-1])[0, :, : sizes.vocab_size].double()
        losses = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none").tolist()
        first = view.origin(position)[2] * LENGTH + 1
        for token, loss in enumerate(losses, first):
            sums.setdefault(int(np.searchsorted(ends, token, side="right")), []).append(loss)
    return {document: (sum(all_of) / len(all_of), len(all_of)) for document, all_of in sums.items()}


def test_garbled_documents_come_first_with_the_losses_of_a_plain_loop(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = found(capsys, run, "--step", BEFORE + 1, "--top", 10_000)
    rows, expected = every["documents"], by_hand(run)
    assert (every["step"], every["checkpoint"]) == (BEFORE + 1, BEFORE)
    assert {row["document"]: row["tokens"] for row in rows} == {
        at: count for at, (_, count) in expected.items()
    }
    for row in rows:
        assert row["loss"] == pytest.approx(expected[row["document"]][0], rel=1e-4)
    learned = sum(count for _, count in expected.values())
    assert every["learned"] == learned
    mean = sum(loss * count for loss, count in expected.values()) / learned
    assert every["loss"] == pytest.approx(mean, rel=1e-5)
    scores = [(row["loss"] - every["loss"]) * math.sqrt(row["tokens"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    # The last documents may be cut off by the last whole sequence.
    planted = [row for row in rows if row["id"].startswith("bad")]
    assert len(planted) >= GARBLED - 1
    assert rows[: len(planted)] == planted

    worst, manifest = rows[0], load_manifest(run.parent / "work" / "shards")
    assert find_named(manifest, worst["id"], 1) == [("later", "train", worst["document"])]
    assert Path(worst["file"]).name == "later.jsonl"
    line = Path(worst["file"]).read_text("utf-8").splitlines()[worst["line"] - 1]
    assert json.loads(line)["id"] == worst["id"]
    assert worst["text"].split()[0] == json.loads(line)["text"].split()[0]


def test_any_number_of_ranks_finds_the_same(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also more ranks than have a part in the last passes: of one sequence here."""
    asked = (run, "--step", BEFORE + 1, "--top", 60)
    alone = found(capsys, *asked)
    assert alone["learned"] // LENGTH % (3 * LOSS_CHUNK // LENGTH) == 1
    shared = json.loads(run_jobs([(3, ["losses", *asked, "--json"])], tmp_path))
    assert shared.pop("loss") == pytest.approx(alone.pop("loss"), rel=1e-6)
    for mine, theirs in zip(alone["documents"], shared["documents"], strict=True):
        assert theirs.pop("loss") == pytest.approx(mine.pop("loss"), rel=1e-5)
    assert shared == alone


def test_a_step_without_an_older_checkpoint_or_beyond_the_run_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step, why in ((BEFORE, "no checkpoint from before step 40"), (BEFORE + 2, "no step 42")):
        with pytest.raises(SystemExit) as ended:
            main(["losses", str(run), "--step", str(step)])
        assert ended.value.code == UsageError.exit_code
        assert why in capsys.readouterr().err


def test_the_table_names_the_documents(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["losses", str(run), "--step", str(BEFORE + 1), "--top", "3"])
    shown = capsys.readouterr().out
    assert f"step {BEFORE + 1} by the checkpoint of step {BEFORE}" in shown
    assert shown.count("bad-") == 3
    assert "later.jsonl" in shown
