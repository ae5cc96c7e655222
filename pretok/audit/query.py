"""query: SQL over what shards know of themselves, by DuckDB.

Input: WORK (or its shards folder) and a query. Output: names of columns, and rows in batches. The views:

    docs     a row a document: the ledger of its shard (`pretok.shards.ledger`), its source, split, shard, `doc`: its
             number in the split, as `pretok inspect --doc` takes it, and `position`: line or row of `file`, from 1;
             `hash` in hexadecimal digits; then the columns that `pretok annotate` joined
    ledger   the same without what was joined
    shards   path, source, split, tokens, documents, text_bytes
    sources  source, tokens, documents, bytes, read, rejected
    rejects  source, file, position, reason, detail
    words    word, count, heldout: over all sources, where WORK holds counts

Nothing is copied or indexed: DuckDB reads the columns that a query names from the Parquet files themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pretok.base.console import Console
from pretok.base.errors import IntegrityError, UsageError
from pretok.base.sql import errors, parquet, path_list, quoted, told
from pretok.shards.annotations import Annotations, open_annotations, unknown_sources
from pretok.shards.documents import lines_of_source
from pretok.shards.ledger import REMOVED
from pretok.shards.manifest import Manifest, has_manifest, load_manifest
from pretok.shards.unfinished import refuse_unfinished

BATCH = 10_000
"""Rows that are fetched at a time."""
ROWS = "filename = 'pretok:file', file_row_number = true"
"""With what DuckDB reads the rows of our files: a kept column may be called `filename`."""


def run_query(work: Path, sql: str, console: Console) -> tuple[list[str], Iterator[list[tuple[Any, ...]]]]:
    """(names of the columns, batches of rows). Raises UsageError with what DuckDB says of a query it does not take, and
    IntegrityError; `console` hears why there are no documents, where the shards hold a mix."""
    import duckdb

    shards = work if has_manifest(work) else work / "shards"
    refuse_unfinished(shards)
    connection = duckdb.connect()
    # Nothing is fetched from a network behind anybody's back.
    connection.execute("SET autoinstall_known_extensions = false; SET enable_progress_bar = false")
    manifest = load_manifest(shards)
    try:
        with errors():
            _make_tables(connection, manifest)
            _make_docs(connection, manifest, console)
            _make_rejects(connection, manifest)
            _make_words(connection, work / "counts")
    except duckdb.Error as error:
        raise IntegrityError(f"{shards}: {told(error)}; see pretok verify") from None
    try:
        with errors():
            connection.execute(sql)
    except duckdb.CatalogException as error:
        if connection.extract_statements(sql)[0].type != duckdb.StatementType.SELECT:
            raise UsageError("pretok query only reads; it takes one SELECT") from None
        raise UsageError(f"{error}\nthe views are docs, ledger, shards, sources, rejects and words") from None
    except duckdb.Error as error:
        raise UsageError(
            f"{told(error)}\nthe views are docs, ledger, shards, sources, rejects and words; DESCRIBE docs"
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
        raise UsageError(told(error)) from None


def _make_tables(connection: Any, manifest: Manifest) -> None:
    """The views of what stands in the manifest."""
    entries = [
        {
            "path": str(shard.bin_path),
            "source": shard.source,
            "split": shard.split,
            "tokens": shard.tokens,
            "documents": shard.documents,
            "text_bytes": shard.text_bytes,
        }
        for shard in manifest.shards
    ]
    sources = [
        {
            "source": name,
            "tokens": counts.tokens,
            "documents": counts.documents,
            "bytes": counts.bytes,
            "read": counts.read,
            "rejected": sum(counts.rejected.values()),
        }
        for name, counts in manifest.sources.items()
    ]
    for name, rows in (("shards", entries), ("sources", sources)):
        _make_table(connection, name, rows)


def _make_table(connection: Any, name: str, rows: list[dict[str, Any]]) -> None:
    connection.register(f"{name}_arrow", pa.Table.from_pylist(rows))
    connection.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_arrow")


def _make_docs(connection: Any, manifest: Manifest, console: Console) -> None:
    if manifest.materialized is not None:
        console.notice(
            f"{manifest.folder} holds a mix in its order: there is no docs, documents are in the shards it was made of"
        )
        return
    files, paths = [], []
    for shard, before in manifest.numbered:
        paths.append(path := shard.ledger_path)
        named = {"source": shard.source, "split": shard.split, "shard": shard.prefix.name}
        files.append({"path": str(path), **named, "before": before})
        if not path.exists():
            raise IntegrityError(f"{path} is missing; see pretok verify")
    if not files:
        return
    _make_table(connection, "ledger_files", files)
    pieces = [
        {"source": name, "file": file, "start": start, "before": before}
        for name in manifest.tokenized
        for (file, start), before in lines_of_source(manifest, name).items()
        if before
    ]
    empty = {"source": "", "file": "", "start": 0, "before": 0}  # gives the columns their types
    _make_table(connection, "pieces", [*pieces, empty])
    joined = open_annotations(manifest)
    known = any(shard.removed for shard in manifest.shards)
    removed = "" if known else "".join(f", NULL::VARCHAR AS {name}" for name in REMOVED.names)
    connection.execute(
        f"""CREATE VIEW ledger AS
        SELECT f.source, f.split, f.shard, f.before + d.file_row_number AS doc, d.file,
            coalesce(p.before, 0) + d.record + 1 AS position, d.tokens, d.bytes, lower(hex(d.hash)) AS hash,
            d.* EXCLUDE (file, tokens, bytes, hash, "pretok:file", file_row_number){removed}
        FROM {parquet(paths, f"union_by_name = true, {ROWS}")} d
        JOIN ledger_files f ON f.path = d."pretok:file"
        LEFT JOIN pieces p ON p.source = f.source AND p.file = d.file AND p.start = d.start"""
    )
    _join_annotations(connection, manifest, joined, console)


def _join_annotations(
    connection: Any, manifest: Manifest, joined: list[Annotations], console: Console
) -> None:
    """The view docs: the ledgers and, beside them, what was joined to their documents."""
    parts = []
    for number, one in enumerate(joined):
        if unknown := unknown_sources(manifest, one):
            console.notice(f"the annotations {one.name} know nothing of {', '.join(unknown)}: null there")
        files = [
            {
                "path": str(one.folder / part.path),
                "source": part.source,
                "split": part.split,
                "before": part.first,
            }
            for part in one.record.parts
        ]
        _make_table(connection, f"joined_files_{number}", files)
        names = ", ".join(f'a."{name.replace(chr(34), chr(34) * 2)}"' for name in one.columns)
        paths = [one.folder / part.path for part in one.record.parts]
        parts.append(
            f"""LEFT JOIN (SELECT f.source, f.split, f.before + a.file_row_number AS doc, {names}
            FROM {parquet(paths, ROWS)} a
            JOIN joined_files_{number} f ON f.path = a."pretok:file") USING (source, split, doc)"""
        )
    connection.execute(f"CREATE VIEW docs AS SELECT * FROM ledger {' '.join(parts)}")


def _make_rejects(connection: Any, manifest: Manifest) -> None:
    parts = [
        f"SELECT {quoted(name)} AS source, * FROM read_json({path_list([path])}, format = 'newline_delimited', "
        "hive_partitioning = false, columns = "
        "{file: 'VARCHAR', position: 'BIGINT', reason: 'VARCHAR', detail: 'VARCHAR'})"
        for name in manifest.sources
        for path in manifest.rejects(name)
    ]
    nothing = "SELECT '' AS source, '' AS file, 0::BIGINT AS position, '' AS reason, '' AS detail WHERE false"
    connection.execute("CREATE VIEW rejects AS " + " UNION ALL ".join([nothing, *parts]))


def _make_words(connection: Any, counts: Path) -> None:
    if buckets := sorted(counts.glob("bucket-*.parquet")):
        connection.execute(
            "CREATE VIEW words AS SELECT decode(word) AS word, sum(count)::BIGINT AS count, "
            f"sum(heldout)::BIGINT AS heldout FROM {parquet(buckets)} "
            "GROUP BY decode(word)"
        )
