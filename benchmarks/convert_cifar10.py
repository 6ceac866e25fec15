"""Conversions of the softmax `vit-cifar10`: zero-shot, recovered, and from scratch, in one table.

For every seed the teacher is trained by its recipe, then converted by every row of `VARIANTS` with
the same number of epochs. `taylor` is also trained from scratch: for the epochs of its conversion,
and by the recipe, with and without centered keys. Every run is a process of its own. Everything
resumes: finished runs are kept.

    python benchmarks/convert_cifar10.py --out runs/convert        # one GPU, three seeds
    python benchmarks/convert_cifar10.py --out /tmp/toy --toy      # tries the script, on digits

`--jobs 2` overlaps the start of one run with the steps of another; seconds are then longer than
those of a run alone. A toy run writes into --out alone, and its figures say nothing about CIFAR-10.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade.bench.findings import result_stem
from saccade.config import Config, load_config, with_values
from saccade.convert import convert
from saccade.environment import describe_environment, hardware_slug
from saccade.io import write_file, write_json
from saccade.runs import RunFolder
from saccade.stats import accuracy_interval, paired_difference
from saccade.train import train

RESULTS = Path(__file__).parents[1] / "results" / "convert"
VARIANTS: dict[str, dict[str, Any]] = {
    "taylor": {"attention": "taylor"},
    "taylor, keys not centered": {"attention": "taylor", "options": {"center_keys": False}},
    "taylor, 2 layers keep softmax": {"attention": "taylor", "keep_softmax": 2},
    "taylor, local": {"attention": "taylor", "local": True},
    "taylorshift": {"attention": "taylorshift"},
    "performer": {"attention": "performer"},
    "performer_relu": {"attention": "performer_relu"},
}
EQUAL, FULL, FULL_CENTERED = (
    "taylor from scratch, equal epochs",
    "taylor from scratch, full recipe",
    "taylor from scratch, full recipe, keys centered",
)
FROM_SCRATCH = (EQUAL, FULL, FULL_CENTERED)
TOY = ("train.epochs=3", "model.overrides.embed_dim=32", "model.overrides.num_heads=2")


def folder_name(variant: str) -> str:
    """A variant as the name of a folder."""
    return variant.replace(",", "").replace(" ", "-")


def correct(run: Path) -> np.ndarray[Any, Any]:
    """True for every test image that a run classifies correctly, (n,)."""
    found = RunFolder.open(run).predictions()
    return np.asarray(found["predicted"] == found["target"])


def run_one(out: Path, recipe: Config, seed: int, name: str, epochs: int) -> None:
    """Make one run of a seed: the teacher, a conversion of it, or a model from scratch."""
    place = out / f"seed-{seed}"
    target = place / folder_name(name)
    if name in VARIANTS:
        done = convert(
            place / "softmax",
            out=target,
            overrides=[f"train.epochs={epochs}"],
            seed=seed,
            resume=True,
            quiet=True,
            **VARIANTS[name],
        )
        write_json(target.with_suffix(".json"), done.record)
        return
    config = with_values(recipe, {"run.seed": seed})
    if name == EQUAL:
        config = RunFolder.open(place / "taylor").config()
    elif name in FROM_SCRATCH:
        centered = {"center_keys": True} if name == FULL_CENTERED else {}
        values = {"model.attention": "taylor", "model.attention_options": centered}
        config = with_values(config, values)
    train(config, target, resume=True, quiet=True)


def run_all(arguments: argparse.Namespace, seeds: Sequence[int]) -> bool:
    """Make every missing run in a process of its own; True if none is missing then.

    Teachers come first, then the conversions in the order of the table, then the runs from scratch.
    No run starts after the deadline.
    """
    end = time.monotonic() + arguments.deadline

    def start(seed: int, name: str) -> int:
        if time.monotonic() > end:
            return -1
        command = [sys.executable, __file__, "--out", str(arguments.out), "--one", str(seed), name]
        command += ["--epochs", str(arguments.epochs), *(["--toy"] if arguments.toy else [])]
        began = time.monotonic()
        code = subprocess.run(command, check=False).returncode
        print(f"{time.monotonic() - began:6.1f} s  seed {seed}  {name}: {code}", file=sys.stderr)
        return code

    codes: list[int] = []
    for names in (("softmax",), tuple(VARIANTS), FROM_SCRATCH):
        tasks = [(seed, name) for name in names for seed in seeds]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            codes += pool.map(lambda task: start(*task), tasks)
    return not any(codes)


def collect(out: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """A row for the teacher, every variant and both runs from scratch."""
    places = [out / f"seed-{seed}" for seed in seeds]
    base = np.stack([correct(place / "softmax") for place in places])
    rows = []
    for name in ("softmax", *VARIANTS, *FROM_SCRATCH):
        runs = [place / folder_name(name) for place in places]
        table = np.stack([correct(run) for run in runs])
        row: dict[str, Any] = {"name": name, "accuracy": asdict(accuracy_interval(table))}
        if name != "softmax":
            row["difference"] = asdict(paired_difference(table, base))
        if name in VARIANTS:
            records = [json.loads(run.with_suffix(".json").read_text()) for run in runs]
            row["zero_shot"] = [record["zero_shot_accuracy"] for record in records]
            row["kept"] = [record["softmax_blocks"] for record in records]
        summaries = [RunFolder.open(run).summary() for run in runs]
        row |= {key: [summary[key] for summary in summaries] for key in ("seconds", "epochs")}
        rows.append(row)
    return rows


def as_markdown(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """The table."""
    lines = [
        "| model | zero-shot | accuracy, 95 % interval | against softmax, points | seconds |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        shots = row.get("zero_shot")
        shot = f"{percent(statistics.mean(shots))}" if shots else ""
        change = row.get("difference")
        points = f"{interval(change, signed=True)}" if change else ""
        seconds = statistics.mean(row["seconds"])
        lines.append(
            f"| {row['name']} | {shot} | {interval(row['accuracy'])} | {points} | {seconds:.0f} |"
        )
    made = ", ".join(f"{key} {value}" for key, value in facts.items() if key != "environment")
    return "\n".join([*lines, "", f"Made by `benchmarks/convert_cifar10.py`: {made}.", ""])


def percent(share: float) -> str:
    """A share in per cent, without the sign."""
    return f"{100 * share:.2f}"


def interval(found: Mapping[str, float], *, signed: bool = False) -> str:
    """Mean, low and high."""
    mean, low, high = (
        f"{100 * found[key]:{'+' if signed else ''}.2f}" for key in ("mean", "low", "high")
    )
    return f"{mean} ({low} to {high})"


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40, help="epochs of every conversion")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--toy", action="store_true", help="digits, one seed, one epoch")
    parser.add_argument("--one", nargs=2, metavar=("SEED", "NAME"), help="make this run only")
    return parser.parse_args()


def main() -> int:
    """Run what is missing, then write the table."""
    arguments = parse()
    if not arguments.toy and not torch.cuda.is_available():
        sys.exit("convert_cifar10.py needs a GPU; --toy tries it on a CPU")
    recipe = load_config("digits-quick", TOY) if arguments.toy else load_config("vit-cifar10", [])
    epochs = 1 if arguments.toy else arguments.epochs
    if arguments.one is not None:
        seed, name = arguments.one
        run_one(arguments.out, recipe, int(seed), name, epochs)
        return 0
    seeds = range(1 if arguments.toy else arguments.seeds)
    if not run_all(arguments, seeds):
        print("runs are missing: the same command continues", file=sys.stderr)
        return 1
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    facts = {
        "seeds": len(seeds),
        "epochs": epochs,
        "jobs": arguments.jobs,
        "data": recipe.data.name,
    }
    rows = collect(arguments.out, seeds)
    folder = arguments.out if arguments.toy else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    theme = "toy_digits" if arguments.toy else "convert_cifar10"
    stem = result_stem(folder, theme, hardware_slug(device), complete=True)
    content = {**facts, "environment": describe_environment(device), "rows": rows}
    write_json(stem.with_suffix(".json"), content)
    write_file(stem.with_suffix(".md"), as_markdown(rows, facts))
    print(stem.with_suffix(".md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
