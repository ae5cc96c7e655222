"""A register of reservations, and what is read -> of each reserved domain what was held, read, refused and removed.

Input: a CSV that a lab keeps, `domain,reserved_from` and a line for each domain with the day from which its holder
reserves text and data mining; the shards, and the figures of what is read of them. Output: a part of the summary.

A row counts for all hosts of its domain where that is a registrable one, else for that one host. Where both are in the
register, the earlier day counts. What was removed has no address any more: only the reason of its removal can name it.
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
    """Read and check a register. UsageError names every line that is wrong."""
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
    """What is wrong with a line."""
    if len(row) != len(COLUMNS):
        return f"{len(row)} values where a domain and a day are wanted"
    domain, day = row
    below = f"a.{_host(domain)}"
    if not re.fullmatch(NAME, domain):
        return f"{domain!r} is no domain"
    if domain.lower().startswith("www."):
        return f"{domain!r}: write it without www., as addresses are counted"
    if registrable(below) == below:
        return f"{domain!r} is a public suffix, under which others have domains"
    if _host(domain) in found:
        return f"{domain!r} stands here twice"
    try:
        valid = date.fromisoformat(day).isoformat() == day
    except ValueError:
        valid = False
    return None if valid else f"{day!r} is no day such as 2024-08-01"


def _host(name: str) -> str:
    """As hosts are compared: small letters, those of other alphabets as DNS has them."""
    name = name.lower().removeprefix("www.").rstrip(".")
    if name.isascii():
        return name
    try:
        return name.encode("idna").decode()
    except UnicodeError:
        return name


def reservation_of(register: Registered) -> Callable[[str], str]:
    """The line that counts for a host; empty where there is none."""
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
    mix: Path | None,
) -> Record:
    """Join the register with the shards: of each domain of which there is anything, most tokens first,

        documents, tokens   held in the shards now, in both splits
        read_...            of what the summary is of
        later_...           of that, on the day from which it is reserved, or after
        refused             records whose text was removed by removals whose reason names the domain
        removed_...         by such removals; removed_read_...: of that, read by a run before

    null: cannot be told. no_address: held, and cannot be joined; removed_for_others: documents whose removal has a
    reason that names none of the domains, or several.

    figures: with what is `read`; ledgers are read again for what the shards hold, and for each stretch of a run that a
    day of the register begins. Raises UsageError where no source keeps an address, IntegrityError, MismatchError.
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
    removed, removed_read, others = _removed(manifest, figures, of)
    tables: dict[str, Mapping[str | None, Counter[str]] | None] = {
        "": held,
        "read_": read,
        "later_": _later(manifest, extent, figures, read or {}, register, run, mix, of) if run else None,
        "removed_": removed,
        "removed_read_": removed_read if run else None,
    }
    refused, every = _refused(manifest, of), []
    for name, day in register.items():
        row: Record = {"name": name, "reserved_from": day, "refused": refused[name]}
        for prefix, sums in tables.items():
            row |= {f"{prefix}{key}": None if sums is None else sums.get(name, NONE)[key] for key in KEYS}
        every.append(row)
    amounts = list(every[0])[2:] if every else []
    now, empty = manifest.totals, manifest.totals.removed
    known = sum((sums for host, sums in held.items() if host is not None), Counter[str]())
    return {
        "registered": len(register),
        "domains": sorted(
            (row for row in every if any(row[key] for key in amounts)),
            key=lambda row: (-row["tokens"], row["name"]),
        ),
        "total": {
            key: None if any(row[key] is None for row in every) else sum(row[key] for row in every)
            for key in amounts
        },
        "no_address_documents": now.documents - (empty.documents if empty else 0) - known["documents"],
        "no_address_tokens": now.tokens - (empty.tokens if empty else 0) - known["tokens"],
        "removed_for_others": others,
    }


def _later(
    manifest: Manifest,
    extent: Extent,
    figures: Figures,
    read: Mapping[str | None, Counter[str]],
    register: Registered,
    run: Path,
    mix: Path | None,
    of: Callable[[str], str],
) -> dict[str | None, Counter[str]]:
    """What a run read of each domain from its day on. A step is of the day of the line of metrics that has it."""
    assert extent.run is not None
    metrics = read_run(run).metrics
    found: dict[str | None, Counter[str]] = {}
    since: dict[int, Mapping[str | None, Counter[str]]] = {0: read, extent.run["steps"]: {}}
    for name, day in register.items():
        if name in read:
            done = max((int(line["step"]) for line in metrics if line["time"] < day), default=0)
            if done not in since:
                figures.add(f"after step {done}", read_steps(manifest, run, mix, done))
                since[done] = by_host(figures, (f"after step {done}",), of)
            found[name] = since[done].get(name, NONE)
    return found


def _named_in(reason: str, of: Callable[[str], str]) -> str:
    """The domain that a reason names; empty for none or several."""
    names = {of(word) for word in re.findall(NAME, reason)} - {""}
    return names.pop() if len(names) == 1 else ""


def _removed(
    manifest: Manifest, figures: Figures, of: Callable[[str], str]
) -> tuple[dict[str | None, Counter[str]], dict[str | None, Counter[str]], int]:
    """(of each domain what was removed, and what of it was read before; documents removed for no domain)."""
    removed: dict[str | None, Counter[str]] = {}
    before: dict[str | None, Counter[str]] = {}
    others = 0
    listed = figures.by_value("read", "removed")["listed"] if manifest.removals else []
    read = {row.pop("value"): Counter(row) for row in listed}
    for removal in manifest.removals:
        if name := _named_in(removal.reason, of):
            gone = Counter(documents=removal.documents, tokens=removal.tokens)
            removed.setdefault(name, Counter()).update(gone)
            before.setdefault(name, Counter()).update(read.get(removal.at, NONE))
        else:
            others += removal.documents
    return removed, before, others


def _refused(manifest: Manifest, of: Callable[[str], str]) -> Counter[str]:
    """Records of each domain that were refused because their text had been removed."""
    found: Counter[str] = Counter()
    for source, counts in manifest.sources.items():
        for reject in manifest.reject_lines(source) if counts.rejected.get("removed") else ():
            if reject["reason"] == "removed":
                found[_named_in(reject["detail"].partition(": ")[2], of)] += 1
    return found
