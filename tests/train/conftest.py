"""What many tests of the trainer need: small folders of shards and a run, which none of them changes; quick runs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.train_support import random_shards  # imports torch, without which these tests are skipped

    return random_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="session")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.train_support import random_conversations

    return random_conversations(tmp_path_factory.mktemp("conversations"))


@pytest.fixture(scope="session")
def trained(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks, each of which wrote a file, with checkpoints at steps 2 and 4."""
    from tests.train_support import TWO_RANKS, run_jobs, tiny_flags

    folder = tmp_path_factory.mktemp("trained")
    run_jobs([(2, tiny_flags(shards, folder, **TWO_RANKS))], folder)
    return folder / "run"


@pytest.fixture
def trial(
    request: pytest.FixtureRequest,
    shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> object:
    """Runs in a folder of their own, with the settings DEFAULTS of the file."""
    from tests.train_support import Trial

    defaults = dict(getattr(request.module, "DEFAULTS", {}))
    return Trial(shards, tmp_path, monkeypatch, capsys, defaults)
