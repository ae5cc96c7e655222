"""The files that are measured, all made from one folder of real text when they are first asked for.

Input: CORPUS/{it,en}/*.jsonl.zst with `text` in each line. Output, in a work folder: the same documents as Parquet, as
one plain file, as a slice for slow programs, as shards; and a vocabulary.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

LANGUAGES = ("it", "en")
SLICE = 24
"""One document in this many is in the slice."""


@dataclass(frozen=True)
class Inputs:
    """What a benchmark gets. folder: where it may write; given: a folder with a tokenizer.json, None to train one of
    50,000 entries; scale: a number in proportion to which all sizes are chosen, 1 for those of the reported figures;
    runs: how often each case is measured; gigabytes: of text of the long job."""

    folder: Path
    given: Path | None = None
    scale: float = 1
    runs: int = 3
    gigabytes: float = 15

    def scaled(self, number: int) -> int:
        """A size for this scale."""
        return max(1, round(number * self.scale))

    @cached_property
    def zst(self) -> dict[str, list[str]]:
        """The files of the corpus by source: PRETOK_CORPUS, or `shared/corpus` beside the checkout."""
        near = Path(__file__).parents[2] / "shared" / "corpus"
        corpus = Path(os.environ.get("PRETOK_CORPUS") or near).resolve()
        files = {name: sorted(map(str, (corpus / name).glob("*.jsonl.zst"))) for name in LANGUAGES}
        if not all(files.values()):
            sys.exit("no corpus: set PRETOK_CORPUS to a folder with it/*.jsonl.zst and en/*.jsonl.zst")
        return {name: paths[: self.scaled(len(paths))] for name, paths in files.items()}

    @property
    def arguments(self) -> list[str]:
        """The corpus as arguments of a command."""
        return [f"{name}={path}" for name, paths in self.zst.items() for path in paths]

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a source."""
        import zstandard

        for path in self.zst[name]:
            with zstandard.open(path, "rb") as file:
                yield from file.read().splitlines(keepends=True)

    def texts(self, name: str) -> list[str]:
        """The documents of a source."""
        return [json.loads(line)["text"] for line in self.lines(name)]

    @cached_property
    def vocab(self) -> Path:
        """The folder of the vocabulary."""
        if self.given is None and not (self.folder / "vocab" / "tokenizer.json").exists():
            self._pretok("build-vocab", *self.arguments, "--out", str(self.folder))
        return (self.given or self.folder / "vocab").resolve()

    @cached_property
    def shards(self) -> Path:
        """The corpus, tokenized."""
        out = self.folder / "tokenized"
        self._pretok("tokenize", *self.arguments, "--vocab", str(self.vocab), "--out", str(out))
        return out / "shards"

    def _pretok(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pretok", "--quiet", *arguments, "--workers", "0"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    @cached_property
    def parquet(self) -> dict[str, list[str]]:
        """One file for each source, zstd, 1,000 documents a row group."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for name in LANGUAGES:
            table = pa.table({"text": self.texts(name)})
            path = self.folder / f"{name}.parquet"
            pq.write_table(table, path, row_group_size=1000, compression="zstd")
        return {name: [str(self.folder / f"{name}.parquet")] for name in LANGUAGES}

    @cached_property
    def plain(self) -> Path:
        """All documents in one uncompressed file."""
        path = self.folder / "all.jsonl"
        with path.open("wb") as file:
            for name in LANGUAGES:
                file.writelines(self.lines(name))
        return path

    def slice(self, step: int) -> Path:
        """A folder with one document in `step`, in two files of about the same size."""
        folder = self.folder / f"slice-{step}"
        folder.mkdir(exist_ok=True)
        with (folder / "0.jsonl").open("wb") as first, (folder / "1.jsonl").open("wb") as second:
            for name in LANGUAGES:
                for line in list(self.lines(name))[::step]:
                    min(first, second, key=lambda file: file.tell()).write(line)
        return folder


def text_bytes(*paths: Path) -> int:
    """Bytes of text in files of JSON Lines."""
    return sum(
        len(json.loads(line)["text"].encode()) for path in paths for line in path.read_bytes().splitlines()
    )
