r"""The debug model on the sample that ships with the package: loss by step beside the entropy of single tokens.

    pretok run pipelines/demo.toml
    train --shards work/demo/shards --mix work/demo/mix.json --model debug --lr 2e-3 --global-batch 16 \
        --out work/demo/run
    python -m benchmarks.learning_curve work/demo

Input: the folder of the demo with its run. Output: docs/learning-curve.svg and one line of figures.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import pretok.stream

CURVE = Path(__file__).parent.parent / "docs" / "learning-curve.svg"
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 260, 48, 36


def unigram_entropy(work: Path) -> float:
    """Entropy in nats of the tokens of the mix: the loss of the best model that knows frequencies alone."""
    view = pretok.stream.open(work / "shards", work / "mix.json")
    targets = view.batch(range(len(view)))[:, 1:]
    counts = np.bincount(targets.ravel(), minlength=view.vocab_size).astype(float)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def plot(losses: list[float], entropy: float) -> str:
    """The curve as SVG."""
    top = max(losses) * 1.03

    def x(step: int) -> float:
        return LEFT + (WIDTH - LEFT - 10) * step / (len(losses) - 1)

    def y(loss: float) -> float:
        return (HEIGHT - BOTTOM) * (1 - loss / top) + 6

    points = " ".join(f"{x(i):.1f},{y(loss):.1f}" for i, loss in enumerate(losses))
    ticks = [
        f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>'
        for value in range(0, int(top) + 1, 2)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            '<rect width="100%" height="100%" fill="white"/>',
            *ticks,
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y(entropy):.1f}" y2="{y(entropy):.1f}" '
            'stroke="#999" stroke-dasharray="5 4"/>',
            f'<text x="{WIDTH - 12}" y="{y(entropy) - 6:.1f}" text-anchor="end" fill="#666">'
            f"entropy of single tokens, {entropy:.2f}</text>",
            f'<polyline points="{points}" fill="none" stroke="#1565c0" stroke-width="2"/>',
            f'<text x="{LEFT}" y="{HEIGHT - 8}">loss in nats per token, step 1 to {len(losses)}</text>',
            "</svg>\n",
        ]
    )


def main() -> None:
    """Read the run, draw it, print first, last and when the entropy was passed."""
    work = Path(sys.argv[1])
    lines = (work / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    entropy = unigram_entropy(work)
    CURVE.write_text(plot(losses, entropy), encoding="utf-8")
    below = next((step for step, loss in enumerate(losses, 1) if loss < entropy), None)
    print(
        f"loss {losses[0]:.2f} -> {losses[-1]:.2f} in {len(losses)} steps; "
        f"entropy {entropy:.2f}, passed at step {below}"
    )


if __name__ == "__main__":
    main()
