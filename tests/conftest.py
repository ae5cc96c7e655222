"""What many tests need: a small vocabulary trained by the reference, real text where it is at hand, one Ray."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

gc.disable()  # until all tests are collected
os.environ["OMP_NUM_THREADS"] = "1"  # two threads share their work worse than two test processes
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# No test cuts the power, so nothing here waits for the disk; what is closed is still refused. Commands that tests start
# anew, such as those under strace, do wait.
os.fsync = os.fstat
# As on a shared machine. Here, because Ray reads both once, when a process first imports it.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)

from counting import write_lines
from support import ROOT, SPECIAL, TASK_PATH, freeze
from texts import HARD

from pretok.base.execute import Engine
from pretok.base.stop import StopFlag
from pretok.kernels.pretokenize import PATTERNS
from pretok.read.sample import sample_path

# Examples are judged by their results: how long one takes says more about the machine than about the code.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", unhurried, max_examples=50)
settings.register_profile("many", unhurried, max_examples=250)


LONGEST = (
    *("test_execute", "test_faults", "test_extend_corpus", "test_corpus", "test_killed", "test_object_store"),
    *("test_benchmarks", "test_train_meshes", "test_train_records", "test_annotate", "test_extend"),
    *("test_tokenize", "test_chat_ids", "test_cli", "test_train_resume", "test_count", "test_train_step"),
)
"""Files whose tests take longest."""


def pytest_configure(config: pytest.Config) -> None:
    """Properties are tried with few examples, and with many where slow tests are asked for."""
    settings.load_profile("few" if "not slow" in config.option.markexpr else "many")
    config.option.loadscopereorder = False  # pytest-xdist would begin with the files of most tests


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on real text are slow ones, and `-m slow` takes the properties too. The longest files come first, so that
    no worker is left alone with one at the end."""
    many = settings.get_current_profile_name() == "many"
    for item in items:
        is_property = hasattr(getattr(item, "function", None), "hypothesis")
        if (is_property and many) or item.get_closest_marker("corpus"):
            item.add_marker("slow")
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def pytest_collection_finish() -> None:
    """Searches for garbage, which find none in libraries and tests, begin with the first test."""
    freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def quick_searches() -> None:
    """What earlier files imported and keep is no longer searched for garbage: that takes half a second each time."""
    gc.collect()
    freeze()


@pytest.fixture(scope="session")
def sample_texts() -> dict[str, list[str]]:
    """The texts of the embedded sample by language."""
    return {
        language: [
            json.loads(line)["text"]
            for line in Path(sample_path(language)).read_text(encoding="utf-8").splitlines()
        ]
        for language in ("it", "en")
    }


@pytest.fixture(scope="session")
def texts(sample_texts: dict[str, list[str]]) -> list[str]:
    """Beginnings of the sample's texts, all different."""
    found = sample_texts["it"] + sample_texts["en"]
    return list(dict.fromkeys(text[:400] for text in found if len(text) > 60))


@pytest.fixture(scope="session")
def vocab_dir(tmp_path_factory: pytest.TempPathFactory, sample_texts: dict[str, list[str]]) -> Path:
    """A folder with a tokenizer.json of 1,500 entries, trained by `tokenizers` itself."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERNS["cl100k"]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample_texts["it"] + sample_texts["en"], trainer)
    folder = tmp_path_factory.mktemp("vocab")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may pass is tried again at once."""
    monkeypatch.setattr("pretok.base.storage.WAITS", (0.0, 0.0, 0.0))


@pytest.fixture
def few_buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are counted in 4 buckets in the place of 64, whose files cost more than small texts do. Not on Ray, whose
    workers read the constant for themselves."""
    if "ray_address" not in request.fixturenames:
        # All are there before one of them changes: what is imported behind it keeps what it finds.
        modules = [import_module(f"pretok.vocab.counts.{name}") for name in ("buckets", "count_job")]
        monkeypatch.setattr(modules[0], "BUCKET_BITS", 2)
        for module in modules:
            monkeypatch.setattr(module, "BUCKETS", 4)


@pytest.fixture
def here() -> Iterator[Engine]:
    """An engine that works in this process."""
    with StopFlag() as stop, Engine(0, None, stop) as engine:
        yield engine


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """Address of one Ray head with two CPUs for the whole session: starting one costs 5 to 14 s."""
    port = free_port()
    os.environ["PYTHONPATH"] = TASK_PATH  # workers import the tests' tasks
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    limits = ["--num-cpus=2", "--include-dashboard=false", f"--object-store-memory={100 << 20}"]
    head = subprocess.Popen(
        [*command, "--node-ip-address=127.0.0.1", *limits],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"127.0.0.1:{port}"
    try:
        with one_connection():
            yield address
    finally:
        head.terminate()
        head.wait(30)


@contextlib.contextmanager
def one_connection() -> Iterator[None]:
    """Engines that follow each other in this process take one connection, whose workers have imported what they need:
    with one each, most of the time of a test is that of processes that start."""
    import ray

    connect, connected, open_now = ray.init, ray.is_initialized, False

    def init(**options: object) -> None:
        nonlocal open_now
        if not connected():
            connect(**options)
        open_now = True

    def shutdown() -> None:
        nonlocal open_now
        open_now = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "init", init)
        patch.setattr(ray, "is_initialized", lambda: open_now)
        patch.setattr(ray, "shutdown", shutdown)
        yield
    ray.shutdown()


def free_port() -> int:
    """A free TCP port of the loopback interface, below the range from which systems give ports by themselves."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


@pytest.fixture(scope="session")
def corpus() -> Path:
    """A folder of real text: PRETOK_CORPUS, or `shared/corpus` beside the checkout."""
    folder = Path(os.environ.get("PRETOK_CORPUS") or ROOT.parent / "shared" / "corpus")
    if not (folder / "it").is_dir():
        pytest.skip("no corpus: set PRETOK_CORPUS to a folder with it/ and en/")
    return folder


@pytest.fixture
def folder(tmp_path: Path, sample_texts: dict[str, list[str]]) -> Path:
    """Two Italian files and an English one, with hard texts, an empty document and a broken line."""
    write_lines(tmp_path / "in" / "it-0.jsonl", sample_texts["it"][:60])
    write_lines(tmp_path / "in" / "it-1.jsonl", sample_texts["it"][60:120] + HARD)
    write_lines(tmp_path / "in" / "en.jsonl", sample_texts["en"][:60])
    with (tmp_path / "in" / "en.jsonl").open("a") as file:
        file.write('{"text": 3}\n')
    return tmp_path
