"""Tensors of a checkpoint: one safetensors file per rank of the first replica, and an index of pieces.

Input: a state, name -> tensor, on any mesh. Output: rank-NNNNN.safetensors with the pieces of that rank, and per stage
of a pipeline an index-NNNNN.json, which records the rank that holds each box of each tensor. Boxes follow from the mesh
and the placements, so every rank knows them all and can write and read without communication. Reading intersects the
boxes on disk with those of the new mesh.

Parameters are identified only by their name in the whole model. The files contain no executable code.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import (  # torch has no public way
    _compute_local_shape_and_global_offset,
    compute_local_shape_and_global_offset,
)

from pretok.base.errors import IntegrityError, MismatchError, PretokError, Stopped
from pretok.base.records import Record, read_record, to_json
from pretok.base.storage import PASSING, NewFile, read_json, tried, write_bytes
from train.checkpoint.meta import FileRecord, Meta, TokenizerOrigin, check_files, read_meta
from train.model.sizes import ModelConfig
from train.parallel.group import all_or_raise
from train.parallel.mesh import PIPELINE, REPLICATE, SHARD, TENSOR, clean_name, local

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""torch's types of states and exported models -> their names in safetensors."""
MAPPED = 1 << 30
"""Bytes after which a reader closes its files: the pages of a mapped file count as memory of the process."""
Numbers = tuple[int, ...]
T = TypeVar("T")


class Box(NamedTuple):
    """A piece of a tensor, and the rank that writes it."""

    rank: int
    offset: Numbers
    size: Numbers


class TensorKind(Record, frozen=True):
    """Tensors of the same shape and split. Blocks repeat, so a model has few kinds."""

    shape: Numbers
    boxes: tuple[Box, ...]
    names: tuple[str, ...]


class Index(Record, frozen=True):
    """All tensors of a stage."""

    kinds: tuple[TensorKind, ...]


def named_state(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, guard: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Return name -> tensor: model.NAME, optimizer.NAME.exp_avg and so on, guard.NAME.

    Without an optimizer or a guard, their tensors are left out.
    """
    named = {clean_name(name): parameter for name, parameter in model.named_parameters()}
    state = {f"model.{name}": parameter.detach() for name, parameter in named.items()}
    if optimizer is not None:
        for name, parameter in named.items():
            state |= {f"optimizer.{name}.{key}": value for key, value in optimizer.state[parameter].items()}
    return state | {f"guard.{name}": value for name, value in (guard or {}).items()}


def make_index(state: dict[str, Tensor], mesh: DeviceMesh) -> Index:
    """Return the index of the tensors of this rank's stage. mesh: (pipeline, replicate, shard, tensor)."""
    alike: dict[Any, list[str]] = {}
    for name, value in state.items():
        split = (value.device_mesh, value.placements) if isinstance(value, DTensor) else None
        alike.setdefault((value.shape, split), []).append(name)
    ranks = mesh.mesh[mesh.get_local_rank(PIPELINE)]
    return Index(
        tuple(
            TensorKind(tuple(shape), boxes_of(state[names[0]], ranks), tuple(names))
            for (shape, _), names in alike.items()
        )
    )


def share(rows: int, number: int, parts: int) -> slice:
    """Return which rows of a piece replica `number` of `parts` writes and reads."""
    size = -(-rows // parts)
    return slice(min(rows, number * size), min(rows, (number + 1) * size))


def boxes_of(value: Tensor, ranks: Tensor) -> tuple[Box, ...]:
    """Return the pieces of a tensor. `ranks`: (replicate, shard, tensor).

    The replicas of a piece divide its rows. If ranks hold the same piece along other dimensions, the first writes it.
    """
    if not isinstance(value, DTensor):
        return (Box(int(ranks[0, 0, 0]), (0,) * value.ndim, tuple(value.shape)),)
    mesh, boxes = value.device_mesh, []
    splits = zip(mesh.shape, value.placements, strict=True)
    # Every coordinate of the mesh at which a distinct piece lies; copies along replicated dimensions are left out.
    for place in product(*(range(1 if placement.is_replicate() else size) for size, placement in splits)):
        size, offset = _compute_local_shape_and_global_offset(
            value.shape, mesh.shape, list(place), value.placements
        )
        at = dict(zip(mesh.mesh_dim_names or (), place, strict=True))
        for number, replica in enumerate(ranks[:, at.get(SHARD, 0), at.get(TENSOR, 0)].tolist()):
            rows = share(size[0], number, len(ranks))
            if (count := rows.stop - rows.start) and math.prod(size):
                boxes.append(Box(replica, (offset[0] + rows.start, *offset[1:]), (count, *size[1:])))
    assert sum(math.prod(box.size) for box in boxes) == value.numel()  # fails if torch changes how it splits
    return tuple(boxes)


def own_pieces(state: dict[str, Tensor], index: Index, rank: int) -> dict[str, Tensor]:
    """Return the pieces that a rank writes."""
    pieces = {}
    for kind in index.kinds:
        for box in kind.boxes:
            if box.rank == rank:
                for name in kind.names:
                    piece = local(state[name])
                    first = box.offset[0] - _offset(state[name])[0] if box.offset else 0
                    pieces[name] = piece[first : first + box.size[0]] if box.offset else piece
    return pieces


def _offset(value: Tensor) -> Numbers:
    """Return where this rank's piece of a tensor begins."""
    if not isinstance(value, DTensor):
        return (0,) * value.ndim
    return tuple(compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)[1])


def write_tensors(
    path: Path, kinds: dict[str, Tensor], value: Callable[[str], Tensor], **metadata: str
) -> FileRecord:
    """Write a safetensors file, one tensor after the other, and compute its checksum on the way.

    kinds: tensors of the types and shapes to be written, perhaps on the meta device; value(name): one of them. Format:
    https://github.com/huggingface/safetensors (8 bytes with the length of the header, the header as JSON, the tensors).
    """
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    order = sorted(kinds, key=lambda name: -kinds[name].itemsize)  # large types first, so each is aligned
    for name in order:
        begin, end = end, end + kinds[name].nbytes
        kind = {"dtype": DTYPES[kinds[name].dtype], "shape": list(kinds[name].shape)}
        header[name] = kind | {"data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with NewFile(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            flat: Any = value(name).contiguous().view(-1).view(torch.uint8).numpy()
            file.write(memoryview(flat))
        file.seal()
    return FileRecord(file.size, file.checksum)


def write_pieces(
    folder: Path, rank: int, index: Index, pieces: dict[str, Tensor], *, leads: bool
) -> dict[str, FileRecord]:
    """Write this rank's files and return their records by name.

    leads: whether the rank is the first of its stage and writes its index.
    """
    files = {}
    if pieces:
        files[_file(rank)] = write_tensors(folder / _file(rank), pieces, pieces.__getitem__)
    if leads:
        name, data = f"index-{rank:05d}.json", msgspec.json.encode(index)
        files[name] = FileRecord(len(data), write_bytes(folder / name, data))
    return files


def _file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


class Reader:
    """The tensors of a checkpoint, by name."""

    def __init__(self, checkpoint: Path, meta: Meta) -> None:
        self.checkpoint = checkpoint
        self.kinds: dict[str, TensorKind] = {}
        for path in (checkpoint / name for name in meta.files if name.startswith("index-")):
            for kind in read_record(Index, read_json(path), path).kinds:
                self.kinds |= dict.fromkeys(kind.names, kind)
        self._opened: dict[int, Any] = {}
        self._read = 0

    def fill(self, name: str, shape: Numbers, piece: Tensor, offset: Numbers) -> None:
        """Fill `piece`, which lies at `offset` of a tensor of this shape. IntegrityError unless all of it is found."""
        kind, filled = self.kinds.get(name), 0
        if kind is None or kind.shape != shape:
            raise IntegrityError(f"{self.checkpoint} has no tensor {name} of the shape {shape}")
        for rank, there, here in overlaps(kind.boxes, offset, tuple(piece.shape)):
            if rank not in self._opened:
                self._opened[rank] = safe_open(self.checkpoint / _file(rank), "pt")
            file = self._opened[rank]
            part = piece[here]
            part.copy_(file.get_slice(name)[there] if there else file.get_tensor(name))
            filled += part.numel()
            self._read += part.nbytes
        if self._read > MAPPED:
            self._read = 0
            self._opened.clear()
        if filled != piece.numel():
            raise IntegrityError(f"{self.checkpoint} lacks a part of {name}; it was damaged or edited")


@lru_cache(1024)
def overlaps(boxes: tuple[Box, ...], offset: Numbers, size: Numbers) -> list[tuple[int, Any, Any]]:
    """Return (rank, slices of its piece, slices of ours) for every box that overlaps ours."""
    parts: list[tuple[int, Any, Any]] = []
    for rank, begin, extent in boxes:
        spans = [
            (max(ours, theirs), min(ours + count, theirs + number))
            for ours, count, theirs, number in zip(offset, size, begin, extent, strict=True)
        ]
        if all(first < last for first, last in spans):
            there, here = (
                tuple(slice(first - base, last - base) for (first, last), base in zip(spans, of, strict=True))
                for of in (begin, offset)
            )
            parts.append((rank, there, here))
    return parts


def restore(state: dict[str, Tensor], reader: Reader, number: int = 0, replicas: int = 1) -> None:
    """Load this rank's part of a checkpoint into `state`, without communication.

    Of several replicas, number `number` loads its share of the rows of each piece only (`share`).
    """

    def fill() -> None:
        for name, value in state.items():
            piece, offset = local(value), _offset(value)
            if offset:
                rows = share(len(piece), number, replicas)
                piece, offset = piece[rows], (offset[0] + rows.start, *offset[1:])
            if piece.numel() and (offset or not number):
                reader.fill(name, tuple(value.shape), piece, offset)

    readable(reader.checkpoint, fill)


def gather_rows(piece: Tensor, group: dist.ProcessGroup) -> None:
    """Complete a piece of which each replica has loaded its share of the rows."""
    replicas, number = group.size(), group.rank()
    rows = piece.view(len(piece) if piece.ndim else 1, -1)
    size = -(-len(rows) // replicas)
    whole = rows if size * replicas == len(rows) else rows.new_empty(size * replicas, rows.shape[1])
    own = whole[number * size :][:size].clone()
    mine = share(len(rows), number, replicas)
    own[: mine.stop - mine.start] = rows[mine]
    dist.all_gather_into_tensor(whole, own, group=group)
    if whole is not rows:
        rows.copy_(whole[: len(rows)])


def readable(checkpoint: Path, read: Callable[[], T]) -> T:
    """Return `read()`, retrying errors that may pass.

    Raises IntegrityError if the checkpoint is damaged, Stopped if a later start may succeed, PretokError if this
    process has no permission to read it.
    """
    try:
        return tried(read)
    except PretokError:
        raise
    except Exception as error:  # anything damaged files can raise
        reason = in_a_line(error)
        if isinstance(error, OSError) and error.errno in PASSING:
            raise Stopped(
                f"{checkpoint} cannot be read now: {reason}; run the same command to resume"
            ) from None
        kind = PretokError if isinstance(error, PermissionError) else IntegrityError
        raise kind(f"{checkpoint} cannot be read: {reason}") from None


def in_a_line(error: BaseException) -> str:
    """Describe an error in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return text if isinstance(error, PretokError) else f"{type(error).__name__}: {text or 'no message'}"


def load(
    checkpoint: Path,
    state: dict[str, Tensor],
    mesh: DeviceMesh,
    check: Callable[[Meta], None],
) -> Meta:
    """Load a checkpoint into `state` on all ranks of the mesh. If one rank fails, all raise the same error.

    check(meta) raises if the checkpoint must not be loaded. Every tensor is read from disk once: replicas divide the
    rows of each piece, and send them to each other.
    """

    def read() -> tuple[Meta, Reader]:
        meta = read_meta(checkpoint)
        check_files(checkpoint, meta, dist.get_rank(), dist.get_world_size())
        return meta, Reader(checkpoint, meta)

    # Each `all_or_raise` is a collective: no rank starts to fill its tensors before all files are known to be good.
    meta, reader = all_or_raise(lambda: readable(checkpoint, read))
    check(meta)
    replicas = mesh[REPLICATE]
    all_or_raise(lambda: restore(state, reader, replicas.get_local_rank(), replicas.size()))
    if replicas.size() > 1:
        for piece in map(local, state.values()):
            if piece.numel():  # the last ranks may have no rows of a small parameter
                gather_rows(piece, replicas.get_group())
    return meta


def load_weights(
    model: nn.Module,
    mesh: DeviceMesh,
    checkpoint: Path,
    config: ModelConfig,
    tokenizer: TokenizerOrigin,
    report: Callable[[str], None],
) -> None:
    """Load the model from a checkpoint that any mesh has written.

    Reports another rope_theta. Raises IntegrityError for a damaged checkpoint, MismatchError for other sizes or a
    tokenizer other than that of the shards.
    """

    def check(meta: Meta) -> None:
        if meta.tokenizer.fingerprint != tokenizer.fingerprint:
            raise MismatchError(
                f"{checkpoint} was trained with another tokenizer than that of {tokenizer.shards}: the same ids stand "
                f"for other tokens (fingerprint {meta.tokenizer.fingerprint}, not {tokenizer.fingerprint}); name "
                "shards made with its vocabulary, or export it and give the --vocab-map made from the export"
            )
        check_sizes(meta.identity.model, config, checkpoint, report)

    load(checkpoint, named_state(model), mesh, check)


def check_sizes(saved: ModelConfig, config: ModelConfig, source: Path, report: Callable[[str], None]) -> None:
    """Raise MismatchError unless `source` holds a model of these sizes; report another rope_theta."""
    theirs, ours = (
        to_json(model) | {"rows": model.matrix_rows, "family": model.model_type} for model in (saved, config)
    )
    different = [
        f"{name} {theirs[name]} (here {value})"
        for name, value in ours.items()
        if name not in ("seq_len", "rope_theta", "max_positions", "dtype") and theirs[name] != value
    ]
    if different:
        raise MismatchError(f"{source} holds a model of another size: {', '.join(different)}")
    if saved.rope_theta != config.rope_theta:
        report(f"rope_theta was {saved.rope_theta} in {source}, is {config.rope_theta}")
