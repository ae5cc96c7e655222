"""Quotas: how many sequences of each source a stage of a mix takes.

Input: weights, token budgets and what the sources hold. Output: whole numbers that add up to the budget, by largest
remainder; or an error that says which budget or weight would fit. Pure functions over exact fractions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.base.units import listed, parse_share, scaled
from pretok.stream.mix_file import MixSource

if TYPE_CHECKING:
    from pretok.config import MixTable, StageTable

SHOWN = 6
"""Sources that a message or a line names."""
WEIGHTS_HINT = "write 'natural' or weights like it=0.9,en=0.1"


def parse_weights(text: str) -> dict[str, Fraction] | None:
    """'it=0.9,en=0.1' or 'it=2/3,en=1/3' -> weights that add up to 1 exactly; 'natural' -> None. Raises UsageError."""
    if text == "natural":
        return None
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
    """'1.2T:it=0.9,en=0.1' -> the table of a stage. Raises UsageError."""
    tokens, colon, weights = text.partition(":")
    if not colon:
        raise UsageError(f"cannot read the stage {text!r}; write TOKENS:WEIGHTS, as in 1.2T:it=0.9,en=0.1")
    return {"tokens": tokens, "weights": parse_weights(weights) or "natural"}


def largest_remainder(total: int, weights: Sequence[Fraction]) -> list[int]:
    """Split `total` in proportion to `weights` (which add up to 1); equal remainders go to the first."""
    shares = [total * weight for weight in weights]
    quotas = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda number: (quotas[number] - shares[number], number))
    for number in by_remainder[: total - sum(quotas)]:
        quotas[number] += 1
    return quotas


def pooled(name: str, entries: Sequence[MixSource], given: Sequence[int], seq_len: int) -> MixSource:
    """What a quota names once: entries, of which each gives so many sequences; a sequence of it is as they are on
    average."""
    if len(entries) == 1:
        return replace(entries[0], name=name)
    given = given if any(given) else [entry.sequences for entry in entries]
    count = max(sum(given), 1)
    predicted = sum(n * entry.predicted(seq_len) for n, entry in zip(given, entries, strict=True)) / count
    learned = sum(n * entry.learned(seq_len) for n, entry in zip(given, entries, strict=True)) / count
    tokens, sequences = (sum(entry.tokens for entry in entries), sum(entry.sequences for entry in entries))
    packed = any(entry.packed for entry in entries)
    return replace(
        entries[0], name=name, tokens=tokens, sequences=sequences, packed=packed, targets=round(predicted * sequences),
        learned_tokens=round(learned * sequences if packed else learned * tokens / seq_len),
    )  # fmt: skip


def stage_quotas(
    stage: StageTable, mix: MixTable, sources: Sequence[MixSource], drawn: Sequence[int]
) -> tuple[list[int], list[str]]:
    """Sequences each source gives to a stage of a mix after `drawn` were taken by the stages before.

    Returns the quotas and a sentence for each source that `mix.cap` held back. Raises UsageError when the stage
    asks for more than the sources may give.
    """
    seq_len, most = mix.seq_len, mix.max_epochs
    weights = shares_of(stage, sources, seq_len)
    each = [source.learned(seq_len) for source in sources]
    learned = sum(
        (one * weight for one, weight in zip(each, weights, strict=True)), Fraction(0)
    )  # of a sequence
    left = [source.sequences - taken for source, taken in zip(sources, drawn, strict=True)]
    # Without a number of tokens the longest stage in which no source starts another epoch.
    total = most_that_fits(weights, left) if stage.tokens == "all" else int(stage.tokens / learned)
    if total < 1:
        raise UsageError(
            "the scarcest source is used up by the stages before: give this stage a number of tokens"
        )
    room = [int(most * source.sequences) - taken for source, taken in zip(sources, drawn, strict=True)]
    quotas = largest_remainder(total, weights)
    over = [number for number, quota in enumerate(quotas) if quota > room[number]]
    if not over:
        return quotas, []
    if not mix.cap:
        raise UsageError(_too_much(over, total, weights, sources, room, learned, most))
    capped = _fill_up(total, weights, room)
    if capped is None:
        given = int(sum(r for r, weight in zip(room, weights, strict=True) if weight) * learned)
        raise UsageError(
            f"the budget is {int(total * learned):,} tokens, but read {float(most):g} times the sources give "
            f"{given:,}: take at most that many, or allow more with max_epochs (--max-epochs)"
        )
    notes = [
        f"{sources[number].name} is held at {float(most):g} epochs: {int(capped[number] * each[number])} tokens "
        f"instead of {int(quotas[number] * each[number])}; the other sources fill up"
        for number in range(len(sources))
        if capped[number] < quotas[number]
    ]
    return capped, notes


def as_counted(table: MixTable, sources: Sequence[MixSource]) -> tuple[MixSource, ...]:
    """The sources as quotas count them: by all tokens, unless by those that are learned."""
    if table.count == "learned":
        return tuple(sources)
    return tuple(replace(source, learn=(), learned_tokens=0) for source in sources)


def weighed(table: MixTable, sources: Sequence[MixSource]) -> MixTable:
    """The same where `repeat` is said by weights and tokens."""
    if not table.repeat:
        return table
    if unknown := sorted(table.repeat.keys() - {source.name for source in sources}):
        raise UsageError(
            f"repeat names {', '.join(unknown)}, which the mix has not; there are "
            f"{', '.join(source.name for source in sources)}"
        )
    read = {source.name: source.sequences * table.repeat.get(source.name, Fraction(1)) for source in sources}
    total = sum(read.values(), Fraction(0))
    if total < 1:
        raise UsageError(_no_sequence(sources, table.seq_len))
    for source in sources:
        if read[source.name]:
            _check_learned(source, table.seq_len)
    tokens = {source.name: read[source.name] * source.learned(table.seq_len) for source in sources}
    learned = sum(tokens.values(), Fraction(0))
    weights = {name: count / learned for name, count in tokens.items()}
    return table.model_copy(update={"weights": weights, "tokens": math.ceil(int(total) * learned / total)})


def shares_of(stage: StageTable, sources: Sequence[MixSource], seq_len: int) -> list[Fraction]:
    """The shares of `sources` in the sequences of a stage, in order, adding up to 1, so that their learned tokens are
    as the weights say."""
    if stage.weights == "natural":
        total = sum(source.sequences for source in sources)
        if not total:
            raise UsageError(_no_sequence(sources, seq_len))
        return [Fraction(source.sequences, total) for source in sources]
    weights = [stage.weights.get(source.name, Fraction(0)) for source in sources]
    for source, weight in zip(sources, weights, strict=True):
        if weight and source.sequences:
            _check_learned(source, seq_len)
        if weight and not source.sequences:
            raise UsageError(
                f"source {source.name} has {source.tokens} tokens, not one sequence of {seq_len} + 1; "
                "leave it out or take a smaller sequence length"
            )
    rates = [
        weight / source.learned(seq_len) if weight else weight
        for source, weight in zip(sources, weights, strict=True)
    ]
    return [rate / sum(rates) for rate in rates]


def _check_learned(source: MixSource, seq_len: int) -> None:
    """UsageError for a source that cannot be weighed by what is learned of it."""
    if not source.learned(seq_len):
        raise UsageError(
            f"none of the {source.tokens:,} tokens of {source.name} is learned ({', '.join(source.learn)}), so no "
            "number of them has this weight: learn another kind, leave it out or count all tokens"
        )


def most_that_fits(weights: Sequence[Fraction], room: Sequence[int]) -> int:
    """The longest stage at `weights` in which no source gives more than its room."""
    return min(max(r, 0) // weight for r, weight in zip(room, weights, strict=True) if weight)


def _fill_up(total: int, weights: Sequence[Fraction], room: Sequence[int]) -> list[int] | None:
    """Quotas within `room`, the excess of full sources shared by the others in proportion; None if it is not enough."""
    full: set[int] = set()
    while True:
        open_ = [number for number, weight in enumerate(weights) if weight and number not in full]
        left = total - sum(room[number] for number in full)
        scale = sum((weights[number] for number in open_), Fraction(0))
        if left and not open_:
            return None
        shares = largest_remainder(left, [weights[number] / scale for number in open_])
        over = [number for number, share in zip(open_, shares, strict=True) if share > room[number]]
        if not over:
            quotas = [room[number] if number in full else 0 for number in range(len(weights))]
            for number, share in zip(open_, shares, strict=True):
                quotas[number] = share
            return quotas
        full.update(over)


def _too_much(
    over: Sequence[int],
    total: int,
    weights: Sequence[Fraction],
    sources: Sequence[MixSource],
    room: Sequence[int],
    learned: Fraction,
    max_epochs: Fraction,
) -> str:
    told = []
    for number in over:
        source = sources[number]
        epochs = max_epochs + (total * weights[number] - room[number]) / source.sequences
        told.append(f"{source.name} has {source.tokens:,} ({float(epochs):,.2f} epochs)")
    fill = ", let the other sources fill up (cap)" if _fill_up(total, weights, room) else ""
    most = int(most_that_fits(weights, room) * learned)
    return (
        f"{int(total * learned):,} tokens are more than {float(max_epochs):g} epochs of the sources give: "
        f"{listed(told, SHOWN)}. With these weights {most:,} are the most: take that many (--tokens), add text{fill}, "
        "or allow more epochs (--max-epochs)"
    )


def _no_sequence(sources: Sequence[MixSource], seq_len: int) -> str:
    longest = max((source.tokens for source in sources), default=0) - 1
    return f"no source holds {seq_len:,} + 1 tokens; take --seq-len {max(1, longest)} at most"
