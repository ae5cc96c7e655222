"""What a budget, weights and shares say: read exactly, or refused with the reason."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixing import manifest_of, request

from pretok.base.errors import UsageError
from pretok.base.units import parse_share
from pretok.config import make_recipe
from pretok.stream.mix_job import plan_mix
from pretok.stream.quota import largest_remainder, parse_weights


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**6), min_size=1, max_size=50).filter(any))
def test_largest_remainder(total: int, parts: list[int]) -> None:
    weights = [Fraction(part, sum(parts)) for part in parts]
    quotas = largest_remainder(total, weights)
    assert sum(quotas) == total
    assert all(abs(quota - total * weight) < 1 for quota, weight in zip(quotas, weights, strict=True))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("1.2T", 1_200_000_000_000), ("300B", 3 * 10**11), ("17", 17), ("2.5k", 2500), ("all", "all")],
)
def test_budgets(text: str, tokens: int | str) -> None:
    assert request(f"{text}:natural", seq_len=1).table.all_stages[0].tokens == tokens


@pytest.mark.parametrize("text", ["", "x", "-3", "1.5", "3 TT", "0"])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"mix\.stages\.0\.tokens: .*(all|budget)"):
        request(f"{text}:natural")


def test_weights() -> None:
    assert parse_weights("it=0.9, en=0.1") == {"it": Fraction(9, 10), "en": Fraction(1, 10)}
    assert parse_weights("a=0.333,b=0.333,c=0.333") == dict.fromkeys("abc", Fraction(1, 3))
    assert parse_weights("a=1e-4,b=0.9999") == {"a": Fraction(1, 10_000), "b": Fraction(9_999, 10_000)}
    for wrong, message in [
        ("it=0.9,en=0.2", "add up to 1.1"),
        ("it=0.9,it=0.1", "cannot read 'it=0.1'"),
        ("it", "cannot read"),
        ("it=x,en=1", "cannot read"),
        ("it=-1,en=2", "cannot read"),
    ]:
        with pytest.raises(UsageError, match=message):
            parse_weights(wrong)
    with pytest.raises(UsageError, match="TOKENS:WEIGHTS"):
        request("1.2T")
    with pytest.raises(UsageError, match="no source or class 'fr'"):
        plan_mix(manifest_of({"it": 1_001}), request("500:fr=1", seq_len=100))
    with pytest.raises(UsageError, match="it has 77 tokens, less than one sequence of 100"):
        plan_mix(manifest_of({"it": 77}), request("500:it=1", seq_len=100))
    with pytest.raises(UsageError, match="holds no sequence of 100"):
        request("50:it=1", seq_len=100)


@pytest.mark.parametrize(
    "text", ["5%", "1e-99999999", "1e9999999", "nan", "-1", "1/0", "9" * 5000, "", "1 / 2"]
)
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a share such as 0\.05 or 1/20"):
        parse_share(text)
    with pytest.raises(UsageError, match="cannot read the weight of it"):
        parse_weights(f"it={text},en=0.1")
    with pytest.raises(UsageError, match="val_fraction"):
        make_recipe(
            {"out": "x", "sources": {"it": {"inputs": ["x"]}}, "shards": {"val_fraction": text}}, "test"
        )
    with pytest.raises(UsageError, match=r"test: mix\.max_epochs: "):
        request("all:natural", max_epochs=text)


def test_shares() -> None:
    written = ("0.05", "1/20", "5e-2", ".05", "00.050", 0.05, Fraction(1, 20))
    assert {parse_share(text) for text in written} == {Fraction(1, 20)}
    assert parse_weights("it=2/3,en=1/3") == {"it": Fraction(2, 3), "en": Fraction(1, 3)}
    assert request("all:natural", max_epochs=1e15).table.max_epochs == 10**15
