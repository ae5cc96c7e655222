"""The summary -> Croissant 1.1: JSON-LD that describes the ledgers as a data set, with the figures as its records.

Input: a manifest and the summary. Output: JSON. The files are the manifest and the ledgers, by paths relative to the
shards folder; the record set `docs` is their rows, `sources`, `languages`, `licences` and `domains` hold the figures
themselves. What no file knows (licence, address, publisher, date) is left out, as the format has no blanks.
Format: https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html
"""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa

from pretok.disclosure.figures import AMOUNTS
from pretok.disclosure.summary import Record
from pretok.shards.ledger import ledger_schema
from pretok.shards.manifest import FILE_NAME, LEDGER_SUFFIX, Manifest

TERMS = (
    *("arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field"),
    *("fileProperty", "fileObject", "fileSet", "format", "includes", "isArray", "isLiveDataset"),
    *("jsonPath", "key", "md5", "parentField", "path", "recordSet", "references"),
    *("regex", "repeated", "replace", "samplingRate", "separator", "source", "subField"),
    "transform",
)
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    **{term: f"cr:{term}" for term in TERMS},
}
"""The context of the format's version 1.1, which its readers compare."""
LEDGERS = "ledgers"
WHOLE = dict.fromkeys(AMOUNTS, "sc:Integer")


def croissant(manifest: Manifest, summary: Record) -> Record:
    """The JSON-LD."""
    general, about, sources = summary["general"], summary["about"], summary["sources"]
    what = {
        "shards": "all training documents once",
        "mix": "a mix of them",
        "run": "what a training run read",
    }
    order = f", order {about['mix']}" if about["mix"] else ""
    records = [_figures("sources", {"name": "sc:Text", **WHOLE, "epochs": "sc:Float"}, sources["sources"])]
    for name, part in (("languages", general), ("licences", general), ("domains", sources)):
        if part[name] and part[name]["listed"]:
            records.append(_figures(name, {"value": "sc:Text", **WHOLE}, part[name]["listed"]))
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": manifest.folder.parent.name if manifest.folder.name == "shards" else manifest.folder.name,
        "description": (
            f"Tokenized text, {what[about['scope']]}: {general['tokens']} tokens of {general['documents']} documents "
            f"in {len(sources['sources'])} sources. Shards {about['shards']}{order}."
        ),
        "distribution": _distribution(manifest),
        "recordSet": [*_documents(manifest), *records],
    }


def _distribution(manifest: Manifest) -> list[dict[str, Any]]:
    path = manifest.folder / FILE_NAME
    return [
        {
            "@type": "cr:FileObject",
            "@id": "manifest",
            "name": "manifest",
            "description": "What the shards are, with a checksum of every file.",
            "contentUrl": FILE_NAME,
            "encodingFormat": "application/json",
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        },
        {
            "@type": "cr:FileSet",
            "@id": LEDGERS,
            "name": LEDGERS,
            "description": "A row a document of each shard.",
            "encodingFormat": "application/x-parquet",
            "includes": f"*/*{LEDGER_SUFFIX}",
        },
    ]


def _documents(manifest: Manifest) -> list[dict[str, Any]]:
    """The record set of the ledgers' rows; none without a shard."""
    columns: dict[str, pa.DataType] = {}
    for shard in manifest.shards:
        columns |= {f.name: f.type for f in ledger_schema(shard.ledger_path)}
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"docs/{name}",
            "name": name,
            "dataType": _type(kind),
            "source": {"fileSet": {"@id": LEDGERS}, "extract": {"column": name}},
        }
        for name, kind in columns.items()
    ]
    return [{"@type": "cr:RecordSet", "@id": "docs", "name": "docs", "field": fields}] if fields else []


def _type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "sc:Boolean"
    if pa.types.is_integer(kind):
        return "sc:Integer"
    return "sc:Float" if pa.types.is_floating(kind) else "sc:Text"


def _figures(name: str, columns: dict[str, str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A record set that holds its records."""
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "field": [
            {"@type": "cr:Field", "@id": f"{name}/{column}", "name": column, "dataType": kind}
            for column, kind in columns.items()
        ],
        "data": [{f"{name}/{column}": row[column] for column in columns} for row in rows],
    }
