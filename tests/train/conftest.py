"""What many tests of the trainer read: one folder of small shards, which none of them changes."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.train_support import random_shards  # imports torch, without which these tests are skipped

    return random_shards(tmp_path_factory.mktemp("shards"))
