"""Settings of a run: one frozen dataclass, from a TOML file and from flags.

Input: `--config FILE.toml` and flags, which win. Output: a TrainConfig. Unknown keys are refused with the nearest
known one.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from pretok.base import units
from pretok.base.errors import UsageError
from pretok.base.records import replace
from pretok.base.visible import masked
from train.model.sizes import model_config


def _option(
    default: Any,
    help: str,
    *,
    least: int | None = None,
    choices: tuple[str, ...] = (),
    example: str = "",
    rare: bool = False,
    group: str = "",
) -> Any:
    """A setting. least: its least value; example: as TOML, for the page of all keys, where the default is none; rare: a
    key and a flag as the others, but not in the help; group: of the help, that it begins."""
    return field(default=default, metadata=locals())


SCHEDULE = ("lr", "min_lr", "warmup", "schedule", "decay", "decay_shape")
"""Settings of the learning rate: a phase that names one of them begins a schedule of its own."""
IN_PHASES = (
    *("shards", "mix", "seq_len", "rope_theta", "global_batch", "micro_batch", *SCHEDULE),
    *("beta1", "beta2", "eps", "weight_decay", "clip", "z_loss", "skip_sigma"),
)
"""What a phase may set. Parameters and moments go on as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """All settings; each one's help says its meaning. None: derived, and printed at the start."""

    shards: str = _option(
        "", "folder of shards with their manifest.json, or its URL", example='"work/shards"', group="data"
    )
    mix: str | None = _option(None, "mix.json; without it every source once", example='"mix.json"')
    cache: str | None = _option(
        None,
        "folder of a local disk that keeps what --shards and --mix, if URLs, have been asked for",
        example='"/local/nvme"',
    )
    cache_bytes: int | None = _option(
        None,
        "tokens in bytes that --cache keeps, for example 2T (default: all)",
        least=1 << 20,
        example='"2T"',
    )
    out: str = _option("run", "folder of the run; one that holds checkpoints is resumed")
    model: str | None = _option(
        None,
        "debug, 160m, 1b, 3b, italia-9b, a TOML file of sizes, or a folder with a model "
        "(default: that of --init-from, else debug)",
        example='"1b"',
        group="model",
    )
    init_from: str | None = _option(
        None,
        "start from the weights of a transformers folder, a checkpoint, or a run's newest",
        example='"model"',
    )
    vocab_map: str | None = _option(
        None,
        "--init-from a model of the vocabulary that was extended: the map beside the new one",
        example='"vocab/vocab-map.json"',
    )
    rope_theta: float | None = _option(
        None, "base of the rotary positions (default: the model's)", least=1, example="500000"
    )
    seq_len: int | None = _option(
        None, "tokens in a sequence (default: the mix's, else the model's)", least=1, example="4096"
    )
    seed: int = _option(0, "seed of the initialisation, and of the order when there is no mix")
    attention: str = _option(
        "causal", "document: see only one's own document", choices=("causal", "document")
    )

    global_batch: int = _option(8, "sequences in a step over all ranks", least=1, group="batch and length")
    micro_batch: int | None = _option(
        None, "sequences in one pass of one rank (default: its whole part)", least=1, example="4"
    )
    steps: int | None = _option(
        None, "length of the run in steps (default: the whole mix)", least=1, example="10000"
    )
    tokens: int | None = _option(
        None,
        "length of the run in tokens, for example 1.2T; rounded down to whole steps",
        least=1,
        example='"1.2T"',
    )

    lr: float = _option(3e-4, "peak learning rate", least=0, group="schedule")
    min_lr: float = _option(0.1, "rate of the last step of the decay, as a part of lr", least=0)
    warmup: float = _option(100, "steps of linear warm-up; below 1 a part of the schedule", least=0)
    schedule: str = _option("cosine", "shape after the warm-up", choices=("cosine", "wsd", "constant"))
    decay: float = _option(0.2, "wsd: part of the run that decays at its end; 0 keeps it extendable", least=0)
    decay_shape: str = _option(
        "linear", "wsd: how it decays; 1-sqrt: fast at first", choices=("linear", "1-sqrt"), rare=True
    )
    beta1: float = _option(0.9, "AdamW", least=0, rare=True, group="optimizer")
    beta2: float = _option(0.95, "AdamW", least=0, rare=True)
    eps: float = _option(1e-8, "AdamW", least=0, rare=True)
    weight_decay: float = _option(0.1, "AdamW; never on norms and embeddings", least=0)
    clip: float = _option(1.0, "largest gradient norm; 0: gradients are not clipped", least=0)
    z_loss: float = _option(0.0, "weight of the squared log-partition", least=0, rare=True)
    skip_sigma: float = _option(
        6.0,
        "skip a step whose gradient norm or loss lies so many deviations up; 0: never",
        least=0,
        rare=True,
    )

    shard: int | None = _option(
        None,
        "ranks that share one copy of the parameters: FSDP, of fewer than all HSDP (default: a node's)",
        least=1,
        example="8",
        group="parallelism",
    )
    tensor: int = _option(1, "ranks that divide every matrix product (tensor parallel)", least=1)
    context: int = _option(
        1, "of the ranks in shard, how many divide each sequence (context parallel)", least=1
    )
    pipeline: int = _option(
        1, "ranks that share the blocks, each with some of them (pipeline parallel)", least=1
    )
    reshard: bool = _option(
        True,
        "free gathered parameters after each use (ZeRO-3); off: at the end of a step (ZeRO-2)",
        rare=True,
        group="memory and speed",
    )
    precision: str = _option(
        "auto",
        "of the passes; auto: bf16 on a GPU; float8: products by torchao on an H100 or newer, the rest in bf16",
        choices=("auto", "bf16", "fp32", "float8"),
    )
    checkpointing: str = _option(
        "none",
        "recompute activations (activation checkpointing): none, ops, full, or of a share of blocks (0.5) full and "
        "else ops",
    )
    compile: bool | None = _option(
        None, "torch.compile of each block (default: on where there is a GPU)", example="true"
    )
    timeout: int = _option(
        900,
        "seconds after which a hung save ends the job, or a collective, after the first step a third",
        least=1,
        rare=True,
    )

    workers: int = _option(
        2, "loader processes of a rank", least=0, rare=True, group="loading and validation"
    )
    val_every: int = _option(0, "evaluate every so many steps; 0: never", least=0)
    val_sequences: int = _option(256, "sequences evaluated of each source, at most", least=1, rare=True)

    save_every: str = _option("10m", "100 (steps), 10m (minutes) or never", group="checkpoints")
    keep_last: int = _option(3, "newest checkpoints kept", least=1)
    keep_best: int = _option(
        0, "checkpoints kept by validation loss; one among the best is saved at once", least=0
    )
    milestone: int = _option(0, "keep every checkpoint whose step is a multiple; 0: none", least=0)

    log_every: int = _option(10, "steps between lines on the terminal", least=1, group="logging and tools")
    wandb: str | None = _option(
        None, "Weights & Biases project; offline unless WANDB_MODE says otherwise", example='"my-project"'
    )
    profile: int = _option(0, "write a profile of so many steps to RUN/profile.json", least=0, rare=True)
    deterministic: bool = _option(
        False, "only operations that give the same bits each time; slower", rare=True
    )

    phases: tuple[dict[str, Any], ...] = _option(
        (),
        "what changes at how many tokens: tables [[phases]] of a file, or their JSON",
        rare=True,
        group="phases",
    )
    """Each with `at`: it begins when so many tokens are done, rounded up to a whole step; and names in IN_PHASES."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value, choices, least = getattr(self, item.name), item.metadata["choices"], item.metadata["least"]
            if choices and value not in choices:
                raise UsageError(f"{item.name} is {value!r}; it must be one of {', '.join(choices)}")
            bounded = least is not None and value is not None
            if bounded and not least <= value < math.inf:  # NaN compares with nothing
                raise UsageError(f"{item.name} is {value}; it must be at least {least}")
        for url in (self.shards, self.mix):
            if url and masked(url) != url:
                raise UsageError(
                    f"{url}: a run's files keep its settings; give credentials to the environment"
                )
        parse_save_every(self.save_every)
        recomputed(self.checkpointing, 0)
        if self.phases:
            self.in_phases()

    @property
    def start(self) -> Path | None:
        """The folder of --init-from; of a run's folder its newest checkpoint."""
        if self.init_from is None:
            return None
        folder = Path(self.init_from)
        return max(folder.glob("checkpoints/step-????????"), default=folder)

    @property
    def sizes(self) -> str:
        """What names the sizes of the model."""
        return self.model or str(self.start or "debug")

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON values, as a TOML file has them."""
        return asdict(self) | {"phases": list(self.phases)}

    def in_phases(self) -> list[tuple[int, TrainConfig, bool]]:
        """(tokens at which it begins, settings in force, whether it has a schedule of its own) of every phase, the
        first at 0; each changes the one before.

        Raises UsageError where that gives settings that cannot be, or phases do not follow each other.
        """
        found = [(0, replace(self, phases=()), False)]
        for phase in self.phases:
            last, settings, _ = found[-1]
            changes = dict(phase)
            if (at := changes.pop("at")) <= last:
                raise UsageError(f"phases: one at {at} tokens comes after one at {last}")
            if "mix" in changes:
                changes.setdefault("seq_len", None)  # the mix has its own
            found.append((at, replace(settings, **changes), bool(changes.keys() & set(SCHEDULE))))
        return found


def whole_number(text: str) -> int:
    """'1000', '1_000', '1.2T', '500M', '16k', '64MiB' -> a whole number; UsageError for what is none."""
    try:
        return int(units.parse_count(text))
    except ValueError as error:
        raise UsageError(f"{error}") from None


def parse_save_every(text: str) -> tuple[str, float]:
    """'100' -> ('steps', 100), '10m' -> ('seconds', 600), 'never' -> ('never', 0)."""
    if text == "never":
        return text, 0.0
    kind, number, scale = ("seconds", text[:-1], 60.0) if text.endswith("m") else ("steps", text, 1.0)
    try:
        value = float(number) if kind == "seconds" else int(number)
    except ValueError:
        value = 0
    if value <= 0:
        raise UsageError(f"save_every is {text!r}; it must be steps (100), minutes (10m) or never")
    return kind, value * scale


def recomputed(checkpointing: str, block: int) -> str:
    """What of a block, by its number from 0, is computed again: 'none', 'full', or 'ops': all but attention and every
    second product."""
    if checkpointing in ("none", "ops", "full"):
        return checkpointing
    try:
        share = float(checkpointing)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UsageError(
            f"checkpointing is {checkpointing!r}; it must be none, full, ops or a share of blocks (0.5)"
        )
    return "full" if int((block + 1) * share) > int(block * share) else "ops"


def _nearest(name: str, known: Sequence[str]) -> str:
    """What to say behind an unknown name: the known one that is spelled alike, if there is one."""
    alike = difflib.get_close_matches(name, known, n=1)
    return f"; the nearest known is {alike[0]!r}" if alike else ""


def _convert(name: str, value: Any, hint: Any) -> Any:
    """A TOML value or a flag's text as the field's type."""
    kind = next(kind for kind in getattr(hint, "__args__", (hint,)) if kind is not type(None))
    try:
        if kind is int and isinstance(value, str):
            value = units.parse_count(value)
        elif kind is float and type(value) in (int, str):
            value = float(value)
        elif kind is str and name in ("save_every", "checkpointing") and type(value) in (int, float):
            value = str(value)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
    if type(value) is not kind:
        raise UsageError(f"{name} is {value!r}; it must be of type {kind.__name__}")
    return value


def command_parser(prog: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A parser as all commands of `train` have it."""
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each field of TrainConfig, in groups, and --config; the help leaves out what is rare."""
    parser.add_argument(
        "--config", help="TOML file of settings, those of docs/recipe.md, with _ for -; flags win over it"
    )
    hints = get_type_hints(TrainConfig)
    group: Any = parser
    for item in fields(TrainConfig):
        if item.metadata["group"]:
            group = parser.add_argument_group(item.metadata["group"])
        flag = "--" + item.name.replace("_", "-")
        text = item.metadata["help"].replace("%", "%%")
        if item.metadata["rare"]:
            text = argparse.SUPPRESS
        elif item.default not in (None, ""):
            text += f" (default: {item.default})"
        if bool in getattr(hints[item.name], "__args__", (hints[item.name],)):
            group.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
            )
        else:
            metavar = "|".join(item.metadata["choices"]) or None
            group.add_argument(flag, default=argparse.SUPPRESS, help=text, metavar=metavar)


def from_mapping(values: dict[str, Any], where: str) -> TrainConfig:
    """A TrainConfig of TOML values or flag texts. UsageError names an unknown key and the nearest known."""
    rest = {name: value for name, value in values.items() if name != "phases"}
    known = [item.name for item in fields(TrainConfig)]
    return TrainConfig(**_settings(rest, known, where), phases=_phases(values.get("phases", []), where))


def _settings(values: dict[str, Any], known: Sequence[str], where: str) -> dict[str, Any]:
    hints = get_type_hints(TrainConfig)
    for name in values:
        if name not in known:
            raise UsageError(f"{where}: unknown setting {name!r}{_nearest(name, known)}")
    return {name: _convert(name, value, hints[name]) for name, value in values.items()}


def _phases(tables: Any, where: str) -> tuple[dict[str, Any], ...]:
    if isinstance(tables, str):
        try:
            tables = json.loads(tables)
        except ValueError as error:
            raise UsageError(f"{where}: phases is not JSON: {error}") from None
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{where}: phases is no list of tables; write each as [[phases]]")
    found = []
    for number, table in enumerate(tables, 1):
        place = f"{where}: phase {number}"
        values = {name.replace("-", "_"): value for name, value in table.items()}
        if "at" not in values:
            raise UsageError(f'{place} does not say at how many tokens it begins: at = "1T"')
        at = _convert("at", values.pop("at"), int)
        found.append({"at": at} | _settings(values, IN_PHASES, place))
    return tuple(found)


def check_table(table: dict[str, Any]) -> None:
    """Check a recipe's [train] as `train` would on a GPU node. UsageError names the key, what is wrong and the nearest.

    Keys may be written as flags, with - for _. Needs no torch.
    """
    config = from_mapping({name.replace("-", "_"): value for name, value in table.items()}, "[train]")
    if config.model or not config.init_from:  # that folder may come later
        model_config(config.sizes)


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[TrainConfig, argparse.Namespace]:
    """Parse a parser that `add_flags` extended; also returns what is not a setting."""
    space, unknown = parser.parse_known_args(list(arguments))
    names = [item.name for item in fields(TrainConfig)]
    if unknown:
        name = unknown[0].partition("=")[0]
        if not name.startswith("-"):
            raise UsageError(f"{name!r} belongs to no option")
        flags = ["--" + known.replace("_", "-") for known in (*vars(space), *names)]
        raise UsageError(f"unknown argument {name!r}{_nearest(name, flags)}")
    given = {name: value for name, value in vars(space).items() if name in names}
    values: dict[str, Any] = {}
    if space.config:
        path = Path(space.config)
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"--config {path}: {error}") from None
    from_mapping(values, space.config or "")  # so that an error names the file
    return from_mapping(values | given, "command line"), space
