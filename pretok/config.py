"""Recipes: TOML (or `NAME=GLOB` arguments) -> one validated, frozen Recipe.

Enters: a recipe file or command-line inputs. Leaves: a Recipe that every job reads its settings from. Unknown keys are
refused with the nearest known key named. `~` and `$VAR` are expanded in every path, `$$` stands for a dollar sign.
Relative paths start at the folder of the recipe; those of the command line start at the current folder.
"""

from __future__ import annotations

import difflib
import glob
import os
import string
import tomllib
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from pretok.base.errors import UsageError
from pretok.base.units import parse_count, parse_share
from pretok.read.kept import KeptColumn, parse_keep
from pretok.read.normalize import Normalization
from pretok.read.paths import HUB, SAMPLE, is_remote
from pretok.read.readers import RecordFormat

DEFAULT_SPECIAL_TOKENS = ("<|endoftext|>", "<|pad|>", *(f"<|reserved_{i}|>" for i in range(62)))
"""End of document, padding, and a block for later use; their ids are 0 to 63."""

Count = Annotated[int, BeforeValidator(parse_count)]
"""A whole number, or a string such as "1.2T", "300B", "64MiB"."""

LEDGER_NAMES = frozenset(
    (
        "file", "start", "record", "tokens", "bytes", "hash", "source", "split", "shard", "doc", "position",
        "duplicate_of", "contaminated_share", "contaminated_by", "file_row_number", "pretok:file",
    )
)  # fmt: skip
"""Columns that a row of a ledger has anyway, there, in the view of `pretok query` or while DuckDB makes that."""
LONGEST_NAME = 100
"""Bytes of a source's name: with what is added, the name of a temporary file too stays below the usual 255."""


def _safe_name(name: str) -> str:
    if not name or not all(c.isalnum() or c in "-_" for c in name) or not name[0].isalnum():
        raise ValueError(
            f"source name {name!r}: letters, digits, - and _ only; it becomes part of file names"
        )
    if name in ("rejects", "contamination", "annotations") or name.endswith("-val"):
        raise ValueError(f"source name {name!r} is reserved")
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"source name {name[:20]}...: {len(name.encode())} bytes, {LONGEST_NAME} at most")
    return name


def _expand(value: Any) -> Any:
    """A path with `~` and `$VAR` replaced; what is no path is left to the validation that follows."""
    if not isinstance(value, str | Path):
        return value
    try:
        path = os.path.expanduser(string.Template(str(value)).substitute(os.environ))  # noqa: PTH111 - also URLs
    except KeyError as missing:
        raise ValueError(f"{value}: the environment has no variable {missing.args[0]}") from None
    except ValueError:
        raise ValueError(f"{value}: a $ begins the name of a variable; write $$ for a dollar sign") from None
    if path.startswith("~"):
        raise ValueError(f"{value}: nobody's home folder; write ./{path} for a name that begins with ~")
    return path


def _check_keep(keep: tuple[str, ...]) -> tuple[str, ...]:
    names = [parse_keep(text).name.lower() for text in keep]  # SQL does not tell upper from lower case
    for name in names:
        if name in LEDGER_NAMES:
            raise ValueError(
                f"the ledger itself has a column {name!r}; name the kept one otherwise: my_{name}={name}"
            )
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is kept twice")
    return keep


SourceName = Annotated[str, AfterValidator(_safe_name)]
ExpandedPath = Annotated[Path, BeforeValidator(_expand)]
Input = Annotated[str, BeforeValidator(_expand)]
Share = Annotated[Fraction, BeforeValidator(parse_share)]


class Part(BaseModel):
    """Base of every recipe table: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Source(Part):
    """[sources.NAME]: one language or collection.

    inputs: paths, globs, URLs, `hub:ID[:CONFIG[:SPLIT]]` or `sample:it`; field: the text field or column, `data.text`
    where it is inside of another; separator: ends a document in plain text files ("" = one document a file);
    max_document: bytes of a record above which it is rejected; keep: fields that go into the ledger, each
    [NAME=]FIELD[:TYPE] with the type text, integer, float or boolean; on_mismatch: whether a value of another type is
    null there, or rejects its document.
    """

    inputs: tuple[Input, ...] = Field(min_length=1)
    format: Literal["auto", "jsonl", "parquet", "text"] = "auto"
    field: str = "text"
    separator: str = ""
    max_document: Annotated[Count, Field(gt=0)] = RecordFormat().max_document
    keep: Annotated[tuple[str, ...], AfterValidator(_check_keep)] = ()
    on_mismatch: Literal["null", "reject"] = "null"

    @property
    def record(self) -> RecordFormat:
        """How documents are found in this source."""
        return RecordFormat(self.field, self.separator, self.max_document)

    @property
    def kept(self) -> tuple[KeptColumn, ...]:
        """What is kept of each document."""
        return tuple(parse_keep(text) for text in self.keep)


class Normalize(Part):
    """[normalize]: what is changed in every document before vocabulary and encoding; nothing by default."""

    unicode: Literal["none", "nfc"] = "none"
    strip_bom: bool = False
    crlf: bool = False

    @property
    def function(self) -> Normalization:
        """The normalization these settings name."""
        return Normalization(self.unicode, self.strip_bom, self.crlf)


class Vocab(Part):
    """[vocab]: `path` takes an existing tokenizer, and `eod` names its end-of-document token if it does not; otherwise
    the rest says how to train one, whose first special token ends a document.

    size counts special tokens; sample: share of documents counted; holdout: share kept out of training for the report;
    min_count: words rarer than this are dropped at the end; weights: share of each source in the counts (empty: as on
    disk); superwords: how many of the entries are sequences of words, of at most superword_words words joined by
    superword_separators, trained on superword_sample bytes of text; sizes: smaller vocabularies to be written beside,
    whose merges are the first ones of the largest; languages: those whose letters the report looks at one by one.
    """

    path: ExpandedPath | None = None
    eod: str | None = None
    size: Annotated[int, Field(ge=257)] = 50_000
    pattern: str = "cl100k"
    special_tokens: tuple[str, ...] = DEFAULT_SPECIAL_TOKENS
    sample: Annotated[Share, Field(gt=0, le=1)] = Fraction(1)
    holdout: Annotated[Share, Field(ge=0, lt=1)] = Fraction(1, 100)
    seed: int = 0
    min_count: Annotated[int, Field(ge=1)] = 1
    weights: dict[SourceName, Share] = {}
    superwords: Annotated[int, Field(ge=0)] = 0
    superword_separators: Literal["space", "space+apostrophe", "space+apostrophe+comma"] = (
        "space+apostrophe+comma"
    )
    superword_words: Annotated[int, Field(ge=2)] = 4
    superword_sample: Annotated[Count, Field(gt=0)] = 2_000_000_000
    sizes: tuple[int, ...] = ()
    languages: tuple[str, ...] = ()

    @property
    def other_sizes(self) -> list[int]:
        """Sizes to be written beside the largest, largest first."""
        return sorted(set(self.sizes) - {self.size}, reverse=True)


class Shards(Part):
    """[shards]: size in bytes of token files (0: 1 GiB, less for small sources); val_fraction: share of documents held
    out for validation, chosen by a hash of the document; max_reject_share: a source of which a larger share of the
    records is rejected, in counting too, is made but ends the command with an error (what another setting refuses does
    not count, nor do blank lines); against: a folder of benchmark
    items as JSON Lines, of which documents that hold at least the share reject_contaminated are rejected;
    duplicates: what becomes of documents with the same text as an earlier one, which are told so or rejected."""

    size: Count = 0
    val_fraction: Annotated[Share, Field(ge=0, lt=1)] = Fraction(0)
    seed: int = 0
    max_reject_share: Annotated[Share, Field(ge=0, le=1)] = Fraction(1, 50)
    against: ExpandedPath | None = None
    reject_contaminated: Annotated[Share, Field(gt=0, le=1)] | None = None
    duplicates: Literal["keep", "mark", "drop"] = "keep"

    @model_validator(mode="after")
    def _has_benchmark(self) -> Self:
        if self.reject_contaminated is not None and self.against is None:
            raise ValueError("reject_contaminated needs a benchmark: against = FOLDER")
        return self


class StageTable(Part):
    """One stage of [mix]: so many tokens in these proportions."""

    tokens: Count | Literal["all"] = "all"
    weights: dict[SourceName, Share] | Literal["natural"] = "natural"


class MixTable(StageTable):
    """[mix]: one stage, or several in `stages`."""

    seq_len: int = 4096
    seed: int = 0
    max_epochs: Share = Fraction(4)
    cap: bool = False
    stages: tuple[StageTable, ...] = ()


class Recipe(Part):
    """A whole recipe. `train` and `slurm` hold what their programs read, unchecked here."""

    out: ExpandedPath
    sources: dict[SourceName, Source] = Field(min_length=1)
    normalize: Normalize = Normalize()
    vocab: Vocab = Vocab()
    shards: Shards = Shards()
    mix: MixTable | None = None
    train: dict[str, object] = {}
    slurm: dict[str, object] = {}

    @property
    def vocab_dir(self) -> Path:
        """Where the tokenizer is or will be."""
        return self.vocab.path or self.out / "vocab"

    @property
    def counts_dir(self) -> Path:
        """Where the counts of words go."""
        return self.out / "counts"

    @property
    def shards_dir(self) -> Path:
        """Where the shards go."""
        return self.out / "shards"

    @property
    def mix_path(self) -> Path:
        """Where the mix goes."""
        return self.out / "mix.json"


def load_toml(path: Path) -> dict[str, object]:
    """A recipe file as a mapping, not validated, its relative paths led to the recipe's folder.

    UsageError when it cannot be read or is not TOML.
    """
    try:
        return _anchor(tomllib.loads(path.read_text(encoding="utf-8")), path.parent)
    except FileNotFoundError:
        raise UsageError(f"recipe {path} does not exist") from None
    except OSError as error:
        raise UsageError(f"recipe {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"recipe {path} is not valid TOML: {error}") from None


def _anchor(data: dict[str, object], folder: Path) -> dict[str, object]:
    """A recipe whose relative paths start at the current folder instead of `folder`, which is that of its file."""

    def lead(value: Any, base: str) -> Any:
        if not isinstance(value, str) or not value or value.startswith(("/", "~", "$", HUB, SAMPLE)):
            return value  # a home or a variable begins no relative path
        return value if is_remote(value) else os.path.normpath(os.path.join(base, value))  # noqa: PTH118

    literal, escaped = (text.replace("$", "$$") for text in (str(folder), glob.escape(str(folder))))
    sources = data.get("sources")
    if "out" in data:
        data["out"] = lead(data["out"], literal)
    for name, key in (("vocab", "path"), ("shards", "against")):
        table = data.get(name)
        if isinstance(table, dict) and key in table:
            table[key] = lead(table[key], literal)
    for source in sources.values() if isinstance(sources, dict) else ():
        if isinstance(source, dict) and isinstance(source.get("inputs"), list):
            source["inputs"] = [lead(value, escaped) for value in source["inputs"]]
    return data


def load_recipe(path: Path) -> Recipe:
    """Read and validate a recipe. UsageError says what is wrong and where."""
    return make_recipe(load_toml(path), str(path))


def make_recipe(
    data: dict[str, object], origin: str, field: str | None = None, keep: Sequence[str] = ()
) -> Recipe:
    """Validate a recipe given as a mapping; `origin` is named in errors; `field`, `keep`: those of every source instead
    of its own."""
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        lines = [_explain(detail) for detail in error.errors()]
        raise UsageError(f"{origin}: " + "; ".join(lines)) from None
    changes: dict[str, object] = {}
    if field is not None:
        changes["field"] = field
    if keep:
        try:
            changes["keep"] = _check_keep(tuple(keep))
        except ValueError as error:
            raise UsageError(f"--keep: {error}") from None
    sources = {name: source.model_copy(update=changes) for name, source in recipe.sources.items()}
    return recipe.model_copy(update={"sources": sources})


def _explain(detail: Any) -> str:
    """One pydantic error as a sentence, with the nearest known key for an unknown one."""
    where = ".".join(str(part) for part in detail["loc"])
    if detail["type"] != "extra_forbidden":
        return f"{where}: {detail['msg'].removeprefix('Value error, ')}"
    table: type[Part] = Recipe
    for part in detail["loc"][:-1]:
        table = _TABLES.get(str(part), table)
    return unknown_key(where, table.model_fields)


def unknown_key(where: str, known: Iterable[str]) -> str:
    """A sentence for a key that is none of `known`, with the nearest of them; where: its dotted name."""
    names = sorted(known)
    near = difflib.get_close_matches(where.rpartition(".")[2], names, 1, 0.4)
    return f"unknown key {where} " + (
        f"(did you mean {near[0]}?)" if near else f"(known: {', '.join(names)})"
    )


_TABLES: dict[str, type[Part]] = {
    "sources": Source, "normalize": Normalize, "vocab": Vocab, "shards": Shards, "mix": MixTable, "stages": StageTable,
}  # fmt: skip


def parse_inputs(arguments: list[str]) -> dict[str, dict[str, list[str]]]:
    """`NAME=GLOB` arguments -> the `sources` table of a recipe; a repeated name adds inputs."""
    sources: dict[str, dict[str, list[str]]] = {}
    for argument in arguments:
        name, equals, pattern = argument.partition("=")
        if not equals or not name or not pattern:
            raise UsageError(
                f"{argument!r} is neither a recipe (.toml) nor NAME=GLOB, such as it='data/it/*.jsonl.zst'"
            )
        sources.setdefault(name, {"inputs": []})["inputs"].append(pattern)
    return sources
