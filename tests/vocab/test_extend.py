"""build-vocab --extend: BPE goes on where an old tokenizer stopped, and no old id changes its meaning."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from counting import documents, recipe, write_lines
from support import needs
from test_bpe import merge_slowly
from texts import HARD
from tokenizers import Tokenizer
from tokenizing import trained_model

from pretok.base.console import NO_CONSOLE
from pretok.base.errors import IntegrityError, MismatchError, UsageError
from pretok.base.storage import read_json
from pretok.config import Recipe
from pretok.kernels.pretokenize import PATTERNS
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.tokenizer_file import to_bytes
from pretok.tokenizer.vocab_map import read_map
from pretok.tokenizer.vocabulary import load_vocab, tokenizer_data
from pretok.vocab.build_vocab_job import run_build_vocab

pytestmark = pytest.mark.usefixtures("few_buckets")
SHAPES = {"gpt2": "gpt2", "llama3": "cl100k", "qwen2": "qwen2"}
"""Published tokenizers -> the pattern of their words."""
LLAMA = [f"<|{name}|>" for name in ("begin_of_text", "end_of_text", *(f"reserved_{i}" for i in range(6)))]
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>"]


def added(token: str, i: int, special: bool = True) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": i, "content": token, **flags, "special": special}


def tokenizer_like(shape: str, texts: list[str], size: int = 600) -> dict[str, Any]:
    """A small tokenizer.json with all that the published one of this shape has besides its entries."""
    model = trained_model(texts, SHAPES[shape], [], vocab_size=size) | {"ignore_merges": shape == "llama3"}
    names = {"gpt2": ["<|endoftext|>"], "llama3": LLAMA, "qwen2": QWEN}[shape]
    data = tokenizer_data(PATTERNS[SHAPES[shape]], [], []) | {
        "added_tokens": [added(name, size + i, name != "<tool_call>") for i, name in enumerate(names)],
        "normalizer": {"type": "NFC"} if shape == "qwen2" else None,
        "model": model,
    }
    if shape == "gpt2":  # as older files have it
        data["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        model["vocab"]["<|endoftext|>"] = size
        data["model"]["merges"] = [" ".join(pair) for pair in model["merges"]]
    return data


@pytest.fixture(scope="module")
def like(sample_texts) -> Callable[..., dict[str, Any]]:
    """`tokenizer_like` of English texts; each is trained once."""
    made = cache(lambda *key: json.dumps(tokenizer_like(key[0], sample_texts["en"][:60], key[1])))
    return lambda shape="llama3", size=300: json.loads(made(shape, size))


@pytest.fixture
def extension(folder, tmp_path, like) -> Callable[..., Recipe]:
    """A recipe that extends a tokenizer, which it writes to `old`."""

    def made(data: dict[str, Any] | None = None, **settings: Any) -> Recipe:
        old = written(tmp_path / "old", data or like())
        return recipe(folder, **{"pattern": "cl100k", "extend": str(old), "add": 20, **settings})

    return made


def written(folder: Path, data: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


def opened(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer


def slow_extension(old: Tokenizer, texts: list[str], add: int) -> list[tuple[bytes, bytes]]:
    """The new merges, by counting all pairs of all words again for each."""
    apart = old.get_added_tokens_decoder()
    ids = sorted((i, token) for token, i in old.get_vocab().items())
    tokens = [b"" if i in apart else to_bytes(token) for i, token in ids]
    words: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        encoding = old.encode(text, add_special_tokens=False)
        cut: dict[int, list[int]] = {}
        for word, i in zip(encoding.word_ids, encoding.ids, strict=True):
            cut.setdefault(word, []).append(-1 if i in apart else i)
        words.update(map(tuple, cut.values()))
    sequences = [([*word], count) for word, count in words.items()]
    merges, _, _, after = merge_slowly(sequences, tokens, add, len(tokens))
    return [(after[left], after[right]) for left, right in merges]


@pytest.mark.parametrize("shape", SHAPES)
def test_merging_goes_on_and_old_ids_stay(shape, folder, tmp_path, sample_texts, like, extension, here):
    old = tmp_path / "old"
    write_lines(folder / "in" / "it-0.jsonl", sample_texts["it"][:6])
    write_lines(folder / "in" / "it-1.jsonl", HARD[1:])  # of which the normalizer of one changes some
    write_lines(folder / "in" / "en.jsonl", sample_texts["en"][:6])
    made = extension(like(shape, 600), holdout="0", pattern=SHAPES[shape], add=60)
    report = run_build_vocab(made, here, NO_CONSOLE)
    before, after = read_json(old / "tokenizer.json"), read_json(made.vocab_dir / "tokenizer.json")
    size = opened(old).get_vocab_size()
    assert report.size == size + 60

    texts = documents(folder, "it") + documents(folder, "en")
    earlier, new = (
        [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in data["model"]["merges"]]
        for data in (before, after)
    )
    count = len(earlier)
    assert new[:count] == earlier
    expected = slow_extension(opened(old), texts, 60)
    assert [(to_bytes(a), to_bytes(b)) for a, b in new[count:]] == expected

    found_map = read_map(made.vocab_dir / "vocab-map.json")
    was, now = load_vocab(old), load_vocab(made.vocab_dir)
    for end, vocab in ((found_map.old, was), (found_map.new, now)):
        assert (end.size, end.fingerprint) == (vocab.size, vocab.fingerprint)
    assert [int(i) for i in found_map.rows] == [*range(size, size + 60)]
    for i, parts in found_map.rows.items():
        assert b"".join(map(was.token_bytes, parts)) == now.token_bytes(int(i))

    one, other = opened(old), opened(made.vocab_dir)
    assert other.get_vocab().items() >= one.get_vocab().items()
    assert other.get_added_tokens_decoder() == one.get_added_tokens_decoder()
    texts += ["<tool_call>x", *LLAMA, *QWEN, "".join(LLAMA + QWEN)]
    ids, offsets = Encoder(now).ids(pa.array(texts, pa.large_string()))
    unchanged = 0
    for text, a, b in zip(texts, offsets[:-1], offsets[1:], strict=True):
        found = ids[a:b].tolist()
        assert found == other.encode(text, add_special_tokens=False).ids
        assert max(found) < size or any(i >= size for i in found)
        if max(found) < size:
            unchanged += 1
            assert found == one.encode(text, add_special_tokens=False).ids
    assert 0 < unchanged < len(texts)
    special = {token["id"] for token in after["added_tokens"] if token["special"]}
    assert not special & set(ids.tolist())


def test_the_report_compares_the_old_tokenizer(extension, here):
    made = extension(add=250)
    report = run_build_vocab(made, here, NO_CONSOLE)
    rows = report.compare
    assert (rows["this"]["it"].tokens or 0) < (rows[str(made.vocab.extend)]["it"].tokens or 0)
    with pytest.raises(MismatchError, match="size was"):
        run_build_vocab(extension(add=200), here, NO_CONSOLE)


def test_transformers_opens_it_with_what_stood_beside(extension, here):
    transformers = needs("transformers")
    made = extension()
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end_of_text|>",
        "model_max_length": 77,
    }
    old = Path(str(made.vocab.extend))
    (old / "tokenizer_config.json").write_text(json.dumps(config))
    (old / "generation_config.json").write_text("{}")
    run_build_vocab(made, here, NO_CONSOLE)
    opens = transformers.AutoTokenizer.from_pretrained(str(made.vocab_dir))
    text = "L'acqua è più fresca, perché no?"
    assert opens(text)["input_ids"] == opened(made.vocab_dir).encode(text).ids
    assert (opens.eos_token, opens.model_max_length) == ("<|end_of_text|>", 77)
    assert (made.vocab_dir / "generation_config.json").read_text() == "{}"


def spoiled(spoil: str, data: dict[str, Any]) -> None:
    """Change a tokenizer so that it cannot be extended."""
    model = data["model"]
    if spoil == "appended":
        model["vocab"]["perche"] = data["added_tokens"][0]["id"]
        data["added_tokens"], model["ignore_merges"] = [], False
    elif spoil == "one word":
        data["added_tokens"][-1]["content"] = "EOS"
    elif spoil == "unigram":
        data["model"] = {"type": "Unigram", "vocab": []}
    elif spoil == "normalizer":
        data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}
    elif spoil == "pattern":
        data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\w+"


@pytest.mark.parametrize(
    ("spoil", "settings", "message"),
    [
        ("unigram", {}, "not a byte-level BPE tokenizer but Unigram"),
        ("pattern", {}, "by a pattern that pretok does not know"),
        ("normalizer", {}, "changes text before it splits it into words .normalizer Sequence"),
        ("one word", {}, "'EOS' is one word"),
        ("appended", {"eod": "perche"}, "no merge makes 1 of its entries, such as 'perche'"),
        ("", {"pattern": "gpt2"}, "by the pattern cl100k, .* give --pattern cl100k"),
        ("", {"eod": "</s>"}, "has no end-of-document token </s>"),
        ("", {"sizes": (300,)}, "sizes and extend cannot be combined"),
        ("", {"extend": "nowhere"}, "no tokenizer at nowhere"),
    ],
)
def test_what_cannot_be_extended_is_named_before_anything_is_written(
    spoil, settings, message, like, extension, here
):
    spoiled(spoil, data := like())
    made = extension(data, **settings)
    with pytest.raises(UsageError, match=message):
        run_build_vocab(made, here, NO_CONSOLE)
    assert not made.out.exists()


@pytest.mark.parametrize(
    ("content", "text"), [("   ", "a   "), ("ĠĠĠ", "a   "), ("\t\t", "a\t\t"), ("ĉĉ", "a\t\t")]
)
def test_spaces_do_not_become_a_special_token(content, text, tmp_path, like, extension, here):
    """A special token of spaces alone, as they are written and as the vocabulary spells them. With ignore_merges, a
    word that is an entry becomes it, and an extension writes the special tokens among the entries."""
    data = like()
    special = data["added_tokens"][-1] | {"content": content}
    data["added_tokens"][-1] = special
    among = json.loads(json.dumps(data))
    among["model"]["vocab"][content] = special["id"]
    spaces = opened(written(tmp_path / "among", among)).encode(text, add_special_tokens=False).ids
    made = extension(data)
    if special["id"] in spaces:
        with pytest.raises(UsageError, match=r"is one word, and with ignore_merges text that spells it"):
            run_build_vocab(made, here, NO_CONSOLE)
        assert content in ("ĠĠĠ", "ĉĉ")
    else:
        run_build_vocab(made, here, NO_CONSOLE)
        found = opened(made.vocab_dir).encode(text, add_special_tokens=False).ids
        assert special["id"] not in found
        assert found[0] == spaces[0]
        assert content in ("   ", "\t\t")


def test_more_entries_than_the_words_hold_are_refused(folder, extension, here):
    """And leave no claim to a tokenizer that others put there."""
    made = extension(add=60_000)
    with pytest.raises(UsageError, match="the words give only"):
        run_build_vocab(made, here, NO_CONSOLE)
    assert not list(made.vocab_dir.rglob("*.json"))
    made.vocab_dir.mkdir(parents=True, exist_ok=True)
    (other := made.vocab_dir / "tokenizer.json").write_text("of others")
    with pytest.raises(UsageError, match="is not build-vocab's"):
        run_build_vocab(extension(), here, NO_CONSOLE)
    assert other.read_text() == "of others"
    Path(str(made.vocab.extend), "tokenizer.json").rename(other)
    with pytest.raises(UsageError, match="would overwrite"):
        run_build_vocab(recipe(folder, pattern="cl100k", extend=str(made.vocab_dir), add=1), here, NO_CONSOLE)


def test_a_damaged_map_is_named(tmp_path, extension, here):
    made = extension()
    run_build_vocab(made, here, NO_CONSOLE)
    path = made.vocab_dir / "vocab-map.json"
    whole = read_json(path)
    wrong = (
        ({**whole, "rows": {}}, UsageError, "nothing says what the entry"),
        ({**whole, "rows": {"1": [10**6]}}, UsageError, "does not map between"),
        ({**whole, "version": 2}, MismatchError, "format version 2"),
        ({**whole, "old": 3}, IntegrityError, "old: Expected `object`"),
    )
    for data, error, message in wrong:
        path.write_text(json.dumps(data))
        with pytest.raises(error, match=message):
            read_map(path)
    with pytest.raises(UsageError, match="pretok build-vocab --extend writes one"):
        read_map(tmp_path / "nowhere")
