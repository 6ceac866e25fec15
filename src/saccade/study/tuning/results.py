"""Results of a search: all trials as JSON, the best recipe, parameter importance, and plots."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.config import Config, dump_config, with_values
from saccade.errors import ConfigError
from saccade.io import locked, write_file
from saccade.plotting import draw_in_style, new_figure
from saccade.study.tuning.folder import METRICS, TuningFolder
from saccade.version import __version__

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

__all__ = ["chosen_epoch", "collect", "draw_plots", "write_results"]

VERSION = 1
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
MIN_FOR_IMPORTANCE = 4
BEST_SHARE = 0.1
"""Share of best trials that PED-ANOVA compares with all trials; ties are included."""

# Colors by Okabe and Ito, safe for color-blind readers. Each state also has its own marker.
BLUE, ORANGE, GRAY, BLACK = "#0072B2", "#E69F00", "#7F7F7F", "#000000"
ENDED_EARLY = {
    "pruned": {"color": ORANGE, "marker": "v", "label": "pruned"},
    "failed": {"color": GRAY, "marker": "x", "label": "failed"},
}
NAMES = {"val_accuracy": "validation accuracy", "val_loss": "validation loss"}


def write_results(folder: TuningFolder, study: optuna.Study) -> dict[str, Any]:
    """Write `results.json` and `best.yaml`, and return the results."""
    with locked(folder.path / ".results.lock", on_wait=lambda: None):
        results = folder.write("results.json", collect(folder, study))
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
    """Importance of each key by PED-ANOVA, or the reason why it was left out."""
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


def draw_plots(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the plots for which there are results; return the files."""
    folder.mkdir(exist_ok=True)
    paths: list[Path] = []
    if results["best"] is not None:
        paths += _save(lambda: _draw_history(results), folder / "history")
    if results["importance"]:
        paths += _save(lambda: _draw_importance(results), folder / "importance")
    return paths


def _draw_history(results: dict[str, Any]) -> Any:
    """Plot the values of complete trials and the best value so far.

    Pruned and failed trials are marked on the x axis. The last value of a pruned trial is not
    plotted, because it is from an earlier epoch than the other values.
    """
    figure, axes = _axes(7, 4)
    done = [
        (row["number"], row["value"]) for row in results["trials"] if row["state"] == "complete"
    ]
    numbers, values = zip(*done, strict=True)
    axes.scatter(numbers, values, color=BLUE, label="complete", zorder=3)
    best = list(itertools.accumulate(values, max if results["direction"] == "maximize" else min))
    last = results["trials"][-1]["number"]
    ends = [*numbers, last], [*best, best[-1]]
    axes.step(*ends, where="post", color=BLACK, linewidth=1.4, label="best so far")
    for state, style in ENDED_EARLY.items():
        early = [row["number"] for row in results["trials"] if row["state"] == state]
        if early:
            level = [0.03] * len(early)
            axes.scatter(early, level, transform=axes.get_xaxis_transform(), **style)
    axes.margins(y=0.15)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="trial", ylabel=NAMES[results["metric"]])
    winner = results["best"]
    name = Path(results["recipe"]).stem
    figure.suptitle(f"{name}: best {winner['value']:.4f} in trial {winner['number']}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, frameon=False)
    return figure


def _draw_importance(results: dict[str, Any]) -> Any:
    """Bar chart of the importance of each key, the largest on top."""
    shares = sorted(results["importance"].items(), key=lambda item: item[1])
    figure, axes = _axes(7, 1.4 + 0.4 * len(shares))
    bars = axes.barh([key for key, _ in shares], [share for _, share in shares], color=BLUE)
    axes.bar_label(bars, fmt="{:.0%}", padding=3)
    axes.set_xlim(0, 1.12 * max(share for _, share in shares))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.grid(visible=False, axis="y")
    done = sum(row["state"] == "complete" for row in results["trials"])
    axes.set_xlabel("share of importance (PED-ANOVA)")
    figure.suptitle(
        f"parameter importance for {NAMES[results['metric']]}, from {done} complete trials"
    )
    return figure


def _axes(width: float, height: float) -> tuple[Any, Any]:
    figure = new_figure(width, height, layout="constrained")
    axes = figure.subplots()
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(make: Callable[[], Any], stem: Path) -> list[Path]:
    def draw() -> list[Path]:
        figure, paths = make(), [stem.with_suffix(f".{kind}") for kind in ("png", "svg")]
        for path in paths:
            kind = path.suffix[1:]
            metadata = {"Date": None} if kind == "svg" else None
            write_file(path, partial(figure.savefig, format=kind, dpi=150, metadata=metadata))
        return paths

    return draw_in_style(draw, {})
