"""Helpers of the tests that tokenize: a recipe over some inputs, a run of it, and every byte it leaves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from glob import escape
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pyarrow as pa
from recording import RecordingConsole
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.config import Recipe, make_recipe
from pretok.kernels.pretokenize import PATTERNS
from pretok.shards.tokenize_job import run_tokenize
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.encoder import Engine as Encoding
from pretok.tokenizer.vocabulary import Vocabulary, load_vocab


def vocabulary(data: dict[str, Any]) -> Vocabulary:
    """A tokenizer of these contents, the end-of-document token of which has the id 0."""
    with NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(data, file)
        file.flush()
        return load_vocab(Path(file.name), 0)


def ids_of(engine: Encoder | Encoding, documents: list[str]) -> list[list[int]]:
    """The ids of each document, without EOD."""
    column = pa.array(documents, pa.large_string())
    ids, offsets = engine.ids(column) if isinstance(engine, Encoder) else engine.encode(column)
    return [part.tolist() for part in np.split(ids, offsets[1:-1])]


def ids_of_library(data: dict[str, Any], documents: list[str]) -> list[list[int]]:
    """The ids that `tokenizers` gives with the contents of a file, special tokens as text."""
    library = Tokenizer.from_str(json.dumps(data))
    library.encode_special_tokens = True
    library.no_truncation()
    library.no_padding()
    return [one.ids for one in library.encode_batch_fast(documents, add_special_tokens=False)]


def recipe(
    out: Path,
    vocab: Path,
    sources: dict[str, list[Path | str]],
    keep: Sequence[str] | Mapping[str, Sequence[str]] = (),
    append: dict[str, list[Path]] | None = None,
    **shards: object,
) -> Recipe:
    """A recipe over the given inputs; small shards, so that every way of cutting happens. keep: of every source, or
    by source; append: more of sources."""
    data = {
        "out": out,
        "sources": {
            name: {
                "inputs": [str(p) for p in paths],
                "keep": list(keep[name] if isinstance(keep, Mapping) else keep),
                "append": [{"inputs": [str(p)]} for p in (append or {}).get(name, ())],
            }
            for name, paths in sources.items()
        },
        "vocab": {"path": vocab},
        "shards": {"size": 16_000, "val_fraction": "0.1", "max_reject_share": "0.5", **shards},
    }
    return make_recipe(data, "test")


def run(made: Recipe, engine: Engine) -> tuple[RecordingConsole, list[str]]:
    """Tokenize; (the console, its notices)."""
    recorded = RecordingConsole()
    run_tokenize(made, engine, recorded)
    return recorded, recorded.notices


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def make_work(
    folder: Path,
    vocab: Path,
    rows: Mapping[str, Iterable[dict[str, Any] | str]],
    *keep: str,
    keeps: Mapping[str, Sequence[str]] | None = None,
    **shards: object,
) -> Recipe:
    """Write the records of each source, or lines as they are, to SOURCE.jsonl, and tokenize them into work."""
    for name, records in rows.items():
        lines = (row if isinstance(row, str) else json.dumps(row) for row in records)
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    inputs: dict[str, list[Path | str]] = {name: [escape(str(folder / f"{name}.jsonl"))] for name in rows}
    made = recipe(folder / "work", vocab, inputs, keeps or keep, **shards)
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        run(made, engine)
    return made


def trained_model(
    texts: Iterable[str], pattern: str | None, special_tokens: Sequence[str], **limits: Any
) -> dict[str, Any]:
    """The model that BpeTrainer trains on the texts; without a pattern, every text is one word."""
    steps = [pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")] if pattern else []
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, level])
    trainer = trainers.BpeTrainer(
        show_progress=False,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        **limits,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model
