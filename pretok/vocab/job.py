"""build-vocab: sources, or counts that are there -> a trained vocabulary with a report.

Enters: a Recipe. Leaves: VOCAB/tokenizer.json with its two companions and, last, VOCAB/report.json.

    count     every word of every source (`pretok.counts.job`)
    merge     weigh the counts, train the merges, write the tokenizer
    join      train superwords in the place of the last entries, if asked for (`pretok.vocab.superword_job`)
    measure   what it costs on each source, beside 32k and 64k entries and other tokenizers, one task a bucket

A vocabulary whose report names the same inputs and settings is left alone; another is refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from pretok.base.errors import UsageError
from pretok.base.execute import Engine
from pretok.base.failures import TaskError, raise_failures
from pretok.base.lock import hold
from pretok.base.progress import Progress
from pretok.base.storage import fingerprint, read_json, write_json
from pretok.base.tasks import run_tasks
from pretok.base.tell import Teller, table
from pretok.config import Recipe, Vocab
from pretok.counts.job import Counts, count_config, run_count
from pretok.counts.weigh import TrainingWords, mix_bytes_per_token, multipliers, shares, weigh
from pretok.kernels.pretokenize import PATTERNS, code_of, word_ends
from pretok.read.batches import buffers
from pretok.read.changes import refuse_changes
from pretok.tokenizer.reference import Unencodable
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary, write_vocab
from pretok.vocab.bpe import train_merges
from pretok.vocab.cost import (
    Measure,
    MeasureTask,
    describe_tokens,
    empty_measure,
    measure_bucket,
    measure_texts,
    open_tokenizer,
)
from pretok.vocab.superword_job import add_superwords, check_superwords, show_superwords

REPORT_FILE = "report.json"
STATE = ".state"
OTHER_SIZES = (32_000, 64_000)
"""Sizes the report compares with, trained from the same counts."""


def run_build_vocab(
    recipe: Recipe, engine: Engine, tell: Teller, compare: Sequence[Path] = (), counts: Counts | None = None
) -> dict[str, Any]:
    """Bring VOCAB to what the recipe says, as the only job that writes there; its report, printed when made now.

    counts: train from these and read no text. Raises UsageError, MismatchError, FolderInUse, PartitionsFailed, Stopped.
    """
    folder = recipe.vocab_dir
    finished = (folder / REPORT_FILE).exists() and (folder / TOKENIZER_FILE).exists()
    with nullcontext() if finished else hold(folder, "build-vocab"):  # what is finished is only read
        return _build_vocab(recipe, engine, tell, compare, counts)


def _build_vocab(
    recipe: Recipe, engine: Engine, tell: Teller, compare: Sequence[Path], counts: Counts | None
) -> dict[str, Any]:
    check_settings(recipe.vocab)
    if recipe.vocab.superwords:
        check_superwords(recipe.vocab, counted=counts is not None)
    folder = recipe.vocab_dir
    listed = count_config(recipe, engine, tell) if counts is None else {"counts": fingerprint(counts.data)}
    config = _config(recipe.vocab, compare, listed)
    if (folder / REPORT_FILE).exists() and (folder / TOKENIZER_FILE).exists():
        report: dict[str, Any] = read_json(folder / REPORT_FILE)
        refuse_changes("the vocabulary and its report", folder, report["config"], config)
        tell.notice(f"the vocabulary in {folder} is there and unchanged")
        return report
    for path in compare:
        open_tokenizer(path)  # what cannot encode is refused before the work, not after it
    if counts is None:
        counts = run_count(recipe, engine, tell, listed)
    with tell.progress("merge"):
        words = weigh(counts.buckets, _factors(recipe.vocab, counts), recipe.vocab.min_count)
        made = train_vocabularies(words, recipe.vocab, folder, tell)
    main, superwords = made[recipe.vocab.size], None
    if recipe.vocab.superwords:
        state = folder / STATE / fingerprint(config)[:16]
        main, superwords = add_superwords(recipe, engine, tell, main, counts, state)
    with tell.progress("measure") as progress:
        measure = _measure(made, counts, recipe, engine, progress, tell)
        others = {"this": _compare(folder, counts, tell)}
        others |= {str(path): _compare(path, counts, tell) for path in compare}
    report = _report(recipe.vocab, counts, words, made, measure, others)
    report["vocabulary"] |= {"size": main.size, "fingerprint": main.fingerprint}
    report["superwords"] = superwords
    report["config"] = config
    write_json(folder / REPORT_FILE, report)
    shutil.rmtree(folder / STATE, ignore_errors=True)
    _show_report(report, tell)
    return report


def check_settings(vocab: Vocab) -> None:
    """Raises UsageError where no vocabulary of these settings can be made."""
    code_of(vocab.pattern)
    special = vocab.special_tokens
    if len(set(special)) < len(special) or "" in special:
        raise UsageError("special tokens must be different from each other and not empty")
    if not special or vocab.eod not in (None, special[0]):
        raise UsageError(
            f"the first special token must be the end of document, {vocab.eod or 'of any name'!r}"
        )
    if vocab.size < len(special) + 256:
        raise UsageError(
            f"a vocabulary of {vocab.size} entries has no room for {len(special)} special tokens and 256 bytes"
        )
    for token in special:
        data = np.frombuffer(token.encode(), np.uint8)
        if len(word_ends(data, np.array([0, len(data)]), vocab.pattern)) == 1:
            raise UsageError(
                f"the special token {token!r} is one word of the pattern {vocab.pattern}, so merges could make it "
                "from text; choose a name with letters between signs, such as <|name|>"
            )


def _config(vocab: Vocab, compare: Sequence[Path], source: dict[str, Any]) -> dict[str, Any]:
    """All that decides the files. source: what decided the counts, or their fingerprint."""
    return {
        **source,
        "pattern": vocab.pattern,
        "size": vocab.size,
        "special_tokens": list(vocab.special_tokens),
        "min_count": vocab.min_count,
        "superwords": _superword_config(vocab),
        "weights": {name: str(weight) for name, weight in sorted(vocab.weights.items())},
        "compare": [str(path) for path in compare],
    }


def _superword_config(vocab: Vocab) -> dict[str, Any] | None:
    if not vocab.superwords:
        return None
    return {
        "entries": vocab.superwords,
        "sample": vocab.superword_sample,
        "separators": vocab.superword_separators,
        "most_words": vocab.superword_words,
    }


def _factors(vocab: Vocab, counts: Counts) -> dict[str, int]:
    return multipliers(vocab.weights, {name: counts.of(name).bytes for name in counts.sources})


def train_vocabularies(
    words: TrainingWords, vocab: Vocab, folder: Path, tell: Teller
) -> dict[int, Vocabulary]:
    """Train once to the largest size, write the vocabulary asked for and those it is compared with.

    Returns size asked for -> vocabulary, the one asked for first.
    """
    special = vocab.special_tokens
    sizes = dict.fromkeys((vocab.size, *OTHER_SIZES))
    counted = words.words
    merges = train_merges(
        counted.data,
        counted.offsets,
        counted.counts,
        vocab_size=max(sizes),
        special_tokens=len(special),
    )
    made = {}
    for size in sizes:
        final = size == vocab.size and not vocab.superwords
        target = folder if final else folder / STATE / str(size)
        made[size] = write_vocab(target, PATTERNS[vocab.pattern], special, merges.first(size))
    if made[vocab.size].size < vocab.size:
        tell.notice(
            f"the counts allow {made[vocab.size].size:,} entries, not the {vocab.size:,} asked for: no two tokens are "
            "left to merge inside any word; give more text, a smaller --vocab-size or a smaller --min-count"
        )
    return made


def _measure(
    made: dict[int, Vocabulary],
    counts: Counts,
    recipe: Recipe,
    engine: Engine,
    progress: Progress,
    tell: Teller,
) -> Measure:
    """Encode the words of all buckets by all vocabularies made."""
    paths = tuple(vocab.path.absolute() for vocab in made.values())
    eod = recipe.vocab.special_tokens[0]
    tasks = [MeasureTask(path.absolute(), len(counts.sources), paths, eod) for path in counts.buckets]
    main = next(iter(made.values()))
    total = empty_measure(len(counts.sources), len(paths), main.size)
    failures = []
    engine.choose(sum(path.stat().st_size for path in counts.buckets))
    names = [task.bucket.name for task in tasks]
    for outcome in run_tasks(measure_bucket, tasks, names, "bucket", engine, tell, progress):
        if isinstance(outcome.result, TaskError):
            failures.append((names[outcome.index], outcome.result))
        else:
            total.add(outcome.result)
    raise_failures(failures, tell, "buckets")
    return total


def _compare(path: Path, counts: Counts, tell: Teller) -> dict[str, Any]:
    """Tokens of the held-out texts that were kept, by any tokenizer; None where it cannot encode one of them."""
    rows = {}
    for name in counts.sources:
        texts = counts.heldout_texts(name)
        tokens, size = None, len(buffers(texts)[0])
        try:
            tokens = measure_texts(path, texts)
        except Unencodable as error:
            tell.notice(f"{path} is not compared on {name}: {error}")
        rows[name] = {"tokens": tokens, "bytes": size, "bytes_per_token": _ratio(size, tokens)}
    return rows


def _ratio(a: int, b: int | None) -> float | None:
    return round(int(a) / int(b), 4) if b else None


def _report(
    vocab: Vocab,
    counts: Counts,
    words: TrainingWords,
    made: dict[int, Vocabulary],
    measure: Measure,
    others: dict[str, Any],
) -> dict[str, Any]:
    main = made[vocab.size]
    factors = _factors(vocab, counts)
    weighted = {name: factor * counts.of(name).bytes for name, factor in factors.items()}
    size = sum(counts.of(name).bytes for name in counts.sources)
    return {
        "vocabulary": {
            "size": main.size,
            "asked": vocab.size,
            "fingerprint": main.fingerprint,
            "eod_id": main.eod_id,
        },
        "words": {
            "distinct": words.distinct,
            "occurrences": int(measure.words[:, 0].sum()),
            "dropped": words.dropped_words,
            "dropped_share_of_text": _ratio(words.dropped_bytes, size),
        },
        "sources": {
            name: {
                "documents": counts.of(name).documents,
                "weight": _ratio(weighted[name], sum(weighted.values())),
                "multiplier": factors[name],
                "distinct_words": int(measure.distinct[k]),
                "training": _costs(measure, k, 0),
                "heldout": {"documents": counts.of(name).heldout_documents, **_costs(measure, k, 1)},
            }
            for k, name in enumerate(counts.sources)
        },
        "sizes": {
            str(made[asked].size): {
                name: int(measure.tokens[k, v].sum()) for k, name in enumerate(counts.sources)
            }
            for v, asked in enumerate(made)
        },
        "tokens": describe_tokens(main, measure.uses, counts.sources),
        "compare": others,
        "mix": _mix(vocab, counts, made, measure, others),
        "failed": counts.data["failed"],
    }


def _mix(
    vocab: Vocab, counts: Counts, made: dict[int, Vocabulary], measure: Measure, others: dict[str, Any]
) -> dict[str, Any]:
    """Bytes per token of text in which the sources have their shares of the vocabulary's training text: of all text by
    size, of held-out texts by tokenizer."""
    parts = shares(vocab.weights, {name: counts.of(name).bytes for name in counts.sources})
    sizes = dict(zip(counts.sources, measure.bytes.sum(1).tolist(), strict=True))
    tokens = [dict(zip(counts.sources, row, strict=True)) for row in measure.tokens.sum(2).T.tolist()]
    return {
        "shares": {name: round(float(part), 6) for name, part in parts.items()},
        "sizes": {
            str(one.size): mix_bytes_per_token(parts, sizes, tokens[v]) for v, one in enumerate(made.values())
        },
        "compare": {
            path: mix_bytes_per_token(
                parts, *({name: row[name][key] for name in row} for key in ("bytes", "tokens"))
            )
            for path, row in others.items()
        },
    }


def _costs(measure: Measure, source: int, split: int) -> dict[str, Any]:
    """Bytes, words and tokens of one source in training (0) or held-out (1) documents, by the main vocabulary."""
    size, words = int(measure.bytes[source, split]), int(measure.words[source, split])
    tokens = int(measure.tokens[source, 0, split])
    return {
        "bytes": size,
        "words": words,
        "tokens": tokens,
        "bytes_per_token": _ratio(size, tokens),
        "tokens_per_word": _ratio(tokens, words),
    }


def _show_report(report: dict[str, Any], tell: Teller) -> None:
    """Print the report as tables."""
    words = report["words"]
    tell.notice(
        f"{words['distinct']:,} distinct words, {words['occurrences']:,} occurrences; {words['dropped']:,} too rare, "
        f"{words['dropped_share_of_text'] or 0:.2%} of the text"
    )
    rows = []
    for name, source in report["sources"].items():
        heldout = source["heldout"]
        rows.append(
            (
                name,
                f"{source['weight']:.1%}",
                f"{source['distinct_words']:,}",
                f"{source['training']['tokens']:,}",
                f"{heldout['documents']:,}",
                str(heldout["bytes_per_token"] or "-"),
                str(heldout["tokens_per_word"] or "-"),
                f"{report['tokens']['mostly_in'][name]:,}",
            )
        )
    columns = (
        "source",
        "weight",
        "distinct words",
        "tokens",
        "held out",
        "bytes/token",
        "tokens/word",
        "own tokens",
    )
    tell.show(table(f"vocabulary of {report['vocabulary']['size']:,} entries", columns, rows))
    names, mix = list(report["sources"]), report["mix"]
    tell.show(
        table(
            "tokens of all text by size of the vocabulary, and bytes per token of the mix",
            ("size", *names, "mix"),
            [
                (f"{int(size):,}", *(f"{row[name]:,}" for name in names), str(mix["sizes"][size] or "-"))
                for size, row in report["sizes"].items()
            ],
        )
    )
    tell.show(
        table(
            "bytes per token of held-out texts, and of the mix of the sources by weight",
            ("tokenizer", *names, "mix"),
            [
                (
                    path,
                    *(str(row[name]["bytes_per_token"] or "-") for name in names),
                    str(mix["compare"][path] or "-"),
                )
                for path, row in report["compare"].items()
            ],
        )
    )
    if report["superwords"]:
        show_superwords(report["superwords"], tell)
    tokens = report["tokens"]
    readable = [entry["token"] for entry in tokens["longest"] if len(set(entry["token"])) > 3]
    longest = ", ".join(map(repr, readable[:5]))
    tell.notice(
        f"{tokens['shared']:,} tokens are shared by the sources, {tokens['unused']:,} unused; "
        f"{len(tokens['unused_bytes'])} bytes never occur; longest words: {longest or '-'}"
    )
