"""Attentions compared on long sequences, or on CIFAR-10, within a budget of minutes and resumable.

Every task is one `saccade compare`, in a process of its own that is asked to stop when the minutes
are over. Sets are generated where it runs. `--pack` writes all folders into archives of at most
15 MiB: all files of finished runs but their checkpoints, and the checkpoints of unfinished runs as
far as there is room. `--restore` unpacks them, so that the next call goes on elsewhere.

    python benchmarks/long_sequences.py --out /tmp/long --minutes 9 --tune 3 --pack $OUT
    python benchmarks/long_sequences.py --out /tmp/long --minutes 9 --pack $OUT --restore a.tar.gz
    python benchmarks/long_sequences.py --out /tmp/long --collect        # writes the table
    python benchmarks/long_sequences.py --out /tmp/toy --toy --collect   # tries the script
    python benchmarks/long_sequences.py --preset cifar10 --out runs/cifar10-all --minutes 500

The learning rates of the recipes are not tuned. Try them with one seed of softmax first:

    python benchmarks/long_sequences.py --out /tmp/first --attentions softmax --seeds 1 --minutes 5

`--set KEY=VALUE` changes all tasks, such as a depthwise convolution on the values; give such a
study its own --out and --name. A toy run writes into --out alone, and its figures say nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from saccade.bench.findings import result_stem
from saccade.environment import describe_environment, hardware_slug
from saccade.io import write_file, write_json
from saccade.layers.attentions import list_attentions
from saccade.runs import RunFolder

RESULTS = Path(__file__).parents[1] / "results" / "long_sequences"
FIRST = ("softmax", "taylor", "taylorshift", "performer", "performer_relu")
NEW = ("linformer", "nystrom", "relu_linear", "mala", "inline", "agent", "rfa", "reformer", "eva")
PART_BYTES = 15 << 20
MAX_PARTS = 7
GRACE_S = 45  # for the last step, its checkpoint and the end of the workers


@dataclass(frozen=True)
class Task:
    """A recipe with the overrides that fit it into the budget, and those of a toy run."""

    recipe: str
    overrides: tuple[str, ...] = ()
    toy: tuple[str, ...] = ()


_TOY_MODEL = ("model.overrides.embed_dim=16", "model.overrides.mlp_hidden_dim=16")
_TOY_RUN = ("train.epochs=1", "train.batch_size=32", "train.precision=fp32", "data.workers=0")
_TOY = (*_TOY_MODEL, *_TOY_RUN)
SEQUENCES = {
    "recall": Task(
        "recall",
        ("train.epochs=10",),
        ("data.num_train=200", "data.num_test=50", "data.options.num_pairs=4", *_TOY),
    ),
    "listops_lra": Task(
        "listops-lra",
        ("train.epochs=2", "train.batch_size=64"),
        ("data.num_train=70", "data.num_test=10", "data.val_fraction=0.1", *_TOY),
    ),
    "pathfinder32": Task(
        "pathfinder32",
        ("train.epochs=2", "train.batch_size=128"),
        ("data.num_train=70", "data.num_test=10", *_TOY),
    ),
    "cifar10_pixel": Task(
        "cifar10-pixel",
        ("train.epochs=8", "train.batch_size=128"),
        ("data.num_train=70", "data.num_test=20", *_TOY),
    ),
}
CIFAR10 = {
    "vit_cifar10": Task(
        "vit-cifar10",
        ("train.epochs=100",),
        (
            "data.name=digits",
            "train.epochs=1",
            "train.compile=false",
            "train.precision=fp32",
            "model.overrides.embed_dim=32",
            "model.overrides.num_heads=2",
            "model.overrides.depth=1",
            "augment.crop_padding=1",
            "data.num_train=200",
            "data.num_test=50",
            "train.batch_size=32",
        ),
    ),
}
PRESETS = {"sequences": SEQUENCES, "cifar10": CIFAR10}


def main(words: Sequence[str] | None = None) -> int:
    """Run the tasks that fit into the minutes; pack and collect what there is."""
    asked = _parse(words)
    tasks = {name: PRESETS[asked.preset][name] for name in asked.tasks or PRESETS[asked.preset]}
    asked.out.mkdir(parents=True, exist_ok=True)
    for archive in asked.restore:
        with tarfile.open(archive) as file:
            file.extractall(asked.out, filter="data")
    deadline = time.monotonic() + 60 * asked.minutes
    codes = {}
    for number, (name, task) in enumerate(tasks.items()):
        left = deadline - time.monotonic()
        share = left / (len(tasks) - number) if asked.share else left
        if not asked.collect_only and share > GRACE_S:
            codes[name] = compare(name, task, asked, share)
    if asked.pack is not None:
        pack(asked.out, list(tasks), asked.pack, asked.name)
    if asked.collect or asked.collect_only:
        for file in collect(asked, list(tasks)):
            print(f"wrote {file}")
    print(json.dumps({"exit codes": codes}))
    return max((code for code in codes.values() if code not in (0, 75)), default=0)


def compare(name: str, task: Task, asked: argparse.Namespace, seconds: float) -> int:
    """Run or resume the comparison of a task for so long; return its exit code, 75 if stopped."""
    out = asked.out / name
    command = [sys.executable, "-m", "saccade", "compare", task.recipe, *task.overrides]
    command += [*(task.toy if asked.toy else ()), *asked.set]
    command += ["--attention", ",".join(asked.attentions), "--seeds", str(asked.seeds)]
    command += ["--jobs", str(asked.jobs), "--out", str(out), "--resume"]
    command += ["--tune", str(asked.tune)] if asked.tune else []
    print(f"{name}: {' '.join(command[3:])}", flush=True)
    with (asked.out / f"{name}.log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            code = process.wait(timeout=max(1.0, seconds - GRACE_S))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
    print(f"{name}: exit code {code}", flush=True)
    return code


def pack(out: Path, names: Iterable[str], folder: Path, stem: str) -> None:
    """Write the folders of the tasks into archives NAME_0.tar.gz, ... of at most 15 MiB."""
    folder.mkdir(parents=True, exist_ok=True)
    first, later = [], []
    for name in names:
        for path in sorted((out / name).rglob("*")):
            if path.is_file():
                if "checkpoints" not in path.parts:
                    first.append(path)
                elif not RunFolder(path.parents[2]).is_finished():  # RUN/checkpoints/STEP/FILE
                    later.append(path)
    first += sorted(out.glob("*.log"))
    archive, part = _Archive(folder / f"{stem}_0.tar.gz"), 0
    for path in [*first, *later]:
        if archive.size + path.stat().st_size > PART_BYTES:
            archive.close()
            part += 1
            if part == MAX_PARTS:
                print(f"no room for {path} and what follows")
                return
            archive = _Archive(folder / f"{stem}_{part}.tar.gz")
        archive.add(path, str(path.relative_to(out)))
    archive.close()


class _Archive:
    """An archive that is written when it is closed."""

    def __init__(self, path: Path) -> None:
        self.path, self.size, self._content = path, 0, io.BytesIO()
        self._file = tarfile.open(fileobj=self._content, mode="w:gz")  # noqa: SIM115

    def add(self, path: Path, name: str) -> None:
        """Add a file; the size is at least that of the archive so far."""
        before = self._content.tell()
        self._file.add(path, name)
        # The stream lags behind, so at most the size of the file is added.
        self.size += max(self._content.tell() - before, min(path.stat().st_size, 4096))

    def close(self) -> None:
        """Write the archive."""
        self._file.close()
        write_file(self.path, self._content.getvalue())


def collect(asked: argparse.Namespace, names: Iterable[str]) -> list[Path]:
    """Write the results of all tasks as JSON and one table."""
    found: dict[str, Any] = {}
    for name in names:
        path = asked.out / name / "results.json"
        if path.is_file():
            found[name] = json.loads(path.read_text())
    complete = bool(found) and all(results["complete"] for results in found.values())
    folder = asked.out if asked.toy else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    here = describe_environment(device)
    stem = result_stem(folder, asked.name, hardware_slug(device), complete=complete)
    values = {"preset": asked.preset, "environment": here, "set": asked.set, "tasks": found}
    write_json(stem.with_suffix(".json"), values)
    write_file(stem.with_suffix(".md"), table(found, asked))
    return [stem.with_suffix(".json"), stem.with_suffix(".md")]


def table(found: dict[str, Any], asked: argparse.Namespace) -> str:
    """Test accuracy with its interval, by attention and task, in Markdown."""
    names = list(found)
    lines = [f"# {asked.preset}: test accuracy in %, 95 % interval, seeds", ""]
    if asked.set:
        lines += [f"All tasks with {', '.join(asked.set)}.", ""]
    lines += [f"| attention | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    rows = {name: {row["attention"]: row for row in found[name]["rows"]} for name in names}
    for attention in dict.fromkeys(a for name in names for a in rows[name]):
        cells = [_cell(rows[name].get(attention)) for name in names]
        lines.append(f"| `{attention}` | {' | '.join(cells)} |")
    for name in names:
        lines += ["", f"{name}: {'; '.join(found[name]['notes']) or 'no notes'}."]
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any] | None) -> str:
    if row is None or row["accuracy"] is None:
        return "-"
    low, high = 100 * row["accuracy_low"], 100 * row["accuracy_high"]
    return f"{100 * row['accuracy']:.1f} ({low:.1f} to {high:.1f}), {row['runs']}"


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    known = list_attentions()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, default="sequences")
    parser.add_argument("--out", type=Path, required=True, help="folder of the comparisons")
    parser.add_argument("--tasks", nargs="*", help="some tasks of the preset; default: all")
    default = [name for name in (*FIRST, *NEW) if name in known]
    parser.add_argument("--attentions", nargs="*", default=default)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tune", type=int, default=0, help="trials of each attention; 0: none")
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--share", action="store_true", help="divide the minutes among the tasks")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--name", default="long_sequences", help="name of the result files")
    parser.add_argument("--pack", type=Path, help="folder for archives of all that was done")
    parser.add_argument("--restore", type=Path, nargs="*", default=[], help="archives to go on")
    parser.add_argument("--collect", action="store_true", help="write the table at the end")
    parser.add_argument("--collect-only", action="store_true", help="only write the table")
    parser.add_argument("--toy", action="store_true", help="tiny sizes, to try the script")
    asked = parser.parse_args(words)
    if unknown := sorted(set(asked.tasks or ()) - set(PRESETS[asked.preset])):
        parser.error(f"--tasks must be of {', '.join(PRESETS[asked.preset])}, got {unknown[0]}")
    if unknown := sorted(set(asked.attentions) - set(known)):
        parser.error(f"--attentions must be of {', '.join(known)}, got {unknown[0]}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
