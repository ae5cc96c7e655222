"""The inputs of a sealed source as a table: how they were cut into pieces, and the records that each piece gave.

The table is the plan of the source (`read.source_plan`), first in the folder of unfinished work and then
`NAME.files.json` next to the shards. Each append has a table of its own, `NAME.1.files.json` and so on, whose
partitions are numbered after those before. The table is not in the manifest because every rank of a training reads
the manifest, which stays small whatever the number of inputs.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pretok.base.records import decode_record, replace
from pretok.base.storage import read_file
from pretok.base.tree import compare_root
from pretok.read.source_plan import SourcePlan
from pretok.shards.manifest import Manifest, inputs_name


def load_inputs(manifest: Manifest, source: str) -> SourcePlan:
    """Return the inputs of a source, with those of its appends. Raises IntegrityError if a table was changed."""
    parts = load_appends(manifest, source)
    return replace(parts[0], rows=tuple(row for part in parts for row in part.rows))


def load_appends(manifest: Manifest, source: str) -> list[SourcePlan]:
    """Return the inputs of a source and of each append. Raises IntegrityError."""
    sealed = {file.path: file.root for file in manifest.side_files if file.source == source}
    names = [inputs_name(source, append) for append in range(manifest.appends(source) + 1)]
    return [_load(manifest.folder / name, sealed[name]) for name in names]


@lru_cache(maxsize=4)
def _load(path: Path, root: str) -> SourcePlan:
    compare_root(path, root)
    return decode_record(SourcePlan, read_file(path), path)
