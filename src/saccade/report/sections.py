"""The page put together: which sections there are, and what each shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from saccade.report.class_figures import (
    MOST_CLASSES,
    class_accuracy,
    confusion,
    reliability_diagram,
)
from saccade.report.classes import class_counts, reliability
from saccade.report.collect import Evidence, plain
from saccade.report.comparison_figures import cost_front, differences, pareto
from saccade.report.curves import accuracy_over_time, cut_accuracy, epoch_curves
from saccade.report.findings import Findings
from saccade.report.groups import Group
from saccade.report.look import ATTENTION_COLOURS, Drawing, Series, series_of
from saccade.report.page import (
    Block,
    Figure,
    Figures,
    Items,
    Listing,
    Page,
    Section,
    file_names,
)
from saccade.report.setting import differences_table, environment_table, shared_configuration
from saccade.report.tables import (
    by_seed_table,
    calibration_table,
    classes_table,
    left_out_table,
    mix_ups_table,
    pairs_table,
    summary_table,
)
from saccade.report.words import count, headline, listed, percent, sentence, spelled

__all__ = ["compose"]

MOST_DRAWN = len(ATTENTION_COLOURS)
LUCK = (
    "With a single seed an interval covers new images and not new seeds: a difference may be the "
    "luck of that seed."
)


@dataclass(frozen=True)
class Story:
    """What the sections are written from.

    Attributes:
        drawn: The groups that figures show.
        series: One look for each group, the same in every figure.
    """

    evidence: Evidence
    found: Findings
    drawn: Sequence[Group]
    series: Mapping[str, Series]


def compose(evidence: Evidence, found: Findings) -> Page:
    """The whole page, figures drawn."""
    drawn = _drawn(found)
    labels = [group.label for group in (*drawn, *found.groups)]
    story = Story(evidence, found, drawn, series_of(dict.fromkeys(labels)))
    runs = evidence.runs
    dataset = listed(found.datasets)
    by_seed = by_seed_table(found)
    sections = [
        Section("summary", "Summary", [summary_table(found), *found.notes]),
        Section("claims", "What can be claimed", list(_claims(story))),
        *([Section("by-seed", by_seed.caption, [by_seed])] if by_seed else []),
        Section("cost", "Accuracy against cost", list(_cost(story))),
        Section("training", "Training", list(_training(story))),
        Section("classes", "Classes", list(_classes(story))),
        Section("calibration", "Calibration", list(_calibration(story))),
        Section("configuration", "Configuration", list(_configuration(story))),
        Section("environment", "Environment", [environment_table(runs)]),
        Section("left-out", "Left out", [_left_out(evidence)]),
    ]
    return Page(
        title=_title(found, dataset),
        headline=headline(found, dataset),
        facts=_facts(evidence, found, dataset),
        sections=[section for section in sections if section.blocks],
        series=story.series,
    )


def _title(found: Findings, dataset: str) -> str:
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


def _facts(evidence: Evidence, found: Findings, dataset: str) -> list[tuple[str, str]]:
    runs = evidence.runs
    models = sorted({plain(run.summary.get("model", run.config.model.name)) for run in runs})
    epochs = sorted({run.config.train.epochs for run in runs})
    seconds = sum(run.measured("seconds") or 0.0 for run in runs)
    hardware = sorted({plain(run.environment.get("device", "?")) for run in runs})
    facts = [
        ("data", dataset + (f", {count(found.images, 'image')} judged" if found.images else "")),
        ("model", listed(models)),
        ("runs", f"{len(runs)} with {count(len({run.config.run.seed for run in runs}), 'seed')}"),
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


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _drawn(found: Findings) -> list[Group]:
    """The groups that figures show: all, or the most accurate where there are too many.

    On different data none is more accurate than another, and the first ones are shown.
    """
    ranked = (
        sorted(found.rows, key=lambda row: -row.accuracy) if found.is_comparable else found.rows
    )
    kept = {row.label for row in ranked[:MOST_DRAWN]}
    return [group for group in found.groups if group.label in kept]


def _claims(story: Story) -> Iterator[Block]:
    found = story.found
    claims = found.against_baseline
    if found.baseline is None and found.others:
        yield (
            f"Differences in {found.measure} on the same images and seeds, each with a paired test "
            f"and Holm's correction for {count(len(found.others), 'pair')}. {_chance(found)}"
        )
        yield from _pairs(found)
    if not claims:
        return
    yield (
        f"Differences in {found.measure} on the same images and seeds, each with a paired test "
        f"and Holm's correction for {count(len(claims), 'comparison')} with {found.baseline}. "
        f"{_chance(found)}"
    )
    yield Items([sentence(claim) for claim in claims])
    yield Figures(
        [
            Figure(
                "differences",
                f"Differences to {found.baseline}",
                f"Difference in {found.measure} to {found.baseline} with 95 % intervals; a filled "
                "marker is a difference that holds after Holm's correction.",
                differences(claims, story.series),
            )
        ]
    )
    if any(claim.has_one_seed for claim in claims):
        yield LUCK
    if found.others:
        yield from _pairs(found)


def _pairs(found: Findings) -> Iterator[Block]:
    holding = [claim for claim in found.others if claim.holds]
    yield _of_others(len(found.others), len(holding), found.baseline)
    if holding:
        yield Items([sentence(claim) for claim in holding])
    if found.baseline is None and any(claim.has_one_seed for claim in found.others):
        yield LUCK
    yield pairs_table(found)


def _chance(found: Findings) -> str:
    """What the tests take for chance."""
    single = [claim.has_one_seed for claim in found.against_baseline or found.others]
    if all(single):
        shared = (
            f"none has more than one seed in common with {found.baseline}"
            if found.baseline
            else "no two have more than one seed in common"
        )
        return (
            "Only images count as chance: "
            f"{shared if found.has_mixed_seeds else 'there is one seed'}."
        )
    both = "Images and seeds both count as chance"
    return (
        f"{both}, or images alone where two have one seed in common." if any(single) else f"{both}."
    )


def _of_others(pairs: int, holding: int, baseline: str | None) -> str:
    without = f" without {baseline}" if baseline else ""
    if pairs == 1:
        return f"The one pair{without} {'differs' if holding else 'shows no difference'}."
    told = f"{holding} of them differ{'s' if holding == 1 else ''}"
    return (
        f"Among the {pairs} pairs{without}, corrected together, "
        f"{told if holding else 'none shows a difference'}."
    )


def _cost(story: Story) -> Iterator[Block]:
    if not story.found.is_comparable:
        return
    shown = {group.label for group in story.drawn}
    rows = [row for row in story.found.rows if row.label in shown]
    bars = ", with 95 % intervals" if story.found.has_intervals else ""
    figures = [
        Figure(
            f"accuracy_{name}",
            f"Accuracy against {name}",
            f"Accuracy against {label}{bars}. {_marks(front)} the front: no other "
            "was both more accurate and cheaper, whether or not the difference can be claimed.",
            drawing,
        )
        for name, key, label, more in (
            ("throughput", "img_per_s", "training throughput, img/s", True),
            ("memory", "peak_memory_mib", "peak memory, MiB", False),
        )
        if (story.found.fair_speed or name != "throughput")
        and (front := cost_front(rows, key, more_is_better=more))
        and (drawing := pareto(rows, story.series, key, label, more_is_better=more)) is not None
    ]
    if figures:
        yield from _choice(story)
        yield Figures(figures)


def _marks(front: Sequence[str]) -> str:
    return "The ring marks" if len(front) == 1 else "Rings and the dashed line mark"


def _choice(story: Story) -> Iterator[Block]:
    """Say so where not all groups are drawn."""
    if len(story.drawn) < len(story.found.groups):
        which = "most accurate" if story.found.is_comparable else "first"
        yield f"Drawn are the {len(story.drawn)} {which} of {len(story.found.groups)}."


def _training(story: Story) -> Iterator[Block]:
    drawn, series = story.drawn, story.series
    floor = cut_accuracy(drawn)
    cut = f" The axis begins at {percent(floor)}; early epochs lie below it." if floor else ""
    wanted: list[tuple[str, str, str, Drawing | None]] = [
        (
            "accuracy_over_time",
            "Validation accuracy over time",
            f"Validation accuracy over {_clock(story.found)}.{cut}",
            _over_time(story),
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
    spread = " Lines are means, shades reach from the lowest to the highest run." if several else ""
    figures = [Figure(name, title, text + spread, own) for name, title, text, own in wanted if own]
    if figures:
        yield from _choice(story)
        yield Figures(figures)


def _over_time(story: Story) -> Drawing | None:
    """On the runs' own clocks, or by the seconds of an epoch where these alone can be compared."""
    found = story.found
    if not found.fair_speed:
        return None
    if found.fair_times:
        return accuracy_over_time(story.drawn, story.series)
    measured = {row.label: row.seconds_per_epoch for row in found.rows if row.seconds_per_epoch}
    return accuracy_over_time(story.drawn, story.series, measured)


def _clock(found: Findings) -> str:
    if found.fair_times:
        return "the seconds spent in training"
    return (
        "seconds of training: epochs times the s/epoch of the summary, which was measured after "
        "training, one attention at a time"
    )


def _classes(story: Story) -> Iterator[Block]:
    runs = story.evidence.runs
    names = runs[0].class_names
    if not story.found.is_comparable or any(run.class_names != names for run in runs):
        yield "The runs were made on different data, so classes are not compared."
        return
    found = {group.label: class_counts(group, len(names)) for group in story.drawn}
    counts = {label: own for label, own in found.items() if own is not None}
    if not counts:
        return
    names_of_files = file_names(counts)
    accuracies = {label: own.accuracy for label, own in counts.items()}
    dots = class_accuracy(accuracies, names, story.series)
    if dots is not None:
        few = (
            f" The {MOST_CLASSES} classes on which they differ most."
            if len(names) > MOST_CLASSES
            else ""
        )
        text = f"Share of each class that was recognised, hardest class first.{few}"
        yield Figures([Figure("class_accuracy", "Accuracy of each class", text, dots)])
    yield (
        "Confusion, in percent of each true class over all seeds: recognised images on the "
        "diagonal, mistakes in the warmer colour, which deepens with the cube root of their share "
        "so that rare ones are seen."
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


def _calibration(story: Story) -> Iterator[Block]:
    found = {group.label: own for group in story.drawn if (own := reliability(group)) is not None}
    if not found:
        return
    names_of_files = file_names(found)
    yield (
        "A model is calibrated when, of the images it is 80 % sure of, it gets 80 % right: on the "
        "diagonal. Below it the model is surer than it is right. Grey bars: the share of images."
    )
    yield Figures(
        [
            Figure(
                f"reliability_{names_of_files[label]}",
                label,
                f"Reliability of {label}: expected calibration error {percent(own.error)}.",
                reliability_diagram(own, story.series[label]),
            )
            for label, own in found.items()
        ],
        small=True,
    )
    yield calibration_table(found)


def _configuration(story: Story) -> Iterator[Block]:
    if story.found.differing:
        several = len({group.attention for group in story.found.groups}) > 1
        besides = "Besides the attention the" if several else "The"
        yield f"{besides} runs differ in {count(len(story.found.differing), 'setting')}."
        yield differences_table(story.found.groups, story.found.differing)
    else:
        yield "All runs share this configuration; only the attention and the seed are varied."
    yield Listing(
        "The configuration that all runs share", shared_configuration(story.evidence.runs)
    )


def _left_out(evidence: Evidence) -> Block:
    if not evidence.left_out:
        runs = len(evidence.runs)
        found = f"all {runs} runs found are" if runs > 1 else "the one run found is"
        return f"Nothing: {found} in this report."
    return left_out_table(evidence.left_out)
