"""The files that are measured, all made from one folder of real text.

Input: CORPUS/{it,en}/*.jsonl.zst with `text` in each line. Output, in a work folder: the same documents as Parquet, as
one plain file, as one large .zst, as a slice for slow programs; a file with a 20 MB document; and a vocabulary.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

LANGUAGES = ("it", "en")
SLICE_STEP = 24
"""One document in so many is in the slice."""
LONG_DOCUMENT = 20_000_000
WORD = re.compile(r"[^\W\d_]{4,}")
COMMON = 2
"""How often a word occurs that is no rare one. 43 % of the corpus's words occur once; ten times as much of its text has
2.6 times as many words, an exponent of 0.42: a further 284 MB would bring as many new words as there are rare ones."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where the files are. `text_bytes`: UTF-8 text in the corpus, which every speed divides by."""

    folder: Path
    corpus: Path
    vocab: Path
    text_bytes: int
    slice_bytes: int

    @property
    def zst(self) -> dict[str, list[str]]:
        """The corpus as it is, by source."""
        return {
            name: [str(p) for p in sorted((self.corpus / name).glob("*.jsonl.zst"))] for name in LANGUAGES
        }

    @property
    def parquet(self) -> dict[str, list[str]]:
        """The same files as Parquet, zstd, 1,000 documents a row group."""
        return {name: [str(p) for p in sorted(self.folder.glob(f"{name}-*.parquet"))] for name in LANGUAGES}

    @property
    def plain(self) -> Path:
        """All documents in one uncompressed file."""
        return self.folder / "all.jsonl"

    @property
    def single(self) -> Path:
        """All documents in one .zst of one frame."""
        return self.folder / "all.jsonl.zst"

    @property
    def slices(self) -> list[Path]:
        """The slice, in two files of about the same size."""
        return [self.folder / "slice" / f"{i}.jsonl" for i in range(2)]

    @property
    def long(self) -> Path:
        """The Italian half with a document of 20 MB in its middle."""
        return self.folder / "long.jsonl.zst"

    def grown(self, times: int) -> dict[str, list[str]]:
        """The corpus, and so many times less one a copy of it in which the letters of rare words are turned: text that
        brings new words at about the rate at which the corpus still does at its end."""
        found = self.zst
        common: set[str] = set()
        for name, paths in self.zst.items():
            for copy in range(1, times):
                for path in map(Path, paths):
                    made = self.folder / "grown" / name / f"{copy:02d}-{path.name}"
                    if not made.exists():
                        common = common or _common_words(self.zst)
                        _turn_rare(path, made, common, copy)
                    found[name].append(str(made))
        return found


def _common_words(files: dict[str, list[str]]) -> set[str]:
    """Words that occur COMMON times or more."""
    counts: Counter[str] = Counter()
    for path in (path for paths in files.values() for path in paths):
        for text in texts_of(Path(path)):
            counts.update(WORD.findall(text))
    return {word for word, count in counts.items() if count >= COMMON}


def _turn_rare(path: Path, made: Path, common: set[str], by: int) -> None:
    """A copy of a file in which every word that is not common begins at another of its letters."""
    import zstandard

    def turned(match: re.Match[str]) -> str:
        word = match[0]
        start = 0 if word in common else 1 + (by - 1) % (len(word) - 1)
        return word[start:] + word[:start]

    made.parent.mkdir(parents=True, exist_ok=True)
    with zstandard.open(made, "wb") as file:
        for text in texts_of(path):
            file.write(json.dumps({"text": WORD.sub(turned, text)}, ensure_ascii=False).encode() + b"\n")


def find_corpus() -> Path:
    """PRETOK_CORPUS, or `shared/corpus` beside the checkout."""
    root = Path(__file__).parent.parent
    folder = Path(os.environ.get("PRETOK_CORPUS") or root.parent / "shared" / "corpus")
    if not (folder / "it").is_dir():
        sys.exit("no corpus: set PRETOK_CORPUS to a folder with it/*.jsonl.zst and en/*.jsonl.zst")
    return folder.resolve()


def prepare(folder: Path, vocab: Path | None) -> Inputs:
    """Make what is missing in `folder`; without `vocab`, one of 50,000 entries is trained."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    corpus = find_corpus()
    sizes = folder / "sizes.json"
    if not sizes.exists():
        sizes.write_text(json.dumps(_derive(corpus, folder)), encoding="utf-8")
    if vocab is None:
        vocab = folder / "vocab"
        if not (vocab / "tokenizer.json").exists():
            sources = [f"{name}={corpus / name}/*.jsonl.zst" for name in LANGUAGES]
            command = [sys.executable, "-m", "pretok", "build-vocab", *sources, "--out", str(folder)]
            subprocess.run([*command, "--workers", "0"], check=True)
    made = json.loads(sizes.read_text(encoding="utf-8"))
    return Inputs(folder, corpus, vocab.resolve(), made["text_bytes"], made["slice_bytes"])


def _lines(path: Path) -> list[bytes]:
    import zstandard

    with zstandard.open(path, "rb") as file:
        return file.read().splitlines(keepends=True)


def texts_of(path: Path) -> list[str]:
    """The text of each line of a compressed file."""
    return [json.loads(line)["text"] for line in _lines(path)]


def _derive(corpus: Path, folder: Path) -> dict[str, int]:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    inputs = Inputs(folder, corpus, folder, 0, 0)
    inputs.slices[0].parent.mkdir(exist_ok=True)
    text_bytes = slice_bytes = seen = 0
    italian: list[bytes] = []
    with (
        inputs.plain.open("wb") as plain,
        zstandard.open(inputs.single, "wb") as single,
        inputs.slices[0].open("wb") as first,
        inputs.slices[1].open("wb") as second,
    ):
        for name, paths in inputs.zst.items():
            for path in map(Path, paths):
                lines = _lines(path)
                texts = [json.loads(line)["text"] for line in lines]
                target = folder / f"{name}-{path.name.removesuffix('.jsonl.zst')}.parquet"
                pq.write_table(pa.table({"text": texts}), target, row_group_size=1000, compression="zstd")
                plain.writelines(lines)
                single.write(b"".join(lines))
                italian += lines if name == "it" else []
                for line, text in zip(lines, texts, strict=True):
                    size = len(text.encode())
                    text_bytes += size
                    if seen % SLICE_STEP == 0:
                        min(first, second, key=lambda file: file.tell()).write(line)
                        slice_bytes += size
                    seen += 1
    long_text = "\n".join(json.loads(line)["text"] for line in italian)[:LONG_DOCUMENT]
    italian.insert(len(italian) // 2, json.dumps({"text": long_text}, ensure_ascii=False).encode() + b"\n")
    with zstandard.open(inputs.long, "wb") as file:
        file.write(b"".join(italian))
    return {"text_bytes": text_bytes, "slice_bytes": slice_bytes}
