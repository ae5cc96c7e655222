"""status: what it says of WORK and of a run, finished or in work, against what was done."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import zstandard
from support import make_shards
from tokenizing import recipe, run

from pretok.base.errors import PartitionsFailed
from pretok.base.execute import Engine
from pretok.base.lock import hold
from pretok.base.storage import write_json
from pretok.cli import run_command
from pretok.overview.status import FAILED, FINISHED, RUNNING, UNFINISHED, StepStatus, next_of, status_of
from pretok.read.source_plan import PLAN_FILE, read_plan
from pretok.shards.ledger import LedgerWriter

Patch = pytest.MonkeyPatch
NOW = "2026-03-01T12:00:00.000+00:00"


def by_name(work: Path) -> dict[str, StepStatus]:
    return {one.what: one for one in status_of(work)}


def write_log(work: Path, command: str, *events: dict[str, Any], torn: str = "") -> None:
    """The log of a command of `work`, which ends with a line that is being written."""
    log = work / "logs" / f"{command}-1.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    always = {"time": NOW, "host": "n7", "command": command}
    log.write_text("".join(json.dumps(always | event) + "\n" for event in events) + torn)


def test_status_says_how_far_the_shards_are(
    tmp_path: Path, vocab_dir: Path, here: Engine, monkeypatch: Patch
) -> None:
    """Two sources of several partitions; the end of a file of `en` is damaged."""
    for name, count in (("it", 1200), ("en", 360)):
        rows = [{"text": f"{name} documento {i} " * 9} for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    packed = zstandard.ZstdCompressor().compress((tmp_path / "en.jsonl").read_bytes())
    (tmp_path / "en.jsonl.zst").write_bytes(packed[:-300])
    inputs: dict[str, list[Path | str]] = {name: sorted(tmp_path.glob(f"{name}.*")) for name in ("it", "en")}
    job = recipe(tmp_path / "work", vocab_dir, inputs, size=24_000)
    assert [one.state for one in status_of(job.out)] == [UNFINISHED]
    real, left = LedgerWriter.seal, iter(range(5))

    def dying(self: LedgerWriter, *of: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt  # which passes through everything
        return real(self, *of)

    with monkeypatch.context() as patched:
        patched.setattr(LedgerWriter, "seal", dying)
        with pytest.raises(KeyboardInterrupt):
            run(job, here)
    rows = by_name(job.out)
    assert rows.keys() == {"shards of en", "shards of it"}
    for name in inputs:
        planned, row = read_plan(job.shards_dir / ".state" / name / PLAN_FILE), rows[f"shards of {name}"]
        typed = f"pretok tokenize RECIPE.toml | NAME=GLOB ... --out {job.out}"
        assert (row.state, row.planned, row.next) == (UNFINISHED, len(planned.partitions), typed)
    assert sum(row.done or 0 for row in rows.values()) == 2  # five ledgers were sealed, of train and of val
    (job.out / "counts").mkdir()
    with hold(job.shards_dir, "tokenize"):
        rows = by_name(job.out)
        assert rows.pop("words").next
        assert {row.state for row in rows.values()} == {RUNNING}
        assert rows["shards of it"].detail.startswith("tokenize (host ")
        assert next_of(status_of(job.out)) == ""
    with pytest.raises(PartitionsFailed):
        run(job, here)
    rows = by_name(job.out)
    assert (rows["shards of it"].state, rows["shards of en"].state) == (FINISHED, UNFINISHED)
    assert rows["shards of it"].detail.endswith(" tokens in 1,200 documents")


def test_a_mix_of_other_shards_and_damage_are_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_shards(tmp_path / "shards", {"it": [[1, 2, 3] * 20]})
    command = ["mix", str(tmp_path / "shards"), "--out", str(tmp_path / "mix.json"), "--seq-len", "8"]
    assert run_command(command) == 0
    assert by_name(tmp_path)["mix"].detail == "48 tokens in 6 sequences"
    make_shards(tmp_path / "shards", {"it": [[1, 2, 4] * 20]})
    (tmp_path / "vocab").mkdir()
    assert by_name(tmp_path)["vocabulary"].state == UNFINISHED
    (tmp_path / "vocab/tokenizer.json").touch()
    capsys.readouterr()
    assert run_command(["status", str(tmp_path), "--json"]) == 0
    assert [(row["what"], row["state"]) for row in json.loads(capsys.readouterr().out)["results"]] == [
        ("vocabulary", FINISHED), ("shards of it", FINISHED), ("mix", FAILED),
    ]  # fmt: skip
    assert run_command(["status", str(tmp_path)]) == 0
    line = f"next: pretok mix {tmp_path}/shards --out {tmp_path}/mix-2.json --weights natural"
    assert line in capsys.readouterr().out.splitlines()
    (tmp_path / "shards/manifest.json").write_text("{")
    assert by_name(tmp_path)["shards"].state == FAILED
    assert run_command(["status", str(tmp_path / "nothing")]) == 2


@pytest.mark.parametrize(
    ("code", "detail"),
    [(None, "killed: disk full"), (1, "ended with exit code 1: disk full"), (2, ""), (0, "")],
)
def test_a_command_that_ended_badly_is_named_as_it_was_typed(
    tmp_path: Path, code: int | None, detail: str
) -> None:
    """Unless it was refused, as it would be again."""
    (tmp_path / "counts/.state").mkdir(parents=True)
    start = {"event": "start", "argv": ["count", "it=a b.jsonl"]}
    end = [] if code is None else [{"event": "end", "exit_code": code}]
    write_log(tmp_path, "count", start, {"event": "error", "message": "disk full\nmore"}, *end)
    typed = f"RECIPE.toml | NAME=GLOB ... --out {tmp_path}" if code == 2 else "'it=a b.jsonl'"
    row = StepStatus("words", UNFINISHED, detail=detail, next=f"pretok count {typed}")
    assert by_name(tmp_path)["words"] == row


@pytest.mark.usefixtures("few_buckets")
def test_what_comes_next_can_be_typed(tmp_path: Path, vocab_dir: Path, monkeypatch: Patch) -> None:
    """From the count to the mix; and if the shards are damaged or gone, or a command was refused."""
    monkeypatch.chdir(tmp_path)

    def following(work: str) -> str:
        *before, last = status_of(Path(work))
        assert not any(row.next for row in before if row.state == FINISHED)
        return next(row.next for row in [*before, last] if row.next)

    line, lines = "pretok count it=sample:it --out 'my work' --workers 0 --field text", []
    more = {"build-vocab": " --vocab-size 600", "mix": " --seq-len 16"}
    while not line.startswith("train "):
        lines.append(line + more.get(line.split()[1], ""))
        assert run_command(shlex.split(lines[-1])[1:]) == 0
        line = following("my work")
    assert [line.split()[1] for line in lines] == ["count", "build-vocab", "tokenize", "mix"]
    for refused in (f"{lines[2]} --val-fraction 0.1", f"{lines[3]} --seed 1"):
        assert run_command(shlex.split(refused)[1:]) == 2
    assert following("my work") == line
    assert line.endswith(" --out 'my work/run' --model debug")
    (bin_file,) = Path("my work/shards/it").glob("it-0*.bin")
    bin_file.rename("moved")
    assert following("my work") == "pretok verify 'my work/shards'"
    shutil.rmtree("my work/shards")
    assert following("my work") == lines[2]


RECIPE = 'out = "work"\n[sources.it]\ninputs = ["sample:it"]\n[mix]\nseq_len = 16\n[vocab]\n'


@pytest.mark.usefixtures("few_buckets")
@pytest.mark.parametrize("step", ["run_tokenize", "run_verify"])
def test_the_next_command_of_a_killed_recipe_is_the_one_that_was_typed(
    step: str, tmp_path: Path, vocab_dir: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(f'{RECIPE}path = "{vocab_dir}"\n')
    long_ago = {"event": "start", "argv": ["tokenize", "x=y"], "time": "2020-01-01T00:00:00.000+00:00"}
    write_log(Path("work"), "tokenize", long_ago)
    with monkeypatch.context() as patched:
        patched.setattr(f"pretok.steps.{step}", Mock(side_effect=KeyboardInterrupt))
        assert run_command(["run", "r.toml", "--workers", "0"]) == 75
    rows = status_of(Path("work"))
    (log,) = Path("work/logs").glob("run-*.jsonl")
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # SIGKILL leaves no last line
    for found in (rows, status_of(Path("work"))):
        assert {row.next for row in found if row.state != FINISHED} == {"pretok run r.toml --workers 0"}
        assert not any(row.next for row in found if row.state == FINISHED)
    monkeypatch.chdir("/")
    typed = f"cd {tmp_path} && pretok run r.toml --workers 0"
    assert typed in [row.next for row in status_of(tmp_path / "work")]


PROGRESS = {"event": "progress", "title": "count", "message": "count 6/20 40% 4 GB"}


@pytest.mark.parametrize(
    ("events", "detail"),
    [
        ([PROGRESS], "; count 6/20 40% 4 GB, "),
        ([], "; count, "),
        ([PROGRESS, {"event": "step_end"}], ""),
        ([PROGRESS, {"event": "end", "exit_code": 0}], ""),
    ],
)
def test_status_shows_the_progress_of_a_running_step_from_its_log(
    tmp_path: Path, events: list[dict[str, Any]], detail: str
) -> None:
    begun = [{"event": "start"}, {"event": "step", "title": "count"}]
    write_log(tmp_path, "count", *begun, *events, torn='{"event": "pro')
    with hold(tmp_path / "counts", "count"):
        words = by_name(tmp_path)["words"]
    assert (words.state, words.detail.startswith("count (host ")) == (RUNNING, True)
    assert words.detail.endswith(" ago") == bool(detail)
    assert detail in words.detail


def test_the_state_of_a_run_follows_from_its_files(tmp_path: Path) -> None:
    resolved = {"model": {"seq_len": 8}, "steps": 400}
    write_json(tmp_path / "config.json", {"model": "debug", "resolved": resolved})

    def shown() -> tuple[str, int | None, int | None, str]:
        (row,) = status_of(tmp_path)
        return row.state, row.done, row.planned, row.detail.rpartition("; ")[2]

    with hold(tmp_path, "train"):
        assert shown()[:3] == (RUNNING, 0, 400)
    text = ""
    for step in range(1, 301):
        slow = 1 + (step > 240)  # the latest 60 steps
        rates = {"seconds": slow, "tokens_per_second": 1000 / slow, "data_wait": 0.1}
        text += json.dumps({"step": step, "loss": 9.0 - step / 100, "time": NOW, **rates}) + "\n"
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 301, "lo')
    write_json(tmp_path / "checkpoints/step-00000010/meta.json", {})
    with hold(tmp_path, "train"):
        speed = "loss 6.0000, 500 tokens/s, 5.0% of the time waiting for data, ETA 3 min"
        assert shown() == (RUNNING, 300, 400, speed)
    assert shown() == (UNFINISHED, 300, 400, "run the same train command again")
    assert "newest checkpoint step-00000010" in status_of(tmp_path)[0].detail
    write_json(tmp_path / "done.json", {})
    assert shown()[0] == FINISHED
    work = tmp_path.with_name(f"{tmp_path.name}-work")
    work.mkdir()
    tmp_path.rename(work / "run")  # where `pretok run` says to train: it is a result, and nothing is next
    assert [(row.what, row.state, row.next) for row in status_of(work)] == [("run run", FINISHED, "")]
    fast = work.with_name(f"{work.name}-fast")
    fast.mkdir()
    (work / "run").rename(fast / "run")
    assert [row.what for row in status_of(work)] != ["run run"]
    write_log(work, "submit", {"event": "start", "settings": {"slurm": {"fast": str(fast)}}})
    assert ("run run", FINISHED) in [(row.what, row.state) for row in status_of(work)]
