"""superwords: the second stage of build-vocab.

Input: a Recipe, the words' vocabulary that the counts gave, the counts. Output: VOCAB/tokenizer.json and its two
companions with as many entries, of which the last are superwords, and a section for the report.

    sample    chains of tokens from a sample of every source, one task a partition, kept in a state folder
    merge     train the superwords, write the tokenizer
    measure   tokens of the held-out texts at several numbers of superwords

Sources are sampled in the proportion of their weights; one that is too small for its share is taken several times.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pretok.base.console import SILENT, Console, table
from pretok.base.errors import UsageError
from pretok.base.execute import Engine
from pretok.base.tasks import Step, open_step
from pretok.config import Recipe, Vocab
from pretok.counts.counts_file import CorpusCounts
from pretok.counts.job import partitions_of
from pretok.counts.weigh import mix_bytes_per_token, shares
from pretok.kernels.pretokenize import PATTERNS
from pretok.read.batches import buffers
from pretok.read.guarded import one_child
from pretok.superwords.chain_task import ChainTask, read_chains, stage_tokens, write_chains
from pretok.superwords.chains import train_superwords
from pretok.superwords.segments import BASE, COARSE, SEPARATORS
from pretok.superwords.stages import Merge, drop_crossing
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.tokenizer_file import to_bytes
from pretok.tokenizer.vocabulary import Vocabulary, tokenizer_data, write_vocab
from pretok.vocab.bpe import Merges
from pretok.vocab.records import Budget, SuperwordReport, UsedSuperword

ROWS = (0, 2_500, 5_000, 10_000, 20_000)
"""Numbers of superwords that the report compares."""
MOST_USED = 50
"""How many superwords the report lists."""
SHOWN = 20
"""How many of them are shown."""
SAMPLED_PARTS = 8
"""A sample smaller than an eighth of a source is taken from every k-th of its partitions, the others not being read."""
FEWEST_PARTITIONS = 16
"""The partitions a sample comes from at least, where there are as many."""


def check_superwords(vocab: Vocab, counted: bool) -> None:
    """Raises UsageError where superwords cannot be trained; `counted`: whether from counts, without text."""
    if vocab.pattern != BASE:
        raise UsageError(f"superwords join words of the pattern {BASE}, not {vocab.pattern}")
    if vocab.superwords > vocab.size - len(vocab.special_tokens) - 256:
        raise UsageError(
            f"a vocabulary of {vocab.size} entries has no room for {vocab.superwords} superwords"
        )
    if counted:
        raise UsageError(
            "superwords are trained on text, which counts of words do not hold; leave out --counts"
        )


def settings(vocab: Vocab) -> dict[str, Any]:
    """What decides the superwords, as the report's `config` names it."""
    return {
        "entries": vocab.superwords,
        "sample": vocab.superword_sample,
        "separators": vocab.superword_separators,
        "most_words": vocab.superword_words,
    }


def add_superwords(
    recipe: Recipe, engine: Engine, console: Console, plain: Vocabulary, counts: CorpusCounts, state: Path
) -> tuple[Vocabulary, SuperwordReport]:
    """Write VOCAB with superwords in the place of the last entries of `plain`; (the vocabulary, report section)."""
    vocab = recipe.vocab
    separators = SEPARATORS[vocab.superword_separators]
    words = drop_crossing(_first_words(plain, vocab.size - vocab.superwords), separators)
    stage = write_vocab(state / "words", PATTERNS[BASE], vocab.special_tokens, words)
    wanted = vocab.size - stage.size
    with open_step("sample", engine, console) as step:
        with one_child():
            tasks, repeats = _tasks(recipe, counts, stage, state)
        paths, sizes = _sample(tasks, repeats, step)
    with console.progress("superwords"):
        merges = train_superwords(
            lambda: read_chains(paths), stage_tokens(stage), max(wanted, *ROWS), vocab.superword_words
        )
        coarse = COARSE[vocab.superword_separators]
        made = write_vocab(
            recipe.vocab_dir, coarse, vocab.special_tokens, words + merges.first(stage.size + wanted)
        )
    for size in vocab.other_sizes:
        pairs = words + merges.first(stage.size + size - (vocab.size - vocab.superwords))
        write_vocab(recipe.vocab_dir / str(size), coarse, vocab.special_tokens, pairs)
    if made.size < vocab.size:
        console.notice(
            f"the sample allows {made.size - stage.size:,} superwords, not {wanted:,}: give a larger sample"
        )
    return made, _report(recipe, counts, sizes, (plain, stage, made), words, merges)


def _first_words(plain: Vocabulary, size: int) -> list[Merge]:
    """The merges of `plain` that its first `size` entries take."""
    found: list[Merge] = []
    for left, right in plain.data["model"]["merges"]:
        if plain.data["model"]["vocab"][left + right] >= size:
            break
        found.append((to_bytes(left), to_bytes(right)))
    return found


def _tasks(
    recipe: Recipe, counts: CorpusCounts, stage: Vocabulary, state: Path
) -> tuple[list[ChainTask], dict[str, int]]:
    """The tasks that take the sample, and how often each source's part is taken."""
    vocab = recipe.vocab
    sizes = counts.sizes
    parts = shares(vocab.weights, sizes)
    wanted = min(vocab.superword_sample, sum(sizes.values()))
    damage = tuple((failure.file, failure.error) for failure in counts.failed)
    tasks, repeats = [], {}
    for name, size in sizes.items():
        target = wanted * parts[name]
        if not target:
            continue
        repeats[name] = -(-target.numerator // (target.denominator * size))
        share = target / (repeats[name] * size)
        partitions = partitions_of(name, counts.files(name), recipe, SILENT)
        step = max(1, min(int(1 / (SAMPLED_PARTS * share)), len(partitions) // FEWEST_PARTITIONS))
        tasks += [
            ChainTask(
                partition=partition,
                folder=(state / "chains").absolute(),
                record=recipe.sources[name].record,
                normalization=recipe.normalize.function,
                words=stage.path.absolute(),
                separators=SEPARATORS[vocab.superword_separators],
                sample=min(Fraction(1), share * step) * vocab.sample,
                holdout=vocab.holdout,
                seed=vocab.seed,
                damage=damage,
            )
            for partition in partitions[vocab.seed % step :: step]
        ]
    return tasks, repeats


def _sample(tasks: list[ChainTask], repeats: dict[str, int], step: Step) -> tuple[list[Path], dict[str, int]]:
    """Run the tasks. (files in an order that does not depend on the run, each as often as its source is taken; bytes
    of text sampled per source, each document counted once)"""
    ordered = sorted(tasks, key=lambda task: (-task.partition.estimate, task.partition.name))
    sizes = dict.fromkeys(repeats, 0)
    step.engine.choose(sum(task.partition.estimate for task in tasks))
    for task, size in step.map(write_chains, ordered, "partition", lambda task: task.partition.name):
        sizes[task.partition.source] += size
    return [task.path for task in tasks for _ in range(repeats[task.partition.source])], sizes


def _report(
    recipe: Recipe,
    counts: CorpusCounts,
    sample: dict[str, int],
    vocabularies: tuple[Vocabulary, Vocabulary, Vocabulary],
    words: list[Merge],
    merges: Merges,
) -> SuperwordReport:
    """Tokens of the held-out texts that were kept, by `plain` and by stage 1 with more and more superwords.

    Also which superwords of the vocabulary are used most, and the share of tokens that are superwords, both in text in
    which the sources have their shares of the vocabulary's training text. vocabularies: words only, stage 1, the one
    written; sample: bytes of text sampled per source.
    """
    plain, stage, made = vocabularies
    vocab = recipe.vocab
    files = {"plain": plain.data}
    for entries in sorted({*ROWS, vocab.size - stage.size}):
        pairs = words + merges.first(stage.size + entries)
        files[str(entries)] = tokenizer_data(COARSE[vocab.superword_separators], vocab.special_tokens, pairs)
    rows: dict[str, dict[str, int]] = {}
    texts = {name: counts.heldout_texts(name) for name in counts.sources}
    uses: dict[str, npt.NDArray[np.int64]] = {}
    for row, data in files.items():
        encoder = Encoder(json.dumps(data), 0, len(data["model"]["vocab"]))
        rows[row] = {}
        for name in counts.sources:
            ids, _ = encoder.ids(texts[name])
            rows[row][name] = len(ids)
            if row == str(vocab.size - stage.size):
                uses[name] = np.bincount(ids, minlength=vocab.size)
    parts = shares(vocab.weights, counts.sizes)
    sizes = {name: len(buffers(texts[name])[0]) for name in counts.sources}
    rates = _mix_rates(parts, sizes, uses)
    order = np.argsort(-rates[stage.size :], kind="stable")[:MOST_USED]
    return SuperwordReport(
        entries=made.size - stage.size,
        words=stage.size,
        separators=vocab.superword_separators,
        most_words=vocab.superword_words,
        sample_bytes=sample,
        heldout_tokens=rows,
        mix_bytes_per_token={row: mix_bytes_per_token(parts, sizes, rows[row]) for row in rows},
        share_of_tokens=round(float(rates[stage.size :].sum()), 4),
        most_used=tuple(
            UsedSuperword(
                merges.tokens[stage.size + k].decode(errors="replace"),
                round(float(rates[stage.size + k]), 6),
                {name: int(uses[name][stage.size + k]) for name in counts.sources},
            )
            for k in order.tolist()
            if rates[stage.size + k]
        ),
        budget=_budget(recipe, rows, str(vocab.size - stage.size)),
    )


def _mix_rates(
    parts: dict[str, Fraction], sizes: dict[str, int], uses: dict[str, npt.NDArray[np.int64]]
) -> npt.NDArray[np.float64]:
    """How large a part of the mix's tokens each id is, float64[ids], from its uses in some text of each source."""
    per_byte = [float(part) / max(1, sizes[name]) * uses[name] for name, part in parts.items()]
    total = np.sum(per_byte, axis=0)
    rates: npt.NDArray[np.float64] = total / max(total.sum(), np.finfo(np.float64).tiny)
    return rates


def _budget(recipe: Recipe, rows: dict[str, dict[str, int]], row: str) -> Budget | None:
    """What the mix's tokens are worth: the tokens `plain` would need for the same text, source by source."""
    if recipe.mix is None or recipe.mix.tokens == "all" or recipe.mix.weights == "natural":
        return None
    weights = recipe.mix.weights
    per_token = sum(
        float(weight) * rows["plain"][name] / rows[row][name]
        for name, weight in weights.items()
        if rows[row][name]
    ) / float(sum(weights.values()))
    return Budget(recipe.mix.tokens, round(recipe.mix.tokens * per_token))


def show_superwords(section: SuperwordReport, console: Console) -> None:
    """Print the section on superwords: two lines, and as details what more and fewer superwords would save."""
    rows = section.heldout_tokens
    names, mix = list(rows["plain"]), section.mix_bytes_per_token
    console.notice(
        f"{section.entries:,} superwords after {section.words:,} other entries, {section.separators}, "
        f"trained on {sum(section.sample_bytes.values()):,} bytes; {section.share_of_tokens:.1%} of the tokens "
        "of held-out texts, mixed by weight, are superwords"
    )
    body = [
        (
            row,
            *(f"{tokens[name]:,} ({tokens[name] / max(1, rows['plain'][name]) - 1:+.1%})" for name in names),
            str(mix[row] or "-"),
        )
        for row, tokens in rows.items()
    ]
    title = (
        "tokens of held-out texts by number of superwords, beside words only, and bytes per token of the mix"
    )
    console.detail(table(title, ("", *names, "mix"), body))
    console.detail(
        "most used in the mix: " + ", ".join(repr(entry.token) for entry in section.most_used[:SHOWN])
    )
    if budget := section.budget:
        console.notice(
            f"a budget of {budget.tokens:,} tokens trains on the text of {budget.plain_tokens:,} tokens of words only"
        )
