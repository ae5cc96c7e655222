"""A partition of text -> a file of its chains, for training superwords: the task that a worker runs.

Input: a ChainTask. Output: NAME.json, the bytes of its sampled documents, and then NAME.npy, their chains in order,
flat with a break after each; once that exists the work is finished. A document is in the sample if a hash of its text
says so, and never if it is held out, by the same rules as in `count`; so a larger sample holds a smaller one, and what
is held out stays unseen.

Memory: 2 to 3 bytes (4 to 6 from 65,536 entries on) per sampled token of the partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pretok.base.errors import MismatchError
from pretok.base.execute import Report
from pretok.base.storage import atomic_open, read_json, write_json
from pretok.base.tokens import Ids
from pretok.counts.task import SAMPLE_SEED_STEP
from pretok.kernels.hashing import hash_documents, select
from pretok.read.batches import buffers
from pretok.read.normalize import Normalization
from pretok.read.partition import Partition
from pretok.read.readers import Damage, RecordFormat, read_partition
from pretok.superwords.chains import BREAK, ChainFinder
from pretok.tokenizer.encoder import BatchEncoder, choose_engine
from pretok.tokenizer.reference import ReferenceEngine
from pretok.tokenizer.vocabulary import Vocabulary, load_vocab


@dataclass(frozen=True, slots=True)
class ChainTask:
    """All that decides the chains of a partition. words: tokenizer of stage 1; separators: flags of SEPARATORS; damage:
    (file, error) of the inputs that could be read only in part when their words were counted."""

    partition: Partition
    folder: Path
    record: RecordFormat
    normalization: Normalization
    words: Path
    separators: int
    sample: Fraction
    holdout: Fraction
    seed: int
    damage: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> Path:
        """Where the chains go."""
        return self.folder / f"{self.partition.name}.npy"

    @property
    def size_path(self) -> Path:
        """Where the bytes of the sampled text are noted."""
        return self.folder / f"{self.partition.name}.json"


def stage_tokens(vocab: Vocabulary) -> list[bytes]:
    """Bytes of each id of a stage 1, b"" for special tokens."""
    return [b"" if vocab.tokens[i] in vocab.added_tokens else vocab.token_bytes(i) for i in range(vocab.size)]


@lru_cache(maxsize=1)
def _tools(words: Path, separators: int) -> tuple[BatchEncoder, ChainFinder]:
    """The worker's engine and finder."""
    text = words.read_text(encoding="utf-8")
    engine, _ = choose_engine(text, ReferenceEngine(text))
    return engine, ChainFinder(stage_tokens(load_vocab(words)), separators)


def write_chains(task: ChainTask, report: Report) -> int:
    """Write the chains of a partition unless they are there; the bytes of its sampled text.

    An input that counting named as damaged gives what can be read of it. Raises MismatchError for any other damage: the
    file is no longer the one whose words were counted.
    """
    if task.path.exists():
        return int(read_json(task.size_path))
    engine, finder = _tools(task.words, task.separators)
    parts: list[npt.NDArray[Any]] = []
    total = 0
    for batch in read_partition(task.partition, task.record, task.normalization):
        if isinstance(batch, Damage):
            _refuse_new(batch, task)
            continue
        if len(batch.texts) == 0:
            continue
        texts = batch.texts
        data, offsets = buffers(texts)
        chosen = select(hash_documents(data, offsets, task.seed + SAMPLE_SEED_STEP), task.sample)
        chosen &= ~select(hash_documents(data, offsets, task.seed), task.holdout)
        texts = texts.filter(chosen)
        data, offsets = buffers(texts)
        parts.append(_narrow(finder.find(data, offsets, *engine.encode(texts)), finder.size))
        total += len(data)
        report({"documents": len(texts), "bytes": len(data)})
    write_json(task.size_path, total)
    with atomic_open(task.path) as file:
        np.save(file, np.concatenate([_narrow(np.empty(0, np.uint32), finder.size), *parts]))
    return total


def _refuse_new(damage: Damage, task: ChainTask) -> None:
    """MismatchError for damage that was not there when the words were counted."""
    file = task.partition.pieces[damage.piece].file.path
    if (file, damage.error) not in task.damage:
        raise MismatchError(
            f"{file}: {damage.error}; its words are counted, but its text cannot be read as it was then: restore the "
            "file, or delete the counts to count anew"
        )


def _narrow(chains: Ids, size: int) -> npt.NDArray[Any]:
    """Chains in two bytes per id where the ids allow, the break then being the largest integer of two bytes."""
    return chains.astype(np.uint16) if size < 1 << 16 else chains


def read_chains(paths: Sequence[Path]) -> Iterator[Ids]:
    """The chains of each file."""
    for path in paths:
        stored = np.load(path)
        chains = stored.astype(np.uint32)
        chains[stored == np.iinfo(stored.dtype).max] = BREAK
        yield chains
