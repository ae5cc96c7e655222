"""Recipes are validated; what is wrong is named with what was meant."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import pytest
from support import ROOT

from pretok.base.errors import UsageError
from pretok.base.units import human, parse_count
from pretok.cli import run_command
from pretok.commands.reference import TABLES, page
from pretok.config import load_recipe, load_toml, make_recipe, parse_inputs, with_appends, with_settings
from train.config import TrainConfig, check_table

MINIMAL = {"out": "work", "sources": {"it": {"inputs": ["a.jsonl"]}}}


def test_shipped_recipes_are_what_they_promise(monkeypatch):
    monkeypatch.chdir(ROOT)
    demo, first, second = (
        load_recipe(Path("pipelines", f"{name}.toml")) for name in ("demo", "italia-v01", "italia-cpt")
    )
    assert demo.out == Path("work/demo")
    assert (first.mix.tokens, first.mix.weights["it"]) == (1_200_000_000_000, Fraction(9, 10))
    assert (second.mix.tokens, second.mix.weights["it"]) == (3_000_000_000_000, Fraction(1, 2))
    assert second.normalize == first.normalize
    assert second.train["init_from"] == "PUT/THE/FIRST/MODEL/HERE"  # or it would train from random weights


WRONG = """
shard = {}                                        ->unknown key shard (did you mean shards?)
slurm.tokenize.spare = 2                          ->unknown key slurm.tokenize.spare (known: links, nodes, time)
sources = {}                                      ->sources: it is empty; give at least one
sources."i/t".inputs = ["a"]                      ->source name 'i/t': use only letters, digits, - and _
sources.annotations.inputs = ["a"]                ->source name 'annotations' is reserved
sources."èèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèèè".inputs = ["a"] ->102 bytes, 100 at most
sources.it = {inputs = ["a"], keep = ["hash=n"]}  ->sources.it.keep: the ledger itself has a column 'hash';
sources.it.inputs = "d.jsonl"                     ->sources.it.inputs: 'd.jsonl' is not a list; write ['d.jsonl']
sources.it = "d.jsonl"                            ->sources.it: 'd.jsonl' is not a table; write its keys below a line
sources.it = {}                                   ->sources.it.inputs is missing: Files, folders
sources.it = {inputs = ["a"], learn = ["user"]}   ->sources.it.learn needs messages or template
sources.it = {inputs = ["a"], messages = "m", field = "f"}         ->sources.it.messages and field exclude each other
sources.it = {inputs = ["a"], messages = "m", format = "text"}     ->sources.it.format: plain text has no fields
sources.it = {inputs = ["a"], messages = "m", date = "1 May"}      ->sources.it.date: '1 May': it should be a valid date
sources.it = {inputs = ["a"], template = "{a}", learn = ["b"]}     ->sources.it.learn: 'b' is not one of a
shards.size = "12 apples"                         ->shards.size: '12 apples' is not a count such as
normalize.unicode = "nfkc"                        ->normalize.unicode: 'nfkc': it should be 'none' or 'nfc'
vocab.weights = {it = 0.5}                        ->vocab.weights: the weights it=0.5 add up to 0.5, not to 1
vocab.weights = {en = 1}                          ->vocab.weights names en, but the sources are it
sources.en.inputs = ["a"] & vocab.weights = {it = 1}               ->vocab.weights names it, but the sources are
vocab.bos = "<x>"                                 ->vocab.bos is '<x>', which is not in special_tokens after the first
mix.weights = {it = "x"}                          ->mix.weights.it: 'x' is not a share
mix.tokens = "lots"                               ->64MiB; or write 'all'
mix.tokens = 4095                                 ->mix: a budget of 4095 tokens holds no sequence of 4096 tokens
mix.stages = [{weights = {en = 1}}]               ->mix.weights names en, but the sources are it
mix.classes = {good = "fr where doc > 1"}         ->mix.classes names fr, but the sources are it
sources.it = {inputs = ["a"], keep = ["n:txt"]}   ->sources.it.keep: 'n:txt' has no type 'txt'; did you mean text?
mix.repeat = {it = 5}                             ->mix.repeat 5 is more than max_epochs, 4: raise it
out = "$NOWHERE_AT_ALL/a"                         ->out: $NOWHERE_AT_ALL/a: $ does not begin an environment
sources.it.inputs = ["~nobody-of-this-name/a"]    ->~nobody-of-this-name/a: nobody's home folder
"""


@pytest.mark.parametrize("case", WRONG.strip().splitlines())
def test_what_is_wrong_is_named(case):
    change, message = case.replace(" & ", "\n").split("->")
    given = tomllib.loads(change)
    if "en" in given.get("sources", ()):
        given["sources"] |= MINIMAL["sources"]
    with pytest.raises(UsageError) as caught:
        make_recipe({**MINIMAL, **given}, "r.toml")
    assert message in str(caught.value)
    assert re.match(r"r\.toml: \w", str(caught.value))


@pytest.mark.parametrize(
    ("dotted", "value", "message"),
    [
        ("vocab.size", "100", r"^--option: 100: it should be greater than or equal to 257"),
        ("vocab.seed", -1, r"^--option: -1: it should be greater than or equal to 0"),
        ("shards.seed", 2**63, r"^--option: 9223372036854775808: it should be less than 9223372036854775808"),
        ("vocab.eod", "x", r"^--option needs path or extend$"),
        ("sources.keep", ["file=path"], r"^--option: the ledger itself has a column 'file'.*my_file=path$"),
    ],
)
def test_what_an_option_gave_is_called_by_the_option(dotted, value, message):
    with pytest.raises(UsageError, match=message):
        make_recipe(with_settings(MINIMAL, {dotted: value}), "", options={dotted: "--option"})


def test_the_page_of_all_keys_is_that_of_the_settings():
    """Made by: python -c "from pretok.commands.reference import page as p; print(p(), end='')" > docs/recipe.md"""
    assert (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8") == page()


def test_init_prints_the_defaults_and_values_that_are_taken(capsys):
    plain = make_recipe({"out": "work", "sources": parse_inputs(["it=a", "en=b"])}, "x")
    printed = {}
    for options in ((), ("--all",)):
        assert run_command(["init", "it=a", "en=b", "--out", "work", *options]) == 0
        printed[options] = capsys.readouterr().out
        assert make_recipe(tomllib.loads(printed[options]), "x") == plain
    assert len([line for line in printed[()].splitlines() if line]) <= 30
    heading, keys = "", {}
    for line in printed[("--all",)].splitlines():
        if found := re.fullmatch(r"(?:# )?\[(.+)\]", line):
            heading = found[1]
            keys[heading] = []
        elif found := re.match(r"# (\w+) = .*?  # .*?(?:Needs `(\w+)`|$)", line):
            keys[heading].append(found[1])
            given = tomllib.loads(line[2:]) | ({found[2]: "x"} if found[2] else {})
            if heading == "train":
                check_table(given)
                continue
            given |= {"path": "x"} if found[1] == "bos" else {}
            data = {"out": "work", "sources": {"it": {"inputs": ["a"]}, "en": {"inputs": ["b"]}}}
            place = data
            for name in heading.split("."):
                place = place.setdefault(name, {})
            place |= given
            make_recipe(data, line)
    assert keys["train"] == [item.name for item in fields(TrainConfig) if item.name != "phases"]
    for heading, table in TABLES.items():
        name = heading.strip("[]").replace("NAME", "it").replace("STAGE", "mix")
        if name not in ("", "train", "slurm"):  # whose fields are tables, or no pydantic type
            assert {*keys[name], "inputs", "append", "stages"} >= table.model_fields.keys()
    assert run_command(["init", "a.jsonl"]) == 2


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_wrong_in_a_file_has_its_line(tmp_path):
    tables = "[vocab]\nsise = 3\n[mix]\nweights = {it = 0.5}\n[slurm.train]\nnodes = 0\n"
    path = written(tmp_path / "r.toml", f'out = "w"\n\n[sources.it]\ninputs = ["a"]\n{tables}')
    with pytest.raises(UsageError) as caught:
        load_recipe(path)
    for message in (
        f"{path}: line 6: unknown key vocab.sise (did you mean size?)",
        "line 8: mix.weights: the weights it=0.5 add up to 0.5",
        "line 10: slurm.train.nodes: 0: it should be greater than or equal to 1",
    ):
        assert message in str(caught.value)
    stages = '[[mix.stages]]\ntokens = "1M"\n' * 2 + 'weights = {it = "x"}\n'
    path = written(tmp_path / "s.toml", f'out = "w"\nsources.it.inputs = ["a"]\n{stages}')
    with pytest.raises(UsageError, match=r"line 7: mix.stages.1.weights.it: 'x' is not a share"):
        load_recipe(path)
    with pytest.raises(UsageError, match="not valid TOML"):
        load_recipe(written(tmp_path / "bad.toml", "out = "))


def test_inputs_on_the_command_line(tmp_path):
    sources = parse_inputs(["it=a/*.zst", "en=b.parquet", "it=c.jsonl"])
    assert sources == {"it": {"inputs": ["a/*.zst", "c.jsonl"]}, "en": {"inputs": ["b.parquet"]}}
    for wrong in ("a.jsonl", "=a", "it="):
        with pytest.raises(UsageError):
            parse_inputs([wrong])
    # An append starts at the current folder, the recipe's own inputs at the folder of the recipe.
    path = written(tmp_path / "r.toml", 'out = "w"\n[sources.it]\ninputs = ["a"]\n')
    recipe = make_recipe(with_appends(load_toml(path), ["it=b.jsonl"]), str(path))
    assert recipe.sources["it"].inputs_by_append == ((f"{tmp_path}/a",), ("b.jsonl",))


def test_counts():
    counts = {"1.2T": 12 * 10**11, "0.5B": 5 * 10**8, "64MiB": 64 << 20, "1_000": 1000, 7: 7, "2k": 2000}
    assert {text: parse_count(text) for text in counts} == counts
    assert [human(n) for n in (0, 999, 1234, 5.6e12)] == ["0", "999", "1.23 k", "5.6 T"]
    for text in ("", "1.5", "many", "1.23456K", "-5", "1e-6", "1 Z"):
        with pytest.raises(ValueError):  # noqa: PT011 - the message is tested above
            parse_count(text)


def test_relative_paths_start_at_the_folder_of_the_recipe_and_others_are_expanded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/anna")
    monkeypatch.setenv("SCRATCH", "/scratch/$USER")  # what a variable holds is not expanded again
    path = written(
        Path("recipes [1]/r.toml"),
        'out = "../work"\n[vocab]\npath = "vocab"\n[shards]\nagainst = "~/w$$1"\nremoved = "r"\n[train]\nout = "run"\n'
        '[sources.append]\nmessages = "m"\nchat_template = "c"\ntools = "t"\n'  # a source may have the name of a key
        'inputs = ["../data/*.jsonl", "a/**/b.jsonl", "/x/y", "sample:it", "s3://b/c", "${SCRATCH}2/a"]\n'
        '[[sources.append.append]]\ninputs = ["more"]\n',
    )
    recipe = load_recipe(path)
    source, folder = recipe.sources["append"], Path("recipes [1]")
    assert (recipe.out, recipe.shards.against) == (Path("work"), Path("/home/anna/w$1"))
    assert [recipe.vocab.path, recipe.shards.removed, source.tools] == [
        folder / name for name in ["vocab", "r", "t"]
    ]
    assert (source.chat_template, recipe.train) == ("recipes [1]/c", {"out": "run"})
    assert source.inputs_by_append == (
        ("data/*.jsonl", "recipes [[]1]/a/**/b.jsonl", "/x/y", "sample:it", "s3://b/c", "/scratch/$USER2/a"),
        ("recipes [[]1]/more",),
    )
    Path("deep").mkdir()
    Path("deep/link").symlink_to(tmp_path / "recipes [1]")
    assert load_recipe(Path("deep/link/r.toml")).out.resolve() == tmp_path / "work"
    given = make_recipe({"out": Path("~/$w"), "sources": parse_inputs(["it=$SCRATCH/a"])}, "")
    assert (given.out, given.sources["it"].inputs) == (Path("~/$w"), ("/scratch/$USER/a",))


def test_a_field_given_once_is_that_of_every_source():
    sources = {"it": {"inputs": ["a"], "field": "x"}, "en": {"inputs": ["b"], "max_document": "1MiB"}}
    recipe = make_recipe(with_settings({"out": "w", "sources": sources}, {"sources.field": "content"}), "x")
    assert [source.field for source in recipe.sources.values()] == [("content",), ("content",)]
    assert [source.record_format().max_document for source in recipe.sources.values()] == [256 << 20, 1 << 20]
