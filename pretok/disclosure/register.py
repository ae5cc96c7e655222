"""A register of reservations, and what is read -> of each reserved domain what was held, read, refused and removed.

Input: a CSV that a lab keeps, `domain,reserved_from` and a line for each domain with the day from which its holder
reserves text and data mining; the shards, and the figures of what is read of them. Output: `Reservations`.

A row counts for all hosts of its domain where that is a registrable one, else for that one host. Where both are in the
register, the earlier day counts. What was removed has no address any more: only the reason of its removal can name it.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from pretok.base.errors import UsageError
from pretok.base.history import read_run
from pretok.base.units import listed
from pretok.disclosure.count import ReadFigures, count_sources
from pretok.disclosure.domains import NO_ADDRESS, by_host, registrable_domains
from pretok.disclosure.read import Extent, SourceReading, read_steps
from pretok.shards.manifest import Manifest
from pretok.shards.values import Sums

COLUMNS = ["domain", "reserved_from"]
NAME = r"[\w-]+(?:\.[\w-]+)+"
SHOWN = 20
"""Wrong lines that a message lists."""
NOTHING: Sums = (0, 0, 0, 0)
Registered = dict[str, str]
"""Domain -> the day from which it is reserved."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """Of one domain. documents, tokens: held in the shards now, in both splits; read: by what the summary is of; later:
    of that, on the day or after; refused, removed: by removals whose reason names the domain; removed_read: of that,
    by a run before it was removed. None: cannot be told."""

    name: str
    reserved_from: str
    documents: int
    tokens: int
    read_documents: int | None
    read_tokens: int | None
    later_documents: int | None
    later_tokens: int | None
    refused: int
    removed_documents: int
    removed_tokens: int
    removed_read_documents: int | None
    removed_read_tokens: int | None


@dataclass(frozen=True, slots=True)
class Reservations:
    """registered: lines of the register; domains: those of which there is anything, most tokens first; total: their
    sums; no_address: documents and tokens held that cannot be joined; removed_for_others: documents whose removal has a
    reason that names none of the domains, or several."""

    registered: int
    domains: tuple[Reserved, ...]
    total: dict[str, int | None]
    no_address_documents: int
    no_address_tokens: int
    removed_for_others: int


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
    figures: Sequence[ReadFigures],
    register: Registered,
    named: Mapping[str, str],
    mix: Path | None,
) -> Reservations:
    """Join the register with the shards. figures: of `extent`; named, mix: as they were given for these. Ledgers are
    read again for what the shards hold, and for each stretch of a run that a day of the register begins.

    Raises UsageError where no source keeps an address, IntegrityError, MismatchError.
    """
    of = reservation_of(register)
    columns = {kind: column for kind, column in named.items() if kind == "domain"}

    def joined(counted: Sequence[ReadFigures]) -> dict[str | None, Sums]:
        return by_host(counted, of).sums or {}

    train = Extent("shards", "train", {name: SourceReading() for name in manifest.sources})
    held = figures if extent.scope == "shards" else count_sources(manifest, train, columns)
    telling = [source.name for source in held if "domain" in source.values]
    if not telling:
        raise UsageError(NO_ADDRESS)
    validated = {name: SourceReading() for name in telling if manifest.sources[name].val.documents}
    validation = count_sources(manifest, Extent("shards", "val", validated), columns) if validated else []
    inside = joined([*held, *validation])
    read = None if extent.scope == "shards" else joined(figures)
    later = (
        None if extent.run is None else _later(manifest, extent, read or {}, register, columns, mix, joined)
    )
    removed, others = _removed(manifest, figures, of)
    refused = _refused(manifest, of)

    def one(name: str, day: str) -> Reserved:
        (documents, tokens), reading, after = (_two(sums, name) for sums in (inside, read, later))
        gone = removed.get(name, NOTHING)
        before = (None, None) if extent.run is None else gone[2:]
        return Reserved(
            name=name,
            reserved_from=day,
            documents=documents or 0,
            tokens=tokens or 0,
            read_documents=reading[0],
            read_tokens=reading[1],
            later_documents=after[0],
            later_tokens=after[1],
            refused=refused[name],
            removed_documents=gone[0],
            removed_tokens=gone[1],
            removed_read_documents=before[0],
            removed_read_tokens=before[1],
        )

    every = [one(name, day) for name, day in register.items()]
    amounts = [list(asdict(entry).items())[2:] for entry in every]
    domains = [e for e, sums in zip(every, amounts, strict=True) if any(value for _, value in sums)]
    total: dict[str, int | None] = {}
    for sums in amounts:
        for key, value in sums:
            total[key] = None if value is None else value + (total.get(key) or 0)
    now, empty = manifest.totals, manifest.totals.removed
    left = [now.documents, now.tokens]
    if empty is not None:
        left = [now.documents - empty.documents, now.tokens - empty.tokens]
    known = [sum(sums[n] for host, sums in inside.items() if host is not None) for n in (0, 1)]
    return Reservations(
        len(register),
        tuple(sorted(domains, key=lambda entry: (-entry.tokens, entry.name))),
        total,
        left[0] - known[0],
        left[1] - known[1],
        others,
    )


def _two(sums: Mapping[str | None, Sums] | None, name: str) -> tuple[int | None, int | None]:
    """Documents and tokens of a domain; None where they cannot be told."""
    if sums is None:
        return None, None
    documents, tokens, *_ = sums.get(name, NOTHING)
    return documents, tokens


def _later(
    manifest: Manifest,
    extent: Extent,
    read: dict[str | None, Sums],
    register: Registered,
    columns: Mapping[str, str],
    mix: Path | None,
    joined: Callable[[Sequence[ReadFigures]], dict[str | None, Sums]],
) -> dict[str | None, Sums]:
    """What a run read of each domain from its day on. A step is of the day of the line of metrics that has it."""
    assert extent.run is not None
    metrics = read_run(extent.run.folder).metrics
    found: dict[str | None, Sums] = {}
    since = {0: read, extent.run.steps: {}}
    for name, day in register.items():
        if name in read:
            done = max((int(line["step"]) for line in metrics if line["time"] < day), default=0)
            if done not in since:
                after = read_steps(manifest, extent.run.folder, mix, done)
                since[done] = joined(count_sources(manifest, after, columns))
            found[name] = since[done].get(name, NOTHING)
    return found


def _named_in(reason: str, of: Callable[[str], str]) -> str:
    """The domain that a reason names; empty for none or several."""
    names = {of(word) for word in re.findall(NAME, reason)} - {""}
    return names.pop() if len(names) == 1 else ""


def _removed(
    manifest: Manifest, figures: Sequence[ReadFigures], of: Callable[[str], str]
) -> tuple[dict[str, Sums], int]:
    """(of each domain documents and tokens removed, and those of them read before; documents removed for no domain)."""
    found: dict[str, Sums] = {}
    others = 0
    for removal in manifest.removals:
        name = _named_in(removal.reason, of)
        if not name:
            others += removal.documents
            continue
        read = [(source.removals.sums or {}).get(removal.at, NOTHING) for source in figures]
        sums = (removal.documents, removal.tokens, sum(one[0] for one in read), sum(one[1] for one in read))
        found[name] = tuple(map(sum, zip(found.get(name, NOTHING), sums, strict=True)))
    return found, others


def _refused(manifest: Manifest, of: Callable[[str], str]) -> Counter[str]:
    """Records of each domain that were refused because their text had been removed."""
    found: Counter[str] = Counter()
    for source, counts in manifest.sources.items():
        for reject in manifest.reject_lines(source) if counts.rejected.get("removed") else ():
            if reject["reason"] == "removed":
                found[_named_in(reject["detail"].partition(": ")[2], of)] += 1
    return found
