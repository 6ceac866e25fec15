"""Conversions of the softmax `vit-cifar10`: zero-shot, recovered, and from scratch, in one table.

For every seed the teacher is trained by its recipe, then converted by every row of `VARIANTS`
within the budget. `taylor` is also trained from scratch, for the epochs of its conversion and for
those of the recipe. Everything resumes: finished runs are kept.

    python benchmarks/convert_cifar10.py --out runs/convert        # one GPU, three seeds
    python benchmarks/convert_cifar10.py --out /tmp/toy --toy      # tries the script, on digits

A toy run writes into --out alone, and its figures say nothing about CIFAR-10.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade.bench.output import result_stem
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
FROM_SCRATCH = ("taylor from scratch, equal epochs", "taylor from scratch, full recipe")
TOY = ("train.epochs=3", "model.overrides.embed_dim=32", "model.overrides.num_heads=2")


def folder_name(variant: str) -> str:
    """A variant as the name of a folder."""
    return variant.replace(",", "").replace(" ", "-")


def correct(run: Path) -> np.ndarray[Any, Any]:
    """True for every test image that a run classifies correctly, (n,)."""
    found = RunFolder.open(run).predictions()
    return np.asarray(found["predicted"] == found["target"])


def run_seed(out: Path, recipe: Config, seed: int, minutes: float, toy: bool) -> None:
    """Train the teacher of a seed, convert it by every variant, and train from scratch."""
    place = out / f"seed-{seed}"
    train(with_values(recipe, {"run.seed": seed}), place / "softmax", resume=True)
    shorter = ["train.epochs=1"] if toy else []
    for variant, settings in VARIANTS.items():
        done = convert(
            place / "softmax",
            out=place / folder_name(variant),
            minutes=minutes,
            overrides=shorter,
            seed=seed,
            resume=True,
            **settings,
        )
        write_json(place / f"{folder_name(variant)}.json", done.record)
    converted = RunFolder.open(place / "taylor").config()
    train(converted, place / folder_name(FROM_SCRATCH[0]), resume=True)
    changes = {"run.seed": seed, "model.attention": "taylor"}
    train(with_values(recipe, changes), place / folder_name(FROM_SCRATCH[1]), resume=True)


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


def main() -> int:
    """Run what is missing, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=2.0, help="budget of a conversion")
    parser.add_argument("--toy", action="store_true", help="digits, one seed, one epoch")
    arguments = parser.parse_args()
    if not arguments.toy and not torch.cuda.is_available():
        sys.exit("convert_cifar10.py needs a GPU; --toy tries it on a CPU")
    recipe = load_config("digits-quick", TOY) if arguments.toy else load_config("vit-cifar10", [])
    seeds = range(1 if arguments.toy else arguments.seeds)
    for seed in seeds:
        run_seed(arguments.out, recipe, seed, arguments.minutes, arguments.toy)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    facts = {"seeds": len(seeds), "minutes": arguments.minutes, "data": recipe.data.name}
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
