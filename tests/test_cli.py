"""The command line: help with an example, exit codes, messages that name things."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from support import ROOT, make_shards, until, write_recipe

import pretok
import pretok.stream
from pretok.base.errors import PretokError
from pretok.cli import READER_GONE, app, run_command
from pretok.commands.help import COMMANDS

GROUP = typer.main.get_command(app)


def tokenizing(out: object, vocab: object, *inputs: str) -> list[str]:
    """A command that tokenizes in this process."""
    options = ("--out", str(out), "--vocab", str(vocab), "--workers", "0")
    return ["tokenize", *(inputs or ("it=sample:it",)), *options]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_examples_as_they_are_typed_and_explains_every_option(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")  # narrower than most examples
    assert run_command([name, "--help"]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    written = [line.strip() for line in GROUP.get_command(None, name).help.splitlines()]
    examples = [line for line in written if line.startswith("pretok ")]
    assert examples
    assert all(example.startswith(f"pretok {name} ") for example in examples)
    assert [line for line in shown if line.startswith("pretok ")] == examples
    # Options of keys, and those that a docstring describes.
    parameters = GROUP.get_command(None, name).params
    assert [one.name for one in parameters if one.param_type_name == "option" and not one.help] == []


def test_help_lists_every_command_in_the_order_of_the_flow(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if re.fullmatch(r"  [a-z-]+  +\S.*", line)]
    assert [name for name in listed if not name.startswith("--")] == list(COMMANDS)
    assert all(len(line) <= 80 for line in lines)


def test_the_version(capsys):
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out == f"pretok {pretok.__version__}\n"


def test_a_signal_is_code_75_and_the_next_run_continues(tmp_path, vocab_dir):
    line = json.dumps({"text": "una frase qualunque, abbastanza lunga. " * 50}) + "\n"
    (tmp_path / "a.jsonl").write_text(line * 12_000)  # 24 MB: a second of work
    recipe = write_recipe(tmp_path / "r.toml", {"it": f"{tmp_path}/a.jsonl"}, shards={"size": "256KiB"})
    command = [sys.executable, "-m", "pretok", *tokenizing(tmp_path / "out", vocab_dir, recipe)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    state = tmp_path / "out" / "shards" / ".state" / "it"
    until(lambda: process.poll() is not None or list(state.glob("it-0*.json")))
    os.kill(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert "run the same command again to continue" in errors
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(r"done by an earlier run, which left [1-9][\d,]* documents", done.stderr)


class Panic(BaseException):
    """As what a Rust library throws: no Exception."""


ENDS = [
    (Panic("rust"), 1, "this is a bug"),
    (OSError(9, "Bad file descriptor"), 1, "this is a bug"),
    (KeyboardInterrupt(), 75, "interrupted; run the same command again"),
    (MemoryError("Unable to get 9 TiB"), 2, "out of memory (Unable to get 9 TiB); use fewer --workers"),
    (PermissionError(13, "Permission denied", "/x/a.bin"), 2, "/x/a.bin: Permission denied; choose a path"),
    (OSError(28, "No space left on device", "/x/a"), 75, "No space left on device; free some space there"),
    (OSError(28, "No space left"), 75, "cannot write the output: No space left; free some space there"),
    (OSError(122, "Disk quota exceeded", "/x/a"), 75, "Disk quota exceeded; free some of your quota"),
    (OSError(116, "Stale file handle", "/x/a"), 75, "/x/a: Stale file handle; run the same command again"),
    (OSError(36, "File name too long", "/x/a"), 2, "/x/a: File name too long; choose a shorter name"),
    (OSError(18, "Invalid cross-device link", "/x/a", None, "/y/b"), 2, "/x/a -> /y/b: Invalid"),
]


@pytest.mark.parametrize(("error", "code", "message"), ENDS)
def test_what_ends_a_command_is_a_code_and_one_line(error, code, message, monkeypatch, capsys):
    """75 if the same command will do later; a bug shows its traceback."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("pretok.overview.report.page.run_report", fail)
    assert run_command(["report", "x"]) == code
    printed = capsys.readouterr().err
    assert message in printed
    assert ("Traceback" in printed) is (code == 1)
    assert code == 1 or len(printed.splitlines()) == 1


def test_the_exit_codes_stand_in_one_table():
    def codes(kind: type[PretokError]) -> set[int]:
        return {kind.exit_code}.union(*map(codes, kind.__subclasses__()))

    pages = {page: page.read_text() for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
    tables = {page.name: text.partition("| code | meaning |")[2] for page, text in pages.items()}
    rows = {name: re.findall(r"^\| (\d+) \|", table, re.M) for name, table in tables.items() if table}
    assert rows == {"running.md": [str(code) for code in sorted({0, READER_GONE} | codes(PretokError))]}


def test_a_mix_or_an_export_into_a_folder_is_one_line(tmp_path, capsys):
    shards = make_shards(tmp_path / "shards", {"it": [range(1, 90)]})
    for name, *options in (["mix", "--seq-len", "8"], ["export", "--to", "megatron"]):
        assert run_command([name, str(shards), *options, "--out", str(tmp_path)]) == 2
        printed = capsys.readouterr().err
        assert str(tmp_path) in printed
        assert "Traceback" not in printed


NO_TEXT = " is not UTF-8; if the terminal shows it right, the locale is wrong: export LC_ALL=C.UTF-8"


def test_what_a_command_cannot_work_with_is_said(tmp_path, capsys, monkeypatch):
    def said(*line: str) -> str:
        assert run_command([*line]) == 2
        out, errors = capsys.readouterr()
        assert out == ""
        return errors.strip()

    shards, gone = make_shards(tmp_path / "shards", {"it": [range(1, 9)]}), tmp_path / "gone"
    assert said("query", "x", "select '\udce9'") == f"pretok: \"select '\\udce9'\"{NO_TEXT}"
    monkeypatch.setenv("SLURM_JOB_END_TIME", "abc")
    set_it = "set it to seconds since 1970, as date +%s prints, or unset it"
    assert said("verify", str(shards)) == f"pretok: SLURM_JOB_END_TIME=abc is not a time; {set_it}"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    wanted = "pretok: the current folder was deleted; go to one that exists (cd)"
    assert said("tokenize", "it=sample:it", "--out", "o") == wanted


@pytest.mark.parametrize(
    ("shell", "message"),
    [
        ("$pretok status shards | true; [ ${PIPESTATUS[0]} = 141 ] && exit 2", ""),  # its reader is gone
        ("$pretok status x >&-", "pretok: standard output is closed; send it to a file, or to /dev/null"),
    ],
)
def test_a_process_that_nobody_reads_says_so(shell, message, tmp_path):
    make_shards(tmp_path / "shards", {"it": [range(1, 9)]})
    environment = {**os.environ, "pretok": f"{sys.executable} -m pretok"}
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-c", shell], check=False, **options)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", message)


def test_what_the_locale_cannot_write_is_escaped(tmp_path):
    shards = make_shards(tmp_path / "shards", {"città": [range(1, 9)]})
    command = [sys.executable, "-m", "pretok", "status", str(shards), "--json"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "citt\\xe0" in done.stdout


EITHER = (
    ["verify", "--workers", "0"], ["inspect", "--source", "it", "--doc", "0"], ["mix", "--seq-len", "64"],
    ["export", "--to", "megatron"], ["status"], ["disclose", "--format", "json"], ["report"],
    ["query", "--format", "json", "select count(*) from documents"],
)  # fmt: skip


def test_every_command_takes_the_results_or_their_shards(tmp_path, vocab_dir, capsys, monkeypatch):
    """An --out that is a folder of results itself is asked about; a folder has the name that was typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "home")
    assert run_command(tokenizing("o$HOME", vocab_dir)) == 0
    printed = capsys.readouterr().err
    assert "EOD '<|endoftext|>' (id 0), no token before it" in printed
    Path("o$HOME").rename("work")
    for name, *options in EITHER:
        outputs = []
        for folder in ("work", "work/shards"):
            assert run_command([name, folder, *options]) == 0, (name, folder)
            outputs.append(capsys.readouterr().out.replace("work/shards", "work"))
        assert outputs[0] == outputs[1], name
    assert Path("work/report.html").exists()
    assert len(pretok.stream.open("work", seq_len=64)) == len(pretok.stream.open("work/shards", seq_len=64))
    assert run_command(tokenizing("work/shards", vocab_dir)) == 2
    assert "did you mean work?" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path / "work" / "shards")
    assert run_command(tokenizing(".", vocab_dir)) == 2
    assert f"did you mean {tmp_path}/work?" in capsys.readouterr().err
    assert not Path("shards").exists()


@pytest.mark.usefixtures("few_buckets")
def test_the_recipe_with_code_and_translation_pairs_runs_to_a_mix(tmp_path, capsys):
    """pipelines/italia-code-pairs.toml as it is, but for paths and sizes."""
    pairs = [{"en": f"The sea has {n} waves.", "it": f"Il mare ha {n} onde."} for n in range(2000)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    sources = [path.read_text("utf-8") for path in sorted(ROOT.glob("pretok/*/*.py"))]
    names = [f"{n}.py" for n in range(len(sources))]
    pq.write_table(pa.table({"content": sources, "path": names}), tmp_path / "code.parquet")
    changes = {
        "PUT/YOUR/WORK/FOLDER/HERE": "work", "size = 50000": "size = 2000", "seq_len = 4096": "seq_len = 128",
        'tokens = "1.2T"': 'tokens = "100K"', "PUT/YOUR/ITALIAN/TEXT/HERE/**/*.jsonl.zst": "sample:it",
        "PUT/YOUR/ENGLISH/TEXT/HERE/**/*.parquet": "sample:en",
        "PUT/YOUR/CODE/HERE/**/*.parquet": "code.parquet",
        "PUT/YOUR/TRANSLATION/PAIRS/HERE/**/*.jsonl": "pairs.jsonl",
    }  # fmt: skip
    recipe = (ROOT / "pipelines" / "italia-code-pairs.toml").read_text("utf-8")
    for known, put in changes.items():
        assert recipe.count(known) == 1
        recipe = recipe.replace(known, put)
    (tmp_path / "r.toml").write_text(recipe)
    assert run_command(["run", str(tmp_path / "r.toml"), "--workers", "0"]) == 0
    work = pretok.open(tmp_path / "work")
    texts = [text for batch in work.texts("pairs") for text in batch["text"].to_pylist()]
    assert sorted(texts) == sorted(f"Traduci in italiano: {pair['en']}\n{pair['it']}" for pair in pairs)
    code = [row for batch in work.texts("code", columns=["path"]) for row in batch.to_pylist()]
    assert {row["path"]: row["text"] for row in code} == dict(zip(names, sources, strict=True))
    counts = pretok.stream.open(work.folder / "shards", work.folder / "mix.json").prefix_counts(781)
    assert sum(counts.values()) == 781 == 100_000 // 128
    shares = {name: count / 781 for name, count in counts.items()}
    assert shares == pytest.approx({"it": 0.72, "en": 0.08, "code": 0.18, "pairs": 0.02}, abs=2 / 781)
    assert counts["it"] / (counts["it"] + counts["en"]) == pytest.approx(0.9, abs=0.002)
