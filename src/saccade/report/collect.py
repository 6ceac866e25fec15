"""What a folder holds: its finished runs, the study they belong to, and what had to be left out.

Everything read here was written by someone else. Text loses its control characters, numbers must be
finite, and a run whose files do not fit together is left out with the reason.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saccade.config import Config
from saccade.errors import ConfigError
from saccade.overlap import trained_together
from saccade.runs import RunFolder, find_runs

__all__ = ["Evidence", "LeftOut", "Predictions", "Run", "collect", "number", "plain"]

NEWEST_READABLE = 1
METRICS = "metrics.jsonl"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]+")
UNFINISHED = {
    "running": "not finished: running, or killed",
    "preempted": "not finished: preempted, can be resumed",
    "failed": "failed",
    "stopped": "stopped early",
}


@dataclass(frozen=True)
class LeftOut:
    """Something that is not in the report."""

    what: str
    reason: str

    @property
    def is_failure(self) -> bool:
        """Whether it is a run that failed, rather than one that is not done yet."""
        return self.reason.startswith(UNFINISHED["failed"])


@dataclass(frozen=True)
class Predictions:
    """What a run said of each test image, in the order of the data set."""

    target: NDArray[Any]
    predicted: NDArray[Any]
    confidence: NDArray[Any]


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        dataset: What its data are called; the same for runs whose accuracies compare.
    """

    name: str
    dataset: str
    config: Config
    summary: Mapping[str, Any]
    epochs: list[Mapping[str, Any]]
    environment: Mapping[str, Any]
    class_names: tuple[str, ...]
    predictions: Predictions | None

    @property
    def attention(self) -> str:
        """The attention it was trained with."""
        return plain(self.summary.get("attention") or self.config.model.attention or "?")

    def measured(self, key: str) -> float | None:
        """A number of the summary."""
        return number(self.summary.get(key))

    @property
    def replicate(self) -> tuple[int, int]:
        """Seed and fold, which are the same in runs that can be paired."""
        return self.config.run.seed, self.config.data.fold or 0


@dataclass(frozen=True)
class Evidence:
    """Everything that a report is made from.

    Attributes:
        together: Whether runs trained at the same time, those that are left out included.
    """

    runs: list[Run]
    left_out: list[LeftOut]
    study: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    together: bool = False


def plain(value: object, longest: int = 300) -> str:
    """A stranger's value as one line of printable text."""
    text = _CONTROL.sub(" ", str(value)).strip()
    return text if len(text) <= longest else text[: longest - 1] + "…"


def number(value: object) -> float | None:
    """The value where it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None


def collect(folder: Path) -> Evidence:
    """Read every run at or below a folder.

    Raises:
        ConfigError: There is no such folder, no run in it, or none that is finished.
    """
    if not folder.is_dir():
        raise ConfigError(f"no such folder: {str(folder)!r}")
    found = find_runs(folder)
    if not found:
        raise ConfigError(f"{str(folder)!r} holds no run folder: no config.yaml at or below it")
    runs: list[Run] = []
    left_out: list[LeftOut] = []
    study = _read_record(folder / "study.json", left_out)
    results = _read_record(folder / "results.json", left_out)
    for run_folder in found:
        name = _name(run_folder.path, folder)
        try:
            run = _read_run(run_folder, name)
            runs.append(run)
            left_out += _lost_epochs(run, run_folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            left_out.append(LeftOut(name, plain(_reason(error, run_folder.path, name))))
    if not runs:
        first = left_out[-len(found)]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ConfigError(
            f"{str(folder)!r} holds no finished run: {first.what}: {first.reason}{more}"
        )
    runs = _with_data_apart(_comparable(runs, left_out))
    left_out += _not_started(folder, study)
    left_out += _left_out_by_study(results, {run.name for run in runs}, left_out)
    gaps = sorted(left_out, key=lambda gap: gap.what)
    return Evidence(runs, gaps, study, results, trained_together(found))


def _comparable(runs: list[Run], left_out: list[LeftOut]) -> list[Run]:
    """The runs that were tested, where some were; those that were only validated are left out."""
    tested = [run for run in runs if run.measured("test_accuracy") is not None]
    if not tested:
        return runs
    untested = [run.name for run in runs if run.measured("test_accuracy") is None]
    left_out += [LeftOut(name, "has no test accuracy, unlike the others") for name in untested]
    return tested


def _with_data_apart(runs: list[Run]) -> list[Run]:
    """The runs, those on data of one name and different classes told apart.

    Data of one name with the same classes are one set, wherever they lie. Others, such as two
    folders of images, are called by the folder that they were read from as well.
    """
    firsts = {(run.dataset, run.class_names): run for run in reversed(runs) if run.class_names}
    sharing = Counter(name for name, _ in firsts)
    names: dict[tuple[str, tuple[str, ...]], str] = {}
    for key, run in sorted(firsts.items(), key=lambda item: item[0]):
        root = run.config.data.root
        also = f" {plain(root.name, 40)}" if root is not None and sharing[run.dataset] > 1 else ""
        name = f"{run.dataset}{also}"
        taken = sum(own == name or own.startswith(f"{name} #") for own in names.values())
        names[key] = f"{name} #{taken + 1}" if taken else name
    return [
        replace(run, dataset=names.get((run.dataset, run.class_names), run.dataset)) for run in runs
    ]


def _name(path: Path, folder: Path) -> str:
    """The run's path below the folder, without the `runs/` of a study."""
    name = path.relative_to(folder).as_posix().removeprefix("runs/")
    return plain(path.resolve().name if name == "." else name)


def _reason(error: Exception, path: Path, name: str) -> str:
    """The error in a reader's words, without the path of the machine it was read on."""
    told = str(error).replace(str(path), name)
    return told if isinstance(error, ConfigError) else f"{type(error).__name__}: {told}"


def _read_record(path: Path, left_out: list[LeftOut]) -> dict[str, Any]:
    """A study's JSON file; an unreadable or newer one is noted and does without."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        left_out.append(LeftOut(path.name, plain(f"cannot be read: {error}")))
        return {}
    version = number(values.get("version")) if isinstance(values, dict) else None
    if version is None:
        left_out.append(LeftOut(path.name, "is not a record of a study: it has no version"))
        return {}
    if version > NEWEST_READABLE:
        told = f"was written by a newer saccade: version {version:g}, this one reads up to "
        left_out.append(LeftOut(path.name, f"{told}{NEWEST_READABLE}"))
        return {}
    return dict(values)


def _read_run(folder: RunFolder, name: str) -> Run:
    status, summary = folder.status(), folder.summary()
    config = folder.config()
    state = plain(status.get("state", "half-written: no status.json"))
    if state != "finished" or not summary:
        raise ConfigError(_unfinished(state, status, config))
    score = _score(summary)
    if score is None or not 0 <= score <= 1:
        raise ConfigError("has neither a test nor a validation accuracy between 0 and 1")
    dataset = folder.dataset()
    names = tuple(plain(name, 40) for name in dataset.get("class_names", ()))
    return Run(
        name=name,
        dataset=plain(config.data.name),
        config=config,
        summary=summary,
        epochs=[row for row in folder.metrics("epoch") if _is_epoch(row, config)],
        environment=folder.environment(),
        class_names=names,
        predictions=_read_predictions(folder.predictions(), len(names)),
    )


def _lost_epochs(run: Run, folder: RunFolder) -> Iterable[LeftOut]:
    """The epochs that were trained and of which nothing is in `metrics.jsonl`."""
    trained = min(number(folder.status().get("epoch")) or 0, run.config.train.epochs)
    kept = {int(row["epoch"]) for row in run.epochs}
    if len(kept) >= trained:
        return
    if not (folder.path / METRICS).exists():
        told = "is missing: the run has no curves"
    elif not kept:
        told = "holds no epoch that can be read: the run has no curves"
    else:
        told = f"holds {len(kept)} of {trained:.0f} epochs: its group is drawn over those alone"
    yield LeftOut(f"{run.name}/{METRICS}", told)


def _is_epoch(row: Mapping[str, Any], config: Config) -> bool:
    epoch = number(row.get("epoch"))
    return epoch is not None and 1 <= epoch <= config.train.epochs


def _score(summary: Mapping[str, Any]) -> float | None:
    tested = number(summary.get("test_accuracy"))
    return number(summary.get("val_accuracy_best")) if tested is None else tested


def _unfinished(state: str, status: Mapping[str, Any], config: Config) -> str:
    epoch, message = number(status.get("epoch")), plain(status.get("message") or "")
    where = "" if epoch is None else f" after epoch {epoch:.0f} of {config.train.epochs}"
    told = "finished, but half-written: no summary.json" if state == "finished" else ""
    return (told or UNFINISHED.get(state, state)) + where + (f": {message}" if message else "")


def _read_predictions(arrays: Mapping[str, NDArray[Any]], classes: int) -> Predictions | None:
    """Checked predictions; None where the run kept none."""
    if not arrays:
        return None
    target, predicted = (arrays[key].astype(np.int64) for key in ("target", "predicted"))
    confidence = arrays["confidence"].astype(np.float64)
    shapes = {target.shape, predicted.shape, confidence.shape}
    highest = max(target.max(initial=0), predicted.max(initial=0))
    if len(shapes) > 1 or target.ndim != 1 or highest >= classes or not _is_share(confidence):
        raise ConfigError(f"predictions.npz does not fit {classes} classes")
    return Predictions(target, predicted, confidence)


def _is_share(values: NDArray[Any]) -> bool:
    return bool(np.isfinite(values).all() and (values >= 0).all() and (values <= 1 + 1e-6).all())


def _not_started(folder: Path, study: Mapping[str, Any]) -> Iterable[LeftOut]:
    """The runs that a comparison announced and that have no folder yet."""
    attentions, seeds = study.get("attentions"), study.get("seeds")
    if not isinstance(attentions, list) or not isinstance(seeds, list):
        return
    for attention in attentions:
        for seed in seeds:
            name = f"{plain(attention, 80)}/seed-{plain(seed, 20)}"
            place = folder / "runs" / name
            if not any(place.glob("config.yaml")) and not any(place.glob("fold-*/config.yaml")):
                yield LeftOut(name, "not started")


def _left_out_by_study(
    results: Mapping[str, Any], present: set[str], known: list[LeftOut]
) -> Iterable[LeftOut]:
    """What the study itself left out and that is not told already."""
    told = present | {gap.what for gap in known}
    listed = results.get("left_out")
    for gap in listed if isinstance(listed, list) else []:
        name = plain(gap.get("run")) if isinstance(gap, dict) else ""
        if name and name not in told:
            yield LeftOut(name, plain(gap.get("reason")))
