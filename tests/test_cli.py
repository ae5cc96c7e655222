"""The command line: help with an example, exit codes, messages that name things."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer
from support import ROOT, make_shards, until, write_recipe

import pretok.stream
from pretok.base.errors import PretokError
from pretok.cli import READER_GONE, app, run_command
from pretok.commands.help import COMMANDS
from pretok.shards.manifest import load_manifest

GROUP = typer.main.get_command(app)


def tokenizing(out, vocab, *inputs: str) -> list[str]:
    """A command that tokenizes in this process."""
    return [
        "tokenize",
        *(inputs or ("it=sample:it",)),
        "--out",
        str(out),
        "--vocab",
        str(vocab),
        "--workers",
        "0",
    ]


def test_commands_are_those_we_decided_on():
    assert sorted(COMMANDS) == [
        "annotate", "build-vocab", "certify", "count", "disclose", "export", "init", "inspect", "mix", "plan",
        "preflight", "query", "remove", "report", "run", "status", "submit", "tokenize", "trace", "verify",
    ]  # fmt: skip


def examples(name: str) -> list[str]:
    """The lines of a command's docstring that are commands to type."""
    command = GROUP.get_command(None, name)
    return [line.strip() for line in command.help.splitlines() if line.strip().startswith("pretok ")]


@pytest.mark.parametrize("columns", ["40", "80"])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_examples_as_they_are_typed(name, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert run_command([name, "--help"]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert examples(name)
    assert all(example.startswith(f"pretok {name} ") for example in examples(name))
    assert [line for line in shown if line.startswith("pretok ")] == examples(name)


def test_some_examples_hold_what_markup_would_eat():
    shown = " ".join(examples("tokenize"))
    assert "'data/it/*.jsonl.zst'" in shown


def test_help_lists_every_command_in_the_order_of_the_flow(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if re.fullmatch(r"  [a-z-]+  +\S.*", line)]
    assert sorted(name for name in listed if not name.startswith("--")) == sorted(COMMANDS)
    flow = ["count", "build-vocab", "tokenize", "verify", "mix", "export"]
    assert [name for name in listed if name in flow] == flow
    assert all(len(line) <= 80 for line in lines)


def test_the_version(capsys):
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out == f"pretok {version('pretok')}\n"
    assert f"\nversion: {version('pretok')}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tokenise"], "No such command"),
        (["tokenize", "it=none*.jsonl", "--out", "work", "--workers", "0"], "no tokenizer at"),
        (["tokenize", "a.jsonl", "--out", "work"], "neither a recipe"),
        (["tokenize", "it=a.jsonl"], "--out work"),
        (["tokenize", "none.toml"], "none.toml does not exist"),
        (["tokenize", "a.toml", "it=b"], "not both"),
        (["run", "none.toml"], "none.toml does not exist"),
        (["verify", "nowhere", "--workers", "0"], "run pretok tokenize"),
        (["tokenize", "it=a.jsonl", "--out", "work", "--workers", "-1"], "--workers"),
    ],
)
def test_wrong_usage_is_code_2_and_says_why(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_input_that_matches_nothing(tmp_path, vocab_dir, capsys):
    assert run_command(tokenizing(tmp_path, vocab_dir, "it=/nowhere/*.jsonl")) == 2
    assert "no input matches '/nowhere/*.jsonl'" in capsys.readouterr().err


def test_failed_partitions_are_code_3(tmp_path, vocab_dir, capsys):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really PAR1")
    (tmp_path / "b.jsonl").write_text('{"text": "buono"}\n')
    inputs = [f"it={tmp_path}/a.parquet", f"it={tmp_path}/b.jsonl"]
    assert run_command(tokenizing(tmp_path / "out", vocab_dir, *inputs)) == 3
    assert "a.parquet: damaged Parquet" in capsys.readouterr().err
    assert run_command(["status", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["state"] == "failed"
    assert run_command(["verify", str(tmp_path / "out" / "shards"), "--workers", "0"]) == 2


def test_counts_of_a_damaged_input_are_code_3(tmp_path, capsys):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really PAR1")
    (tmp_path / "b.jsonl").write_text('{"text": "buono"}\n')
    command = ["count", f"it={tmp_path}/a.parquet", f"it={tmp_path}/b.jsonl", "--out", str(tmp_path / "out")]
    assert run_command([*command, "--workers", "0", "--json"]) == 3
    printed = capsys.readouterr()
    assert "a.parquet: damaged Parquet" in printed.err
    assert f"delete {tmp_path}/out/counts" in printed.err
    assert json.loads(printed.out)["sources"]["it"]["read"] == 1


def test_an_internal_error_is_code_1(monkeypatch, capsys):
    monkeypatch.setattr("pretok.report.page.run_report", lambda *a, **k: 1 / 0)
    assert run_command(["report", "x"]) == 1
    assert "this is a bug" in capsys.readouterr().err


def test_a_signal_is_code_75_and_the_next_run_continues(tmp_path, vocab_dir):
    line = json.dumps({"text": "una frase qualunque, abbastanza lunga. " * 50}) + "\n"
    with (tmp_path / "a.jsonl").open("w") as file:
        for _ in range(40_000):  # 80 MB: seconds of work
            file.write(line)
    recipe = write_recipe(tmp_path / "r.toml", {"it": f"{tmp_path}/a.jsonl"}, shards={"size": "1MiB"})
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


def test_an_interrupted_command_is_one_line_and_code_75(monkeypatch, capsys):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pretok.report.page.run_report", interrupted)
    assert run_command(["report", "x"]) == 75
    printed = capsys.readouterr().err
    assert "interrupted; run the same command again" in printed
    assert len(printed.splitlines()) == 1


class Panic(BaseException):
    """As what a Rust library throws: no Exception."""


def raising(error: BaseException):
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", [Panic("rust"), ZeroDivisionError(), OSError(9, "Bad file descriptor")])
def test_bugs_are_code_1_with_a_traceback(error, monkeypatch, capsys):
    monkeypatch.setattr("pretok.report.page.run_report", raising(error))
    assert run_command(["report", "x"]) == 1
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "this is a bug" in printed


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "pretok: out of memory; use fewer --workers"),
        (MemoryError("Unable to allocate 9 TiB"), "(Unable to allocate 9 TiB)"),
        (PermissionError(13, "Permission denied", "/x/a.bin"), "/x/a.bin: Permission denied; choose a path"),
        (OSError(30, "Read-only file system", "/x/a"), "/x/a: Read-only file system; choose a path"),
        (OSError(28, "No space left on device", "/x/a"), "No space left on device; make room there"),
        (
            OSError(28, "No space left on device"),
            "cannot write the output: No space left on device; make room there",
        ),
        (OSError(122, "Disk quota exceeded", "/x/a"), "Disk quota exceeded; make room in your quota"),
        (OSError(36, "File name too long", "/x/a"), "/x/a: File name too long; choose a shorter name"),
        (PermissionError(13, "Permission denied"), "a file: Permission denied; choose a path"),
        (OSError(18, "Invalid cross-device link", "/x/a", None, "/y/b"), "/x/a -> /y/b: Invalid"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_code_2_or_75(error, message, monkeypatch, capsys):
    """75 where the same command will do once there is room."""
    monkeypatch.setattr("pretok.report.page.run_report", raising(error))
    assert run_command(["report", "x"]) == (75 if "make room" in message else 2)
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.splitlines()) == 1


def test_the_exit_codes_stand_in_one_table():
    def codes(kind: type[PretokError]) -> set[int]:
        return {kind.exit_code}.union(*map(codes, kind.__subclasses__()))

    pages = {page: page.read_text() for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
    tables = {
        page.name: re.findall(r"^\| (\d+) \|", text.partition("| code | meaning |")[2], re.M)
        for page, text in pages.items()
    }
    assert {page: rows for page, rows in tables.items() if rows} == {
        "running.md": [str(code) for code in sorted({0, READER_GONE} | codes(PretokError))]
    }


def test_what_may_pass_ends_a_command_with_75(monkeypatch, capsys):
    def fail(*_: object, **__: object) -> None:
        raise OSError(116, "Stale file handle", "/x/a")

    monkeypatch.setattr("pretok.report.page.run_report", fail)
    assert run_command(["report", "x"]) == 75
    assert "/x/a: Stale file handle; run the same command again to continue" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["count", "build-vocab", "tokenize"])
def test_an_output_that_is_a_file_is_one_line(command, tmp_path, vocab_dir, capsys):
    (tmp_path / "taken").write_text("mine")
    arguments = [command, "it=sample:it", "--out", str(tmp_path / "taken"), "--workers", "0"]
    arguments += ["--vocab", str(vocab_dir)] if command == "tokenize" else []
    assert run_command(arguments) == 2
    assert f"--out {tmp_path}/taken is a file; name a folder" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_mix_or_an_export_into_a_folder_is_one_line(tmp_path, capsys):
    shards = make_shards(tmp_path / "shards", {"it": [range(1, 90)]})
    for command in (["mix", "--seq-len", "8"], ["export", "--to", "megatron"]):
        assert run_command([command[0], str(shards), *command[1:], "--out", str(tmp_path)]) == 2
        printed = capsys.readouterr().err
        assert str(tmp_path) in printed
        assert "Traceback" not in printed


@pytest.mark.parametrize("command", ["status", "status --json", "inspect --source it"])
def test_a_reader_that_goes_away_is_no_error(command, tmp_path, vocab_dir):
    assert run_command(tokenizing(tmp_path, vocab_dir)) == 0
    name, *options = command.split()
    pipe = f"{sys.executable} -m pretok {name} {tmp_path}/shards {' '.join(options)} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", pipe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == "141\n"


NO_TEXT = " is not UTF-8; if the terminal shows it right, the locale is wrong: export LC_ALL=C.UTF-8"


@pytest.mark.parametrize(
    ("shell", "message"),
    [
        ("$pretok status x >&-", "pretok: standard output is closed; send it to a file, or to /dev/null"),
        ("$train --shards x >&-", "train: standard output is closed; send it to a file, or to /dev/null"),
        ("mkdir gone; cd gone; rmdir ../gone; $pretok tokenize it=sample:it --out o",
         "pretok: the current folder was deleted; go to one that exists (cd)"),
        ("$pretok query x $'select \\'\\xe9\\''", f"pretok: \"select '\\udce9'\"{NO_TEXT}"),
        ("LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 $pretok status é", f"pretok: '\\udcc3\\udca9'{NO_TEXT}"),
        ("SLURM_JOB_END_TIME=abc $pretok verify shards",
         "pretok: SLURM_JOB_END_TIME=abc is no time; set it to seconds since 1970, as date +%s prints, or unset it"),
    ],
)  # fmt: skip
def test_a_process_that_cannot_work_says_so(shell, message, tmp_path):
    make_shards(tmp_path / "shards", {"it": [range(1, 9)]})
    programs = {name: f"{sys.executable} -m {name}" for name in ("pretok", "train")}
    done = subprocess.run(
        ["bash", "-c", shell],
        cwd=tmp_path,
        env={**os.environ, **programs},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", message)


def test_a_folder_is_called_what_was_typed(tmp_path, vocab_dir, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "home")
    for command in (
        tokenizing("o$HOME", vocab_dir),
        ["mix", "o$HOME", "--out", "o$HOME/mix.json", "--seq-len", "8"],
    ):
        assert run_command(command) == 0
    assert sorted(path.name for path in (tmp_path / "o$HOME").iterdir()) == ["logs", "mix.json", "shards"]


def test_what_the_locale_cannot_write_is_escaped(tmp_path):
    shards = make_shards(tmp_path / "shards", {"città": [range(1, 9)]})
    done = subprocess.run(
        [sys.executable, "-m", "pretok", "status", str(shards), "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "citt\\xe0" in done.stdout


def test_an_output_folder_that_is_a_result_is_asked_about(tmp_path, vocab_dir, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(tokenizing("work", vocab_dir)) == 0
    assert run_command(tokenizing("work/shards", vocab_dir)) == 2
    assert "did you mean --out work?" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path / "work" / "shards")
    assert run_command(tokenizing(".", vocab_dir)) == 2
    assert f"did you mean --out {tmp_path}/work?" in capsys.readouterr().err
    assert not (tmp_path / "work" / "shards" / "shards").exists()


EITHER = (
    ["verify", "--workers", "0"], ["inspect", "--source", "it", "--doc", "0"], ["mix", "--seq-len", "64"],
    ["export", "--to", "megatron"], ["status"], ["disclose", "--format", "json"], ["report"],
    ["query", "--format", "json", "select count(*) from documents"],
)  # fmt: skip


def test_every_command_takes_the_results_or_their_shards(tmp_path, vocab_dir, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command(tokenizing("work", vocab_dir)) == 0
    assert (
        "each document ends with '<|endoftext|>' (id 0), nothing is put before it" in capsys.readouterr().err
    )
    for name, *options in EITHER:
        said = []
        for folder in ("work", "work/shards"):
            assert run_command([name, folder, *options]) == 0, (name, folder)
            said.append(capsys.readouterr().out)
        assert said[0].replace("work/shards", "work") == said[1].replace("work/shards", "work"), name
    assert (tmp_path / "work/report.html").exists()
    assert len(pretok.stream.open("work", seq_len=64)) == len(pretok.stream.open("work/shards", seq_len=64))
    assert run_command([*tokenizing("other", vocab_dir), "--eod", "<|pad|>"]) == 0
    assert load_manifest(tmp_path / "other").tokenizer.eod_id == 1
    assert run_command(["tokenize", "it=sample:it", "--out", "third", "--eod", "<|pad|>"]) == 2
    assert "name the tokenizer that has it: path, or --vocab" in capsys.readouterr().err


def test_another_setting_than_before_says_what_it_was(tmp_path, vocab_dir, capsys):
    first = tokenizing(tmp_path, vocab_dir)
    assert run_command([*first, "--val-fraction", "0.01"]) == 0
    capsys.readouterr()
    assert run_command(first) == 2
    assert "val_fraction was 0.01 and is 0. Restore that," in capsys.readouterr().err


def test_chats_are_told_to_be_read_as_messages(tmp_path, vocab_dir, capsys):
    (tmp_path / "chat.jsonl").write_text('{"id": "a", "messages": [{"role": "user", "content": "ciao"}]}\n')
    assert run_command(tokenizing(tmp_path / "out", vocab_dir, f"it={tmp_path}/chat.jsonl")) == 2
    assert "holds conversations: write messages = 'messages'" in capsys.readouterr().err


def test_the_shards_of_a_vocabulary_go_beside_it(tmp_path, capsys):
    (tmp_path / "work" / "vocab").mkdir(parents=True)
    (tmp_path / "work" / "vocab" / "tokenizer.json").write_text("{}")
    for name in ("shards", "vocab"):
        assert run_command(["tokenize", "it=sample:it", "--out", f"{tmp_path}/work/{name}"]) == 2
        assert f"did you mean --out {tmp_path}/work?" in capsys.readouterr().err


def test_a_manifest_of_another_program_is_none_of_ours(tmp_path, vocab_dir):
    (tmp_path / "manifest.json").write_text('{"name": "app"}')
    assert run_command(tokenizing(tmp_path, vocab_dir)) == 0


def test_shards_by_another_name_are_recognized(tmp_path, capsys):
    shards = make_shards(tmp_path / "tokens", {"it": [range(1, 9)]})
    assert run_command(["tokenize", "it=sample:it", "--out", str(shards)]) == 2
    assert f"did you mean --out {tmp_path}?" in capsys.readouterr().err


def test_a_rerun_with_nothing_to_do_says_so_in_one_line(tmp_path, vocab_dir, capsys):
    command = tokenizing(tmp_path, vocab_dir)
    assert run_command(command) == 0
    first = capsys.readouterr().out
    assert "bytes/token" in first
    assert run_command(command) == 0
    again = capsys.readouterr().out
    assert "bytes/token" not in again
    assert re.search(r"shards: [\d,]+ tokens of [\d,]+ documents, complete and unchanged", again)
    assert run_command(tokenizing(tmp_path, vocab_dir, "it=sample:it", "en=sample:en")) == 0
    assert "bytes/token" in capsys.readouterr().out


def test_the_field_of_all_sources(tmp_path, vocab_dir, capsys):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"content": "buono"}\n{"content": "bello"}\n')
    inputs = [f"a={tmp_path}/a.jsonl", f"b={tmp_path}/b.jsonl", "--field", "content"]
    assert run_command([*tokenizing(tmp_path / "out", vocab_dir, *inputs), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 4
    command = ["count", *inputs, "--out", str(tmp_path / "counted"), "--json", "--workers", "0"]
    assert run_command(command) == 0
    assert json.loads(capsys.readouterr().out)["sources"]["b"]["documents"] == 2


@pytest.mark.parametrize("text", ["5X", "-1", "1e99"])
def test_a_limit_of_the_preflight_that_is_no_number_is_wrong_usage(text, tmp_path, capsys):
    assert run_command(["preflight", str(tmp_path), f"--min-free={text}"]) == 2
    assert f"{text!r} is not a count such as" in capsys.readouterr().err
