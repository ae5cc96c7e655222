"""Settings of a run: one frozen dataclass, filled from a TOML file and from flags.

Input: `--config FILE.toml` and flags; flags win. Output: a TrainConfig. Unknown keys are refused, and the error names
the nearest known key.
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


@dataclass(frozen=True, slots=True)
class Option:
    """What is said of a setting beside its type and default."""

    help: str
    least: int | None = None
    """Smallest valid value."""
    most: float = math.inf
    """Largest valid value."""
    choices: tuple[str, ...] = ()
    example: str = ""
    """Value in TOML for docs/recipe.md, if the default is None."""
    rare: bool = False
    """Hide the flag from `--help`; key and flag work all the same."""
    group: str = ""
    """Title of the `--help` group that starts with this setting."""


def _option(default: Any, help: str, **more: Any) -> Any:
    """Declare a setting; `more`: other fields of Option."""
    return field(default=default, metadata={"option": Option(help, **more)})


def options() -> dict[str, tuple[Any, Option]]:
    """Return the default of each setting and its Option, by name, in their order."""
    return {item.name: (item.default, item.metadata["option"]) for item in fields(TrainConfig)}


SCHEDULE = ("lr", "min_lr", "warmup", "schedule", "decay", "decay_shape")
"""Settings of the learning rate. A phase that sets one of them starts a new schedule."""
SCHEDULES = ("1f1b", "interleaved", "zero-bubble", "dualpipe")
"""Orders of the passes of a pipeline."""
IN_PHASES = (
    *("shards", "mix", "seq_len", "rope_theta", "global_batch", "micro_batch", *SCHEDULE),
    *("beta1", "beta2", "eps", "weight_decay", "clip", "z_loss", "skip_sigma"),
)
"""Settings that a phase may change. Parameters and moments are carried over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """All settings of a run. `help` of each field gives its meaning; None means derived, and printed at the start."""

    shards: str = _option(
        "",
        "folder of shards, or its URL",
        example='"work/shards"',
        group="data",
    )
    mix: str | None = _option(
        None, "mix.json, or its URL (default: read each source once)", example='"mix.json"'
    )
    cache: str | None = _option(None, "local folder to cache data from URLs", example='"/local/nvme"')
    cache_bytes: int | None = _option(
        None,
        "maximum bytes of tokens in the cache (default: no limit). Needs `cache`",
        least=1 << 20,
        example='"2T"',
    )
    out: str = _option("run", "folder of the run; if it holds checkpoints, the run resumes")
    model: str | None = _option(
        None,
        "debug, 160m, 1b, 3b, italia-9b, a TOML file of sizes, or the folder of a model "
        "(default: that of --init-from, else debug)",
        example='"1b"',
        group="model",
    )
    init_from: str | None = _option(
        None,
        "start from these weights: a transformers folder, a checkpoint, or a run",
        example='"model"',
    )
    vocab_map: str | None = _option(
        None,
        "vocab-map.json of an extended vocabulary; --init-from names a model with the old one",
        example='"vocab/vocab-map.json"',
    )
    rope_theta: float | None = _option(
        None, "base of the rotary positions (default: the model's)", least=1, example="500000"
    )
    seq_len: int | None = _option(
        None, "tokens in a sequence (default: the mix's, else the model's)", least=1, example="4096"
    )
    seed: int = _option(
        0, "seed of the initial weights, and of the order if there is no mix", least=-(2**63), most=2**63 - 1
    )
    attention: str = _option(
        "causal", "document: no attention across document boundaries", choices=("causal", "document")
    )

    global_batch: int = _option(8, "sequences per step, over all ranks", least=1, group="batch and length")
    micro_batch: int | None = _option(
        None, "sequences per pass of a rank (default: no accumulation)", least=1, example="4"
    )
    steps: int | None = _option(
        None, "length of the run in steps (default: the whole mix)", least=1, example="10000"
    )
    tokens: int | None = _option(
        None,
        "length of the run in tokens, rounded down to whole steps",
        least=1,
        example='"1.2T"',
    )

    lr: float = _option(3e-4, "peak learning rate", least=0, group="schedule")
    min_lr: float = _option(0.1, "final learning rate, as a fraction of lr", least=0, most=1)
    warmup: float = _option(100, "steps of linear warm-up; below 1: fraction of the schedule", least=0)
    schedule: str = _option("cosine", "shape after the warm-up", choices=("cosine", "wsd", "constant"))
    decay: float = _option(
        0.2,
        "wsd: fraction of the run that decays, at its end; 0: none, to extend the run later",
        least=0,
        most=1,
    )
    decay_shape: str = _option(
        "linear", "wsd: shape of the decay; 1-sqrt: fast at first", choices=("linear", "1-sqrt"), rare=True
    )
    optimizer: str = _option(
        "adamw",
        "muon: torch's Muon for the matrices of blocks, AdamW for the rest",
        choices=("adamw", "muon"),
        group="optimizer",
    )
    beta1: float = _option(0.9, "beta1 of AdamW", least=0, most=0.999999, rare=True)
    beta2: float = _option(0.95, "beta2 of AdamW", least=0, most=0.999999, rare=True)
    eps: float = _option(1e-8, "epsilon of AdamW", least=0, rare=True)
    weight_decay: float = _option(0.1, "not applied to norms and embeddings", least=0)
    clip: float = _option(1.0, "clip the gradient norm to this value; 0: no clipping", least=0)
    z_loss: float = _option(0.0, "weight of the squared log-partition in the loss", least=0, rare=True)
    skip_sigma: float = _option(
        6.0,
        "skip a step whose gradient norm or loss is this many standard deviations above the mean; 0: never",
        least=0,
        rare=True,
    )

    shard: int | None = _option(
        None,
        "ranks that share one copy of the parameters (FSDP; default: the ranks of a node)",
        least=1,
        example="8",
        group="parallelism",
    )
    tensor: int = _option(1, "tensor parallel ranks", least=1)
    context: int = _option(1, "context parallel ranks; must divide shard", least=1)
    pipeline: int = _option(1, "pipeline parallel ranks", least=1)
    pipeline_schedule: str = _option(
        "1f1b", "order of a pipeline's passes; all but 1f1b have two stages per rank", choices=SCHEDULES
    )
    reshard: bool = _option(
        True,
        "free gathered parameters after each use (ZeRO-3); off: at the end of each step (ZeRO-2)",
        rare=True,
        group="memory and speed",
    )
    offload: bool = _option(False, "keep parameters, gradients and optimizer state in host memory")
    precision: str = _option(
        "auto",
        "compute precision; auto: bf16 on a GPU, else fp32; float8: matrix products only (torchao, H100 or newer)",
        choices=("auto", "bf16", "fp32", "float8"),
    )
    checkpointing: str = _option(
        "none",
        "activation checkpointing: none, ops (keep attention and every second product), full, or a fraction (0.5) of "
        "the blocks in full and the others as ops",
    )
    compile: bool | None = _option(
        None, "compile each block with torch.compile (default: on a GPU)", example="true"
    )
    timeout: int = _option(
        900, "abort if a save or a collective hangs for this many seconds", least=1, rare=True
    )

    workers: int = _option(
        2, "threads per rank that read ahead", least=0, rare=True, group="loading and validation"
    )
    val_every: int | None = _option(
        None,
        "steps between validations; 0: never (default: 500 if there is a validation split)",
        least=0,
        example="1000",
    )
    val_sequences: int = _option(256, "most sequences to evaluate per source", least=1, rare=True)

    save_every: str = _option(
        "auto",
        "interval between saves: 100 (steps), 10m (minutes), never, or auto: 4 times the start, at most an hour",
        group="checkpoints",
    )
    keep_last: int = _option(3, "newest checkpoints to keep", least=1)
    keep_best: int = _option(0, "best checkpoints (by validation loss) to keep", least=0)
    milestone: int = _option(0, "save at every multiple of this step, and keep it; 0: never", least=0)
    backup: str | None = _option(
        None, "folder for copies of milestones and best checkpoints", example='"/archive/run"', rare=True
    )

    log_every: int = _option(10, "steps between lines on the terminal", least=1, group="logging and tools")
    wandb: str | None = _option(
        None, "Weights & Biases project; offline unless WANDB_MODE is set", example='"my-project"'
    )
    profile: int = _option(0, "steps to profile into RUN/profile.json", least=0, rare=True)
    watts: float | None = _option(
        None, "power of a device in watts, where it cannot be measured", least=0, example="400", rare=True
    )
    pue: float | None = _option(
        None,
        "power usage effectiveness of the site",
        least=1,
        example="1.1",
        rare=True,
    )
    carbon: float | None = _option(
        None, "kg CO2e per kWh of the site's electricity", least=0, example="0.385", rare=True
    )
    deterministic: bool = _option(False, "use only deterministic operations, which are slower", rare=True)

    phases: tuple[dict[str, Any], ...] = _option(
        (),
        "settings that change during the run, by token count: [[phases]] tables in TOML, or JSON",
        rare=True,
        group="phases",
    )
    """Tables of names in IN_PHASES and `at`: the phase begins after that many tokens, rounded up to a whole step."""

    def __post_init__(self) -> None:
        for name, (_, option) in options().items():
            value, least, most = getattr(self, name), option.least, option.most
            if option.choices and value not in option.choices:
                raise UsageError(f"{name} is {value!r}; it must be one of {', '.join(option.choices)}")
            if least is None or value is None:
                continue
            if not (least <= value <= most and value < math.inf):  # a NaN fails the comparison too
                upper = "" if most == math.inf else f" and at most {most}"
                raise UsageError(f"{name} is {value}; it must be at least {least}{upper}")
        for url in (self.shards, self.mix):
            if url and masked(url) != url:
                raise UsageError(
                    f"{url}: a run stores its settings in files; pass credentials in environment variables"
                )
        for name, value in (("out", self.out), ("backup", self.backup), ("cache", self.cache)):
            if value and "://" in value:
                raise UsageError(f"{name} is {masked(value)}; it must be a folder, not a URL")
        if self.keep_best and self.val_every == 0:
            raise UsageError("keep_best ranks checkpoints by validation loss: val_every must not be 0")
        parse_save_every(self.save_every)
        recomputed(self.checkpointing, 0)
        if self.phases:
            self.in_phases()

    @property
    def start(self) -> Path | None:
        """The folder of --init-from; for the folder of a run, its newest checkpoint. None without --init-from."""
        if self.init_from is None:
            return None
        folder = Path(self.init_from)
        return max(folder.glob("checkpoints/step-????????"), default=folder)

    @property
    def sizes(self) -> str:
        """The value that names the model's sizes: --model, else the --init-from folder, else debug."""
        return self.model or str(self.start or "debug")

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, as a TOML file holds them."""
        return asdict(self) | {"phases": list(self.phases)}

    def in_phases(self) -> list[tuple[int, TrainConfig, bool]]:
        """Return (start in tokens, settings, whether a new schedule begins) for every phase; the first starts at 0.

        Each phase changes the settings of the one before. Raises UsageError if the result is invalid or the phases are
        out of order.
        """
        phases = [(0, replace(self, phases=()), False)]
        for phase in self.phases:
            last, settings, _ = phases[-1]
            changes = dict(phase)
            if (at := changes.pop("at")) <= last:
                raise UsageError(
                    f"phases: the one at {at} tokens follows the one at {last}; put them in order"
                )
            if "mix" in changes:
                changes.setdefault("seq_len", None)  # a mix brings its own seq_len
            phases.append((at, replace(settings, **changes), bool(changes.keys() & set(SCHEDULE))))
        return phases


def whole_number(text: str) -> int:
    """Parse '1000', '1_000', '1.2T', '500M', '16k' or '64MiB' as an int; UsageError for anything else."""
    try:
        return int(units.parse_count(text))
    except ValueError as error:
        raise UsageError(f"{error}") from None


def parse_save_every(text: str) -> tuple[str, float]:
    """Parse save_every: '100' -> ('steps', 100), '10m' -> ('seconds', 600), 'never' and 'auto' -> (itself, 0)."""
    if text in ("never", "auto"):
        return text, 0.0
    kind, number, scale = ("seconds", text[:-1], 60.0) if text.endswith("m") else ("steps", text, 1.0)
    try:
        value = float(number) if kind == "seconds" else int(number)
    except ValueError:
        value = 0
    if value <= 0:
        raise UsageError(f"save_every is {text!r}; it must be steps (100), minutes (10m), auto or never")
    return kind, value * scale


def recomputed(checkpointing: str, block: int) -> str:
    """Return how much of a block is recomputed: 'none', 'full', or 'ops' (all but attention and every second product).

    block: number of the block, from 0. With a fraction f, the 'full' blocks are spread evenly over the model.
    """
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
    # True for floor(layers * share) blocks, evenly spaced: those in which the running count steps up.
    return "full" if int((block + 1) * share) > int(block * share) else "ops"


def _nearest(name: str, known: Sequence[str]) -> str:
    """Return the end of an "unknown name" message: the known name spelled most alike, '' if there is none."""
    alike = difflib.get_close_matches(name, known, n=1)
    return f"; the nearest known is {alike[0]!r}" if alike else ""


def _convert(name: str, value: Any, hint: Any) -> Any:
    """Convert a TOML value or the text of a flag to the field's type."""
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
    """Return an argument parser in the style of all `train` commands."""
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add --config and one flag for each field of TrainConfig, in groups; the help leaves out rare ones."""
    parser.add_argument(
        "--config", help="TOML file of settings (see docs/recipe.md), with _ instead of -; flags override it"
    )
    hints = get_type_hints(TrainConfig)
    group: Any = parser
    for name, (default, option) in options().items():
        if option.group:
            group = parser.add_argument_group(option.group)
        flag = "--" + name.replace("_", "-")
        text = option.help.replace("%", "%%")
        if option.rare:
            text = argparse.SUPPRESS
        elif default not in (None, ""):
            text += f" (default: {default})"
        if bool in getattr(hints[name], "__args__", (hints[name],)):
            group.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
            )
        else:
            metavar = "|".join(option.choices) or None
            group.add_argument(flag, default=argparse.SUPPRESS, help=text, metavar=metavar)


def from_mapping(values: dict[str, Any], where: str) -> TrainConfig:
    """Build a TrainConfig from TOML values or flag texts. UsageError names an unknown key and the nearest known one."""
    rest = {name: value for name, value in values.items() if name != "phases"}
    known = [*options()]
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
        raise UsageError(f"{where}: phases is not a list of tables; write each as [[phases]]")
    phases = []
    for number, table in enumerate(tables, 1):
        place = f"{where}: phase {number}"
        values = {name.replace("-", "_"): value for name, value in table.items()}
        if "at" not in values:
            raise UsageError(f'{place} has no start; give it in tokens, for example at = "1T"')
        at = _convert("at", values.pop("at"), int)
        phases.append({"at": at} | _settings(values, IN_PHASES, place))
    return tuple(phases)


def refuse_unread(config: TrainConfig) -> None:
    """Raise UsageError for a setting that is given and that nothing reads beside the others."""
    tables = [config, *(settings for _, settings, _ in config.in_phases())]
    wsd = any(settings.schedule == "wsd" for settings in tables)
    needs = {
        "cache_bytes": ("cache", config.cache),
        "val_sequences": ("val_every", config.val_every != 0),
        "pipeline_schedule": ("pipeline", config.pipeline > 1),
        "decay": ('schedule = "wsd"', wsd),
        "decay_shape": ('schedule = "wsd"', wsd),
        "min_lr": ("a schedule that decays", any(settings.schedule != "constant" for settings in tables)),
    }
    defaults = {name: default for name, (default, _) in options().items()}
    for name, (need, there) in needs.items():
        if not there and getattr(config, name) != defaults[name]:
            raise UsageError(f"{name}: nothing reads it without {need}; leave it out")


def check_table(table: dict[str, Any]) -> None:
    """Check the [train] table of a recipe as `train` would on a GPU node.

    Keys may be written as flags, with - for _. Needs no torch. UsageError names the key, the problem and the nearest
    known key.
    """
    config = from_mapping({name.replace("-", "_"): value for name, value in table.items()}, "[train]")
    refuse_unread(config)
    if config.model or not config.init_from:  # the --init-from folder may be created later
        model_config(config.sizes)


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[TrainConfig, argparse.Namespace]:
    """Parse with a parser that `add_flags` extended; return the settings and the namespace of all other arguments."""
    space, unknown = parser.parse_known_args(list(arguments))
    names = [*options()]
    if unknown:
        name = unknown[0].partition("=")[0]
        if not name.startswith("-"):
            raise UsageError(f"{name!r} does not belong to an option")
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
