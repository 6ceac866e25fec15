"""Tables of hardware, versions, seeds, commands and configuration of the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from saccade.report.collect import Evidence, Run, plain
from saccade.report.findings import Findings
from saccade.report.groups import Group, settings_of, shown
from saccade.report.page import Cell, Column, Table, text_cell, text_column
from saccade.report.text import count, duration, listed, spelled

__all__ = [
    "differences_table",
    "environment_table",
    "facts_of",
    "shared_configuration",
    "skipped_table",
    "title_of",
]

MAX_LISTED = 3
SPLITS = {"train": "training", "val": "validation", "test": "test"}
VARIED = {"model": {"attention"}, "run": {"seed"}}


def environment_table(runs: Sequence[Run]) -> Table:
    """One row for each fact; different values of the runs are listed in one cell."""
    facts: dict[str, Callable[[Run], object]] = {
        "device": lambda run: run.environment.get("device"),
        "processes": lambda run: run.environment.get("world_size"),
        "CPU cores": lambda run: run.environment.get("cpu_count"),
        "torch threads": lambda run: run.environment.get("torch_threads"),
        "platform": lambda run: run.environment.get("platform"),
        "saccade": lambda run: run.environment.get("saccade"),
        "git revision": lambda run: _revision(run.environment),
        "Python": lambda run: run.environment.get("python"),
        "CUDA": lambda run: run.environment.get("cuda"),
        "packages": lambda run: _packages(run.environment),
        "seeds": lambda run: run.config.run.seed,
        "started": lambda run: run.environment.get("time"),
        "command": lambda run: _command(run.environment),
    }
    rows = []
    for name, fact in facts.items():
        values = {plain(value): None for run in runs if (value := fact(run)) not in (None, "")}
        if values:
            told = _span(list(values)) if name == "started" else _listed(list(values), name)
            rows.append([text_cell(name), text_cell(told)])
    columns = (text_column("what", "what"), text_column("value", "value"))
    return Table("environment", "Environment", columns, rows)


def _span(values: Sequence[str]) -> str:
    first, last = min(values), max(values)
    return first if first == last else f"{first} to {last}"


def _listed(values: Sequence[str], name: str) -> str:
    """Distinct values, with numbers sorted; a long list of commands is cut."""
    if name == "command" and len(values) > MAX_LISTED:
        return " ; ".join(values[:MAX_LISTED]) + f" ; and {len(values) - MAX_LISTED} more"
    whole = all(value.isdigit() for value in values)
    return ", ".join(sorted(values, key=int) if whole else values)


def _packages(environment: Mapping[str, Any]) -> str:
    packages = environment.get("packages")
    known = packages.items() if isinstance(packages, Mapping) else ()
    return ", ".join(f"{name} {version}" for name, version in known if version)


def _revision(environment: Mapping[str, Any]) -> str:
    """The shortened commit; `+` marks uncommitted changes."""
    full = plain(environment.get("git_revision") or "")
    return full[:12] + ("+" if full.endswith("+") else "")


def _command(environment: Mapping[str, Any]) -> str:
    words = environment.get("command")
    return " ".join(map(str, words)) if isinstance(words, list) else ""


def differences_table(groups: Sequence[Group], keys: Sequence[str]) -> Table:
    """The value of each key in each group; the longer of the two lists forms the rows."""
    settings = [settings_of(group.runs[0]) for group in groups]
    labels = [group.label for group in groups]
    values = [[_value(own.get(key)) for own in settings] for key in keys]
    across, down = labels, keys
    if len(labels) > len(keys):
        across, down, values = list(keys), labels, [list(row) for row in zip(*values, strict=True)]
    columns = [text_column("what", "what")]
    columns += [text_column(name, name) for name in across]
    rows = [[text_cell(name), *row] for name, row in zip(down, values, strict=True)]
    return Table("differences", "What the runs differ in", columns, rows)


def _value(value: object) -> Cell:
    """A cell with a short text and the full value."""
    return Cell(shown(value), value if isinstance(value, int | float) else plain(value))


def shared_configuration(runs: Sequence[Run]) -> str:
    """The settings that all runs share, as YAML, without attention and seed."""
    dumps = [run.config.model_dump(mode="json") for run in runs]
    shared: dict[str, Any] = {}
    for section, values in dumps[0].items():
        if not isinstance(values, dict):
            continue
        agreed = {
            key: value
            for key, value in values.items()
            if key not in VARIED.get(section, ())
            and all(dump.get(section, {}).get(key) == value for dump in dumps)
        }
        if agreed and section not in ("search", "tune"):
            shared[section] = agreed
    return yaml.safe_dump(shared, sort_keys=False, allow_unicode=True)


def title_of(found: Findings, dataset: str) -> str:
    """The title: number of attentions or set-ups, and the data set."""
    attentions = {group.attention for group in found.groups}
    missing = len(found.failed) + len(found.unfinished)
    if missing:
        total = spelled(len(attentions) + missing).lower()
        return f"{spelled(len(attentions))} of {total} attentions on {dataset}"
    if len(attentions) > 1:
        return f"{spelled(len(attentions))} attentions on {dataset}"
    only = f"{attentions.pop()} on {dataset}"
    several = len(found.groups) > 1
    return f"{spelled(len(found.groups))} set-ups of {only}" if several else only


def facts_of(evidence: Evidence, found: Findings, dataset: str) -> list[tuple[str, str]]:
    """Short names and values shown below the headline."""
    runs = evidence.runs
    models = sorted({plain(run.summary.get("model", run.config.model.name)) for run in runs})
    epochs = sorted({run.config.train.epochs for run in runs})
    seconds = sum(run.measured("seconds") or 0.0 for run in runs)
    hardware = sorted({plain(run.environment.get("device", "?")) for run in runs})
    facts = [
        ("data", dataset + _images(found)),
        ("model", listed(models)),
        ("runs", f"{len(runs)} with {count(len({run.config.run.seed for run in runs}), 'seed')}"),
        *([("tuned runs", str(len(evidence.tuned.runs)))] if evidence.tuned else []),
        ("epochs", listed([str(number) for number in epochs])),
        ("device", listed(hardware)),
        ("training time", duration(seconds)),
    ]
    recipe = evidence.study.get("recipe")
    gaps = len(evidence.left_out)
    return [
        *([("recipe", plain(recipe))] if recipe else []),
        *facts,
        *([("left out", f"{gaps}, listed at the end")] if gaps else []),
    ]


def _images(found: Findings) -> str:
    """The number of test images that were used and that could not be read."""
    if not found.images:
        return ""
    skipped = f", {found.skipped:,} could not be read" if found.skipped else ""
    return f", {count(found.images, found.noun)} judged{skipped}"


def skipped_table(runs: Sequence[Run]) -> Table | None:
    """Each skipped image and the number of runs that skipped it; None without skipped images."""
    found = Counter(image for run in runs for image in _skipped(run))
    if not found:
        return None
    nouns = {run.noun for run in runs}
    noun = nouns.pop() if len(nouns) == 1 else "input"
    columns = (
        text_column("split", "split"),
        text_column("image", f"{noun} that could not be read"),
        Column("runs", "runs"),
    )
    rows = [
        [text_cell(split), text_cell(fault), Cell(str(times), times)]
        for (split, fault), times in sorted(found.items())
    ]
    note = (
        f"Skipped {noun}s count in no loss and no accuracy. The first 20 of each split of a run "
        "are listed."
    )
    return Table("skipped", f"Skipped {noun}s", columns, rows, note, folded=True)


def _skipped(run: Run) -> Iterator[tuple[str, str]]:
    """Split and error of each listed image, without the path of the data folder."""
    noted = run.summary.get("skipped_images")
    root = "" if run.config.data.root is None else f"{run.config.data.root}/"
    for split, part in noted.items() if isinstance(noted, dict) else ():
        faults = part.get("faults") if isinstance(part, dict) else None
        for fault in faults if isinstance(faults, list) else ():
            told = plain(fault).removeprefix("bad image ")
            yield SPLITS.get(plain(split), plain(split)), told.removeprefix(root)
