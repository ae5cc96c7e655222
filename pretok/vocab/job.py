"""build-vocab: sources, or counts that are there -> a trained vocabulary with a report.

Input: a Recipe. Output: VOCAB/tokenizer.json with its two companions and, last, VOCAB/report.json.

    count     every word of every source (`pretok.counts.job`)
    merge     weigh the counts, train the merges, write the tokenizer
    measure   what it costs on each source, beside other sizes and other tokenizers, one task a bucket

Other sizes that are asked for are written beside it, as VOCAB/SIZE: their merges are the first ones of the largest.
A vocabulary whose report names the same inputs and settings is left alone; another is refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pretok.base.console import Console
from pretok.base.errors import PartitionsFailed, UsageError
from pretok.base.execute import Engine
from pretok.base.lock import hold
from pretok.base.memory import free_memory
from pretok.base.records import read_record, to_json
from pretok.base.storage import read_json, write_json
from pretok.base.tasks import Step, open_step
from pretok.base.units import human_bytes
from pretok.config import Recipe, Vocab
from pretok.counts.counts_file import CorpusCounts
from pretok.counts.job import count_config, run_count
from pretok.counts.weigh import Tally, multipliers, weigh
from pretok.kernels.pretokenize import PATTERNS, code_of, split_words
from pretok.read.batches import from_buffers
from pretok.read.changes import refuse_changes
from pretok.tokenizer.encoder import Encoder
from pretok.tokenizer.vocabulary import TOKENIZER_FILE, Vocabulary, write_vocab
from pretok.vocab.bpe import BufferWriter, SymbolBuffer, byte_tokens, extend_merges, train_merges
from pretok.vocab.extend import least_used, open_old, steps_of, tokens_of, without, write_extended
from pretok.vocab.measure import (
    Measure,
    MeasureTask,
    empty_measure,
    measure_bucket,
    measure_heldout,
    open_tokenizer,
)
from pretok.vocab.records import RareEntry, VocabReport
from pretok.vocab.report import THIS, make_report, mix_scale, rare_entry, show_report

REPORT_FILE = "report.json"
STATE = ".state"
MERGING_BYTES = 10
"""Memory for each byte of the distinct words, and for each word, while they are merged, see docs/running.md."""


def run_build_vocab(
    recipe: Recipe,
    engine: Engine,
    console: Console,
    compare: Sequence[Path] = (),
    counts: CorpusCounts | None = None,
) -> VocabReport:
    """Bring VOCAB to what the recipe says, as the only job that writes there; its report, printed when made now.

    counts: train from these and read no text. Raises UsageError, MismatchError, FolderInUse, PartitionsFailed, Stopped.
    """
    check_settings(recipe.vocab)
    old, vocab = None, recipe.vocab
    if vocab.extend is not None:
        old = open_old(vocab.extend, vocab.pattern, vocab.eod, vocab.bos)
        size = old.size + (0 if vocab.replace else vocab.added)
        recipe = recipe.model_copy(update={"vocab": vocab.model_copy(update={"size": size})})
        compare = [vocab.extend, *compare]
    folder = recipe.vocab_dir
    finished = (folder / REPORT_FILE).exists() and (folder / TOKENIZER_FILE).exists()
    with nullcontext() if finished else hold(folder, "build-vocab"):  # what is finished is only read
        return _build_vocab(recipe, engine, console, compare, counts, old)


def _build_vocab(
    recipe: Recipe,
    engine: Engine,
    console: Console,
    compare: Sequence[Path],
    counts: CorpusCounts | None,
    old: Vocabulary | None,
) -> VocabReport:
    """old: the tokenizer to extend, None to begin with bytes."""
    folder = recipe.vocab_dir
    listed = count_config(recipe, engine, console) if counts is None else None
    source = {"counts": counts.fingerprint} if counts else to_json(listed)
    config = _config(recipe.vocab, compare, source, old)
    if (folder / REPORT_FILE).exists() and (folder / TOKENIZER_FILE).exists():
        done = read_record(VocabReport, read_json(folder / REPORT_FILE), folder / REPORT_FILE)
        if config["size"] == done.vocabulary.size:  # all that the words held, accepted now
            config["size"] = done.config["size"]
        refuse_changes("the vocabulary and its report", folder, done.config, config)
        shutil.rmtree(folder / STATE, ignore_errors=True)  # of which a kill may have left a part
        console.notice(f"the vocabulary in {folder} is there and unchanged")
        return done
    for path in compare:
        open_tokenizer(path)  # what cannot encode is refused before the work, not after it
    if counts is None:
        counts = run_count(recipe, engine, console, listed)
    gone: list[RareEntry] = []
    if old is not None and recipe.vocab.replace:
        with open_step("uses", engine, console) as step:
            gone = _least_used(recipe, old, counts, step)
    with console.progress("merge"):
        ids = [entry.id for entry in gone]
        made, tally = train_vocabularies(counts, recipe.vocab, folder, old, ids)
    open_tokenizer.cache_clear()  # of another vocabulary that stood in its place
    with open_step("measure", engine, console) as step:
        measure = _measure(made, counts, step)
        paths = {THIS: folder, **{str(path): path for path in compare}}
        compared = {
            name: (open_tokenizer(path)[1], measure_heldout(path, counts, console))
            for name, path in paths.items()
        }
    report = make_report(recipe, counts, tally, made, measure, compared, config, tuple(gone))
    write_json(folder / REPORT_FILE, to_json(report))
    shutil.rmtree(folder / STATE, ignore_errors=True)
    show_report(report, console, compared=bool(compare))
    return report


def refuse_short(report: VocabReport, vocab: Vocab) -> None:
    """PartitionsFailed where the words held fewer entries than were asked for: what goes on would get embeddings of
    another size."""
    made = report.vocabulary.size
    if vocab.extend is None and made < vocab.size:
        raise PartitionsFailed(
            f"the vocabulary has {made:,} entries, not the {vocab.size:,} asked for: no two tokens are left to merge "
            f"inside any word. Give more text{' or a smaller min_count' if vocab.min_count > 1 else ''}, or accept "
            f"this one with --vocab-size {made} (size in a recipe)"
        )


def check_settings(vocab: Vocab) -> None:
    """Raises UsageError where no vocabulary of these settings can be made."""
    if vocab.path is not None:
        raise UsageError(
            f"[vocab] path names the tokenizer {vocab.path}, so nothing is to be trained: go on with pretok tokenize, "
            "or take path out of the recipe to train a vocabulary in OUT/vocab"
        )
    code_of(vocab.pattern)
    if vocab.extend is not None:
        if vocab.sizes:
            raise UsageError(
                "sizes and extend do not go together: the report of an extended vocabulary shows the sizes on the way"
            )
        return
    special = vocab.special_tokens
    if len(set(special)) < len(special) or "" in special:
        raise UsageError("special tokens must be different from each other and not empty")
    if not special:
        raise UsageError("the first special token is the end of document; name one at least")
    if vocab.size < len(special) + 256:
        raise UsageError(
            f"a vocabulary of {vocab.size} entries has no room for {len(special)} special tokens and 256 bytes"
        )
    fewest = len(special) + 256
    if wrong := [size for size in vocab.sizes if not fewest <= size <= vocab.size]:
        raise UsageError(
            f"sizes: {', '.join(map(str, wrong))} is not from {fewest}, the entries that are no merges, "
            f"to {vocab.size}, the largest that is trained"
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
    """All that decides the files. source: what decided the counts, or their fingerprint."""
    return {
        **source,
        "pattern": vocab.pattern,
        "size": vocab.size,
        "special_tokens": list(vocab.special_tokens),
        "min_count": vocab.min_count,
        "weights": {name: str(weight) for name, weight in sorted(vocab.weights.items())},
        "compare": [str(path) for path in compare],
        "sizes": vocab.other_sizes,
        **({"extend": old.fingerprint, "add": vocab.added, "replace": vocab.replace} if old else {}),
    }


def train_vocabularies(
    counts: CorpusCounts,
    vocab: Vocab,
    folder: Path,
    old: Vocabulary | None,
    gone: Sequence[int],
) -> tuple[dict[int, Vocabulary], Tally]:
    """Train once to the largest size and write the vocabularies asked for; of an old one that is extended also some on
    the way to it, which are compared. gone: ids of the old one that go to new entries.

    Returns size asked for -> vocabulary, the main one first.
    """
    special = vocab.special_tokens
    buffer, tally = lay_out(counts, vocab, None if old is None else without(old, gone))
    made = {}
    if old is not None:
        merges = extend_merges(buffer, *tokens_of(old), vocab.added)
        if (found := len(merges.tokens) - old.size) < vocab.added:
            raise UsageError(
                f"the words hold {found:,} new entries, fewer than the {vocab.added:,} to be added: no two tokens are "
                f"left to merge inside any word; give --add {found}, more text, or a smaller min_count"
            )
        made[vocab.size] = write_extended(folder, old, merges, old.size + vocab.added, gone)
        if not gone:
            made[old.size], *steps = old, *steps_of(old.size, vocab.size)
            for size in steps:
                made[size] = write_extended(folder / STATE / str(size), old, merges, size)
    else:
        merges = train_merges(buffer, vocab_size=vocab.size, special_tokens=len(special))
        for size in (vocab.size, *vocab.other_sizes):
            target = folder if size == vocab.size else folder / str(size)
            made[size] = write_vocab(target, PATTERNS[vocab.pattern], special, merges.first(size))
    return made, tally


def lay_out(counts: CorpusCounts, vocab: Vocab, old: Vocabulary | None) -> tuple[SymbolBuffer, Tally]:
    """The words to merge, as bytes or as the old vocabulary cuts them, laid out bucket by bucket, as all of them would
    take a third of what merging takes.

    Raises IntegrityError for counts that are damaged, and UsageError, before the work, for words that memory does not
    hold while they are merged.
    """
    counts.check()
    encoder = None if old is None else Encoder(old.raw.decode(), old.eod_id, old.size, str(old.path))
    free, more = free_memory(), vocab.min_count + 1
    writer, tally, left, left_bytes = BufferWriter(free // MERGING_BYTES), Tally(), 0, 0
    for words, part in weigh(counts.buckets, multipliers(vocab.weights, counts.sizes), vocab.min_count):
        tally += part
        if encoder is None:
            writer.add(byte_tokens(words.data), words.offsets, words.counts)
        else:
            ids, offsets = encoder.ids(from_buffers(words.data, words.offsets))
            writer.add(ids.astype(np.int32), offsets, words.counts)
        frequent = words.others >= more
        left, left_bytes = left + int(frequent.sum()), left_bytes + int(words.lengths[frequent].sum())
    need, kept = writer.size * MERGING_BYTES, (left + left_bytes) * MERGING_BYTES
    if need > free:
        raise UsageError(
            f"merging {writer.words:,} distinct words of {writer.bytes:,} bytes takes about {human_bytes(need)} of "
            f"memory, and {human_bytes(free)} are free here: min_count = {more} under [vocab] of a "
            f"recipe leaves {left:,} of them, for {human_bytes(kept)}; or take a node with more memory. The counts are "
            "kept"
        )
    pa.default_memory_pool().release_unused()  # it keeps what the buckets took, half as much as the buffer
    return writer.buffer(), tally


def _least_used(recipe: Recipe, old: Vocabulary, counts: CorpusCounts, step: Step) -> list[RareEntry]:
    """The old entries that give their ids to new ones, in the order in which they go, with their own uses."""
    uses = mix_scale(recipe.vocab.weights, counts.sizes) @ _measure({old.size: old}, counts, step).uses[0]
    gone = least_used(old, uses, recipe.vocab.added)
    if len(gone) < recipe.vocab.added:
        raise UsageError(f"{old.path} has {len(gone):,} entries that can be replaced; give --add {len(gone)}")
    return [rare_entry(old, i, uses[i]) for i in gone]


def _measure(made: dict[int, Vocabulary], counts: CorpusCounts, step: Step) -> Measure:
    """Encode the words of all buckets by all vocabularies made."""
    paths = tuple(vocab.path.absolute() for vocab in made.values())
    tasks = [MeasureTask(path.absolute(), len(counts.sources), paths) for path in counts.buckets]
    total = empty_measure(len(counts.sources), [vocab.size for vocab in made.values()])
    step.engine.choose(sum(path.stat().st_size for path in counts.buckets))
    for _, measure in step.map(measure_bucket, tasks, "bucket", lambda task: task.bucket.name, kept=False):
        total.add(measure)
    return total
