"""The tables that `saccade compare` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from saccade.cli.terminal import print_table
from saccade.nouns import speed_unit

__all__ = ["print_results", "show_estimate"]


def print_results(results: Mapping[str, Any]) -> None:
    """Print the accuracies and costs; if attentions were tuned, with both settings."""
    tuned, tuning = results.get("tuned"), results.get("tuning")
    shared = "shared setting: " if tuning else ""
    _print_table_of(results, results["rows"], shared)
    if tuning and any(row["trials"] for row in tuning["attentions"]):
        _print_searches(tuning)
    if tuned:
        _print_table_of(results, tuned["rows"], "tuned: ")
    if told := results.get("rests_on"):
        typer.echo(f"claims: {told}")


def _print_table_of(
    results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], which: str
) -> None:
    """Print one table of accuracies and one of costs."""
    measured = "held-out" if results["measure"] == "fold_accuracy" else "test"
    interval = f"{results['confidence']:.0%} interval"
    print_table(
        f"{which}{measured} accuracy, and its difference to {results['baseline']} in points",
        ["attention", "accuracy", interval, "spread", "diff", "p (corrected)", "runs"],
        [_accuracy(row) for row in rows],
    )
    noun = str(results.get("input", "image"))
    speed = speed_unit(noun)
    print_table(
        f"{which}training: s/epoch, {speed}, MiB; one {noun}: ms, MFLOPs; error: to softmax",
        ["attention", "kind", "s/epoch", speed, "ms", "MiB", "params", "MFLOPs", "error"],
        [_cost(row) for row in rows],
    )


def _print_searches(tuning: Mapping[str, Any]) -> None:
    """Print what the searches found, and what they cost."""
    found = tuning["attentions"]
    keys = list(dict.fromkeys(key for row in found for key in row["space"]))
    print_table(
        f"tuning: {tuning['metric']} of the shared setting (trial 0) and of the best trial",
        [
            *("attention", "trials", "pruned", "failed", "shared", "best"),
            *(key.rpartition(".")[2] for key in keys),
            "seconds",
        ],
        [
            [
                row["attention"],
                *(str(row[key]) for key in ("trials", "pruned", "failed")),
                _number(row["shared_value"], ".4g"),
                _number(row["best_value"], ".4g"),
                *(_setting(row, key) for key in keys),
                f"{row['seconds']:,.1f}",
            ]
            for row in found
        ],
    )
    total = sum(row["trials"] for row in found)
    share = "" if tuning["share"] is None else f", {tuning['share']:.0%} of all training time"
    typer.echo(f"cost of tuning: {total} trials, {tuning['seconds']:,.0f} s{share}")


def _setting(row: Mapping[str, Any], key: str) -> str:
    if key not in row["space"] or key not in row["settings"]:
        return "-"
    value = row["settings"][key]
    if value is None:
        return "default"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _accuracy(row: Mapping[str, Any]) -> list[str]:
    interval = "-"
    if row["accuracy"] is not None and row["accuracy_low"] is not None:
        interval = f"{100 * row['accuracy_low']:.2f} - {100 * row['accuracy_high']:.2f}"
    return [
        row["attention"],
        _number(row["accuracy"], ".2f", 100, " %"),
        interval,
        _number(row["accuracy_spread"], ".2f", 100),
        _number(row["difference"], "+.2f", 100),
        _number(row["p_corrected"], ".2g"),
        str(row["runs"]),
    ]


def _cost(row: Mapping[str, Any]) -> list[str]:
    return [
        row["attention"],
        row.get("kind", "") + (", fixed length" if row.get("length") == "fixed" else ""),
        _number(row["seconds_per_epoch"], ".2f"),
        _number(row["img_per_s"], ",.0f"),
        _number(row["latency_ms"], ".2f"),
        _number(row["peak_memory_mib"], ",.1f"),
        _number(row["parameters"], ","),
        _number(row["flops"], ",.2f", 1e-6),
        _number(row["approximation_error"], ".3f"),
    ]


def _number(value: float | None, form: str, factor: float = 1, unit: str = "") -> str:
    if value is None:
        return "-"
    return f"{value if factor == 1 else factor * value:{form}}{unit}"


def show_estimate(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what a comparison would do, and how long it would take."""
    from saccade.report.text import duration

    if as_json:
        typer.echo(json.dumps(found))
        return
    print_table(
        "runs, and the seconds of one on this machine, from a few training steps",
        ["attention", "trials", "runs", "img/s", "s/run", "s in all"],
        [
            [
                row["attention"],
                str(row["trials"]),
                _runs(row),
                _number(row["img_per_s"], ",.0f"),
                _number(row["seconds_per_run"], ",.1f"),
                _number(row["seconds"], ",.0f"),
            ]
            for row in found["attentions"]
        ],
    )
    for row in found["attentions"]:
        for key, candidates in row["space"].items():
            typer.echo(f"search: {row['attention']}: {key} in {candidates}")
    trials = f"{found['trials']} trials and " if found["trials"] else ""
    extra = "; runs whose best setting is the shared one are not repeated" if trials else ""
    typer.echo(f"plan: {trials}at most {found['runs']} runs{extra}")
    seconds = found["seconds"]
    told = (
        "unknown: they did not fit in memory" if seconds is None else f"about {duration(seconds)}"
    )
    typer.echo(f"estimate: {told} of training, one run at a time, without evaluation")


def _runs(row: Mapping[str, Any]) -> str:
    return f"{row['runs']} + {row['tuned_runs']}" if row["tuned_runs"] else str(row["runs"])
