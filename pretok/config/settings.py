"""The settings: one frozen type for each table of a recipe.

Each field states its type, default, limits, help, example, and the keys that it needs or excludes.

Input: tables as TOML gives them. Output: a Recipe. Every mistake that can be seen without reading the inputs is refused
here. `~` and `$VAR` are expanded in every path, `$$` stands for a dollar sign. The options of commands, docs/recipe.md
and `pretok init` are made from these fields (`config.keys`).
"""

from __future__ import annotations

import datetime
import glob
import os
import string
from difflib import get_close_matches
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

from pretok.base.records import replace
from pretok.base.units import parse_count, parse_length, parse_share, scaled
from pretok.read.paths import SAMPLE, is_remote
from pretok.read.record_format import FormatName
from pretok.tokenizer.kinds import CHAT_KINDS

if TYPE_CHECKING:
    from pretok.chat.limits import TemplateLimits
    from pretok.read.kept import KeptColumn
    from pretok.read.normalize import Normalization
    from pretok.read.record_format import RecordFormat, TokenFiles

DEFAULT_SPECIAL_TOKENS = ("<|endoftext|>", "<|pad|>", *(f"<|reserved_{i}|>" for i in range(62)))
"""End of document, padding, and a block for later use; their ids are 0 to 63."""
CHATML = "chatml"
"""The value of `chat_template` that names the template of pretok instead of a file."""

LONGEST_NAME = 100
"""Bytes of a source's name: with what is added, the name of a temporary file too stays below the usual 255."""


def _safe_name(name: str) -> str:
    if not name or not all(c.isalnum() or c in "-_" for c in name) or not name[0].isalnum():
        raise ValueError(f"source name {name!r}: use only letters, digits, - and _")
    if name in ("rejects", "contamination", "annotations") or name.endswith("-val"):
        raise ValueError(f"source name {name!r} is reserved")
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"source name {name[:20]}...: {len(name.encode())} bytes, {LONGEST_NAME} at most")
    return name


def _expand(value: Any, info: ValidationInfo) -> Any:
    """Replace `~` and `$VAR` in a path, and let a relative one start at the folder of its recipe.

    A Path stays as it is: on a command line the shell has expanded it, unless it was quoted. Validation refuses
    anything but paths.
    """
    if not isinstance(value, str):
        return str(value) if isinstance(value, Path) else value
    try:
        path = os.path.expanduser(string.Template(value).substitute(os.environ))  # noqa: PTH111 - also URLs
    except (KeyError, ValueError):
        raise ValueError(
            f"{value}: $ does not begin an environment variable; write $$ for a dollar sign"
        ) from None
    if path.startswith("~"):
        raise ValueError(f"{value}: nobody's home folder; write ./{path} for a name that begins with ~")
    if (
        info.context is None
        or path in ("", CHATML)
        or path.startswith(("/", "**/", SAMPLE))
        or is_remote(path)
    ):
        return path
    folder = str(info.context)
    start = glob.escape(folder) if info.field_name == "inputs" else folder
    whole = os.path.join(start, path)  # noqa: PTH118 - also patterns
    # `..` of a symbolic link is the folder that holds its target, not the link.
    linked = ".." in path.split("/") and os.path.realpath(folder) != os.path.abspath(folder)  # noqa: PTH100
    return whole if linked else os.path.normpath(whole)


def _check_keep(keep: tuple[str, ...]) -> tuple[str, ...]:
    from pretok.read.kept import LEDGER_NAMES, TYPES, parse_keep

    columns = [parse_keep(text) for text in keep]
    names = [column.name.lower() for column in columns]  # names in SQL ignore case
    for name, column in zip(names, columns, strict=True):
        kind = column.field.rpartition(":")[2]
        if kind != column.field and (near := get_close_matches(kind, TYPES, 1)):
            raise ValueError(f"{column.field!r} has no type {kind!r}; did you mean {near[0]}?")
        if name in LEDGER_NAMES:
            raise ValueError(
                f"the ledger itself has a column {name!r}; name the kept one otherwise: my_{name}={column.field}"
            )
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is kept twice; name one otherwise: my_{name}={column.field}")
    return keep


def _budget(value: Any) -> Any:
    """Parse the tokens of a stage: a count, or `all`."""
    if value == "all":
        return value
    try:
        tokens = parse_count(value)
    except ValueError as error:
        raise ValueError(f"{error}; or write 'all'") from None
    if type(tokens) is not int or tokens < 1:
        raise ValueError(f"{value!r} is not a budget; write tokens such as 300B, or 'all'")
    return tokens


# A text in Annotated is the name of the type on the page of all keys; pydantic ignores it.
SourceName = Annotated[str, AfterValidator(_safe_name)]
ExpandedPath = Annotated[Path, BeforeValidator(_expand), "path"]
Input = Annotated[str, BeforeValidator(_expand), "path or glob"]
ChatTemplate = Annotated[str, BeforeValidator(_expand), f'path or "{CHATML}"']
Inputs = Annotated[tuple[Input, ...], Field(min_length=1)]
Fields = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
    Field(min_length=1),
    "text or list of text",
]
Keep = Annotated[tuple[str, ...], AfterValidator(_check_keep)]
Token = Annotated[str, Field(min_length=1), "text"]
Count = Annotated[int, BeforeValidator(parse_count), "count"]
"""A whole number, or a string such as "1.2T", "300B", "64MiB"."""
Length = Annotated[int, BeforeValidator(parse_length), "count"]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""For XXH64, whose seeds are not negative."""
Share = Annotated[Fraction, BeforeValidator(parse_share), "share"]
Weights = Annotated[
    dict[SourceName, Share],
    BeforeValidator(lambda given: {} if given == "natural" else given),
    AfterValidator(lambda given: given and scaled(given)),
    'table of shares or "natural"',
]
"""Shares that add up to 1; empty for `natural`."""
WEIGHTS_HELP = "Share of each source. Default: `natural`, by size."
Repeats = dict[SourceName, Annotated[Share, Field(gt=0)]]
Budget = Annotated[int | Literal["all"], BeforeValidator(_budget), 'count or "all"']


def key(
    default: Any, text: str, example: Any = None, *, needs: str = "", excludes: str = "", **limits: Any
) -> Any:
    """Declare a field of a table.

    default: `...` for a key that must be given. text: the help, one sentence or two. example: a value to show if there
    is no default. needs: other keys, separated by spaces, one of which must be given too; excludes: those that cannot
    be given too. limits: those of pydantic's Field, such as ge, lt, min_length.
    """
    others = {"needs": needs.split(), "excludes": excludes.split()}
    examples = None if example is None else [example]
    return Field(default, description=text, examples=examples, json_schema_extra=others, **limits)  # type: ignore[arg-type]


class SettingsTable(BaseModel):
    """Base of every table of a recipe. It is frozen and refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, validate_default=True
    )

    @model_validator(mode="after")
    def _are_consistent(self) -> Self:
        """Refuse keys that need or exclude others."""
        given = [
            name for name in type(self).model_fields if name in self.model_fields_set and getattr(self, name)
        ]
        for name in given:
            others: Any = type(self).model_fields[name].json_schema_extra or {"needs": [], "excludes": []}
            if others["needs"] and not set(others["needs"]) & set(given):
                raise ValueError(f"{name} needs {' or '.join(others['needs'])}")
            if clash := [other for other in others["excludes"] if other in given]:
                raise ValueError(f"{name} and {' and '.join(clash)} exclude each other; give one of them")
        return self


class Tokens(SettingsTable):
    """[sources.NAME] tokens: files of token ids instead of text, and the tokenizer that made them."""

    tokenizer: ExpandedPath = Field(...)
    eod: Token | None = None
    bos: Token | None = None
    dtype: Literal["", "uint16", "uint32", "int32"] = ""

    @cached_property
    def files(self) -> TokenFiles:
        """How the ids are read. Reads the tokenizer; raises UsageError if its ids cannot be decoded to text."""
        from pretok.read.record_format import TokenFiles
        from pretok.tokenizer.vocabulary import load_vocab

        vocab = load_vocab(self.tokenizer, self.eod, self.bos, decode_only=True)
        bos = vocab.bos_id
        if bos is None and (name := vocab.role("bos_token")) and vocab.added_tokens.get(name) != vocab.eod_id:
            bos = vocab.added_tokens.get(name)
        return TokenFiles(str(vocab.path), vocab.fingerprint, vocab.eod_id, bos, self.dtype)


class Append(SettingsTable):
    """[[sources.NAME.append]]: more inputs for a source that is tokenized, read as the others are."""

    inputs: Inputs = key(..., "More inputs.")


class Source(SettingsTable):
    """[sources.NAME]: one language or collection."""

    inputs: Inputs = key(..., "Files, folders, globs, URLs, or `sample:it`.", ["data/it/*.jsonl.zst"])
    exclude: tuple[str, ...] = key((), "Globs of files to leave out.", ["**/part-0731*"])
    format: Literal["auto", FormatName] = key("auto", "`auto` looks into the files.")
    field: Fields = key(
        "text", "Field with the text, such as `data.text`; of several, the first that a file has."
    )
    messages: str = key("", "Field with the messages of a conversation.", "messages", excludes="field")
    template: str = key("", "Joins fields into one text.", "{question}\n{answer}", excludes="field messages")
    learn: tuple[str, ...] = key(
        (),
        "Tokens that contribute to the loss. Default: the assistant's; with `template`, all fields.",
        ["answer", "tool call"],
        needs="messages template",
    )
    chat_template: ChatTemplate = key(
        "", "A file, or `chatml`. Default: the tokenizer's.", CHATML, needs="messages"
    )
    template_kwargs: dict[str, bool | int | str] = key(
        {}, "Switches for the chat template.", {"enable_thinking": False}, needs="messages"
    )
    tools: ExpandedPath | None = key(
        None, "JSON file of tools for the chat template.", "tools.json", needs="messages"
    )
    date: datetime.date | None = key(None, "Date for the chat template.", "2026-01-31", needs="messages")
    template_seconds: int = key(
        60, "Processor time to find out what the chat template does.", gt=0, needs="messages"
    )
    template_memory: Count = key(2 << 30, "Bytes that the chat template may take.", gt=0, needs="messages")
    conversation_seconds: int = key(
        10, "Processor time of the chat template for a conversation.", gt=0, needs="messages"
    )
    tokens: Annotated[Tokens | None, "table of tokens"] = key(
        None,
        "The inputs are token ids that this tokenizer made.",
        {"tokenizer": "old/tokenizer.json", "eod": "</s>", "dtype": "uint16"},
        excludes="field messages template keep",
    )
    separator: str = key("", "Separates the documents of a text file. Default: a file is one.", "\n\n")
    max_document: Count = key(256 << 20, "Longer records are rejected (bytes).", gt=0)
    keep: Keep = key(
        (),
        "Fields to keep: `[NAME=]FIELD[:TYPE]` of TYPE text, integer, float or boolean.",
        ["id", "url=meta.url"],
    )
    skip_damaged: bool = key(False, "Leave damaged files out whole.")
    max_damaged: Count | None = key(
        None, "Most files to leave out by `skip_damaged`. Default: 1 % of them, at least 1.", 20, ge=0
    )
    append: tuple[Append, ...] = ()

    def most_damaged(self, files: int) -> int:
        """Return how many of some files may be left out as damaged: never all."""
        if not self.skip_damaged:
            return 0
        return min(files - 1, max(1, files // 100) if self.max_damaged is None else self.max_damaged)

    @property
    def inputs_by_append(self) -> tuple[tuple[str, ...], ...]:
        """The inputs of the source, then those of each append."""
        return (self.inputs, *(append.inputs for append in self.append))

    @property
    def template_fields(self) -> tuple[str, ...]:
        """The fields that `template` names. Raises ValueError if it names none."""
        from pretok.read.record_format import fields_of

        return tuple(name for _, name in fields_of(self.template) if name) if self.template else ()

    @model_validator(mode="after")
    def _has_what_it_names(self) -> Self:
        if self.tokens and self.format not in ("auto", "tokens"):
            raise ValueError(f"format {self.format} and tokens exclude each other; give one of them")
        if self.format == "tokens" and self.tokens is None:
            raise ValueError("format: say which tokenizer made them: tokens = {tokenizer = ...}")
        if self.format == "text" and (self.messages or self.template):
            raise ValueError("format: plain text has no fields, and so no conversations")
        try:
            known = self.template_fields or CHAT_KINDS
        except ValueError as error:
            raise ValueError(f"template: {error}") from None
        if unknown := sorted(set(self.learn) - set(known)):
            raise ValueError(f"learn: {unknown[0]!r} is not one of {', '.join(known)}")
        return self

    def record_format(self) -> RecordFormat:
        """Return how documents are read from this source; what depends on the tokenizer is left open.

        Reads the file of tools. Raises UsageError if it cannot be read.
        """
        from pretok.chat.messages import load_tools
        from pretok.read.record_format import Conversation, RecordFormat

        plain = RecordFormat(self.field[0], self.separator, self.max_document)
        if len(self.field) > 1:
            plain = replace(plain, fields=self.field)
        if self.tokens:
            return replace(plain, tokens=self.tokens.files)
        if self.template:
            learned = self.learn or self.template_fields
            fields = Conversation(fields=True, template=self.template, learned=learned)
            return replace(plain, field="", conversation=fields)
        if not self.messages:
            return plain
        chat = Conversation(
            fields=False,
            template="",
            chat_template=self.chat_template,
            template_kwargs=self.template_kwargs,
            tools=load_tools(self.tools) if self.tools else [],
            date=str(self.date or ""),
        )
        return replace(plain, field=self.messages, conversation=chat)

    @property
    def limits(self) -> TemplateLimits:
        """What its chat template may take."""
        from pretok.chat.limits import TemplateLimits

        return TemplateLimits(self.template_seconds, self.template_memory, self.conversation_seconds)

    @property
    def probed(self) -> tuple[tuple[str, ...], bool, TokenFiles | None]:
        """Return (names of a field of which records have one, whether it may hold messages, how ids are read)."""
        fields = (self.messages,) if self.messages else self.template_fields[:1] or self.field
        return fields, bool(self.messages), self.tokens.files if self.tokens else None

    @property
    def declared_format(self) -> str:
        """The format of the inputs, `auto` if their contents say it."""
        return "tokens" if self.tokens else self.format

    @property
    def kept(self) -> tuple[KeptColumn, ...]:
        """The fields of a record that the ledger keeps."""
        from pretok.read.kept import parse_keep

        return tuple(map(parse_keep, self.keep))


class Normalize(SettingsTable):
    """[normalize]: changes to every text before it is counted or encoded; none by default."""

    unicode: Literal["none", "nfc"] = key("none", "Unicode form of every text.")
    strip_bom: bool = key(False, "Remove a byte order mark (U+FEFF) at the start of a text.")
    crlf: bool = key(False, "Turn Windows line ends (CR LF) into LF.")

    @property
    def function(self) -> Normalization:
        """The normalization these settings name."""
        from pretok.read.normalize import Normalization

        return Normalization(self.unicode, self.strip_bom, self.crlf)


class Vocab(SettingsTable):
    """[vocab]: an existing tokenizer, or how one is trained."""

    path: ExpandedPath | None = key(
        None, "An existing byte-level BPE: tokenizer.json or its folder.", "llama3"
    )
    eod: Token | None = key(
        None, "Token that ends a document. Default: the tokenizer's.", "<|eot|>", needs="path extend"
    )
    bos: Token | None = key(None, "Special token to put before each document.", "<|begin_of_text|>")
    extend: ExpandedPath | None = key(None, "A tokenizer to train further; its ids stay.", "llama3")
    add: Count = key(8_000, "Entries that `extend` adds.", gt=0, needs="extend")
    size: Count = key(50_000, "Entries, special tokens included.", ge=257, excludes="extend")
    pattern: str = key("cl100k", "Splits text into words: cl100k, gpt2, o200k or qwen2.")
    special_tokens: tuple[str, ...] = key(
        DEFAULT_SPECIAL_TOKENS,
        "Numbered from 0: end of document, padding, others.",
        ["<|eod|>"],
        excludes="extend",
    )
    sample: Share = key(1, "Share of the documents to count.", gt=0, le=1)
    holdout: Share = key(0.01, "Share of the documents kept for the report.", ge=0, lt=1)
    seed: Seed = key(0, "Chooses the documents of `sample` and `holdout`.")
    min_count: int = key(1, "Words that occur less often are ignored.", ge=1)
    weights: Weights = key("natural", WEIGHTS_HELP, {"it": 0.9, "en": 0.1})
    sizes: tuple[Count, ...] = key((), "Smaller vocabularies to write too.", [16000, 32000])

    @model_validator(mode="after")
    def _names_its_tokens(self) -> Self:
        # That of an existing tokenizer is checked when it is loaded.
        trained = not self.path and not self.extend
        if trained and self.bos not in (None, *self.special_tokens[1:]):
            raise ValueError(
                f"bos is {self.bos!r}, which is not in special_tokens after the first, which ends documents"
            )
        return self

    @property
    def other_sizes(self) -> list[int]:
        """The smaller sizes that are written too, largest first."""
        return sorted(set(self.sizes) - {self.size}, reverse=True)


class Shards(SettingsTable):
    """[shards]: how documents become files of tokens, and which do not."""

    size: Count = key(0, "Bytes of tokens in a shard; 0: 1 GiB, less for small sources.", ge=0)
    val_fraction: Share = key(0, "Share of the documents held out for validation.", ge=0, lt=1)
    seed: Seed = key(0, "Chooses the documents for validation.")
    max_reject_share: Share = key(0.02, "Exit code 3 if a larger share of a source is rejected.", ge=0, le=1)
    against: ExpandedPath | None = key(None, "Folder of benchmarks (JSON Lines) to look for.", "benchmarks")
    reject_contaminated: Share | None = key(
        None, "Reject documents with this share of a benchmark item.", 0.5, gt=0, le=1, needs="against"
    )
    duplicates: Literal["keep", "mark", "drop"] = key(
        "keep", "Copies of an earlier text: keep, mark in the ledger, or drop."
    )
    removed: ExpandedPath | None = key(
        None, "Reject the texts that another project removed.", "other/shards/removed.parquet"
    )


class StageTable(SettingsTable):
    """One stage of [mix]: so many tokens in these proportions."""

    tokens: Budget = key("all", "Number of tokens. Default: `all`, one epoch of the scarcest source.", "300B")
    weights: Weights = key("natural", WEIGHTS_HELP, {"it": 0.9, "en": 0.1})


class MixTable(StageTable):
    """[mix]: which sequences are read, in which order."""

    seq_len: Length = key(4096, "Tokens of a sequence.", ge=1, lt=2**31)
    seed: int = key(0, "Seed of the order.", ge=-(2**63), lt=2**63)
    max_epochs: Share = key(4, "Maximum number of epochs of a source.", gt=0)
    classes: dict[SourceName, str] = key(
        {},
        "Parts of sources with their own weight: SOURCE where an SQL condition holds.",
        {"good": "it where quality >= 0.8"},
    )
    repeat: Repeats = key(
        {},
        "How often to read sources and classes. Default: once.",
        {"good": 3},
        excludes="tokens weights stages",
    )
    pack: Literal["none", "best-fit"] = key("none", "`best-fit`: cut only documents longer than a sequence.")
    stages: tuple[StageTable, ...] = key(
        (),
        "Stages in order, each with its own `tokens` and `weights`.",
        [{"tokens": "1T"}, {"tokens": "300B", "weights": {"it": 1}}],
        excludes="tokens weights",
    )

    @property
    def all_stages(self) -> tuple[StageTable, ...]:
        """The stages; without any, the table itself is the only one."""
        return self.stages or (self,)

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if (most := max(self.repeat.values(), default=0)) and most > self.max_epochs:
            raise ValueError(
                f"repeat {float(most):g} is more than max_epochs, {float(self.max_epochs):g}: raise it"
            )
        for stage in self.all_stages:
            if stage.tokens != "all" and stage.tokens < self.seq_len:
                raise ValueError(
                    f"a budget of {stage.tokens} tokens holds no sequence of {self.seq_len} tokens"
                )
        return self


class SlurmStage(SettingsTable):
    """[slurm.STAGE]: the jobs of a stage."""

    nodes: int = key(1, "Nodes of each job.", ge=1)
    links: int = key(1, "Jobs that continue each other.", ge=1)
    time: str | None = key(None, "Time limit of each job. Default: the profile's.", "24:00:00")


class Slurm(SettingsTable):
    """[slurm]: what `pretok submit` needs in addition to a profile."""

    account: str | None = key(None, "Slurm account, instead of the profile's.", "project_1")
    exclude: str | None = key(None, "Nodes that no job may use, in sbatch's form.", "node[3,7]")
    fast: ExpandedPath | None = key(
        None, "Folder for RUN and staged files on a faster part of the file system.", "/fast/it"
    )
    stage: bool = key(False, "Copy shards and mix to `fast` before training.", needs="fast")
    spare: int = key(0, "Extra nodes in each training job, which replace nodes that fail.", ge=0)
    vocab: SlurmStage = SlurmStage()
    tokenize: SlurmStage = SlurmStage()
    mix: SlurmStage = SlurmStage()
    train: SlurmStage = SlurmStage()


class Recipe(SettingsTable):
    """A whole recipe. `train` is for the trainer, which validates it."""

    out: ExpandedPath = key(..., "Folder for all results (WORK).", "work")
    sources: dict[SourceName, Source] = Field(min_length=1)
    normalize: Normalize = Normalize()
    vocab: Vocab = Vocab()
    shards: Shards = Shards()
    mix: MixTable | None = None
    train: dict[str, object] = {}
    slurm: Slurm = Slurm()
    _origin: str = ""
    """The file it was read from, "" for a command line."""

    @model_validator(mode="after")
    def _knows_its_sources(self) -> Self:
        sources = ", ".join(self.sources)
        if (weights := self.vocab.weights) and weights.keys() != self.sources.keys():
            raise ValueError(
                f"vocab.weights names {', '.join(weights)}, but the sources are {sources}; give each a weight, 0 to "
                "count none of it"
            )
        mix = self.mix or MixTable()
        mixed = {name for stage in mix.all_stages for name in stage.weights} - mix.classes.keys()
        divided = {text.split()[0] for text in mix.classes.values() if text.strip()}
        for key, names in (("weights", mixed), ("classes", divided)):
            if unknown := sorted(names - self.sources.keys()):
                raise ValueError(f"mix.{key} names {', '.join(unknown)}, but the sources are {sources}")
        return self

    @property
    def learned(self) -> dict[str, tuple[str, ...]]:
        """The kinds of tokens that are learned, for each source of conversations that names them."""
        return {
            name: source.learn for name, source in self.sources.items() if source.messages and source.learn
        }

    @property
    def vocab_dir(self) -> Path:
        """Folder or file of the tokenizer, which may not exist yet."""
        return self.vocab.path or self.out / "vocab"

    @property
    def counts_dir(self) -> Path:
        """Folder of the counts of words."""
        return self.out / "counts"

    @property
    def shards_dir(self) -> Path:
        """Folder of the shards."""
        return self.out / "shards"

    @property
    def mix_path(self) -> Path:
        """File of the mix."""
        return self.out / "mix.json"
