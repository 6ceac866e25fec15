"""The tables of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from saccade.report.classes import ClassCounts, Reliability
from saccade.report.collect import LeftOut
from saccade.report.findings import Findings, Row
from saccade.report.page import NOTHING, Cell, Column, Table, text_cell, text_column
from saccade.report.text import GLUE, interval, listed, p_text, percent, points, significant
from saccade.results import Accuracy, Claim

__all__ = [
    "by_seed_table",
    "calibration_table",
    "classes_table",
    "left_out_table",
    "mix_ups_table",
    "pairs_table",
    "summary_table",
]

GIGA, MEGA = 1e9, 1e6


def _amount(value: float | None, digits: int = 3, *, strong: bool = False) -> Cell:
    return Cell(significant(value, digits), value, strong)


def _csv_cell(value: float | str | None) -> Cell:
    """A cell of a column that appears only in CSV files."""
    return Cell("", value)


def summary_table(found: Findings) -> Table:
    """One row for each group."""
    big = max((row.flops or 0 for row in found.rows), default=0) >= GIGA
    columns = (
        text_column("attention", _heading(found)),
        text_column("kind", "kind" if any(row.kind for row in found.rows) else ""),
        Column("runs", "runs" if len({row.runs for row in found.rows}) > 1 else ""),
        Column(
            "accuracy", f"{found.measure} [95{GLUE}%]" if found.has_intervals else found.measure
        ),
        Column("accuracy_low"),
        Column("accuracy_high"),
        *_difference_columns(found, f"points to {found.baseline} [95{GLUE}%]"),
        Column("seconds_per_epoch", "s/epoch"),
        Column("img_per_s", "img/s"),
        Column("latency_ms", _latency(found.latency_batch)),
        Column("latency_eval_ms", _latency(found.latency_eval_batch)),
        Column("peak_memory_mib", "memory, MiB"),
        Column("parameters", "parameters"),
        Column("flops", f"{'G' if big else 'M'}FLOPs"),
        Column("approximation_error", "error to softmax"),
    )
    rows = [_summary_row(row, GIGA if big else MEGA) for row in found.rows]
    return Table("summary", "Summary", columns, rows, _note(found))


def _note(found: Findings) -> str:
    bold = (
        "Bold: better than every other row by more than chance. For accuracy, each difference "
        "holds after the correction for all pairs. For time and memory, the worst run is better "
        "than the best run of all others; this is not a significance test."
    )
    told = [
        (_brackets(found), found.has_intervals),
        (_seeds(found), found.has_mixed_seeds and found.baseline is not None),
        (bold, any(row.best for row in found.rows)),
    ]
    return " ".join(text for text, applies in told if applies)


def _brackets(found: Findings) -> str:
    several = [row.seeds > 1 for row in found.rows]
    several += [not claim.has_one_seed for claim in found.against_baseline]
    if all(several):
        return f"Brackets show 95 % intervals over new seeds and new {found.noun}s."
    if any(several):
        return (
            f"Brackets show 95 % intervals over new {found.noun}s, and over new seeds where there "
            "are several."
        )
    return f"Brackets show 95 % intervals over new {found.noun}s; new seeds would widen them."


def _seeds(found: Findings) -> str:
    """A note on the seeds that a difference uses if rows have different seeds."""
    told = (
        f"A difference is over the seeds that a row shares with {found.baseline}, so it may differ "
        "from that of the accuracies beside it"
    )
    alone = found.without_shared_seed
    if not alone:
        return f"{told}."
    return f"{told}; {listed(alone)} {'shares' if len(alone) == 1 else 'share'} none."


def _latency(batch: int | None) -> str:
    return f"ms, batch{GLUE}{batch}" if batch else "latency, ms"


def _heading(found: Findings) -> str:
    plain = all(group.label == group.attention for group in found.groups)
    return "attention" if plain else "set-up"


def _summary_row(row: Row, unit: float) -> list[Cell]:
    def amounts(*keys: str) -> list[Cell]:
        return [_amount(getattr(row, key), strong=key in row.best) for key in keys]

    flops = significant(row.flops / unit) if row.flops else NOTHING
    accuracy = f"{percent(row.accuracy)} {interval(row.accuracy_low, row.accuracy_high)}".strip()
    return [
        text_cell(row.label),
        text_cell(row.kind),
        Cell(str(row.runs), row.runs),
        Cell(accuracy, row.accuracy, "accuracy" in row.best),
        _csv_cell(row.accuracy_low),
        _csv_cell(row.accuracy_high),
        *_difference(row.against_baseline),
        *amounts("seconds_per_epoch", "img_per_s", "latency_ms", "latency_eval_ms"),
        *amounts("peak_memory_mib", "parameters"),
        Cell(flops, row.flops, "flops" in row.best),
        _amount(row.approximation_error, 2),
    ]


def _difference_columns(found: Findings, title: str) -> list[Column]:
    return [
        Column("difference", title),
        Column("difference_low"),
        Column("difference_high"),
        Column("p_corrected", "p (corrected)"),
        Column("p_value"),
        text_column("shared_seeds", "shared seeds" if found.has_mixed_seeds else ""),
    ]


def _difference(claim: Claim | None) -> list[Cell]:
    """Cells of a difference: value, bounds, corrected p, raw p, and seeds."""
    if claim is None:
        nothing, hidden = Cell(NOTHING), _csv_cell(None)
        return [nothing, hidden, hidden, nothing, hidden, nothing]
    bounds = f"[{points(claim.low)}, {points(claim.high)}]"
    seeds = [str(seed) for seed in claim.seeds]
    return [
        Cell(f"{points(claim.difference)} {bounds}", claim.difference, claim.holds),
        _csv_cell(claim.low),
        _csv_cell(claim.high),
        Cell(p_text(claim.p_corrected, bare=True), claim.p_corrected),
        _csv_cell(claim.p_value),
        Cell(f",{GLUE}".join(seeds), ", ".join(seeds)),
    ]


def by_seed_table(found: Findings) -> Table | None:
    """The accuracy of every run and the spread of each group; None if each has one run."""
    known = found.results.accuracies
    if all(len(own.by_run) == 1 for own in known.values()):
        return None
    replicates = sorted({replicate for own in known.values() for replicate in own.by_run})
    parts = _replicate_parts(found, replicates)
    columns = (
        text_column("attention", _heading(found)),
        *(_replicate_column(seed, fold, parts) for seed, fold in replicates),
        Column("mean", "mean"),
        Column("spread", "spread"),
    )
    rows = [_by_seed_row(g.label, known[g.label], replicates) for g in found.groups]
    note = (
        f"{found.measure.capitalize()} in percent. The spread is the standard deviation of a row's "
        "runs, in points."
    )
    return Table("by_seed", f"By {' and '.join(parts)}", columns, rows, note)


def _replicate_parts(found: Findings, replicates: Sequence[tuple[int, int]]) -> list[str]:
    """What distinguishes the runs of a group: seed, fold, or both."""
    if not any(group.has_folds for group in found.groups):
        return ["seed"]
    return ["seed", "fold"] if len({seed for seed, _ in replicates}) > 1 else ["fold"]


def _replicate_column(seed: int, fold: int, parts: Sequence[str]) -> Column:
    place = {"seed": seed, "fold": fold}
    return Column(
        "_".join(f"{part}_{place[part]}" for part in parts),
        ", ".join(f"{part}{GLUE}{place[part]}" for part in parts),
    )


def _by_seed_row(label: str, known: Accuracy, replicates: Sequence[tuple[int, int]]) -> list[Cell]:
    values = [known.by_run.get(own) for own in replicates]
    mean = fmean(known.by_run.values())
    return [text_cell(label), *(_percent_cell(value) for value in (*values, mean, known.spread))]


def _percent_cell(value: float | None) -> Cell:
    """A fraction in percent with two decimals."""
    return Cell(NOTHING) if value is None else Cell(f"{100 * value:.2f}", value)


def pairs_table(found: Findings) -> Table:
    """All pairs without the baseline; all pairs if there is no baseline."""
    columns = (
        text_column("first", "first"),
        text_column("second", "second"),
        *_difference_columns(found, f"points [95{GLUE}%]"),
        text_column("verdict", "verdict"),
    )
    rows = [
        [
            text_cell(claim.first),
            text_cell(claim.second),
            *_difference(claim),
            text_cell(_verdict(claim)),
        ]
        for claim in found.others
    ]
    which = "The" if found.baseline is None else "The other"
    title = f"{which} pair" if len(rows) == 1 else f"{which} {len(rows)} pairs"
    return Table("pairs", title, columns, rows, folded=True)


def _verdict(claim: Claim) -> str:
    if not claim.holds:
        return "no difference can be claimed"
    return f"{claim.first if claim.difference > 0 else claim.second} is better"


def classes_table(counts: Mapping[str, ClassCounts], names: Sequence[str]) -> Table:
    """Accuracy of each class in each group."""
    columns = [
        text_column("class", "class"),
        Column("images", "images"),
        *(Column(label, label) for label in counts),
    ]
    images = next(iter(counts.values())).confusion.sum(1)
    rows = [
        [
            text_cell(name),
            Cell(f"{images[k]:,}", int(images[k])),
            *(_share(float(own.accuracy[k])) for own in counts.values()),
        ]
        for k, name in enumerate(names)
    ]
    note = "Images are counted once for each run."
    return Table("classes", "Accuracy of each class", columns, rows, note, folded=True)


def _share(value: float) -> Cell:
    return Cell(NOTHING) if math.isnan(value) else Cell(percent(value), value)


def mix_ups_table(counts: Mapping[str, ClassCounts], names: Sequence[str]) -> Table:
    """The most frequent errors of each group."""
    columns = (
        text_column("attention", "attention"),
        text_column("true", "true class"),
        text_column("said", "predicted class"),
        Column("share", "share of the class"),
    )
    rows = [
        [text_cell(label), text_cell(names[i]), text_cell(names[j]), _share(share)]
        for label, own in counts.items()
        for i, j, share in own.mix_ups(3)
    ]
    return Table("mix_ups", "The three most frequent errors of each", columns, rows, folded=True)


def calibration_table(found: Mapping[str, Reliability]) -> Table:
    """The calibration error and the mean overconfidence of each group."""
    columns = (
        text_column("attention", "attention"),
        Column("calibration_error", "expected calibration error"),
        Column("sureness", "confidence minus accuracy, points"),
    )
    rows = [
        [text_cell(label), _share(own.error), Cell(points(own.sureness), own.sureness)]
        for label, own in found.items()
    ]
    return Table("calibration", "Calibration", columns, rows)


def left_out_table(gaps: Sequence[LeftOut]) -> Table:
    """Runs and files that are not in the report, with the reasons."""
    columns = (
        text_column("what", "left out"),
        text_column("reason", "why"),
    )
    rows = [[text_cell(gap.what), text_cell(gap.reason)] for gap in gaps]
    return Table("left_out", "Left out", columns, rows)
