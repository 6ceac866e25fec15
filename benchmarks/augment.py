"""Augmented images per second of saccade's loader and of a torchvision-style loader.

Ours: CIFAR-sized uint8 images on the device, `saccade.data.Loader`, whole epochs. Theirs: the same
augmentations on Pillow images by torchvision in worker processes, mixing in the collate function,
batches pinned and copied to the device. Both are warmed up, then timed several times; device
events on CUDA, the wall clock elsewhere and for the workers.

    python benchmarks/augment.py                    # on the machine's device
    python benchmarks/augment.py --device cpu --images 4096 --repeats 3
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torchvision_loader import cpu_loader

from saccade.config import AugmentConfig
from saccade.data import DatasetInfo, Split, make_loader

RESULTS = Path(__file__).parents[1] / "results" / "augment"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
NUM_CLASSES = 10
PADDING, ERASE, ALPHA = 4, 8, 1.0

MIX = AugmentConfig(crop_padding=PADDING, flip=True, erase=ERASE, mixup=ALPHA, cutmix=ALPHA)
AUGMENTS = {
    "normalize only": None,
    "crop, flip": AugmentConfig(crop_padding=PADDING, flip=True),
    "crop, flip, erase, mixup/cutmix": MIX,
    "crop, flip, TrivialAugment": AugmentConfig(crop_padding=PADDING, flip=True, policy="trivial"),
}
PEER = "crop, flip, erase, mixup/cutmix"


def synthetic(count: int) -> tuple[Split, DatasetInfo]:
    """Random images of CIFAR's size; what is in a picture does not change the time."""
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    names = tuple(str(number) for number in range(NUM_CLASSES))
    info = DatasetInfo("synthetic", NUM_CLASSES, names, (32, 32), 3, MEAN, STD)
    return Split(torch.arange(count) % NUM_CLASSES, images), info


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """How long the work takes on the device, launches included."""
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000


def rates(work: Callable[[], int], device: torch.device, repeats: int) -> dict[str, float]:
    """Median and extremes of images a second, after one untimed run."""
    count = work()
    found = [count / seconds(lambda: work() and None, device) for _ in range(repeats)]
    return {
        "img_per_s": round(statistics.median(found)),
        "img_per_s_min": round(min(found)),
        "img_per_s_max": round(max(found)),
    }


def measure_ours(
    split: Split, info: DatasetInfo, batch_size: int, device: torch.device, repeats: int
) -> list[dict[str, Any]]:
    """One row for every augmentation."""
    rows = []
    for name, augment in AUGMENTS.items():
        loader = make_loader(
            split, info, batch_size=batch_size, augment=augment, seed=0, device=device, shuffle=True
        )
        epochs = iter(range(1000))

        def epoch(loader: Any = loader, epochs: Any = epochs) -> int:
            return sum(len(batch.images) for batch in loader.epoch(next(epochs)))

        row = {"loader": "saccade", "augmentation": name, "batch_size": batch_size, "workers": 0}
        rows.append(row | rates(epoch, device, repeats))
        print(rows[-1], file=sys.stderr)
    return rows


def measure_peer(
    split: Split,
    info: DatasetInfo,
    batch_size: int,
    workers: int,
    device: torch.device,
    repeats: int,
) -> list[dict[str, Any]]:
    """The row of the CPU loader, or none where torchvision does not import."""
    try:
        import torchvision
    except Exception as error:  # a torchvision that does not fit torch fails in many ways
        print(f"no torchvision to compare with: {error}", file=sys.stderr)
        return []
    loader = cpu_loader(
        split, info, MIX, batch_size=batch_size, workers=workers, pin=device.type == "cuda"
    )

    def epoch() -> int:
        return sum(
            len(i.to(device, non_blocking=True)) for i, t in loader if t.to(device) is not None
        )

    name = f"torchvision {torchvision.__version__}"
    row = {"loader": name, "augmentation": PEER, "batch_size": batch_size, "workers": workers}
    row |= rates(epoch, torch.device("cpu"), repeats)
    print(row, file=sys.stderr)
    return [row]


def machine(device: torch.device) -> dict[str, Any]:
    """The hardware and versions that the numbers are from."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {
        "device": name,
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def as_markdown(result: dict[str, Any]) -> str:
    """The result as a table."""
    facts = result["machine"]
    lines = [
        f"Images of 32 x 32 a second on {facts['device']}, {facts['cores']} CPU cores, torch "
        f"{facts['torch']}, {facts['date']}: median of {result['repeats']} epochs of "
        f"{result['images']:,} images (lowest to highest).",
        "",
        "| loader | augmentation | batch | workers | img/s | lowest to highest |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['loader']} | {row['augmentation']} | {row['batch_size']} | {row['workers']} "
        f"| {row['img_per_s']:,} | {row['img_per_s_min']:,} to {row['img_per_s_max']:,} |"
        for row in result["rows"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the result files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    best = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=best)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--peer-images", type=int, default=20_000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result files")
    arguments = parser.parse_args()
    device, repeats = torch.device(arguments.device), arguments.repeats
    split, info = synthetic(arguments.images)
    rows = []
    for batch_size in arguments.batch_sizes:
        rows += measure_ours(split, info, batch_size, device, repeats)
    peer_split, info = synthetic(min(arguments.images, arguments.peer_images))
    rows += measure_peer(peer_split, info, 512, arguments.workers, device, repeats)
    result = {"images": arguments.images, "repeats": repeats, "machine": machine(device)}
    result["rows"] = rows
    hardware = re.sub(
        r"[^a-z0-9]+", "-", result["machine"]["device"].lower().replace("nvidia ", "")
    )
    stem = f"augment_{hardware}_{datetime.now(UTC):%Y%m}"
    (arguments.out / f"{stem}.json").write_text(json.dumps(result, indent=2) + "\n")
    (arguments.out / f"{stem}.md").write_text(as_markdown(result))
    print(as_markdown(result))


if __name__ == "__main__":
    main()
