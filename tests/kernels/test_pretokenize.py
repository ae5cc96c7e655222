"""The scanner against `tokenizers` and `regex`, and what gigatoken classes differently."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import numpy.typing as npt
import pytest
import regex
from hypothesis import given, settings
from texts import HARD, pack, texts
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from pretok.base.errors import UsageError
from pretok.kernels import unicode as u
from pretok.kernels.pretokenize import PATTERNS, disputed, split_words, word_ends
from pretok.tokenizer.tokenizer_file import to_characters

SCALARS = [*range(0xD800), *range(0xE000, u.CODE_POINTS)]
CHANGES = np.flatnonzero(np.diff(u.class_table())).tolist()
EDGES = sorted({*range(0x300), *CHANGES, *(c + 1 for c in CHANGES)} - {*range(0xD800, 0xE000)})


def words(text: str, pattern: str, table: npt.NDArray[np.uint8] | None = None) -> list[str]:
    data, offsets = pack([text])
    ends = word_ends(data, offsets, pattern, table).tolist()
    return [data[a:b].tobytes().decode() for a, b in zip([0, *ends], ends, strict=False)]


@cache
def regex_table() -> npt.NDArray[np.uint8]:
    """The classes of the Unicode version that the `regex` module has."""
    return u.probe(lambda expression, text: regex.findall(expression, text))


def test_class_table_is_that_of_the_installed_tokenizers() -> None:
    """Every code point has one class, or none if it is not assigned."""
    assert np.array_equal(u.class_table(), u.probe(u.find_with_tokenizers))
    flags = {flag for flag, _ in u.CLASSES.values()} | {u.UNASSIGNED}
    assert set(np.unique(regex_table())) == set(np.unique(u.class_table())) == flags


@pytest.mark.parametrize("pattern", PATTERNS)
def test_hard_texts_in_a_row_do_not_touch(pattern: str) -> None:
    data, offsets = pack(HARD)
    for table, split in (
        (None, partial(split_words, pattern=pattern)),
        (regex_table(), partial(regex.findall, PATTERNS[pattern])),
    ):
        lengths = [len(word.encode()) for text in HARD for word in split(text)]
        assert word_ends(data, offsets, pattern, table).tolist() == np.cumsum(lengths).tolist()


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=3 * settings.default.max_examples)
@given(text=texts)
def test_any_text(pattern: str, text: str) -> None:
    assert words(text, pattern) == split_words(text, pattern)
    assert words(text, pattern, regex_table()) == regex.findall(PATTERNS[pattern], text)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_code_points_in_contexts(pattern: str) -> None:
    """The ends of every range of equal class, behind and before a letter, a digit, a symbol, space, apostrophe."""
    text = "".join(f"a{c}a {c}1{c}!{c}\n'{c}A" for c in map(chr, EDGES))
    assert words(text, pattern) == split_words(text, pattern)


@given(data=texts.map(lambda text: text.encode()[:-1]))
def test_invalid_utf8_stays_inside_the_document(data: bytes) -> None:
    array = np.frombuffer(data + b"\x80\xff\xf8\xc3", np.uint8)
    for pattern in PATTERNS:
        for cut in range(len(data), len(array) + 1):
            ends = word_ends(array, np.array([0, cut]), pattern).tolist()
            assert ends == sorted(set(ends))
            assert (ends or [0])[-1] == cut


def test_unknown_pattern_names_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"'cl200k'.*cl100k, gpt2, o200k, qwen2"):
        word_ends(*pack(["a"]), "cl200k")


def probe_tokenizer(pattern: str, one: str, *, after: bool) -> str:
    """A tokenizer.json that knows the bytes and the pairs of `one` with any byte after it, or before it: a pair shows
    where no word ends."""
    characters = [to_characters(bytes([byte])) for byte in range(256)]
    vocab = {character: number for number, character in enumerate(characters)}
    merges = [(one, other) if after else (other, one) for other in characters if other != one]
    tokenizer = Tokenizer(models.BPE(vocab | {a + b: 256 + i for i, (a, b) in enumerate(merges)}, merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    tokenizer.decoder = decoders.ByteLevel()
    return str(tokenizer.to_str())


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_engines_differ_only_in_disputed_code_points(pattern: str) -> None:
    """Asks the installed gigatoken whether each code point joins a letter, a digit, a symbol and white space before it,
    and a capital after it.

    All of Unicode for letters and digits, the ends of the ranges for the others.
    """
    import awkward
    import gigatoken

    contexts = (
        ("a{}", SCALARS),
        ("A{}", SCALARS),
        ("1{}", SCALARS),
        ("!{}", EDGES),
        ("\n{}", EDGES),
        ("{}Aa", SCALARS),
    )
    for context, points in contexts:
        one, after = context.strip("{}")[0], not context.startswith("{")
        documents = [context.format(chr(c)) for c in points if chr(c) not in context]
        data, offsets = pack(documents)
        name = to_characters(one.encode())
        engine = gigatoken.Tokenizer.from_json(probe_tokenizer(pattern, name, after=after))
        tokens = np.asarray(awkward.num(engine.encode_batch(documents, parallel=False)))
        joined = tokens < np.diff(offsets)
        border = offsets[:-1] + 1 if after else offsets[1:] - 2
        expected = ~np.isin(border, word_ends(data, offsets, pattern))
        undisputed = ~disputed(data, offsets)
        assert joined[undisputed].any() or (pattern, one) == ("qwen2", "1")  # there each digit is a word
        assert np.array_equal(joined[undisputed], expected[undisputed])


def test_disputed_documents() -> None:
    """Seen at every place of a word."""
    documents = {
        "": False, "perché no? 日本 😀": False, "a\U000323b0": True, "\U000323b0": True, "ok": False, "\u0378x": True,
        "\ue000": False, "\u0295": True, "a" * 99 + "\uffff": True,
        **{"a" * n + "\U000323b0" + "è" * 9: True for n in range(17)}, **{"a" * n + "’è" * 9: False for n in range(17)},
    }  # fmt: skip
    assert disputed(*pack(list(documents))).tolist() == list(documents.values())
    assert np.array_equal(
        disputed(*pack([chr(c) for c in SCALARS])), u.disputed_classes()[SCALARS] == u.UNASSIGNED
    )
