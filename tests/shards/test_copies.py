"""tokenize without copies: against brute force, the same bytes whatever the workers and kills."""

from __future__ import annotations

import gzip
import json
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from screened import rejects, rows, write
from tokenizing import contents, recipe, run

from pretok.base.errors import MismatchError, PartitionsFailed
from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.config import Recipe
from pretok.read.batches import hash_texts
from pretok.shards.copies_job import settle_copies
from pretok.shards.manifest import load_manifest
from pretok.shards.tokenize_task import COPIES, TokenizeTask

Inputs = dict[str, list[Path | str]]
Make = Callable[..., Recipe]


@pytest.fixture
def make(tmp_path: Path, inputs: Inputs, vocab_dir: Path, here: Engine) -> Make:
    """Tokenizes without copies."""

    def made(
        sources: Inputs = inputs, engine: Engine = here, keep: Sequence[str] = (), **shards: Any
    ) -> Recipe:
        settings = {"duplicates": "drop", "size": 4000, **shards}
        made = recipe(tmp_path / "out", vocab_dir, sources, keep, **settings)
        run(made, engine)
        return made

    return made


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Inputs:
    """Copies within a file, between files, and between sources, in JSON Lines (cut in parts) and Parquet."""
    folder = tmp_path_factory.mktemp("copies")
    write(folder / "a.jsonl", texts[:40] + texts[5:25] + texts[5:9])
    write(folder / "b.jsonl", [*texts[30:50], "", *texts[2:4], *texts[45:52]])
    more = texts[60:100] + texts[:3] + texts[60:70] + texts[98:110]
    pq.write_table(pa.table({"text": more}), folder / "c.parquet", row_group_size=15)
    return {"it": [folder / "c.parquet"], "en": [folder / "a.jsonl", folder / "b.jsonl"]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, inputs: Inputs, vocab_dir: Path) -> Recipe:
    made = recipe(tmp_path_factory.mktemp("out"), vocab_dir, inputs, duplicates="drop", size=4000)
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        run(made, engine)
    return made


def test_the_first_of_each_text_stays(finished: Recipe, inputs: Inputs) -> None:
    """By brute force, in the order of the manifest."""
    first: dict[str, str] = {}
    kept: dict[str, list[str]] = {"it": [], "en": []}
    gone: dict[str, list[tuple[str, int, str]]] = {"it": [], "en": []}
    for source, path in [(name, str(path)) for name in sorted(inputs) for path in sorted(inputs[name])]:
        if path.endswith(".parquet"):
            texts = pq.read_table(path)["text"].to_pylist()
        else:
            texts = [json.loads(line)["text"] for line in Path(path).read_text().splitlines()]
        for position, text in enumerate(texts, 1):
            if text in first:
                gone[source].append((path, position, first[text]))
            elif text:
                kept[source].append(text)
                first[text] = path
    assert len(gone["en"]) > 30
    assert {path for path, _, of in gone["it"]} != {of for path, _, of in gone["it"]}
    for source, expected in kept.items():
        hashes = hash_texts(pa.array(expected, pa.large_string())).astype(">u8")
        assert sorted(row["hash"] for row in rows(finished, source)) == sorted(
            row.tobytes() for row in hashes
        )
        found = [r for r in rejects(finished, source) if r["reason"] == "duplicate"]
        assert [(r["file"], r["position"]) for r in found] == [(path, at) for path, at, _ in gone[source]]
        for reject, (_, _, of) in zip(found, gone[source], strict=True):
            assert reject["detail"].startswith(f"the same text as {of}:")
    counts = {"duplicate": len(gone["it"] + gone["en"]), "empty_text": 1}
    assert load_manifest(finished.shards_dir).totals.rejected == counts


@pytest.mark.slow
def test_workers_and_the_order_of_sources_change_nothing(
    ray_address: str, make: Make, inputs: Inputs, finished: Recipe
) -> None:
    backwards = {name: paths[::-1] for name, paths in reversed(inputs.items())}
    with StopFlag() as stop, Engine(2, ray_address, stop) as engine:
        made = make(backwards, engine=engine)
    assert contents(made.shards_dir) == contents(finished.shards_dir)


@pytest.mark.parametrize(
    ("where", "after"),
    [
        ("pretok.shards.copies_job.hash_texts", 2),
        ("pretok.shards.copies_job.database", 0),
        ("pretok.shards.copies_job.save_copies", 2),
        ("pretok.shards.writer.ShardWriter.seal", 2),
    ],
)
def test_a_kill_anywhere_changes_nothing(where: str, after: int, make: Make, finished: Recipe) -> None:
    """When two partitions are hashed, before copies are settled, when they are for two, when two shards are sealed."""
    real, calls = pkgutil.resolve_name(where), []

    def dying(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > after:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, dying)
        with pytest.raises(KeyboardInterrupt):
            make()
    assert contents(make().shards_dir) == contents(finished.shards_dir)


def test_what_is_sealed_comes_first(tmp_path: Path, make: Make, texts: list[str]) -> None:
    """A source added later gives up its copies of one that is sealed, though its name comes before. And the choice
    binds what is sealed."""
    z = write(tmp_path / "in" / "z.jsonl", texts[:10])
    a = write(tmp_path / "in" / "a.jsonl", texts[8:14])
    kept = ["path=text", "place=text", "ledger=text", "piece=text", "number=text", "row=text"]
    first = make({"z": [z]}, keep=kept)  # names that the search for copies uses itself
    before = contents(first.shards_dir / "z")
    made = make({"z": [z], "a": [a]}, keep=kept)
    assert contents(made.shards_dir / "z") == before
    details = [reject["detail"] for reject in rejects(made, "a")]
    assert details == [f"the same text as {z}:9", f"the same text as {z}:10"]
    assert len(rows(made, "a")) == 4
    with pytest.raises(MismatchError, match="duplicates was 'drop' and is None"):
        make({"z": [z]}, keep=kept, duplicates="keep")


def test_a_mended_input_loses_no_text(tmp_path: Path, make: Make, texts: list[str]) -> None:
    """While a file is damaged, the other keeps what both hold; fixed, it gives up its copies."""
    whole = gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in texts[:60]).encode())
    a = tmp_path / "a.jsonl.gz"
    sources: Inputs = {"a": [a], "b": [write(tmp_path / "b.jsonl", texts[3:9] + texts[100:103])]}
    a.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PartitionsFailed, match=r"a\.jsonl\.gz"):
        make(sources)
    a.write_bytes(whole)
    made = make(sources)
    assert rejects(made, "b") == []
    assert [reject["position"] for reject in rejects(made, "a")] == [4, 5, 6, 7, 8, 9]
    assert (len(rows(made, "a")), len(rows(made, "b"))) == (54, 9)


def when_settled(monkeypatch: pytest.MonkeyPatch, then: Callable[[Sequence[TokenizeTask]], object]) -> None:
    """Do something between settling copies and tokenizing."""

    def settle(tasks: Sequence[TokenizeTask], *more: Any) -> Any:
        failures = settle_copies(tasks, *more)
        then(tasks)
        return failures

    monkeypatch.setattr("pretok.shards.tokenize_job.settle_copies", settle)


def test_a_copy_of_what_was_left_out_is_no_copy(
    tmp_path: Path, make: Make, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input breaks after copies were settled: done again, it is not compared with what was left out for its sake."""
    a = write(tmp_path / "in" / "a.jsonl", texts[:20])
    b = write(tmp_path / "in" / "b.jsonl", texts[15:30])
    whole = a.read_bytes()
    when_settled(monkeypatch, lambda _: a.write_bytes(whole[:2000]))
    with pytest.raises(PartitionsFailed, match=r"a\.jsonl"):
        make({"s": [a, b]}, size=2000)
    monkeypatch.undo()
    a.write_bytes(whole)
    made = make({"s": [a, b]}, size=2000)
    assert len(rows(made, "s")) == len({row["hash"] for row in rows(made, "s")}) == 30


@pytest.mark.parametrize("killed", [False, True])
def test_copies_are_looked_for_again_in_an_input_that_changed_in_its_middle(
    killed: bool, tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the plan does not see it: only the task that read the file knows. It may be killed when it has removed the
    hashes, and not yet the copies."""
    texts = [f"documento {n:04} " * 40 for n in range(600)]
    before, after = ([*texts[:at], texts[0], *texts[at + 1 :]] for at in (300, 310))
    a = write(tmp_path / "a.jsonl", before)

    copies: dict[Path, bytes] = {}

    def change(tasks: Sequence[TokenizeTask]) -> None:
        copies[tasks[0].state(COPIES)] = tasks[0].state(COPIES).read_bytes()
        write(a, after)

    when_settled(monkeypatch, change)
    with pytest.raises(PartitionsFailed, match=r"a\.jsonl: changed "):
        make({"a": [a]}, size=10_000_000)
    monkeypatch.undo()
    for path, data in copies.items() if killed else ():
        path.write_bytes(data)
    made = make({"a": [a]}, size=10_000_000)
    assert [reject["position"] for reject in rejects(made, "a")] == [311]


def test_copies_settled_before_an_input_changed_are_forgotten(
    tmp_path: Path, make: Make, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run was killed before it tokenized anything."""
    a = write(tmp_path / "a.jsonl", texts[:10] + texts[3:6])

    def kill(tasks: Sequence[TokenizeTask]) -> None:
        raise KeyboardInterrupt

    when_settled(monkeypatch, kill)
    with pytest.raises(KeyboardInterrupt):
        make({"a": [a]})
    monkeypatch.undo()
    write(a, texts[3:6] + texts[:10])  # of the same size, so that only its contents tell
    made = make({"a": [a]})
    assert [reject["position"] for reject in rejects(made, "a")] == [7, 8, 9]
    assert len(rows(made, "a")) == 10


def test_copies_are_marked_where_they_are_wanted(
    tmp_path: Path, inputs: Inputs, finished: Recipe, vocab_dir: Path, here: Engine
) -> None:
    """The documents that would be dropped, and only these, say of which they are copies."""
    made = recipe(tmp_path, vocab_dir, inputs, duplicates="mark", size=4000)
    _, notices = run(made, here)
    copies = 0
    for source in ("en", "it"):
        marked = [row["duplicate_of"] for row in rows(made, source) if row["duplicate_of"]]
        dropped = [r["detail"] for r in rejects(finished, source) if r["reason"] == "duplicate"]
        assert [f"the same text as {first}" for first in marked] == dropped
        copies += len(marked)
    assert any(f", {copies} are copies of others" in notice for notice in notices)


@pytest.mark.parametrize("names", ["abc", "bca", "cba"])
def test_a_copy_names_the_document_of_the_first_round(
    names: str, tmp_path: Path, vocab_dir: Path, here: Engine, texts: list[str]
) -> None:
    """Whatever the names of the sources that come in later rounds, and for an append of the first one."""
    first: dict[str, str] = {}
    wanted: dict[tuple[str, int], str | None] = {}
    sources: Inputs = {}
    append: dict[str, list[Path]] = {}
    made = None
    for turn, name in enumerate((*names, names[0])):
        path = write(tmp_path / "in" / f"{turn}.jsonl", texts[5 * turn : 5 * turn + 12] + texts[18:20])
        if name in sources:
            append[name] = [path]
        else:
            sources[name] = [path]
        made = recipe(tmp_path / "out", vocab_dir, sources, append=append, duplicates="mark")
        run(made, here)
        for at, line in enumerate(path.read_text().splitlines()):
            text = json.loads(line)["text"]
            wanted[str(path), at] = first.get(text)
            first.setdefault(text, f"{path}:{at + 1}")
    assert made is not None
    found = {
        (row["file"], row["record"]): row["duplicate_of"] for name in sources for row in rows(made, name)
    }
    assert sum(of is not None for of in wanted.values()) > 20
    assert found == wanted
