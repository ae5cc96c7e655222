"""Recipes are validated; what is wrong is named with what was meant."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from pretok.config import DEFAULT_SPECIAL_TOKENS, load_recipe, make_recipe, parse_inputs
from pretok.errors import UsageError
from pretok.units import parse_count, short

RECIPES = Path(__file__).parent.parent / "pipelines"
MINIMAL = {"out": "work", "sources": {"it": {"inputs": ["a.jsonl"]}}}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda p: p.stem)
def test_shipped_recipes_are_valid(path):
    recipe = load_recipe(path)
    assert set(recipe.sources) == {"it", "en"}
    assert recipe.mix is not None


def test_the_two_models_ask_for_what_they_promise():
    first, second = (load_recipe(RECIPES / f"italia-{name}.toml") for name in ("v01", "cpt"))
    assert first.mix.tokens == 1_200_000_000_000
    assert first.mix.weights == {"it": Fraction(9, 10), "en": Fraction(1, 10)}
    assert (first.vocab.size, first.mix.seq_len) == (50_000, 4096)
    assert second.mix.tokens == 3_000_000_000_000
    assert second.mix.weights == {"it": Fraction(1, 2), "en": Fraction(1, 2)}
    assert second.normalize == first.normalize


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shard": {}}, "unknown key shard (did you mean shards?)"),
        ({"vocab": {"sise": 1}}, "unknown key vocab.sise (did you mean size?)"),
        ({"sources": {"it": {"inputs": ["a"], "feild": "x"}}}, "sources.it.feild (did you mean field?)"),
        ({"sources": {}}, "sources"),
        ({"sources": {"i/t": {"inputs": ["a"]}}}, "becomes part of file names"),
        ({"vocab": {"size": 100}}, "vocab.size"),
        ({"shards": {"val_fraction": "1.5"}}, "shards.val_fraction"),
        ({"shards": {"size": "12 apples"}}, "not a count such as"),
        ({"normalize": {"unicode": "nfkc"}}, "normalize.unicode"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(UsageError) as caught:
        make_recipe({**MINIMAL, **change}, "r.toml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("r.toml: ")


def test_missing_and_broken_recipes(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("out = ")
    with pytest.raises(UsageError, match="not valid TOML"):
        load_recipe(tmp_path / "bad.toml")


def test_inputs_on_the_command_line():
    sources = parse_inputs(["it=a/*.zst", "en=b.parquet", "it=c.jsonl"])
    assert sources == {"it": {"inputs": ["a/*.zst", "c.jsonl"]}, "en": {"inputs": ["b.parquet"]}}
    for wrong in ("a.jsonl", "=a", "it="):
        with pytest.raises(UsageError):
            parse_inputs([wrong])


def test_default_special_tokens():
    assert DEFAULT_SPECIAL_TOKENS[:2] == ("<|endoftext|>", "<|pad|>")
    assert len(set(DEFAULT_SPECIAL_TOKENS)) == 64


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.2T", 1_200_000_000_000),
        ("300B", 300 * 10**9),
        ("64MiB", 64 << 20),
        ("1_000", 1000),
        (7, 7),
        ("2k", 2000),
    ],
)
def test_counts(text, value):
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "1.5", "x", "1.23456K", "-1", "1 Z"])
def test_what_is_no_count(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the message is tested above
        parse_count(text)


def test_short():
    assert [short(n) for n in (0, 999, 1234, 5.6e12)] == ["0", "999", "1.23 k", "5.6 T"]
