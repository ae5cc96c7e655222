"""Faults of data pipelines that others have published: each with its thread, the smallest input that shows it, and what
happens here. docs/known-faults.md is made from this table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import ROOT, make_shards
from tokenizing import ids_of_library, vocabulary

import pretok
import pretok.stream
from pretok.base.errors import IntegrityError
from pretok.base.storage import read_json
from pretok.base.tokens import token_dtype
from pretok.cli import run_command
from pretok.kernels.pretokenize import PATTERNS
from pretok.shards.manifest import load_manifest
from pretok.shards.shard_file import index_bytes
from pretok.stream.loader import PositionSampler, read_batch
from pretok.tokenizer.vocabulary import tokenizer_data
from pretok.vocab.bpe import train_merges
from pretok.vocab.symbols import BufferWriter

PAGE = ROOT / "docs" / "known-faults.md"
MARK = "<!-- The rest of this page is made by tests/test_known_faults.py. -->\n"
FAULTS: list[tuple[str, str, str, Callable[..., None]]] = []
"""(threads, what happened there, what happens here, the test), in the order of the page."""
TEXTS = [f"documento numero {n} con un poco di testo, perché no? {'bla ' * (n % 7)}" for n in range(120)]


def fault(threads: str, there: str, here: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """List a test as an entry of the page. threads: such as `NVIDIA/Megatron-LM#705`, separated by spaces."""

    def listed(test: Callable[..., None]) -> Callable[..., None]:
        FAULTS.append((threads, there, here, test))
        return test

    return listed


Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Run a command, which ends with this code; what it writes."""

    def run(code: int, *command: Any) -> str:
        capsys.readouterr()
        assert run_command(list(map(str, command))) == code
        streams = capsys.readouterr()
        return " ".join((streams.err + streams.out).split())

    return run


def lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def documents(shards: Path, source: str = "it") -> list[list[int]]:
    """The ids of the documents of a source in order, by numpy and the description of the format alone: its index."""
    found = []
    for path in sorted((shards / source).glob("*.bin")):
        tokens, index = np.fromfile(path, "<u2"), path.with_suffix(".idx").read_bytes()
        count = int.from_bytes(index[18:26], "little")
        lengths = np.frombuffer(index, "<i4", count, 34)
        starts = np.frombuffer(index, "<i8", count, 34 + 4 * count) // 2
        found += [tokens[a : a + size].tolist() for a, size in zip(starts, lengths, strict=True)]
    return found


def tokenize(work: Path, vocab: Path, *inputs: Any, **options: str) -> list[Any]:
    """A command that tokenizes everything for training."""
    given = {"out": work, "vocab": vocab, "workers": 0, "val-fraction": 0, **options}
    return ["tokenize", *inputs, *(part for name, value in given.items() for part in (f"--{name}", value))]


@fault(
    "marin-community/marin#5034 huggingface/datatrove#345",
    "Setting an EOD, or another backend, replaced the tokenizer's post-processor: whole caches lacked BOS.",
    "The writer adds `bos` and `eod` itself; `verify` counts both in every shard.",
)
def test_bos_and_eod_stand_around_each_document(tmp_path: Path, vocab_dir: Path, said: Said) -> None:
    special = [one["content"] for one in read_json(vocab_dir / "tokenizer.json")["added_tokens"]]
    recipe = tmp_path / "r.toml"
    lines(tmp_path / "a.jsonl", TEXTS)
    vocab = f'vocab = {{path = "{vocab_dir}", eod = "{special[0]}", bos = "{special[1]}"}}'
    recipe.write_text(f'out = "work"\n{vocab}\nsources.it.inputs = ["a.jsonl"]\nshards.val_fraction = 0\n')
    said(0, "tokenize", recipe, "--workers", 0)
    found = documents(tmp_path / "work" / "shards")
    assert [(one[0], one[-1], one.count(0), one.count(1)) for one in found] == [(1, 0, 1, 1)] * len(TEXTS)


@fault(
    "huggingface/datatrove#489 allenai/OLMo#597 allenai/OLMo#757",
    "The default EOD was another tokenizer's: a crash, or a separator that nobody knows.",
    "The EOD is the tokenizer's own; pretok refuses a name that it does not have.",
)
def test_an_eod_of_another_tokenizer_is_refused(tmp_path: Path, vocab_dir: Path, said: Said) -> None:
    command = tokenize(tmp_path / "w", vocab_dir, f"it={lines(tmp_path / 'a.jsonl', TEXTS)}", eod="<|eot|>")
    assert "no end-of-document token <|eot|>" in said(2, *command)
    assert not (tmp_path / "w" / "shards").exists()


@fault(
    "huggingface/tokenizers#2058 huggingface/tokenizers#437",
    "Counts had 32 bits: the most frequent pair became negative and was never merged.",
    "Counts have 64 bits.",
)
def test_a_pair_that_occurs_three_billion_times_is_merged_first() -> None:
    writer = BufferWriter()
    symbols = np.array([0, 0, 1, 2], np.int32)  # bytes, whose ids follow two special tokens
    writer.add(symbols, np.array([0, 2, 4]), np.array([3_000_000_000, 5]))
    merges = train_merges(writer.buffer(), vocab_size=2 + 256 + 2, special_tokens=2)
    assert merges.pairs.tolist() == [[2, 2], [3, 4]]


@fault(
    "NVIDIA/Megatron-LM#1672",
    "Offsets had 32 bits: beyond 2 GiB they were negative.",
    "Offsets have 64 bits.",
)
def test_offsets_beyond_four_gibibytes() -> None:
    lengths = np.full(5, 2**30, np.int32)
    offsets = np.frombuffer(index_bytes(lengths, np.dtype("<u2")), "<i8", 5, offset=34 + 4 * 5)
    assert offsets.tolist() == [2 * 2**30 * n for n in range(5)]


@fault(
    "NVIDIA/Megatron-LM#81",
    "After merging two files, the second one's documents pointed into the first.",
    "Appended text becomes shards with an index of their own.",
)
def test_appended_documents_are_those_of_the_second_file(tmp_path: Path, vocab_dir: Path, said: Said) -> None:
    first, second = lines(tmp_path / "a.jsonl", TEXTS[:50]), lines(tmp_path / "b.jsonl", TEXTS[50:])
    command = tokenize(tmp_path / "w", vocab_dir, f"it={first}")
    said(0, *command)
    said(0, *command, "--append", f"it={second}")
    expected = ids_of_library(read_json(vocab_dir / "tokenizer.json"), TEXTS)
    assert documents(tmp_path / "w" / "shards") == [[*ids, 0] for ids in expected]


@fault(
    "NVIDIA-NeMo/Nemotron#260",
    "A file cut into 32 parts was read whole for each: every document 32 times.",
    "Parts are ranges of lines, row groups or documents; pretok compares what it read and wrote.",
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_file_that_is_cut_gives_each_document_once(
    tmp_path: Path, vocab_dir: Path, said: Said, suffix: str
) -> None:
    path = tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        lines(path, TEXTS * 20)
    else:
        pq.write_table(pa.table({"text": TEXTS * 20}), path, row_group_size=100)
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        f'out = "work"\nvocab.path = "{vocab_dir}"\nsources.it.inputs = ["{path.name}"]\n'
        'shards = {val_fraction = 0, size = "8KiB"}\n'
    )
    said(0, "tokenize", recipe, "--workers", 0)
    assert len(list((tmp_path / "work" / "shards" / "it").glob("*.bin"))) > 4
    expected = ids_of_library(read_json(vocab_dir / "tokenizer.json"), TEXTS)
    assert documents(tmp_path / "work" / "shards") == [[*ids, 0] for ids in expected] * 20


@fault(
    "axolotl-ai-cloud/axolotl#1265 allenai/open-instruct#1518 mosaicml/composer#1061",
    "A cache did not depend on the tokenizer: another model trained on the ids of the one before.",
    "Shards name their tokenizer's fingerprint; another tokenizer, or its model, is refused by name.",
)
def test_shards_of_another_tokenizer_are_not_used(tmp_path: Path, vocab_dir: Path, said: Said) -> None:
    data = read_json(vocab_dir / "tokenizer.json")
    entries = data["model"]["vocab"]
    last, other = sorted(entries, key=entries.get)[-2:]
    entries[last], entries[other] = entries[other], entries[last]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    inputs = f"it={lines(tmp_path / 'a.jsonl', TEXTS)}"
    said(0, *tokenize(tmp_path / "w", vocab_dir, inputs))
    assert "tokenizer was" in said(2, *tokenize(tmp_path / "w", tmp_path / "tokenizer.json", inputs))


@fault(
    "allenai/open-instruct#1862 huggingface/datatrove#118 meta-llama/llama3#276",
    "The width of ids ignored added tokens, which wrapped around.",
    "The highest id of any entry decides the width.",
)
def test_added_tokens_decide_how_many_bytes_an_id_has() -> None:
    data = tokenizer_data(PATTERNS["gpt2"], ["<|endoftext|>"], [])
    entries = data["model"]["vocab"]
    entries.update({f"x{n}": n for n in range(len(entries), 1 << 16)})
    assert token_dtype(vocabulary(data).size) == np.uint16
    data["added_tokens"].append({**data["added_tokens"][0], "id": 1 << 16, "content": "<|added|>"})
    assert vocabulary(data).size == (1 << 16) + 1
    assert token_dtype(vocabulary(data).size) == np.int32


@fault(
    "NVIDIA/Megatron-LM#2570 allenai/OLMo#778",
    "Ids outside of the vocabulary, or a header read as ids: a CUDA assertion, or ids silently clamped.",
    "pretok checks files of tokens id by id: such a document is a reject, such a file is refused.",
)
def test_ids_outside_of_the_vocabulary_are_found_before_training(
    tmp_path: Path, vocab_dir: Path, said: Said
) -> None:
    np.array([300, 0, 65_000, 0], "<u2").tofile(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.array([300, 0], "<u2"))
    for name, code, what in (("a", 3, "unknown_id"), ("b", 3, "is an array of numpy.save")):
        table = f'{{inputs = ["{name}.npy"], tokens = {{tokenizer = "{vocab_dir}", dtype = "uint16"}}}}'
        recipe = tmp_path / f"{name}.toml"
        recipe.write_text(f'out = "{name}"\nvocab.path = "{vocab_dir}"\nsources.it = {table}\n')
        assert what in said(code, "tokenize", recipe, "--workers", 0)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    small = [[1 + n % 50] * 15 for n in range(40)]
    return make_shards(tmp_path / "shards", {"a": small, "b": small})


@fault(
    "NVIDIA/Megatron-LM#705",
    "With weights of 0.999 and 0.001 a source had too few samples: IndexError after days.",
    "`pretok mix` refuses such weights, or every position can be read.",
)
def test_extreme_weights_are_refused_or_can_be_read(tmp_path: Path, shards: Path, said: Said) -> None:
    asked = ["mix", shards, "--weights", "a=0.999,b=0.001", "--seq-len", 16, "--tokens", "8_000"]
    refused = said(2, *asked, "--out", tmp_path / "m.json", "--max-epochs", 2)
    assert "more than 2 epochs of some sources: a has 640 (12.81 epochs)" in refused
    said(0, *asked, "--out", tmp_path / "m.json", "--max-epochs", 20)
    view = pretok.stream.open(shards, tmp_path / "m.json")
    assert len({view.origin(n) for n in range(len(view))}) == len(view) == 500
    assert all(len(view[n]) == 17 for n in range(len(view)))


@fault(
    "marin-community/marin#8373",
    "The smallest sources had 0 samples in each block of the mixture, so never any.",
    "Proportions hold at every prefix, to within a sequence for each source.",
)
def test_a_small_source_has_its_share_at_every_prefix(tmp_path: Path, shards: Path, said: Said) -> None:
    said(0, "mix", shards, "--out", tmp_path / "m.json", "--weights", "a=0.99,b=0.01", "--seq-len", 16,
        "--tokens", "8_000", "--max-epochs", 20,
    )  # fmt: skip
    view = pretok.stream.open(shards, tmp_path / "m.json")
    names = [view.origin(n)[0] for n in range(len(view))]
    for end in range(1, len(names) + 1):
        assert abs(names[:end].count("b") - 0.01 * end) <= 1
    assert names.count("b") == 5


@fault(
    "huggingface/accelerate#2823 huggingface/accelerate#4203",
    "After a resume in a later epoch, batches came in the order of another epoch: some twice, some never.",
    "Position n depends on the mix and n alone; the state is one number.",
)
def test_a_resume_in_a_later_epoch_goes_on_where_it_stopped(tmp_path: Path, shards: Path, said: Said) -> None:
    asked = ["mix", shards, "--out", tmp_path / "m.json", "--weights", "a=0.5,b=0.5", "--seq-len", 16]
    said(0, *asked, "--tokens", "4_000", "--max-epochs", 5)
    view = pretok.stream.open(shards, tmp_path / "m.json")
    whole = [n for batch in PositionSampler(len(view), global_batch=4, micro_batch=4) for n in batch]
    assert {view.origin(n)[1] for n in whole} > {0, 1}  # in several epochs
    stop = 4 * 37
    again = pretok.stream.open(shards, tmp_path / "m.json")
    left = PositionSampler(len(again), global_batch=4, micro_batch=4, position=stop)
    rest = [n for batch in left for n in batch]
    assert [(view.origin(n), view[n].tolist()) for n in whole[stop:]] == [
        (again.origin(n), again[n].tolist()) for n in rest
    ]


@fault(
    "NVIDIA/Megatron-Energon#58 NVIDIA/Megatron-Energon#126",
    "A saved state fitted only the ranks and workers that it was saved with.",
    "Any number of ranks continues; each position is read once.",
)
def test_another_number_of_ranks_continues_the_same_positions() -> None:
    def read(ranks: int, position: int, length: int) -> list[int]:
        sizes = {"global_batch": 24, "micro_batch": 2, "world_size": ranks, "position": position}
        samplers = [PositionSampler(length, rank=rank, **sizes) for rank in range(ranks)]
        return [n for sampler in samplers for batch in sampler for n in batch]

    assert Counter(read(4, 0, 240) + read(6, 240, 480)) == Counter(range(480))


@fault(
    "marin-community/marin#1753",
    "A source whose cache was missing or unfinished was left out, and training went on without it.",
    "A source appears in the manifest when all of it is done; a mix that names another is refused.",
)
def test_a_source_that_is_not_there_is_refused(tmp_path: Path, shards: Path, said: Said) -> None:
    asked = ["mix", shards, "--out", tmp_path / "m.json", "--weights", "a=0.5,c=0.5", "--seq-len", 16]
    assert "has no source or class 'c'" in said(2, *asked, "--tokens", "1_000")
    assert not (tmp_path / "m.json").exists()


@fault(
    "mlfoundations/open_lm#77",
    "Ids beyond the vocabulary were taken modulo its size: other tokens, and no error.",
    "`verify`, and the trainer's reader for each batch, compare ids with the vocabulary.",
)
def test_ids_of_no_entry_in_shards_are_named(tmp_path: Path, vocab_dir: Path, said: Said) -> None:
    said(0, *tokenize(tmp_path / "w", vocab_dir, f"it={lines(tmp_path / 'a.jsonl', TEXTS)}"))
    path = load_manifest(tmp_path / "w" / "shards").shards[0].bin_path
    tokens = np.fromfile(path, "<u2")
    tokens[3] = 60_000
    tokens.tofile(path)
    found = said(2, "verify", tmp_path / "w", "--workers", 0)
    assert "a token id is not below the vocabulary size 1500" in found
    view = pretok.stream.open(tmp_path / "w" / "shards", seq_len=16)
    with pytest.raises(
        IntegrityError, match="holds the id 60000, but the largest id of the vocabulary is 1499"
    ):
        read_batch(view, range(len(view)), np.int64)


def page() -> str:
    """docs/known-faults.md: what a person wrote, and an entry for each fault."""
    listed = []
    for threads, there, here, test in FAULTS:
        links = []
        for thread in threads.split():
            repository, _, number = thread.partition("#")
            links.append(
                f"[{repository.partition('/')[2]} {number}](https://github.com/{repository}/issues/{number})"
            )
        listed.append(f"- {', '.join(links)}: {there} **Here:** {here} `{test.__name__}`")
    return "\n".join([PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK, *listed, ""])


def test_the_page_shows_the_rows() -> None:
    """Made by: PYTHONPATH=tests:. python -c "import test_known_faults as t; t.PAGE.write_text(t.page(), 'utf-8')" """
    assert PAGE.read_text(encoding="utf-8") == page()
