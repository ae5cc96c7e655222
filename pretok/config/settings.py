"""The settings: one frozen type for each table of a recipe, which says what a value may be.

Enters: tables as TOML gives them. Leaves: a Recipe; whatever is wrong whatever the inputs hold is refused here. `~` and
`$VAR` are expanded in every path, `$$` stands for a dollar sign.
"""

from __future__ import annotations

import os
import string
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from pretok.base.units import parse_count, parse_share, scaled
from pretok.read.kept import KeptColumn, parse_keep
from pretok.read.normalize import Normalization
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


def check_keep(keep: tuple[str, ...]) -> tuple[str, ...]:
    names = [parse_keep(text).name.lower() for text in keep]  # SQL does not tell upper from lower case
    for name in names:
        if name in LEDGER_NAMES:
            raise ValueError(
                f"the ledger itself has a column {name!r}; name the kept one otherwise: my_{name}={name}"
            )
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is kept twice")
    return keep


def _budget(value: Any) -> Any:
    """Tokens of a stage: a count, or `all`."""
    if value == "all":
        return value
    try:
        tokens = parse_count(value)
    except ValueError as error:
        raise ValueError(f"{error}; or write 'all'") from None
    if type(tokens) is not int or tokens < 1:
        raise ValueError(f"{value!r} is no budget; write tokens such as 300B, or 'all'")
    return tokens


def _proportions(value: Any) -> Any:
    """Weights of a stage that add up to 1, or `natural`."""
    if value == "natural":
        return value
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no table; write {{it = 0.9, en = 0.1}} or 'natural'")
    weights = {}
    for name, share in value.items():
        try:
            weights[name] = parse_share(share)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return scaled(weights)


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
    keep: Annotated[tuple[str, ...], AfterValidator(check_keep)] = ()
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
    size: Annotated[Count, Field(ge=257)] = 50_000
    pattern: str = "cl100k"
    special_tokens: tuple[str, ...] = DEFAULT_SPECIAL_TOKENS
    sample: Annotated[Share, Field(gt=0, le=1)] = Fraction(1)
    holdout: Annotated[Share, Field(ge=0, lt=1)] = Fraction(1, 100)
    seed: int = 0
    min_count: Annotated[int, Field(ge=1)] = 1
    weights: Annotated[dict[SourceName, Share], AfterValidator(lambda given: given and scaled(given))] = {}
    superwords: Annotated[int, Field(ge=0)] = 0
    superword_separators: Literal["space", "space+apostrophe", "space+apostrophe+comma"] = (
        "space+apostrophe+comma"
    )
    superword_words: Annotated[int, Field(ge=2)] = 4
    superword_sample: Annotated[Count, Field(gt=0)] = 2_000_000_000
    sizes: tuple[int, ...] = ()
    languages: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _names_its_eod(self) -> Self:
        if self.path is None and self.eod not in (None, *self.special_tokens[:1]):
            raise ValueError(
                f"eod is {self.eod!r}, but a vocabulary that is made here ends documents with its first special token; "
                "name the tokenizer that has it: path, or --vocab"
            )
        return self

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

    size: Annotated[Count, Field(ge=0)] = 0
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

    tokens: Annotated[int | Literal["all"], BeforeValidator(_budget)] = "all"
    weights: Annotated[dict[str, Fraction] | Literal["natural"], BeforeValidator(_proportions)] = "natural"

    @property
    def named(self) -> dict[str, Fraction]:
        """The weights by name; none where they are natural."""
        return {} if self.weights == "natural" else self.weights


class MixTable(StageTable):
    """[mix]: one stage, or several in `stages`."""

    seq_len: Annotated[int, Field(ge=1, lt=2**31)] = 4096
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    max_epochs: Annotated[Share, Field(gt=0)] = Fraction(4)
    cap: bool = False
    stages: tuple[StageTable, ...] = ()

    @property
    def all_stages(self) -> tuple[StageTable, ...]:
        """The stages, of which the table itself is one where it has no others."""
        return self.stages or (self,)

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.stages and (both := sorted(self.model_fields_set & StageTable.model_fields.keys())):
            raise ValueError(
                f"{' and '.join(both)} stand in each of its stages; take them out of [mix] itself"
            )
        for stage in self.all_stages:
            if stage.tokens != "all" and stage.tokens < self.seq_len:
                raise ValueError(
                    f"a budget of {stage.tokens} tokens holds no sequence of {self.seq_len} tokens"
                )
        return self


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

    @model_validator(mode="after")
    def _knows_its_sources(self) -> Self:
        mixed = {name for stage in self.mix.all_stages for name in stage.named} if self.mix else set()
        for table, names in (("vocab.weights", set(self.vocab.weights)), ("mix.weights", mixed)):
            if unknown := sorted(names - self.sources.keys()):
                raise ValueError(
                    f"{table} names {', '.join(unknown)}, but the sources are {', '.join(self.sources)}"
                )
        if self.vocab.weights and (left_out := sorted(self.sources.keys() - self.vocab.weights.keys())):
            raise ValueError(
                f"vocab.weights leaves out {', '.join(left_out)}; give each source a weight, 0 to count none of it"
            )
        return self

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
