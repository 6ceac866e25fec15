"""Read a folder of runs: the finished runs, the records of their study, and what is left out.

The files are not trusted. Control characters are removed from text, numbers must be finite, and a
run with inconsistent files is left out with the reason.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from saccade.config import Config
from saccade.errors import ConfigError, DamagedRunError
from saccade.io import is_unchanged, read_json
from saccade.nouns import noun_of
from saccade.results import TestedRun
from saccade.runs import (
    PREDICTIONS,
    Predictions,
    RunFolder,
    find_runs,
    read_predictions,
    trained_together,
)

__all__ = ["Evidence", "LeftOut", "Run", "collect", "number", "plain"]

NEWEST_READABLE = 1
METRICS = "metrics.jsonl"
TUNED = "tuned/"
"""Start of the names of runs with tuned settings in a comparison."""
FOLDERS = ("folder", "text_folder")
"""Values of `data.name` for a folder of images or texts."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]+")
UNFINISHED = {
    "running": "not finished: running, or killed",
    "preempted": "not finished: preempted, can be resumed",
    "interrupted": "not finished: its disk failed, to be tried again",
    "failed": "failed",
    "stopped": "stopped early",
}


@dataclass(frozen=True)
class LeftOut:
    """A run or file that is not in the report, and the reason."""

    what: str
    reason: str

    @property
    def is_failure(self) -> bool:
        """True if the run failed, False if it is not finished yet."""
        return self.reason.startswith(UNFINISHED["failed"])


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        dataset: Name of the data set; equal names mean that accuracies can be compared.
        noun: What an input is, in the singular: an image, a text or a sequence.
    """

    name: str
    dataset: str
    config: Config
    summary: Mapping[str, Any]
    epochs: list[Mapping[str, Any]]
    environment: Mapping[str, Any]
    class_names: tuple[str, ...]
    predictions: Predictions | None
    noun: str = "image"

    @property
    def attention(self) -> str:
        """The attention that the run was trained with."""
        return plain(self.summary.get("attention") or self.config.model.attention or "?")

    def measured(self, key: str) -> float | None:
        """A number of the summary; None for a memory peak that includes earlier runs."""
        if key == "peak_memory_mib" and self.summary.get("peak_memory_shared"):
            return None
        return number(self.summary.get(key))

    def tested(self, accuracy: str) -> TestedRun:
        """The run as input of the statistics: its predictions and this accuracy of its summary."""
        data = self.config.data
        return TestedRun(
            seed=self.config.run.seed,
            fold=data.fold or 0,
            folds=data.folds or 1,
            accuracy=self.measured(accuracy),
            predictions=self.predictions,
        )


@dataclass(frozen=True)
class Evidence:
    """Everything that a report is made from.

    Attributes:
        together: True if runs, including runs that are left out, trained at the same time.
        tuned: The runs with tuned settings, of a comparison that tuned its attentions.
    """

    runs: list[Run]
    left_out: list[LeftOut]
    study: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    together: bool = False
    unchecked: int = 0
    tuned: Evidence | None = None

    @property
    def searched(self) -> list[str]:
        """The keys that a search varied, in its order; empty for other folders."""
        trials = self.results.get("trials")
        rows = [own for own in trials if isinstance(own, dict)] if isinstance(trials, list) else []
        params = [own.get("params") for own in rows]
        return list({plain(key): None for own in params if isinstance(own, dict) for key in own})


def plain(value: object, longest: int = 300) -> str:
    """An untrusted value as one line of printable text."""
    text = _CONTROL.sub(" ", str(value)).strip()
    return text if len(text) <= longest else text[: longest - 1] + "…"


def number(value: object) -> float | None:
    """The value as a float if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None


def collect(folder: Path) -> Evidence:
    """Read every run at or below a folder.

    Raises:
        ConfigError: The folder does not exist, has no run, or has no finished run.
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
    found = [run for run in found if not _is_trial(run, folder, study)]
    for run_folder in found:
        name = _name(run_folder.path, folder)
        try:
            run = _read_run(run_folder, name)
            _check_place(run, study)
            _check_single(run, runs)
            runs.append(run)
            left_out += _missing_epochs(run, run_folder)
            left_out += _missing_predictions(run)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            left_out.append(LeftOut(name, plain(_reason(error, run_folder.path, name))))
    if not runs:
        first = left_out[-len(found)]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ConfigError(
            f"{str(folder)!r} holds no finished run: {first.what}: {first.reason}{more}"
        )
    runs = _with_unique_datasets(_comparable(runs, left_out))
    runs, tuned = _split_tuned(runs, study, results)
    left_out += _not_started(folder, study)
    read = {run.name for run in (*runs, *tuned)}
    left_out += _left_out_by_study(results, read, left_out)
    gaps = sorted(left_out, key=lambda gap: gap.what)
    unchecked = sum(not f.has_manifest() for f in found if _name(f.path, folder) in read)
    together = trained_together(found)
    second = _tuned_evidence(tuned, study, results, together=together) if tuned else None
    return Evidence(runs, gaps, study, results, together, unchecked, second)


def _is_trial(run: RunFolder, folder: Path, study: Mapping[str, Any]) -> bool:
    """True for a trial of a search of a comparison, which is judged on validation images only."""
    is_below = run.path.relative_to(folder).as_posix().startswith("tuning/")
    return is_below and study.get("kind") == "compare"


def _split_tuned(
    runs: list[Run], study: Mapping[str, Any], results: Mapping[str, Any]
) -> tuple[list[Run], list[Run]]:
    """The runs with the shared setting, and those of the table of tuned settings.

    An attention whose best setting is the shared one has the same runs in both. If all runs with
    the shared setting are missing, the others are reported in their place.
    """
    shared = [run for run in runs if not _is_tuned(run, study)]
    own = [run for run in runs if _is_tuned(run, study)]
    if not shared:
        return own, []
    second = results.get("tuned")
    rows = second.get("rows") if isinstance(second, dict) else None
    noted = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    same = {
        plain(row.get("attention")) for row in noted if row.get("setup") == row.get("attention")
    }
    return shared, own + [run for run in shared if run.attention in same]


def _is_tuned(run: Run, study: Mapping[str, Any]) -> bool:
    return study.get("kind") == "compare" and run.name.startswith(TUNED)


def _tuned_evidence(
    runs: list[Run], study: Mapping[str, Any], results: Mapping[str, Any], *, together: bool
) -> Evidence:
    """The runs with tuned settings, with the rows of `results.json` about them."""
    second = results.get("tuned")
    own = {**results, **second} if isinstance(second, dict) else dict(results)
    return Evidence(runs, [], study, {**own, "notes": []}, together)


def _comparable(runs: list[Run], left_out: list[LeftOut]) -> list[Run]:
    """The tested runs, leaving out the others; all runs if none was tested."""
    tested = [run for run in runs if run.measured("test_accuracy") is not None]
    if not tested:
        return runs
    untested = [run.name for run in runs if run.measured("test_accuracy") is None]
    left_out += [LeftOut(name, "has no test accuracy, unlike the others") for name in untested]
    return tested


def _with_unique_datasets(runs: list[Run]) -> list[Run]:
    """The runs with names of data sets that are unique.

    Data with the same `data.name` and the same classes are one data set, wherever they are stored.
    A folder of images or texts has the name of the folder. The folder's name is also added if
    several data sets with one `data.name` have different classes.
    """
    roots: dict[tuple[str, tuple[str, ...]], dict[str, None]] = defaultdict(dict)
    for run in sorted(runs, key=lambda run: run.name):
        if run.class_names:
            root = run.config.data.root
            name = "" if root is None else plain(root.absolute().name)
            roots[run.dataset, run.class_names].update({name: None} if name else {})
    sharing = Counter(kind for kind, _ in roots)
    names: dict[tuple[str, tuple[str, ...]], str] = {}
    for key, folders in sorted(roots.items()):
        name, where = key[0], " / ".join(folders)
        if where and name in FOLDERS:
            name = where
        elif where and sharing[name] > 1:
            name = f"{name} {where}"
        taken = sum(own == name or own.startswith(f"{name} #") for own in names.values())
        names[key] = f"{name} #{taken + 1}" if taken else name
    return [
        replace(run, dataset=names.get((run.dataset, run.class_names), run.dataset)) for run in runs
    ]


def _name(path: Path, folder: Path) -> str:
    """The path of the run relative to the folder, without the `runs/` of a study."""
    name = path.relative_to(folder).as_posix().removeprefix("runs/")
    return plain(path.resolve().name if name == "." else name)


def _reason(error: Exception, path: Path, name: str) -> str:
    """The message of an error, with the path on this machine replaced by the name."""
    told = str(error).replace(str(path), name)
    return told if isinstance(error, ConfigError) else f"{type(error).__name__}: {told}"


def _read_record(path: Path, left_out: list[LeftOut]) -> dict[str, Any]:
    """A JSON file of a study; a file that cannot be used is left out and gives an empty dict."""
    if not path.exists():
        return {}
    try:
        values = read_json(path)
    except ConfigError as error:
        left_out.append(
            LeftOut(path.name, plain(f"cannot be read: {_reason(error, path, path.name)}"))
        )
        return {}
    if isinstance(values, dict) and not is_unchanged(values):
        left_out.append(LeftOut(path.name, "was changed after it was written"))
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


def _check_place(run: Run, study: Mapping[str, Any]) -> None:
    """Raise if a comparison planned another run for the folder than the one that is there."""
    if study.get("kind") != "compare":
        return
    config, parts = run.config, run.name.removeprefix(TUNED).split("/")
    found = [config.model.attention or "?", f"seed-{config.run.seed}"]
    found += [f"fold-{config.data.fold}"] if config.data.fold is not None else []
    if parts != list(map(plain, found)):
        raise ConfigError(f"is not the planned run, but that of {'/'.join(map(plain, found))}")


def _check_single(run: Run, others: Iterable[Run]) -> None:
    """Raise if a run is a copy of another one, which would be counted twice."""
    run_id = run.environment.get("run_id")
    copied = (other.name for other in others if other.environment.get("run_id") == run_id)
    if run_id is not None and (name := next(copied, None)) is not None:
        raise ConfigError(f"is a copy of {name}")


def _read_run(folder: RunFolder, name: str) -> Run:
    status = folder.status()
    if not folder.exists():
        state, message = plain(status.get("state", "")), plain(status.get("message") or "")
        told = UNFINISHED[state] if state in ("failed", "interrupted") else "has no config.yaml"
        raise ConfigError(told + (f": {message}" if message else ""))
    config = folder.config()
    state = plain(status.get("state", "half-written: no status.json"))
    if state != "finished" or not (folder.path / "summary.json").exists():
        raise ConfigError(_unfinished(state, status, config))
    summary = folder.summary()
    score = _score(summary)
    if score is None or not 0 <= score <= 1:
        raise ConfigError("has neither a test nor a validation accuracy between 0 and 1")
    damage = folder.damage()
    damage.pop(METRICS, None)  # only the curves are left out
    if damage:
        raise DamagedRunError(folder.path, list(damage.values()))
    dataset = folder.dataset()
    names = tuple(map(plain, dataset.get("class_names", ())))
    return Run(
        name=name,
        dataset=plain(config.data.name),
        config=config,
        summary=summary,
        epochs=[row for row in _epochs(folder) if _is_epoch(row, config)],
        environment=folder.environment(),
        class_names=names,
        predictions=read_predictions(folder, len(names)),
        noun=noun_of(dataset.get("kind")),
    )


def _epochs(folder: RunFolder) -> list[dict[str, Any]]:
    """The rows of the epochs; empty if the file was changed after the run."""
    return [] if METRICS in folder.damage() else folder.metrics("epoch")


def _missing_epochs(run: Run, folder: RunFolder) -> Iterable[LeftOut]:
    """A note if `metrics.jsonl` lacks epochs that were trained."""
    trained = min(number(folder.status().get("epoch")) or 0, run.config.train.epochs)
    kept = {int(row["epoch"]) for row in run.epochs}
    if len(kept) >= trained:
        return
    if (fault := folder.damage().get(METRICS)) is not None:
        told = f"{fault.removeprefix(METRICS).strip()}: the run has no curves"
    elif not (folder.path / METRICS).exists():
        told = "is missing: the run has no curves"
    elif not kept:
        told = "holds no epoch that can be read: the run has no curves"
    else:
        told = f"holds {len(kept)} of {trained:.0f} epochs: its group is drawn over these only"
    yield LeftOut(f"{run.name}/{METRICS}", told)


def _missing_predictions(run: Run) -> Iterable[LeftOut]:
    """A note if a tested run has no predictions."""
    if run.predictions is None and run.measured("test_accuracy") is not None:
        told = "is missing: the accuracy cannot be checked and its differences cannot be tested"
        yield LeftOut(f"{run.name}/{PREDICTIONS}", told)


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


def _not_started(folder: Path, study: Mapping[str, Any]) -> Iterable[LeftOut]:
    """The planned runs of a comparison that have no folder yet."""
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
    """What the study left out, except what is listed already."""
    told = present | {gap.what for gap in known}
    listed = results.get("left_out")
    for gap in listed if isinstance(listed, list) else []:
        name = plain(gap.get("run")) if isinstance(gap, dict) else ""
        if name and name not in told:
            yield LeftOut(name, plain(gap.get("reason")))
