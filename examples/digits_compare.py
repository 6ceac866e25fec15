"""Train the same small model with three attentions on real digits, and compare them.

    python examples/digits_compare.py

No download and no GPU. One seed is a first look, not a study: the intervals say how little 359
test images can tell apart.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

from saccade.config import load_config
from saccade.runs import RunFolder
from saccade.train import train

ATTENTIONS = ("softmax", "taylorshift", "performer")


def wilson(accuracy: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a fraction of `count` images (Wilson's)."""
    z = 1.96
    centre = accuracy + z * z / (2 * count)
    half = z * math.sqrt(accuracy * (1 - accuracy) / count + z * z / (4 * count * count))
    return (centre - half) / (1 + z * z / count), (centre + half) / (1 + z * z / count)


def show_table(summaries: list[dict[str, Any]]) -> None:
    """Print a line for each attention."""
    print("\nattention     test accuracy   95 % interval      parameters   img/s   seconds")
    for s in summaries:
        low, high = wilson(s["test_accuracy"], s["test_count"])
        print(
            f"{s['attention']:<14}{s['test_accuracy']:>8.2%}        {low:.2%} - {high:.2%}"
            f"{s['parameters']:>13,}{s['img_per_s']:>8,.0f}{s['seconds']:>10.1f}"
        )


def draw(folder: Path) -> Path:
    """Plot validation accuracy by epoch for every run in the folder."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for attention in ATTENTIONS:
        rows = RunFolder(folder / attention).metrics("epoch")
        axes.plot([r["epoch"] for r in rows], [r["val_accuracy"] for r in rows], label=attention)
    axes.set(xlabel="epoch", ylabel="validation accuracy", title="digits, one seed")
    axes.grid(alpha=0.3)
    axes.legend()
    path = folder / "comparison.png"
    figure.savefig(path, dpi=150)
    return path


def main() -> None:
    """Train, print, plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="changes to digits-quick, as train.epochs=5")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    parser.add_argument("--out", type=Path, default=Path("runs") / f"digits-{stamp}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are too small to share
    summaries = []
    for attention in ATTENTIONS:
        print(f"training {attention}", flush=True)
        config = load_config("digits-quick", [f"model.attention={attention}", *arguments.overrides])
        summaries.append(train(config, arguments.out / attention))
    show_table(summaries)
    print(f"\nplot:        {draw(arguments.out)}\nrun folders: {arguments.out}")


if __name__ == "__main__":
    main()
