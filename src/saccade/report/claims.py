"""The sections on differences in accuracy, with the shared and with the tuned settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from saccade.report.collect import Evidence, number, plain
from saccade.report.figures import differences
from saccade.report.findings import Findings, find
from saccade.report.page import (
    NOTHING,
    Block,
    Cell,
    Column,
    Figure,
    Figures,
    Items,
    Table,
    text_cell,
    text_column,
)
from saccade.report.style import Series
from saccade.report.tables import pairs_table, summary_table
from saccade.report.text import count, headline, percent, sentence, significant

__all__ = ["basis_of_claims", "claimed_differences", "headline_with_tuned", "tuned_settings"]

ONE_SEED_NOTE = (
    "With a single seed, an interval covers new images but not new seeds: a difference may be due "
    "to that seed."
)

CLAIMED = "with two or more seeds each, about 5 % of comparisons or fewer"


def claimed_differences(found: Findings, series: Mapping[str, Series]) -> Iterator[Block]:
    """All differences; those to the baseline come first."""
    claims, others = found.against_baseline, found.others
    if not claims and (found.baseline is not None or not others):
        return
    yield (
        f"Differences in {found.measure} on the same {found.noun}s and seeds, each with a paired "
        f"test. {_family_sentence(found)} {_chance_sentence(found)}"
    )
    if claims:
        yield Items([sentence(claim) for claim in claims])
        text = (
            f"Difference in {found.measure} to {found.baseline} with 95 % intervals; a filled "
            "marker is a difference that holds after the correction for all pairs."
        )
        title = f"Differences to {found.baseline}"
        yield Figures([Figure("differences", title, text, differences(claims, series))])
        if any(claim.has_one_seed for claim in claims):
            yield ONE_SEED_NOTE
    if others:
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


def basis_of_claims(evidence: Evidence) -> str:
    """The comparison's sentence on the setting that its claims rest on; empty without one."""
    told = evidence.results.get("rests_on")
    return plain(told, 1000) if isinstance(told, str) else ""


def headline_with_tuned(evidence: Evidence, shared: str, dataset: str) -> str:
    """The main results with tuned settings, then those with the shared one."""
    if evidence.tuned is None:
        return shared
    tuned = replace(find(evidence.tuned), differing=[])  # tuned runs differ by intention
    return f"Tuned alike: {headline(tuned, dataset)} With one shared setting: {shared}"


def tuned_settings(evidence: Evidence, series: Mapping[str, Series]) -> Iterator[Block]:
    """The searches and their cost, then the table and the claims of the tuned settings."""
    tuning = evidence.results.get("tuning")
    if not isinstance(tuning, dict):
        return
    rows = tuning.get("attentions")
    searches = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if searches:
        yield _cost_sentence(tuning, searches)
        yield searches_table(tuning, searches)
    if evidence.tuned is None:
        yield "No run with a tuned setting is finished."
        return
    found = find(evidence.tuned)
    table = summary_table(found)
    yield replace(table, name="summary_tuned", caption="Summary with tuned settings")
    yield from (_renamed(block) for block in claimed_differences(found, series))


def _renamed(block: Block) -> Block:
    """The block with names of files that differ from those of the shared setting."""
    if isinstance(block, Table):
        return replace(block, name=f"{block.name}_tuned")
    if isinstance(block, Figures):
        own = [replace(figure, name=f"{figure.name}_tuned") for figure in block.figures]
        return replace(block, figures=own)
    return block


def _cost_sentence(tuning: Mapping[str, Any], searches: Sequence[Mapping[str, Any]]) -> str:
    trials = int(sum(number(row.get("trials")) or 0 for row in searches))
    seconds, share = number(tuning.get("seconds")) or 0.0, number(tuning.get("share"))
    part = "" if share is None else f", {percent(share)} of the time of all training"
    each = int(number(tuning.get("trials")) or 0)
    return (
        f"Before the runs, each attention was tuned with {count(each, 'trial')} on validation "
        f"images; no trial used test images. The first trial of each has the shared setting. "
        f"Tuning took {count(trials, 'trial')} and {significant(seconds)} s{part}."
    )


def searches_table(tuning: Mapping[str, Any], searches: Sequence[Mapping[str, Any]]) -> Table:
    """One row for each search."""
    keys = list(dict.fromkeys(plain(key) for row in searches for key in _mapping(row, "space")))
    metric = plain(tuning.get("metric", "value")).replace("_", " ")
    columns = (
        text_column("attention", "attention"),
        *(Column(key, key) for key in ("trials", "pruned", "failed")),
        Column("shared_value", f"{metric}, shared setting"),
        Column("best_value", f"{metric}, best trial"),
        *(Column(key, key.rpartition(".")[2]) for key in keys),
        Column("seconds", "s"),
    )
    space = "; ".join(_space(row) for row in searches)
    return Table(
        "tuning",
        "Tuning",
        columns,
        [_search_row(row, keys) for row in searches],
        f"The value of the best trial is the highest of several on the same validation images, so "
        f"it is too optimistic. Searched: {space}.",
    )


def _space(row: Mapping[str, Any]) -> str:
    keys = [
        f"{plain(k).rpartition('.')[2]} in {plain(v)}" for k, v in _mapping(row, "space").items()
    ]
    return f"{plain(row.get('attention'))}: {', '.join(keys)}"


def _search_row(row: Mapping[str, Any], keys: Sequence[str]) -> list[Cell]:
    name = plain(row.get("attention"))
    found, space = _mapping(row, "settings"), _mapping(row, "space")
    numbers = [number(row.get(k)) for k in ("trials", "pruned", "failed")]
    return [
        text_cell(name),
        *(Cell(NOTHING if n is None else f"{n:.0f}", n) for n in numbers),
        *(_value_cell(row.get(key)) for key in ("shared_value", "best_value")),
        *(_setting_cell(found.get(k)) if k in space and found else Cell(NOTHING) for k in keys),
        _value_cell(row.get("seconds")),
    ]


def _mapping(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = row.get(key)
    return found if isinstance(found, dict) else {}


def _value_cell(value: object) -> Cell:
    return Cell(significant(number(value)), number(value))


def _setting_cell(value: object) -> Cell:
    if value is None:
        return Cell("default", "default")
    known = number(value)
    return Cell(plain(value, 60), plain(value)) if known is None else Cell(f"{known:.4g}", known)
