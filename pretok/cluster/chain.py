"""submit: a recipe and a site profile -> a chain of Slurm jobs: vocabulary, tokens, verification and mix, training.

Input: a Recipe with its [slurm] and [train] tables, and a profile (slurm/profiles/NAME.sh). Output: jobs in the queue,
and OUT/slurm/CHAIN/ with their logs, markers and chain.tsv (job id, stage, link).

A stage waits for the success of the stage before it (afterok), a link of a stage for the end of the link before it
(afterany): a link that stops in time is continued by the next one, and a link that finds its stage done ends at once
(slurm/link.sh).
"""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pretok.base.console import Table, table
from pretok.base.errors import PretokError, UsageError
from pretok.base.storage import read_lines
from pretok.config import Recipe
from pretok.config.settings import Slurm, SlurmStage

StageName = Literal["vocab", "tokenize", "mix", "train"]
STAGES: tuple[StageName, ...] = ("vocab", "tokenize", "mix", "train")
SBATCH = {"partition": "PARTITION", "qos": "QOS", "cpus-per-task": "CORES", "mem": "MEMORY", "time": "TIME"}
"""Option of sbatch -> the value of a profile, SITE_CPU_... or SITE_GPU_..., that it gets."""
NONE = "none"
"""The value in a profile of what a site does not have; an empty value was not filled in."""
RECORD = "chain.tsv"
"""File in the folder of a chain: a line per job with its id, stage and link."""
SIGNAL = 180
"""Seconds before its time limit at which a job script asks Slurm for a signal."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A site: the SITE_* values of its file."""

    path: Path
    folder: Path
    """The `slurm` folder with the job scripts."""
    values: dict[str, str]

    def get(self, name: str) -> str:
        """Return a value; empty where the profile says `none`."""
        value = self.values.get(f"SITE_{name}", "")
        return "" if value == NONE else value


def find_scripts() -> Path:
    """Find the folder of the job scripts: ./slurm, that of the checkout, or that of the installed package."""
    beside = Path(__file__).parents[2] / "slurm"
    for folder in (Path("slurm"), beside, Path(sys.prefix) / "share" / "pretok" / "slurm"):
        if (folder / "env.sh").exists():
            return folder.resolve()
    raise UsageError("no folder `slurm` with the job scripts here; start in a checkout of the project")


def load_profile(name: str) -> Profile:
    """Read a profile by name or path. Raises UsageError if it does not exist or is not a working shell script."""
    scripts = find_scripts()
    path = Path(name) if name.endswith(".sh") else scripts / "profiles" / f"{name}.sh"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in (scripts / "profiles").glob("*.sh")))
        raise UsageError(
            f"profile {path} does not exist (known: {known}; or give the path of a file that ends with .sh)"
        )
    path = path.resolve()
    # Bash itself reads the profile, which may compute its values; NUL ends each, as a value may hold line feeds.
    show = 'set -eu; source "$1"; for name in ${!SITE_@}; do printf "%s=%s\\0" "$name" "${!name}"; done'
    shell = subprocess.run(["bash", "-c", show, "_", str(path)], capture_output=True, text=True, check=False)
    if shell.returncode:
        raise UsageError(f"profile {path} does not run: {shell.stderr.strip()}")
    values = dict(item.split("=", 1) for item in shell.stdout.split("\0") if item)
    return Profile(path, scripts, values)


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a chain."""

    stage: StageName
    link: int
    command: str
    """sbatch as a shell line, in which `$JOB_n` is the id of job n of the chain."""
    nodes: int
    time: str
    """Its limit as Slurm reads it, "" for the site's."""


def hours_of(time: str) -> float | None:
    """Return the hours of a time limit as sbatch takes it; None for another text.

    It is minutes, MM:SS, HH:MM:SS, or days, a dash and then hours (https://slurm.schedmd.com/sbatch.html#OPT_time).
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if not found:
        return None
    days, *parts = (None if part is None else int(part) for part in found.groups())
    first, second, third = parts
    if days is None and third is None:  # minutes come first
        return (first or 0) / 60 + (second or 0) / 3600
    return 24 * (days or 0) + (first or 0) + (second or 0) / 60 + (third or 0) / 3600


def chain_table(jobs: Sequence[Job], title: str) -> Table:
    """Make a table of what a chain asks for: jobs, nodes, hours and node-hours of each stage, and all node-hours."""
    rows, total = [], 0.0
    for stage in dict.fromkeys(job.stage for job in jobs):
        of_stage = [job for job in jobs if job.stage == stage]
        hours, nodes = hours_of(of_stage[0].time), of_stage[0].nodes
        spent = None if hours is None else len(of_stage) * nodes * hours
        total += spent or 0.0
        known = ("?", "?") if hours is None or spent is None else (f"{hours:g}", f"{spent:,.0f}")
        rows.append((stage, f"{len(of_stage)}", f"{nodes:,}", *known))
    return table(
        title,
        ("stage", "jobs", "nodes", "hours", "node-hours"),
        [*rows, ("at most", "", "", "", f"{total:,.0f}")],
    )


def plan_chain(
    recipe: Recipe,
    recipe_path: Path,
    profile: Profile,
    stages: list[StageName],
    run: Path,
    train_arguments: list[str],
    folder: Path,
) -> list[Job]:
    """List the jobs of `stages` in the order of submission. folder: for logs and markers.

    Raises UsageError if the profile lacks a value that they need.
    """
    check_profile(profile, recipe.slurm, stages)
    jobs: list[Job] = []
    for stage in stages:
        arguments = [str(recipe.out), str(recipe_path)]
        if stage == "train":
            energy = [
                f"--{name}={value}" for name in ("pue", "carbon") if (value := profile.get(name.upper()))
            ]
            arguments = [
                str(run),
                *energy,
                *recipe_flags(recipe),
                *train_arguments,
            ]  # the last of a flag wins
        script = profile.folder / f"{stage}.sbatch"
        options = _options(recipe, profile, stage, folder)
        if stage == "train":
            options += _signal(run, options)
        words = shlex.join([*options, str(script), str(profile.path), *arguments])
        given = dict(word.removeprefix("--").partition("=")[::2] for word in options)
        before = [f"afterok:$JOB_{len(jobs) - 1}"] if jobs else []
        for link in range(1, getattr(recipe.slurm, stage).links + 1):
            conditions = before + ([f"afterany:$JOB_{len(jobs) - 1}"] if link > 1 else [])
            # A job whose condition can no longer come true would else stay in the queue for ever.
            wait = f"--dependency={','.join(conditions)} --kill-on-invalid-dep=yes " if conditions else ""
            command = f"sbatch --parsable {wait}{words}"
            jobs.append(Job(stage, link, command, int(given["nodes"]), given.get("time", "")))
    return jobs


def choose_stages(recipe: Recipe, wanted: str | None, train_arguments: list[str]) -> list[StageName]:
    """Return the stages that `wanted` names, separated by commas, in their order; by default those of the recipe."""
    if wanted is None:
        absent = {"vocab"} if recipe.vocab.path else set()
        if not recipe.train and not train_arguments:
            absent.add("train")
        return [stage for stage in STAGES if stage not in absent]
    names = {name.strip() for name in wanted.split(",")}
    if unknown := sorted(names - set(STAGES)):
        raise UsageError(f"unknown stages {', '.join(unknown)}; known: {', '.join(STAGES)}")
    return [stage for stage in STAGES if stage in names]


def settings_by_stage(options: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Turn STAGE=VALUE of each option of [slurm.STAGE] into settings. Raises UsageError."""
    settings = {}
    for name, values in options.items():
        for value in values:
            stage, equals, amount = value.partition("=")
            if not equals or stage not in STAGES:
                raise UsageError(f"--{name} {value}: write STAGE=VALUE with a STAGE of {', '.join(STAGES)}")
            settings[f"slurm.{stage}.{name}"] = amount
    return settings


def refuse_other_stages(
    chosen: Sequence[StageName], options: Mapping[str, Sequence[str]], slurm: Slurm | None, recipe: Path
) -> None:
    """Raise UsageError for an option of a stage that is not submitted, or a table of one in the recipe.

    options: as for `settings_by_stage`; slurm: [slurm] of the recipe, None if its tables are not checked.
    """
    only = f"is not submitted, only {', '.join(chosen)}"
    for name, values in options.items():
        for value in values:
            if (stage := value.partition("=")[0]) not in chosen:
                raise UsageError(f"--{name} {value}: {stage} {only}; remove it")
    if slurm is not None:
        for stage in slurm.model_fields_set & set(STAGES) - set(chosen):
            raise UsageError(f"{recipe}: [slurm.{stage}]: {stage} {only}")


def check_profile(profile: Profile, slurm: Slurm, stages: list[StageName]) -> None:
    """Raise UsageError with every value that the stages need and the profile leaves empty."""
    needed = {f"{_kind(stage)}_{name}" for stage in stages for name in SBATCH.values()} | {"VENV"}
    needed |= ({"GPUS"} if "train" in stages else set()) | (set() if slurm.account else {"ACCOUNT"})
    empty = sorted(f"SITE_{name}" for name in needed if not profile.values.get(f"SITE_{name}"))
    if empty:
        raise UsageError(
            f"profile {profile.path} leaves {', '.join(empty)} empty: copy it to my.sh, fill in what your site has "
            "(`none` where it has no such thing), and pass --profile my.sh"
        )
    venv = Path(profile.get("VENV"))
    # What lies on the node's own disk is unpacked there by site_setup: the login node need not have it.
    on_node = venv.is_relative_to(profile.get("NODE_LOCAL") or "/tmp")
    if not on_node and not (venv / "bin" / "python").exists():
        raise UsageError(f"SITE_VENV of {profile.path}: {venv} holds no bin/python")


def _kind(stage: StageName) -> str:
    return "GPU" if stage == "train" else "CPU"


def _options(recipe: Recipe, profile: Profile, stage: StageName, folder: Path) -> tuple[str, ...]:
    slurm = recipe.slurm
    own: SlurmStage = getattr(slurm, stage)
    values = {option: profile.get(f"{_kind(stage)}_{name}") for option, name in SBATCH.items()} | {
        "job-name": f"{recipe.out.name}-{stage}",
        # sbatch expands % in this path; two of them stand for one.
        "output": f"{str(folder.absolute()).replace('%', '%%')}/%x-%j.out",
        "account": slurm.account or profile.get("ACCOUNT"),
        "nodes": str(own.nodes + (slurm.spare if stage == "train" else 0)),
        "gpus-per-node": profile.get("GPUS") if stage == "train" else "",
        "exclude": slurm.exclude or "",
    }
    if own.time:
        values["time"] = own.time
    given = [f"--{name}={value}" for name, value in values.items() if value]
    if stage == "train" and slurm.spare:
        given.append("--no-kill")  # else Slurm begins the whole job anew
    return (*given, *shlex.split(profile.get(f"{_kind(stage)}_OPTIONS")))


def _signal(run: Path, options: Sequence[str]) -> tuple[str, ...]:
    """Return the option for an earlier signal, if the newest attempt of `run` says that a stop takes longer.

    The trainer stops in time by itself where it knows the end of its job; this is for jobs that do not.
    """
    given = [int(found[1]) for option in options if (found := re.fullmatch(r"--signal=.*@(\d+)", option))]
    attempts = read_lines(run / "goodput.jsonl")
    seconds = math.ceil(attempts[-1].get("stop_seconds", 0)) if attempts else 0
    return (f"--signal=B:USR1@{seconds}",) if seconds > [SIGNAL, *given][-1] else ()


def recipe_flags(recipe: Recipe) -> list[str]:
    """Turn [train] of the recipe into flags of `train`, with the recipe's shards and mix."""
    staged = recipe.slurm.fast if recipe.slurm.stage else None
    data = staged or recipe.out
    arguments = ["--shards", str(data / recipe.shards_dir.name)]
    if recipe.mix is not None:
        arguments += ["--mix", str(data / recipe.mix_path.name)]
    for key, value in recipe.train.items():
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        else:  # a list: the tables of [[train.phases]]
            arguments += [f"--{flag}", json.dumps(value) if isinstance(value, list) else str(value)]
    return arguments


def submit_chain(jobs: Sequence[Job], script: str, folder: Path) -> list[str]:
    """Run the `chain_script` of these jobs; return their ids.

    Raises UsageError if the folder exists; PretokError with Slurm's answer if it refuses one: the others are then
    cancelled.
    """
    if shutil.which("sbatch") is None:
        raise UsageError("sbatch is not on PATH: run this on a login node of the cluster, or with --dry-run")
    if folder.exists():
        raise UsageError(
            f"{folder} exists: another command submitted a chain in this second; run this one again"
        )
    # The same script that --dry-run prints: what was shown is what runs.
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=False)
    record = folder / RECORD
    # The script writes a line after each job, so the file says how far it came, also after a refusal.
    ids = [line.split("\t")[0] for line in record.read_text("utf-8").splitlines()] if record.exists() else []
    if done.returncode:
        job = jobs[len(ids)]
        raise PretokError(
            f"cannot submit {job.stage} {job.link}: {done.stderr.strip()}\n  {job.command}\n"
            f"{len(ids)} jobs submitted before it were cancelled; fix the profile or the options"
        )
    return ids


def _stage(recipe: Recipe) -> list[str]:
    """Return the lines that have each training job stage its data (link_stage in link.sh)."""
    if not recipe.slurm.stage or recipe.slurm.fast is None:
        return []
    paths = {"PRETOK_WORK": recipe.out, "PRETOK_STAGE": recipe.slurm.fast}
    return [f"export {name}={shlex.quote(str(path.absolute()))}" for name, path in paths.items()]


def chain_script(jobs: Sequence[Job], profile: Profile, recipe: Recipe, folder: Path) -> str:
    """Write a shell script that submits all jobs, to run or to paste.

    It is a subshell: if Slurm refuses a job, those before it are cancelled and the rest is not submitted, and the shell
    that the script was pasted into continues.
    """
    record = shlex.quote(str(folder / RECORD))
    lines = [
        "(",
        "set -eu",
        f"cd {shlex.quote(str(Path.cwd()))}",
        f"mkdir -p {shlex.quote(str(folder.parent))}",
        f"mkdir {shlex.quote(str(folder))}",
        f"export PRETOK_SLURM={shlex.quote(str(profile.folder))} PRETOK_SPARE={recipe.slurm.spare}",
        f"export PRETOK_CHAIN={shlex.quote(str(folder.absolute()))}",
        *_stage(recipe),
        "submitted=",
        """trap '[ $? = 0 ] || [ -z "$submitted" ] || scancel $submitted' EXIT""",
    ]
    for index, job in enumerate(jobs):
        lines += [
            f"JOB_{index}=$({job.command})",
            f'JOB_{index}=${{JOB_{index}%%;*}}; submitted="$submitted $JOB_{index}"',  # sbatch answers ID;CLUSTER
            f"printf '%s\\t%s\\t%s\\n' \"$JOB_{index}\" {job.stage} {job.link} >>{record}",
        ]
    return "\n".join([*lines, ")"]) + "\n"
