"""What to join to which documents, checked before a row is read.

Enters: a Request and a manifest. Leaves: the shards whose documents have names, and which columns they have already.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pretok.annotate.keys import DOCUMENT, OF_SHARD, ShardPlace
from pretok.base.errors import UsageError
from pretok.base.tell import Teller
from pretok.shards.annotations import Annotations, annotations_folder, matched_column
from pretok.shards.ledger import SCHEMA, ledger_path, ledger_schema
from pretok.shards.manifest import Manifest, Shard


@dataclass(frozen=True, slots=True)
class Request:
    """What to join. by: the key, columns of the view `docs`; name: of the annotations; columns: those to take of the
    files, None for all that are not of the key."""

    shards: Path
    files: tuple[str, ...]
    by: tuple[str, ...]
    name: str = "notes"
    columns: tuple[str, ...] | None = None


def named_places(manifest: Manifest) -> list[tuple[Shard, ShardPlace]]:
    """The shards that have documents."""
    if manifest.tokenized != manifest.sources:
        raise UsageError(
            f"{manifest.folder} holds a mix in its order; its documents are in the shards it was made of"
        )
    places = []
    for shard, before in manifest.numbered:
        sealed = manifest.checksums[ledger_path(shard.prefix)]
        if shard.documents:
            place = ShardPlace(shard.prefix, sealed, shard.source, shard.split, before, shard.documents)
            places.append((shard, place))
    if not places:
        raise UsageError(f"{manifest.folder} holds no documents")
    return places


def check_request(request: Request, places: Sequence[tuple[Shard, ShardPlace]], tell: Teller) -> None:
    """UsageError for a name or a key that cannot be."""
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", request.name):
        raise UsageError(f"--name {request.name!r}: letters, digits and _, as it begins the name of a column")
    parent = annotations_folder(request.shards, request.name).parent
    for folder in (parent, parent / request.name):
        if folder.is_symlink():
            raise UsageError(
                f"{folder} is a link to another folder, where annotate would replace and delete files: make it a folder"
            )
    if not request.by or len(set(request.by)) != len(request.by) or set(request.by) <= set(OF_SHARD):
        raise UsageError("--by names what tells documents apart: id, hash, url, file,position or source,id")
    kept = {name: set(_kept(shard)) for shard, place in places for name in [place.source]}
    for column in request.by:
        if column in DOCUMENT:
            continue
        lacking = sorted(source for source, names in kept.items() if column not in names)
        if len(lacking) == len(kept):
            there = sorted(set().union(*kept.values()))
            raise UsageError(f"--by {column}: no ledger has it; kept is {', '.join(there) or 'nothing'}")
        if lacking:
            tell.notice(f"{', '.join(lacking)} kept no {column}: no row can be joined to their documents")


def _kept(shard: Shard) -> list[str]:
    return [name for name in ledger_schema(ledger_path(shard.prefix)).names if name not in SCHEMA.names]


def refuse_taken(
    request: Request, places: Sequence[tuple[Shard, ShardPlace]], others: Sequence[Annotations]
) -> Callable[[str], None]:
    """What raises UsageError for the name of a column that documents have already."""
    own = (*DOCUMENT, matched_column(request.name), "file_row_number", "pretok:file")
    taken = dict.fromkeys(own, "the view docs has")
    for shard, _ in places:
        taken |= dict.fromkeys(ledger_schema(ledger_path(shard.prefix)).names, "the ledgers have")
    for one in others:
        taken |= dict.fromkeys(one.columns, f"the annotations {one.name} have")
    lower = {name.lower(): where for name, where in taken.items()}  # SQL tells no case apart

    def refuse(name: str) -> None:
        if where := lower.get(name.lower()):
            raise UsageError(
                f"column {name}: {where} one of that name; rename it, or leave it out with --columns"
            )

    return refuse
