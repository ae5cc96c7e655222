"""Batches of records -> batches of documents: plain text is normalized, conversations go through their template.

Input: a partition and the record format of its source. Output: the batches of `read.readers` with documents as texts.
The code that runs templates is loaded only for conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from pretok.chat.limits import LIMITS, TemplateLimits
from pretok.read.batches import TextBatch
from pretok.read.format import Keep
from pretok.read.normalize import Normalization, normalize_batch
from pretok.read.partition import Partition
from pretok.read.readers import Damage, read_partition
from pretok.read.record_format import Conversation, RecordFormat


def documents_of(
    record: RecordFormat, normalization: Normalization, limits: TemplateLimits = LIMITS
) -> Callable[[TextBatch], TextBatch]:
    """Return a function that turns the texts of a batch, as they were read, into documents."""
    if isinstance(record.conversation, Conversation):
        from pretok.chat.render import Renderer

        return Renderer(record, normalization, limits)
    return partial(normalize_batch, normalization=normalization)


def read_documents(
    partition: Partition,
    record: RecordFormat,
    normalization: Normalization,
    keep: Keep = (),
    limits: TemplateLimits = LIMITS,
) -> Iterator[TextBatch | Damage]:
    """Yield all batches of documents of a partition; see `read_partition`."""
    return read_partition(partition, record, documents_of(record, normalization, limits), keep)
