"""Hosts -> domains: what was read of each, and of those whose holders reserve text and data mining.

Input: the figures of sources that keep an address. Output: CSV with all registrable domains, or a part of the summary.
By the public suffix list `news.bbc.co.uk` and `bbc.co.uk` are one domain, `a.github.io` and `b.github.io` are two. The
list comes with the package publicsuffixlist; nothing is fetched.

A register is a CSV that a lab keeps: `domain,reserved_from`, with a line for each domain and the day from which its
holder reserves it. A line counts for all hosts of a registrable domain, or else for one host. If two lines count for a
host, it is the one with the earlier day. Removed documents have no address any more, so they are not counted.
"""

from __future__ import annotations

import csv
import io
import ipaddress
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow as pa

from pretok.base.errors import UsageError
from pretok.base.units import listed
from pretok.documents.disclosure.figures import AMOUNTS, Sums
from pretok.documents.disclosure.read import Extent, read_shards, read_steps
from pretok.documents.disclosure.summary import Section
from pretok.overview.history import read_run
from pretok.shards.manifest import SPLITS, Manifest

NO_ADDRESS = "no source keeps an address: keep a column `url`, or name it with --column domain=COLUMN"
COLUMNS = ["domain", "reserved_from"]
NAME = r"[\w-]+(?:\.[\w-]+)+"
SHOWN = 20
"""Wrong lines that a message lists."""
DomainOf = Callable[[str], str]
"""Host -> its domain."""


def domains_csv(figures: Sums) -> str:
    """Return a row for each registrable domain of what is `read`, largest first by bytes of documents.

    The last one, without a name, has the documents without an address. Raises UsageError if no source keeps an address,
    or if the library is not installed.
    """
    if not figures.has_column("read", "domain"):
        raise UsageError(NO_ADDRESS)
    _name_hosts(figures, registrable_domains())
    sums = ", ".join(f"sum({name})::BIGINT" for name in AMOUNTS)
    rows = figures.sql.execute(
        f"""SELECT name, {sums} FROM sums LEFT JOIN hosts USING (value) WHERE of = 'read' AND kind = 'domain'
        GROUP BY name ORDER BY name IS NULL, sum(document_bytes) DESC, name"""
    ).fetchall()
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([("domain", *AMOUNTS), *rows])
    return out.getvalue()


def _name_hosts(figures: Sums, of: DomainOf) -> None:
    """Make the table `hosts`: the domain (`name`) of each host (`value`) that was counted."""
    query = "SELECT DISTINCT value FROM sums WHERE kind = 'domain' AND value NOT NULL"
    hosts = [host for (host,) in figures.sql.execute(query).fetchall()]
    named = {"value": pa.array(hosts, pa.string()), "name": pa.array(map(of, hosts), pa.string())}
    figures.sql.register("hosts", pa.table(named))


def registrable_domains() -> DomainOf:
    """Return the function that gives the registrable domain of a host, or the host itself if it has none."""
    try:
        from publicsuffixlist import PublicSuffixList
    except ImportError:
        raise UsageError("this needs publicsuffixlist: pip install publicsuffixlist") from None
    suffixes = PublicSuffixList()

    def of(host: str) -> str:
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            return suffixes.privatesuffix(host) or host.lower()

    return of


def read_register(path: Path) -> dict[str, str]:
    """Return domain -> the day from which it is reserved. Raises UsageError that names every wrong line."""
    registrable = registrable_domains()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    if rows[:1] != [COLUMNS]:
        raise UsageError(f"{path}: the first line must be {','.join(COLUMNS)}")
    days: dict[str, str] = {}
    wrong = []
    for number, row in enumerate(rows[1:], 2):
        name, day = row if len(row) == 2 else ("", "")
        host = _host(name)
        is_suffix = registrable(f"a.{host}") == f"a.{host}"
        if row and (is_suffix or not re.fullmatch(NAME, name) or not _is_day(day)):
            wrong.append(f"line {number}: {','.join(row)}")
        elif row:
            days[host] = min(day, days.get(host, day))
    if wrong:
        raise UsageError(
            f"{path}: a line has a domain that is not a public suffix, and a day, as in example.org,2024-08-01: "
            f"{listed(wrong, SHOWN, '; ')}"
        )
    return days


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _host(name: str) -> str:
    """Return a host as hosts are compared: in lower case, other alphabets as DNS writes them."""
    name = name.lower().removeprefix("www.").rstrip(".")
    try:
        return name if name.isascii() else name.encode("idna").decode()
    except UnicodeError:
        return name


def reservation_of(register: dict[str, str]) -> DomainOf:
    """Return the function that maps a host to its line in the register; empty if there is none."""
    registrable = registrable_domains()

    def of(host: str) -> str:
        host = _host(host)
        names = [name for name in (host, registrable(host)) if name in register]
        return min(names, key=register.__getitem__, default="")

    return of


def count_reserved(
    manifest: Manifest, extent: Extent, figures: Sums, register: dict[str, str], run: Path | None
) -> Section:
    """Join a register with the shards.

    For each domain with documents in the shards or read from them, most tokens first:

        documents, tokens   in the shards now, in both splits
        read_...            in what the summary is about; null for shards
        later_...           of that, read on the day from which it is reserved, or after; null without a run

    no_address: in the shards, but without an address.

    figures: with `read`; the ledgers are read again for what the shards hold, and for each part of a run after a day of
    the register. Raises UsageError if no source keeps an address, IntegrityError, MismatchError.
    """
    for split in SPLITS:
        figures.add(split, read_shards(manifest, split))
    if not figures.has_column("train", "domain"):
        raise UsageError(NO_ADDRESS)
    _name_hosts(figures, reservation_of(register))
    rows = [
        {
            "name": name,
            "reserved_from": register[name],
            "since": _since(figures, manifest, run, register[name]),
        }
        for (name,) in figures.sql.execute("SELECT DISTINCT name FROM hosts WHERE name <> ''").fetchall()
    ]
    fields = ((name, pa.string()) for name in ("name", "reserved_from", "since"))
    figures.sql.register("reserved", pa.Table.from_pylist(rows, pa.schema(fields)))
    sums = {}
    for prefix, condition, known in (
        ("", "of IN ('train', 'val')", True),
        ("read_", "of = 'read'", extent.scope != "shards"),
        ("later_", "of = since", run is not None),
    ):
        for name in ("documents", "tokens"):
            counted = f"coalesce(sum({name}) FILTER ({condition}), 0)::BIGINT"
            sums[prefix + name] = counted if known else "NULL"
    result = figures.sql.execute(
        f"""SELECT name, reserved_from, {", ".join(f"{value} AS {name}" for name, value in sums.items())}
        FROM sums JOIN hosts USING (value) JOIN reserved USING (name) WHERE kind = 'domain'
        GROUP BY name, reserved_from ORDER BY tokens DESC, name"""
    )
    names = [column[0] for column in result.description]
    domains = [dict(zip(names, row, strict=True)) for row in result.fetchall()]
    without = [figures.amount(split, "domain", where="value IS NULL") for split in SPLITS]
    return {
        "registered": len(register),
        "domains": domains,
        "total": {
            name: None if value == "NULL" else sum(row[name] for row in domains)
            for name, value in sums.items()
        },
        "no_address_documents": sum(amount["documents"] for amount in without),
        "no_address_tokens": sum(amount["tokens"] for amount in without),
    }


def _since(figures: Sums, manifest: Manifest, run: Path | None, day: str) -> str | None:
    """Count what a run read from a day on, and return the name of these figures; None if it read nothing.

    A step has the day of its line of metrics.
    """
    metrics = read_run(run).metrics if run else []
    before = [line for line in metrics if line["time"] < day]
    if run is None or len(before) == len(metrics):
        return None
    done = max((int(line["step"]) for line in before), default=0)
    name = f"after step {done}" if done else "read"
    if name not in figures.sources:
        figures.add(name, read_steps(manifest, run, done))
    return name
