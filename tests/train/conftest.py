"""What many tests of the trainer need: one folder of small shards, which none of them changes, and quick runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.train_support import random_shards  # imports torch, without which these tests are skipped

    return random_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="session", autouse=True)
def quick_runs() -> Iterator[None]:
    """A tiny run in this process takes a fifth of the time with one thread, as ranks of their own have, and where the
    collections around it leave alone what torch brought along."""
    try:
        from tests.train_support import leave_torch_alone
    except ImportError:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        leave_torch_alone(patch.setattr)
        yield
