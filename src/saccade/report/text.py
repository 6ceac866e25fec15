"""Format numbers and write the sentences of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from saccade.report.findings import Findings, Row
from saccade.report.page import NOTHING
from saccade.results import MAX_PAIRED, Claim

__all__ = [
    "GLUE",
    "count",
    "duration",
    "headline",
    "interval",
    "listed",
    "p_text",
    "percent",
    "points",
    "sentence",
    "significant",
    "spelled",
]

SPELLED = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
MAX_NAMED = 4
MINUS, GLUE = "\u2212", "\u00a0"


def percent(fraction: float) -> str:
    """An accuracy in percent, with one decimal."""
    return f"{100 * fraction:.1f}{GLUE}%"


def points(fraction: float, *, signed: bool = True) -> str:
    """A difference of accuracies in percentage points, without the unit."""
    text = f"{100 * fraction:+.1f}" if signed else f"{100 * abs(fraction):.1f}"
    text = "0.0" if text in ("+0.0", "-0.0") else text
    return text.replace("-", MINUS)


def interval(low: float | None, high: float | None) -> str:
    """Bounds of a fraction in percent, or an empty string if a bound is None."""
    return "" if low is None or high is None else f"[{100 * low:.1f}, {100 * high:.1f}]"


def p_text(p: float, *, bare: bool = False) -> str:
    """A rounded p value; `bare` omits the "p =" for use in a column of p values."""
    if p < 0.001:
        return f"<{GLUE}0.001" if bare else f"p{GLUE}<{GLUE}0.001"
    digits = f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
    return digits if bare else f"p{GLUE}={GLUE}{digits}"


def count(number: int, noun: str) -> str:
    """A number with its noun in the singular or plural."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def spelled(number: int) -> str:
    """A number at the start of a title: a word up to ten, digits above."""
    return SPELLED[number] if number < len(SPELLED) else str(number)


def listed(names: Sequence[str]) -> str:
    """Names joined as in a sentence: `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def significant(value: float | None, digits: int = 3) -> str:
    """A number with this many significant digits and thousands separators; a dash for None."""
    if value is None:
        return NOTHING
    if value and not 1e-3 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".removesuffix(".")


def sentence(claim: Claim) -> str:
    """One sentence on the difference between two groups."""
    bounds = f"[{points(claim.low)},{GLUE}{points(claim.high)}]"
    text = f"{points(claim.difference)} points {bounds}, {p_text(claim.p_corrected)} (corrected)"
    text += ", one seed" if claim.has_one_seed else ""
    if not claim.holds:
        return f"{claim.first} and {claim.second}: no difference can be claimed, {text}."
    word = "better" if claim.difference > 0 else "worse"
    return f"{claim.first} is {word} than {claim.second}: {text}."


def headline(found: Findings, dataset: str) -> str:
    """A few sentences: attentions without a run, then the main results."""
    return " ".join([*_missing_sentences(found), *_result_sentences(found, dataset)])


def _missing_sentences(found: Findings) -> Iterator[str]:
    """Name the attentions without a finished run, and say so if the baseline is one of them."""
    for names, text in (
        (found.failed, "Every run of {} failed"),
        (found.unfinished, "No run of {} is finished"),
    ):
        if names:
            more = len(names) - MAX_NAMED
            shown = [*names[:MAX_NAMED], *([f"{more} more"] if more > 0 else [])]
            yield f"{text.format(listed(shown))}; the reasons are listed at the end."
    if found.baseline is None and found.is_comparable:
        rest = "the others are compared pair by pair" if found.others else "nothing is compared"
        yield f"{found.named_baseline} is the baseline, and without a run of it {rest}."


def _result_sentences(found: Findings, dataset: str) -> list[str]:
    if not found.is_comparable:
        return [_data_sets_sentence(found)]
    if len(found.rows) == 1:
        return [_single_sentence(found.rows[0], found, dataset)]
    settings = [_settings_sentence(found)] if found.differing else []
    return [_accuracy_sentence(found, dataset), *_cost_sentences(found), *settings]


def _settings_sentence(found: Findings) -> str:
    """Name the settings in which the runs differ."""
    more = " and more" if len(found.differing) > MAX_NAMED else ""
    keys = f"{listed(found.differing[:MAX_NAMED])}{more}"
    if len({group.attention for group in found.groups}) > 1:
        return (
            f"The runs differ in more than the attention ({keys}), so no result here can be "
            "attributed to the attention alone."
        )
    some = "; the names of the set-ups show only some of these" if found.has_short_names else ""
    return f"The runs differ in {keys}{some}."


def _single_sentence(row: Row, found: Findings, dataset: str) -> str:
    bounds = interval(row.accuracy_low, row.accuracy_high)
    images = f" ({count(found.images, found.noun)})" if found.images else ""
    runs = f", the mean of {count(row.runs, 'run')}" if row.runs > 1 else ""
    value = f"{percent(row.accuracy)} {bounds}".strip()
    return f"{row.label} reaches {value} {found.measure} on {dataset}{images}{runs}."


def _data_sets_sentence(found: Findings) -> str:
    number = spelled(len(found.datasets)).lower()
    return (
        f"The runs are on {number} data sets, {listed(found.datasets)}. Accuracies on different "
        "data cannot be compared: nothing is ranked and no difference is claimed here. Make a "
        "report on the runs of one data set to compare them."
    )


def _accuracy_sentence(found: Findings, dataset: str) -> str:
    claims = found.against_baseline
    if found.baseline is None:
        claims = found.others
    if not claims:
        return _unpaired_sentence(found, dataset)
    if found.baseline is None and len(claims) > 1:
        return _pairs_sentence(found, dataset)
    better = [claim for claim in claims if claim.holds and claim.difference > 0]
    worse = [claim for claim in claims if claim.holds and claim.difference < 0]
    open_ones = [claim for claim in claims if not claim.holds]
    base = next(row for row in found.rows if row.label == claims[0].second)
    level = f"{base.label} ({percent(base.accuracy)})"
    if not better and not worse:
        return _no_difference_sentence(open_ones, level, dataset)
    parts = [
        f"{opening}{listed([claim.first for claim in some])} {'is' if len(some) == 1 else 'are'} "
        f"{word} than {level} on {dataset}, by {_difference_range(some)}"
        for holding, word in ((better, "more accurate"), (worse, "less accurate"))
        for opening, some in _split_by_seeds(holding)
    ]
    rest = listed([claim.first for claim in open_ones]) if open_ones else ""
    return (
        ". ".join([*parts, *([f"For {rest} no difference can be claimed"] if rest else [])]) + "."
    )


def _pairs_sentence(found: Findings, dataset: str) -> str:
    """The highest accuracy and the number of pairs that differ; used without a baseline."""
    text, link = _highest_clause(found, dataset)
    pairs, holding = len(found.others), sum(claim.holds for claim in found.others)
    if not holding:
        return f"{text}, {link} none of the {pairs} pairs shows a difference."
    return f"{text}; {holding} of {pairs} pairs differ{'s' if holding == 1 else ''}."


def _unpaired_sentence(found: Findings, dataset: str) -> str:
    text, link = _highest_clause(found, dataset)
    return f"{text}, {link} no difference can be claimed: {_unpaired_reason(found)}."


def _highest_clause(found: Findings, dataset: str) -> tuple[str, str]:
    """The rows with the highest displayed accuracy, and the conjunction for the next clause."""
    highest = percent(max(row.accuracy for row in found.rows))
    top = [row.label for row in found.rows if percent(row.accuracy) == highest]
    if len(top) == len(found.rows):
        text = f"{'Both' if len(top) == 2 else f'All {len(top)}'} have the same"
    elif len(top) > MAX_NAMED:
        text = f"{len(top)} of {len(found.rows)} share the highest"
    elif len(top) > 1:
        text = f"{listed(top)} share the highest"
    else:
        text = f"{'The set-up called ' if found.has_short_names else ''}{top[0]} has the highest"
    link = "and" if len(top) == len(found.rows) else "but"
    return f"{text} {found.measure} on {dataset}, {highest}", link


def _unpaired_reason(found: Findings) -> str:
    others = len(found.rows) - 1
    if found.baseline is None and len(found.rows) > MAX_PAIRED:
        return f"more than {MAX_PAIRED} are compared with a baseline alone"
    if not found.images or len(found.without_shared_seed) < others:
        return f"the runs kept no predictions of the same {found.noun}s"
    if others == 1:
        return "the two have no seed in common"
    return f"none has a seed in common with {found.baseline}"


def _split_by_seeds(claims: Sequence[Claim]) -> Iterator[tuple[str, list[Claim]]]:
    """Claims over several seeds, then claims over one seed, each with the start of a sentence."""
    for opening, is_one in (("", False), ("With one seed, ", True)):
        some = [claim for claim in claims if claim.has_one_seed is is_one]
        if some:
            yield opening, some


def _no_difference_sentence(claims: Sequence[Claim], level: str, dataset: str) -> str:
    if len(claims) == 1:
        return (
            f"No difference in accuracy between {claims[0].first} and {level} on {dataset} can "
            f"be claimed: {points(claims[0].difference)} points, {p_text(claims[0].p_corrected)}."
        )
    sizes = [claim.difference for claim in claims]
    low, high = points(min(sizes)), points(max(sizes))
    where = low if low == high else f"{low} to {high}"
    return (
        f"None of the {len(claims)} others can be called more or less accurate than {level} on "
        f"{dataset}: they lie {where} points from it, no more than chance "
        "can explain."
    )


def _difference_range(claims: Sequence[Claim]) -> str:
    sizes = [abs(claim.difference) for claim in claims]
    low, high = points(min(sizes), signed=False), points(max(sizes), signed=False)
    return f"{low} points" if low == high else f"{low} to {high} points"


def _cost_sentences(found: Findings) -> list[str]:
    """One sentence for each group with a cost that is clearly lower than all others'."""
    base = next((row for row in found.rows if row.label == found.baseline), None)
    sentences = []
    for row in found.rows:
        ahead = []
        if "img_per_s" in row.best and row.img_per_s:
            times = ""
            if base and base.img_per_s and row != base:
                times = f" ({row.img_per_s / base.img_per_s:.1f} times {base.label})"
            speed = f"{significant(row.img_per_s)} {found.noun}s a second{times}"
            ahead.append(f"trains fastest, {speed}")
        if "peak_memory_mib" in row.best:
            ahead.append(f"needs the least memory, {significant(row.peak_memory_mib)} MiB")
        sentences += [f"{row.label} {', and '.join(ahead)}."] if ahead else []
    return sentences
