"""What was trained on: every figure against a walk over positions, documents and input rows."""

from __future__ import annotations

import csv
import io
import json
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from mixing import cut_of, stretches, write_segment
from support import needs
from tokenizing import make_work

import pretok
import pretok.stream
from pretok.cli import run_command
from pretok.config import Recipe
from pretok.documents.disclosure.card import _size
from pretok.documents.disclosure.domains import registrable_domains, reservation_of
from pretok.shards.manifest import load_manifest

SEQ_LEN, BATCH = 48, 8
LANGUAGES = {"it": ["it", "it", None, "sc"], "en": ["en", "it"]}


def record(name: str, i: int) -> dict[str, Any]:
    return {
        "id": f"{name}-{i}",
        "text": f"{name} documento è {i} " * (1 + i * 7 % 23) if i != 5 else "",
        "lang": LANGUAGES[name][i % len(LANGUAGES[name])],
        "meta": {"url": f"https://www.host{i % 11}.example:80/p/{i}" if i % 9 else None},
        "rights": ["cc0", "cc-by"][i % 2],
        "created": [f"20{i % 20:02}-0{1 + i % 9}-11T10:00:00Z", "2031-13-01", "1990", None][i % 4],
        "copy_of": f"{name}-0" if i % 10 == 3 else None,
    }


ROWS = {name: [record(name, i) for i in range(count)] for name, count in (("it", 200), ("en", 60))}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, vocab_dir: Path) -> Recipe:
    """Two sources of several shards and a mix of two stages that reads one of them more than twice."""
    keep = ("id", "lang", "url=meta.url", "licence=rights", "created", "copy_of")
    built = make_work(tmp_path_factory.mktemp("disclose"), vocab_dir, ROWS, *keep)
    tokens = {name: load_manifest(built.shards_dir).sources[name].train.tokens for name in ROWS}
    stages = [f"{tokens['en'] * 2}:it=0.3,en=0.7", f"{tokens['en']}:it=0.2,en=0.8"]
    command = ["mix", str(built.shards_dir), "--out", str(built.out / "mix.json"), "--seq-len", str(SEQ_LEN)]
    command += ["--max-epochs", "9"]
    assert run_command([*command, *(part for stage in stages for part in ("--stage", stage))]) == 0
    return built


def write_run(made: Recipe, folder: Path, steps: int, mix: Path | None) -> Path:
    """The files that `train` writes and this reads."""
    folder.mkdir()
    view = pretok.stream.open(made.shards_dir, mix, seq_len=SEQ_LEN, seed=3)
    model = {"hidden": 64, "layers": 2, "seq_len": SEQ_LEN, "norm_eps": 1e-05, "rope_theta": 5e5}
    settings = {"model": "debug", "resolved": {"model": model, "steps": len(view) // BATCH}}
    (folder / "config.json").write_text(json.dumps(settings))
    write_segment(folder, made.shards_dir, view, BATCH)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            told = {"step": step, "tokens": step * BATCH * SEQ_LEN, "skipped": step // 5}
            file.write(json.dumps({**told, "time": f"2026-01-{step:02}T00:00:00Z"}) + "\n")
        file.write('{"step": 99')
    return folder


def ask(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    command = ["disclose", *map(str, arguments), "--column", "duplicate=copy_of"]
    command += [] if "--format" in command else ["--format", "json"]
    assert run_command(command) == 0, capsys.readouterr().err
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


Entries = list[tuple[int, dict[str, Any]]]
Figures = dict[str, Entries]
Sums = tuple[int, int, int, int]
AMOUNTS = ("documents", "document_bytes", "tokens", "token_bytes")


@pytest.fixture(scope="module")
def documents(made: Recipe) -> Figures:
    """(tokens, record) of the training documents of each source, in the order of its shards."""
    found: Figures = {name: [] for name in load_manifest(made.shards_dir).sources}
    for row in pretok.open(made.out).documents(split="train").read_all().to_pylist():
        record = ROWS[row["source"]][row["position"] - 1]
        found[row["source"]].append((row["tokens"], {**record, "length": row["tokens"]}))
    return found


def walk(documents: Figures, view: pretok.stream.View, length: int, first: int = 0) -> Figures:
    """Position by position, from `first` on: (tokens read, record) of each document of which any was read."""
    read = {source.name: np.zeros(max(source.tokens, 1), np.int64) for source in view.mix.sources}
    for position in range(first, length):
        source, epoch, index = view.origin(position)
        if view.mix.packs:
            for _, first, tokens in stretches(view, position):
                read[source][first : first + tokens] += 1
        else:
            first = cut_of(view, source, epoch) + index * SEQ_LEN
            read[source][first : first + SEQ_LEN] += 1
    found: Figures = {}
    for name, counts in read.items():
        at, found[name] = 0, []
        for tokens, row in documents[name]:
            if taken := int(counts[at : at + tokens].sum()):
                found[name].append((taken, row))
            at += tokens
    return found


def sums(entries: Entries) -> Sums:
    sizes = [len(row["text"].encode()) for _, row in entries]
    read = sum(n * tokens // row["length"] for n, (tokens, row) in zip(sizes, entries, strict=True))
    return len(entries), sum(sizes), sum(tokens for tokens, _ in entries), read


def by(entries: Entries, key: Any) -> dict[Any, Sums]:
    groups = defaultdict(list)
    for entry in entries:
        groups[key(entry[1])].append(entry)
    return {value: sums(group) for value, group in groups.items()}


def host(row: dict[str, Any]) -> str | None:
    url = row["meta"]["url"]
    return urlsplit(url).hostname.removeprefix("www.") if url else None


def listed(values: dict[str, Any]) -> dict[Any, Sums]:
    assert values["distinct"] == sum(entry["value"] is not None for entry in values["listed"])
    return {e["value"]: amount(e) for e in values["listed"]}


def amount(values: dict[str, Any]) -> Sums:
    return tuple(values[name] for name in AMOUNTS)  # type: ignore[return-value]


def check(said: dict[str, Any], figures: Figures) -> None:
    everything = [entry for entries in figures.values() for entry in entries]
    assert [source["name"] for source in said["sources"]["sources"]] == list(figures)
    parts = zip([said["general"], *said["sources"]["sources"]], [everything, *figures.values()], strict=True)
    for part, entries in parts:
        assert amount(part) == sums(entries)
        assert listed(part["languages"]) == by(entries, lambda row: row["lang"])
        assert listed(part["licences"]) == by(entries, lambda row: row["rights"])
        assert amount(part["duplicates"]) == sums([e for e in entries if e[1]["copy_of"]])
        created = [row["created"] for _, row in entries]
        dates = [date[:10] for date in created if date and date != "2031-13-01"]
        expected = (min(dates), max(dates), len(dates), created.count("2031-13-01"), created.count(None))
        assert tuple(part["dates"].values()) == expected
        domains = said["sources"]["domains"] if part is said["general"] else part["domains"]
        assert listed(domains) == by(entries, host)


@pytest.mark.parametrize("target", ["shards", "mix", "packed", "run of 23", "run of 1 without a mix"])
def test_figures_are_those_of_a_walk(
    made: Recipe, documents: Figures, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A packed mix is of more than one epoch: in the second one some documents are read in part."""
    manifest, mix = load_manifest(made.shards_dir), made.out / "mix.json"
    if target == "shards":
        said = ask(capsys, made.out)
        check(said, documents)
        for source in said["sources"]["sources"]:
            train, val = manifest.sources[source["name"]].train, manifest.sources[source["name"]].val
            assert amount(source) == (train.documents, train.bytes, train.tokens, train.bytes)
            assert source["unread"]["val"] == {
                name: getattr(val, name) for name in ("tokens", "documents", "bytes")
            }
            assert source["epochs"] is None
        assert said["processing"]["rejected"] == {"en": {"empty_text": 1}, "it": {"empty_text": 1}}
        return
    if target == "packed":
        mix = tmp_path / "mix.json"
        tokens = int(manifest.sources["it"].train.tokens * 1.6)
        wish = f"--seq-len {SEQ_LEN} --pack best-fit --tokens {tokens} --weights it=1"
        assert run_command(f"mix {made.shards_dir} --out {mix} {wish}".split()) == 0
    if not target.startswith("run"):
        view = pretok.stream.open(made.shards_dir, mix)
        said, read = ask(capsys, made.out, mix), len(view)
        report = json.loads(mix.read_text())["report"]["sources"]
        for source in said["sources"]["sources"]:
            assert source["sequences"] == report[source["name"]]["sequences"]
            assert source["epochs"] == pytest.approx(source["sequences"] / source["sequences_of"])
    else:
        of = None if "without" in target else mix
        view, steps = pretok.stream.open(made.shards_dir, of, seq_len=SEQ_LEN, seed=3), int(target.split()[2])
        folder = write_run(made, tmp_path / "run", steps, of)
        spent = {"mwh": 2.0, "tco2e": 1.1, "pue": 1.1, "carbon": 0.5}
        (tmp_path / "run" / "goodput.jsonl").write_text(json.dumps(spent) + "\n")
        said, read = ask(capsys, made.out, folder), steps * BATCH
        model = said["general"]["model"]
        assert model["energy"] == spent
        assert (model["steps"], model["steps_skipped"], model["finished"]) == (steps, steps // 5, False)
    assert said["about"]["sequences"] == read
    check(said, walk(documents, view, read))


def test_blanks_are_named_and_nothing_is_guessed(made: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers fill the blanks, and change nothing else."""
    blank = ask(capsys, made.out)
    path = made.out / "disclosure.toml"
    path.write_text(ANSWERS)
    answered = ask(capsys, made.out)
    path.unlink()
    answers = tomllib.loads(ANSWERS)
    [it] = [one for one in blank["sources"]["sources"] if one["name"] == "it"]
    for part, given in (
        (blank["general"]["provider"], answers["provider"]),
        (blank["general"]["model"], answers["model"]),
        (blank["general"], answers["general"]),
        (blank["processing"], answers["processing"]),
        (blank["sources"], {"crawlers": answers["crawlers"]}),
        (it, answers["sources"]["it"]),
    ):
        assert [part[name] for name in given] == [None] * len(given)
        part |= given
    assert answered == blank
    assert run_command(["disclose", str(made.out), "--format", "json"]) == 0
    general = json.loads(capsys.readouterr().out)["general"]
    assert general["duplicates"] is general["synthetic"] is None  # the column of copies has no usual name
    found = ask(capsys, made.out, "--column", "synthetic=licence")["general"]
    assert found["synthetic"] == found["licences"]


def test_domains_are_cut_where_asked(made: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    whole = ask(capsys, made.out)["sources"]["domains"]
    cut = ask(capsys, made.out, "--domains", 3)["sources"]["domains"]
    assert cut["distinct"] == whole["distinct"] == 11
    assert [e for e in cut["listed"] if e["value"]] == [e for e in whole["listed"] if e["value"]][:3]
    tokens = [entry["tokens"] for entry in whole["listed"] if entry["value"]]
    assert tokens == sorted(tokens, reverse=True)


def test_the_page_shows_the_json(made: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, run_folder = tmp_path / "new" / "page.html", tmp_path / "run"
    write_run(made, run_folder, 7, made.out / "mix.json")
    assert run_command(f"disclose {made.out} {run_folder} --format html --out {page}".split()) == 0
    text, said = page.read_text(encoding="utf-8"), ask(capsys, made.out, run_folder)
    for source in said["sources"]["sources"]:
        part = text[text.index(f'id="source-{source["name"]}"') :]
        part = part[: part.index("</section>")]
        for entry in [source, *source["domains"]["listed"]]:
            assert f"{entry['tokens']:,}" in part
    shown = "".join(text.split())
    assert "<dt>normeps</dt><dd>1e-05</dd><dt>ropetheta</dt><dd>500,000</dd>" in shown
    assert '<spanclass="blank">notstated</span>' in shown
    assert "http" not in text.split("<body>")[1]


def test_the_card_is_read_as_the_hub_reads_it(
    made: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub, path = needs("huggingface_hub"), tmp_path / "README.md"
    mix = made.out / "mix.json"
    said = ask(capsys, made.out, mix)
    assert run_command(["disclose", str(made.out), str(mix), "--out", str(path)]) == 0
    card = hub.DatasetCard.load(path)
    languages = {row["value"] for row in said["general"]["languages"]["listed"]}
    assert set(card.data.language) == languages - {None} != languages
    assert (card.data.license, card.data.size_categories) == ("other", ["n<1K"])
    assert f"{said['general']['tokens']:,} tokens" in card.text
    for source in said["sources"]["sources"]:
        row = next(line for line in card.text.splitlines() if line.startswith(f"| {source['name']} |"))
        shown = [source[name] for name in ("documents", "document_bytes", "tokens")]
        assert row.endswith(" | ".join(f"{number:,}" for number in shown) + f" | {source['epochs']:.2f} |")
    assert [_size(number) for number in (0, 999, 1000, 10**12 - 1, 10**12)] == [
        *("n<1K", "n<1K", "1K<n<10K", "100B<n<1T", "n>1T")
    ]


def test_the_reference_library_reads_the_spdx_document(
    made: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It refuses unknown classes, properties and values; all elements are named and described."""
    spdx, path = needs("spdx_python_model").v3_0_1, tmp_path / "data.spdx.json"
    said = ask(capsys, made.out)
    assert run_command(["disclose", str(made.out), "--out", str(path)]) == 0
    found = spdx.SHACLObjectSet()
    with path.open("rb") as file:
        spdx.JSONLDDeserializer().read(file, found)
    assert not found.missing_ids
    spdx.JSONLDSerializer().write(found, io.BytesIO())  # refuses elements without a required property
    [document] = found.foreach_type("SpdxDocument")
    [whole] = document.rootElement
    assert whole.dataset_datasetSize == said["general"]["document_bytes"]
    assert set(document.element) == set(found.foreach_type("Element")) - {document}
    of = [(one, other) for one in found.foreach_type("Relationship") for other in one.to]
    related = {(a.relationshipType.rpartition("/")[2], a.from_.name, b.name) for a, b in of}
    for source in said["sources"]["sources"]:
        name = source["name"]
        [package] = [one for one in found.foreach_type("dataset_DatasetPackage") if one.name == name]
        assert package.dataset_datasetSize == source["document_bytes"]
        assert ("contains", whole.name, name) in related
        licences = {other for kind, one, other in related if (kind, one) == ("hasDeclaredLicense", name)}
        assert licences == {row["value"] for row in source["licences"]["listed"]}


def test_what_does_not_fit_is_refused(
    made: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = write_run(made, tmp_path / "none", 0, made.out / "mix.json")
    lost = write_run(made, tmp_path / "lost", 3, made.out / "mix.json")
    (lost / "segments.jsonl").unlink()

    def answers(text: str) -> list[object]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.toml"
        path.write_text(text)
        return ["--answers", path]

    for arguments, message in (
        ([none], "no step is finished"),
        ([tmp_path], "is not the folder of a run"),
        ([tmp_path / "gone.json"], "gone.json does not exist"),
        ([lost], "segments.jsonl does not say what the first steps read"),
        (["--format", "xml"], "known are json"),
        (["--column", "language=tongue"], "kept columns: copy_of, created, id"),
        (["--column", "colour=lang"], "KIND is one of language"),
        (["--column", "language"], "write KIND=COLUMN"),
        (answers('[provider]\nnmae = "x"'), "unknown key provider.nmae (did you mean name?)"),
        (answers('[sources.it]\ncategory = "web"'), "it should be 'publicly available datasets'"),
        (answers('[sources.fr]\ncategory = "other"'), "there is no source 'fr'; the sources are en, it"),
        (answers("[general]\ndocuments = 5"), "unknown key general.documents"),
        (answers("[general]\nsize_band = 5"), "general.size_band: 5: it should be a valid string"),
        (answers("[general"), "is not valid TOML"),
    ):
        capsys.readouterr()
        assert run_command(["disclose", str(made.out), *map(str, arguments)]) == 2
        assert message in " ".join(capsys.readouterr().err.split())


ANSWERS = """
crawlers = "our own, by robots.txt"
provider.name = "Lab"
model.versions = "1.0"
general.size_band = "less than 1 T"
sources.it.category = "data crawled and scraped from online sources"
processing.other = "none"
"""


def test_registrable_domains_are_ranked_by_bytes(
    made: Recipe, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts are host0.example to host10.example, each of its own; a mapped one merges all."""
    needs("publicsuffixlist")
    hosts = {one["value"]: one for one in ask(capsys, made.out)["sources"]["domains"]["listed"]}
    assert run_command(["disclose", str(made.out), "--format", "csv"]) == 0
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["domain"] or None for row in found} == set(hosts)
    for row in found:
        assert amount(hosts[row["domain"] or None]) == tuple(int(row[name]) for name in AMOUNTS)
    sizes = [int(row["document_bytes"]) for row in found[:-1]]
    assert sizes == sorted(sizes, reverse=True)
    assert found[-1]["domain"] == ""
    monkeypatch.setitem(sys.modules, "publicsuffixlist", None)
    assert run_command(["disclose", str(made.out), "--format", "csv"]) == 2
    assert "pip install publicsuffixlist" in capsys.readouterr().err


@pytest.fixture
def register(made: Recipe) -> Iterator[Path]:
    """The file that WORK/disclosure.toml names."""
    needs("publicsuffixlist")
    path, named = made.out / "reserved.csv", made.out / "disclosure.toml"
    named.write_text('reservations = "reserved.csv"')
    yield path
    named.unlink()
    path.unlink(missing_ok=True)


def test_reservations_are_joined_by_domain(
    made: Recipe, documents: Figures, register: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reserved before, within and after the 7 days of a run, one of them on its first; and one that holds nothing."""
    days = {3: "2025-06-01", 5: "2026-01-04", 7: "2026-02-01", 9: "2026-01-01", 10: "2026-01-07"}
    reserved = {f"host{n}.example": day for n, day in days.items()} | {"none.example": "2020-01-01"}
    lines = ["domain,reserved_from", *(f"{name},{day}" for name, day in reserved.items())]
    register.write_text("\n".join(lines))
    said = ask(capsys, made.out, write_run(made, tmp_path / "run", 7, made.out / "mix.json"))
    joined = said["processing"]["reservations"]
    assert joined["registered"] == 6
    every = pretok.open(made.out).documents().read_all().to_pylist()
    where = [host({"meta": {"url": row["url"]}}) for row in every]
    view = pretok.stream.open(made.shards_dir, made.out / "mix.json")

    def read(name: str, first: int) -> tuple[int, ...]:
        figures = walk(documents, view, 7 * BATCH, first * BATCH)
        return by([e for entries in figures.values() for e in entries], host).get(name, (0, 0, 0, 0))[::2]

    found = {one["name"]: one for one in joined["domains"]}
    assert found.keys() == reserved.keys() - {"none.example"}
    before = {"2025-06-01": 0, "2026-01-01": 0, "2026-01-04": 3, "2026-01-07": 6, "2026-02-01": 7}
    for name, one in found.items():
        held = [row["tokens"] for row, there in zip(every, where, strict=True) if there == name]
        assert (one["documents"], one["tokens"]) == (len(held), sum(held))
        assert (one["read_documents"], one["read_tokens"]) == read(name, 0)
        assert (one["later_documents"], one["later_tokens"]) == read(name, before[one["reserved_from"]])
    for key, total in joined["total"].items():
        assert total == sum(one[key] for one in found.values())
    none = [row["tokens"] for row, there in zip(every, where, strict=True) if there is None]
    assert (joined["no_address_documents"], joined["no_address_tokens"]) == (len(none), sum(none))
    # Of the shards: the same held; no order reads them.
    of_shards = ask(capsys, made.out)["processing"]["reservations"]
    assert [one["tokens"] for one in of_shards["domains"]] == [one["tokens"] for one in joined["domains"]]
    assert of_shards["total"]["read_tokens"] is None
    of_mix = ask(capsys, made.out, made.out / "mix.json")["processing"]["reservations"]
    assert of_mix["total"]["read_tokens"] > joined["total"]["read_tokens"]
    assert of_mix["total"]["later_tokens"] is None
    assert run_command(["disclose", str(made.out), "--format", "html"]) == 0
    assert "reserved from" in capsys.readouterr().out


def test_hosts_are_led_to_their_domain_and_its_reservation() -> None:
    """If a host and its domain are reserved, the earlier day counts."""
    needs("publicsuffixlist")
    of = registrable_domains()
    hosts = ["news.bbc.co.uk", "a.b.github.io", "10.0.0.1", "localhost", "co.uk", "WWW.X.IT"]
    wanted = ["bbc.co.uk", "b.github.io", "10.0.0.1", "localhost", "co.uk", "x.it"]
    assert [of(host) for host in hosts] == wanted
    register = {"bbc.co.uk": "2024-01-01", "news.bbc.co.uk": "2023-01-01", "old.bbc.co.uk": "2025-01-01"}
    register |= {"b.x.it": "2024-01-01", "xn--mnchen-3ya.de": "2024-01-01"}
    line_of = reservation_of(register)
    for name, reserved in (
        ("bbc.co.uk", ("bbc.co.uk", "a.BBC.co.uk", "a.news.bbc.co.uk", "old.bbc.co.uk")),
        ("news.bbc.co.uk", ("news.bbc.co.uk",)),
        ("b.x.it", ("b.x.it",)),
        ("xn--mnchen-3ya.de", ("münchen.de",)),
        ("", ("itv.co.uk", "x.it", "a.b.x.it")),
    ):
        assert [line_of(host) for host in reserved] == [name] * len(reserved)


def test_wrong_lines_of_a_register_are_named(
    made: Recipe, register: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["x.it,2024-01-01", "https://y.it,2024-01-01", "z.it,1.1.2024", "co.uk,2024-01-01"]
    lines += ["X.it,2024-02-30", "w.it", "", "u.it,20240101", "www.t.it,2024-01-01"]
    named = "; ".join(f"line {at}: {lines[at - 2]}" for at in (3, 4, 5, 6, 7, 9))
    for text, message in (
        ("\n".join(["domain,reserved_from", *lines]), f"as in example.org,2024-08-01: {named}"),
        ("x.it,2024-01-01", "the first line must be domain,reserved_from"),
        ('domain,reserved_from\n"x.it', "cannot read"),
        (None, "cannot read"),
    ):
        register.unlink(missing_ok=True)
        if text is not None:
            register.write_text(text)
        assert run_command(["disclose", str(made.out)]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
