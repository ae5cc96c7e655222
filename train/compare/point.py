"""One run of a comparison, in a process of its own: a file of token ids -> bits per byte of each source.

    python -m train.compare.point JOB.json

Input: a PointJob with its files. Output: the Point as JSON at the job's `out`. The model, the optimizer, the step and
the loss are the trainer's own, on one device; nothing is saved on the way, as such a run takes minutes.

Bits per byte are exact: every token of the validation documents is scored once, the end-of-document tokens too, and
the sum is divided by the bytes of text of these documents.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pretok.base.errors import PretokError
from pretok.base.records import Count, Record, read_record, replace, to_json
from pretok.base.storage import read_json, write_json
from pretok.base.vocab_map import read_map
from train.checkpoint.export import exported_tensors
from train.config import TrainConfig
from train.model.loss import IGNORE
from train.model.sizes import ModelConfig
from train.model.transformer import Decoder, initial_tensor
from train.parallel.context import Context
from train.parallel.devices import Device, deterministic, find_device
from train.parallel.group import process_group
from train.parallel.layout import Batch, Layout, solve_batch
from train.parallel.mesh import build_mesh, materialize, parallelize, reshard
from train.run.failures import explain
from train.steps.data import MicroBatch, documents_of
from train.steps.evaluate import bits_per_byte
from train.steps.optim import learning_rate
from train.steps.step import Trainee, train_step

TIMEOUT = 900
LAST = 20
"""Steps whose mean loss is reported as the loss of training."""


class PointSpec(Record, frozen=True, omit_defaults=True):
    """What a run is, apart from where its files lie.

    compute: FLOPs asked for; steps: the whole steps these pay for; shards: fingerprint of the arm's; text_bytes: of
    text that these steps read; weights: of the sources in it; settings: of TrainConfig that are not the defaults;
    beginning: fingerprint of the model and the map that the weights come from, None for random ones.
    """

    arm: str
    compute: float
    seed: Count
    model: str
    sizes: ModelConfig
    settings: dict[str, object]
    steps: Count
    shards: str
    eod_id: Count
    dtype: str
    text_bytes: float
    weights: dict[str, float]
    val_bytes: dict[str, Count]
    val_documents: dict[str, Count]
    beginning: str | None = None

    @property
    def batch(self) -> Batch:
        """Of one step on the one device."""
        config = self.config
        return solve_batch(1, config.global_batch, config.micro_batch, config.accumulation)

    @property
    def config(self) -> TrainConfig:
        """The trainer's settings."""
        settings: dict[str, Any] = self.settings
        return replace(TrainConfig(**settings), seed=self.seed, steps=self.steps or None)

    @property
    def tokens(self) -> int:
        """Tokens that are learned from."""
        return self.steps * self.batch.global_batch * self.sizes.seq_len

    @property
    def flops(self) -> float:
        """What the steps cost, by the formula of `train plan`."""
        return self.tokens * self.sizes.flops_per_token(self.sizes.seq_len)


class PointJob(Record, frozen=True):
    """A run to be done: text and validation (by source) are files of token ids, out is where the Point goes, init_from
    a folder of transformers and vocab_map the way from its vocabulary to that of the text."""

    spec: PointSpec
    text: str
    validation: dict[str, str]
    out: str
    threads: Count
    init_from: str | None = None
    vocab_map: str | None = None


class Point(Record, frozen=True):
    """A run that was done. bits: per byte, by source; frequency_bits: the same for a model that knows of the text read
    how often each token occurs, and no more; loss: nats per token in training, mean of the last steps, None without
    any."""

    spec: PointSpec
    bits: dict[str, float]
    frequency_bits: dict[str, float]
    val_tokens: dict[str, Count]
    loss: float | None
    skipped: Count
    seconds: float
    device: str
    torch: str

    @property
    def mixed(self) -> float:
        """Bits per byte over all sources, each by its weight in the text."""
        return sum(weight * self.bits[source] for source, weight in self.spec.weights.items())

    @property
    def gain(self) -> float:
        """How far `mixed` lies below what frequencies alone give, as a part of that."""
        known = sum(weight * self.frequency_bits[source] for source, weight in self.spec.weights.items())
        return 1 - self.mixed / known


def run_point(job: PointJob) -> Point:
    """Train and score."""
    spec, config = job.spec, job.spec.config
    if job.threads:
        torch.set_num_threads(job.threads)
    device, started = find_device(), time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as scratch,
        deterministic(config.deterministic),
        process_group(device, TIMEOUT, Path(scratch), explain),
    ):
        trainee = _build(job, device)
        text = np.memmap(job.text, spec.dtype, "r")
        loss, skipped = _learn(trainee, spec, text)
        frequencies = np.bincount(text[1 : spec.tokens + 1], minlength=spec.sizes.vocab_size)
        bits, frequency_bits, val_tokens = {}, {}, {}
        for source, path in job.validation.items():
            tokens, size = np.fromfile(path, spec.dtype), spec.val_bytes[source]
            bits[source] = bits_per_byte(score_stream(trainee, tokens), size)
            frequency_bits[source] = bits_per_byte(frequency_nats(frequencies, tokens[1:]), size)
            val_tokens[source] = len(tokens) - 1
    seconds = time.perf_counter() - started
    return Point(
        spec, bits, frequency_bits, val_tokens, loss, skipped, seconds, device.name, torch.__version__
    )


def frequency_nats(frequencies: npt.NDArray[np.integer[Any]], tokens: npt.NDArray[Any]) -> float:
    """Nats of `tokens` by their shares in what was counted, one added to each count (Laplace): (v,) and (n,)."""
    counts = frequencies + 1.0
    return float(-np.log(counts / counts.sum())[tokens].sum())


def _build(job: PointJob, device: Device) -> Trainee:
    """The model with weights that depend on the seed alone, or those of a folder, and its optimizer, on one device."""
    spec, config = job.spec, job.spec.config
    mesh = build_mesh(device, Layout(1, 1, 1), TIMEOUT)
    with torch.device("meta"):
        model = Decoder(spec.sizes, loss_chunk=config.loss_chunk, z_loss=config.z_loss)
    # Compiling takes longer than most points.
    settings = replace(config, compile=bool(config.compile))
    parallelize(model, mesh, Context(), settings, device)
    if job.init_from is None:
        initial = partial(initial_tensor, spec.sizes, spec.seed, truncated=config.init == "truncated")
        materialize(model, device.device, initial)
    else:
        vocab_map = read_map(Path(job.vocab_map)) if job.vocab_map else None
        stored = exported_tensors(Path(job.init_from), spec.sizes, print, vocab_map)
        materialize(model, device.device, stored, pieces=True)
    data = spec.eod_id, spec.sizes.seq_len
    return Trainee.fresh(model, mesh, Context(), spec.batch, config, device.device, *data)


def _learn(trainee: Trainee, spec: PointSpec, tokens: npt.NDArray[Any]) -> tuple[float | None, int]:
    """All steps; the mean loss of the last ones and how many steps were skipped."""
    batches = micro_batches(tokens, spec, trainee.device)
    losses: list[float] = []
    skipped, pending = 0, None
    for step in range(spec.steps + 1):
        done = pending
        if step < spec.steps:
            rate = learning_rate(trainee.config, step, spec.steps)
            pending = train_step(trainee, batches, step + 1, rate, stop=False, save=False)
        if done is not None:  # read one step later: the device has finished it
            numbers = done.read()
            losses.append(numbers.loss)
            skipped = numbers.skipped
            if not math.isfinite(numbers.loss):
                raise PretokError(
                    f"the loss is {numbers.loss} at step {numbers.step} of {spec.steps}; lower --lr"
                )
    return float(np.mean(losses[-LAST:])) if losses else None, skipped


def micro_batches(tokens: npt.NDArray[Any], spec: PointSpec, device: torch.device) -> Iterator[MicroBatch]:
    """(micro-batch, seq_len + 1) ids, each with the checksum 0: nobody compares it.

    The text is cut into sequences and the seed shuffles them. In the order of the text a small batch would be a piece
    of one document, and models learned less than half of what they learn so.
    """
    size, length = spec.batch.micro_batch, spec.sizes.seq_len
    starts = length * np.random.default_rng(spec.seed).permutation(spec.tokens // length)
    for number in range(0, len(starts), size):
        rows = [tokens[start : start + length + 1] for start in starts[number : number + size]]
        ids = torch.from_numpy(np.stack(rows).astype(np.int32))
        yield MicroBatch(ids.to(device), documents=documents_of(ids[:, :-1], spec.eod_id, spec.config))


def score_stream(trainee: Trainee, tokens: npt.NDArray[Any]) -> float:
    """Nats of all tokens but the first, each scored once, in sequences of the length of training."""
    length, size = trainee.seq_len, trainee.batch.micro_batch
    count = -(-(len(tokens) - 1) // length)
    rows = -(-count // size) * size
    inputs = np.full(rows * length, trainee.eod_id, np.int64)
    targets = np.full(rows * length, IGNORE, np.int64)
    inputs[: len(tokens) - 1], targets[: len(tokens) - 1] = tokens[:-1], tokens[1:]
    nats = 0.0
    try:
        for start in range(0, rows * length, size * length):
            part = slice(start, start + size * length)
            given, wanted = (torch.from_numpy(ids[part].reshape(size, length)) for ids in (inputs, targets))
            with torch.no_grad():
                _, nll = trainee.model(*trainee.given(given, wanted))
            nats += float(nll)
    finally:
        reshard(trainee.model)
    return nats


def main() -> None:
    """Do the job of the one argument."""
    path = Path(sys.argv[1])
    job = read_record(PointJob, read_json(path), path)
    write_json(Path(job.out), to_json(run_point(job)))


if __name__ == "__main__":
    try:
        main()
    except PretokError as error:
        sys.exit(f"{error}")
