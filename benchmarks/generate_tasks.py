"""Items per second of the generators of long sequences, in one process and in two.

Besides the wall time, CPU time is measured: on a busy machine only items per CPU second are
meaningful.

python benchmarks/generate_tasks.py                   # writes results/long_sequences
python benchmarks/generate_tasks.py --out /tmp/toy --items 256
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from functools import partial
from pathlib import Path

import torch

from saccade.bench.findings import result_stem
from saccade.data.listops import listops
from saccade.data.pathfinder import SETTINGS, pathfinder
from saccade.data.randomness import part_key
from saccade.data.recall import recall
from saccade.data.sequence_sets import Make, make_items
from saccade.environment import describe_environment, hardware_slug
from saccade.io import write_file, write_json

RESULTS = Path(__file__).parents[1] / "results" / "long_sequences"
KEY = part_key(0, "train")
SIZES = {"num_pairs": 16, "num_keys": 64, "num_values": 16, "length": 33}
TASKS: dict[str, tuple[Make, float]] = {
    "listops_lra": (partial(listops, "lra", KEY), 1.0),
    "listops_taylorshift": (partial(listops, "taylorshift", KEY), 1.0),
    "pathfinder 32": (partial(pathfinder, KEY, settings=SETTINGS[32]), 2.0),
    "pathfinder 128": (partial(pathfinder, KEY, settings=SETTINGS[128]), 0.5),
    "recall": (partial(recall, KEY, **SIZES), 8.0),
}
"""Generators, and how many times --items are made, so that all take seconds."""


def processor_time() -> float:
    """Seconds that this process and its ended children have computed."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def rates(make: Make, count: int, workers: int, repeats: int) -> dict[str, list[float]]:
    """Items a second and a processor second of several calls, the first not counted."""
    found: dict[str, list[float]] = {"items_per_s": [], "items_per_cpu_s": []}
    for _ in range(repeats + 1):
        start, used = time.perf_counter(), processor_time()
        make_items(make, count, workers)
        found["items_per_s"].append(count / (time.perf_counter() - start))
        found["items_per_cpu_s"].append(count / (processor_time() - used))
    return {name: values[1:] for name, values in found.items()}


def main() -> None:
    """Measure all tasks and write JSON and a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--items", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    rows = {}
    for name, (make, factor) in TASKS.items():
        count = int(asked.items * factor)
        rows[name] = {
            f"processes_{max(1, workers)}": rates(make, count, workers, asked.repeats)
            for workers in (0, 2)
        }
        print(name, rows[name], flush=True)
    device = torch.device("cpu")
    asked.out.mkdir(parents=True, exist_ok=True)
    stem = result_stem(asked.out, "generate_tasks", hardware_slug(device), complete=True)
    here = describe_environment(device)
    write_json(stem.with_suffix(".json"), {"environment": here, "rows": rows})
    lines = ["# Items a second of the generators", "", "Median of the repeats (lowest to highest)."]
    lines += [f"Load of the machine in the last minute: {os.getloadavg()[0]:.0f}.", ""]
    lines += ["| task | a second, one process | a second, two | a processor second, one |"]
    lines += ["|---|---|---|---|"]
    for name, found in rows.items():
        one, two = found["processes_1"], found["processes_2"]
        cells = map(_cell, (one["items_per_s"], two["items_per_s"], one["items_per_cpu_s"]))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    write_file(stem.with_suffix(".md"), "\n".join(lines) + "\n")


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


if __name__ == "__main__":
    main()
