"""timm's ViT-S at 1,024 pixels: its softmax and attentions of saccade, swapped, in one run.

Patches of 16 and 8 pixels give 4,096 and 16,384 tokens. Inference and a training step are timed in
bfloat16 on one card, with medians and the peak of memory. The models share their weights.

    python benchmarks/vit_s_1024.py                               # one GPU
    python benchmarks/vit_s_1024.py --toy --out /tmp/toy          # tries the script on a CPU

A toy run writes into --out alone, and its figures say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saccade.bench.clock import time_calls
from saccade.bench.findings import result_stem
from saccade.environment import describe_environment, hardware_slug
from saccade.integrations import swap_attention
from saccade.io import write_file, write_json

RESULTS = Path(__file__).parents[1] / "results" / "convert"
ATTENTIONS: dict[str, dict[str, Any]] = {
    "taylor": {},
    "taylor, centered keys": {"center_keys": True},
    "taylorshift": {},
    "performer_relu": {},
}
SECONDS = 1.5
WARM_UP = 3  # calls that compile, and fill caches; not timed


def define_torchvision_operators() -> torch.library.Library | None:
    """Let `import timm` work beside a torch whose torchvision has no compiled operators."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None


def build(side: int, patch: int, toy: bool, device: torch.device) -> nn.Module:
    """timm's ViT-S for images of `side` pixels; a thin one for a toy run."""
    import timm

    thin = {"embed_dim": 64, "depth": 2, "num_heads": 2} if toy else {}
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(
        "vit_small_patch16_224", img_size=side, patch_size=patch, num_classes=1000, **thin
    )
    return model.to(device)


def passes(model: nn.Module, images: Tensor) -> dict[str, Callable[[], object]]:
    """Inference, and a training step with AdamW."""
    kind = images.device.type
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=kind == "cuda")

    def infer() -> object:
        model.eval()
        with torch.inference_mode(), torch.autocast(kind, torch.bfloat16):
            return model(images)

    def step() -> object:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, torch.bfloat16):
            loss = model(images).float().logsumexp(dim=1).mean()
        loss.backward()
        optimizer.step()
        return loss

    return {"inference": infer, "training step": step}


def measure(model: nn.Module, images: Tensor, seconds: float) -> dict[str, Any]:
    """Milliseconds and peak MiB of each pass; None for what does not fit into memory."""
    found: dict[str, Any] = {}
    for name, call in passes(model, images).items():
        if images.is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            for _ in range(WARM_UP):
                call()
            timing = time_calls(call, images.device, seconds=seconds)
        except torch.OutOfMemoryError:
            found[name] = None
            continue
        peak = torch.cuda.max_memory_allocated() / 2**20 if images.is_cuda else None
        found[name] = {
            "median_ms": timing.median_ms,
            "p20_ms": timing.p20_ms,
            "p80_ms": timing.p80_ms,
            "repeats": timing.repeats,
            "peak_mib": peak,
        }
    return found


def run(
    sides: Sequence[tuple[int, int]], batch: int, toy: bool, compiled: bool
) -> list[dict[str, Any]]:
    """A row for every attention at every number of tokens."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    for side, patch in sides:
        tokens = (side // patch) ** 2
        images = torch.randn(batch, 3, side, side, device=device)
        for name, options in {"softmax (timm)": None, **ATTENTIONS}.items():
            model = build(side, patch, toy, device)
            if options is not None:
                swap_attention(model, name.partition(",")[0], **options)
            torch.compiler.reset()  # or the limit of recompilations is reached by a later model
            called = torch.compile(model) if compiled else model
            assert isinstance(called, nn.Module)
            found = measure(called, images, 0.05 if toy else SECONDS)
            rows.append({"attention": name, "tokens": tokens, "batch": batch, **found})
            print(rows[-1], file=sys.stderr)
            del model, called
    return rows


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Medians, and how many times as fast as timm's softmax at the same number of tokens."""
    names = ("inference", "training step")
    lines = ["| tokens | attention |" + "".join(f" {n}, ms | times |" for n in names)]
    lines.append("|---|---|" + "---|---|" * len(names))
    base = {row["tokens"]: row for row in rows if row["attention"].startswith("softmax")}
    for row in rows:
        cells = []
        for name in names:
            own, theirs = row[name], base[row["tokens"]][name]
            cells.append(f"{own['median_ms']:,.2f}" if own else "out of memory")
            ratio = theirs["median_ms"] / own["median_ms"] if own and theirs else None
            cells.append(f"{ratio:.2f}" if ratio else "")
        lines.append(f"| {row['tokens']:,} | {row['attention']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "Made by `benchmarks/vit_s_1024.py`.", ""])


def main() -> int:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--compile", action="store_true", help="compile all models")
    parser.add_argument("--toy", action="store_true", help="small images and model, any device")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if not arguments.toy and not torch.cuda.is_available():
        sys.exit("vit_s_1024.py needs a GPU; --toy tries it on a CPU")
    if arguments.toy and arguments.out == RESULTS:
        sys.exit("--toy needs --out: toy figures are no results")
    library = define_torchvision_operators()
    sides = [(64, 8), (64, 4)] if arguments.toy else [(1024, 16), (1024, 8)]
    batch = 2 if arguments.toy else arguments.batch
    rows = run(sides, batch, arguments.toy, arguments.compile)
    del library
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    theme = "toy_vit_s" if arguments.toy else "vit_s_1024"
    arguments.out.mkdir(parents=True, exist_ok=True)
    stem = result_stem(arguments.out, theme, hardware_slug(device), complete=True)
    content = {"environment": describe_environment(device), "compiled": arguments.compile}
    write_json(stem.with_suffix(".json"), {**content, "rows": rows})
    write_file(stem.with_suffix(".md"), as_markdown(rows))
    print(stem.with_suffix(".md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
