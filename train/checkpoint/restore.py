"""Tensors of a checkpoint, without trusting it: no program runs from a file.

Input: a checkpoint folder, from wherever it came, and a state dict. Output: the state dict filled in place, on any
mesh. In it a parameter is known by its name and by nothing else: not by its place among the parameters, nor by the
group of the optimizer it is in, both of which depend on the mesh. Hyper-parameters are settings and not in it.

torch's distributed checkpoint would unpickle `.metadata`, and every saved value that is no tensor, as they come,
and unpickling calls what the file names. Here `.metadata` may name only the classes below and values only what torch's
own `weights_only` admits. Resuming, --init-from and `train export` all load through `restore`.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from enum import Enum, EnumType
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from pretok.base.errors import IntegrityError, MismatchError, PretokError, Stopped
from pretok.base.records import to_json
from pretok.base.storage import PASSING
from train.checkpoint.meta import Meta, read_meta
from train.checkpoint.saved import check_files
from train.model.sizes import ModelConfig
from train.parallel.group import first_problem
from train.parallel.mesh import clean_name

_RECORDS = (
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorProperties",
    "TensorStorageMetadata",
    "_MEM_FORMAT_ENCODING",
)
_ADMITTED = {
    *(("torch.distributed.checkpoint.metadata", name) for name in _RECORDS),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),  # looks a name up in a table
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # where Python 3.13 has it
    *(("torch", name) for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
}
"""(module, name) of all that torch 2.11 to 2.13 put into a `.metadata`: records, enumerations, sizes, dtypes."""


def _member(kind: object, name: str) -> Enum:
    """A member of an enumeration: all that is admitted of `getattr`, by which Python 3.11.0 to 3.11.3 pickle one."""
    if not isinstance(kind, EnumType):
        raise pickle.UnpicklingError(f"it asks for {name} of {kind}, which no checkpoint needs")
    found: Enum = kind[name]
    return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The class the file names, if a checkpoint has a use for it."""
        if (module, name) == ("builtins", "getattr"):
            return _member
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no checkpoint needs")
        return super().find_class(module, name)


def _read_metadata(path: Path) -> Metadata:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        metadata = _Unpickler(io.BytesIO(data)).load()
        names = {info.relative_path for info in metadata.storage_data.values()}
        if not isinstance(metadata, Metadata) or any(Path(name).name != name for name in names):
            raise TypeError("it is no metadata, or leads out of its folder")
    except Exception as error:  # anything a damaged or hostile pickle can raise
        raise IntegrityError(
            f"{path} is damaged or not a checkpoint's: {error}; nothing in it was run"
        ) from None
    return metadata


class Reader(FileSystemReader):
    """torch's reader of a checkpoint folder, but for how it reads `.metadata`: at once, and only what is admitted.

    Raises IntegrityError that names the file.
    """

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        self._metadata = _read_metadata(checkpoint / ".metadata")
        self._metadata.storage_meta = StorageMeta(load_id=self.load_id)

    def read_metadata(self, *_args: Any, **_others: Any) -> Metadata:
        """What was read. There is no other to be had by a rank's number, as torch would otherwise try."""
        return self._metadata


class _Planner(DefaultLoadPlanner):
    """torch's planner, but for how it reads values that are no tensors."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put one value in its place. What torch's planner then unpickles freely is of our own making."""
        try:
            plain = torch.load(value, weights_only=True)
        except Exception as error:  # as above
            name = read_item.dest_index.fqn
            raise IntegrityError(f"the value {name} is damaged or not a checkpoint's: {error}") from None
        again = io.BytesIO()
        torch.save(plain, again)
        again.seek(0)
        super().load_bytes(read_item, again)


def _first(error: BaseException) -> BaseException:
    """That of the first rank that failed, where torch gives those of all."""
    if isinstance(error, CheckpointException) and error.failures:
        return next(iter(error.failures.values()))[0]
    return error


def unreadable(checkpoint: object, error: BaseException) -> PretokError:
    """What it says of a checkpoint that it could not be read: IntegrityError where it is damaged, Stopped where another
    try may succeed, else that this process may not read it."""
    error = _first(error)
    if isinstance(error, OSError) and error.errno in PASSING:
        return Stopped(
            f"{checkpoint} cannot be read now: {first_failure(error)}; run the same command to go on"
        )
    if isinstance(error, PermissionError):
        return PretokError(f"{checkpoint} cannot be read: {first_failure(error)}")
    return IntegrityError(f"{checkpoint}: {first_failure(error)}")


def first_failure(error: BaseException) -> str:
    """In one line what went wrong, where torch gives the tracebacks of all ranks."""
    error = _first(error)
    text = str(error).strip().splitlines()
    if isinstance(error, PretokError):
        return " ".join(text)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"


def restore(state: dict[str, Any], reader: Reader) -> None:
    """Load this rank's part of a checkpoint into `state`, without a word to other ranks: the metadata says where each
    tensor lies, so there is nothing to agree on.

    Raises IntegrityError that names the folder, or another of `unreadable`.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is meant
        try:
            load(state, storage_reader=reader, planner=_Planner(), no_dist=True)
        except (Exception, CheckpointException) as error:  # anything damaged files can raise
            raise unreadable(reader.checkpoint_id, error) from None


def restore_everywhere(
    state: dict[str, Any], reader: Reader, mesh: DeviceMesh, group: dist.ProcessGroup | None
) -> PretokError | None:
    """Load a checkpoint on all ranks of the run's mesh, or say what is wrong, the same on all of them.

    Each part is read once: by the ranks of the first replica, from which the others get it.
    """
    replicas, problem = mesh["replicate"], None
    if replicas.get_local_rank() == 0:
        try:
            restore(state, reader)
        except PretokError as error:
            problem = error
    problem = first_problem(problem, group)
    if problem is None and replicas.size() > 1:
        for value in tree_leaves(state):
            tensor = value.to_local() if isinstance(value, DTensor) else value
            if tensor.numel():  # the last ranks may have no rows of a small one
                there = tensor.to(mesh.device_type)  # offloaded parameters and steps are elsewhere
                dist.broadcast(there, group=replicas.get_group(), group_src=0)
                tensor.copy_(there)
    return problem


def open_checkpoint(checkpoint: Path, group: dist.ProcessGroup | None) -> tuple[Meta, Reader] | PretokError:
    """On all ranks: a checkpoint's meta and reader, its files compared with their checksums; or what is wrong."""
    problem: PretokError | None = None
    try:
        meta = read_meta(checkpoint, sizes=dist.get_rank() == 0)
        check_files(checkpoint, meta, dist.get_rank(), dist.get_world_size())
        reader = Reader(checkpoint)
    except PretokError as error:
        problem = error
    except OSError as error:
        problem = unreadable(checkpoint, error)
    problem = first_problem(problem, group)
    return (meta, reader) if problem is None else problem


def named_state(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, guard: dict[str, Tensor] | None = None
) -> dict[str, Any]:
    """{'model': name -> parameter, 'optimizer': {'state': name -> moments and step}, 'guard': ...}; what is None is not
    in it."""
    named = {clean_name(name): parameter for name, parameter in model.named_parameters()}
    state: dict[str, Any] = {"model": {name: parameter.detach() for name, parameter in named.items()}}
    if optimizer is not None:
        moments = {name: dict(optimizer.state[parameter]) for name, parameter in named.items()}
        state["optimizer"] = {"state": moments}
    if guard is not None:
        state["guard"] = guard
    return state


def load_weights(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    mesh: DeviceMesh,
    checkpoint: Path,
    config: ModelConfig,
    report: Callable[[str], None],
) -> None:
    """Load the model from a checkpoint folder of any mesh, and the moments where an optimizer is given.

    Another rope_theta is told. Raises IntegrityError for a damaged checkpoint, MismatchError for one of other sizes.
    """
    opened = open_checkpoint(checkpoint, None)
    if isinstance(opened, PretokError):
        raise opened
    meta, reader = opened
    check_sizes(meta.identity.model, config, checkpoint, report)
    if problem := restore_everywhere(named_state(model, optimizer), reader, mesh, None):
        raise problem


def check_sizes(saved: ModelConfig, config: ModelConfig, source: Path, report: Callable[[str], None]) -> None:
    """MismatchError unless `source` holds a model of these sizes; tells of another rope_theta."""
    theirs, ours = (
        to_json(model) | {"rows": model.matrix_rows, "family": model.model_type} for model in (saved, config)
    )
    different = [
        f"{name} {theirs[name]} (here {value})"
        for name, value in ours.items()
        if name not in ("seq_len", "rope_theta", "max_positions", "dtype") and theirs[name] != value
    ]
    if different:
        raise MismatchError(f"{source} holds a model of other sizes: {', '.join(different)}")
    if saved.rope_theta != config.rope_theta:
        report(f"rope_theta was {saved.rope_theta} in {source}, is {config.rope_theta}")
