"""Overhead of the training loop over a plain one, on the same model and batches.

Both use AdamW. The plain loop has autocast, loss, backward, clipping, a moving average, a learning
rate for each step, and reads the loss every 50 steps. Saccade's adds
the non-finite guard, training accuracy, seeded steps, logs, signals and checkpoint bookkeeping.
Epochs of both alternate; the first two of each are warm-up and not counted.

    python benchmarks/train_overhead.py --out results/train_overhead/train_overhead_h200_202611
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from saccade.config import load_config
from saccade.data import load_splits
from saccade.environment import describe_run
from saccade.runs import RunFolder
from saccade.train.distributed import connect
from saccade.train.loop import Trainer
from saccade.train.progress import SilentReporter
from saccade.train.signals import StopRequest

WARMUP_EPOCHS = 2


def make_trainer(recipe: str, overrides: list[str], folder: Path) -> Trainer:
    """A trainer of a recipe that tells nobody."""
    config = load_config(recipe, overrides)
    return Trainer(
        config,
        load_splits(config.data),
        run=RunFolder.create(folder, config),
        ranks=connect(config.train.device),
        reporter=SilentReporter(),
        stop=StopRequest(),
    )


class BareLoop:
    """The loop somebody would write in an afternoon."""

    def __init__(self, trainer: Trainer) -> None:
        self.loader, self.device = trainer.train_loader, trainer.ranks.device
        self.network, self.model = trainer.stepper.network, trainer.stepper.model
        self.config = trainer.config
        optim = self.config.optim
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=optim.lr, weight_decay=optim.weight_decay, fused=True
        )
        self.average = [p.detach().clone() for p in self.network.parameters()]
        self.step = 0

    def train_epoch(self) -> None:
        """Take the steps of one epoch."""
        self.network.train()
        params = list(self.network.parameters())
        train, optim = self.config.train, self.config.optim
        total = len(self.loader) * train.epochs
        use_bf16 = train.precision == "bf16"
        for batch in self.loader.epoch(0):
            lr = optim.lr * (1 + math.cos(math.pi * self.step / total)) / 2
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            with torch.autocast(self.device.type, torch.bfloat16, enabled=use_bf16):
                logits = self.model(batch.images)
            loss = F.cross_entropy(
                logits.float(), batch.targets, label_smoothing=train.label_smoothing
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, optim.clip_norm)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                torch._foreach_lerp_(self.average, [p.detach() for p in params], 1e-3)
            self.step += 1
            if self.step % 50 == 0:
                loss.item()


def timed(loop: Trainer | BareLoop, device: torch.device) -> float:
    """Seconds of one epoch, up to the end of the device's work."""
    start = time.perf_counter()
    loop.train_epoch()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(overrides: list[str], repeats: int) -> dict[str, Any]:
    """Time epochs of both loops in turn."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer("cifar10-taylor", overrides, Path(folder) / "run")
        bare, device = BareLoop(trainer), trainer.ranks.device
        seconds: dict[str, list[float]] = {"saccade": [], "bare": []}
        for repeat in range(WARMUP_EPOCHS + repeats):
            turns = [("saccade", trainer), ("bare", bare)]
            for name, loop in turns if repeat % 2 else reversed(turns):
                spent = timed(loop, device)
                if repeat >= WARMUP_EPOCHS:
                    seconds[name].append(spent)
            trainer.at.batch = 0
        ratios = [s / b for s, b in zip(seconds["saccade"], seconds["bare"], strict=True)]
        steps = len(trainer.train_loader)
        return {
            "overrides": overrides,
            "steps_per_epoch": steps,
            "saccade_ms_per_step": 1000 * statistics.median(seconds["saccade"]) / steps,
            "bare_ms_per_step": 1000 * statistics.median(seconds["bare"]) / steps,
            "overhead": statistics.median(ratios) - 1,
            "overhead_spread": [min(ratios) - 1, max(ratios) - 1],
            "repeats": repeats,
            "environment": describe_run(trainer.ranks.device, trainer.ranks.world_size),
        }


def publish(table: str, result: Any, out: Path | None) -> None:
    """Print a table; write it and what it is made of where asked."""
    print(table)
    if out:
        out.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
        out.with_suffix(".md").write_text(table)


def main() -> None:
    """Measure, print a table, write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="changes to cifar10-taylor")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--data", default="shapes", help="a data set; shapes needs no download")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    arguments = parser.parse_args()
    data = [f"data.name={arguments.data}", "optim.name=adamw"]
    if arguments.data == "shapes":
        data += ["data.num_train=20000", "data.num_test=1000"]
    result = measure([*data, *arguments.overrides], arguments.repeats)
    low, high = result["overhead_spread"]
    line = (
        f"| {result['bare_ms_per_step']:.2f} | {result['saccade_ms_per_step']:.2f} "
        f"| {result['overhead']:+.1%} ({low:+.1%} to {high:+.1%}) |"
    )
    environment = result["environment"]
    table = (
        f"# Overhead of the training loop\n\n{environment['device']}, torch "
        f"{environment['packages']['torch']}, recipe cifar10-taylor with "
        f"{' '.join(result['overrides'])}; medians of {result['repeats']} epochs of "
        f"{result['steps_per_epoch']} steps, interleaved.\n\n"
        f"| bare ms/step | saccade ms/step | overhead (spread) |\n|---|---|---|\n{line}\n"
    )
    publish(table, result, arguments.out)


if __name__ == "__main__":
    main()
