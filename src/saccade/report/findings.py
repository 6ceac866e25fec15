"""The numbers of a report: one row for each group, and the differences between groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from saccade.layers.attentions import describe_kind
from saccade.report.collect import Evidence, number, plain
from saccade.report.groups import Group, group_runs
from saccade.results import Accuracy, Claim, Results, results_of, shared_rate_note, skipped_note
from saccade.runs import TOGETHER

__all__ = ["Findings", "Row", "find"]

MEASURED_COST = {"seconds_per_epoch": 1, "img_per_s": -1, "peak_memory_mib": 1}
"""Costs measured in every run, each with the sign that makes smaller values better."""

SPEEDS = ("seconds_per_epoch", "img_per_s")

COUNTED_COST = ("parameters", "flops")


@dataclass(frozen=True)
class Row:
    """The numbers of one group; None where a value was not measured.

    Attributes:
        best: The measures in which the group is better than all others by more than chance.
    """

    label: str
    kind: str
    runs: int
    seeds: int
    accuracy: float
    accuracy_low: float | None
    accuracy_high: float | None
    against_baseline: Claim | None
    seconds_per_epoch: float | None
    img_per_s: float | None
    latency_ms: float | None
    latency_eval_ms: float | None
    peak_memory_mib: float | None
    parameters: float | None
    flops: float | None
    approximation_error: float | None
    best: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Findings:
    """Everything that the sections of a report show.

    Attributes:
        baseline: Label of the group that the others are compared with. None if the baseline of
            the comparison has no finished run; then all pairs are in `others`.
        named_baseline: The baseline recorded by the comparison; empty for other folders.
        failed: Attentions of the comparison whose runs all failed.
        unfinished: Other attentions of the comparison without a finished run.
        fair_speed: True if speeds can be compared: no run trained beside another on one device,
            or speeds were measured afterwards.
        fair_times: True if the training times of the runs themselves can be compared.
        differing: Keys besides the attention in which the runs differ.
        others: Claims about pairs without the baseline, corrected together with the claims about
            the baseline.
        images: Number of test images with a prediction; 0 if the groups were tested on different
            images.
        noun: What the inputs of the runs are, in the singular.
    """

    groups: list[Group]
    rows: list[Row]
    baseline: str | None
    named_baseline: str
    failed: list[str]
    unfinished: list[str]
    datasets: list[str]
    measure: str
    images: int
    skipped: int
    noun: str
    latency_batch: int | None
    latency_eval_batch: int | None
    notes: list[str]
    fair_speed: bool
    fair_times: bool
    differing: list[str]
    others: list[Claim]
    results: Results

    @property
    def is_comparable(self) -> bool:
        """True if all accuracies were measured on the same data."""
        return len(self.datasets) == 1

    @property
    def has_short_names(self) -> bool:
        """True if there is one attention and the labels omit keys in which the set-ups differ."""
        one_attention = len({group.attention for group in self.groups}) == 1
        return one_attention and not all(g.named.issuperset(self.differing) for g in self.groups)

    @property
    def has_mixed_seeds(self) -> bool:
        """True if some difference does not use all seeds."""
        seeds = frozenset[int]().union(*(group.seeds for group in self.groups))
        return any(seeds != set(claim.seeds) for claim in (*self.against_baseline, *self.others))

    @property
    def without_shared_seed(self) -> list[str]:
        """The groups without a seed in common with the baseline; empty without a baseline."""
        base = [group.seeds for group in self.groups if group.label == self.baseline]
        return [group.label for group in self.groups if base and not group.seeds & base[0]]

    @property
    def has_intervals(self) -> bool:
        """True if any accuracy has a confidence interval."""
        return any(row.accuracy_low is not None for row in self.rows)

    @property
    def against_baseline(self) -> list[Claim]:
        """The claims about differences to the baseline."""
        return [row.against_baseline for row in self.rows if row.against_baseline is not None]


def find(evidence: Evidence) -> Findings:
    """Group the runs, summarize each group, and compare the groups if their data are the same."""
    order = evidence.study.get("attentions")
    known = [plain(name) for name in order] if isinstance(order, list) else []
    groups, differing = group_runs(evidence.runs, known, evidence.searched)
    named = _named_baseline(evidence)
    baseline = _baseline(named, groups)
    datasets = sorted({run.dataset for run in evidence.runs})
    alike = len(datasets) == 1
    results = results_of(
        {group.label: group.tested for group in groups}, baseline, is_compared=alike
    )
    noted = _noted_rows(evidence.results) if alike else {}
    speed = _speed_source(evidence)
    fair_speed = speed != "shared"
    rows = _with_noted_memory(_rows(groups, results, noted, baseline), noted)
    if speed == "alone":
        rows = _with_noted_speed(rows, noted)
    if alike:
        claims = [*results.against_baseline, *results.others]
        rows = _mark_best(rows, groups, claims, fair_speed)
    failed, unfinished = _without_runs(evidence, known)
    return Findings(
        groups=_in_order(rows, groups),
        rows=rows,
        baseline=baseline,
        named_baseline=named,
        failed=failed,
        unfinished=unfinished,
        datasets=datasets,
        measure=_measure(groups),
        images=results.num_images if alike else 0,
        skipped=results.num_skipped if alike else 0,
        noun=_noun(evidence),
        latency_batch=_noted_count(noted, "latency_batch"),
        latency_eval_batch=_noted_count(noted, "latency_eval_batch"),
        notes=_notes(evidence, speed, results),
        fair_speed=fair_speed,
        fair_times=speed == "own",
        differing=differing,
        others=results.others,
        results=results,
    )


def _in_order(rows: Sequence[Row], groups: Sequence[Group]) -> list[Group]:
    places = {row.label: place for place, row in enumerate(rows)}
    return sorted(groups, key=lambda group: places[group.label])


def _rows(
    groups: Sequence[Group],
    results: Results,
    noted: Mapping[str, Mapping[str, Any]],
    baseline: str | None,
) -> list[Row]:
    """One row for each group, in the order of the groups.

    If all groups have one attention, rows are sorted by data set, then by accuracy.
    """
    by_label = {claim.first: claim for claim in results.against_baseline}
    rows = []
    for group in groups:
        own = noted.get(group.label, {})
        claim = by_label.get(group.label) or _noted_claim(own, group, baseline)
        rows.append(_row(group, results.accuracies[group.label], claim, own))
    if len({group.attention for group in groups}) == 1:
        datasets = {group.label: group.dataset for group in groups}
        rows.sort(key=lambda row: (datasets[row.label], -row.accuracy, row.label))
    return rows


def _row(group: Group, accuracy: Accuracy, claim: Claim | None, noted: Mapping[str, Any]) -> Row:
    known = _noted_accuracy(noted) if accuracy.low is None else None
    mean, low, high = known or (accuracy.mean, accuracy.low, accuracy.high)
    assert mean is not None, "a finished run has an accuracy (`collect`)"
    return Row(
        label=group.label,
        kind=describe_kind(group.attention, local_conv=group.has_local_conv),
        runs=len(group.runs),
        seeds=len(group.seeds),
        accuracy=mean,
        accuracy_low=low,
        accuracy_high=high,
        against_baseline=claim,
        seconds_per_epoch=_median(group.measured("seconds_per_epoch")),
        img_per_s=_median(group.measured("img_per_s")),
        latency_ms=number(noted.get("latency_ms")),
        latency_eval_ms=number(noted.get("latency_eval_ms")),
        peak_memory_mib=_median(group.measured("peak_memory_mib")),
        parameters=_median(group.measured("parameters")),
        flops=_median(group.measured("flops")),
        approximation_error=number(noted.get("approximation_error")),
    )


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _with_noted_memory(rows: list[Row], noted: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Replace memory by the comparison's measurement, which runs one attention at a time.

    The peak in a run's summary is the peak of its process, which may have trained other runs.
    """
    memory = {name: number(row.get("peak_memory_mib")) for name, row in noted.items()}
    if not any(memory.values()):
        return rows
    return [replace(row, peak_memory_mib=memory.get(row.label)) for row in rows]


def _with_noted_speed(rows: list[Row], noted: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """Replace speeds by the comparison's measurement, made after runs that shared a device."""
    found = [noted.get(row.label, {}) for row in rows]
    return [
        replace(
            row,
            seconds_per_epoch=number(own.get("seconds_per_epoch")),
            img_per_s=number(own.get("img_per_s")),
        )
        for row, own in zip(rows, found, strict=True)
    ]


def _noted_rows(results: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The rows of the comparison's `results.json`, by attention."""
    rows = results.get("rows")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return {plain(row.get("attention")): row for row in found}


def _noted_count(noted: Mapping[str, Mapping[str, Any]], key: str) -> int | None:
    counts = (number(row.get(key)) for row in noted.values())
    return next((int(count) for count in counts if count), None)


def _speed_source(evidence: Evidence) -> str:
    """How speeds were measured: "alone", "own" or "shared".

    "alone": measured one attention at a time after training. "own": taken from the runs, none of
    which trained beside another. "shared": taken from runs that slowed each other down.
    """
    noted = evidence.results.get("speed")
    if noted in ("alone", "shared"):
        return str(noted)
    return "shared" if evidence.together else "own"


def _noun(evidence: Evidence) -> str:
    """What the inputs of the runs are; `input` if it is not the same in all."""
    nouns = {run.noun for run in evidence.runs}
    return nouns.pop() if len(nouns) == 1 else "input"


def _notes(evidence: Evidence, speed: str, results: Results) -> list[str]:
    """The notes of the comparison, or the same notes derived from the runs."""
    noted = evidence.results.get("notes")
    notes = [TOGETHER] if speed == "shared" else []
    notes = [plain(note) for note in noted] if isinstance(noted, list) else notes
    shared = sum(bool(run.summary.get("peak_memory_shared")) for run in evidence.runs)
    if shared and not _noted_count(_noted_rows(evidence.results), "peak_memory_mib"):
        notes.append(
            f"no memory is shown for {shared} of {len(evidence.runs)} runs: their process had "
            "trained other runs before, and its peak includes theirs"
        )
    if results.num_skipped:
        told = skipped_note(results.num_images, results.num_skipped, _noun(evidence))
        notes = [told, *(note for note in notes if note != told)]
    if (told := _shared_rate(evidence)) and told not in notes:
        notes = [told, *notes]
    return notes


def _shared_rate(evidence: Evidence) -> str:
    """The note on a learning rate that several attentions share, or an empty string."""
    rates = {run.config.optim.lr for run in evidence.runs}
    several = len({run.attention for run in evidence.runs}) > 1
    if not several or len(rates) > 1:
        return ""
    return shared_rate_note(rates.pop(), is_tuned=bool(evidence.results.get("tuning")))


def _noted_accuracy(noted: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """The accuracy and interval in `results.json`, for runs without saved predictions."""
    mean, low, high = (number(noted.get(f"accuracy{part}")) for part in ("", "_low", "_high"))
    return None if mean is None or low is None or high is None else (mean, low, high)


def _noted_claim(noted: Mapping[str, Any], group: Group, baseline: str | None) -> Claim | None:
    """The difference in `results.json`, for runs without saved predictions."""
    keys = ("difference", "difference_low", "difference_high", "p_value", "p_corrected")
    known = [value for key in keys if (value := number(noted.get(key))) is not None]
    if len(known) < len(keys) or baseline is None:
        return None
    difference, low, high, p_value, p_corrected = known
    seeds = tuple(sorted(group.seeds))
    return Claim(group.label, baseline, difference, low, high, p_value, p_corrected, seeds)


def _named_baseline(evidence: Evidence) -> str:
    """The baseline recorded by the comparison; empty for other folders."""
    records = (evidence.results, evidence.study)
    return next((plain(own["baseline"]) for own in records if own.get("baseline")), "")


def _baseline(named: str, groups: Sequence[Group]) -> str | None:
    """The recorded baseline if it has runs; without a record softmax, or else the first group."""
    labels = [group.label for group in groups]
    if not named:
        return "softmax" if "softmax" in labels else labels[0]
    own = [group.label for group in groups if group.attention == named]
    return named if named in labels else next(iter(own), None)


def _without_runs(evidence: Evidence, planned: Sequence[str]) -> tuple[list[str], list[str]]:
    """Attentions of a comparison without a finished run: (all runs failed, the others)."""
    present = {run.attention for run in evidence.runs}
    gaps = {
        name: [gap for gap in evidence.left_out if gap.what.startswith(f"{name}/")]
        for name in (*planned, *_noted_rows(evidence.results))
        if name not in present
    }
    failed = [name for name, own in gaps.items() if own and all(gap.is_failure for gap in own)]
    return failed, [name for name, own in gaps.items() if own and name not in failed]


def _measure(groups: Sequence[Group]) -> str:
    if any(group.has_folds for group in groups):
        return "held-out accuracy"
    tested = any(group.measured("test_accuracy") for group in groups)
    return "test accuracy" if tested else "validation accuracy"


def _mark_best(
    rows: Sequence[Row], groups: Sequence[Group], claims: Sequence[Claim], fair_speed: bool
) -> list[Row]:
    """Mark the measures in which a row is better than all others by more than chance.

    Accuracy: every difference to another row holds. Measured cost: the worst run is better than
    the best run of every other row, with at least two runs each. Counted cost: the smallest.
    """
    ahead = {row.label: set[str]() for row in rows}
    for row in rows:
        lead = [claim for claim in claims if _leads(claim, row.label)]
        if len(rows) > 1 and len(lead) == len(rows) - 1:
            ahead[row.label].add("accuracy")
    for key, sign in MEASURED_COST.items():
        spans = {g.label: sorted(sign * value for value in g.measured(key)) for g in groups}
        shown = {row.label: getattr(row, key) for row in rows}
        same = all(shown[g.label] == _median(g.measured(key)) for g in groups)
        same = same and (fair_speed or key not in SPEEDS)
        if same and all(len(span) > 1 for span in spans.values()):
            _note_smallest(ahead, key, {k: (v[0], v[-1]) for k, v in spans.items()})
    for key in COUNTED_COST:
        counts = {row.label: getattr(row, key) for row in rows}
        if None not in counts.values():
            _note_smallest(ahead, key, {k: (v, v) for k, v in counts.items()})
    return [replace(row, best=frozenset(ahead[row.label])) for row in rows]


def _leads(claim: Claim, label: str) -> bool:
    mine = claim.difference if claim.first == label else -claim.difference
    return claim.holds and mine > 0 and label in (claim.first, claim.second)


def _note_smallest(
    ahead: Mapping[str, set[str]], key: str, spans: Mapping[str, tuple[float, float]]
) -> None:
    """Mark the row whose range of values lies below all other ranges, if there is one."""
    first, *others = sorted(spans, key=lambda label: spans[label])
    if others and spans[first][1] < min(spans[label][0] for label in others):
        ahead[first].add(key)
