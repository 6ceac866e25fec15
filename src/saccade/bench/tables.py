"""Tables of results for the terminal and the Markdown files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from saccade.bench.clock import Timing
from saccade.bench.crossings import Point
from saccade.bench.presets import Verdict
from saccade.bench.results import AttentionResult, Row, softmax_crossovers

__all__ = [
    "Table",
    "as_markdown",
    "markdown_table",
    "number",
    "provenance",
    "spread",
    "summaries",
    "unsteady",
    "verdict_table",
]

COLUMNS = (
    "D",
    "N",
    "B x H",
    "pass",
    "mechanism",
    "ms (p20-p80)",
    "x softmax",
    "TFLOP/s",
    "% of roof",
    "MiB",
    "error (allowed)",
)
VERDICT_COLUMNS = ("mechanism", "against", "of", "pass", "D", "N", "asked", "measured", "")


class Table(NamedTuple):
    """A table independent of the output format."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


def number(value: float | None) -> str:
    """Format a number with three significant digits; an exponent only below 0.01."""
    if value is None:
        return "-"
    if value and abs(value) < 0.01:
        return f"{value:.1e}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(timing: Timing | Point) -> str:
    """Median with 20th and 80th percentile."""
    return f"{number(timing.median_ms)} ({number(timing.p20_ms)}-{number(timing.p80_ms)})"


def _cells(result: AttentionResult, row: Row) -> tuple[str, ...]:
    head = (
        str(row.head_dim),
        str(row.tokens),
        f"{row.batch} x {row.heads}",
        row.direction,
        row.mechanism,
    )
    error = "-"
    if row.errors:
        worst = max(row.errors, key=lambda name: row.errors[name] / row.allowed[name])
        error = f"{worst} {row.errors[worst]:.1e} ({row.allowed[worst]:.1e})"
    if row.timing is None:
        return (*head, row.status, "-", "-", "-", "-", error)
    timing = row.timing
    return (
        *head,
        spread(timing),
        number(result.speedup(row)),
        number(row.tflops),
        number(row.roof_percent),
        number(row.peak_extra_mib),
        error,
    )


def _verdict_cells(verdict: Verdict) -> tuple[str, ...]:
    """The cells of a target and its measured ratio."""
    target = verdict.target
    return (
        target.mechanism,
        target.peer,
        target.measure,
        target.direction,
        str(target.head_dim),
        str(target.tokens),
        f">= {number(target.at_least)}x",
        "-" if verdict.ratio is None else f"{number(verdict.ratio)}x",
        verdict.word + (f" ({verdict.reason})" if verdict.reason else ""),
    )


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Every target with its measured ratio."""
    reached = sum(verdict.word == "reached" for verdict in verdicts)
    title = f"Targets: {reached} of {len(verdicts)} reached"
    return Table(title, VERDICT_COLUMNS, [_verdict_cells(verdict) for verdict in verdicts])


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def as_markdown(result: AttentionResult, verdicts: Sequence[Verdict], figure: str | None) -> str:
    """The whole result as a Markdown page."""
    parts = [_heading(result)]
    if figure is not None:
        parts.append(f"![time and memory over the number of tokens]({figure})\n")
    targets = [verdict_table(verdicts)] if verdicts else []
    for table in [*targets, *summaries(result)]:
        parts += [f"## {table.title}\n", markdown_table(table.columns, table.lines)]
    parts += ["## Every row\n", markdown_table(COLUMNS, (_cells(result, r) for r in result.rows))]
    notes = [row for row in result.rows if row.reason]
    if notes:
        parts.append("## Rows with a remark\n")
        columns = ("D", "N", "pass", "mechanism", "status", "remark")
        parts.append(markdown_table(columns, map(_remark, notes)))
    return "\n".join(parts)


def _remark(row: Row) -> tuple[str, ...]:
    place = (str(row.head_dim), str(row.tokens), row.direction, row.mechanism)
    return (*place, row.status, row.reason.replace("|", "\\|"))


def _heading(result: AttentionResult) -> str:
    facts, roof = result.environment, result.roof
    state = "" if result.complete else "\n**Interrupted: later rows are missing.**\n"
    return (
        f"# Attention on {facts['device_name']}\n\n{provenance(facts)}\n\n"
        "Medians of repeated calls after a warm-up, with the 20th and 80th percentile. `training` "
        "is forward and backward. `x softmax` is the speed-up over the fastest softmax of the same "
        "shape in this run. The roof, measured in this run: "
        f"{number(roof.matmul_tflops)} TFLOP/s of matrix products, "
        f"{number(roof.copy_gb_per_s)} GB/s of copies. Errors are relative to float64; the allowed "
        "error is twice that of the equation in the same dtype.\n" + state
    )


def provenance(facts: Mapping[str, Any]) -> str:
    """A sentence with the command, date, known versions and revision."""
    named = {
        **facts["packages"],
        "Python": facts["python"],
        "driver": facts["driver"],
        "CUDA": facts["cuda"],
        "revision": facts["git_revision"],
    }
    known = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
    return f"`{facts['command']}`, {facts['time'][:10]}, {facts['threads']} CPU threads, {known}."


def summaries(result: AttentionResult) -> list[Table]:
    """One table for each D and pass: milliseconds and speed-up by mechanism (rows) and N."""
    starts = {
        (found["mechanism"], found["head_dim"], found["direction"]): found
        for found in softmax_crossovers(result)
    }
    tables = []
    for head_dim, direction in dict.fromkeys((r.head_dim, r.direction) for r in result.rows):
        rows = [r for r in result.rows if (r.head_dim, r.direction) == (head_dim, direction)]
        lengths = sorted({row.tokens for row in rows})
        lines = []
        for mechanism in dict.fromkeys(row.mechanism for row in rows):
            found = {row.tokens: row for row in rows if row.mechanism == mechanism}
            across = [_short(result, found.get(tokens)) for tokens in lengths]
            start = _start(starts.get((mechanism, head_dim, direction)))
            lines.append([mechanism, *across, start, number(found[max(found)].peak_extra_mib)])
        columns = ["ms (x softmax)", *(f"N = {tokens}" for tokens in lengths)]
        columns += ["faster from N", "MiB at its last N"]
        tables.append(Table(f"D = {head_dim}, {direction}", columns, lines))
    return tables


def unsteady(timings: Mapping[str, Timing | None]) -> str:
    """A remark that names calls with a large spread of times; empty if there are none."""
    named = [
        f"{name} ({number(timing.p20_ms)} to {number(timing.p80_ms)} ms)"
        for name, timing in timings.items()
        if timing is not None and timing.is_unsteady
    ]
    if not named:
        return ""
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return f"unsteady: {', '.join(named[:3])}{more}; is the machine busy with something else?"


def _short(result: AttentionResult, row: Row | None) -> str:
    if row is None:
        return ""
    if row.timing is None:
        return row.status
    speedup = result.speedup(row)
    ratio = "" if speedup is None else f" ({number(speedup)}x)"
    return f"{number(row.timing.median_ms)}{ratio}"


def _start(found: dict[str, object] | None) -> str:
    if found is None:
        return ""
    tokens = found["tokens"]
    if not isinstance(tokens, float):
        return "never here"
    return f"<= {tokens:.0f}" if tokens == found["first_tokens"] else f"{tokens:.0f}"
