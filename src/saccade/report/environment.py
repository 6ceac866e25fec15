"""Tables of hardware, versions, seeds, commands and configuration of the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from saccade.report.collect import Run, plain
from saccade.report.groups import Group, settings_of
from saccade.report.labels import shown
from saccade.report.page import Cell, Column, Table

__all__ = ["differences_table", "environment_table", "shared_configuration"]

MAX_LISTED = 3
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
            rows.append([Cell(name, name), Cell(told, told)])
    columns = (Column("what", "what", is_number=False), Column("value", "value", is_number=False))
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
    columns = [Column("what", "what", is_number=False)]
    columns += [Column(name, name, is_number=False) for name in across]
    rows = [[Cell(name, name), *row] for name, row in zip(down, values, strict=True)]
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
