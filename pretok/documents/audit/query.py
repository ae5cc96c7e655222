"""query: SQL over documents, shards and rejects, by DuckDB.

Input: WORK (or its shards folder) and a query. Output: names of columns, and rows in batches. The views:

    documents  a row per document: the ledger of its shard (`pretok.shards.ledger`), its source, split, shard, `doc`
               (its number in the split, as for `pretok inspect --doc`) and `position` (line or row of `file`, from 1);
               `hash` in hexadecimal; then the columns that `pretok annotate` joined
    ledger     the same without joined columns
    shards     path, source, split, tokens, documents, text_bytes
    sources    source, tokens, documents, bytes, read, rejected
    rejects    source, file, position, reason, detail; before there are shards, those that counting found

Nothing is copied or indexed: DuckDB reads the columns that a query names from the Parquet files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pretok.base.console import Console
from pretok.base.errors import IntegrityError, UsageError
from pretok.base.sql import duckdb_message, errors, path_list, quoted
from pretok.read.rejects_file import ALL_REJECTS
from pretok.shards.annotations import open_annotations, unknown_sources
from pretok.shards.document_table import make_table, make_views
from pretok.shards.manifest import STATE, Manifest, has_manifest, load_manifest
from pretok.shards.unfinished import refuse_unfinished

BATCH = 10_000
"""Rows that are fetched at a time."""


def run_query(work: Path, sql: str, console: Console) -> tuple[list[str], Iterator[list[tuple[Any, ...]]]]:
    """Return (names of the columns, batches of rows).

    Raises UsageError with DuckDB's message for a wrong query, and IntegrityError. `console` shows why there are no
    documents if the shards hold a mix.
    """
    import duckdb

    shards = work if has_manifest(work) else work / "shards"
    early = [] if has_manifest(shards) else _early_rejects(work)
    if early:
        console.notice("there are no finished shards yet: only the view rejects, of what was read until now")
    else:
        refuse_unfinished(shards)
    connection = duckdb.connect()
    # DuckDB must not fetch extensions from the network.
    connection.execute("SET autoinstall_known_extensions = false; SET enable_progress_bar = false")
    manifest = None if early else load_manifest(shards)
    try:
        with errors():
            if manifest is None:
                _make_rejects(connection, early)
            else:
                _make_tables(connection, manifest)
                _make_docs(connection, manifest, console)
                rejects = [(name, path) for name in manifest.sources for path in manifest.rejects(name)]
                _make_rejects(connection, rejects)
    except duckdb.Error as error:
        raise IntegrityError(f"{shards}: {duckdb_message(error)}; see pretok verify") from None
    try:
        with errors():
            connection.execute(sql)
    except duckdb.Error as error:
        catalog = isinstance(error, duckdb.CatalogException)
        if catalog and connection.extract_statements(sql)[0].type != duckdb.StatementType.SELECT:
            raise UsageError("pretok query only reads; it takes one SELECT") from None
        views = "documents, ledger, shards, sources and rejects; DESCRIBE documents"
        raise UsageError(
            f"{duckdb_message(error)}\n"
            + (f"the views are {views}" if manifest else "before there are shards, the only view is rejects")
        ) from None
    return [column[0] for column in connection.description or ()], _rows(connection)


def _rows(connection: Any) -> Iterator[list[tuple[Any, ...]]]:
    import duckdb

    try:
        while True:
            with errors():
                rows = connection.fetchmany(BATCH)
            if not rows:
                return
            yield rows
    except duckdb.Error as error:
        raise UsageError(duckdb_message(error)) from None


def _make_tables(connection: Any, manifest: Manifest) -> None:
    """Make the views of the manifest."""
    named = ("source", "split", "tokens", "documents", "text_bytes")
    counted = ("tokens", "documents", "bytes", "read")
    shards = [
        {"path": f"{manifest.folder}/{shard.path}", **{name: getattr(shard, name) for name in named}}
        for shard in manifest.shards
    ]
    sources = [
        {
            "source": source,
            **{name: getattr(counts, name) for name in counted},
            "rejected": sum(counts.rejected.values()),
        }
        for source, counts in manifest.sources.items()
    ]
    for view, rows in (("shards", shards), ("sources", sources)):
        make_table(connection, view, rows)


def _make_docs(connection: Any, manifest: Manifest, console: Console) -> None:
    """Make the views ledger and documents, and report what they lack."""
    if manifest.materialized is not None:
        console.notice(
            f"{manifest.folder} holds a materialized mix without documents; they are in the shards it was made of"
        )
        return
    joined = open_annotations(manifest)
    for notes in joined:
        if unknown := unknown_sources(manifest, notes):
            console.notice(f"the annotations {notes.name} do not cover {', '.join(unknown)}: null there")
    make_views(connection, manifest, joined)


def _early_rejects(work: Path) -> list[tuple[str, Path]]:
    """Return (source, file) of the rejects of WORK without finished shards: of counts, else of empty sources."""
    counted = [(path.stem, path) for path in sorted((work / "counts" / "rejects").glob("*.jsonl"))]
    begun = sorted((work / "shards" / STATE).glob(f"*/{ALL_REJECTS}"))
    return counted or [(path.parent.name, path) for path in begun]


def _make_rejects(connection: Any, rejects: list[tuple[str, Path]]) -> None:
    parts = [
        f"SELECT {quoted(name)} AS source, * FROM read_json({path_list([path])}, format = 'newline_delimited', "
        "hive_partitioning = false, columns = "
        "{file: 'VARCHAR', position: 'BIGINT', reason: 'VARCHAR', detail: 'VARCHAR'})"
        for name, path in rejects
    ]
    nothing = "SELECT '' AS source, '' AS file, 0::BIGINT AS position, '' AS reason, '' AS detail WHERE false"
    connection.execute("CREATE VIEW rejects AS " + " UNION ALL ".join([nothing, *parts]))
