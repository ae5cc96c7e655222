"""The settings: one frozen type for each table of a recipe, which says what a value may be.

Input: tables as TOML gives them. Output: a Recipe; whatever is wrong whatever the inputs hold is refused here. `~` and
`$VAR` are expanded in every path, `$$` stands for a dollar sign. The line below a key says what it is, gives an example
and names the page that explains it; `config.keys` reads these lines.
"""

from __future__ import annotations

import datetime
import os
import string
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from pretok.base.kinds import CHAT_KINDS, MARKERS
from pretok.base.units import parse_count, parse_length, parse_share, scaled

if TYPE_CHECKING:
    from msgspec import UnsetType

    from pretok.read.conversation import Conversation
    from pretok.read.kept import KeptColumn
    from pretok.read.normalize import Normalization
    from pretok.read.readers import RecordFormat

DEFAULT_SPECIAL_TOKENS = ("<|endoftext|>", "<|pad|>", *(f"<|reserved_{i}|>" for i in range(62)))
"""End of document, padding, and a block for later use; their ids are 0 to 63."""

Count = Annotated[int, BeforeValidator(parse_count)]
"""A whole number, or a string such as "1.2T", "300B", "64MiB"."""

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
    from pretok.read.kept import LEDGER_NAMES, parse_keep

    columns = [parse_keep(text) for text in keep]
    names = [column.name.lower() for column in columns]  # SQL does not tell upper from lower case
    for name, column in zip(names, columns, strict=True):
        if name in LEDGER_NAMES:
            raise ValueError(
                f"the ledger itself has a column {name!r}; name the kept one otherwise: {name}_={column.field}"
            )
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is kept twice; name one otherwise: my_{name}={column.field}")
    return keep


def budget(value: Any) -> Any:
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


def proportions(value: Any) -> Any:
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


class Append(Part):
    """[[sources.NAME.append]]: more inputs for a source that is tokenized, read as the others are."""

    inputs: tuple[Input, ...] = Field(min_length=1)
    """Other files than those of the source, named in the same ways. | ["data/it-2026/*.jsonl.zst"] |
    add-a-source.md"""


class Source(Part):
    """[sources.NAME]: one language or collection."""

    inputs: tuple[Input, ...] = Field(min_length=1)
    """Paths, globs, URLs, or `sample:it` and `sample:en`, which ship with the package. | ["data/it/*.jsonl.zst"] |
    add-a-source.md"""
    format: Literal["auto", "jsonl", "parquet", "text"] = "auto"
    """How records are found in the files; `auto` looks into them. | "jsonl" | running.md"""
    field: str = "text"
    """Field or column that holds the text; `data.text` where it is inside of another. | "content" |
    running.md"""
    messages: str = ""
    """Field or column that holds a conversation, in the place of `field`: a list of messages with role and
    content. | "messages" | conversations.md"""
    template: str = ""
    r"""Several fields of a record as one text, in the place of `field`. | "{question}\n{answer}" |
    conversations.md"""
    learn: tuple[str, ...] = ()
    """What of a conversation is learned; empty: what an assistant writes. Of a template, fields; empty: all. |
    ["answer", "tool call"] | conversations.md"""
    chat_template: Annotated[str, BeforeValidator(_expand)] = ""
    """A file with the chat template, or `chatml`; empty: the tokenizer's own. | "chatml" | conversations.md"""
    template_kwargs: dict[str, bool | int | str] = {}
    """Switches that the chat template sees. | {enable_thinking = false} | conversations.md"""
    tools: ExpandedPath | None = None
    """A JSON file with the list of tools that the chat template sees. | "tools.json" | conversations.md"""
    date: str = ""
    """The date that a chat template sees that asks for one. | "2026-01-31" | conversations.md"""
    separator: str = ""
    r"""What ends a document in plain text; empty: a file is one document. | "\n\n" | running.md"""
    max_document: Annotated[Count, Field(gt=0)] = 256 << 20
    """Bytes of a record above which it is rejected. | "64MiB" | running.md"""
    keep: Annotated[tuple[str, ...], AfterValidator(check_keep)] = ()
    """Fields that go into the ledger, each `[NAME=]FIELD[:TYPE]` of type text, integer, float or boolean. |
    ["id", "url=meta.url"] | ledger.md"""
    on_mismatch: Literal["null", "reject"] = "null"
    """Whether a kept value of another type is null in the ledger, or rejects its document. | "reject" |
    ledger.md"""

    append: tuple[Append, ...] = ()

    @property
    def inputs_by_append(self) -> tuple[tuple[str, ...], ...]:
        """Its own inputs, and those of each append."""
        return (self.inputs, *(append.inputs for append in self.append))

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        given = [name for name in ("messages", "template") if getattr(self, name)]
        if given and self.field != "text":
            given.append("field")
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} both say where the text is; give one of them")
        chat = ("chat_template", "template_kwargs", "tools", "date")
        of_chats = [name for name in chat if getattr(self, name)]
        if of_chats and not self.messages:
            raise ValueError(f"{of_chats[0]} is of a conversation; name its field: messages")
        if self.learn and not (self.messages or self.template):
            raise ValueError(
                "learn is of a conversation, as plain text is learned whole; name its field: messages"
            )
        if self.format == "text" and (self.messages or self.template):
            raise ValueError("plain text has no fields, and so no conversations")
        if self.template:
            self._check_template()
        elif unknown := sorted(set(self.learn) - set(CHAT_KINDS)):
            raise ValueError(f"learn: {unknown[0]!r} is none of {', '.join(CHAT_KINDS)}")
        if self.date:
            try:
                datetime.date.fromisoformat(self.date)
            except ValueError:
                raise ValueError(f"date: {self.date!r} is no date; write 2026-01-31") from None
        return self

    def _check_template(self) -> None:
        from pretok.read.conversation import fields_of

        try:
            fields = [field for _, field in fields_of(self.template) if field]
        except ValueError as error:
            raise ValueError(f"template: {error}") from None
        if unknown := sorted(set(self.learn) - set(fields)):
            raise ValueError(f"learn: {unknown[0]!r} is no field of template; it has {', '.join(fields)}")

    @property
    def record(self) -> RecordFormat:
        """How documents are found in this source; of a conversation what the tokenizer has to say is left open."""
        from msgspec import UNSET

        from pretok.read.conversation import Conversation, fields_of, load_tools
        from pretok.read.readers import RecordFormat

        conversation: Conversation | UnsetType = UNSET
        field = self.field
        if self.messages:
            field = self.messages
            tools = load_tools(self.tools) if self.tools else []
            conversation = Conversation(
                fields=False,
                template="",
                chat_template=self.chat_template,
                template_kwargs=self.template_kwargs,
                tools=tools,
                date=self.date,
            )
        elif self.template:
            field = ""
            learned = self.learn or tuple(name for _, name in fields_of(self.template) if name)
            conversation = Conversation(fields=True, template=self.template, learned=learned)
        return RecordFormat(field, self.separator, self.max_document, conversation)

    @property
    def probed(self) -> tuple[str, bool]:
        """(a field that records have, whether it may hold messages)."""
        from pretok.read.conversation import fields_of

        first = next((name for _, name in fields_of(self.template) if name), "") if self.template else ""
        return self.messages or first or self.field, bool(self.messages)

    @property
    def kept(self) -> tuple[KeptColumn, ...]:
        """What is kept of each document."""
        from pretok.read.kept import parse_keep

        return tuple(parse_keep(text) for text in self.keep)


class Normalize(Part):
    """[normalize]: what is changed in every document before vocabulary and encoding; nothing by default."""

    unicode: Literal["none", "nfc"] = "none"
    """The form of Unicode that every text is brought to. | "nfc" | formats.md"""
    strip_bom: bool = False
    """Take the byte order mark (U+FEFF) at the beginning of a text away. | true | formats.md"""
    crlf: bool = False
    """Make line ends of Windows (CR LF) plain ones (LF). | true | formats.md"""

    @property
    def function(self) -> Normalization:
        """The normalization these settings name."""
        from pretok.read.normalize import Normalization

        return Normalization(self.unicode, self.strip_bom, self.crlf)


class Vocab(Part):
    """[vocab]: an existing tokenizer, or how one is trained."""

    path: ExpandedPath | None = None
    """An existing tokenizer.json of a byte-level BPE, or its folder, instead of WORK/vocab; nothing is trained
    then. | "llama3/tokenizer.json" | vocabulary.md"""
    eod: Annotated[str, Field(min_length=1)] | None = None
    """The token that ends a document; without it what the files of the tokenizer name, or a known one. |
    "<|end_of_text|>" | vocabulary.md"""
    bos: Annotated[str, Field(min_length=1)] | None = None
    """The special token that begins a document; without it none does. | "<|begin_of_text|>" |
    vocabulary.md"""
    extend: ExpandedPath | None = None
    """An existing tokenizer.json of a byte-level BPE, or its folder, that training goes on from; every id it has
    keeps its meaning. | "llama3/tokenizer.json" | adapt-a-model.md"""
    add: Annotated[Count, Field(gt=0)] | None = None
    """Entries that `extend` adds; without it 8,000. | "4k" | adapt-a-model.md"""
    replace: bool = False
    """Let the entries that `extend` adds take the ids of those that the planned mix uses least. | true |
    adapt-a-model.md"""
    size: Annotated[Count, Field(ge=257)] = 50_000
    """Entries, special tokens included. | "32k" | vocabulary.md"""
    pattern: str = "cl100k"
    """What cuts text into words: cl100k, gpt2, o200k, qwen2 or cl100k-apostrophe. | "o200k" | vocabulary.md"""
    special_tokens: tuple[str, ...] = DEFAULT_SPECIAL_TOKENS
    """Their names, from id 0 on; the first ends a document, the second is for padding. | ["<|endoftext|>",
    "<|pad|>"] | vocabulary.md"""
    sample: Annotated[Share, Field(gt=0, le=1)] = Fraction(1)
    """Share of the documents that is counted. | 0.1 | vocabulary.md"""
    holdout: Annotated[Share, Field(ge=0, lt=1)] = Fraction(1, 100)
    """Share of the documents that is kept out of training, for the report. | 0.02 | vocabulary.md"""
    seed: int = 0
    """Another seed, other documents in `sample` and `holdout`. | 1 | vocabulary.md"""
    min_count: Annotated[int, Field(ge=1)] = 1
    """Words that occur less often are dropped before training. | 2 | vocabulary.md"""
    weights: Annotated[dict[SourceName, Share], AfterValidator(lambda given: given and scaled(given))] = {}
    """Share of each source in the counts; empty: as on disk. | {it = 0.9, en = 0.1} | vocabulary.md"""
    sizes: tuple[int, ...] = ()
    """Smaller vocabularies to write beside it: the beginnings of the largest. | [16000, 32000] |
    vocabulary.md"""

    @model_validator(mode="after")
    def _extends(self) -> Self:
        idle = ("add", "replace") if self.extend is None else ("size", "special_tokens")
        fields = type(self).model_fields
        if given := [name for name in idle if getattr(self, name) != fields[name].default]:
            raise ValueError(
                f"{given[0]} is for extend, which names the tokenizer to go on from"
                if self.extend is None
                else f"{given[0]} is of a new vocabulary; how many entries extend adds is add"
            )
        return self

    @model_validator(mode="after")
    def _names_its_tokens(self) -> Self:
        there = self.path or self.extend
        ends = self.eod if there else (*self.special_tokens, None)[0]
        if self.bos is not None and self.bos == ends:
            raise ValueError(f"{self.bos!r} both begins and ends documents; name another as bos or eod")
        if there is None and self.bos not in (None, *self.special_tokens):
            raise ValueError(
                f"bos is {self.bos!r}, which is none of special_tokens; add it to them, or name the tokenizer that has "
                "it: path, or --vocab"
            )
        if there is None and self.eod not in (None, *self.special_tokens[:1]):
            raise ValueError(
                f"eod is {self.eod!r}, but a vocabulary that is made here ends documents with its first special token; "
                "name the tokenizer that has it: path, or --vocab"
            )
        return self

    @property
    def added(self) -> int:
        """Entries that `extend` adds."""
        return self.add or 8_000

    @property
    def other_sizes(self) -> list[int]:
        """Sizes to be written beside the largest, largest first."""
        return sorted(set(self.sizes) - {self.size}, reverse=True)


class Shards(Part):
    """[shards]: how documents become files of tokens, and which do not."""

    size: Annotated[Count, Field(ge=0)] = 0
    """Bytes of tokens in a shard; 0: 1 GiB, less for small sources. | "512MiB" | running.md"""
    val_fraction: Annotated[Share, Field(ge=0, lt=1)] = Fraction(0)
    """Share of the documents that is held out for validation, chosen by a hash of the text. | 0.001 |
    running.md"""
    seed: int = 0
    """Another seed, other documents in the validation split. | 1 | formats.md"""
    max_reject_share: Annotated[Share, Field(ge=0, le=1)] = Fraction(1, 50)
    """Share of the records of a source above which bad ones end the command with code 3; blank lines and what another
    setting refuses do not count. | 0.1 | running.md"""
    against: ExpandedPath | None = None
    """Folder of benchmark items as JSON Lines, each text of a line a passage, to be found in the documents. |
    "benchmarks" | ledger.md"""
    reject_contaminated: Annotated[Share, Field(gt=0, le=1)] | None = None
    """Share of a benchmark item from which on a document that holds it is rejected. | 0.5 | ledger.md"""
    duplicates: Literal["keep", "mark", "drop"] = "keep"
    """What becomes of a text that an earlier document of any source has: kept, marked in the ledger, or rejected; to
    mark or reject them the inputs are read twice. | "drop" | ledger.md"""
    removed: ExpandedPath | None = None
    """List of texts that another project removed, its shards/removed.parquet: they are rejected here too. |
    "other/shards/removed.parquet" | removal.md"""

    @model_validator(mode="after")
    def _has_benchmark(self) -> Self:
        if self.reject_contaminated is not None and self.against is None:
            raise ValueError("reject_contaminated needs a benchmark: against = FOLDER")
        return self


class StageTable(Part):
    """One stage of [mix]: so many tokens in these proportions."""

    tokens: Annotated[int | Literal["all"], BeforeValidator(budget)] = "all"
    """Budget; `all` is one epoch of the scarcest source. | "300B" | mix.md"""
    weights: Annotated[dict[str, Fraction] | Literal["natural"], BeforeValidator(proportions)] = "natural"
    """Share of each source, adding up to 1; `natural` is what each holds. | {it = 0.9, en = 0.1} | mix.md"""

    @property
    def named(self) -> dict[str, Fraction]:
        """The weights by name; none where they are natural."""
        return {} if self.weights == "natural" else self.weights


class MixTable(StageTable):
    """[mix]: one stage, or several in `stages`."""

    seq_len: Annotated[int, BeforeValidator(parse_length), Field(ge=1, lt=2**31)] = 4096
    """Tokens of a sequence. | 8192 | mix.md"""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    """Another seed, another order. | 1 | mix.md"""
    # Text read up to about four times is worth nearly as much as new text: Muennighoff et al., "Scaling
    # Data-Constrained Language Models", 2023.
    max_epochs: Annotated[Share, Field(gt=0)] = Fraction(4)
    """How often a source may be read at most. | 2 | mix.md"""
    cap: bool = False
    """Hold sources at `max_epochs` and let the others fill up, instead of refusing the mix. | true | mix.md"""
    classes: dict[SourceName, str] = {}
    """Parts of sources that are weighed as sources are: SOURCE where CONDITION, a condition on the columns of `pretok
    query`; the source's own name means its rest. | {good = "it where quality >= 0.8"} | mix.md"""
    overlap: bool = False
    """Whether a document may be in several classes. | true | mix.md"""
    repeat: dict[SourceName, Annotated[Share, Field(gt=0)]] = {}
    """How often classes and sources are read, instead of weights; once where nothing is said. | {good = 3} | mix.md"""
    pack: Literal["none", "best-fit"] = "none"
    """`best-fit`: sequences of whole documents, none of them cut unless it is longer than one. | "best-fit" | mix.md"""
    count: Literal["tokens", "learned"] = "tokens"
    """What weights and budgets count: all tokens, or those of conversations that are learned. | "learned" | mix.md"""
    stages: tuple[StageTable, ...] = ()
    """Several stages, one after the other, each a table `[[mix.stages]]`, instead of tokens and weights
    here. | [{tokens = "1T"}, {tokens = "300B", weights = {it = 1}}] | mix.md"""

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
        if self.repeat and (self.stages or self.weights != "natural" or self.tokens != "all"):
            raise ValueError(
                "repeat says the weights and the tokens of the mix: leave out weights, tokens and stages"
            )
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


class SlurmStage(Part):
    """[slurm.STAGE]: the jobs of a stage."""

    nodes: Annotated[int, Field(ge=1)] = 1
    """Nodes of each job. | 16 | ../slurm/README.md"""
    links: Annotated[int, Field(ge=1)] = 1
    """Jobs that continue each other. | 20 | ../slurm/README.md"""
    time: str | None = None
    """Time of each job, as sbatch takes it; without it the profile's. | "24:00:00" | ../slurm/README.md"""


class SlurmTrain(SlurmStage):
    """[slurm.train]: the jobs of the training."""

    spare: Annotated[int, Field(ge=0)] = 0
    """Nodes in every job beside `nodes`, which take the place of those that fail. | 1 | ../slurm/README.md"""


class Slurm(Part):
    """[slurm]: what `pretok submit` needs beside a profile."""

    account: str | None = None
    """The account to charge, instead of the profile's. | "project_1" | ../slurm/README.md"""
    exclude: str | None = None
    """Nodes that no job may use, as sbatch takes them. | "node[3,7]" | ../slurm/README.md"""
    vocab: SlurmStage = SlurmStage()
    tokenize: SlurmStage = SlurmStage()
    mix: SlurmStage = SlurmStage()
    train: SlurmTrain = SlurmTrain()


class Recipe(Part):
    """A whole recipe. `train` holds what the trainer reads, unchecked here."""

    out: Annotated[Path, BeforeValidator(lambda given: given if isinstance(given, Path) else _expand(given))]
    """The WORK folder, to which all results go. | "work" | running.md"""
    # A Path is that of a command line, where the shell has replaced `~` and `$VAR`, or was not to.
    sources: dict[SourceName, Source] = Field(min_length=1)
    normalize: Normalize = Normalize()
    vocab: Vocab = Vocab()
    shards: Shards = Shards()
    mix: MixTable | None = None
    train: dict[str, object] = {}
    slurm: Slurm = Slurm()

    @model_validator(mode="after")
    def _knows_its_sources(self) -> Self:
        mixed = {name for stage in self.mix.all_stages for name in stage.named} if self.mix else set()
        mixed -= self.mix.classes.keys() if self.mix else set()
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

    @model_validator(mode="after")
    def _reserves_markers(self) -> Self:
        """Where there are conversations, the first reserved entries are the markers of the chat template of pretok."""
        ours = self.vocab.path is None and self.vocab.special_tokens == DEFAULT_SPECIAL_TOKENS
        if ours and any(source.messages for source in self.sources.values()):
            named = (*DEFAULT_SPECIAL_TOKENS[:2], *MARKERS, *DEFAULT_SPECIAL_TOKENS[2 : -len(MARKERS)])
            self.__dict__["vocab"] = self.vocab.model_copy(update={"special_tokens": named})
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
