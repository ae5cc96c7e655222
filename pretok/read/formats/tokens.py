"""Files of token ids that other programs made, decoded to text: a document is what the index, or EOD, says.

    .bin + .idx        Megatron-LM: uint16 or int32; a document may have several sequences
    .ds + .ds.index    datatrove: uint16 or uint32, by the size of the file
    any other          OLMo: ids without a header or an index, of a declared dtype, documents end with EOD

A file with an index is split between documents, another one where an EOD ends a document. An index is checked before
any document that it names is read, so nothing is read outside of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import UNSET

from pretok.base.errors import MismatchError
from pretok.base.storage import tried
from pretok.base.texts import from_buffers
from pretok.base.tokens import DTYPE_CODES, INDEX_HEADER, INDEX_MAGIC, INDEX_VERSION, Bytes, Ints
from pretok.read.batches import hash_ids
from pretok.read.files import CorruptInputError, InputFile, index_of, open_input, read_bytes
from pretok.read.format import Keep, Piece, Probe, Records, too_long
from pretok.read.record_format import RecordFormat, TokenFiles
from pretok.read.rejects import EMPTY, OK, REASONS, TOO_LONG
from pretok.tokenizer.decode import TextDecoder, choose_ids, worst_kinds
from pretok.tokenizer.vocabulary import load_vocab

SUFFIXES: tuple[str, ...] = ()
CERTAIN: bool = False
TABLE: bool = False
TEXT_PER_ID = 4.0
"""Assumed bytes of text per id."""
_UNKNOWN, _SPECIAL = REASONS.index("unknown_id"), REASONS.index("special_token")
_STATUS = np.array([OK, _SPECIAL, _UNKNOWN], np.uint8)
"""Kind of an id -> the status of a document with it: text, a special token, no id of the tokenizer."""
NO_EOD, WITH_BOS = "without EOD", "with BOS"
"""Remarks on documents that are read all the same."""

_BLOCK = 1 << 14
"""Entries of an index that are read at once."""


class TokenLayout(NamedTuple):
    """What is known of a file before it is read."""

    dtype: np.dtype[Any]
    ids: int
    documents: int | None = None
    """None without an index."""
    sequences: int = 0
    """Of an .idx, 0 for any other."""


def recognise(_head: bytes, _tail: bytes) -> bool:
    """See `Format`. Any bytes may be ids, so only a source says that they are."""
    return False


def probe(file: InputFile, _sampled: bool) -> Probe:
    """See `Format`. An id takes two bytes or four; two are assumed where nothing is known yet."""
    return Probe(file, int(file.size * TEXT_PER_ID) // 2)


def split(probe: Probe, limit: int) -> list[tuple[Piece, int]]:
    """See `Format`."""
    file, count = probe.file, -(-probe.size // limit)
    whole = [(Piece(file), probe.size)]
    if probe.tokens is None:
        return whole
    try:
        return tried(lambda: _split(file, probe.tokens, count)) or whole  # type: ignore[arg-type]
    except (OSError, CorruptInputError):  # reading the whole piece will report it
        return whole


def _split(file: InputFile, tokens: TokenFiles, count: int) -> list[tuple[Piece, int]]:
    layout = layout_of(file, tokens)
    total = layout.ids if layout.documents is None else layout.documents
    nominal = sorted({total * i // count for i in range(count + 1)})
    if layout.documents is None:
        size = layout.dtype.itemsize
        starts = [0, *(_document_start(file, tokens, layout, at) for at in nominal[1:-1]), layout.ids]
        ends = sorted(set(starts))
        text = [int((stop - start) * TEXT_PER_ID) for start, stop in pairwise(ends)]
        return [(Piece(file, a * size, b * size), t) for (a, b), t in zip(pairwise(ends), text, strict=True)]
    share = int(layout.ids * TEXT_PER_ID) // max(1, total)
    return [(Piece(file, a, b, a), share * (b - a)) for a, b in pairwise(nominal)]


def _document_start(file: InputFile, tokens: TokenFiles, layout: TokenLayout, at: int) -> int:
    """Return the first id from `at` on that begins a document, of a file without an index."""
    size = layout.dtype.itemsize
    # From the id before: if that is an EOD, a document begins at `at` itself.
    for block in read_bytes(file.path, "", (at - 1) * size, file.size):
        whole = np.frombuffer(block[: len(block) // size * size], layout.dtype)
        if len(found := np.flatnonzero(whole == tokens.eod)):
            return at + int(found[0])
        at += len(whole)
    return layout.ids


def around(probe: Probe, place: float, text: int) -> tuple[Piece, int]:
    """Return (a piece of about `text` bytes of text, or of a document, at a place of the file, 0 to 1; its bytes)."""
    assert probe.tokens is not None
    layout = layout_of(probe.file, probe.tokens)
    size, wanted = layout.dtype.itemsize, max(1, int(text / TEXT_PER_ID))
    if layout.documents is None:
        at = int(place * layout.ids)
        start = _document_start(probe.file, probe.tokens, layout, at) if at else 0
        stop = _document_start(probe.file, probe.tokens, layout, min(layout.ids, start + wanted))
        return Piece(probe.file, start * size, max(start, stop) * size), (max(start, stop) - start) * size
    first = min(int(place * layout.documents), max(0, layout.documents - 1))
    number = max(1, wanted * layout.documents // max(1, layout.ids))
    last = min(layout.documents, first + number)
    ends = _ends(probe.file, layout, first, last)
    return Piece(probe.file, first, last, first), int(ends[-1] - ends[0]) * size


def layout_of(file: InputFile, tokens: TokenFiles) -> TokenLayout:
    """Check sizes and read the header of an index. Raises CorruptInputError, OSError."""
    if file.path.endswith((".zst", ".gz")):
        raise CorruptInputError("is compressed: unpack it, as ids are read at any place")
    index, declared = index_of(file.path), np.dtype(tokens.dtype or "V1").newbyteorder("<")
    if index.endswith(".idx"):
        layout = _megatron(file, index)
    elif index:
        layout = _datatrove(file, index)
    elif not tokens.dtype:
        raise CorruptInputError(
            "nothing says how its ids are stored: give their dtype, tokens = {dtype = ...}"
        )
    else:
        if _range(file.path, 0, min(6, file.size)) == b"\x93NUMPY":
            raise CorruptInputError(
                "is an array of numpy.save, not ids without a header: write it by its tofile"
            )
        if file.size % declared.itemsize:
            raise CorruptInputError(
                f"has {file.size} bytes, which are no whole number of ids of {tokens.dtype}"
            )
        layout = TokenLayout(declared, file.size // declared.itemsize)
    if tokens.dtype and layout.dtype != declared:
        raise CorruptInputError(f"its ids are {layout.dtype.name}, but the source declares {tokens.dtype}")
    return layout


def _megatron(file: InputFile, index: str) -> TokenLayout:
    size = _size(index)
    head = _range(index, 0, min(size, INDEX_HEADER.size))
    if len(head) < INDEX_HEADER.size or head[:9] != INDEX_MAGIC:
        raise CorruptInputError(f"{index} is not an index of Megatron-LM: it begins otherwise")
    _, version, code, sequences, documents = INDEX_HEADER.unpack(head)
    if version != INDEX_VERSION or code not in DTYPE_CODES:
        raise CorruptInputError(
            f"{index}: version {version}, dtype {code}; known are 1, and uint16 (8) or int32 (4)"
        )
    expected = INDEX_HEADER.size + 12 * sequences + 8 * documents
    if size == expected + sequences != expected:
        raise CorruptInputError(f"{index} is of multimodal sequences, not of text alone")
    if size != expected or not documents:
        raise CorruptInputError(
            f"{index} has {size} bytes, but {sequences} sequences and a list of {documents} documents take {expected}"
        )
    dtype = DTYPE_CODES[code]
    if file.size % dtype.itemsize:
        raise CorruptInputError(f"has {file.size} bytes, which are no whole number of ids of {dtype.name}")
    layout = TokenLayout(dtype, file.size // dtype.itemsize, documents - 1, sequences)
    first, last = _list(index, layout, 0, 1)[0], _list(index, layout, documents - 1, documents)[0]
    if (first, last) != (0, sequences):
        raise CorruptInputError(f"{index}: its documents are sequences {first} to {last} of 0 to {sequences}")
    return layout


def _datatrove(file: InputFile, index: str) -> TokenLayout:
    size = _size(index)
    if size % 8:
        raise CorruptInputError(f"{index} has {size} bytes, which are no whole number of ends of 8 bytes")
    ids = int(np.frombuffer(_range(index, size - 8, size), "<u8")[0]) if size else 0
    dtype = next((np.dtype(kind) for kind in ("<u2", "<u4") if ids * int(kind[-1]) == file.size), None)
    if dtype is None:
        raise CorruptInputError(f"has {file.size} bytes, but {index} names {ids} ids, of 2 or 4 bytes each")
    return TokenLayout(dtype, ids, size // 8)


def _size(path: str) -> int:
    with open_input(path) as stream:
        return stream.seek(0, 2)


def _range(path: str, start: int, stop: int) -> bytes:
    return b"".join(read_bytes(path, "", start, stop))


def _list(index: str, layout: TokenLayout, start: int, stop: int) -> Ints:
    """Entries of the list of documents of an .idx: the first sequence of each."""
    at = INDEX_HEADER.size + 12 * layout.sequences
    return np.frombuffer(_range(index, at + 8 * start, at + 8 * stop), "<i8")


def _ends(file: InputFile, layout: TokenLayout, start: int, stop: int) -> Ints:
    """Return where documents start:stop of a file with an index begin, and the last ends: (stop - start + 1,), in ids.

    Raises CorruptInputError for any that are not in order, or outside of the file.
    """
    index, ends = index_of(file.path), np.empty(0, np.int64)
    if not index.endswith(".idx"):
        first = max(0, start - 1)
        found = np.frombuffer(_range(index, 8 * first, 8 * stop), "<u8")
        found = found if start else np.concatenate([[np.uint64(0)], found])
        # Ends beyond any file: large enough to be refused below, small enough that no difference overflows.
        ends = np.minimum(found, np.uint64(1 << 62)).astype(np.int64)
    else:
        sequences = _list(index, layout, start, stop + 1)
        low, high = int(sequences[0]), int(sequences[-1])
        if not 0 <= low <= high <= layout.sequences or (np.diff(sequences) < 0).any():
            raise CorruptInputError(f"{index}: sequences of documents {start} to {stop - 1} are not in order")
        ends = _begins(index, layout, low, high)[sequences - low]
    if (np.diff(ends) < 0).any() or not 0 <= ends[0] <= ends[-1] <= layout.ids:
        raise CorruptInputError(
            f"{index}: documents {start} to {stop - 1} are not in order inside the {layout.ids} ids of the file"
        )
    return ends


def _begins(index: str, layout: TokenLayout, low: int, high: int) -> Ints:
    """Return where sequences low:high begin, and the last ends, in ids: (high - low + 1,)."""
    size, begins = layout.dtype.itemsize, np.empty(high - low + 1, np.int64)
    for at in range(low, high, _BLOCK):
        until = min(high, at + _BLOCK)
        lengths = np.frombuffer(
            _range(index, INDEX_HEADER.size + 4 * at, INDEX_HEADER.size + 4 * until), "<i4"
        )
        base = INDEX_HEADER.size + 4 * layout.sequences
        pointers = np.frombuffer(_range(index, base + 8 * at, base + 8 * until), "<i8")
        after = pointers + lengths.astype(np.int64) * size
        # The format allows sequences anywhere in the file. Here a document is one run of ids, so they must follow each
        # other.
        if (lengths < 0).any() or (pointers % size).any() or (after[:-1] != pointers[1:]).any():
            raise CorruptInputError(f"{index}: sequences {at} to {until - 1} do not follow one another")
        begins[at - low : until - low], begins[until - low] = pointers // size, after[-1] // size
    if low == high:  # no sequence: where the next one would begin
        if low == 0:
            begins[0] = 0
        else:
            begins[0] = _begins(index, layout, low - 1, low)[1]
    return begins


def read(
    piece: Piece, _small: bytes | None, record: RecordFormat, _keep: Keep, batch_bytes: int
) -> Iterator[Records]:
    """See `Format`. Ids have no fields to keep."""
    tokens = record.tokens
    assert tokens is not UNSET
    decoder = TokenDecoder.of(tokens)
    try:
        layout = layout_of(piece.file, tokens)
    except OSError as error:
        raise CorruptInputError(f"reading its index failed: {error}") from error
    most = max(1, int(batch_bytes / TEXT_PER_ID))
    documents = _by_eod if layout.documents is None else _by_index
    for found in documents(piece, tokens, layout, most, record.max_document):
        yield too_long(record.max_document) if found is None else decoder.records(*found, record.max_document)


Found = tuple[npt.NDArray[Any], Ints] | None
"""(ids of documents in a row, where they begin and the last ends); None for one that is too long."""


def _by_index(
    piece: Piece, _tokens: TokenFiles, layout: TokenLayout, most: int, limit: int
) -> Iterator[Found]:
    """Yield the documents of a piece of a file with an index, some `most` ids at a time."""
    first = piece.start or 0
    last = layout.documents if piece.stop is None else piece.stop
    assert last is not None
    size = layout.dtype.itemsize
    for low in range(first, last, _BLOCK):
        ends = _ends(piece.file, layout, low, min(last, low + _BLOCK))
        at = 0
        while at < len(ends) - 1:
            to = max(at + 1, int(np.searchsorted(ends, ends[at] + most, "right")) - 1)
            if ends[to] - ends[at] > max(limit, most):
                yield None
            else:
                data = _range(piece.file.path, int(ends[at]) * size, int(ends[to]) * size)
                yield np.frombuffer(data, layout.dtype), ends[at : to + 1] - ends[at]
            at = to
    # Ids behind the last document would be lost without a word.
    if (
        piece.stop in (None, layout.documents)
        and (end := int(_ends(piece.file, layout, last, last)[0])) != layout.ids
    ):
        raise CorruptInputError(f"has {layout.ids} ids, but its documents end after {end}")


def _by_eod(piece: Piece, tokens: TokenFiles, layout: TokenLayout, most: int, limit: int) -> Iterator[Found]:
    """Yield the documents of a piece of a file without an index."""
    size, rest, skipping = layout.dtype.itemsize, b"", False
    for block in read_bytes(piece.file.path, "", piece.start or 0, piece.stop or piece.file.size):
        data = rest + block
        ids = np.frombuffer(data[: len(data) // size * size], layout.dtype)
        ends = np.concatenate([[0], np.flatnonzero(ids == tokens.eod) + 1])
        rest = data[int(ends[-1]) * size :]
        if skipping and len(ends) > 1:
            ends, skipping = ends[1:], False
        if len(ends) > 1:
            yield ids[ends[0] : ends[-1]], ends - ends[0]
        if skipping or len(rest) > max(limit, most) * size:
            if not skipping:
                yield None
            rest, skipping = rest[len(rest) // size * size :], True
    # The last document of a file may lack its EOD; the record gets a remark.
    if rest and not skipping:
        last = np.frombuffer(rest, layout.dtype)
        yield last, np.array([0, len(last)])


class TokenDecoder:
    """Documents of ids -> records, by the tokenizer that made them."""

    def __init__(self, tokens: TokenFiles) -> None:
        vocab = load_vocab(Path(tokens.tokenizer), tokens.eod, tokens.bos, decode_only=True)
        if vocab.fingerprint != tokens.fingerprint:
            raise MismatchError(
                f"{vocab.path} has the fingerprint {vocab.fingerprint}, but the job began with {tokens.fingerprint}: "
                "it was replaced; put it back"
            )
        self.vocab, self._text = vocab, TextDecoder(vocab)
        self._kinds = np.zeros(vocab.size + 1, np.uint8)
        special = [token["id"] for token in vocab.added if token["special"]]
        self._kinds[[tokens.eod, *special]] = 1
        self._kinds[[*vocab.holes, vocab.size]] = 2  # the last stands for all ids outside

    @staticmethod
    @lru_cache(2)
    def of(tokens: TokenFiles) -> TokenDecoder:
        """Return the decoder of this process."""
        return TokenDecoder(tokens)

    def records(self, ids: npt.NDArray[Any], offsets: Ints, limit: int) -> Records:
        """Decode documents. ids: (tokens,); offsets: (documents + 1,), where each begins; limit: bytes of a text."""
        count, starts, ends = len(offsets) - 1, offsets[:-1].copy(), offsets[1:].copy()
        known = ids.astype(np.int32)  # an id of uint32 beyond becomes negative, which is no id either
        with_eod = starts < ends
        with_eod[with_eod] = known[ends[with_eod] - 1] == self.vocab.eod_id
        ends -= with_eod
        with_bos = (starts < ends) & (self.vocab.bos_id is not None)
        with_bos[with_bos] = known[starts[with_bos]] == self.vocab.bos_id
        starts += with_bos
        worst = np.empty(count, np.uint8)
        worst_kinds(known, starts, ends, self._kinds, worst)
        status = np.where(starts < ends, _STATUS[worst], EMPTY).astype(np.uint8)
        good = np.flatnonzero(status == OK)
        sizes = (ends - starts)[good]
        chosen, borders = np.empty(int(sizes.sum()), np.int32), np.empty(len(good) + 1, np.int64)
        choose_ids(known, starts[good], ends[good], chosen, borders)
        before, (texts, limits) = hash_ids(chosen, borders), self._decode(chosen, borders)
        lengths, array = np.diff(limits), from_buffers(texts, limits)
        status[good[lengths == 0]], status[good[lengths > limit]] = EMPTY, TOO_LONG
        if (wrong := status[good] != OK).any():
            array, before = array.filter(pa.array(~wrong)), before[~wrong]
        remarks = Counter({NO_EOD: int(count - with_eod.sum()), WITH_BOS: int(with_bos.sum())})
        return Records(
            status,
            array,
            lambda row: self._explain(ids[offsets[row] : offsets[row + 1]], int(status[row]), limit),
            np.diff(offsets) * ids.dtype.itemsize,
            np.arange(count),
            count,
            before=before,
            remarks=+remarks,
        )

    def _decode(self, ids: npt.NDArray[np.int32], borders: Ints) -> tuple[Bytes, Ints]:
        """Decode ids[borders[i] : borders[i + 1]] of each document i to (bytes, offsets)."""
        text, offsets = self._text.decode(ids, borders)
        if self.vocab.prefix and len(text):  # what the tokenizer puts before each text
            first = offsets[:-1][np.diff(offsets) > 0]
            first = first[text[first] == ord(" ")]
            left = np.ones(len(text), np.int64)
            left[first] = 0
            after = np.concatenate([[0], np.cumsum(left)])
            text, offsets = text[left > 0], after[offsets]
        return text, offsets

    def _explain(self, ids: npt.NDArray[Any], status: int, limit: int) -> str:
        if status == TOO_LONG:
            return f"more than {limit} bytes"
        if status not in (_UNKNOWN, _SPECIAL):
            return ""
        codes = ids.astype(np.int64)
        codes[(codes < 0) | (codes >= self.vocab.size)] = self.vocab.size
        at = np.flatnonzero(_STATUS[self._kinds[codes]] == status)
        inner = (
            at[(at < len(ids) - 1) & ((at > 0) | (codes[at] != self.vocab.bos_id))]
            if status == _SPECIAL
            else at
        )
        place = int(inner[0] if len(inner) else at[0])
        token = int(ids[place])
        if status == _UNKNOWN:
            return f"id {token} at {place}: the tokenizer has {self.vocab.size} ids, or this is of no entry"
        return f"{self.vocab.tokens[token]!r}, id {token}, at {place}, which is not text"
