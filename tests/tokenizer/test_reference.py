"""Long texts are encoded in pieces with the ids of the whole; what the library gives up on is one document, named."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import rehash
from texts import HARD
from texts import texts as any_texts
from tokenizing import recipe, run, vocabulary

from pretok.base.console import Console
from pretok.base.execute import Engine
from pretok.base.records import replace
from pretok.documents.audit.inspection import run_inspect
from pretok.documents.audit.verify_job import run_verify
from pretok.documents.audit.verify_task import ShardCheck, check_shard
from pretok.kernels.pretokenize import PATTERNS
from pretok.shards.manifest import load_manifest
from pretok.tokenizer import reference
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import EngineError, ReferenceEngine, Unencodable, guarded
from pretok.tokenizer.tokenizer_file import to_characters


@pytest.fixture
def data(vocab_dir: Path) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads((vocab_dir / "tokenizer.json").read_text())
    return contents


def set_pattern(data: dict[str, Any], regex: str) -> None:
    data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = regex


@pytest.fixture(scope="module", params=PATTERNS)
def joining(request: pytest.FixtureRequest, vocab_dir: Path) -> ReferenceEngine:
    """The tokenizer with each pattern, and merges that could join any two words at a space."""
    data = json.loads((vocab_dir / "tokenizer.json").read_text())
    set_pattern(data, PATTERNS[request.param])
    space = to_characters(b" ")
    for character in map(to_characters, (b"a", b"l", b"'", b",", b"\n", b" ")):
        for pair in ((character, space), (space, character)):
            if "".join(pair) not in data["model"]["vocab"]:
                data["model"]["vocab"]["".join(pair)] = len(data["model"]["vocab"])
                data["model"]["merges"].append(list(pair))
    return ReferenceEngine(vocabulary(data))


PARTS = ["l'", "a", " a", ",", ", ", "'", " ", "\n", "7", "è", "che", "_", "。"]


@settings(max_examples=60)
@given(documents=st.lists(st.lists(st.sampled_from(PARTS)).map("".join) | any_texts, max_size=4))
def test_texts_cut_into_pieces_have_the_ids_of_the_whole(
    joining: ReferenceEngine, documents: list[str]
) -> None:
    texts = pa.array([*documents, *HARD], pa.large_string())
    whole = joining.encode(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "LONG", 1)
        assert len(joining._pieces("Each word is a piece, and so is 1.5.")) == 11
        for ids, expected in zip(joining.encode(texts), whole, strict=True):
            assert ids.tolist() == expected.tolist()


class PanicException(BaseException):
    """As pyo3 names what a panic in Rust becomes."""


@pytest.mark.parametrize(
    ("error", "becomes"),
    [(PanicException, EngineError), (ValueError, EngineError), (KeyboardInterrupt, KeyboardInterrupt),
     (MemoryError, MemoryError)],
)  # fmt: skip
def test_what_the_libraries_throw_is_an_engine_error(
    error: type[BaseException], becomes: type[BaseException]
) -> None:
    with pytest.raises(becomes, match="retry-limit"), guarded():
        raise error("retry-limit")


def shards_of(folder: Path, data: dict[str, Any], documents: list[str], here: Engine) -> Path:
    """Shards of the documents; verified, every document encoded again."""
    (folder / "tokenizer.json").write_text(json.dumps(data))
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    made = recipe(folder / "out", folder, {"it": [folder / "a.jsonl"]}, val_fraction="0.3")
    run(made, here)
    assert run_verify(made.shards_dir, None, here, Console())[1] == []
    return made.shards_dir


def give_up_on(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reference give up on documents that hold the text."""
    ids = ReferenceEngine._ids

    def give_up(self: ReferenceEngine, document: str) -> Any:
        if text in document:
            raise EngineError("too hard")
        return ids(self, document)

    monkeypatch.setattr(ReferenceEngine, "_ids", give_up)


def test_what_only_the_fast_engine_encodes_is_no_problem_to_verify(
    tmp_path: Path, data: dict[str, Any], here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up_on("†", monkeypatch)
    shards = shards_of(tmp_path, data, ["una † e", "un'altra † e", "e poi\u0378"], here)
    assert load_manifest(shards).data["sources"]["it"]["documents"] == 3
    shard = next(shard for shard in load_manifest(shards).shards if shard.split == "train")
    ids = np.memmap(shard.bin_path, np.uint16, "r+")
    unmerged = data["model"]["merges"][0]  # the fast engine still finds that these are not its ids
    ids[:2] = [data["model"]["vocab"][part] for part in unmerged]
    ids.flush()
    now = replace(shard, root=rehash(shard.bin_path))
    problems = check_shard(ShardCheck(shards, now, None), lambda counts: None)
    assert problems == [f"{shard.prefix}: document 0 does not encode to its ids again"]


def test_one_document_that_no_engine_encodes_is_rejected_by_name(
    tmp_path: Path, data: dict[str, Any], here: Engine
) -> None:
    """A pattern that takes 2**n steps for n letters: forty are more than the library tries."""
    set_pattern(data, r"(?:a|a)*b|\s+|\S")
    documents = ["uno", "a" * 40 + "cb", *(f"e poi il documento {i}" for i in range(30))]
    shards = shards_of(tmp_path, data, documents, here)
    counts = load_manifest(shards).data["sources"]["it"]
    assert (counts["documents"], counts["rejected"]) == (31, {"unencodable": 1})
    assert counts["val"]["documents"] > 0
    (line,) = (shards / "rejects" / "it-00000.jsonl").read_text().splitlines()
    reject = json.loads(line)
    assert (reject["position"], reject["reason"]) == (2, "unencodable")
    assert "retry-limit" in reject["detail"]
    for split in ("train", "val"):  # each document is where the manifest says it came from
        for number in range(counts[split]["documents"]):
            shown = run_inspect(shards, "it", number, split)
            assert "".join(shown.tokens[:-1]) == documents[shown.position - 1]


def test_a_batch_names_the_documents_that_cannot_be_encoded(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up_on("!", monkeypatch)
    with pytest.raises(
        Unencodable, match="2 documents cannot be encoded: tokenizers gave up: too hard"
    ) as raised:
        Encoder(vocabulary(data)).encode(
            pa.array(["a!", "b\u0378", "c\u0378!", "d", "e\u0378!"], pa.large_string())
        )
    assert raised.value.documents == [2, 4]
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_a_batch_that_the_fast_engine_gives_up_on_goes_to_the_reference(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, documents = Encoder(vocabulary(data)), pa.array(["uno", "due \u0378"], pa.large_string())
    expected, lengths = encoder.encode(documents)

    def give_up(texts: Any) -> None:
        raise EngineError("too hard")

    monkeypatch.setattr(encoder._engine, "encode", give_up)
    ids, again = encoder.encode(documents)
    assert (ids.tolist(), again.tolist()) == (expected.tolist(), lengths.tolist())
