"""Small targets in large images: Taylor, softmax and coarse patches, trained for equal time.

    python -m benchmarks.high_resolution --out results/high_resolution       # on a GPU
    python -m benchmarks.high_resolution --toy --out /tmp/high_resolution    # one CPU core, minutes

The task is `benchmarks.small_targets`. Every image is new. A network with fine patches
is trained with Taylor attention and with softmax, and one with patch 16 with both. All have the
same width, depth and seconds; the clock counts everything from the first step on: compilation,
drawing and evaluation. The learning rate follows the clock. Finished trainings in --out are kept.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.small_targets import TARGET_CLASSES, render_targets
from torch import Tensor

from saccade.environment import describe_environment, hardware_slug, resolve_device
from saccade.explain.sheet import SMALL, TITLE, Sheet, save
from saccade.io import read_json_object, write_json
from saccade.models import create_model
from saccade.plotting import MUTED
from saccade.train.run_summary import peak_memory_mib, start_peak_memory

COLORS = {"taylor": "#0b6e4f", "softmax": "#c1440e"}


@dataclass(frozen=True)
class Way:
    """One training: attention, patch and image size, and its budget in seconds."""

    attention: str
    patch: int
    size: int
    seconds: float
    width: int = 192
    depth: int = 6
    heads: int = 6
    lr: float = 1e-3
    seed: int = 0
    evaluations: int = 20
    test_images: int = 1024
    tokens_a_step: int = 2**18

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"{self.attention}_patch{self.patch}_{self.size}px"

    @property
    def tokens(self) -> int:
        """Number of tokens of an image."""
        return (self.size // self.patch) ** 2

    @property
    def batch_size(self) -> int:
        """Images of a step: as many as give the same number of tokens."""
        return max(4, min(256, self.tokens_a_step // self.tokens))


def train(way: Way, device: torch.device) -> dict[str, Any]:
    """Train for the seconds of a way; return the accuracies over time."""
    torch.manual_seed(way.seed)
    model = create_model(
        "vit_small_patch16_224",
        attention=way.attention,
        num_classes=len(TARGET_CLASSES),
        img_size=way.size,
        patch_size=way.patch,
        embed_dim=way.width,
        depth=way.depth,
        num_heads=way.heads,
        class_token=False,
        global_pool="avg",
        pos_embed="sinusoidal_2d",
    ).to(device)
    model.set_compiled(device.type == "cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=way.lr, weight_decay=0.05)
    start_peak_memory(device)
    start, step, rows = time.perf_counter(), 0, []
    while (elapsed := time.perf_counter() - start) < way.seconds:
        done = elapsed / way.seconds
        if done * way.evaluations >= len(rows) + 1:
            rows.append({"seconds": elapsed, "images": step * way.batch_size} | test(model, way))
        for group in optimizer.param_groups:
            group["lr"] = way.lr * min(1.0, done / 0.05) * (1 + math.cos(math.pi * done)) / 2
        loss = take_step(model, optimizer, way, step, device)
        step += 1
        if step % 10 == 0:
            float(loss)  # waits, so that the clock is true
    elapsed = time.perf_counter() - start
    rows.append({"seconds": elapsed, "images": step * way.batch_size} | test(model, way))
    return {
        "way": asdict(way),
        "tokens": way.tokens,
        "batch_size": way.batch_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "peak_memory_mib": peak_memory_mib(device),
        "img_per_s": step * way.batch_size / elapsed,
        "rows": rows,
    }


def take_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    way: Way,
    step: int,
    device: torch.device,
) -> Tensor:
    """One step on new images."""
    model.train()
    first = step * way.batch_size
    index = torch.arange(first, first + way.batch_size, device=device)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        logits = model(batch_of(index, way.size, "train"))
    loss = F.cross_entropy(logits.float(), index % len(TARGET_CLASSES))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def batch_of(index: Tensor, size: int, part: Any) -> Tensor:
    """Images as floats around 0."""
    return render_targets(index, size, part).float() / 127.5 - 1


@torch.no_grad()
def test(model: torch.nn.Module, way: Way) -> dict[str, float]:
    """Accuracy on the test images."""
    model.eval()
    device, right = next(model.parameters()).device, 0
    for first in range(0, way.test_images, way.batch_size):
        index = torch.arange(first, min(first + way.batch_size, way.test_images), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(batch_of(index, way.size, "test"))
        right += int((logits.argmax(1) == index % len(TARGET_CLASSES)).sum())
    return {"accuracy": right / way.test_images}


def draw(results: list[dict[str, Any]]) -> Sheet:
    """Accuracy over seconds, a panel for each image size."""
    sizes = sorted({result["way"]["size"] for result in results})
    sheet = Sheet(0.6 + 3.6 * len(sizes), 3.9)
    sheet.words("Small targets in large images", 0.3, 0.36, size=TITLE, bold=True)
    sheet.words(
        "test accuracy over seconds of training, equal time for all", 0.3, 0.58, color=MUTED
    )
    for number, size in enumerate(sizes):
        x = 0.6 + 3.6 * number
        sheet.words(f"{size} x {size} pixels", x, 0.95, bold=True)
        axes = sheet.axes(x, 1.05, 3.1, 2.3)
        finest = min(r["way"]["patch"] for r in results if r["way"]["size"] == size)
        for result in (r for r in results if r["way"]["size"] == size):
            way, rows = result["way"], result["rows"]
            memory = result["peak_memory_mib"]
            room = f", {memory / 1024:.1f} GiB" if memory else ""
            axes.plot(
                [row["seconds"] for row in rows],
                [100 * row["accuracy"] for row in rows],
                color=COLORS[way["attention"]],
                linestyle="-" if way["patch"] == finest else ":",
                label=f"{way['attention']}, patch {way['patch']}: {result['tokens']:,} tokens"
                + room,
            )
        axes.axhline(100 / len(TARGET_CLASSES), color=MUTED, linewidth=0.6)
        axes.set_ylim(0, 101)
        axes.set_xlabel("seconds", fontsize=SMALL + 0.5)
        axes.set_ylabel("accuracy in %", fontsize=SMALL + 0.5)
        axes.tick_params(labelsize=SMALL + 0.5)
        axes.legend(fontsize=SMALL, frameon=False, loc="upper left")
        axes.spines[["top", "right"]].set_visible(False)
    return sheet


def table(results: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| pixels | attention | patch | tokens | images/s | peak MiB | at half time | at the end |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        way, rows = result["way"], result["rows"]
        half = next(row for row in rows if row["seconds"] >= way["seconds"] / 2)
        lines.append(
            f"| {way['size']} | `{way['attention']}` | {way['patch']} | {result['tokens']:,} | "
            f"{result['img_per_s']:.1f} | {result['peak_memory_mib'] or 0:,.0f} | "
            f"{100 * half['accuracy']:.1f} % | {100 * rows[-1]['accuracy']:.1f} % |"
        )
    return "\n".join(lines) + "\n"


def ways_of(given: argparse.Namespace) -> list[Way]:
    """The trainings that the command line asks for."""
    if given.toy:
        small = {"width": 64, "depth": 2, "heads": 4, "evaluations": 4, "test_images": 64}
        small["tokens_a_step"] = 2**13
        patches = ((96, 4), (96, 16))
    else:
        small, patches = {}, ((512, 8), (512, 16), (1024, 8), (1024, 16))
    seconds = given.seconds or (60.0 if given.toy else 120.0)
    return [
        Way(attention, patch, size, seconds, **small)
        for size, patch in patches
        for attention in ("taylor", "softmax")
        if given.size in (None, size)
    ]


def main() -> None:
    """Train what is missing, then write table and figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, help="of each training; default 120, toy 60")
    parser.add_argument("--size", type=int, help="only images of this side")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--toy", action="store_true", help="small images and networks, for a CPU")
    given = parser.parse_args()
    device = resolve_device(given.device)
    given.out.mkdir(parents=True, exist_ok=True)
    results = []
    for way in ways_of(given):
        path = given.out / f"{way.name}.json"
        if not path.exists():
            found = {"environment": describe_environment(device), **train(way, device)}
            write_json(path, found)
        results.append(read_json_object(path))
        last = results[-1]["rows"][-1]
        print(
            f"{way.name}: {100 * last['accuracy']:.1f} % after {last['seconds']:.0f} s", flush=True
        )
    name = f"high_resolution_{hardware_slug(device)}"
    (given.out / f"{name}.md").write_text(table(results))
    save(partial(draw, results), given.out / name)


if __name__ == "__main__":
    main()
