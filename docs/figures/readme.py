r"""The picture of the README: time over tokens, and what two trained models look at.

    python docs/figures/readme.py runs/softmax runs/taylor

Left: attention with its backward pass on one H200, from
results/attention/attention_h200_202611.json. Right: the first test images and the gradient rollout
of each run. The two runs were trained with

    saccade train hybrid-cifar10 model.attention=softmax train.epochs=60 optim.warmup_epochs=4 \
        train.ema_decay=0.998 augment.mixup=0.8 augment.cutmix=1 \
        model.overrides.drop_path_rate=0.1 --out runs/softmax

and the same with model.attention=taylor. They reach 94.67 and 94.70 % on the test set; their run
folders without weights are in results/explain/readme_runs_h200_202611.tar.gz. Writes readme.png
beside this file.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from saccade.explain.explanation import Explainer
from saccade.explain.sheet import SMALL, TEXT, TITLE, Sheet, overlay, pixels, save
from saccade.plotting import GRID, INK, MUTED
from saccade.runs import RunFolder

RESULTS = Path(__file__).parents[2] / "results" / "attention" / "attention_h200_202611.json"
HEAD_DIM = 32
LINES = {
    "softmax (cuDNN)": ("sdpa-cudnn", "#1b1f25", "o"),
    "softmax (FlashAttention)": ("sdpa-flash", "#8a939c", "s"),
    "Taylor, direct": ("taylor-direct/triton", "#398ffa", "D"),
    "Taylor, linear time": ("taylor-efficient/triton", "#1852b4", "^"),
}
COUNT, SIDE, GAP = 6, 0.92, 0.07
LEFT, TOP, WIDTH, HEIGHT = 5.75, 0.78, 4.2, 2.9


def draw(runs: list[Path]) -> Sheet:
    """The sheet with both halves."""
    sheet = Sheet(LEFT + COUNT * (SIDE + GAP) + 0.1, 4.3)
    sheet.words("Time of attention, forward and backward", 0.62, 0.34, size=TITLE, bold=True)
    sheet.words(f"one H200, bfloat16, head dim {HEAD_DIM}", 0.62, 0.56, color=MUTED)
    _plot_times(sheet.axes(0.62, TOP, WIDTH, HEIGHT))
    sheet.words("What the models look at", LEFT, 0.34, size=TITLE, bold=True)
    sheet.words(f"first {COUNT} test images of CIFAR-10, gradient rollout", LEFT, 0.56, color=MUTED)
    explainers = [Explainer(RunFolder.open(run), method="gradient") for run in runs]
    for column in range(COUNT):
        x = LEFT + column * (SIDE + GAP)
        found = [one.explain(one.album.open(f"test:{column}")) for one in explainers]
        sheet.picture(pixels(found[0].image, 160), x, TOP, SIDE)
        for row, explanation in enumerate(found, start=1):
            patches = explanation.maps.on_grid(explanation.maps.summary[0])
            colors = overlay(explanation.image, patches, size=160)
            sheet.picture(colors, x, TOP + row * (SIDE + GAP), SIDE)
    for row, name in enumerate(["image", *(explanation.attention for explanation in found)]):
        y = TOP + row * (SIDE + GAP) + SIDE / 2
        sheet.words(name, LEFT - 0.1, y, size=TEXT, align="right")
    return sheet


def _plot_times(axes: Any) -> None:
    rows = json.loads(RESULTS.read_text())["rows"]
    for label, (mechanism, color, marker) in LINES.items():
        points = sorted(
            (row["tokens"], row["timing"]["median_ms"])
            for row in rows
            if (row["mechanism"], row["head_dim"], row["direction"], row["status"])
            == (mechanism, HEAD_DIM, "training", "timed")
            and row["batch"] * row["heads"] * row["tokens"] == 1 << 21
        )
        tokens, ms = zip(*points, strict=True)
        axes.plot(tokens, ms, color=color, marker=marker, markersize=4, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(tokens, [f"{n:,}" for n in tokens])
    axes.set_yticks([2, 5, 10, 20, 50, 100, 200], ["2", "5", "10", "20", "50", "100", "200"])
    axes.minorticks_off()
    axes.set_xlabel("tokens (batch x heads x tokens = 2^21)")
    axes.set_ylabel("ms")
    axes.grid(color=GRID, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=SMALL + 1, labelcolor=INK, loc="upper left")


def main() -> None:
    """Draw the figure and write it in 256 colors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path, nargs=2, help="run folders: softmax, taylor")
    runs = parser.parse_args().runs
    with TemporaryDirectory() as folder:
        drawn = save(partial(draw, runs), Path(folder) / "readme")[0]
        Image.open(drawn).convert("RGB").quantize(256, kmeans=1).save(
            Path(__file__).with_name(drawn.name), optimize=True
        )


if __name__ == "__main__":
    main()
