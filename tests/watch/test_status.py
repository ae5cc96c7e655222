"""status: what it says of WORK and of a run, finished or in work, against what was done."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support import make_shards
from tokenizing import recipe, run

from pretok.base.errors import PartitionsFailed
from pretok.base.execute import Engine
from pretok.base.lock import hold
from pretok.base.storage import write_json
from pretok.cli import run_command
from pretok.shards.inputs import read_plan
from pretok.shards.ledger import LedgerWriter
from pretok.shards.manifest import load_manifest
from pretok.watch.status import FAILED, FINISHED, RUNNING, UNFINISHED, StepStatus, status_of

NOW = "2026-03-01T12:00:00.000+00:00"


class Killed(KeyboardInterrupt):
    """Passes through everything."""


def by_name(work: Path) -> dict[str, StepStatus]:
    return {one.what: one for one in status_of(work)}


def write_log(work: Path, command: str, *events: dict[str, Any], torn: str = "") -> None:
    """The log of a command of `work`, which ends with a line that is being written."""
    log = work / "logs" / f"{command}-1.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    always = {"time": NOW, "host": "n7", "command": command}
    log.write_text("".join(json.dumps(always | event) + "\n" for event in events) + torn)


def test_shards_are_told_as_far_as_they_are(
    tmp_path: Path, vocab_dir: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sources of several partitions; the end of a file of `en` is damaged."""
    for name, count in (("it", 3000), ("en", 900)):
        rows = [{"text": f"{name} documento {i} " * 9} for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    packed = zstandard.ZstdCompressor().compress((tmp_path / "en.jsonl").read_bytes())
    (tmp_path / "en.jsonl.zst").write_bytes(packed[:-300])
    inputs: dict[str, list[Path | str]] = {name: sorted(tmp_path.glob(f"{name}.*")) for name in ("it", "en")}
    made = recipe(tmp_path / "work", vocab_dir, inputs, size=60_000)
    assert [one.state for one in status_of(made.out)] == [UNFINISHED]
    real, sealed = LedgerWriter.seal, []

    def dying(self: LedgerWriter, *of: Any) -> Any:
        sealed.append(1)
        if len(sealed) > 5:
            raise Killed
        return real(self, *of)

    with monkeypatch.context() as patched:
        patched.setattr(LedgerWriter, "seal", dying)
        with pytest.raises(Killed):
            run(made, here)
    told = by_name(made.out)
    assert told.keys() == {"shards of en", "shards of it"}
    for name in inputs:
        planned, one = read_plan(made.shards_dir / ".state" / name), told[f"shards of {name}"]
        typed = f"pretok tokenize RECIPE.toml | NAME=GLOB ... --out {made.out}"
        assert (one.state, one.planned, one.next) == (UNFINISHED, len(planned.partitions), typed)
    assert sum(one.done or 0 for one in told.values()) == 2  # five ledgers were sealed, of train and of val
    with hold(made.shards_dir, "tokenize"):
        told = by_name(made.out)
        assert {one.state for one in told.values()} == {RUNNING}
        assert told["shards of it"].detail.startswith("tokenize (host ")
    with pytest.raises(PartitionsFailed):
        run(made, here)
    told = by_name(made.out)
    counts = load_manifest(made.shards_dir).sources["it"]
    assert told["shards of it"].state == FINISHED
    assert told["shards of it"].detail == f"{counts.tokens:,} tokens in {counts.documents:,} documents"
    assert told["shards of en"].state == FAILED
    assert told["shards of en"].detail.startswith("1 input not read to the end, to be fixed first; ")
    assert "en.jsonl.zst" in told["shards of en"].detail


def test_a_mix_of_other_shards_and_damage_are_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_shards(tmp_path / "shards", {"it": [[1, 2, 3] * 20]})
    command = ["mix", str(tmp_path / "shards"), "--out", str(tmp_path / "mix.json"), "--seq-len", "8"]
    assert run_command(command) == 0
    mix = by_name(tmp_path)["mix"]
    assert (mix.state, mix.detail) == (FINISHED, "48 tokens in 6 sequences")
    make_shards(tmp_path / "shards", {"it": [[1, 2, 4] * 20]})
    (tmp_path / "vocab").mkdir()
    assert by_name(tmp_path)["vocabulary"].state == UNFINISHED
    (tmp_path / "vocab/tokenizer.json").touch()
    capsys.readouterr()
    assert run_command(["status", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["what"], one["state"]) for one in told["results"]] == [
        ("vocabulary", FINISHED), ("shards of it", FINISHED), ("mix", FAILED),
    ]  # fmt: skip
    assert run_command(["status", str(tmp_path)]) == 0
    line = f"next: pretok mix {tmp_path}/shards --out {tmp_path}/mix-2.json --weights natural"
    assert line in capsys.readouterr().out.splitlines()
    (tmp_path / "shards/manifest.json").write_text("{")
    assert by_name(tmp_path)["shards"].state == FAILED
    assert run_command(["status", str(tmp_path / "nothing")]) == 2


REFUSED = "pretok count RECIPE.toml | NAME=GLOB ... --out {}"
TYPED = "pretok count 'it=a b.jsonl'"


@pytest.mark.parametrize(
    ("code", "detail", "following"),
    [
        (None, "killed: disk full", TYPED),
        (1, "ended with exit code 1: disk full", TYPED),
        (2, "", REFUSED),  # as it would be again
        (0, "", TYPED),
    ],
)
def test_a_command_that_ended_badly_is_named_as_it_was_typed(
    tmp_path: Path, code: int | None, detail: str, following: str
) -> None:
    (tmp_path / "counts/.state").mkdir(parents=True)
    start = {"event": "start", "argv": ["count", "it=a b.jsonl"]}
    end = [] if code is None else [{"event": "end", "exit_code": code}]
    write_log(tmp_path, "count", start, {"event": "error", "message": "disk full\nmore"}, *end)
    words = by_name(tmp_path)["words"]
    assert words == StepStatus("words", UNFINISHED, detail=detail, next=following.format(tmp_path))


def test_the_next_step_follows_from_what_is_there(
    tmp_path: Path, vocab_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused command is never proposed, nor is a mix where the shards are gone."""
    monkeypatch.chdir(tmp_path)
    tokenize = f"pretok tokenize it=sample:it --out work --vocab {vocab_dir} --workers 0"
    mix = "pretok mix work/shards --out work/mix.json --seq-len 16"

    def typed(line: str) -> int:
        return run_command(shlex.split(line)[1:])

    def told() -> str:
        capsys.readouterr()
        assert run_command(["status", "work"]) == 0
        lines = capsys.readouterr().out.splitlines()
        return "".join(line.removeprefix("next: ") for line in lines if line.startswith("next: "))

    assert typed(tokenize) == 0
    assert typed(f"{tokenize} --val-fraction 0.1") == 2
    assert told() == "pretok mix work/shards --out work/mix.json --weights natural"
    assert typed(mix) == 0
    assert typed(f"{mix} --seed 1") == 2
    assert told().startswith("train ")
    (bin_file,) = Path("work/shards/it").glob("it-0*.bin")
    bin_file.rename("kept")
    assert told() == "pretok verify work/shards"
    Path("kept").rename(bin_file)
    with hold(Path("work/shards"), "tokenize"), monkeypatch.context() as patched:
        patched.setattr("pretok.watch.status.unfinished", lambda _: {"it": (0, 1, ())})
        assert told() == ""
    shutil.rmtree("work/shards")
    assert told() == tokenize
    Path("work/mix.json").unlink()
    assert told() == tokenize


RECIPE = 'out = "work"\n[sources.it]\ninputs = ["sample:it"]\n[mix]\nseq_len = 16\n[vocab]\n'
STEPS = {
    "measure": "pretok.vocab.job.make_report",
    "between": "pretok.commands.steps.run_tokenize",
    "verify": "pretok.commands.steps.run_verify",
}


@pytest.mark.usefixtures("few_buckets")
@pytest.mark.parametrize("step", STEPS)
def test_a_recipe_that_was_killed_is_told_as_it_was_typed(
    step: str, tmp_path: Path, vocab_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(RECIPE + (f'path = "{vocab_dir}"\n' if step == "verify" else "size = 600\n"))
    long_ago = {"event": "start", "argv": ["tokenize", "x=y"], "time": "2020-01-01T00:00:00.000+00:00"}
    write_log(Path("work"), "tokenize", long_ago)

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(STEPS[step], killed)
        assert run_command(["run", "r.toml", "--workers", "0"]) == 75
    told = status_of(Path("work"))
    (log,) = Path("work/logs").glob("run-*.jsonl")
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # SIGKILL leaves no last line
    for found in (told, status_of(Path("work"))):
        assert {one.next for one in found if one.state != FINISHED} == {"pretok run r.toml --workers 0"}
        assert not any(one.next for one in found if one.state == FINISHED)
    monkeypatch.chdir("/")
    typed = f"cd {tmp_path} && pretok run r.toml --workers 0"
    assert typed in [one.next for one in status_of(tmp_path / "work")]


@pytest.mark.usefixtures("few_buckets")
def test_what_comes_next_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["count", "it=sample:it", "--out", "my work", "--workers", "0", "--field", "text"]
    more = {"build-vocab": ["--vocab-size", "600"], "mix": ["--seq-len", "16"]}
    done = []
    while command[0] != "train":
        done.append(command[0])
        assert run_command([*command, *more.get(command[0], [])]) == 0
        *before, last = status_of(Path("my work"))
        assert not any(one.next for one in before)
        program, *command = shlex.split(last.next)
        command = command if program == "pretok" else [program]
    assert done == ["count", "build-vocab", "tokenize", "mix"]


PROGRESS = {
    "event": "progress", "title": "count", "seconds": 100.0, "expected_bytes": 10 * 10**9, "partitions": 20,
    "counts": {"bytes": 3_000_000_000, "partitions": 4, "rejected": 12},
    "before": {"bytes": 10**9, "partitions": 2},
}  # fmt: skip
"""4 of 10 GB, of which this run did 3 in 100 s: 6 are left, at 30 MB/s."""


@pytest.mark.parametrize(
    ("events", "detail"),
    [
        ([PROGRESS], "; count 6/20 40% 4 GB 30 MB/s ETA 3 min rejects 12, "),
        ([], "; count 0 s, "),
        ([PROGRESS, {"event": "step_end"}], None),
        ([PROGRESS, {"event": "end", "exit_code": 0}], None),
    ],
)
def test_a_step_in_work_is_told_as_its_log_tells_it(
    tmp_path: Path, events: list[dict[str, Any]], detail: str | None
) -> None:
    begun = [{"event": "start"}, {"event": "step", "title": "count"}]
    write_log(tmp_path, "count", *begun, *events, torn='{"event": "pro')
    with hold(tmp_path / "counts", "count"):
        words = by_name(tmp_path)["words"]
    assert words.state == RUNNING
    assert words.detail.startswith("count (host ")
    assert words.detail.endswith(" ago") == (detail is not None)
    assert (detail or "") in words.detail


def test_a_run_is_told_by_its_files(tmp_path: Path) -> None:
    write_json(
        tmp_path / "config.json", {"model": "debug", "resolved": {"model": {"seq_len": 8}, "steps": 400}}
    )
    with hold(tmp_path, "train"):
        (one,) = status_of(tmp_path)
        assert (one.state, one.done, one.planned) == (RUNNING, 0, 400)
    records = [
        {
            "step": step, "loss": 9.0 - step / 100, "tokens": step * 1000, "seconds": 1.0 if step <= 240 else 2.0,
            "tokens_per_second": 1000.0 if step <= 240 else 500.0, "data_wait": 0.1, "time": NOW,
        }
        for step in range(1, 301)
    ]  # fmt: skip
    text = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 301, "lo')
    write_json(tmp_path / "checkpoints/step-00000010/meta.json", {})
    with hold(tmp_path, "train"):
        (one,) = status_of(tmp_path)
    assert (one.state, one.done, one.planned) == (RUNNING, 300, 400)
    # of the latest 60 steps
    assert one.detail.endswith("; loss 6.0000, 500 tokens/s, 5.0% of the time waiting for data, ETA 3 min")
    (one,) = status_of(tmp_path)
    assert (one.state, one.done) == (UNFINISHED, 300)
    assert one.detail == "newest checkpoint step-00000010; the same train command goes on"
    write_json(tmp_path / "done.json", {})
    assert status_of(tmp_path)[0].state == FINISHED
