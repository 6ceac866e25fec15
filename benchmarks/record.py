"""The record on CIFAR-10: candidates one after another, on a clock that counts everything.

    python benchmarks/record.py benchmarks/record.yaml --work runs/record
    python benchmarks/record.py benchmarks/record.yaml --work runs/record --only first --seeds 0
    python benchmarks/record.py benchmarks/record.yaml --work runs/record --draw results/record

Each candidate is a recipe with overrides. It is trained by `saccade train` in a process of its own,
whose life is timed from outside: start, compilation, validation in every epoch, checkpoints and the
final test count. Finished candidates are skipped, and a killed one resumes; `seconds.json` in its
folder adds up the lives of its processes. `--draw` writes accuracy over seconds as a table and a
figure, from the metrics of the runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from saccade.explain.sheet import SMALL, TITLE, Sheet, save
from saccade.io import read_json, read_yaml, write_json
from saccade.plotting import MUTED
from saccade.runs import RunFolder

AT = (15, 60, 120, 300, 600)
"""Seconds at which the table shows who is ahead."""


def candidates(path: Path) -> dict[str, dict[str, Any]]:
    """The candidates of a YAML file: `recipe` and `set`, by name; `common` is set for all."""
    values = read_yaml(path)
    common = values.get("common", {})
    return {
        name: {"recipe": row["recipe"], "set": {**common, **row.get("set", {})}}
        for name, row in values["candidates"].items()
    }


def run(name: str, candidate: dict[str, Any], seed: int, work: Path) -> None:
    """Train a candidate with one seed, or go on with it; record the life of the process."""
    out = work / f"{name}_{seed}"
    folder = RunFolder(out)
    if folder.exists() and folder.is_finished():
        return
    changes = [f"{key}={json.dumps(value)}" for key, value in candidate["set"].items()]
    command = [sys.executable, "-m", "saccade", "train", candidate["recipe"], *changes]
    command += [f"run.seed={seed}", "--out", str(out), "--resume", "--quiet", "--json"]
    clock = work / f"{name}_{seed}.clock.json"
    before = read_json(clock) if clock.exists() else []
    start, wall = time.perf_counter(), time.time()
    process = subprocess.Popen(command)
    try:
        while process.poll() is None:
            time.sleep(1)
            life = {"start": wall, "seconds": time.perf_counter() - start}
            write_json(clock, [*before, life])  # kept if this process is killed too
    finally:
        process.terminate()
        process.wait()
    if process.returncode:
        raise SystemExit(f"{name}_{seed} ended with exit code {process.returncode}")
    write_json(clock, [*before, {"start": wall, "seconds": time.perf_counter() - start}])


def timeline(name: str, seed: int, work: Path) -> dict[str, Any] | None:
    """Validation accuracy over seconds, and the test accuracy at the end; None if unfinished.

    Epochs do not record when they ended. They take the same time but for the first, which compiles:
    what the clock has beyond the epochs' own seconds is counted before the first epoch.
    """
    folder = RunFolder(work / f"{name}_{seed}")
    if not (folder.exists() and folder.is_finished()):
        return None
    total = sum(life["seconds"] for life in read_json(work / f"{name}_{seed}.clock.json"))
    epochs = folder.metrics("epoch")
    rest = total - sum(row["seconds"] for row in epochs)
    seconds, rows = rest, []
    for row in epochs:
        seconds += row["seconds"]
        rows.append({"seconds": seconds, "val_accuracy": row["val_accuracy"]})
    summary = folder.summary()
    kept = ("test_accuracy", "parameters", "epochs", "attention", "seed")
    return {"name": name, "seconds": total, "rows": rows, **{key: summary[key] for key in kept}}


def table(lines: list[dict[str, Any]]) -> str:
    """Validation accuracy at some seconds, and the test accuracy."""
    heads = [f"{at} s" for at in AT]
    out = [f"| candidate | seed | {' | '.join(heads)} | wall clock | test |"]
    out.append("|" + "---|" * (len(heads) + 4))
    for line in lines:
        cells = []
        for at in AT:
            done = [row for row in line["rows"] if row["seconds"] <= at]
            cells.append(f"{100 * done[-1]['val_accuracy']:.2f} %" if done else "")
        end = f"{line['seconds']:.0f} s | {100 * line['test_accuracy']:.2f} %"
        out.append(f"| `{line['name']}` | {line['seed']} | {' | '.join(cells)} | {end} |")
    return "\n".join(out) + "\n"


def draw(lines: list[dict[str, Any]]) -> Sheet:
    """Validation accuracy over seconds; a color for each candidate, a line for each seed."""
    sheet = Sheet(6.4, 4.2)
    sheet.words("CIFAR-10 from scratch", 0.5, 0.36, size=TITLE, bold=True)
    told = "validation accuracy over seconds of wall clock, everything counted; dots: test"
    sheet.words(told, 0.5, 0.58, color=MUTED)
    axes = sheet.axes(0.6, 0.8, 5.5, 2.9)
    names = list(dict.fromkeys(line["name"] for line in lines))
    for line in lines:
        color = f"C{names.index(line['name'])}"
        first = line is next(other for other in lines if other["name"] == line["name"])
        seconds = [row["seconds"] for row in line["rows"]]
        values = [100 * row["val_accuracy"] for row in line["rows"]]
        axes.plot(
            seconds, values, color=color, linewidth=0.9, label=line["name"] if first else None
        )
        axes.plot(line["seconds"], 100 * line["test_accuracy"], "o", color=color, markersize=4)
    axes.set_ylim(85, 99)
    axes.set_xlabel("seconds", fontsize=SMALL + 0.5)
    axes.set_ylabel("accuracy in %", fontsize=SMALL + 0.5)
    axes.tick_params(labelsize=SMALL + 0.5)
    axes.legend(fontsize=SMALL, frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    return sheet


def main() -> None:
    """Train what is missing, or draw what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("candidates", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="names of candidates; default: all")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--draw", type=Path, help="folder for table and figure; trains nothing")
    given = parser.parse_args()
    chosen = candidates(given.candidates)
    chosen = {name: chosen[name] for name in given.only or chosen}
    given.work.mkdir(parents=True, exist_ok=True)
    if given.draw is None:
        for seed in given.seeds:
            for name, candidate in chosen.items():
                run(name, candidate, seed, given.work)
        return
    found = [timeline(name, seed, given.work) for name in chosen for seed in given.seeds]
    lines = [line for line in found if line is not None]
    given.draw.mkdir(parents=True, exist_ok=True)
    write_json(given.draw / "record.json", lines)
    (given.draw / "record.md").write_text(table(lines))
    save(partial(draw, lines), given.draw / "record")
    print(table(lines))


if __name__ == "__main__":
    main()
