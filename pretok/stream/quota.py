"""Quotas: how many sequences of each source a stage of a mix takes.

Input: weights, token budgets, and the sizes of the sources. Output: whole numbers that sum to the budget, by largest
remainder; or an error that names the budget that would fit. Pure functions on exact fractions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.base.units import listed, parse_share, scaled
from pretok.stream.mix_file import MixSource

if TYPE_CHECKING:
    from pretok.config import MixTable, StageTable

SHOWN = 6
"""The number of sources that a message or a line names."""
WEIGHTS_HINT = "write 'natural' or weights like it=0.9,en=0.1"


def parse_weights(text: str) -> dict[str, Fraction]:
    """Parse 'it=0.9,en=0.1' or 'it=2/3,en=1/3' into weights with the sum 1; none if 'natural'. Raises UsageError."""
    if text == "natural":
        return {}
    weights: dict[str, Fraction] = {}
    for part in text.split(","):
        name, _, value = part.strip().rpartition("=")
        if not name or name in weights:
            raise UsageError(f"cannot read {part!r} in {text!r}; {WEIGHTS_HINT}")
        try:
            weights[name] = parse_share(value)
        except ValueError as error:
            raise UsageError(f"cannot read the weight of {name}: {error}; {WEIGHTS_HINT}") from None
    try:
        return scaled(weights)
    except ValueError as error:
        raise UsageError(str(error)) from None


def stage_table(text: str) -> dict[str, object]:
    """Parse '1.2T:it=0.9,en=0.1' into the table of a stage. Raises UsageError."""
    tokens, colon, weights = text.partition(":")
    if not colon:
        raise UsageError(f"cannot read the stage {text!r}; write TOKENS:WEIGHTS, as in 1.2T:it=0.9,en=0.1")
    return {"tokens": tokens, "weights": parse_weights(weights)}


def largest_remainder(total: int, weights: Sequence[Fraction]) -> list[int]:
    """Split `total` in proportion to `weights`, which sum to 1; on equal remainders the first ones get more."""
    shares = [total * weight for weight in weights]
    quotas = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda number: (quotas[number] - shares[number], number))
    for number in by_remainder[: total - sum(quotas)]:
        quotas[number] += 1
    return quotas


def epochs_spent(sizes: Sequence[int], stages: Iterable[Sequence[int]]) -> list[int]:
    """Return what each entry of a pool has given in all `stages`, with the epochs that it missed before it joined.

    An entry joins when it first gives something, or with the next stage. It counts as if it had taken part in all
    epochs but the current one, or the one that has just ended: so its text is not repeated to catch up.
    """
    spent = [0] * len(sizes)
    for given in (*stages, [1] * len(sizes)):  # in the next stage everyone may join
        begun = max(-(-done // size) if size else 0 for size, done in zip(sizes, spent, strict=True))
        for entry, count in enumerate(given):
            if count and not spent[entry]:
                spent[entry] = max(begun - 1, 0) * sizes[entry]
        last, spent = spent, [done + count for done, count in zip(spent, given, strict=True)]
    return last


def divide(quota: int, sizes: Sequence[int], spent: Sequence[int]) -> list[int]:
    """Divide the quota of a pool among its entries of `sizes`, which have given `spent` (see `epochs_spent`).

    They give the rest of an epoch that not all have ended, then whole epochs.
    """
    # Whole epochs that every entry has given; who has given more waits until the others have, too.
    level = min((done // size for size, done in zip(sizes, spent, strict=True) if size), default=0)
    left = [max((level + 1) * size - done, 0) for size, done in zip(sizes, spent, strict=True)]
    if quota <= sum(left):
        return largest_remainder(quota, [Fraction(room, sum(left) or 1) for room in left])
    epochs, rest = divmod(quota - sum(left), sum(sizes))
    last = largest_remainder(rest, [Fraction(size, sum(sizes)) for size in sizes])
    return [room + epochs * size + part for room, size, part in zip(left, sizes, last, strict=True)]


def pooled(name: str, entries: Sequence[MixSource], seq_len: int) -> MixSource:
    """Combine the entries of a pool into one, whose sequence predicts as many targets as theirs on average."""
    return replace(
        entries[0],
        name=name,
        tokens=sum(entry.tokens for entry in entries),
        sequences=sum(entry.sequences for entry in entries),
        packed=any(entry.packed for entry in entries),
        targets=round(sum(entry.sequences * entry.predicted(seq_len) for entry in entries)),
    )


def stage_quotas(
    stage: StageTable, mix: MixTable, sources: Sequence[MixSource], drawn: Sequence[int]
) -> list[int]:
    """Return how many sequences each source gives to a stage, after earlier stages have taken `drawn`.

    Raises UsageError if the stage asks for more than the sources may give.
    """
    shares = shares_of(stage, sources, mix.seq_len)
    # Targets of an average sequence.
    each = [share * source.predicted(mix.seq_len) for source, share in zip(sources, shares, strict=True)]
    predicted = sum(each, Fraction(0))
    left = [source.sequences - taken for source, taken in zip(sources, drawn, strict=True)]
    # "all" is the longest stage in which no source starts another epoch.
    total = most_that_fits(shares, left) if stage.tokens == "all" else int(stage.tokens / predicted)
    if total < 1:
        raise UsageError(
            "earlier stages have used up a source of this stage: give the stage a number of tokens"
        )
    room = [
        int(mix.max_epochs * source.sequences) - taken for source, taken in zip(sources, drawn, strict=True)
    ]
    quotas = largest_remainder(total, shares)
    over = [
        f"{source.name} has {source.tokens:,} "
        f"({float(mix.max_epochs + (total * share - most) / source.sequences):,.2f} epochs)"
        for source, share, quota, most in zip(sources, shares, quotas, room, strict=True)
        if quota > most
    ]
    if over:
        raise UsageError(
            f"{int(total * predicted):,} tokens would take more than {float(mix.max_epochs):g} epochs of some sources: "
            f"{listed(over, SHOWN)}. With these weights at most {int(most_that_fits(shares, room) * predicted):,} fit: "
            "lower --tokens, add text, or raise --max-epochs"
        )
    return quotas


def weighed(table: MixTable, sources: Sequence[MixSource]) -> MixTable:
    """Return the table with `repeat` expressed by weights and tokens."""
    if not table.repeat:
        return table
    if unknown := sorted(table.repeat.keys() - {source.name for source in sources}):
        raise UsageError(
            f"repeat names {', '.join(unknown)}, which the mix does not have; it has "
            f"{', '.join(source.name for source in sources)}"
        )
    read = [source.sequences * table.repeat.get(source.name, Fraction(1)) for source in sources]
    total = sum(read, Fraction(0))
    if total < 1:
        raise UsageError(_no_sequence(sources, table.seq_len))
    tokens = [count * source.predicted(table.seq_len) for count, source in zip(read, sources, strict=True)]
    predicted = sum(tokens, Fraction(0))
    weights = {source.name: count / predicted for source, count in zip(sources, tokens, strict=True)}
    budget = math.ceil(int(total) * predicted / total)
    return table.model_copy(update={"weights": weights, "tokens": budget})


def shares_of(stage: StageTable, sources: Sequence[MixSource], seq_len: int) -> list[Fraction]:
    """Return the shares of `sources` in the sequences of a stage, in order, with the sum 1.

    The weights hold for the tokens that these sequences predict.
    """
    if not stage.weights:
        total = sum(source.sequences for source in sources)
        if not total:
            raise UsageError(_no_sequence(sources, seq_len))
        return [Fraction(source.sequences, total) for source in sources]
    rates = []
    for source in sources:
        weight = stage.weights.get(source.name, Fraction(0))
        predicted = source.predicted(seq_len)
        if weight and not source.sequences * predicted:
            raise UsageError(
                f"source {source.name} has {source.tokens} tokens, less than one sequence of {seq_len} + 1 that "
                "predicts any; leave it out or use a smaller sequence length"
            )
        # A packed sequence predicts fewer tokens (padding), so the same weight needs more of its sequences.
        rates.append(weight / predicted if weight else weight)
    return [rate / sum(rates) for rate in rates]


def most_that_fits(weights: Sequence[Fraction], room: Sequence[int]) -> int:
    """Return the longest stage at `weights` in which no source gives more than its room."""
    return min(max(r, 0) // weight for r, weight in zip(room, weights, strict=True) if weight)


def _no_sequence(sources: Sequence[MixSource], seq_len: int) -> str:
    longest = max((source.tokens for source in sources), default=0) - 1
    return f"no source holds {seq_len:,} + 1 tokens; use a --seq-len of at most {max(1, longest)}"
