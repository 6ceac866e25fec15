"""The section on differences in accuracy: the claims and their error rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from saccade.report.comparison_figures import differences
from saccade.report.findings import Findings
from saccade.report.page import Block, Figure, Figures, Items
from saccade.report.style import Series
from saccade.report.tables import pairs_table
from saccade.report.text import sentence

__all__ = ["claimed_differences"]

ONE_SEED_NOTE = (
    "With a single seed, an interval covers new images but not new seeds: a difference may be due "
    "to that seed."
)

CLAIMED = "with two or more seeds each, about 5 % of comparisons or fewer"


def claimed_differences(found: Findings, series: Mapping[str, Series]) -> Iterator[Block]:
    """All differences; those to the baseline come first."""
    claims = found.against_baseline
    if found.baseline is None and found.others:
        yield (
            f"Differences in {found.measure} on the same {found.noun}s and seeds, each with a "
            f"paired test. {_family_sentence(found)} {_chance_sentence(found)}"
        )
        yield from _pair_blocks(found)
    if not claims:
        return
    yield (
        f"Differences in {found.measure} on the same {found.noun}s and seeds, each with a paired "
        f"test. {_family_sentence(found)} {_chance_sentence(found)}"
    )
    yield Items([sentence(claim) for claim in claims])
    yield Figures(
        [
            Figure(
                "differences",
                f"Differences to {found.baseline}",
                f"Difference in {found.measure} to {found.baseline} with 95 % intervals; a filled "
                "marker is a difference that holds after the correction for all pairs.",
                differences(claims, series),
            )
        ]
    )
    if any(claim.has_one_seed for claim in claims):
        yield ONE_SEED_NOTE
    if found.others:
        yield from _pair_blocks(found)


def _pair_blocks(found: Findings) -> Iterator[Block]:
    holding = [claim for claim in found.others if claim.holds]
    yield _others_sentence(len(found.others), len(holding), found.baseline)
    if holding:
        yield Items([sentence(claim) for claim in holding])
    if found.baseline is None and any(claim.has_one_seed for claim in found.others):
        yield ONE_SEED_NOTE
    yield pairs_table(found)


def _family_sentence(found: Findings) -> str:
    """A sentence on the claims that share one error rate."""
    pairs = len(found.against_baseline) + len(found.others)
    if pairs == 1:
        return f"In simulations of equal methods, {CLAIMED} claimed a difference."
    return (
        f"All {pairs} pairs on this page are one family: their p values are corrected together. In "
        f"simulations of equal methods, {CLAIMED} claimed any difference. Intervals are 95 % each "
        "by itself."
    )


def _chance_sentence(found: Findings) -> str:
    """A sentence on the sources of chance in the tests."""
    single = [claim.has_one_seed for claim in found.against_baseline or found.others]
    if all(single):
        shared = (
            f"none has more than one seed in common with {found.baseline}"
            if found.baseline
            else "no two have more than one seed in common"
        )
        return (
            f"Only {found.noun}s count as chance: "
            f"{shared if found.has_mixed_seeds else 'there is one seed'}."
        )
    both = f"{found.noun.capitalize()}s and seeds both count as chance"
    alone = f", or {found.noun}s alone where two have one seed in common" if any(single) else ""
    return f"{both}{alone}."


def _others_sentence(pairs: int, holding: int, baseline: str | None) -> str:
    without = f" without {baseline}" if baseline else ""
    if pairs == 1:
        return f"The one pair{without} {'differs' if holding else 'shows no difference'}."
    told = f"{holding} of them differ{'s' if holding == 1 else ''}"
    return f"Among the {pairs} pairs{without}, {told if holding else 'none shows a difference'}."
