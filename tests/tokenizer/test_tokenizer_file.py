"""Any tokenizer.json is read or refused with its place: nothing reaches an engine that could end the process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizing import recipe, run

from pretok.base.console import Console
from pretok.base.errors import MismatchError, UsageError
from pretok.base.execute import Engine
from pretok.cli import run_command
from pretok.documents.audit.inspection import run_inspect
from pretok.shards import tokenize_task as task
from pretok.shards.manifest import TokenizerEntry
from pretok.shards.tokenize_job import run_tokenize
from pretok.shards.tokenize_task import encoder_of
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
    "huge id": (lambda d: vocab(d).update(zzzz=2**31 - 1), "'zzzz' in model.vocab has the id 2147483647"),
    "hugest id": (lambda d: vocab(d).update(zzzz=10**30), "model.vocab"),
    "negative id": (lambda d: vocab(d).update(zzzz=-1), "'zzzz' in model.vocab has the id -1"),
    "hole": (lambda d: vocab(d).update(zzzz=1501), "has the id 1501, but 1501 entries must have the ids 0 to 1500"),
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
