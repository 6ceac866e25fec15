"""The numbers of a report: a row for each group, and which differences the evidence carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import fmean, median
from typing import Any

from saccade.overlap import TOGETHER
from saccade.report.claims import Answers, Claim, answers_of, compare, tables_of
from saccade.report.collect import Evidence, number, plain
from saccade.report.groups import Group, group_runs
from saccade.statistics import Interval, accuracy_interval

__all__ = ["MOST_PAIRED", "Findings", "Row", "find"]

MOST_PAIRED = 12
"""With more groups than this, each is compared with the baseline alone."""

MEASURED_COST = {"seconds_per_epoch": 1, "img_per_s": -1, "peak_memory_mib": 1}
"""What was measured in every run, with the sign that makes less the better."""

SPEEDS = ("seconds_per_epoch", "img_per_s")

COUNTED_COST = ("parameters", "flops")


@dataclass(frozen=True)
class Row:
    """What is known of a group; None where it was not measured.

    Attributes:
        best: The measures in which it is ahead of all others by more than chance.
    """

    label: str
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
    """All that the sections tell.

    Attributes:
        baseline: What the others are compared with; None where the comparison's has no run, and
            all pairs are in `others`.
        named_baseline: The comparison's; empty where the folder is none.
        failed: The attentions of the comparison of which every run failed.
        unfinished: Its other attentions without a run.
        datasets: The data sets that the runs were made on. Nothing is compared across several.
        measure: What accuracy was measured on, in words.
        notes: What the comparison itself wants its readers to know.
        fair_speed: Whether speeds can be compared: no run was slowed down by another that trained
            at the same time, or they were measured afterwards.
        fair_times: Whether the times of the runs themselves can be compared.
        differing: Keys besides the attention in which the runs differ.
        others: Claims about pairs without the baseline, corrected among themselves.
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
    latency_batch: int | None
    latency_eval_batch: int | None
    notes: list[str]
    fair_speed: bool
    fair_times: bool
    differing: list[str]
    others: list[Claim]

    @property
    def is_comparable(self) -> bool:
        """Whether all accuracies are on the same data."""
        return len(self.datasets) == 1

    @property
    def has_short_names(self) -> bool:
        """Whether set-ups of one attention are called by fewer keys than they differ in."""
        one_attention = len({group.attention for group in self.groups}) == 1
        return one_attention and not all(g.named.issuperset(self.differing) for g in self.groups)

    @property
    def has_mixed_seeds(self) -> bool:
        """Whether some difference is not over all seeds that there are."""
        seeds = frozenset[int]().union(*(group.seeds for group in self.groups))
        return any(seeds != set(claim.seeds) for claim in (*self.against_baseline, *self.others))

    @property
    def without_shared_seed(self) -> list[str]:
        """The groups that have no seed in common with the baseline, if there is one."""
        base = [group.seeds for group in self.groups if group.label == self.baseline]
        return [group.label for group in self.groups if base and not group.seeds & base[0]]

    @property
    def has_intervals(self) -> bool:
        """Whether any accuracy comes with one."""
        return any(row.accuracy_low is not None for row in self.rows)

    @property
    def against_baseline(self) -> list[Claim]:
        """The claims about the baseline."""
        return [row.against_baseline for row in self.rows if row.against_baseline is not None]


def find(evidence: Evidence) -> Findings:
    """Group the runs, measure each group and compare the groups, if all are on the same data."""
    order = evidence.study.get("attentions")
    known = [plain(name) for name in order] if isinstance(order, list) else []
    groups, differing = group_runs(evidence.runs, known)
    answers = {group.label: answers_of(group) for group in groups}
    named = _named_baseline(evidence)
    baseline = _baseline(named, groups)
    datasets = sorted({run.dataset for run in evidence.runs})
    alike = len(datasets) == 1
    others = [label for label in answers if label != baseline] if alike else []
    claims = compare([(label, baseline) for label in others if baseline], answers)
    pairs = list(combinations(others, 2)) if len(groups) <= MOST_PAIRED else []
    more_claims = compare(pairs, answers)
    noted = _noted_rows(evidence.results) if alike else {}
    speed = _whose_speed(evidence)
    fair_speed = speed != "shared"
    rows = _with_noted_memory(_rows(groups, answers, claims, noted, baseline), noted)
    if speed == "alone":
        rows = _with_noted_speed(rows, noted)
    if alike:
        rows = _mark_best(rows, groups, [*claims, *more_claims], fair_speed)
    counts = (len(own.target) for seeds in answers.values() for own in seeds.values())
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
        images=max(counts, default=0) if alike else 0,
        latency_batch=_noted_count(noted, "latency_batch"),
        latency_eval_batch=_noted_count(noted, "latency_eval_batch"),
        notes=_notes(evidence, speed),
        fair_speed=fair_speed,
        fair_times=speed == "own",
        differing=differing,
        others=more_claims,
    )


def _in_order(rows: Sequence[Row], groups: Sequence[Group]) -> list[Group]:
    places = {row.label: place for place, row in enumerate(rows)}
    return sorted(groups, key=lambda group: places[group.label])


def _rows(
    groups: Sequence[Group],
    answers: Mapping[str, Mapping[int, Answers]],
    claims: Sequence[Claim],
    noted: Mapping[str, Mapping[str, Any]],
    baseline: str | None,
) -> list[Row]:
    """A row for each group, in their order; set-ups of one attention go by their accuracy.

    Those on different data stay apart.
    """
    by_label = {claim.first: claim for claim in claims}
    rows = []
    for group in groups:
        own = noted.get(group.label, {})
        claim = by_label.get(group.label) or _noted_claim(own, group, baseline)
        rows.append(_row(group, answers[group.label], claim, own))
    if len({group.attention for group in groups}) == 1:
        datasets = {group.label: group.dataset for group in groups}
        rows.sort(key=lambda row: (datasets[row.label], -row.accuracy, row.label))
    return rows


def _row(
    group: Group, answers: Mapping[int, Answers], claim: Claim | None, noted: Mapping[str, Any]
) -> Row:
    tables = tables_of(answers)
    interval = accuracy_interval(tables[0]) if tables else _noted_interval(noted)
    return Row(
        label=group.label,
        runs=len(group.runs),
        seeds=len(group.seeds),
        accuracy=interval.mean if interval else fmean(group.accuracies.values()),
        accuracy_low=interval.low if interval else None,
        accuracy_high=interval.high if interval else None,
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
    """The comparison's own measure of memory where it has one, which sees one variant at a time.

    The peak in a run's summary is that of its whole process, which may have held others before.
    """
    memory = {name: number(row.get("peak_memory_mib")) for name, row in noted.items()}
    if not any(memory.values()):
        return rows
    return [replace(row, peak_memory_mib=memory.get(row.label)) for row in rows]


def _with_noted_speed(rows: list[Row], noted: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The comparison's own measure of speed, taken after runs that shared a device."""
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
    """The rows of a comparison's own results, by attention."""
    rows = results.get("rows")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return {plain(row.get("attention")): row for row in found}


def _noted_count(noted: Mapping[str, Mapping[str, Any]], key: str) -> int | None:
    counts = (number(row.get(key)) for row in noted.values())
    return next((int(count) for count in counts if count), None)


def _whose_speed(evidence: Evidence) -> str:
    """What the comparison says of its speeds, or what the times of the runs say.

    Speeds measured "alone" are sound however the runs were trained; their "own" are so where none
    trained beside another.
    """
    noted = evidence.results.get("speed")
    if noted in ("alone", "shared"):
        return str(noted)
    return "shared" if evidence.together else "own"


def _notes(evidence: Evidence, speed: str) -> list[str]:
    """The comparison's notes, or what a reader has to know of runs that were in none."""
    notes = evidence.results.get("notes")
    if isinstance(notes, list):
        return [plain(note) for note in notes]
    return [TOGETHER] if speed == "shared" else []


def _noted_interval(noted: Mapping[str, Any]) -> Interval | None:
    """The interval that the comparison wrote, for runs that kept no predictions."""
    values = [number(noted.get(f"accuracy{part}")) for part in ("", "_low", "_high")]
    known = [value for value in values if value is not None]
    return Interval(*known) if len(known) == len(values) else None


def _noted_claim(noted: Mapping[str, Any], group: Group, baseline: str | None) -> Claim | None:
    """The difference that the comparison wrote, for runs that kept no predictions."""
    keys = ("difference", "difference_low", "difference_high", "p_value", "p_corrected")
    known = [value for key in keys if (value := number(noted.get(key))) is not None]
    if len(known) < len(keys) or baseline is None:
        return None
    difference, low, high, p_value, p_corrected = known
    seeds = tuple(sorted(group.seeds))
    return Claim(group.label, baseline, difference, low, high, p_value, p_corrected, seeds)


def _named_baseline(evidence: Evidence) -> str:
    """The comparison's baseline; empty where the folder is no comparison."""
    records = (evidence.results, evidence.study)
    return next((plain(own["baseline"]) for own in records if own.get("baseline")), "")


def _baseline(named: str, groups: Sequence[Group]) -> str | None:
    """The one that is named, if it has runs; where none is, softmax or the first."""
    labels = [group.label for group in groups]
    if not named:
        return "softmax" if "softmax" in labels else labels[0]
    own = [group.label for group in groups if group.attention == named]
    return named if named in labels else next(iter(own), None)


def _without_runs(evidence: Evidence, planned: Sequence[str]) -> tuple[list[str], list[str]]:
    """The attentions of a comparison of which nothing is left: all runs failed, or not all did."""
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
    """Note where a row is ahead of all others by more than chance.

    Accuracy: every difference to another holds. Measured cost: its worst run is better than the
    best run of any other, with two runs or more each. Counted cost: it is smaller than the others.
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
    """Note the row whose span of values lies below all other spans, if there is one."""
    first, *others = sorted(spans, key=lambda label: spans[label])
    if others and spans[first][1] < min(spans[label][0] for label in others):
        ahead[first].add(key)
