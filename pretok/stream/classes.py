"""Classes: predicates over the columns of documents -> side files with the documents of each class.

Input: a manifest, a source, and its classes as SQL expressions over the columns of `documents` (`pretok query`): the
ledger and what `pretok annotate` added. Output: the entries of a mix for these classes and for the rest of the source,
with their side files (`stream.tapes`) written. Later steps do not read a ledger.

DuckDB evaluates the expressions in windows of 65,536 documents, on one core, within its share of the memory and without
access to files. An expression concerns a single document: it cannot use other documents, the time or random numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pretok.base.errors import IntegrityError, UsageError
from pretok.base.sql import database, duckdb_message, errors
from pretok.base.storage import remove_leftovers
from pretok.base.tokens import Ints
from pretok.shards.annotations import open_annotations
from pretok.shards.document_table import OF_SHARD, scan
from pretok.shards.ledger import REMOVED, SCHEMA, ledger_schema
from pretok.shards.manifest import Manifest, Shard
from pretok.stream.mix_file import MixSource, behind, sequences
from pretok.stream.tapes import TapeWriter, shards_key

ROW = "pretok:row"
"""The column that keeps the order of rows."""
SCRATCH = 1 << 30
"""Bytes that DuckDB may write next to the side files."""


def parse_class(name: str, text: str) -> tuple[str, str]:
    """Parse `it where quality >= 0.8` into the source and the SQL condition on its documents. Raises UsageError."""
    parts = re.fullmatch(r"\s*(\S+)\s+where\s+(.*\S)\s*", text, re.IGNORECASE | re.DOTALL)
    if parts is None:
        raise UsageError(
            f"cannot read the class {name} = {text!r}; write SOURCE where CONDITION, as in it where quality >= 0.8"
        )
    return parts[1], parts[2]


def divide(
    manifest: Manifest,
    split: str,
    source: str,
    predicates: Mapping[str, str],
    folder: Path,
    seq_len: int,
    cuts: str,
    begin: int = 0,
) -> list[MixSource]:
    """Divide the documents of a source's split into its classes and, last, the rest, named like the source.

    The side files go to `folder`. begin: token of the source at which to start; earlier documents are divided already,
    and later classes may have any size. Raises UsageError (a predicate that cannot be evaluated, classes that overlap
    or hold less than a sequence), MismatchError (annotations of other documents), IntegrityError (a missing or damaged
    ledger).
    """
    shards = [pair for pair in manifest.numbered if (pair[0].source, pair[0].split) == (source, split)]
    shards = shards[-len(behind([shard for shard, _ in shards], begin)) :]
    names = [*predicates, source]
    folder.mkdir(parents=True, exist_ok=True)
    # The caller holds the lock of this folder, so what is unfinished there was left by a kill.
    remove_leftovers(folder)
    documents = np.zeros(len(names), np.int64)
    at = 0
    with ExitStack() as stack:
        writers = [stack.enter_context(TapeWriter(folder, f"{n}")) for n in range(len(names))]
        connection = stack.enter_context(database(folder / ".duckdb", 1, SCRATCH))
        for chosen, lengths in evaluated(connection, manifest, shards, predicates, (source,)):
            counts = chosen.sum(axis=0)
            address = at + np.cumsum(lengths) - lengths
            at += int(lengths.sum())
            for number, mask in enumerate((*chosen, counts == 0)):
                writers[number].append(address[mask], lengths[mask])
                documents[number] += mask.sum()
            # In each window, so that the first overlap ends the work.
            if len(again := np.flatnonzero(counts > 1)):
                who = " and ".join(
                    name for name, is_member in zip(predicates, chosen[:, again[0]], strict=True) if is_member
                )
                raise UsageError(
                    f"{who} overlap: each of them would read the same documents of {source}; write conditions that "
                    "exclude each other"
                )
        sizes = [sequences(writer.tokens, seq_len, cuts) for writer in writers]
        if not begin and not all(sizes[:-1]):
            empty = sizes.index(0)
            raise UsageError(
                f"{names[empty]} has {documents[empty]:,} documents with {writers[empty].tokens:,} tokens, less than "
                f"one sequence of {seq_len} + 1: change the condition ({predicates[names[empty]]})"
            )
        about = {"shards": len(shards), "indexes": shards_key([shard for shard, _ in shards])}
        tapes = [
            writer.seal(about | {"members": members})
            for writer, members in zip(writers, documents.tolist(), strict=True)
        ]
        return [
            MixSource(name, writer.tokens, size, source, tape, begin=begin)
            for name, writer, size, tape in zip(names, writers, sizes, tapes, strict=True)
        ]


def evaluated(
    connection: Any,
    manifest: Manifest,
    shards: Sequence[tuple[Shard, int]],
    predicates: Mapping[str, str],
    sources: Collection[str],
    what: str = "class ",
) -> Iterator[tuple[npt.NDArray[np.bool_], Ints]]:
    """Yield which predicates hold for each document, (predicates, n) bool, and the tokens of each, (n,).

    One window at a time, in the order of the shards. sources: those whose columns exist, in all their shards. what:
    word before each name in a message. Raises UsageError, MismatchError, IntegrityError.
    """
    joined = open_annotations(manifest)
    own = [shard for shard in manifest.shards if shard.source in sources]
    schemas = [SCHEMA, *(ledger_schema(shard.ledger_path) for shard in own), REMOVED]
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    types = {name: schema.field(name).type for name in schema.names}
    types |= dict.fromkeys(OF_SHARD, pa.string()) | dict.fromkeys(("doc", "position"), pa.int64())
    for notes in joined:
        types |= notes.types
    # Read only columns whose names occur in a predicate. In SQL a quote within a quoted name is doubled.
    text = "\n".join(predicates.values()).lower()
    columns = [
        "tokens",
        *(name for name in types if name != "tokens" and name.lower() in text.replace('""', '"')),
    ]
    empty = pa.table({name: pa.array([], types[name]) for name in types})
    hashed = " REPLACE (lower(hex(hash)) AS hash)"
    _check(connection, empty, predicates, hashed, sorted(types), what)
    seen = Counter[str]()
    for shard, _, batch in scan(manifest, columns, shards, joined):
        arrays = [array.cast(types[name]) for name, array in zip(columns, batch.columns, strict=True)]
        table = pa.table([*arrays, pa.array(np.arange(len(batch)))], names=[*columns, ROW])
        chosen = _run(connection, table, predicates, hashed if "hash" in columns else "", what)
        lengths = np.asarray(batch["tokens"]).astype(np.int64)
        seen[shard.path] += int(lengths.sum())
        yield chosen, lengths
    for shard, _ in shards:
        if seen[shard.path] != shard.tokens:
            raise IntegrityError(
                f"{shard.ledger_path} lists {seen[shard.path]} tokens, but its shard has {shard.tokens}; run "
                "pretok verify"
            )


def _check(
    connection: Any, empty: Any, predicates: Mapping[str, str], hashed: str, columns: Sequence[str], what: str
) -> None:
    """Raise UsageError for anything but a condition on the columns of one document.

    From here on DuckDB cannot access anything else, and its settings are locked.
    """
    import duckdb

    connection.register("rows", empty)
    with errors():
        connection.execute(f"CREATE TABLE checked AS SELECT *{hashed} FROM rows")
        connection.execute("SET enable_external_access = false; SET lock_configuration = true")
    connection.unregister("rows")
    for name, predicate in predicates.items():
        try:
            with errors():
                # DuckDB indexes only expressions that depend on a single row: no other query, aggregate, window
                # function, time or random number.
                connection.execute(f'CREATE INDEX "{name}" ON checked (tokens, (({predicate}\n)))')
                kind = connection.execute(f"DESCRIBE SELECT ({predicate}\n) FROM checked").fetchall()[0][1]
        except duckdb.Error as error:
            said = duckdb_message(error).partition("\n\nLINE ")[
                0
            ]  # the rest quotes our query, not the user's
            raise UsageError(
                f"{what}{name}: {said}\nthe columns are {', '.join(columns)}; a condition may use only these"
            ) from None
        if kind != "BOOLEAN":
            raise UsageError(f"{what}{name}: {predicate!r} is {kind}, not a condition that is true or false")


def _run(
    connection: Any, table: Any, predicates: Mapping[str, str], hashed: str, what: str
) -> npt.NDArray[np.bool_]:
    """Return for each predicate and row whether it holds, (predicates, n) bool; null counts as false."""
    import duckdb

    wanted = ", ".join(f"coalesce(({p}\n), false) AS c{n}" for n, p in enumerate(predicates.values()))
    connection.register("rows", table)
    try:
        with errors():
            columns = connection.execute(
                f'SELECT {wanted} FROM (SELECT *{hashed} FROM rows) ORDER BY "{ROW}"'
            ).fetchnumpy()
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        asked = ", ".join(f"{what}{name} where {predicate}" for name, predicate in predicates.items())
        raise UsageError(f"{asked}: {duckdb_message(error)}") from None
    finally:
        connection.unregister("rows")
    return np.array([np.asarray(column, np.bool_) for column in columns.values()])
