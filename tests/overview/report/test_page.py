"""The page says what the files say: every number is compared with manifest, ledgers, logs and the records of a run."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from support import make_shards, write_recipe

import pretok
from pretok.base.errors import IntegrityError, Stopped
from pretok.base.storage import read_json
from pretok.cli import run_command
from pretok.overview.history import read_jobs
from pretok.overview.report.frequencies import count_tokens
from pretok.overview.report.gather import Facts, gather
from pretok.overview.report.page import chart, nodes, powers
from pretok.shards.manifest import load_manifest
from pretok.stream.mix_file import load_mix
from pretok.tokenizer.vocabulary import load_vocab

WORDS = "il mare è salato e la luna sorge".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def work(tmp_path_factory, vocab_dir) -> Path:
    """Shards of two sources with rejects, a mix, and the logs of the commands that made them."""
    folder = tmp_path_factory.mktemp("report")
    for name, count in (("it", 40), ("en", 9)):
        lines = [json.dumps({"text": " ".join(WORDS * (1 + number))}) for number in range(count)]
        (folder / f"{name}.jsonl").write_text("\n".join([*lines, *["{broken <b>", '{"text": ""}'] * 4, ""]))
    inputs = {name: f"{folder}/{name}.jsonl" for name in ("it", "en")}
    recipe = write_recipe(folder / "r.toml", inputs, shards={"max_reject_share": 0.5})
    out = folder / "work"
    options = f"--out {out} --vocab {vocab_dir} --workers 0 --val-fraction 0.1"
    assert run_command(["tokenize", recipe, *options.split()]) == 0
    mix = f"mix {out}/shards --out {out}/mix.json --weights it=0.5,en=0.5 --tokens 512 --seq-len 16"
    assert run_command(mix.split()) == 0
    return out


def page(work: Path, *options: str) -> str:
    assert run_command(["report", str(work), *options]) == 0
    return (work / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(work) -> str:
    return page(work)


@pytest.fixture(scope="module")
def facts(work) -> Facts:
    return gather(work)


def values(row: str) -> list[float]:
    return [float(value) for value in re.findall(r'data-value="([^"]*)"', row)]


def rows(text: str, pattern: str) -> list[list[float]]:
    """The numbers of each row of a table that begins so."""
    return [values(row) for row in re.findall(rf"<tr{pattern}.*?</tr>", text)]


def test_the_numbers_are_those_of_manifest_and_mix(work, text):
    manifest = load_manifest(work / "shards")
    totals, report = manifest.totals, read_json(work / "mix.json")["report"]
    assert f'id="tokens" data-value="{totals.tokens}"' in text
    assert f'id="documents-total" data-value="{totals.documents}"' in text
    files, mix = (text.partition(f'id="{part}"')[2].partition("</table>")[0] for part in ("inputs", "mix"))
    assert f"{report['tokens']:,} tokens in {report['sequences']:,} sequences of 16" in mix
    for name, counts in manifest.sources.items():
        [(tokens, share, *rest)] = rows(text, f' id="source-{name}">')
        assert (tokens, share) == (counts.tokens, counts.tokens / totals.tokens)
        per_token = counts.bytes / counts.tokens
        assert rest[:4] == [counts.val.tokens, counts.documents, counts.bytes, per_token]
        stored, rejected = (work.parent / f"{name}.jsonl").stat().st_size, sum(counts.rejected.values())
        (file,) = rows(files, rf"><td class=[^>]*><code>[^<]*</code></td><td>{name}<")
        assert file == [stored, counts.read, counts.documents, rejected]
        source = report["sources"][name]
        assert rows(mix, f"><td>{name}</td>")[0][:2] == [source["sequences"], source["tokens"]]
    provenance = text.partition('<h2 id="provenance">')[2]
    mixed = load_mix(work / "mix.json").fingerprint
    for fingerprint in (manifest.fingerprint, manifest.tokenizer.fingerprint, mixed):
        assert fingerprint in provenance


def test_nothing_comes_from_outside(text):
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"|@import|url\(', text)
    body = text.split("<body>")[1].replace("<b id", "").replace("<b data", "")
    assert "<b>" not in body.replace("<b>", "", 2)  # a rejected record holds <b>


def test_facts_are_those_of_the_documents(facts):
    assert [source.name for source in facts.sources] == ["en", "it"]
    for source, count in zip(facts.sources, (9, 40), strict=True):
        assert source.lengths.sum() == source.counts.documents
        assert 2 ** (source.lengths.nonzero()[0][-1] - 1) <= source.longest <= source.quantile(1.0)
        sizes = Counter(len(" ".join(WORDS * (1 + number)).encode()).bit_length() for number in range(count))
        assert source.sizes.tolist() == [sizes[digits] for digits in range(33)]
    rejects = facts.sources[1].rejects
    counts = {reason: reject.count for reason, reject in rejects.items()}
    assert counts == {"empty_text": 4, "malformed_json": 4}
    assert len(rejects["malformed_json"].examples) == 3
    assert rejects["malformed_json"].examples[0][1] == 41


def test_entries_are_counted_in_the_shards(work, facts, text):
    manifest = load_manifest(work / "shards")
    everything = set[int]()
    for use in facts.uses:
        shards = [shard for shard in manifest.shards if shard.source == use.name]
        tokens = np.concatenate([np.fromfile(shard.bin_path, "<u2") for shard in shards])
        everything |= set(tokens.tolist())
        counted = np.bincount(tokens, minlength=manifest.tokenizer.vocab_size)
        assert np.array_equal(use.counts, counted)
        most = np.cumsum(np.sort(counted)[::-1])
        half = use.covering(0.5)
        assert most[half - 1] >= len(tokens) / 2 > most[half - 2]
        numbers = [len(tokens), len(tokens), np.count_nonzero(counted)]
        assert rows(text, f' id="use-{use.name}">')[0][:3] == numbers
    vocab = load_vocab(manifest.folder)
    unused = set(range(manifest.tokenizer.vocab_size)) - everything - set(vocab.added_tokens.values())
    assert {token for token, _ in facts.unused} == unused
    assert f'id="never-used" data-value="{len(unused)}"' in text


def test_of_large_sources_shards_are_read_that_are_spread(tmp_path):
    made = make_shards(tmp_path / "shards", {"it": [[5, 6]] * 30})
    (use,) = count_tokens(load_manifest(made), most=45)
    assert (use.read, use.tokens) == (45, 90)
    assert use.counts[5] == 15


def test_columns_that_name_documents_have_no_table_and_nothing_is_unprintable(tmp_path, vocab_dir):
    lines = [
        {"text": "il mare", "id": f"doc-{n}", "part": f"p{n // 19}", "license": "CC0\a" if n % 2 else "MIT"}
        for n in range(20)
    ]
    (tmp_path / "it.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    options = ["--out", str(tmp_path / "w"), "--vocab", str(vocab_dir), "--workers", "0"]
    assert run_command(["tokenize", f"it={tmp_path}/it.jsonl", *options, "--keep", "id,part,license"]) == 0
    text = page(tmp_path / "w")
    documents = text.partition('id="documents"')[2].partition('id="entries"')[0]
    assert "doc-1" not in documents
    assert "<code>id</code> identify documents" in documents
    assert "<h3>it: license</h3>" in documents
    assert "<h3>it: part</h3>" in documents
    assert r"CC0\x07" in documents
    assert all(sign.isprintable() for sign in text.replace("\n", ""))
    assert all(entry.isprintable() for _, entry in gather(tmp_path / "w").unused)


def test_curves_and_bars_are_drawn_between_their_ends(facts, text):
    assert chart({"": []}) is None
    drawn = chart({"a": [(1, 3.0), (3, 7.0)], "b": [(2, 5.0)], "none": []})
    assert drawn["curves"] == {"a": "0.00,100.00 100.00,0.00", "b": "50.00,50.00"}
    assert (drawn["x"], drawn["y"]) == (("1", "3"), ("3", "7"))
    assert chart({"a": [(1, 0.0)]}, zero=True)["curves"] == {"a": "0.00,0.00"}
    assert powers(np.array([0, 0, 3, 0, 9, 0])) == [("2", 3), ("4", 0), ("8", 9)]
    for source in facts.sources:
        part = text[text.index(f"<h3>{source.name}</h3>") :]
        tables = re.findall(r'<table class="bars">.*?</table>', part, re.DOTALL)
        for counts, table in zip((source.lengths, source.sizes), tables, strict=False):
            assert [value for value in values(table) if value] == counts[counts > 0].tolist()


@pytest.mark.parametrize("stop", ["received SIGINT", "the job ends in 40 s", None, "Ray died on n7: raylet"])
def test_a_job_that_was_stopped_did_not_go_wrong(work, tmp_path, monkeypatch, stop):
    shutil.copytree(work, tmp_path / "work")
    (tmp_path / "in.jsonl").write_text('{"text": "il mare"}\n')

    def choose(self, size):
        raise Stopped(f"{stop}: stopped before the end") if stop else KeyboardInterrupt

    monkeypatch.setattr("pretok.base.execute.Engine.choose", choose)
    inputs = {name: f"{work.parent}/{name}.jsonl" for name in ("it", "en")} | {"new": f"{tmp_path}/in.jsonl"}
    recipe = write_recipe(tmp_path / "r.toml", inputs, shards={"max_reject_share": 0.5})
    options = f"--out {tmp_path}/work --vocab {work}/shards/tokenizer.json --val-fraction 0.1"
    assert run_command(["tokenize", recipe, *options.split()]) == 75
    text = page(tmp_path / "work")
    assert "stopped early" in text
    assert ("<h3>Problems" in text) == ("Ray" in str(stop))


def test_the_jobs_are_those_of_the_logs(work, text):
    jobs = read_jobs(work)
    assert (jobs[0].command, jobs[0].exit_code) == ("tokenize", 0)
    assert sum(row.tasks for row in nodes(jobs)) == sum(len(job.tasks) for job in jobs) == 2
    spent = sum(task.seconds for job in jobs for task in job.tasks)
    assert sum(row.busy for row in nodes(jobs)) == pytest.approx(spent)
    assert "<code>pretok tokenize" in text


def test_a_log_that_a_kill_cut_short_is_read_to_its_last_whole_line(work, tmp_path):
    shutil.copytree(work, tmp_path / "work")
    (log,) = (tmp_path / "work" / "logs").glob("tokenize-*.jsonl")
    whole = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(whole[:-2]) + whole[-2][:20])
    (job,) = [job for job in read_jobs(tmp_path / "work") if job.command == "tokenize"]
    assert job.exit_code is None
    assert "killed" in page(tmp_path / "work")


def test_a_run_is_shown_with_its_curves(work, tmp_path):
    def write(name: str, records: list[dict[str, object]]) -> None:
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    measured = {"grad_norm": 1.0, "tokens_per_second_per_device": 100.0, "mfu": None}
    write("metrics", [{"step": step, "loss": 9 - step / 10, **measured} for step in range(1, 51)])
    write("validation", [{"step": 50, "val_loss": 4.0, "sources": {"it": 3.5, "en": 4.5}}])
    kinds = dict.fromkeys(("initialisation", "training", "validation", "saving", "data"), 1.0)
    write("goodput", [kinds | {"steps": 50, "lost_steps": 3}])
    (tmp_path / "config.json").write_text("{}")
    text = page(work, "--run", str(tmp_path))
    assert "Step 50, not finished; loss 4.0000; 1 start on record." in text
    assert "validation, it" in text
    assert "model FLOP utilisation" not in text
    assert "Energy:" not in text
    spent = kinds | {"steps": 50, "lost_steps": 3, "mwh": 216.5, "pue": 1.2, "carbon": 0.057, "tco2e": 14.8}
    write("goodput", [spent, spent])
    assert "Energy: 433 MWh, PUE 1.2, 0.057 kg CO2e/kWh: 29.6 t CO2e." in page(work, "--run", str(tmp_path))
    write("goodput", [spent, kinds | {"steps": 50, "lost_steps": 3}])  # a start that does not know its own
    assert "Energy:" not in page(work, "--run", str(tmp_path))


def test_a_mix_in_its_order_has_a_page(tmp_path):
    make_shards(tmp_path / "shards", {"it": [[5, 6, 7]]})
    text, one = page(tmp_path), ">1</b><span>{}<".format
    for part in ("None yet", "there is no ledger of documents", one("document"), one("shard")):
        assert part in text
    assert ">learned<" not in text


def test_the_page_says_which_kinds_of_a_conversation_are_learned(tmp_path):
    """Beside the tokens of a source, of a stage and of a source in the mix."""
    documents = {"chat": [range(1, 90)] * 9, "it": [[5, 6, 7]] * 90}
    shards = make_shards(tmp_path / "shards", documents, chats={"chat": 0})
    weights = {"it": 0.5, "chat": 0.5}
    pretok.mix(tmp_path, learn={"chat": ["user"]}, weights=weights, tokens=300, seq_len=16)
    text, manifest = page(tmp_path), load_manifest(shards)
    report = read_json(tmp_path / "mix.json")["report"]
    first, second = text[: text.index('id="mix"')], text[text.index('id="mix"') :]
    for name in ("chat", "it"):
        counts = manifest.sources[name]
        assert rows(first, f' id="source-{name}">')[0][:2] == [counts.tokens, counts.train.learned]
        assert rows(second, f"><td>{name}</td>")[0][1] == report["sources"][name]["tokens"]
    share = manifest.sources["chat"].train.kinds["user"] / manifest.sources["chat"].train.tokens
    assert f"In chat, the tokens of user are learned: {100 * share:.1f} % of its source." in second


def test_no_shards_is_an_error_that_says_so(tmp_path):
    assert run_command(["report", str(tmp_path)]) == 2
    with pytest.raises(IntegrityError, match="does not exist"):
        gather(tmp_path)


def test_a_tile_says_whether_these_shards_were_verified(work, tmp_path):
    copy = shutil.copytree(work, tmp_path / "work")

    def tile() -> str:
        (found,) = re.findall(r'<b id="verified">.*?</li>', page(copy))
        return " ".join(re.sub("<[^>]*>", " ", found).split())

    assert tile() == "not verified since they were sealed: pretok verify"
    assert run_command(["verify", str(copy / "shards"), "--workers", "0"]) == 0
    (job,) = (job for job in read_jobs(copy) if job.command == "verify")
    assert tile() == f"verified {datetime.fromtimestamp(job.ended, UTC):%Y-%m-%d %H:%M:%S} UTC"
    os.utime(copy / "shards" / "manifest.json", (job.ended + 1, job.ended + 1))  # as a removal leaves it
    assert tile().startswith("not verified")
