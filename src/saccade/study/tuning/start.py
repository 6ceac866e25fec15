"""Start, join and finish a search."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import yaml

from saccade.config import Config, Range, differences
from saccade.errors import ConfigError, TrainingError
from saccade.study.folder import UNCHECKED
from saccade.study.launchers import Launcher, Task, local, only_launcher
from saccade.study.slurm_queue import living_jobs
from saccade.study.tuning.folder import Settings, TuningFolder
from saccade.study.tuning.results import draw_plots, write_results
from saccade.study.tuning.space import check_space
from saccade.study.tuning.storage import prepare_optuna
from saccade.study.tuning.trials import Say, share_unfinished, work
from saccade.study.workers import raise_worker_error, tell_skipped
from saccade.train.run_data import batch_note

__all__ = ["join_search", "start_search", "tune"]


def start_search(
    out: str | Path, config: Config, settings: Settings, *, say: Say = lambda line: None
) -> TuningFolder:
    """Check a search and create its folder.

    Raises:
        ConfigError: The search space or the folder is invalid, or Optuna is not installed.
        DataError: The data cannot be loaded.
    """
    prepare_optuna()
    TuningFolder(out).check_free()
    if note := batch_note(config, check_space(config)):
        say(note)
    return TuningFolder.create(out, config, settings)


def join_search(
    out: str | Path, config: Config | None = None, **asked: int | str | None
) -> TuningFolder:
    """Open the folder of a search to resume it, or to join its jobs in Slurm.

    Another configuration or other settings than those of the search are refused; None allows any.
    `trials` changes the number of trials.
    """
    folder = TuningFolder.open(out)
    if config is not None and (changes := _changes(folder.base(), config)):
        raise ConfigError(f"--resume: the search was started with another {', '.join(changes)}")
    settings = folder.settings()
    for name in ("metric", "storage"):
        if asked.get(name) not in (None, getattr(settings, name)):
            was = getattr(settings, name)
            raise ConfigError(
                f"--{name} must be {was!r}, as when the search was started, got {asked[name]!r}"
            )
    trials = asked.get("trials")
    if isinstance(trials, int) and trials != settings.trials:
        folder.set_trials(trials)
    return folder


def tune(
    folder: TuningFolder,
    *,
    jobs: int = 1,
    launcher: Launcher = local,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Work on a search until all of its trials have ended.

    Args:
        folder: Folder from `start_search` or `join_search`.
        jobs: Number of workers; with 1, the local launcher runs the trials in this process.
        launcher: Where the workers run.
        say: Called with each line of progress output.

    Returns:
        The results, as in `results.json`.

    Raises:
        TrainingError: All trials failed, or the workers died.
        Preempted: A signal asked to stop; use `join_search` to resume.
        ConfigError: Another process works on the search.
    """
    since = time.time()
    if not folder.settings().base_sha256:
        say(f"saccade: {str(folder.path)!r}: {UNCHECKED}")
    with only_launcher(folder.path):
        folder.enqueue()
        share_unfinished(folder, jobs, busy={int(index) for index in living_jobs(folder.path)})
        codes = launcher(
            Task(
                "saccade.study.worker",
                folder.path,
                since,
                units=[str(index) for index in range(jobs)],
                jobs=jobs,
                here=lambda: work(folder, say, since=since),
            )
        )
        if launcher is not local or jobs > 1:
            for number in range(folder.trials_wanted()):
                tell_skipped(folder.run(number))
        results = write_results(folder, folder.load())
        draw_plots(results, folder.path / "plots")
    if any(codes) or (codes and not results["complete"]):
        _check_complete(codes, results, say)
    if results["best"] is None:
        reasons = [row["reason"] for row in results["trials"]]
        raise TrainingError(f"all {len(reasons)} trials failed; the first: {reasons[0]}")
    return results


def _check_complete(codes: list[int], results: dict[str, Any], say: Say) -> None:
    """Raise if workers failed before all trials had ended."""
    ended = f"workers ended with exit codes {', '.join(map(str, codes))}"
    if results["complete"]:
        say(f"{ended}; the other workers finished the search")
        return
    raise_worker_error(codes, f"{ended}; go on with --resume")


def _changes(before: Config, after: Config) -> list[str]:
    """Keys in which two searches differ, with both values."""
    found = differences(before, after)
    for key in {**before.search, **after.search}:
        was, now = (_as_written(config.search.get(key)) for config in (before, after))
        found += [f"search.{key} ({was} -> {now})"] if was != now else []
    old, new = before.tune.model_dump(), after.tune.model_dump()
    return found + [f"tune.{k} ({old[k]!r} -> {new[k]!r})" for k in old if old[k] != new[k]]


def _as_written(candidates: Range | list[Any] | None) -> str:
    """Candidates of a key, formatted as in a recipe."""
    if candidates is None:
        return "not searched"
    plain: Any = candidates
    if isinstance(candidates, Range):
        plain = candidates.model_dump(exclude_defaults=True)
    text = yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=sys.maxsize)
    return str(text).strip()
