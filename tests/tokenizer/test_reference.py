"""Long texts are cut where the library would cut them, and what it gives up on is one document, named."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
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
from tokenizing import recipe, run

from pretok.audit.documents import run_inspect
from pretok.audit.verify_job import run_verify
from pretok.audit.verify_task import ShardCheck, check_shard
from pretok.base.console import Silent
from pretok.base.execute import Engine
from pretok.base.records import replace
from pretok.kernels.pretokenize import PATTERNS
from pretok.shards.manifest import load_manifest
from pretok.tokenizer import reference
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import EngineError, ReferenceEngine, Unencodable, guarded
from pretok.tokenizer.tokenizer_file import to_characters

GIVEN_UP = " " * 10_500_000 + "x"
"""The library's regular expression engine gives up after ten million spaces that no line break follows."""


@pytest.fixture(scope="module")
def data(vocab_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((vocab_dir / "tokenizer.json").read_text())
    return found


def with_pattern(data: dict[str, Any], pattern: str) -> str:
    """The tokenizer with another Split, and merges that could join any two words at a space."""
    made = json.loads(json.dumps(data))
    made["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern
    space = to_characters(b" ")
    for character in map(to_characters, (b"a", b"l", b"'", b",", b"\n", b" ")):
        for pair in ((character, space), (space, character)):
            if "".join(pair) not in made["model"]["vocab"]:
                made["model"]["vocab"]["".join(pair)] = len(made["model"]["vocab"])
                made["model"]["merges"].append(list(pair))
    return json.dumps(made)


def encoded(engine: ReferenceEngine, documents: list[str]) -> list[list[int]]:
    ids, offsets = engine.encode(pa.array(documents, pa.large_string()))
    return [part.tolist() for part in np.split(ids, offsets[1:-1])] if documents else []


joined = st.lists(st.sampled_from(["l'", "a", " a", ",", ", ", "'", " ", "\n", "7", "è", "che"])).map("".join)


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=30)
@given(documents=st.lists(joined | any_texts, max_size=4))
def test_texts_cut_into_words_have_the_ids_of_the_whole(
    data: dict[str, Any], pattern: str, documents: list[str]
) -> None:
    engine = ReferenceEngine(with_pattern(data, PATTERNS[pattern]))
    whole = encoded(engine, documents + HARD)
    for long in (0, 2, 10):  # bytes from which documents are cut, and that are encoded at a time
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reference, "LONG", long)
            calls = count_calls(patch)
            assert encoded(engine, documents + HARD) == whole
            assert len(calls) > 1  # or nothing was cut


def count_calls(patch: pytest.MonkeyPatch) -> list[int]:
    """How many texts each call of the library gets from now on."""
    calls: list[int] = []
    encode = reference._encode

    def counted(tokenizer: Any, texts: list[str]) -> Any:
        calls.append(len(texts))
        return encode(tokenizer, texts)

    patch.setattr(reference, "_encode", counted)
    return calls


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("a normalizer", lambda data: data.update(normalizer={"type": "NFC"})),
        ("an added token", lambda data: data["added_tokens"][-1].update(special=False)),
        ("another pattern", lambda data: split_of(data)["pattern"].update(Regex=r"\s+|\S+")),
        ("a second pattern", lambda data: level_of(data).update(use_regex=True)),
        ("spaces before", lambda data: level_of(data).update(add_prefix_space=True)),
        ("another behaviour", lambda data: split_of(data).update(behavior="MergedWithNext")),
    ],
)
def test_what_the_scanner_does_not_cut_alike_is_not_cut(
    data: dict[str, Any], part: str, change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = json.loads(json.dumps(data))
    change(made)
    engine = ReferenceEngine(json.dumps(made))
    documents = ["e\u0301 che <|reserved_0|> dell'acqua", *HARD]
    whole = encoded(engine, documents)
    monkeypatch.setattr(reference, "LONG", 0)
    calls = count_calls(monkeypatch)
    assert encoded(engine, documents) == whole
    assert calls == [len(documents)], part


def split_of(data: dict[str, Any]) -> dict[str, Any]:
    split: dict[str, Any] = data["pre_tokenizer"]["pretokenizers"][0]
    return split


def level_of(data: dict[str, Any]) -> dict[str, Any]:
    level: dict[str, Any] = data["pre_tokenizer"]["pretokenizers"][1]
    return level


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


def shards_of(folder: Path, tokenizer: str, documents: list[str], here: Engine) -> Path:
    """Shards of the documents; verified, every document encoded again."""
    (folder / "tokenizer.json").write_text(tokenizer)
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    made = recipe(folder / "out", folder, {"it": [folder / "a.jsonl"]}, val_fraction="0.3")
    run(made, here)
    assert run_verify(made.shards_dir, None, here, Silent())[1] == []
    return made.shards_dir


@pytest.mark.slow
def test_ten_million_spaces_are_encoded_and_verified(
    tmp_path: Path, data: dict[str, Any], here: Engine
) -> None:
    """A character that the engines class differently sends them to tokenizers at once."""
    shards = shards_of(tmp_path, json.dumps(data), [GIVEN_UP + "\u0378"], here)
    counts = load_manifest(shards).data["sources"]["it"]
    assert (counts["documents"], counts["rejected"]) == (1, {})


def test_what_only_the_fast_engine_encodes_is_no_problem_to_verify(
    tmp_path: Path, data: dict[str, Any], here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up_on("†", monkeypatch)
    shards = shards_of(tmp_path, json.dumps(data), ["una † e", "un'altra † e", "e poi\u0378"], here)
    assert load_manifest(shards).data["sources"]["it"]["documents"] == 3
    shard = next(shard for shard in load_manifest(shards).shards if shard.split == "train")
    ids = np.memmap(shard.bin_path, np.uint16, "r+")
    parts = data["model"]["merges"][0]
    ids[:2] = [
        data["model"]["vocab"][part] for part in parts
    ]  # unmerged: the fast engine's word is still a check
    ids.flush()
    now = replace(shard, root=rehash(shard.bin_path))
    problems = check_shard(ShardCheck(shards, now, None), lambda counts: None)
    assert problems == [f"{shard.prefix}: document 0 does not encode to its ids again"]


def give_up_on(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reference give up on documents that hold the text."""
    encode = reference._encode

    def give_up(tokenizer: Any, texts: list[str]) -> Any:
        if any(text in document for document in texts):
            raise EngineError("too hard")
        return encode(tokenizer, texts)

    monkeypatch.setattr(reference, "_encode", give_up)


def test_one_document_that_no_engine_encodes_is_rejected_by_name(
    tmp_path: Path, data: dict[str, Any], here: Engine
) -> None:
    """A pattern that takes 2**n steps for n letters: forty are more than the library tries."""
    made = json.loads(json.dumps(data))
    split_of(made)["pattern"]["Regex"] = r"(?:a|a)*b|\s+|\S"
    documents = ["uno", "a" * 40 + "cb", *(f"e poi il documento {i}" for i in range(30))]
    shards = shards_of(tmp_path, json.dumps(made), documents, here)
    counts = load_manifest(shards).data["sources"]["it"]
    assert (counts["documents"], counts["rejected"]) == (31, {"unencodable": 1})
    assert counts["val"]["documents"] > 0
    (line,) = (shards / "rejects" / "it-00000.jsonl").read_text().splitlines()
    reject = json.loads(line)
    assert (reject["position"], reject["reason"]) == (2, "unencodable")
    assert "retry-limit" in reject["detail"]
    for split in ("train", "val"):  # each document is where the manifest says it came from
        for number in range(counts[split]["documents"]):
            found = run_inspect(shards, "it", number, split)
            assert "".join(found.tokens[:-1]) == documents[found.position - 1]


def test_a_batch_names_the_documents_that_cannot_be_encoded(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up_on("!", monkeypatch)
    encoder = Encoder(json.dumps(data), 0, 1500)
    with pytest.raises(
        Unencodable, match="2 documents cannot be encoded: tokenizers gave up: too hard"
    ) as raised:
        encoder.encode(pa.array(["a!", "b\u0378", "c\u0378!", "d", "e\u0378!"], pa.large_string()))
    assert raised.value.documents == [2, 4]
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_a_batch_that_the_fast_engine_gives_up_on_goes_to_the_reference(
    data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder(json.dumps(data), 0, 1500)
    documents = pa.array(["uno", "due \u0378"], pa.large_string())
    expected, lengths = encoder.encode(documents)

    def give_up(texts: Any) -> None:
        raise EngineError("too hard")

    monkeypatch.setattr(encoder._engine, "encode", give_up)
    found, again = encoder.encode(documents)
    assert (found.tolist(), again.tolist()) == (expected.tolist(), lengths.tolist())
