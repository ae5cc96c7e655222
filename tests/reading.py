"""Helpers of the tests that read inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pretok.read.files import CorruptInputError, InputFile
from pretok.read.format import Piece
from pretok.read.kept import KeptColumn
from pretok.read.readers import read_piece
from pretok.read.recognise import list_inputs
from pretok.read.record_format import RecordFormat


class Found(NamedTuple):
    """What a file holds."""

    texts: dict[int, str]
    """Line or row -> text."""
    rejects: dict[int, str]
    """Line or row -> reason."""
    error: str
    """Of the rest, which cannot be read."""
    kept: list[tuple[Any, ...]]
    """Kept values of each text."""


def inputs_of(*patterns: Path | str, declared: str = "auto") -> list[InputFile]:
    return list_inputs([*map(str, patterns)], declared)[0]


def read(
    path: Path | str, record: RecordFormat, declared: str = "auto", keep: Sequence[KeptColumn] = ()
) -> Found:
    """All of a file. Each record is a text or a reject, and batches follow on each other."""
    found, end = Found({}, {}, "", []), 0
    (file,) = inputs_of(path, declared=declared)
    try:
        for batch in read_piece(Piece(file), 0, record, keep):
            texts = dict(zip(batch.numbers.tolist(), batch.texts.to_pylist(), strict=True))
            rejects = {reject["record"]: reject["reason"] for reject in batch.rejects.to_pylist()}
            assert (
                len(texts.keys() | rejects.keys()) == len(batch.texts) + len(batch.rejects) == batch.records
            )
            assert all(end <= number < batch.end for number in (*texts, *rejects))
            found.texts.update(texts)
            found.rejects.update(rejects)
            found.kept.extend(zip(*(column.to_pylist() for column in batch.kept), strict=True))
            end = batch.end
    except CorruptInputError as error:
        return found._replace(error=str(error))
    return found


def lines_of(texts: Sequence[str]) -> bytes:
    """JSON Lines of these texts."""
    return b"".join(json.dumps({"text": text, "id": n}).encode() + b"\n" for n, text in enumerate(texts))


def warc_record(kind: str, payload: bytes, **headers: str) -> bytes:
    """A record of WARC. headers: with underscores for hyphens."""
    lines = {"WARC-Type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = {**lines, "Content-Type": "text/plain", "Content-Length": f"{len(payload)}"}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return b"WARC/1.0\r\n" + head.encode() + b"\r\n" + payload + b"\r\n\r\n"


def wet(texts: Sequence[str], pack: Callable[[bytes], bytes] = bytes) -> bytes:
    """A file as Common Crawl writes it, each record of which `pack` compresses by itself."""
    about = warc_record("warcinfo", b"Software-Info: x\r\nrobots: classic\r\n", WARC_Filename="a.warc.wet.gz")
    records = [
        warc_record(
            "conversion",
            text.encode(),
            WARC_Target_URI=f"http://example.org/{n}",
            WARC_Date=f"2026-01-01T00:00:{n % 60:02}Z",
            WARC_Record_ID=f"<urn:uuid:{n}>",
        )
        for n, text in enumerate(texts)
    ]
    return b"".join(map(pack, (about, *records)))


@contextmanager
def bounded(memory: int) -> Iterator[None]:
    """Fails where memory rises by more than this meanwhile."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is held now
    before = peak()
    yield
    assert peak() - before < memory


def peak() -> int:
    """Bytes of the most that this process has held."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10
