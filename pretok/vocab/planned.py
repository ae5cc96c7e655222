"""How much text of each source the training of a model will read: what a vocabulary's figures are weighed by.

Input: a Recipe and what its counts say of each source. Output: a scale. Everything that is counted per source, be it
uses of an entry, words or bytes, becomes what the planned text holds when it is multiplied by the scale and added up.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from pretok.base.errors import UsageError
from pretok.config import MixTable, Recipe
from pretok.counts.weigh import shares


def plan_text(
    recipe: Recipe, sample: Fraction, sizes: dict[str, int], tokens: dict[str, int]
) -> tuple[str, npt.NDArray[np.float64]]:
    """(basis, scale): where the proportions are from, and planned text of each source as a multiple of what is counted.

    sizes, tokens: what was counted of each source, bytes and tokens by the vocabulary made; sample: the share of the
    documents that was counted; scale: float64[sources]. basis `mix`: the tokens that the recipe's [mix] gives each
    source, of all its stages; `weights`: as much text as there is, in the proportion of the vocabulary's weights;
    `disk`: the text as it is.
    """
    there = {name: Fraction(count) / sample for name, count in tokens.items()}
    if recipe.mix is not None:
        wanted = _mix_tokens(recipe.mix, there)
        return "mix", _scale({name: wanted[name] / max(1, tokens[name]) for name in sizes})
    if not recipe.vocab.weights:
        return "disk", _scale(dict.fromkeys(sizes, 1 / sample))
    whole = sum(sizes.values()) / sample
    parts = shares(recipe.vocab.weights, sizes)
    return "weights", _scale({name: parts[name] * whole / max(1, sizes[name]) for name in sizes})


def _scale(factors: dict[str, Fraction]) -> npt.NDArray[np.float64]:
    return np.array([float(factor) for factor in factors.values()])


def check_mix(recipe: Recipe, sources: list[str]) -> None:
    """Raises UsageError where the mix names a source that is not counted."""
    for stage in recipe.mix.all_stages if recipe.mix is not None else ():
        if unknown := set(stage.named) - set(sources):
            raise UsageError(
                f"[mix] names {', '.join(sorted(unknown))}, but the sources are {', '.join(sources)}"
            )


def _mix_tokens(mix: MixTable, there: dict[str, Fraction]) -> dict[str, Fraction]:
    """Tokens each source gives to all stages, as `pretok mix` shares them out, but for rounding to sequences."""
    taken = dict.fromkeys(there, Fraction(0))
    for stage in mix.all_stages:
        weights = stage.named or there
        parts = shares({name: weights.get(name, Fraction(0)) for name in there}, dict.fromkeys(there, 1))
        if stage.tokens == "all":  # one epoch of the scarcest source
            total = max(Fraction(0), min((there[n] - taken[n]) / part for n, part in parts.items() if part))
        else:
            total = Fraction(stage.tokens)
        for name, part in parts.items():
            taken[name] += total * part
    return taken
