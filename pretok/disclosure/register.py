"""A register of reservations -> what the shards hold of each reserved domain, and what was read of it.

Input: a CSV that a lab keeps, `domain,reserved_from`, with a line for each domain and the day from which its holder
reserves text and data mining; the shards, and the figures of what is read of them. Output: a part of the summary.

A row counts for all hosts of a registrable domain, or else for that one host. If both are in the register, the earlier
day counts. Removed documents have no address any more, so they are not counted.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

from pretok.base.errors import UsageError
from pretok.base.history import read_run
from pretok.base.units import listed
from pretok.disclosure.domains import NO_ADDRESS, by_host, registrable_domains
from pretok.disclosure.figures import Figures
from pretok.disclosure.read import Extent, read_shards, read_steps
from pretok.disclosure.summary import Record
from pretok.shards.manifest import SPLITS, Manifest

COLUMNS = ["domain", "reserved_from"]
NAME = r"[\w-]+(?:\.[\w-]+)+"
SHOWN = 20
"""Wrong lines that a message lists."""
KEYS = ("documents", "tokens")
NONE = Counter[str]()
Registered = dict[str, str]
"""Domain -> the day from which it is reserved."""


def read_register(path: Path) -> Registered:
    """Read and check a register. Raises UsageError that names every wrong line."""
    registrable = registrable_domains()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    if not rows or rows[0][1] != COLUMNS:
        raise UsageError(f"{path}: the first line must be {','.join(COLUMNS)}")
    found: Registered = {}
    wrong = []
    for number, row in rows[1:]:
        if fault := _fault(row, found, registrable):
            wrong.append(f"line {number}: {fault}")
        else:
            found[_host(row[0])] = row[1]
    if wrong:
        raise UsageError(f"{path}: {listed(wrong, SHOWN, '; ')}")
    return found


def _fault(row: list[str], found: Registered, registrable: Callable[[str], str]) -> str | None:
    """Return what is wrong with a line."""
    if len(row) != len(COLUMNS):
        return f"{len(row)} values instead of a domain and a day"
    domain, day = row
    below = f"a.{_host(domain)}"
    if not re.fullmatch(NAME, domain):
        return f"{domain!r} is not a domain"
    if registrable(below) == below:
        return f"{domain!r} is a public suffix, under which others have domains"
    if _host(domain) in found:
        return f"{domain!r} appears twice"
    try:
        valid = date.fromisoformat(day).isoformat() == day
    except ValueError:
        valid = False
    return None if valid else f"{day!r} is not a day such as 2024-08-01"


def _host(name: str) -> str:
    """Return a host as hosts are compared: in lower case, other alphabets as DNS writes them."""
    name = name.lower().removeprefix("www.").rstrip(".")
    if name.isascii():
        return name
    try:
        return name.encode("idna").decode()
    except UnicodeError:
        return name


def reservation_of(register: Registered) -> Callable[[str], str]:
    """Return the line that counts for a host; empty if there is none."""
    registrable = registrable_domains()

    def of(host: str) -> str:
        host = _host(host)
        names = [name for name in (host, registrable(host)) if name in register]
        return min(names, key=register.__getitem__, default="")

    return of


def count_reserved(
    manifest: Manifest,
    extent: Extent,
    figures: Figures,
    register: Registered,
    run: Path | None,
) -> Record:
    """Join the register with the shards. For each domain of which there is anything, most tokens first:

        documents, tokens   in the shards now, in both splits
        read_...            in what the summary is about; null for shards
        later_...           of that, read on the day from which it is reserved, or after; null without a run

    no_address: in the shards, but without an address.

    figures: with `read`; the ledgers are read again for what the shards hold, and for each part of a run after a day of
    the register. Raises UsageError if no source keeps an address, IntegrityError, MismatchError.
    """
    of, splits = reservation_of(register), []
    for split in SPLITS:
        name = "read" if (extent.scope, extent.split) == ("shards", split) else split
        if name != "read":
            figures.add(name, read_shards(manifest, split))
        if not figures.tells(name, "domain"):
            raise UsageError(NO_ADDRESS)
        splits.append(name)
    held = by_host(figures, splits, of)
    read = by_host(figures, ("read",), of) if extent.scope != "shards" else None
    tables = {
        "": held,
        "read_": read,
        "later_": _later(manifest, extent, figures, read or {}, register, run, of) if run else None,
    }
    rows = [
        {"name": name, "reserved_from": day}
        | {
            f"{prefix}{key}": None if sums is None else sums.get(name, NONE)[key]
            for prefix, sums in tables.items()
            for key in KEYS
        }
        for name, day in register.items()
    ]
    amounts = [f"{prefix}{key}" for prefix in tables for key in KEYS]
    now, empty = manifest.totals, manifest.totals.removed
    known = sum((sums for host, sums in held.items() if host is not None), Counter[str]())
    return {
        "registered": len(register),
        "domains": sorted(
            (row for row in rows if any(row[key] for key in amounts)),
            key=lambda row: (-row["tokens"], row["name"]),
        ),
        "total": {
            prefix + key: None if sums is None else sum(row[prefix + key] for row in rows)
            for prefix, sums in tables.items()
            for key in KEYS
        },
        "no_address_documents": now.documents - (empty.documents if empty else 0) - known["documents"],
        "no_address_tokens": now.tokens - (empty.tokens if empty else 0) - known["tokens"],
    }


def _later(
    manifest: Manifest,
    extent: Extent,
    figures: Figures,
    read: Mapping[str | None, Counter[str]],
    register: Registered,
    run: Path,
    of: Callable[[str], str],
) -> dict[str | None, Counter[str]]:
    """Return what a run read of each domain from its day on. A step has the day of its line of metrics."""
    assert extent.run is not None
    metrics = read_run(run).metrics
    found: dict[str | None, Counter[str]] = {}
    since: dict[int, Mapping[str | None, Counter[str]]] = {0: read, extent.run["steps"]: {}}
    for name, day in register.items():
        if name in read:
            done = max((int(line["step"]) for line in metrics if line["time"] < day), default=0)
            if done not in since:
                figures.add(f"after step {done}", read_steps(manifest, run, done))
                since[done] = by_host(figures, (f"after step {done}",), of)
            found[name] = since[done].get(name, NONE)
    return found
