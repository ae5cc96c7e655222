"""The summary -> an SPDX 3.0.1 document of the data, as JSON-LD.

Input: the summary. Output: JSON. The data and each of its sources are a `DatasetPackage`; the values of the licence
column are related to the sources that have them. Unknown properties are left out. Format:
https://spdx.github.io/spdx-spec/v3.0.1
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from pretok.base.version import PRETOK_VERSION
from pretok.base.visible import visible_json
from pretok.documents.disclosure.summary import Section

CONTEXT = "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"


def spdx_document(summary: Section) -> str:
    """Return the document."""
    about, general = summary["about"], summary["general"]
    # The same data have the same names in every document.
    base = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(about, sort_keys=True)).urn
    model, provider = general["model"]["name"], general["provider"]["name"]
    graph: list[Section] = [
        {
            "type": "CreationInfo",
            "@id": "_:creation",
            "specVersion": "3.0.1",
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "createdBy": [f"{base}#maker"],
            "createdUsing": [f"{base}#pretok"],
        }
    ]

    def add(kind: str, anchor: str, **properties: Any) -> str:
        known = {key: value for key, value in properties.items() if value}
        graph.append({"type": kind, "spdxId": f"{base}#{anchor}", "creationInfo": "_:creation", **known})
        return f"{base}#{anchor}"

    def relate(kind: str, anchor: str, origin: str, others: Sequence[str]) -> None:
        if others:
            add("Relationship", anchor, relationshipType=kind, to=others, **{"from": origin})

    add("Tool", "pretok", name=f"pretok {PRETOK_VERSION}")
    maker = add("Organization", "maker", name=provider or "not stated")
    data = add(
        "dataset_DatasetPackage", "data", **_package(general, f"Training data of {model or 'a model'}")
    )
    graph[-1] |= {"originatedBy": [maker], "software_packageVersion": about["shards"]}
    licences: dict[str, str] = {}
    for source in summary["sources"]["sources"]:
        package = add(
            "dataset_DatasetPackage", f"source-{source['name']}", **_package(source, source["name"])
        )
        relate("contains", f"contains-{source['name']}", data, [package])
        listed = source["licences"]["listed"] if source["licences"] else []
        values = [row["value"] for row in listed if row["value"] is not None]
        for value in values:
            if value not in licences:
                texts = {"name": value, "simplelicensing_licenseText": value}
                licences[value] = add(
                    "simplelicensing_SimpleLicensingText", f"licence-{len(licences)}", **texts
                )
        relate(
            "hasDeclaredLicense", f"licences-{source['name']}", package, [licences[value] for value in values]
        )
    elements = [element["spdxId"] for element in graph[1:]]
    add("SpdxDocument", "document", rootElement=[data], element=elements)
    graph[-1]["profileConformance"] = ["core", "software", "dataset", "simpleLicensing"]
    text = json.dumps({"@context": CONTEXT, "@graph": graph}, ensure_ascii=False, indent=2)
    return visible_json(text) + "\n"


def _package(figures: Section, name: str) -> Section:
    """Return the properties of the whole, or of one source."""
    return {
        "name": name,
        "description": figures.get("description"),
        "comment": f"{figures['tokens']} tokens of {figures['documents']} documents",
        "software_primaryPurpose": "data",
        "dataset_datasetType": ["text"],
        "dataset_datasetSize": figures["document_bytes"],
        "dataset_dataCollectionProcess": figures.get("category"),
    }
