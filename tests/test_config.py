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
from pretok.read.normalize import Normalization
from pretok.read.readers import RecordFormat
from train.config import TrainConfig, check_table

RECIPES = Path(__file__).parent.parent / "pipelines"
MINIMAL = {"out": "work", "sources": {"it": {"inputs": ["a.jsonl"]}}}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda p: p.stem)
def test_shipped_recipes_are_valid(path):
    recipe = load_recipe(path)
    assert set(recipe.sources) == {"it", "en"}
    assert recipe.mix is not None


def test_the_two_models_ask_for_what_they_promise():
    first, second = (load_recipe(RECIPES / f"italia-{name}.toml") for name in ("v01", "cpt"))
    assert first.mix.tokens == 1_200_000_000_000
    assert first.mix.weights == {"it": Fraction(9, 10), "en": Fraction(1, 10)}
    assert (first.vocab.size, first.mix.seq_len) == (50_000, 4096)
    assert second.mix.tokens == 3_000_000_000_000
    assert second.mix.weights == {"it": Fraction(1, 2), "en": Fraction(1, 2)}
    assert second.normalize == first.normalize


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shard": {}}, "unknown key shard (did you mean shards?)"),
        ({"slurm": {"train": {"node": 3}}}, "unknown key slurm.train.node (did you mean nodes?)"),
        ({"slurm": {"tokenize": {"spare": 2}}}, "unknown key slurm.tokenize.spare (known: "),
        ({"slurm": {"mix": {"links": 0}}}, "slurm.mix.links: 0: it should be greater than or equal to 1"),
        ({"vocab": {"sise": 1}}, "unknown key vocab.sise (did you mean size?)"),
        ({"sources": {"it": {"inputs": ["a"], "feild": "x"}}}, "sources.it.feild (did you mean field?)"),
        ({"sources": {}}, "sources"),
        (
            {"sources": {"i/t": {"inputs": ["a"]}}},
            "r.toml: source name 'i/t': use only letters, digits, - and _",
        ),
        ({"sources": {"annotations": {"inputs": ["a"]}}}, "source name 'annotations' is reserved"),
        (
            {"sources": {"it": {"inputs": ["a"], "keep": ["file_row_number=n"]}}},
            "has a column 'file_row_number'",
        ),
        ({"shards": {"val_fraction": "1.5"}}, "shards.val_fraction"),
        ({"shards": {"size": "12 apples"}}, "not a count such as"),
        ({"normalize": {"unicode": "nfkc"}}, "normalize.unicode: 'nfkc': it should be 'none' or 'nfc'"),
        (
            {"sources": {"it": {"inputs": "d.jsonl"}}},
            "sources.it.inputs: 'd.jsonl' is no list; write ['d.jsonl']",
        ),
        ({"sources": {"it": "d.jsonl"}}, "write its keys below a line [sources.it]"),
        ({"sources": {"it": {}}}, "sources.it.inputs: it is missing"),
        ({"sources": {"it": {"inputs": []}}}, "sources.it.inputs: it is empty; give at least one"),
        ({"vocab": {"size": "big"}}, "vocab.size: 'big' is not a count such as"),
        ({"vocab": {"size": 100}}, "vocab.size: 100: it should be greater than or equal to 257"),
        (
            {"vocab": {"seed": 1.5}},
            "vocab.seed: 1.5: it should be a valid integer, got a number with a fractional part",
        ),
        ({"vocab": {"weights": {"it": 0.5}}}, "vocab.weights: the weights it=0.5 add up to 0.5, not to 1"),
        ({"vocab": {"weights": {"en": 1}}}, "vocab.weights names en, but the sources are it"),
        ({"shards": {"size": -1}}, "shards.size: -1: it should be greater than or equal to 0"),
        ({"mix": {"weights": {"it": 0.5}}}, "mix.weights: the weights it=0.5 add up to 0.5, not to 1"),
        ({"mix": {"weights": {"it": 0.5, "en": 0.5}}}, "mix.weights names en, but the sources are it"),
        (
            {"mix": {"weights": "it=1"}},
            "mix.weights: 'it=1' is no table; write {it = 0.9, en = 0.1} or 'natural'",
        ),
        ({"mix": {"weights": {"it": "x"}}}, "mix.weights: it: 'x' is not a share"),
        ({"mix": {"tokens": "lots"}}, "64MiB; or write 'all'"),
        ({"mix": {"tokens": 0}}, "mix.tokens: 0 is no budget"),
        ({"mix": {"tokens": 4095}}, "a budget of 4095 tokens holds no sequence of 4096 tokens"),
        ({"mix": {"seq_len": 0}}, "mix.seq_len: 0: it should be greater than or equal to 1"),
        ({"normalize": {"crlf": "maybe"}}, "normalize.crlf: 'maybe': it should be a valid boolean"),
        ({"mix": {"stages": [{"weights": {"en": 1}}]}}, "mix.weights names en, but the sources are it"),
        ({"mix": {"tokens": 9000, "stages": [{"tokens": 9000}]}}, "tokens stand in each of its stages"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(UsageError) as caught:
        make_recipe({**MINIMAL, **change}, "r.toml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("r.toml: ")
    assert "r.toml: :" not in str(caught.value)


def test_weights_of_the_vocabulary_name_every_source():
    sources = {name: {"inputs": ["a"]} for name in ("it", "en")}
    with pytest.raises(UsageError, match=r"vocab\.weights leaves out en; give each"):
        make_recipe({"out": "w", "sources": sources, "vocab": {"weights": {"it": 1}}}, "r.toml")


def test_what_an_option_gave_is_called_by_the_option():
    data = {**MINIMAL, "vocab": {"size": "100", "weights": {"en": 1}}}
    with pytest.raises(UsageError, match=r"^--vocab-size: 100: it should be greater than or equal to 257"):
        make_recipe(data, "", options={"vocab.size": "--vocab-size"})
    del data["vocab"]["size"]
    with pytest.raises(UsageError, match=r"^--weights names en"):
        make_recipe(data, "", options={"vocab.weights": "--weights"})
    data = with_settings(MINIMAL, {"sources.keep": ["file=path"]})
    with pytest.raises(UsageError, match=r"^--keep: the ledger itself has a column 'file'.*my_file=path$"):
        make_recipe(data, "", options={"sources.keep": "--keep"})


def test_the_page_of_all_keys_is_that_of_the_settings():
    """Made by: python -c "from pretok.commands.reference import page as p; print(p(), end='')" > docs/recipe.md"""
    assert (RECIPES.parent / "docs" / "recipe.md").read_text(encoding="utf-8") == page()


NEEDS = {
    **{name: {"path": "x"} for name in ("eod", "bos")},
    "reject_contaminated": {"against": "x"},
    **{name: {"messages": "x"} for name in ("learn", "chat_template", "template_kwargs", "tools", "date")},
    **{name: {"extend": "x"} for name in ("add", "replace")},
}


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
        recipe = {"out": "w", "sources": {name: {"inputs": ["a"]} for name in ("it", "en")}}
        if heading == "[sources.NAME]":
            recipe["sources"]["it"] |= given | NEEDS.get(key.name, {})
        elif heading == "[[sources.NAME.append]]":
            recipe["sources"]["it"]["append"] = [given]
        elif heading == "[[mix.stages]]":
            recipe["mix"] = {"stages": [given]}
        elif heading == "[train]":
            check_table(given)
        elif heading.startswith("[slurm"):
            table = heading.strip("[]").replace("STAGE", "mix")
            recipe = with_settings(recipe, {f"{table}.{name}": value for name, value in given.items()})
        elif heading:
            recipe[heading.strip("[]")] = given | NEEDS.get(key.name, {})
        else:
            recipe |= given
        assert make_recipe(recipe, key.name)


def test_init_prints_a_recipe_that_is_the_defaults(capsys):
    plain = make_recipe({"out": "work", "sources": parse_inputs(["it=a/*.jsonl", "en=b"])}, "x")
    assert run_command(["init", "it=a/*.jsonl", "en=b", "--out", "work"]) == 0
    short = capsys.readouterr().out
    assert make_recipe(tomllib.loads(short), "x") == plain
    assert len([line for line in short.splitlines() if line]) <= 30
    assert run_command(["init", "it=a/*.jsonl", "en=b", "--out", "work", "--all"]) == 0
    printed = capsys.readouterr().out
    assert make_recipe(tomllib.loads(printed), "x") == plain
    asks = (  # what is an example, or asks for something else
        "eod|bos|path|extend|add|reject_contaminated|against|removed|special_tokens|messages|template|learn|"
        "chat_template|template_kwargs|tools|date|separator|keep|weights|sizes|classes|repeat"
    )
    on = re.sub(rf"^# (\[(?:mix|train|slurm.*)\]|(?!(?:{asks}) )[a-z_0-9]+ =)", r"\1", printed, flags=re.M)
    everything = make_recipe(tomllib.loads(on), "x")
    assert everything.mix is not None
    assert everything.model_copy(update={"mix": None, "train": {}, "slurm": Slurm()}) == plain
    assert everything.train.keys() == {item.name for item in fields(TrainConfig)} - {"phases"}
    assert everything.slurm.model_fields_set == Slurm.model_fields.keys()
    assert run_command(["init", "a.jsonl"]) == 2


def test_what_is_wrong_in_a_file_has_its_line(tmp_path):
    path = written(
        tmp_path / "r.toml",
        'out = "w"\n\n[sources.it]\ninputs = ["a"]\n[vocab]\nsise = 3\n[mix]\nweights = {it = 0.5}\n'
        "[slurm.train]\nnodes = 0\n",
    )
    with pytest.raises(UsageError) as caught:
        load_recipe(path)
    for said in (
        "line 6: unknown key vocab.sise (did you mean size?)",
        "line 8: mix.weights: the weights it=0.5 add up to 0.5",
        "line 10: slurm.train.nodes: 0: it should be greater than or equal to 1",
    ):
        assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}: line 6")


def test_missing_and_broken_recipes(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("out = ")
    with pytest.raises(UsageError, match="not valid TOML"):
        load_recipe(tmp_path / "bad.toml")


def test_inputs_on_the_command_line():
    sources = parse_inputs(["it=a/*.zst", "en=b.parquet", "it=c.jsonl"])
    assert sources == {"it": {"inputs": ["a/*.zst", "c.jsonl"]}, "en": {"inputs": ["b.parquet"]}}
    for wrong in ("a.jsonl", "=a", "it="):
        with pytest.raises(UsageError):
            parse_inputs([wrong])


def test_defaults_of_a_source_are_those_of_reading():
    source = make_recipe(MINIMAL, "test").sources["it"]
    assert (source.record, make_recipe(MINIMAL, "test").normalize.function) == (
        RecordFormat(),
        Normalization(),
    )


def test_default_special_tokens():
    assert DEFAULT_SPECIAL_TOKENS[:2] == ("<|endoftext|>", "<|pad|>")
    assert len(set(DEFAULT_SPECIAL_TOKENS)) == 64


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.2T", 1_200_000_000_000),
        ("300B", 300 * 10**9),
        ("64MiB", 64 << 20),
        ("1_000", 1000),
        (7, 7),
        ("2k", 2000),
    ],
)
def test_counts(text, value):
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "1.5", "x", "1.23456K", "-1", "1 Z"])
def test_what_is_no_count(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the message is tested above
        parse_count(text)


def test_short():
    assert [human(n) for n in (0, 999, 1234, 5.6e12)] == ["0", "999", "1.23 k", "5.6 T"]


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_relative_paths_of_a_recipe_start_at_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(
        Path("recipes [1]/r.toml"),
        'out = "../work"\n[vocab]\npath = "vocab"\n[sources.it]\n'
        'inputs = ["../data/*.jsonl", "a/**/b.jsonl", "/x/y", "sample:it", "s3://b/c"]\n',
    )
    recipe = load_recipe(path)
    assert recipe.out == Path("work")
    assert recipe.vocab.path == Path("recipes [1]/vocab")
    assert recipe.sources["it"].inputs == (
        "data/*.jsonl", "recipes [[]1]/a/**/b.jsonl", "/x/y", "sample:it", "s3://b/c",
    )  # fmt: skip
    beside = written(Path("r.toml"), 'out = "work"\n[sources.it]\ninputs = ["data/*.jsonl"]\n')
    assert load_recipe(beside).sources["it"].inputs == ("data/*.jsonl",)  # as the command line names it


def test_the_demo_works_in_the_checkout(monkeypatch):
    monkeypatch.chdir(RECIPES.parent)
    assert load_recipe(Path("pipelines/demo.toml")).out == Path("work/demo")


def test_continual_pre_training_begins_from_a_model(monkeypatch):
    """The recipe would train from random weights, and after its first days one would wonder why."""
    monkeypatch.chdir(RECIPES.parent)
    assert load_recipe(Path("pipelines/italia-cpt.toml")).train["init_from"] == "PUT/THE/FIRST/MODEL/HERE"


def test_home_and_variables_are_expanded_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/anna")
    monkeypatch.setenv("SCRATCH", "/scratch/$USER")  # what a variable holds is not expanded again
    path = written(
        tmp_path / "r.toml", 'out = "~/w$$1"\n[sources.it]\ninputs = ["$SCRATCH/*.jsonl", "${SCRATCH}2/a"]\n'
    )
    recipe = load_recipe(path)
    assert recipe.out == Path("/home/anna/w$1")
    assert recipe.sources["it"].inputs == ("/scratch/$USER/*.jsonl", "/scratch/$USER2/a")
    given = make_recipe({"out": Path("~/$w"), "sources": parse_inputs(["it=$SCRATCH/a"])}, "")
    assert (given.out, given.sources["it"].inputs) == (Path("~/$w"), ("/scratch/$USER/a",))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("$NOWHERE_AT_ALL/a", "the environment has no variable NOWHERE_AT_ALL"),
        ("a$", "write $$ for a dollar sign"),
        ("~nobody-of-this-name/a", "nobody's home folder"),
    ],
)
def test_what_cannot_be_expanded_is_named(path, message):
    for change in ({"out": path}, {"sources": {"it": {"inputs": [path]}}}, {"vocab": {"path": path}}):
        with pytest.raises(UsageError) as caught:
            make_recipe({**MINIMAL, **change}, "r.toml")
        assert message in str(caught.value)
        assert path in str(caught.value)


def test_a_name_too_long_for_a_file_is_refused():
    name = "x" * 250
    with pytest.raises(UsageError, match="250 bytes, 100 at most"):
        make_recipe({"out": "w", "sources": {name: {"inputs": ["a"]}}}, "r.toml")
    with pytest.raises(UsageError, match="120 bytes"):
        make_recipe({"out": "w", "sources": {"è" * 60: {"inputs": ["a"]}}}, "r.toml")


def test_a_field_given_once_is_that_of_every_source():
    sources = {"it": {"inputs": ["a"], "field": "x"}, "en": {"inputs": ["b"], "max_document": "1MiB"}}
    data = with_settings({"out": "w", "sources": sources}, {"sources.field": "content"})
    recipe = make_recipe(data, "command line")
    assert [source.field for source in recipe.sources.values()] == ["content", "content"]
    assert [source.record.max_document for source in recipe.sources.values()] == [256 << 20, 1 << 20]
