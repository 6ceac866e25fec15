"""Pack a finished run for transport: the run folder without checkpoints, and its evaluated weights.

    python benchmarks/collect_run.py RUN OUT

writes OUT/<run>.tar.gz (configuration, metrics, predictions, split, environment) and
OUT/<run>.safetensors (float16, the weights that the run evaluates). `ship_weights.py` reads both.
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import torch

from saccade.models.weight_files import write_tensors
from saccade.runs import RunFolder
from saccade.train import load_model


def collect(run: RunFolder, out: Path) -> tuple[Path, Path]:
    """Write the two files and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    model, _ = load_model(run)
    halves = {
        name: value.half() if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    for name, value in halves.items():
        if not torch.isfinite(value).all():
            raise ValueError(f"{name} must be finite in float16, got infinity or NaN")
    weights = out / f"{run.path.name}.safetensors"
    write_tensors(halves, weights, metadata={"format": "pt"})
    archive = out / f"{run.path.name}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(run.path.iterdir()):
            if path.is_file():
                tar.add(path, f"{run.path.name}/{path.name}")
    return archive, weights


if __name__ == "__main__":
    for path in collect(RunFolder(sys.argv[1]), Path(sys.argv[2])):
        print(path, path.stat().st_size)
