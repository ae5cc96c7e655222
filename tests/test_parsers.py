"""Files of ours and of others with anything changed: a reader gives what stands there or an error of the project,
nothing else, in bounded memory.

A row of READERS for each format: a real file, and what reads it. Any bytes of it are changed, cut or added; of JSON any
value is another one, and where a seal vouches for the contents it is made right again, as somebody would who knows how.
Flipped bits and forged values of each format have tests of their own, which say what the error is.
"""

from __future__ import annotations

import copy
import gzip
import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from chatting import write_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from mixing import write_segment
from reading import bounded, wet
from support import needs
from test_golden import GOLDEN

import pretok.stream
from pretok.base.errors import IntegrityError, PretokError, UsageError
from pretok.base.lock import holder_of
from pretok.base.storage import fingerprint, write_json
from pretok.base.tree import prove_nodes
from pretok.chat.messages import load_tools
from pretok.chat.read_documents import documents_of
from pretok.chat.resolve import resolve
from pretok.cli import run_command
from pretok.config.recipes import load_recipe
from pretok.documents.audit.trace import open_traced
from pretok.documents.certificate.certify import certify_step
from pretok.documents.certificate.check import check_certificate
from pretok.documents.disclosure.summary import load_answers
from pretok.overview.history import read_jobs, read_run
from pretok.overview.status import status_of
from pretok.read.files import CorruptInputError
from pretok.read.format import Piece
from pretok.read.kept import KeptColumn
from pretok.read.normalize import Normalization
from pretok.read.probe import probe_inputs
from pretok.read.readers import read_piece
from pretok.read.recognise import list_inputs
from pretok.read.record_format import Conversation, RecordFormat
from pretok.read.source_plan import PLAN_FILE, read_plan
from pretok.screen.benchmark import read_benchmark
from pretok.shards.annotations import read_annotations
from pretok.shards.ledger import ledger_windows
from pretok.shards.manifest import load_manifest
from pretok.shards.names import read_names
from pretok.shards.shard_file import ShardReader
from pretok.shards.spans import ShardSpans
from pretok.stream.mix_file import load_mix
from pretok.stream.segments import open_segments, read_segments
from pretok.stream.tapes import SideTape, verify_side_file
from pretok.tokenizer.vocab_map import MapEnd, read_map, write_map
from pretok.tokenizer.vocabulary import Vocabulary, load_vocab
from pretok.vocab.counts.buckets import read_group, read_metadata
from pretok.vocab.counts.counts_file import load_counts

MEMORY = 256 << 20
"""Bytes that reading any change of a file of some kB may take."""
PAGE = MEMORY + (4 << 30)
"""The same of Parquet: a header may say 2 GiB of a page and of what it shrank to, which Arrow takes before it looks."""


TRIED = settings(derandomize=True, max_examples=8 if settings.get_current_profile_name() == "few" else 100)
"""The same examples in every run: what is found is mended, and a row or example of its own."""


class Reader(NamedTuple):
    """file: in the folder of `work`, of a glob the first; read: what reads it; raises: as what it is refused; memory:
    bytes that this may take."""

    file: str
    read: Callable[[Path], object]
    raises: tuple[type[Exception], ...] = (PretokError,)
    memory: int = MEMORY


def read_input(path: Path) -> None:
    """As tokenize reads an input: what is refused or damaged is told, of the rest every text is UTF-8."""
    keep = (KeptColumn("id", "id", "text"), KeptColumn("n", "n", "integer"))
    for file in list_inputs([str(path)], "auto")[0]:
        with suppress(UsageError):  # no field is the text: the first records of a file say little
            probe_inputs([file], ("text",))
        for batch in read_piece(Piece(file), 0, RecordFormat(max_document=1 << 20), keep):
            batch.texts.validate(full=True)
            assert len(batch.texts) + len(batch.rejects) == batch.records


@cache
def vocab_of(folder: Path) -> Vocabulary:
    """The vocabulary of `work`; its file and the template beside it are read once."""
    return load_vocab(folder / "tokenizer.json", eod="<|endoftext|>")


@cache
def chat_record(folder: Path) -> RecordFormat:
    """How `work` reads conversations."""
    return resolve(CHATS, vocab_of(folder), "chat")


def read_chats(path: Path) -> None:
    """As tokenize reads conversations."""
    record = chat_record(path.parent / "vocab")
    make = documents_of(record, Normalization())
    for file in list_inputs([str(path)], "auto")[0]:
        for batch in read_piece(Piece(file), 0, record):
            make(batch).texts.validate(full=True)


CHATS = RecordFormat("messages", max_document=1 << 20, conversation=Conversation(fields=False, template=""))


def read_template(path: Path) -> None:
    unread = copy.copy(vocab_of(path.parent))
    vars(unread).pop("config", None)
    resolve(CHATS, unread, "chat")


def read_stream(path: Path) -> None:
    view = pretok.stream.open(path.parent / "shards", path)
    view.batch([0, len(view) - 1], loss=True)


def read_side_file(path: Path) -> None:
    file = SideTape(path.parent, path.name.removesuffix(".side"))
    file.holding(0, 1 << 60)
    if problems := verify_side_file(path):
        raise IntegrityError(problems[0])


def read_run_folder(path: Path) -> None:
    run = path.parent
    open_segments(read_segments(run), load_manifest(run.parent))
    read_run(run)
    status_of(run)


def read_checkpoint(path: Path) -> None:
    needs("torch")
    from train.checkpoint.meta import check_files, read_meta

    meta = read_meta(path.parent)
    check_files(path.parent, meta)


def read_tensors(path: Path) -> None:
    """As a run resumes, without the comparison with checksums."""
    torch = needs("torch")
    from train.checkpoint.meta import read_meta
    from train.checkpoint.tensors import Reader, restore

    reader = Reader(path.parent, read_meta(path.parent))
    restore({"model.embed_tokens.weight": torch.zeros(640, 4)}, reader)


READERS: dict[str, Reader] = {
    "manifest": Reader("shards/manifest.json", lambda path: load_manifest(path.parent)),
    "mix": Reader("mix.json", load_mix),
    "mix, streamed": Reader("mix.json", read_stream),
    "side file": Reader("side_files/*.side", read_side_file),
    "index": Reader("shards/it/it-00000.idx", lambda path: ShardReader(path.with_suffix(""))),
    "nodes": Reader("shards/it/it-00000.nodes", lambda path: prove_nodes(path.with_suffix(".bin"), 400, "0")),
    "spans": Reader("shards/chat/chat-00000.spans", ShardSpans),
    "ledger": Reader("shards/it/it-00000.docs.parquet", lambda path: list(ledger_windows(path)), memory=PAGE),
    "plan": Reader("it/plan.json", lambda path: read_plan(path).partitions),
    "annotations": Reader(
        "shards/annotations/marks/annotations.json", lambda path: read_annotations(path.parent)
    ),
    "tokenizer": Reader("vocab/tokenizer.json", load_vocab),
    "tokenizer_config": Reader("vocab/tokenizer_config.json", read_template),
    "chat template": Reader("vocab/chat_template.jinja", read_template),
    "tools": Reader("tools.json", load_tools),
    "vocab_map": Reader("vocab_map.json", read_map),
    "counts": Reader("counts/counts.json", lambda path: load_counts(path.parent)),
    "bucket": Reader(
        "counts/bucket-01.parquet", lambda path: (read_group(path, 0), read_metadata(path)), memory=PAGE
    ),
    "recipe": Reader("recipe.toml", load_recipe),
    "answers": Reader("disclosure.toml", lambda path: load_answers(path, {"it", "en"})),
    "ids": Reader("ids.txt", read_names),
    "benchmark": Reader("benchmark/a.jsonl", lambda path: read_benchmark(path.parent)),
    "certificate": Reader("step.certificate", lambda path: check_certificate(path, "0" * 64)),
    "run settings": Reader("shards/run/config.json", read_run_folder),
    "run segments": Reader("shards/run/segments.jsonl", read_run_folder),
    "run metrics": Reader("shards/run/metrics.jsonl", read_run_folder),
    "run checkpoint": Reader(
        "shards/run/checkpoints/step-00000003/meta.json", lambda path: open_traced(path.parents[2], None)
    ),
    "rejects": Reader(
        "shards/rejects/it-00000.jsonl",
        lambda path: list(load_manifest(path.parents[1]).reject_lines("it")),
    ),
    "log": Reader(
        "logs/tokenize-*.jsonl", lambda path: (read_jobs(path.parent.parent), status_of(path.parent.parent))
    ),
    "lock": Reader("locked/.lock", lambda path: holder_of(path.parent)),
    "checkpoint": Reader("checkpoint/meta.json", read_checkpoint),
    "checkpoint's index": Reader("checkpoint/index-00000.json", read_tensors),
    "checkpoint's tensors": Reader("checkpoint/rank-00000.safetensors", read_tensors),
    "JSON Lines": Reader("it.jsonl", read_input, (PretokError, CorruptInputError)),
    "gzip": Reader("it.jsonl.gz", read_input, (PretokError, CorruptInputError)),
    "zstd": Reader("it.jsonl.zst", read_input, (PretokError, CorruptInputError)),
    "Parquet": Reader("it.parquet", read_input, (PretokError, CorruptInputError), memory=PAGE),
    "Parquet, plain": Reader("plain.parquet", read_input, (PretokError, CorruptInputError), memory=PAGE),
    "Arrow": Reader("it.arrow", read_input, (PretokError, CorruptInputError), memory=PAGE),
    "WET": Reader("it.wet", read_input, (PretokError, CorruptInputError)),
    "conversations": Reader("chat.jsonl", read_chats, (PretokError, CorruptInputError)),
}


STRANGE: list[Any] = [
    None, True, -1, 0, 2**63, 10**400, 1.5, 1e308, "", "x" * 5000, "../../x", "\0", [], {}, [[]], [None]
]  # fmt: skip
BYTES = [
    b"null", b"-1", b"1e999", b"[" * 5000, b'"\xff"', b"{}", b'"\\ud800"', b"9" * 5000, b"\xef\xbb\xbf", b"\n"
]  # fmt: skip


def without(*keys: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A seal that is the fingerprint of all but these keys."""
    return lambda data: (
        data | {"seal": fingerprint({k: v for k, v in data.items() if k not in ("seal", *keys)})}
    )


SEALS = {"checkpoint": without(), "annotations": without("format", "version")}
STATED = re.compile(r"states (\w+) '?\w+'?, but its content has (\w+)")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, sample_texts: dict[str, list[str]]) -> Path:
    """All that is read, made by the commands."""
    work = tmp_path_factory.mktemp("parsers")
    vocab = write_tokenizer(work / "vocab", "qwen3", sample_texts["it"][:30])
    config = json.loads((vocab / "tokenizer_config.json").read_text())
    (vocab / "chat_template.jinja").write_text(config["chat_template"])
    texts = [{"text": f"numero {n} " * (n % 5 + 1), "id": f"i{n}", "n": n} for n in range(60)]
    lines = "".join(json.dumps(text) + "\n" for text in texts).encode()
    write_inputs(work, lines + b"[]\n", texts)
    (work / "recipe.toml").write_text(
        f'out = "{work}"\n[sources.it]\ninputs = ["it.jsonl"]\nkeep = ["id", "n:integer"]\n[sources.chat]\n'
        f'inputs = ["chat.jsonl"]\nmessages = "messages"\nkeep = ["id"]\n'
        f'[vocab]\npath = "{vocab}"\neod = "<|endoftext|>"\n[shards]\nmax_reject_share = 0.5\n'
        "[mix]\nseq_len = 16\n"
    )
    here = ("--workers", "0")
    for command in (
        ("count", f"it={work}/it.jsonl", "--out", str(work), *here),
        ("tokenize", str(work / "recipe.toml"), *here),
        ("annotate", f"{work}/shards", f"{work}/marks.jsonl", "--by", "id", "--columns", "mark",
         "--name", "marks"),
        ("mix", f"{work}/shards", "--out", f"{work}/mix.json", "--seq-len", "16", "--pack", "best-fit",
         "--class", "low=it where n < 20", "--stage", "300:low=0.4,it=0.3,chat=0.3", "--max-epochs", "99"),
    ):  # fmt: skip
        assert run_command(list(command)) == 0, command
    write_others(work)
    return work


def write_inputs(work: Path, lines: bytes, texts: list[dict[str, Any]]) -> None:
    """The same documents in every format, and conversations."""
    (work / "it.jsonl").write_bytes(lines)
    (work / "marks.jsonl").write_text("".join(f'{{"id": "i{n}", "mark": {n}}}\n' for n in range(40)))
    (work / "it.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    (work / "it.jsonl.zst").write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(lines))
    (work / "it.wet").write_bytes(wet([text["text"] for text in texts]))
    table = pa.Table.from_pylist(texts)
    pq.write_table(table, work / "it.parquet", row_group_size=15)
    views = table.set_column(0, "text", table["text"].cast(pa.string_view()))
    pq.write_table(
        views, work / "plain.parquet", compression="none", use_dictionary=False, data_page_version="2.0"
    )
    with pa.ipc.new_stream(work / "it.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=15)
    chats = [
        [
            {"role": "user", "content": f"come {n}"},
            {"role": "assistant", "content": "bene", "reasoning_content": "x"},
        ]
        for n in range(20)
    ]
    (work / "chat.jsonl").write_text(
        "".join(json.dumps({"messages": chat, "id": f"c{n}"}) + "\n" for n, chat in enumerate(chats))
    )


def write_others(work: Path) -> None:
    """What other commands leave, or a person writes."""
    view = pretok.stream.open(work / "shards", work / "mix.json")
    run = work / "shards" / "run"
    run.mkdir()
    write_json(run / "config.json", {"model": "debug", "resolved": {"model": {"seq_len": 16}, "steps": 9}})
    write_segment(run, work / "shards", view, 2, mix=str(work / "mix.json"))
    line = {"time": "2026-01-01T00:00:00+00:00", "step": 1, "tokens": 32, "loss": 3.5, "seconds": 0.1, "skipped": 0,
            "tokens_per_second": 320.0, "data_wait": 0.0, "val_loss": 3.5}  # fmt: skip
    for name in ("metrics.jsonl", "validation.jsonl"):
        (run / name).write_text(2 * (json.dumps(line) + "\n"))
    write_json(run / "checkpoints/step-00000003/meta.json", {"step": 3, "progress": {"position": 6}})
    certify_step(run, 2, None, work / "step.certificate")
    (work / "it").mkdir()
    shutil.copy(work / "shards/it/it.files.json", work / "it" / PLAN_FILE)
    write_map(work / "vocab_map.json", MapEnd(5, "a" * 32), MapEnd(7, "b" * 32), {5: (1, 2), 6: (3,)})
    write_json(work / "tools.json", [{"type": "function", "function": {"name": "f", "parameters": {}}}])
    (work / "disclosure.toml").write_text(
        'crawlers = "x"\n[provider]\nname = "y"\n[sources.it]\ncategory = "other"\n'
    )
    (work / "ids.txt").write_text("i1\ni2\n" + "0" * 32 + "\n")
    (work / "benchmark").mkdir()
    (work / "benchmark/a.jsonl").write_text(
        '{"question": "one two three four five six seven eight nine"}\n' * 3
    )
    (work / "locked").mkdir()
    holder = {"what": "x", "host": "h", "pid": 1, "machine": "m", "started": "1", "job": "", "restarts": 0,
              "since": "2026", "token": "t"}  # fmt: skip
    (work / "locked/.lock").write_text(json.dumps(holder))
    with tarfile.open(GOLDEN / "checkpoints.tar.xz") as archive:
        archive.extractall(work / "golden", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    shutil.copytree(work / "golden/checkpoints/1x1x1/checkpoints/step-00000003", work / "checkpoint")


def changed(data: bytes, draw: Any) -> bytes:
    """Bytes put in the place of others, or bits flipped."""
    if draw(st.booleans()):
        at, size = draw(st.integers(0, len(data))), draw(st.integers(0, 40) | st.just(len(data)))
        return data[:at] + draw(st.binary(max_size=20) | st.sampled_from(BYTES)) + data[at + size :]
    flipped = bytearray(data)
    for at in draw(st.lists(st.integers(0, max(0, len(data) - 1)), min_size=1, max_size=4)) if data else ():
        flipped[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(flipped)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each value of a JSON value stands."""
    if path:
        yield path
    for key, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(inner, (*path, key))


def forged(value: Any, draw: Any) -> Any:
    """JSON in which some values are others, gone, or stand where others did."""
    made = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        every = list(places(made))
        if not every:
            return made
        *path, key = draw(st.sampled_from(every))
        inside = made
        for step in path:
            inside = inside[step]
        match draw(st.sampled_from(["strange", "near", "swap", "delete", "twice"])):
            case "strange":
                inside[key] = copy.deepcopy(draw(st.sampled_from(STRANGE)))
            case "near" if type(inside[key]) in (int, float):
                inside[key] += draw(st.sampled_from([-1, 1, -inside[key], 10**6, 2**40]))
            case "swap":
                other = made
                for step in draw(st.sampled_from(every)):
                    other = other[step]
                inside[key] = copy.deepcopy(other)
            case "twice" if isinstance(inside, list):
                inside.insert(key, inside[key])
            case _:
                del inside[key]
    return made


def path_of(kind: str, work: Path) -> Path:
    return sorted(work.glob(READERS[kind].file))[0]


@cache
def warmed(kind: str, path: Path) -> None:
    """The file is read as it is: what is loaded or compiled for it counts for none of its changes."""
    with suppress(PretokError):
        READERS[kind].read(path)


def reading(kind: str, path: Path, data: bytes) -> str:
    """Read a file with these bytes, and put it back; what it is refused with."""
    reader, whole = READERS[kind], path.read_bytes()
    warmed(kind, path)
    try:
        path.write_bytes(data)
        with bounded(reader.memory):
            try:
                reader.read(path)
            except reader.raises as error:
                return str(error)
    finally:
        path.write_bytes(whole)
    return ""


def reading_json(kind: str, path: Path, value: Any) -> str:
    """The same for JSON, of which all seals are right."""
    for _ in range(3):
        if kind in SEALS and isinstance(value, dict):
            value = SEALS[kind](value)
        message = reading(kind, path, json.dumps(value).encode())
        if not (stated := STATED.search(message)) or not isinstance(value, dict):
            break
        value[stated[1]] = stated[2]
    return message


@pytest.mark.parametrize("kind", READERS)
@given(data=st.data())
@TRIED
def test_any_bytes_are_read_or_refused(work: Path, kind: str, data: st.DataObject) -> None:
    path = path_of(kind, work)
    reading(kind, path, changed(path.read_bytes(), data.draw))


@pytest.mark.parametrize(
    "kind", [kind for kind, reader in READERS.items() if reader.file.endswith((".json", ".jsonl", ".lock"))]
)
@given(data=st.data())
@TRIED
def test_any_json_is_read_or_refused(work: Path, kind: str, data: st.DataObject) -> None:
    path = path_of(kind, work)
    if path.suffix == ".jsonl":
        lines = path.read_bytes().splitlines()
        at = data.draw(st.sampled_from([number for number, line in enumerate(lines) if line]))
        lines[at] = json.dumps(forged(json.loads(lines[at]), data.draw)).encode()
        reading(kind, path, b"\n".join(lines) + b"\n")
    else:
        reading_json(kind, path, forged(json.loads(path.read_bytes()), data.draw))


@pytest.mark.parametrize("kind", READERS)
def test_what_is_whole_is_read(work: Path, kind: str) -> None:
    """Else its changes would say nothing. Of the root and size that the nodes and the certificate are of none is known
    here."""
    path = path_of(kind, work)
    message = reading(kind, path, path.read_bytes())
    assert not message or kind in ("nodes", "certificate")


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("bucket", lambda whole: whole.replace(b"heldout", b"heldouu"), "is not a table of words"),
        ("bucket", lambda whole: whole.replace(b"heldout", b"\xe8eldout"), "cannot read"),
        ("ledger", lambda whole: whole.replace(b"record", b"\xe8ecord"), "cannot read"),
        ("answers", lambda whole: b"crawlers = " + b"9" * 5000, "integer string conversion"),
        ("chat template", lambda whole: b"\xff", "'utf-8' codec can't decode"),
        ("chat template", lambda whole: b"{{ " + b"[" * 5000, "nested too deeply"),
        ("chat template", lambda whole: b"{{ " + b"9" * 5000 + b" }}", "cannot be used: ValueError"),
        ("tokenizer_config", lambda whole: b"[]", "Expected `object`, got `array`"),
        ("run segments", lambda whole: b"{\n" + whole, "line 1 is not valid JSON"),
        ("run metrics", lambda whole: whole + b"[]\n", "line 3 is not a JSON object"),
        ("run metrics", lambda whole: whole + b'{"step": "x"}\n', "step: Expected `int`"),
        ("run metrics", lambda whole: whole + b'{"step": 1, "seconds": 1e999}\n', "Number out of range"),
        ("run metrics", lambda whole: whole + b'{"step": 1, "loss": NaN}\n', "is not valid JSON"),
        ("run checkpoint", lambda whole: b'{"step": 3, "progress": []}', "progress: Expected `object`"),
        ("log", lambda whole: b'{"event": "start"}\n', "Object missing required field `time`"),
        ("log", lambda whole: whole.replace(b'"event": "start"', b'"event": 7'), "event: Expected `str`"),
        ("rejects", lambda whole: b"[]\n", "is damaged: its checksum is not the one"),
        ("lock", lambda whole: b"[" * 5000, ""),
    ],
)
def test_what_was_found(work: Path, kind: str, change: Callable[[bytes], bytes], says: str) -> None:
    """Each of these once ended a command as a bug of ours."""
    path = path_of(kind, work)
    data = change(path.read_bytes())
    assert data != path.read_bytes()
    assert says in reading(kind, path, data)


@pytest.mark.parametrize(
    ("kind", "key", "value", "says"),
    [
        ("mix", ("sources", 0, "tape"), "../../x", "tape"),
        ("checkpoint", ("identity", "model", "heads"), 0, "heads is 0; it must be more than 0"),
        ("checkpoint", ("identity", "model", "kv_heads"), 0, "kv_heads is 0; it must be more than 0"),
    ],
)
def test_what_was_found_behind_a_seal(
    work: Path, kind: str, key: tuple[Any, ...], value: Any, says: str
) -> None:
    path = path_of(kind, work)
    made = json.loads(path.read_bytes())
    inside = made
    for step in key[:-1]:
        inside = inside[step]
    inside[key[-1]] = value
    assert says in reading_json(kind, path, made)
