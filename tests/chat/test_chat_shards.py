"""Conversations from files to shards: what is read, refused, counted, sealed and verified."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chatting import write_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizing import contents, run

import pretok.stream
from pretok.base.console import Console
from pretok.base.errors import PretokError, Stopped
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.chat.limits import limited
from pretok.chat.template import ChatTemplate
from pretok.chat.text import Trace
from pretok.cli import run_command
from pretok.config import make_recipe
from pretok.documents.audit.inspection import run_inspect
from pretok.documents.audit.verify_job import run_verify
from pretok.documents.removal.remove_job import RemoveRequest, run_remove
from pretok.shards.manifest import Manifest, load_manifest
from pretok.shards.spans import ShardSpans, find_spans, spans_path, write_spans
from pretok.tokenizer.kinds import KINDS
from pretok.vocab.counts.buckets import read_group
from pretok.vocab.counts.count_job import run_count
from pretok.vocab.counts.table import WordTable

CHATS = [
    [
        {"role": "user", "content": f"question {n} <|im_end|>"},
        {"role": "assistant", "content": f"answer {n} " * 9, "reasoning_content": "so"},
    ]
    for n in range(60)
]
ROWS: list[Any] = [{"messages": chat, "id": n} for n, chat in enumerate(CHATS)]
Make = Callable[..., Manifest]


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory, sample_texts: dict[str, list[str]]) -> Path:
    folder = write_tokenizer(tmp_path_factory.mktemp("vocab"), "qwen3", sample_texts["en"][:40])
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    silent = template.replace('message.role == "tool"', 'message.role == "tool" and false')
    (folder / "chat_template.jinja").write_text(silent)
    return folder


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def make(tmp_path: Path, vocab: Path, here: Engine) -> Make:
    """Tokenizes rows, or a file, as the source `chat` and verifies the shards."""

    def made(
        rows: list[Any] | Path = ROWS, out: str = "w", shards: dict[str, Any] | None = None, **source: Any
    ) -> Manifest:
        path = rows if isinstance(rows, Path) else write(tmp_path / "a.jsonl", rows)
        reading = {} if "template" in source else {"messages": "messages"}
        data = {
            "out": tmp_path / out,
            "sources": {"chat": {"inputs": [str(path)], **reading, **source}},
            "vocab": {"path": vocab, "eod": "<|endoftext|>"},
            "shards": {"size": 4000, "val_fraction": "0.2", "max_reject_share": "0.5", **(shards or {})},
        }
        run(make_recipe(data, "test"), here)
        manifest = load_manifest(tmp_path / out / "shards")
        assert problems(manifest, here, None) == ""
        return manifest

    return made


def problems(manifest: Manifest, here: Engine, sample: int | None = 0, **how: Any) -> str:
    return "\n".join(run_verify(manifest.folder, sample, here, Console(), **how)[1])


def texts(manifest: Manifest) -> list[str]:
    found = []
    for split in ("train", "val"):
        for number in range(sum(shard.documents for shard in manifest.of("chat", split))):
            found.append("".join(run_inspect(manifest.folder, "chat", number, split).tokens))
    return sorted(found)


def test_every_format_gives_the_same_documents(tmp_path: Path, make: Make) -> None:
    table = pa.table({"messages": CHATS, "id": list(range(len(CHATS)))})
    pq.write_table(table, tmp_path / "a.parquet")
    from datasets import Dataset

    Dataset(table).save_to_disk(tmp_path / "saved")
    quoted = write(tmp_path / "q.jsonl", [{"messages": json.dumps(chat)} for chat in CHATS])
    whole, *others = (
        make(rows, out) for out, rows in enumerate((ROWS, tmp_path / "a.parquet", quoted, tmp_path / "saved"))
        for out in [f"w{out}"]
    )  # fmt: skip
    assert len(texts(whole)) == 60
    assert [texts(one) for one in others] == [texts(whole)] * 3
    train = whole.sources["chat"].train
    assert train.kinds is not None
    assert sum(train.kinds.values()) == train.tokens
    assert {"user", "thinking", "answer", "template"} == train.kinds.keys()


def test_shards_go_on_after_a_kill(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the spans of a shard are written and its tokens are not."""

    def killed(*given: Any) -> Any:
        write_spans(*given)
        raise KeyboardInterrupt

    undisturbed = make()
    monkeypatch.setattr("pretok.shards.writer.write_spans", killed)
    with pytest.raises(KeyboardInterrupt):
        make(out="again")
    monkeypatch.undo()
    assert contents(make(out="again").folder) == contents(undisturbed.folder)


def test_commands_show_which_kinds_are_learned(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    shards, mix = str(make().folder), str(tmp_path / "mix.json")

    def output_of(*command: str) -> str:
        assert run_command(list(command)) == 0
        out, err = capsys.readouterr()
        return str(out + err)

    mixing = ("mix", shards, "--out", mix, "--weights", "chat=1", "--seq-len", "16")
    words = r"in chat the loss covers thinking, tool call, answer: \d+\.\d% of its tokens\n"
    assert re.search(words, output_of(*mixing))
    output_of(*mixing, "--materialize", str(tmp_path / "m"), "--workers", "0")
    export = output_of("export", shards, "--to", "megatron", "--out", str(tmp_path / "e"), "--workers", "0")
    assert "it will learn every token" in export
    document = output_of("inspect", shards, "--source", "chat")
    assert "(<|im_start|>)" in document
    assert "[<|im_end|>]" in document
    sequence = output_of("trace", mix, "--position", "3", "--tokens", "--shards", shards)
    learned = pretok.stream.open(Path(shards), Path(mix)).loss(3)
    tokens = re.findall(r"[\[(][^\])]+[\])]", sequence.partition("only a target:")[2])
    assert [token[0] == "[" for token in tokens] == [False, *learned.tolist()]
    assert 0 < learned.sum() < 16
    assert "learned in chat: " in output_of("status", shards)


def test_damaged_spans_are_found(make: Make, here: Engine) -> None:
    manifest = make()
    spans = manifest.of("chat")[0].spans_path
    data = bytearray(spans.read_bytes())
    data[-1] ^= 1
    spans.write_bytes(data)
    found = problems(manifest, here)
    assert found.count(spans.name) == 2
    assert "the manifest says" in found
    spans.unlink()
    assert spans.name in problems(manifest, here)


def test_fields_become_one_text_of_which_some_are_learned(tmp_path: Path, make: Make) -> None:
    how = {"template": "Q: {q}\nA: {a.it}{{}}", "learn": ["a.it"]}
    rows: list[Any] = [{"q": f"cane {n} <think>", "a": {"it": f"dog {n}"}} for n in range(30)]
    manifest = make([*rows, {"q": "x"}, {"q": 3, "a": {"it": "y"}}], **how)
    assert texts(manifest) == sorted(f"Q: cane {n} <think>\nA: dog {n}{{}}<|endoftext|>" for n in range(30))
    assert manifest.sources["chat"].rejected == {"missing_field": 1, "text_not_a_string": 1}
    seen = run_inspect(manifest.folder, "chat", 0)
    assert seen.kinds is not None
    learned = "".join(t for t, kind in zip(seen.tokens, seen.kinds, strict=True) if kind == "answer")
    assert learned.strip().startswith("dog")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert texts(make(tmp_path / "a.parquet", "p", **how)) == texts(manifest)


def test_copies_and_benchmarks_are_found_in_what_was_written(tmp_path: Path, make: Make) -> None:
    item = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    (tmp_path / "bench").mkdir()
    write(tmp_path / "bench" / "b.jsonl", [{"text": item}])
    leaked = [{"role": "user", "content": item}, {"role": "assistant", "content": "yes"}]
    shards = {"against": tmp_path / "bench", "reject_contaminated": "0.5", "duplicates": "drop"}
    manifest = make([*ROWS[:20], ROWS[3], {"messages": leaked}], shards=shards)
    assert manifest.sources["chat"].rejected == {"contaminated": 1, "duplicate": 1}


def test_counts_are_of_what_was_written(tmp_path: Path, here: Engine, few_buckets: None) -> None:
    answer = {"role": "assistant", "content": "beta", "thinking": "gamma"}
    row = [{"role": "user", "content": "alpha"}, answer]
    path = write(tmp_path / "a.jsonl", [{"messages": row}] * 5)
    data = {"out": tmp_path / "w", "sources": {"chat": {"inputs": [str(path)], "messages": "messages"}}}
    made = make_recipe(data | {"vocab": {"holdout": 0, "size": 400}}, "test")
    assert made.vocab.special_tokens[2:4] == ("<|im_start|>", "<|im_end|>")
    assert len(made.vocab.special_tokens) == 64
    table = WordTable()
    for bucket in run_count(made, here, Console()).buckets:
        table.add_words(read_group(bucket, 0))
    words = table.words()
    spelled = bytes(words.data)
    found = {spelled[a:b].decode() for a, b in zip(words.offsets[:-1], words.offsets[1:], strict=True)}
    assert found == {"alpha", "beta", "gamma"}


@pytest.mark.parametrize(
    ("template", "source", "message"),
    [
        ("{{ strftime_now('%d') }}{{ messages[0].content }}", {}, "asks for the date"),
        ("{{ '%s' % messages[0].content }}", {}, "`%` on text"),
        ("{{ messages[0].content.parts }}", {}, "has no 'parts'"),
        ("{% for m in messages", {}, "cannot be used"),
        ("{% for m in messages %}{{ m.content + '<|endoftext|>' }}{% endfor %}", {}, "end-of-document token"),
        ("{{ messages[0].content }}", {"chat_template": "none.jinja"}, "cannot be read"),
        ("", {"tools": "no.json"}, "tools: .* cannot be read as JSON"),
    ],
)
def test_a_template_that_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, make: Make, template: str, source: dict[str, str], message: str
) -> None:
    (tmp_path / "t.jinja").write_text(template)
    with pytest.raises(PretokError, match=message):
        make(ROWS, **{"chat_template": str(tmp_path / "t.jinja"), **source})
    assert not (tmp_path / "w" / "shards" / "chat").exists()


HANGS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
FILLS = "{% set ns = namespace(x='xx') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
LIMITS = {"template_seconds": 1, "conversation_seconds": 1, "template_memory": "128MiB"}
ONE = "question 7 "
TAKES = [
    (HANGS, "", "line 2 takes more than 1 s of processor time"),
    (FILLS, "", r"line 2 takes more than 134(\.\d)? MB of memory"),
    ("{{ 9 ** (9 ** 9) }}", ONE, "line 2 takes more than 1 s of processor time"),
    (
        "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
        ONE,
        "takes more than 1 s",
    ),
    ("{{ messages[0].role | indent(999999999) }}", ONE, r"line 2 takes more than 134(\.\d)? MB of memory"),
    (
        "{% set ns = namespace(x=messages[0].content) %}{% for a in range(50) %}"
        "{% set ns.x = ns.x.replace('7', '77') %}{% endfor %}{{ ns.x }}",
        "",
        "record 8: .*line 2 takes more than",
    ),
]
"""Templates that end never, or take all memory, in the second line; and the beginning of the conversations in which."""


@pytest.mark.parametrize(("template", "only", "message"), TAKES)
def test_a_template_takes_no_more_than_its_limits(
    tmp_path: Path, make: Make, template: str, only: str, message: str
) -> None:
    """At the start, or in a conversation, where it fails the partition and is no reject."""
    where = f"{{% if messages[0].content.startswith('{only}') %}}\n{template}{{% endif %}}"
    path = tmp_path / "t.jinja"
    path.write_text(where + "{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(PretokError, match=message) as raised:
        make(ROWS, chat_template=str(path), **LIMITS)
    assert f"({path})" in str(raised.value)
    assert ("a.jsonl: record 8: " in str(raised.value)) is bool(only or "record 8" in message)
    assert not (tmp_path / "w" / "shards" / "manifest.json").exists()


def test_a_signal_ends_a_template() -> None:
    """Long before its limit; it was taken for an error of the template."""
    kill = partial(os.kill, os.getpid(), signal.SIGTERM)
    template = ChatTemplate("{% set _ = kill() %}" + HANGS, {"kill": kill})
    with StopFlag() as stop, pytest.raises(Stopped), stop.raising(), limited(60, 1 << 30):
        template.run([], Trace())


def test_a_date_and_switches_reach_the_template_and_bind_the_shards(tmp_path: Path, make: Make) -> None:
    said = "{{ strftime_now('%d %b %Y') }} {{ mood }}: {{ messages[0].content }}{{ messages[1].content }}"
    (tmp_path / "t.jinja").write_text(said)
    given: dict[str, Any] = {"chat_template": str(tmp_path / "t.jinja"), "date": "2026-01-31"}
    given["template_kwargs"] = {"mood": "calm"}
    assert texts(make(ROWS[:3], **given))[0].startswith("31 Jan 2026 calm: question 0")
    make(ROWS[:3], learn=["answer"], **given)  # decided when a mix is made
    with pytest.raises(PretokError, match="conversation"):
        make(ROWS[:3], **{**given, "template_kwargs": {"mood": "sad"}})


@given(
    st.lists(st.lists(st.integers(0, len(KINDS) - 1), min_size=1, max_size=9), min_size=1, max_size=9),
    st.data(),
)
def test_spans_say_what_every_token_is(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], data: Any
) -> None:
    prefix = tmp_path_factory.mktemp("s") / "a"
    lengths = np.array([len(document) for document in documents], np.int32)
    numbers = np.array([kind for document in documents for kind in document], np.uint8)
    _, stated = write_spans(prefix, "chat", *find_spans(numbers, lengths))
    spans = ShardSpans(spans_path(prefix))
    flat = [KINDS[kind] for kind in numbers]
    offsets = np.cumsum([0, *lengths])
    assert stated == {kind: flat.count(kind) for kind in KINDS if kind in flat}
    assert spans.problem(offsets, stated) is None
    start = data.draw(st.integers(0, len(flat)))
    stop = data.draw(st.integers(start, len(flat)))
    learn = data.draw(st.sets(st.sampled_from(KINDS)))
    assert spans.learned(start, stop, learn).tolist() == [kind in learn for kind in flat[start:stop]]
    for number in range(len(documents)):
        spelled = [kind for _, count, kind in spans.document(offsets, number) for _ in range(count)]
        assert spelled == flat[offsets[number] : offsets[number + 1]]


def test_conversations_are_removed(tmp_path: Path, make: Make, here: Engine) -> None:
    """Their places and spans stay, their texts do not, and they do not come back."""
    before = make(keep=["id:integer"])
    spans = {shard.path: shard.spans_path.read_bytes() for shard in before.shards}
    run_remove(RemoveRequest(before.folder, "why", where="id in (3, 7, 20)"), Console())
    manifest = load_manifest(before.folder)
    counts = manifest.sources["chat"]
    assert counts.removed is not None
    assert counts.removed.documents == 3
    assert (counts.train.kinds, counts.documents) == (before.sources["chat"].train.kinds, 60)
    assert {shard.path: shard.spans_path.read_bytes() for shard in manifest.shards} == spans
    assert problems(before, here, None, removed=True) == ""
    left = texts(manifest)
    assert [n for n in range(60) if not any(f"question {n} " in text for text in left)] == [3, 7, 20]
    more = write(tmp_path / "b.jsonl", [ROWS[7], ROWS[3], {"messages": CHATS[20][:1]}])
    grown = make(keep=["id:integer"], append=[{"inputs": [str(more)]}])
    assert grown.sources["chat"].rejected == {"removed": 2}
