"""build-vocab: sources, or finished counts -> a trained vocabulary with a report.

Input: a Recipe. Output: VOCAB/tokenizer.json with its two companions and, last, VOCAB/report.json.

    count     every word of every source (`pretok.vocab.counts.count_job`)
    merge     weigh the counts, train the merges, write the tokenizer
    measure   encode each source by it, by the other sizes and by other tokenizers, one task per bucket

Smaller sizes are written to VOCAB/SIZE: their merges are the first ones of the largest. A vocabulary whose report names
the same inputs and settings is left alone; any other is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pretok.base.console import Console, Gauge
from pretok.base.errors import PartitionsFailed, UsageError
from pretok.base.execute import Engine
from pretok.base.lock import hold
from pretok.base.memory import free_memory
from pretok.base.records import read_record, to_json
from pretok.base.storage import read_json, write_json
from pretok.base.tasks import Step, open_step
from pretok.base.texts import from_buffers
from pretok.config import Recipe, Vocab
from pretok.config.changes import refuse_changes
from pretok.kernels.pretokenize import PATTERNS, code_of, split_words
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary, write_vocab
from pretok.vocab.bpe import extend_merges, train_merges
from pretok.vocab.counts.count_job import count_config, run_count
from pretok.vocab.counts.counts_file import CorpusCounts
from pretok.vocab.counts.weigh import Tally, multipliers, weigh
from pretok.vocab.extend import counted_as, open_old, tokens_of, write_extended
from pretok.vocab.measure import (
    Measure,
    MeasureTask,
    empty_measure,
    measure_bucket,
    measure_heldout,
    open_tokenizer,
)
from pretok.vocab.report import THIS, make_report, show_report
from pretok.vocab.report_file import VocabReport
from pretok.vocab.symbols import BufferWriter, SymbolBuffer, byte_tokens

REPORT_FILE = "report.json"
STARTED_FILE = "build-vocab.started"
"""Says that build-vocab is writing the tokenizers in the folder, until the report says that they are complete."""
MERGING_BYTES = 10
"""Memory that merging takes for each byte of the distinct words and for each word, see docs/running.md."""


def run_build_vocab(
    recipe: Recipe,
    engine: Engine,
    console: Console,
    compare: Sequence[Path] = (),
    counts: CorpusCounts | None = None,
) -> VocabReport:
    """Train the vocabulary of the recipe unless it exists; return its report, which is also printed if it is new.

    counts: train from these and read no text. Raises UsageError, MismatchError, FolderInUse, PartitionsFailed, Stopped.
    """
    check_settings(recipe.vocab)
    old, vocab = None, recipe.vocab
    if vocab.extend is not None:
        old = open_old(vocab.extend, vocab.pattern, vocab.eod, vocab.bos)
        size = old.size + vocab.add
        changes: dict[str, object] = {"vocab": vocab.model_copy(update={"size": size})}
        if (normalize := counted_as(old, recipe.normalize)) != recipe.normalize:
            changes["normalize"] = normalize
        recipe = recipe.model_copy(update=changes)
        compare = [vocab.extend, *compare]
    folder = recipe.vocab_dir
    if old and old.path.resolve() == (folder / TOKENIZER_FILE).resolve():
        raise UsageError(
            f"the new vocabulary would overwrite {old.path}, which it extends: give another --out"
        )
    finished = (folder / REPORT_FILE).exists() and (folder / TOKENIZER_FILE).exists()
    with nullcontext() if finished else hold(folder, "build-vocab"):  # a finished vocabulary is only read
        return _build_vocab(recipe, engine, console, compare, counts, old)


def _build_vocab(
    recipe: Recipe,
    engine: Engine,
    console: Console,
    compare: Sequence[Path],
    counts: CorpusCounts | None,
    old: Vocabulary | None,
) -> VocabReport:
    """Build the vocabulary. old: the tokenizer to extend, None to begin with the bytes."""
    folder = recipe.vocab_dir
    if counts is not None and counts.config.pattern != recipe.vocab.pattern:
        raise UsageError(
            f"{counts.folder} counts words of the pattern {counts.config.pattern}, but the vocabulary would split text "
            f"by {recipe.vocab.pattern}: give --pattern {counts.config.pattern}, or other counts"
        )
    if counts is not None:
        _refuse_unread(recipe, counts)
    # Listed once: the count below must be of the files that this config names.
    listed = count_config(recipe, engine, console) if counts is None else None
    source = {"counts": counts.fingerprint} if counts else to_json(listed)
    config = _config(recipe.vocab, compare, source, old)
    if (folder / REPORT_FILE).exists() and (folder / TOKENIZER_FILE).exists():
        done = read_record(VocabReport, read_json(folder / REPORT_FILE), folder / REPORT_FILE)
        if config["size"] == done.size:  # fewer entries than the first run asked for, accepted now
            config["size"] = done.config["size"]
        refuse_changes("the vocabulary and its report", folder, done.config, config, done.left_out)
        with suppress(OSError):  # a kill after the report leaves it; the folder may be read-only by now
            (folder / STARTED_FILE).unlink()
        console.notice(f"the vocabulary in {folder} is up to date")
        return done
    _refuse_others(recipe.vocab, folder)
    for path in compare:
        open_tokenizer(path)  # refuse what cannot encode before the work, not after it
    if counts is None:
        counts = run_count(recipe, engine, console, listed)
    with console.progress("merge") as progress:
        vocabularies, tally = train_vocabularies(counts, recipe.vocab, folder, old, progress)
    open_tokenizer.cache_clear()  # another vocabulary may have been in this folder before
    with open_step("measure", engine, console) as step:
        measure = _measure(vocabularies, counts, step)
        paths = {THIS: folder, **{str(path): path for path in compare}}
        compared = {
            name: (open_tokenizer(path)[1], measure_heldout(path, counts, console))
            for name, path in paths.items()
        }
    report = make_report(recipe, counts, tally, vocabularies, measure, compared, config)
    write_json(folder / REPORT_FILE, to_json(report))  # last: it says that the vocabulary is complete
    (folder / STARTED_FILE).unlink(missing_ok=True)
    show_report(report, console, compared=bool(compare))
    return report


def _refuse_unread(recipe: Recipe, counts: CorpusCounts) -> None:
    """Raise UsageError for settings of counting that are given and that these counts were not made with."""
    for name in ("sample", "holdout", "seed"):
        given, counted = getattr(recipe.vocab, name), getattr(counts.config, name)
        if name in recipe.vocab.model_fields_set and str(given) != str(counted):
            raise UsageError(
                f"vocab.{name} is {given}, but {counts.folder} was counted with {counted}, and nothing else reads it: "
                "leave it out, or give other counts"
            )
    if "normalize" in recipe.model_fields_set and recipe.normalize.function != counts.config.normalize:
        raise UsageError(
            f"[normalize] is not what {counts.folder} was counted with: its vocabulary would be that of another text; "
            "give the same table, or other counts"
        )


def _refuse_others(vocab: Vocab, folder: Path) -> None:
    """Raise UsageError for a tokenizer that would be overwritten and that build-vocab did not make."""
    if any((folder / name).exists() for name in (STARTED_FILE, REPORT_FILE)):
        return
    for target in (folder, *(folder / str(size) for size in vocab.other_sizes)):
        if (target / TOKENIZER_FILE).exists():
            raise UsageError(
                f"{target / TOKENIZER_FILE} is not build-vocab's and would be overwritten: move it, or give another "
                "--out"
            )


def refuse_short(report: VocabReport, vocab: Vocab) -> None:
    """Raise PartitionsFailed for fewer entries than requested: embeddings would get another size."""
    if vocab.extend is None and report.size < vocab.size:
        raise PartitionsFailed(
            f"the vocabulary has {report.size:,} entries, not the {vocab.size:,} asked for: no two tokens are left to "
            f"merge inside any word. Give more text{' or a smaller min_count' if vocab.min_count > 1 else ''}, or "
            f"accept this one with --vocab-size {report.size} (size in a recipe)"
        )


def check_settings(vocab: Vocab) -> None:
    """Raise UsageError if no vocabulary can have these settings."""
    if vocab.path is not None:
        raise UsageError(
            f"[vocab] path names the tokenizer {vocab.path}, so there is nothing to train: continue with pretok "
            "tokenize, or remove path from the recipe to train a vocabulary in OUT/vocab"
        )
    code_of(vocab.pattern)
    if vocab.extend is not None:
        if vocab.sizes:
            raise UsageError("sizes and extend cannot be combined: run build-vocab once per number to add")
        return
    special = vocab.special_tokens
    if not special or len(set(special)) < len(special) or "" in special:
        raise UsageError("special_tokens: give at least one, the end of document; all different, none empty")
    fewest = len(special) + 256
    if wrong := [size for size in (vocab.size, *vocab.sizes) if not fewest <= size <= vocab.size]:
        raise UsageError(
            f"a vocabulary of {wrong[0]:,} entries cannot be made: {len(special)} special tokens and 256 bytes take "
            f"{fewest}, and no size may exceed the main one, {vocab.size:,}"
        )
    for token in special:
        if len(split_words(token, vocab.pattern)) == 1:
            raise UsageError(
                f"the special token {token!r} is one word of the pattern {vocab.pattern}, so merges could make it "
                "from text; choose a name with letters between signs, such as <|name|>"
            )


def _config(
    vocab: Vocab, compare: Sequence[Path], source: dict[str, Any], old: Vocabulary | None
) -> dict[str, Any]:
    """Return everything that decides the files. source: what decides the counts, or their fingerprint."""
    return {
        **source,
        "pattern": vocab.pattern,
        "size": vocab.size,
        "special_tokens": list(vocab.special_tokens),
        "min_count": vocab.min_count,
        "weights": {name: str(weight) for name, weight in sorted(vocab.weights.items())},
        "compare": [str(path) for path in compare],
        "sizes": vocab.other_sizes,
        **({"extend": old.fingerprint, "add": vocab.add} if old else {}),
    }


def train_vocabularies(
    counts: CorpusCounts, vocab: Vocab, folder: Path, old: Vocabulary | None, progress: Gauge
) -> tuple[dict[int, Vocabulary], Tally]:
    """Train once, to the largest size, and write the vocabularies.

    Returns (vocabularies by requested size, the main one first; the counts).
    """
    special = vocab.special_tokens
    progress.expect(vocab.size - len(special) - 256 if old is None else vocab.add, unit="entries")
    progress.note = "reading the counts"
    buffer, tally = lay_out(counts, vocab, old)
    if old is not None:
        merges = extend_merges(buffer, *tokens_of(old), vocab.add, progress)
        if (gained := len(merges.tokens) - old.size) < vocab.add:
            raise UsageError(
                f"the words give only {gained:,} of the {vocab.add:,} entries to add: no two tokens are left to "
                f"merge inside any word; give --add {gained}, more text, or a smaller min_count"
            )
        write_json(folder / STARTED_FILE, {})
        return {vocab.size: write_extended(folder, old, merges)}, tally
    merges = train_merges(buffer, vocab_size=vocab.size, special_tokens=len(special), report=progress)
    # From here on what is in the folder is ours: after a kill the same command may overwrite it (`_refuse_others`).
    write_json(folder / STARTED_FILE, {})
    vocabularies = {}
    for size in (vocab.size, *vocab.other_sizes):
        target = folder if size == vocab.size else folder / str(size)
        vocabularies[size] = write_vocab(target, PATTERNS[vocab.pattern], special, merges.first(size))
    return vocabularies, tally


def lay_out(counts: CorpusCounts, vocab: Vocab, old: Vocabulary | None) -> tuple[SymbolBuffer, Tally]:
    """Lay out the words to merge, as bytes or as tokens of the old vocabulary, bucket by bucket.

    All words at once would take a third of the memory of merging. Raises IntegrityError for damaged counts, and
    UsageError, before the work, for words whose merging does not fit the free memory.
    """
    # Before merging, which takes minutes and would not notice a damaged count.
    counts.check()
    encoder = None if old is None else Encoder(old)
    writer, tally = BufferWriter(free_memory() // MERGING_BYTES), Tally()
    for words, part in weigh(counts.buckets, multipliers(vocab.weights, counts.sizes), vocab.min_count):
        tally += part
        if encoder is None:
            writer.add(byte_tokens(words.data), words.offsets, words.counts)
        else:
            ids, offsets = encoder.ids(from_buffers(words.data, words.offsets))
            writer.add(ids.astype(np.int32), offsets, words.counts)
    pa.default_memory_pool().release_unused()  # it keeps the memory of the buckets, half as much as the buffer
    return writer.buffer(), tally


def _measure(vocabularies: dict[int, Vocabulary], counts: CorpusCounts, step: Step) -> Measure:
    """Encode the words of all buckets by all vocabularies."""
    paths = tuple(vocab.path.absolute() for vocab in vocabularies.values())
    tasks = [MeasureTask(path.absolute(), len(counts.sources), paths) for path in counts.buckets]
    total = empty_measure(len(counts.sources), [vocab.size for vocab in vocabularies.values()])
    step.engine.choose(sum(path.stat().st_size for path in counts.buckets))
    for _, measure in step.map(measure_bucket, tasks, "bucket", lambda task: task.bucket.name, kept=False):
        total.add(measure)
    return total
