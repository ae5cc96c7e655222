"""The steps of a recipe, each with its progress: vocabulary -> tokens -> mix -> verification.

Input: a Recipe and an Engine. Output: OUT/vocab, OUT/shards, OUT/mix.json. A step whose result exists and is unchanged
is skipped, because each job finds its own finished work.
"""

from __future__ import annotations

import shlex
from contextlib import ExitStack

from pretok.base.console import Console
from pretok.base.errors import IntegrityError
from pretok.base.execute import Engine
from pretok.base.lock import hold
from pretok.cluster.chain import recipe_flags
from pretok.config import Recipe, located
from pretok.documents.audit import VERIFY_DOCUMENTS
from pretok.documents.audit.totals import show_stats
from pretok.documents.audit.verify_job import run_verify
from pretok.shards.contamination import contamination_table
from pretok.shards.manifest import has_manifest, load_manifest
from pretok.shards.tokenize_job import run_tokenize
from pretok.shards.unfinished import unfinished
from pretok.stream.mix_job import MixRequest, plan_mix, run_mix, show_mix
from pretok.stream.tapes import FOLDER
from pretok.tokenizer.vocabulary import load_vocab
from pretok.vocab.build_vocab_job import refuse_short, run_build_vocab


def tokenize_step(recipe: Recipe, engine: Engine, console: Console) -> None:
    """Tokenize all sources of the recipe."""
    run_tokenize(recipe, engine, console)
    manifest = load_manifest(recipe.shards_dir)
    if (contamination := contamination_table(manifest, recipe.sources)) is not None:
        console.show(contamination)


def verify_step(recipe: Recipe, engine: Engine, console: Console) -> None:
    """Check the shards and a sample of their documents."""
    _, problems = run_verify(recipe.shards_dir, VERIFY_DOCUMENTS, engine, console)
    if problems:
        raise IntegrityError("\n".join(problems))


def check_steps(recipe: Recipe) -> None:
    """Raise UsageError for problems of later steps that can be seen at the start.

    They may lie in the tokenizer and, if the shards are finished, in the mix.
    """
    if recipe.vocab.path is not None:
        with located(recipe, "vocab", "path"):
            load_vocab(recipe.vocab.path, recipe.vocab.eod, recipe.vocab.bos)
    if recipe.mix is not None and has_manifest(recipe.shards_dir) and not unfinished(recipe.shards_dir):
        manifest = load_manifest(recipe.shards_dir)
        if recipe.sources.keys() <= set(manifest.sources):
            plan_mix(manifest, MixRequest(recipe.mix, learn=recipe.learned), recipe.mix_path.parent / FOLDER)


def run_steps(recipe: Recipe, engine: Engine, console: Console) -> None:
    """Run every step in order, and print the next command. The outputs of later steps are locked from the start."""
    check_steps(recipe)
    request = MixRequest(recipe.mix, learn=recipe.learned) if recipe.mix is not None else None
    with ExitStack() as locks:
        # From the start: another job must not take the folder while the vocabulary is being built.
        locks.enter_context(hold(recipe.shards_dir, "run"))
        if request is not None:
            locks.enter_context(hold(recipe.mix_path, "run", beside=True))
        if recipe.vocab.path is None:
            refuse_short(run_build_vocab(recipe, engine, console), recipe.vocab)
        tokenize_step(recipe, engine, console)
        if request is not None:  # before the hours of verification, in case the budget does not fit
            report = run_mix(recipe.shards_dir, recipe.mix_path, request)
        verify_step(recipe, engine, console)
        show_stats(recipe.shards_dir, console, result=True)
        if request is None:
            console.notice(f"next: pretok mix {recipe.shards_dir} --out {recipe.mix_path}")
            return
        show_mix(load_manifest(recipe.shards_dir), report, console, sources=False)
    command = ["train", *recipe_flags(recipe), "--out", str(recipe.out / "run")]
    console.notice(f"next: {shlex.join(command)}")
