"""The title of a report and the facts below its headline."""

from __future__ import annotations

from saccade.report.collect import Evidence, plain
from saccade.report.findings import Findings
from saccade.report.text import count, listed, spelled

__all__ = ["facts_of", "title_of"]


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
        ("training time", _duration(seconds)),
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


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
