"""Results of a search: all trials as JSON, the best recipe, and parameter importance."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.config import Config, dump_config, with_values
from saccade.errors import ConfigError
from saccade.io import locked, sealed, write_file
from saccade.runs import RunFolder
from saccade.study.tuning.folder import METRICS, TuningFolder
from saccade.version import __version__

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

__all__ = ["chosen_epoch", "collect", "write_results"]

VERSION = 1
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
MIN_FOR_IMPORTANCE = 4
BEST_SHARE = 0.1
"""Share of best trials that PED-ANOVA compares with all trials; ties are included."""


def write_results(folder: TuningFolder, study: optuna.Study) -> dict[str, Any]:
    """Write `results.json` and `best.yaml`, and return the results."""
    with locked(folder.path / ".results.lock", on_wait=lambda: None):
        results = sealed(collect(folder, study))
        RunFolder(folder.path).write("results.json", results)
        if results["best"] is not None:
            _write_best(folder, results)
    return results


def collect(folder: TuningFolder, study: optuna.Study) -> dict[str, Any]:
    """Contents of `results.json`."""
    settings = folder.settings()
    trials = [t for t in study.get_trials(deepcopy=False) if t.state.name != "WAITING"]
    rows = [_row(folder, trial, settings.metric) for trial in trials]
    ended = sum(row["state"] in STATES.values() for row in rows)
    done = [row for row in rows if row["state"] == "complete"]
    sign = 1 if METRICS[settings.metric] == "maximize" else -1
    ranked = sorted(done, key=lambda row: sign * row["value"], reverse=True)
    importance, left_out = _importance(study, settings.metric, [row["value"] for row in ranked])
    return {
        "version": VERSION,
        "kind": "tune",
        "search": folder.identity(),
        "recipe": settings.recipe,
        "metric": settings.metric,
        "direction": METRICS[settings.metric],
        "sampler": folder.base().tune.sampler,
        "pruner": folder.base().tune.pruner,
        "trials_wanted": folder.trials_wanted(),
        "complete": ended >= folder.trials_wanted(),
        "best": ranked[0] if ranked else None,
        "importance": importance,
        "importance_left_out": left_out,
        "trials": rows,
    }


def _row(folder: TuningFolder, trial: FrozenTrial, metric: str) -> dict[str, Any]:
    run = folder.run(trial.number)
    outcome = str(trial.user_attrs.get("outcome", ""))
    state = STATES.get(trial.state.name, "running")
    epochs, damage = run.metrics("epoch"), "; ".join(run.damage().values())
    summary = {} if damage else run.summary()
    seconds = summary.get("seconds", sum(row["seconds"] for row in epochs))
    if state == "complete" and summary:
        _check_value(trial, {row["epoch"]: row[metric] for row in epochs}, metric, summary)
    return {
        "number": trial.number,
        "state": state,
        "value": trial.value if state != "running" else None,
        "params": trial.params,
        "epochs": len(epochs),
        "seconds": round(seconds, 2),
        "reason": outcome.removeprefix("failed: ") if state != "complete" else damage,
        "curve": [v if isfinite(v) else None for _, v in sorted(trial.intermediate_values.items())],
        "run": str(run.path.relative_to(folder.path)),
    }


def chosen_epoch(summary: Mapping[str, Any]) -> int:
    """Epoch of the weights that would be tested."""
    return int(summary["best_epoch"] if summary["selected"] == "best" else summary["epochs"])


def _check_value(
    trial: FrozenTrial, values: Mapping[int, Any], metric: str, summary: Mapping[str, Any]
) -> None:
    """Raise if the storage of the search has another value of a trial than the trial's run."""
    own = values.get(chosen_epoch(summary), trial.value)
    if own != trial.value:
        raise ConfigError(
            f"the storage of the search says {metric} {trial.value} of trial {trial.number}, its "
            f"run says {own}; restore the storage"
        )


def _importance(
    study: optuna.Study, metric: str, ranked: Sequence[float]
) -> tuple[dict[str, float] | None, str | None]:
    """Importance of each key by PED-ANOVA, or the reason why it was left out.

    Args:
        study: The search.
        metric: Metric that the search optimizes.
        ranked: Values of the complete trials, best first.
    """
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    if len(ranked) < MIN_FOR_IMPORTANCE:
        return None, f"fewer than {MIN_FOR_IMPORTANCE} complete trials"
    if ranked[ceil(BEST_SHARE * len(ranked)) - 1] == ranked[-1]:
        return None, f"too many of the complete trials have the same {metric}"
    evaluator = PedAnovaImportanceEvaluator()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            shares = get_param_importances(study, evaluator=evaluator)
    except (ValueError, RuntimeError):
        return None, "the complete trials have the same settings"
    return {key: round(share, 4) for key, share in shares.items()}, None


def _write_best(folder: TuningFolder, results: dict[str, Any]) -> None:
    best = results["best"]
    base = folder.base()
    path = folder.path / "best.yaml"
    run = folder.run(best["number"])
    config = with_values(run.config(), {"run.test": base.run.test})
    write_file(path, _header(results, path, config) + dump_config(config))


def _header(results: dict[str, Any], path: Path, config: Config) -> str:
    best = results["best"]
    ended = sum(row["state"] != "running" for row in results["trials"])
    found = ", ".join(f"{key}={value}" for key, value in best["params"].items())
    return (
        f"# Found by `saccade tune {results['recipe']}` (saccade {__version__}): the best of "
        f"{ended} trials.\n"
        f"# The value is the best of many trials on the same validation images, so it is too "
        f"optimistic.\n# The test images were not used.\n#\n"
        f"# command:   saccade train {path} --out runs/best\n"
        f"# trial:     {best['number']}, {config.train.epochs} epochs, {best['seconds']} s\n"
        f"# value:     {results['metric']} {best['value']:.4f}\n"
        f"# found:     {found}\n"
    )
