"""Compose the page: its sections, in order, and the content of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from saccade.report.claims import (
    basis_of_claims,
    claimed_differences,
    headline_with_tuned,
    tuned_settings,
)
from saccade.report.classes import (
    MAX_CLASSES,
    class_accuracy,
    class_counts,
    confusion,
    reliability,
    reliability_diagram,
)
from saccade.report.collect import Evidence
from saccade.report.environment import (
    differences_table,
    environment_table,
    facts_of,
    shared_configuration,
    skipped_table,
    title_of,
)
from saccade.report.figures import (
    accuracy_over_time,
    cost_front,
    cut_accuracy,
    epoch_curves,
    pareto,
)
from saccade.report.findings import Findings
from saccade.report.groups import Group
from saccade.report.page import (
    Block,
    Figure,
    Figures,
    Listing,
    Page,
    Section,
    file_names,
)
from saccade.report.style import SERIES_COLORS, Drawing, Series, series_of
from saccade.report.tables import (
    by_seed_table,
    calibration_table,
    classes_table,
    left_out_table,
    mix_ups_table,
    summary_table,
)
from saccade.report.text import count, headline, listed, percent

__all__ = ["compose"]

MAX_DRAWN = len(SERIES_COLORS)
"""Maximum number of set-ups in a figure; all attentions are always drawn."""


@dataclass(frozen=True)
class PageInput:
    """Input of the functions that compose the sections.

    Attributes:
        drawn: The groups that figures show.
        series: Color and marker of each group, the same in every figure.
    """

    evidence: Evidence
    found: Findings
    drawn: Sequence[Group]
    series: Mapping[str, Series]


def compose(evidence: Evidence, found: Findings) -> Page:
    """Compose the whole page and draw its figures."""
    drawn = _drawn(found)
    labels = [group.label for group in (*drawn, *found.groups)]
    inputs = PageInput(evidence, found, drawn, series_of(dict.fromkeys(labels)))
    runs = evidence.runs
    dataset = listed(found.datasets)
    by_seed = by_seed_table(found)
    sections = [
        Section("summary", "Summary", [summary_table(found), *found.notes]),
        Section("claims", "What can be claimed", list(_claims(inputs))),
        Section("tuned", "Tuned settings", list(tuned_settings(evidence, inputs.series))),
        *([Section("by-seed", by_seed.caption, [by_seed])] if by_seed else []),
        Section("cost", "Accuracy against cost", list(_cost(inputs))),
        Section("training", "Training", list(_training(inputs))),
        Section("classes", "Classes", list(_classes(inputs))),
        Section("calibration", "Calibration", list(_calibration(inputs))),
        Section("configuration", "Configuration", list(_configuration(inputs))),
        Section("environment", "Environment", [environment_table(runs)]),
        Section("left-out", "Left out", list(_left_out(evidence))),
    ]
    return Page(
        title=title_of(found, dataset),
        headline=headline_with_tuned(evidence, headline(found, dataset), dataset),
        facts=facts_of(evidence, found, dataset),
        sections=[section for section in sections if section.blocks],
        series=inputs.series,
    )


def _drawn(found: Findings) -> list[Group]:
    """The groups that figures show: all attentions, or a limited number of set-ups.

    With too many set-ups the most accurate are drawn, or the first ones if data sets differ.
    """
    ranked = (
        sorted(found.rows, key=lambda row: -row.accuracy) if found.is_comparable else found.rows
    )
    attentions = {group.attention for group in found.groups}
    kept = {row.label for row in ranked[: max(MAX_DRAWN, len(attentions))]}
    return [group for group in found.groups if group.label in kept]


def _claims(inputs: PageInput) -> Iterator[Block]:
    """The differences with the shared setting, and what claims rest on."""
    blocks = list(claimed_differences(inputs.found, inputs.series))
    if blocks and (told := basis_of_claims(inputs.evidence)):
        yield told
    if blocks and inputs.evidence.results.get("tuning"):
        yield "This section is about the shared setting; the tuned settings follow."
    yield from blocks


def _cost(inputs: PageInput) -> Iterator[Block]:
    if not inputs.found.is_comparable:
        return
    shown = {group.label for group in inputs.drawn}
    rows = [row for row in inputs.found.rows if row.label in shown]
    bars = ", with 95 % intervals" if inputs.found.has_intervals else ""
    figures = [
        Figure(
            f"accuracy_{name}",
            f"Accuracy against {name}",
            f"Accuracy against {label}{bars}. {_front_marks(front)} the Pareto front: no other "
            "was both more accurate and cheaper, whether or not the difference can be claimed.",
            drawing,
        )
        for name, key, label, more in (
            ("throughput", "img_per_s", "training throughput, img/s", True),
            ("memory", "peak_memory_mib", "peak memory, MiB", False),
        )
        if (inputs.found.fair_speed or name != "throughput")
        and (front := cost_front(rows, key, more_is_better=more))
        and (drawing := pareto(rows, inputs.series, key, label, more_is_better=more)) is not None
    ]
    if figures:
        yield from _selection_note(inputs)
        yield Figures(figures)


def _front_marks(front: Sequence[str]) -> str:
    return "The ring marks" if len(front) == 1 else "Rings and the dashed line mark"


def _selection_note(inputs: PageInput) -> Iterator[Block]:
    """A sentence if not all groups are drawn."""
    if len(inputs.drawn) < len(inputs.found.groups):
        which = "most accurate" if inputs.found.is_comparable else "first"
        yield f"Figures show the {len(inputs.drawn)} {which} of {len(inputs.found.groups)} set-ups."


def _training(inputs: PageInput) -> Iterator[Block]:
    drawn, series = inputs.drawn, inputs.series
    floor = cut_accuracy(drawn)
    cut = f" The axis starts at {percent(floor)}; early epochs are below it." if floor else ""
    wanted: list[tuple[str, str, str, Drawing | None]] = [
        (
            "accuracy_over_time",
            "Validation accuracy over time",
            f"Validation accuracy over {_time_axis(inputs.found)}.{cut}",
            _over_time(inputs),
        ),
        (
            "accuracy_over_epochs",
            "Validation accuracy over epochs",
            f"Validation accuracy after each epoch.{cut}",
            epoch_curves(drawn, series, "val_accuracy", "validation accuracy"),
        ),
        (
            "loss_over_epochs",
            "Training loss over epochs",
            "Training loss of each epoch.",
            epoch_curves(drawn, series, "train_loss", "training loss"),
        ),
    ]
    several = any(len(group.runs) > 1 for group in drawn)
    spread = " Lines are means; bands go from the lowest to the highest run." if several else ""
    figures = [Figure(name, title, text + spread, own) for name, title, text, own in wanted if own]
    if figures:
        yield from _selection_note(inputs)
        yield Figures(figures)


def _over_time(inputs: PageInput) -> Drawing | None:
    """Accuracy over training time of the runs, or over epochs times a measured epoch time."""
    found = inputs.found
    if not found.fair_speed:
        return None
    if found.fair_times:
        return accuracy_over_time(inputs.drawn, inputs.series)
    measured = {row.label: row.seconds_per_epoch for row in found.rows if row.seconds_per_epoch}
    return accuracy_over_time(inputs.drawn, inputs.series, measured)


def _time_axis(found: Findings) -> str:
    if found.fair_times:
        return "the seconds spent in training"
    return (
        "seconds of training: epochs times the s/epoch of the summary, which was measured after "
        "training, one attention at a time"
    )


def _classes(inputs: PageInput) -> Iterator[Block]:
    runs = inputs.evidence.runs
    names = runs[0].class_names
    if not inputs.found.is_comparable or any(run.class_names != names for run in runs):
        yield "The runs were made on different data, so classes are not compared."
        return
    found = {group.label: class_counts(group, len(names)) for group in inputs.drawn}
    counts = {label: own for label, own in found.items() if own is not None}
    if not counts:
        return
    names_of_files = file_names(counts)
    accuracies = {label: own.accuracy for label, own in counts.items()}
    dots = class_accuracy(accuracies, names, inputs.series)
    if dots is not None:
        few = (
            f" Only the {MAX_CLASSES} classes with the largest differences are shown."
            if len(names) > MAX_CLASSES
            else ""
        )
        text = f"Accuracy on each class, lowest mean accuracy first.{few}"
        yield Figures([Figure("class_accuracy", "Accuracy of each class", text, dots)])
    yield (
        "Confusion matrices over all seeds, in percent of each true class. The diagonal shows "
        "correct predictions. Errors have a warmer color; its strength is the cube root of their "
        "share, so that rare errors remain visible."
    )
    yield Figures(
        [
            Figure(
                f"confusion_{names_of_files[label]}",
                label,
                f"Confusion of {label}: mean accuracy of a class {percent(own.mean_accuracy)}.",
                confusion(own, names),
            )
            for label, own in counts.items()
        ],
        small=True,
    )
    yield mix_ups_table(counts, names)
    yield classes_table(counts, names)


def _calibration(inputs: PageInput) -> Iterator[Block]:
    found = {group.label: own for group in inputs.drawn if (own := reliability(group)) is not None}
    if not found:
        return
    names_of_files = file_names(found)
    yield (
        "A calibrated model is right on 80 % of the images that it predicts with a confidence of "
        "80 %: its points lie on the diagonal. Below the diagonal the model is overconfident. Gray "
        "bars show the share of images."
    )
    yield Figures(
        [
            Figure(
                f"reliability_{names_of_files[label]}",
                label,
                f"Reliability of {label}: expected calibration error {percent(own.error)}.",
                reliability_diagram(own, inputs.series[label]),
            )
            for label, own in found.items()
        ],
        small=True,
    )
    yield calibration_table(found)


def _configuration(inputs: PageInput) -> Iterator[Block]:
    if inputs.found.differing:
        several = len({group.attention for group in inputs.found.groups}) > 1
        besides = "Besides the attention the" if several else "The"
        yield f"{besides} runs differ in {count(len(inputs.found.differing), 'setting')}."
        yield differences_table(inputs.found.groups, inputs.found.differing)
    else:
        yield "All runs share this configuration; only the attention and the seed differ."
    yield Listing(
        "The configuration that all runs share", shared_configuration(inputs.evidence.runs)
    )


def _left_out(evidence: Evidence) -> Iterator[Block]:
    if evidence.left_out:
        yield left_out_table(evidence.left_out)
    else:
        runs = len(evidence.runs)
        found = f"all {runs} runs found are" if runs > 1 else "the only run found is"
        yield f"Nothing: {found} in this report."
    if (skipped := skipped_table(evidence.runs)) is not None:
        yield skipped
