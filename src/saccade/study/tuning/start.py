"""Starting, joining and ending a search."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from saccade.config import Config, Range, differences
from saccade.errors import ConfigError, TrainingError
from saccade.study.tuning.folder import Settings, TuningFolder, prepare_optuna
from saccade.study.tuning.plots import draw_plots
from saccade.study.tuning.results import write_results
from saccade.study.tuning.space import check_space
from saccade.study.tuning.trials import Say, work
from saccade.study.workers import raise_worker_error, run_workers

__all__ = ["join_search", "start_search", "tune"]


def start_search(out: str | Path, config: Config, settings: Settings) -> TuningFolder:
    """Check a search and make its folder.

    Raises:
        ConfigError: The search space, or the folder, cannot be used, or Optuna is not installed.
        DataError: The data cannot.
    """
    prepare_optuna()
    TuningFolder(out).check_free()
    check_space(config)
    return TuningFolder.create(out, config, settings)


def join_search(
    out: str | Path, config: Config | None = None, **asked: int | str | None
) -> TuningFolder:
    """Open the folder of a search to go on with it, or to work on it beside others.

    Args:
        out: The folder.
        config: What the search should be of; refused where it is of something else.
        **asked: Settings to compare, None for one that was not said; `trials` may change.
    """
    folder = TuningFolder.open(out)
    if config is not None and (changes := _changes(folder.base(), config)):
        raise ConfigError(f"--resume: the search was started with another {', '.join(changes)}")
    settings = folder.settings()
    for name in ("metric", "storage"):
        if asked.get(name) not in (None, getattr(settings, name)):
            was = getattr(settings, name)
            raise ConfigError(f"--resume: --{name} was {was!r}, not {asked[name]!r}")
    trials = asked.get("trials")
    if isinstance(trials, int) and trials != settings.trials:
        folder.set_trials(trials)
    return folder


def tune(folder: TuningFolder, *, jobs: int = 1, say: Say = lambda line: None) -> dict[str, Any]:
    """Work on a search until all of its trials have ended.

    Args:
        folder: From `start_search` or `join_search`.
        jobs: Worker processes; one works in this process.
        say: Told what happens, a line at a time.

    Returns:
        The results, as in `results.json`.

    Raises:
        TrainingError: No trial ended well, or the workers died.
        Preempted: A signal asked to stop; `join_search` goes on.
    """
    codes: list[int] = []
    if jobs == 1:
        work(folder, say)
    else:
        codes = run_workers("saccade.study.tuning.worker", [str(folder.path)], jobs)
    with folder.claims.hold("study"):
        study = folder.load()
        results = write_results(folder, study)
        draw_plots(results, folder.path / "plots")
    if any(codes):
        _judge(codes, results, say)
    if results["best"] is None:
        reasons = [row["reason"] for row in results["trials"]]
        raise TrainingError(f"all {len(reasons)} trials failed; the first: {reasons[0]}")
    return results


def _judge(codes: list[int], results: dict[str, Any], say: Say) -> None:
    """Raise where workers ended before the search did."""
    told = f"workers ended with exit codes {', '.join(map(str, codes))}"
    if results["complete"]:
        say(f"{told}, the others did their work")
        return
    raise_worker_error(codes, f"{told}; go on with --resume")


def _changes(before: Config, after: Config) -> list[str]:
    """The keys in which two searches differ, with both values."""
    found = differences(before, after)
    for key in {**before.search, **after.search}:
        was, now = (_as_written(config.search.get(key)) for config in (before, after))
        found += [f"search.{key} ({was} -> {now})"] if was != now else []
    old, new = before.tune.model_dump(), after.tune.model_dump()
    return found + [f"tune.{k} ({old[k]!r} -> {new[k]!r})" for k in old if old[k] != new[k]]


def _as_written(candidates: Range | list[Any] | None) -> str:
    """What is searched of a key, as a recipe says it."""
    if candidates is None:
        return "not searched"
    plain: Any = candidates
    if isinstance(candidates, Range):
        plain = candidates.model_dump(exclude_defaults=True)
    text = yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=sys.maxsize)
    return str(text).strip()
