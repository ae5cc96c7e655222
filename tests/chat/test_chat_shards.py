"""Conversations from files to shards: what is read, refused, counted, sealed and verified."""

from __future__ import annotations

import json
import os
import re
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
from pretok.audit.documents import run_inspect
from pretok.audit.verify_job import run_verify
from pretok.base.console import Silent
from pretok.base.errors import IntegrityError, PartitionsFailed, UsageError
from pretok.base.execute import Engine
from pretok.base.kinds import KINDS
from pretok.cli import run_command
from pretok.config import Recipe, make_recipe
from pretok.counts.job import run_count
from pretok.counts.table import WordTable
from pretok.removal.job import Request, run_remove
from pretok.shards.manifest import Manifest, load_manifest
from pretok.shards.spans import ShardSpans, SpanWriter, spans_path

CHATS = [
    [
        {"role": "user", "content": f"question {n} <|im_end|>"},
        {"role": "assistant", "content": f"answer {n} " * 9, "reasoning_content": "so"},
    ]
    for n in range(60)
]
BAD = {
    "no messages": [],
    "the role 'pirate', which is none of": [{"role": "pirate", "content": "a"}],
    "is empty": [{"role": "user", "content": ""}],
    "Invalid value 'image'": [{"role": "user", "content": [{"type": "image", "url": "x"}]}],
    "arguments are no JSON": [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}
    ],
    "no JSON": "nothing",
    "names no function": [{"role": "assistant", "content": "", "tool_calls": [{}]}],
    "leaves out message 1": [{"role": "tool", "content": "x"}, {"role": "user", "content": "y"}],
}


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


def recipe(out: Path, vocab: Path, path: Path, shards: dict[str, Any] | None = None, **source: Any) -> Recipe:
    reading = {"messages": "messages"} if "template" not in source else {}
    data = {
        "out": out,
        "sources": {"chat": {"inputs": [str(path)], **reading, **source}},
        "vocab": {"path": vocab, "eod": "<|endoftext|>"},
        "shards": {"size": 4000, "val_fraction": "0.2", "max_reject_share": "0.5", **(shards or {})},
    }
    return make_recipe(data, "test")


def sealed(made: Recipe, here: Engine) -> Manifest:
    run(made, here)
    manifest = load_manifest(made.shards_dir)
    assert run_verify(made.shards_dir, None, here, Silent())[1] == []
    return manifest


def texts(manifest: Manifest) -> list[str]:
    found = []
    for split in ("train", "val"):
        for number in range(sum(shard.documents for shard in manifest.of("chat", split))):
            found.append("".join(run_inspect(manifest.folder, "chat", number, split).tokens))
    return sorted(found)


def test_every_format_gives_the_same_documents(tmp_path: Path, vocab: Path, here: Engine) -> None:
    lines = write(tmp_path / "a.jsonl", [{"messages": chat, "id": n} for n, chat in enumerate(CHATS)])
    table = pa.table({"messages": CHATS, "id": list(range(len(CHATS)))})
    pq.write_table(table, tmp_path / "a.parquet")
    from datasets import Dataset

    Dataset(table).save_to_disk(tmp_path / "saved")
    quoted = write(tmp_path / "q.jsonl", [{"messages": json.dumps(chat)} for chat in CHATS])
    whole = [sealed(recipe(tmp_path / p.stem / p.suffix[1:], vocab, p), here)
             for p in (lines, tmp_path / "a.parquet", quoted, tmp_path / "saved")]  # fmt: skip
    first = texts(whole[0])
    assert len(first) == 60
    assert [texts(one) for one in whole[1:]] == [first] * 3
    [train] = (whole[0].sources["chat"].train,)
    assert train.kinds is not None
    assert sum(train.kinds.values()) == train.tokens
    assert {"user", "thinking", "answer", "template"} == train.kinds.keys()


def test_bad_records_are_rejects_by_name(tmp_path: Path, vocab: Path, here: Engine) -> None:
    rows = [{"messages": chat} for chat in (*CHATS[:20], *BAD.values())]
    manifest = sealed(recipe(tmp_path / "w", vocab, write(tmp_path / "a.jsonl", rows)), here)
    told = (manifest.folder / "rejects/chat-00000.jsonl").read_text().splitlines()
    rejects = [json.loads(line) for line in told]
    assert [reject["position"] for reject in rejects] == list(range(21, 21 + len(BAD)))
    for part, reject in zip(BAD, rejects, strict=True):
        assert part in reject["detail"]
    assert {reject["reason"] for reject in rejects} == {"bad_messages", "template_refused"}


def test_shards_go_on_after_a_kill_between_parts(
    tmp_path: Path, vocab: Path, here: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", [{"messages": chat} for chat in CHATS])
    undisturbed = sealed(recipe(tmp_path / "w", vocab, path), here).folder
    other = recipe(tmp_path / "again", vocab, path)
    seal = SpanWriter.seal

    def killed(writer: SpanWriter, source: str) -> Any:
        seal(writer, source)
        raise KeyboardInterrupt

    monkeypatch.setattr(SpanWriter, "seal", killed)
    with pytest.raises(KeyboardInterrupt):
        run(other, here)
    monkeypatch.undo()
    found = contents(sealed(other, here).folder)
    ours = contents(undisturbed)
    assert {name: data for name, data in found.items() if name != "manifest.json"} == {
        name: data for name, data in ours.items() if name != "manifest.json"
    }


def test_who_cannot_keep_the_spans_says_so(
    tmp_path: Path, vocab: Path, here: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "a.jsonl", [{"messages": chat} for chat in CHATS])
    shards = str(sealed(recipe(tmp_path / "w", vocab, path), here).folder)
    mix = ["mix", shards, "--out", str(tmp_path / "mix.json"), "--weights", "chat=1", "--seq-len", "16"]
    assert run_command(mix) == 0
    assert "in chat the loss covers thinking, tool call, answer: " in capsys.readouterr().err
    assert run_command([*mix, "--materialize", str(tmp_path / "m"), "--workers", "0"]) == 0
    export = ["export", shards, "--to", "megatron", "--out", str(tmp_path / "e"), "--workers", "0"]
    assert run_command(export) == 0
    assert "it will learn every token" in capsys.readouterr().err
    assert run_command(["inspect", shards, "--source", "chat"]) == 0
    shown = capsys.readouterr().out
    assert "(<|im_start|>)" in shown
    assert "[<|im_end|>]" in shown
    assert run_command(["inspect", shards, "--mix", str(tmp_path / "mix.json"), "--position", "3"]) == 0
    shown = capsys.readouterr().out
    learned = pretok.stream.open(shards, tmp_path / "mix.json").loss(3)
    tokens = re.findall(r"[\[(][^\])]+[\])]", shown.partition("predicted:")[2])
    assert [token[0] == "[" for token in tokens] == [False, *learned.tolist()]
    assert 0 < learned.sum() < 16
    assert run_command(["status", shards]) == 0
    assert "learned in chat: " in capsys.readouterr().err


def test_damaged_spans_are_found(tmp_path: Path, vocab: Path, here: Engine) -> None:
    path = write(tmp_path / "a.jsonl", [{"messages": chat} for chat in CHATS])
    manifest = sealed(recipe(tmp_path / "w", vocab, path), here)
    spans = manifest.of("chat")[0].spans_path
    data = bytearray(spans.read_bytes())
    data[-1] ^= 1
    spans.write_bytes(data)
    found = "\n".join(run_verify(manifest.folder, 0, here, Silent())[1])
    assert found.count(spans.name) == 2
    assert "the manifest says" in found
    spans.unlink()
    assert spans.name in "\n".join(run_verify(manifest.folder, 0, here, Silent())[1])


def test_fields_become_one_text_of_which_some_are_learned(tmp_path: Path, vocab: Path, here: Engine) -> None:
    rows = [{"q": f"cane {n} <think>", "a": {"it": f"dog {n}"}} for n in range(30)]
    rows += [{"q": "x"}, {"q": 3, "a": {"it": "y"}}]
    path = write(tmp_path / "a.jsonl", rows)
    made = recipe(tmp_path / "w", vocab, path, template="Q: {q}\nA: {a.it}{{}}", learn=["a.it"])
    manifest = sealed(made, here)
    assert texts(manifest) == sorted(f"Q: cane {n} <think>\nA: dog {n}{{}}<|endoftext|>" for n in range(30))
    assert manifest.sources["chat"].rejected == {"missing_field": 1, "text_not_a_string": 1}
    seen = run_inspect(manifest.folder, "chat", 0)
    assert seen.kinds is not None
    learned = "".join(t for t, kind in zip(seen.tokens, seen.kinds, strict=True) if kind == "answer")
    assert learned.strip().startswith("dog")
    assert pq_texts(tmp_path, rows[:30], vocab, here) == texts(manifest)


def pq_texts(tmp_path: Path, rows: list[Any], vocab: Path, here: Engine) -> list[str]:
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    made = recipe(
        tmp_path / "p", vocab, tmp_path / "a.parquet", template="Q: {q}\nA: {a.it}{{}}", learn=["a.it"]
    )
    return texts(sealed(made, here))


def test_copies_and_benchmarks_are_found_in_what_was_written(
    tmp_path: Path, vocab: Path, here: Engine
) -> None:
    item = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    folder = tmp_path / "bench"
    folder.mkdir()
    write(folder / "b.jsonl", [{"text": item}])
    leaked = [{"role": "user", "content": item}, {"role": "assistant", "content": "yes"}]
    rows = [{"messages": chat} for chat in (*CHATS[:20], CHATS[3], leaked)]
    shards = {"against": folder, "reject_contaminated": "0.5", "duplicates": "drop"}
    manifest = sealed(recipe(tmp_path / "w", vocab, write(tmp_path / "a.jsonl", rows), shards), here)
    assert manifest.sources["chat"].rejected == {"contaminated": 1, "duplicate": 1}


def test_counts_are_of_what_was_written(tmp_path: Path, vocab: Path, here: Engine, few_buckets: None) -> None:
    rows = [
        [{"role": "user", "content": "alpha"}, {"role": "assistant", "content": "beta", "thinking": "gamma"}]
    ]
    path = write(tmp_path / "a.jsonl", [{"messages": row} for row in rows * 5])
    data = {"out": tmp_path / "w", "sources": {"chat": {"inputs": [str(path)], "messages": "messages"}}}
    made = make_recipe(data | {"vocab": {"holdout": 0, "size": 400}}, "test")
    assert made.vocab.special_tokens[2:4] == ("<|im_start|>", "<|im_end|>")
    assert len(made.vocab.special_tokens) == 64
    counts = run_count(made, here, Silent())
    table = WordTable()
    from pretok.counts.buckets import read_group

    for bucket in counts.buckets:
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
        ("", {"tools": "no.json"}, "tools: .* no JSON file"),
    ],
)
def test_a_template_that_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, vocab: Path, here: Engine, template: str, source: dict[str, str], message: str
) -> None:
    path = write(tmp_path / "a.jsonl", [{"messages": chat} for chat in CHATS])
    (tmp_path / "t.jinja").write_text(template)
    given = {"chat_template": str(tmp_path / "t.jinja"), **source}
    with pytest.raises(UsageError, match=message):
        run(recipe(tmp_path / "w", vocab, path, **given), here)
    assert not (tmp_path / "w" / "shards" / "chat").exists()


def test_a_date_and_switches_reach_the_template(tmp_path: Path, vocab: Path, here: Engine) -> None:
    path = write(tmp_path / "a.jsonl", [{"messages": CHATS[0]}] * 3)
    said = "{{ messages[0].content }}{{ messages[1].content }}"
    (tmp_path / "t.jinja").write_text("{{ strftime_now('%d %b %Y') }} {{ mood }}: " + said)
    given = {
        "chat_template": str(tmp_path / "t.jinja"),
        "date": "2026-01-31",
        "template_kwargs": {"mood": "calm"},
    }
    manifest = sealed(recipe(tmp_path / "w", vocab, path, **given), here)
    assert texts(manifest)[0].startswith("31 Jan 2026 calm: question 0")


def test_a_changed_template_is_another_source(tmp_path: Path, vocab: Path, here: Engine) -> None:
    path = write(tmp_path / "a.jsonl", [{"messages": chat} for chat in CHATS])
    run(recipe(tmp_path / "w", vocab, path), here)
    run(recipe(tmp_path / "w", vocab, path, learn=["answer"]), here)  # no part of the shards
    with pytest.raises(Exception, match="conversation"):
        run(recipe(tmp_path / "w", vocab, path, template_kwargs={"x": True}), here)


def test_too_many_rejects_are_told(tmp_path: Path, vocab: Path, here: Engine) -> None:
    path = write(tmp_path / "a.jsonl", [{"messages": []}] * 3)
    with pytest.raises(PartitionsFailed, match="bad_messages 3"):
        run(recipe(tmp_path / "w", vocab, path), here)


@given(
    st.lists(st.lists(st.integers(0, len(KINDS) - 1), min_size=1, max_size=9), min_size=1, max_size=9),
    st.data(),
)
def test_spans_say_what_every_token_is(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], data: Any
) -> None:
    prefix = tmp_path_factory.mktemp("s") / "a"
    writer = SpanWriter(prefix)
    for part in (documents[:2], documents[2:]):
        kinds = np.array([kind for document in part for kind in document], np.uint8)
        writer.append(kinds, np.array([len(document) for document in part], np.int32))
    _, stated = writer.seal("chat")
    spans = ShardSpans(spans_path(prefix))
    flat = [KINDS[kind] for document in documents for kind in document]
    offsets = np.cumsum([0, *map(len, documents)])
    assert stated == {kind: flat.count(kind) for kind in KINDS if kind in flat}
    assert spans.problem(offsets, stated) is None
    start = data.draw(st.integers(0, len(flat)))
    stop = data.draw(st.integers(start, len(flat)))
    learn = data.draw(st.sets(st.sampled_from(KINDS)))
    assert spans.learned(start, stop, learn).tolist() == [kind in learn for kind in flat[start:stop]]
    for number in range(len(documents)):
        spelled = [kind for _, count, kind in spans.document(offsets, number) for _ in range(count)]
        assert spelled == flat[offsets[number] : offsets[number + 1]]


def test_conversations_are_removed(tmp_path: Path, vocab: Path, here: Engine) -> None:
    """Their places and spans stay, their texts do not, and they do not come back."""
    rows = [{"messages": chat, "id": n} for n, chat in enumerate(CHATS)]
    path = write(tmp_path / "a.jsonl", rows)
    before = sealed(recipe(tmp_path / "w", vocab, path, keep=["id"]), here)
    spans = {shard.path: shard.spans_path.read_bytes() for shard in before.shards}
    run_remove(Request(before.folder, "why", where="id in (3, 7, 20)"), Silent())
    manifest = load_manifest(before.folder)
    counts = manifest.sources["chat"]
    assert counts.removed is not None
    assert counts.removed.documents == 3
    assert (counts.train.kinds, counts.documents) == (before.sources["chat"].train.kinds, 60)
    assert {shard.path: shard.spans_path.read_bytes() for shard in manifest.shards} == spans
    assert run_verify(before.folder, None, here, Silent(), removed=True)[1] == []
    left = texts(manifest)
    assert [n for n in range(60) if not any(f"question {n} " in text for text in left)] == [3, 7, 20]
    more = write(tmp_path / "b.jsonl", [rows[7], rows[3], {"messages": CHATS[20][:1]}])
    grown = sealed(recipe(tmp_path / "w", vocab, path, keep=["id"], append=[{"inputs": [str(more)]}]), here)
    assert grown.sources["chat"].rejected == {"removed": 2}


def test_spans_cut_short_under_a_reader_are_named(tmp_path: Path) -> None:
    """A page of a mapping that the file has no longer would end the process."""
    writer = SpanWriter(tmp_path / "a")
    writer.append(np.tile(np.array([0, 6], np.uint8), 100_000), np.full(1000, 200, np.int32))
    writer.seal("chat")
    spans = ShardSpans(path := spans_path(tmp_path / "a"))
    assert spans.learned(150_000, 150_004, {KINDS[6]}).tolist() == [False, True] * 2
    os.truncate(path, 5000)
    for read in (
        lambda: spans.learned(150_000, 150_004, {KINDS[6]}),
        lambda: list(spans.within(150_000, 150_004)),
        lambda: spans.problem(np.array([0, 200_000]), {}),
    ):
        with pytest.raises(IntegrityError, match=r"a\.spans has 5000 bytes, its header says 1800032"):
            read()
