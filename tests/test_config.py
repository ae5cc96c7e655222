"""Recipes are validated; what is wrong is named with what was meant."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import pytest

from pretok.base.errors import UsageError
from pretok.base.units import human, parse_count
from pretok.cli import run_command
from pretok.commands.reference import TABLES, keys_of, page
from pretok.config import DEFAULT_SPECIAL_TOKENS, load_recipe, make_recipe, parse_inputs, with_settings
from pretok.config.settings import Slurm
from pretok.read.conversation import RecordFormat
from pretok.read.normalize import Normalization
from train.config import TrainConfig, check_table

RECIPES = Path(__file__).parent.parent / "pipelines"
MINIMAL = {"out": "work", "sources": {"it": {"inputs": ["a.jsonl"]}}}


def test_shipped_recipes_are_what_they_promise(monkeypatch):
    monkeypatch.chdir(RECIPES.parent)
    recipes = {path.stem: load_recipe(path.relative_to(Path.cwd())) for path in RECIPES.glob("*.toml")}
    for recipe in recipes.values():
        assert set(recipe.sources) == {"it", "en"}
        assert recipe.mix is not None
    assert recipes["demo"].out == Path("work/demo")
    first, second = recipes["italia-v01"], recipes["italia-cpt"]
    assert (first.mix.tokens, first.mix.weights["it"]) == (1_200_000_000_000, Fraction(9, 10))
    assert (second.mix.tokens, second.mix.weights["it"]) == (3_000_000_000_000, Fraction(1, 2))
    assert (first.vocab.size, first.mix.seq_len) == (50_000, 4096)
    assert second.normalize == first.normalize
    assert second.train["init_from"] == "PUT/THE/FIRST/MODEL/HERE"  # or it would train from random weights


WRONG = """
shard = {}                                        ->unknown key shard (did you mean shards?)
slurm.train.node = 3                              ->unknown key slurm.train.node (did you mean nodes?)
slurm.tokenize.spare = 2                          ->unknown key slurm.tokenize.spare (known: links, nodes, time)
slurm.mix.links = 0                               ->slurm.mix.links: 0: it should be greater than or equal to 1
vocab.sise = 1                                    ->unknown key vocab.sise (did you mean size?)
sources.it = {inputs = ["a"], feild = "x"}        ->unknown key sources.it.feild (did you mean field?)
sources = {}                                      ->sources: it is empty; give at least one
sources."i/t".inputs = ["a"]                      ->source name 'i/t': use only letters, digits, - and _
sources.annotations.inputs = ["a"]                ->source name 'annotations' is reserved
sources.it = {inputs = ["a"], keep = ["hash=n"]}  ->sources.it.keep: the ledger itself has a column 'hash';
sources.it.inputs = "d.jsonl"                     ->sources.it.inputs: 'd.jsonl' is no list; write ['d.jsonl']
sources.it = "d.jsonl"                            ->sources.it: 'd.jsonl' is no table; write its keys below a line
sources.it = {}                                   ->sources.it.inputs: it is missing
sources.it.inputs = []                            ->sources.it.inputs: it is empty; give at least one
sources.it = {inputs = ["a"], date = "x"}         ->sources.it.date needs messages
sources.it = {inputs = ["a"], learn = ["user"]}   ->sources.it.learn needs messages or template
sources.it = {inputs = ["a"], messages = "m", learn = ["x"]}       ->sources.it.learn: 'x' is none of
sources.it = {inputs = ["a"], messages = "m", field = "f"}         ->sources.it.messages and field exclude each other
sources.it = {inputs = ["a"], messages = "m", format = "text"}     ->sources.it.format: plain text has no fields
sources.it = {inputs = ["a"], messages = "m", date = "1 May"}      ->sources.it.date: '1 May' is no date
sources.it = {inputs = ["a"], template = "{a}", learn = ["b"]}     ->sources.it.learn: 'b' is no field of template
shards.val_fraction = "1.5"                       ->shards.val_fraction: 1.5: it should be less than 1
shards.size = "12 apples"                         ->shards.size: '12 apples' is not a count such as
shards.size = -1                                  ->shards.size: -1: it should be greater than or equal to 0
shards.reject_contaminated = 0.5                  ->shards.reject_contaminated needs against
normalize.unicode = "nfkc"                        ->normalize.unicode: 'nfkc': it should be 'none' or 'nfc'
normalize.crlf = "maybe"                          ->normalize.crlf: 'maybe': it should be a valid boolean
vocab.size = 100                                  ->vocab.size: 100: it should be greater than or equal to 257
vocab.seed = 1.5                                  ->vocab.seed: 1.5: it should be a valid integer, got a number
vocab.weights = {it = 0.5}                        ->vocab.weights: the weights it=0.5 add up to 0.5, not to 1
vocab.weights = {en = 1}                          ->vocab.weights names en, but the sources are it
vocab.bos = "<x>"                                 ->vocab.bos is '<x>', which is none of special_tokens
vocab = {extend = "v", size = 500}                ->vocab.size and extend exclude each other; give one of them
mix.weights = {it = 0.5, en = 0.5}                ->mix.weights names en, but the sources are it
mix.weights = "it=1"                              ->mix.weights: 'it=1' is no table; write {it = 0.9, en = 0.1}
mix.weights = {it = "x"}                          ->mix.weights: it: 'x' is not a share
mix.tokens = "lots"                               ->64MiB; or write 'all'
mix.tokens = 0                                    ->mix.tokens: 0 is no budget
mix.tokens = 4095                                 ->mix: a budget of 4095 tokens holds no sequence of 4096 tokens
mix.stages = [{weights = {en = 1}}]               ->mix.weights names en, but the sources are it
mix = {tokens = 9000, stages = [{tokens = 9000}]} ->mix.stages and tokens exclude each other; give one of them
mix = {repeat = {it = 2}, weights = {it = 1}}     ->mix.repeat and weights exclude each other; give one of them
mix.repeat = {it = 5}                             ->mix.repeat 5 is more than max_epochs, 4: raise it
out = "$NOWHERE_AT_ALL/a"                         ->out: $NOWHERE_AT_ALL/a: the environment has no variable
vocab.path = "a$"                                 ->vocab.path: a$: a $ begins the name of a variable; write $$
sources.it.inputs = ["~nobody-of-this-name/a"]    ->~nobody-of-this-name/a: nobody's home folder
"""


@pytest.mark.parametrize("case", WRONG.strip().splitlines())
def test_what_is_wrong_is_named(case):
    change, message = case.split("->")
    with pytest.raises(UsageError) as caught:
        make_recipe({**MINIMAL, **tomllib.loads(change)}, "r.toml")
    assert message in str(caught.value)
    assert re.match(r"r\.toml: \w", str(caught.value))


def test_weights_of_the_vocabulary_name_every_source():
    sources = {name: {"inputs": ["a"]} for name in ("it", "en")}
    with pytest.raises(UsageError, match=r"vocab\.weights leaves out en; give each"):
        make_recipe({"out": "w", "sources": sources, "vocab": {"weights": {"it": 1}}}, "r.toml")


@pytest.mark.parametrize(
    ("dotted", "value", "message"),
    [
        ("vocab.size", "100", r"^--option: 100: it should be greater than or equal to 257"),
        ("vocab.weights", {"en": 1}, r"^--option names en"),
        ("vocab.eod", "x", r"^--option needs path or extend$"),
        ("sources.keep", ["file=path"], r"^--option: the ledger itself has a column 'file'.*my_file=path$"),
    ],
)
def test_what_an_option_gave_is_called_by_the_option(dotted, value, message):
    with pytest.raises(UsageError, match=message):
        make_recipe(with_settings(MINIMAL, {dotted: value}), "", options={dotted: "--option"})


def test_the_page_of_all_keys_is_that_of_the_settings():
    """Made by: python -c "from pretok.commands.reference import page as p; print(p(), end='')" > docs/recipe.md"""
    assert (RECIPES.parent / "docs" / "recipe.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("heading", TABLES)
def test_every_key_shows_a_value_that_is_taken(heading):
    table = TABLES[heading]
    keys = {key.name: key for key in keys_of(table)}
    if table is TrainConfig:
        names = {item.name for item in fields(table)} - {"phases"}
    else:  # tables within it have a heading of their own
        inner = {"sources", "normalize", "vocab", "shards", "mix", "train", "slurm", "tokenize", "append"}
        names = table.model_fields.keys() - inner
    assert keys.keys() == names
    for key in keys.values():
        given = tomllib.loads(f"{key.name} = {key.shown}")
        if needs := re.search(r"Needs `(\w+)`", key.text):
            given[needs[1]] = "x"
        given |= {"path": "x"} if key.name == "bos" else {}
        if table is TrainConfig:
            check_table(given)
        for name in reversed(heading.strip("[]").replace("STAGE", "mix").split(".") if heading else ()):
            given = {name: [given] if heading.startswith("[[") and name in ("append", "stages") else given}
        for name, source in given.get("sources", {}).items():
            given["sources"] = {name: {"inputs": ["a"], **source}}
        sources = {name: {"inputs": ["a"]} for name in ("it", "en")}
        assert make_recipe({"out": "w", **given, "sources": sources | given.get("sources", {})}, key.name)


def test_init_prints_a_recipe_that_is_the_defaults(capsys):
    plain = make_recipe({"out": "work", "sources": parse_inputs(["it=a/*.jsonl", "en=b"])}, "x")
    printed = {}
    for options in ((), ("--all",)):
        assert run_command(["init", "it=a/*.jsonl", "en=b", "--out", "work", *options]) == 0
        printed[options] = capsys.readouterr().out
        assert make_recipe(tomllib.loads(printed[options]), "x") == plain
    assert len([line for line in printed[()].splitlines() if line]) <= 30
    asks = (  # what is an example, or asks for something else
        "eod|bos|path|extend|add|reject_contaminated|against|removed|special_tokens|messages|template|learn|"
        "chat_template|template_kwargs|tools|date|separator|keep|weights|sizes|classes|repeat"
    )
    uncommented = rf"^# (\[(?:mix|train|slurm.*)\]|(?!(?:{asks}) )[a-z_0-9]+ =)"
    everything = make_recipe(tomllib.loads(re.sub(uncommented, r"\1", printed[("--all",)], flags=re.M)), "x")
    assert everything.mix is not None
    assert everything.model_copy(update={"mix": None, "train": {}, "slurm": Slurm()}) == plain
    assert everything.train.keys() == {item.name for item in fields(TrainConfig)} - {"phases"}
    assert everything.slurm.model_fields_set == Slurm.model_fields.keys()
    assert run_command(["init", "a.jsonl"]) == 2


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_wrong_in_a_file_has_its_line(tmp_path):
    path = written(
        tmp_path / "r.toml",
        'out = "w"\n\n[sources.it]\ninputs = ["a"]\n[vocab]\nsise = 3\n[mix]\nweights = {it = 0.5}\n'
        "[slurm.train]\nnodes = 0\n",
    )
    with pytest.raises(UsageError) as caught:
        load_recipe(path)
    for message in (
        "line 6: unknown key vocab.sise (did you mean size?)",
        "line 8: mix.weights: the weights it=0.5 add up to 0.5",
        "line 10: slurm.train.nodes: 0: it should be greater than or equal to 1",
    ):
        assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: line 6")
    with pytest.raises(UsageError, match="not valid TOML"):
        load_recipe(written(tmp_path / "bad.toml", "out = "))


def test_inputs_on_the_command_line():
    sources = parse_inputs(["it=a/*.zst", "en=b.parquet", "it=c.jsonl"])
    assert sources == {"it": {"inputs": ["a/*.zst", "c.jsonl"]}, "en": {"inputs": ["b.parquet"]}}
    for wrong in ("a.jsonl", "=a", "it="):
        with pytest.raises(UsageError):
            parse_inputs([wrong])


def test_defaults_are_those_of_reading():
    recipe = make_recipe(MINIMAL, "test")
    assert (recipe.sources["it"].record, recipe.normalize.function) == (RecordFormat(), Normalization())
    assert DEFAULT_SPECIAL_TOKENS[:2] == ("<|endoftext|>", "<|pad|>")
    assert len(set(DEFAULT_SPECIAL_TOKENS)) == 64


def test_counts():
    counts = {"1.2T": 12 * 10**11, "300B": 3 * 10**11, "64MiB": 64 << 20, "1_000": 1000, 7: 7, "2k": 2000}
    assert {text: parse_count(text) for text in counts} == counts
    assert [human(n) for n in (0, 999, 1234, 5.6e12)] == ["0", "999", "1.23 k", "5.6 T"]
    for text in ("", "1.5", "x", "1.23456K", "-1", "1 Z"):
        with pytest.raises(ValueError):  # noqa: PT011 - the message is tested above
            parse_count(text)


def test_relative_paths_of_a_recipe_start_at_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(
        Path("recipes [1]/r.toml"),
        'out = "../work"\n[vocab]\npath = "vocab"\n[shards]\nagainst = "b"\nremoved = "r"\n[train]\nout = "run"\n'
        '[sources.append]\nmessages = "m"\nchat_template = "c"\ntools = "t"\n'  # a source may have the name of a key
        'inputs = ["../data/*.jsonl", "a/**/b.jsonl", "/x/y", "sample:it", "s3://b/c"]\n'
        '[[sources.append.append]]\ninputs = ["more"]\n',
    )
    recipe = load_recipe(path)
    source, folder = recipe.sources["append"], Path("recipes [1]")
    found = (recipe.out, recipe.vocab.path, recipe.shards.against, recipe.shards.removed, source.tools)
    assert found == (Path("work"), *(folder / name for name in ["vocab", "b", "r", "t"]))
    assert (source.chat_template, recipe.train) == ("recipes [1]/c", {"out": "run"})
    assert source.inputs_by_append == (
        ("data/*.jsonl", "recipes [[]1]/a/**/b.jsonl", "/x/y", "sample:it", "s3://b/c"), ("recipes [[]1]/more",)
    )  # fmt: skip
    beside = written(Path("r.toml"), 'out = "work"\n[sources.it]\ninputs = ["data/*.jsonl"]\n')
    assert load_recipe(beside).sources["it"].inputs == ("data/*.jsonl",)  # as the command line names it


def test_home_and_variables_are_expanded_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/anna")
    monkeypatch.setenv("SCRATCH", "/scratch/$USER")  # what a variable holds is not expanded again
    inputs = 'out = "~/w$$1"\n[sources.it]\ninputs = ["$SCRATCH/*.jsonl", "${SCRATCH}2/a"]\n'
    recipe = load_recipe(written(tmp_path / "r.toml", inputs))
    assert recipe.out == Path("/home/anna/w$1")
    assert recipe.sources["it"].inputs == ("/scratch/$USER/*.jsonl", "/scratch/$USER2/a")
    given = make_recipe({"out": Path("~/$w"), "sources": parse_inputs(["it=$SCRATCH/a"])}, "")
    assert (given.out, given.sources["it"].inputs) == (Path("~/$w"), ("/scratch/$USER/a",))


@pytest.mark.parametrize(("name", "length"), [("x" * 250, 250), ("è" * 60, 120)])
def test_a_name_too_long_for_a_file_is_refused(name, length):
    with pytest.raises(UsageError, match=f"{length} bytes, 100 at most"):
        make_recipe({"out": "w", "sources": {name: {"inputs": ["a"]}}}, "r.toml")


def test_a_field_given_once_is_that_of_every_source():
    sources = {"it": {"inputs": ["a"], "field": "x"}, "en": {"inputs": ["b"], "max_document": "1MiB"}}
    data = with_settings({"out": "w", "sources": sources}, {"sources.field": "content"})
    recipe = make_recipe(data, "command line")
    assert [source.field for source in recipe.sources.values()] == ["content", "content"]
    assert [source.record.max_document for source in recipe.sources.values()] == [256 << 20, 1 << 20]
