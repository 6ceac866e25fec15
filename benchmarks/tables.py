"""Write the tables of README.md and docs/results.md from the result files.

    python benchmarks/tables.py           # rewrite the tables in place
    python benchmarks/tables.py --check   # exit with 1 if a table differs from its result file

A page marks a table with `<!-- table: NAME -->` and `<!-- end of table -->`; NAME is a key of
TABLES.
"""

import argparse
import json
import re
import statistics
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end of table -->)", flags=re.DOTALL)

CPU = ROOT / "results" / "attention" / "attention_cpu_202611.json"
H200 = ROOT / "results" / "attention" / "attention_h200_202611.json"
RUNS = ROOT / "results" / "cifar10" / "runs.tar.gz"


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a result file."""
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def attention_on_cpu() -> list[str]:
    """Linear-time Taylor attention beside torch's softmax on two CPU threads."""
    rows = [row for row in rows_of(CPU) if row["direction"] == "forward"]
    lines = [
        "| D | N | softmax (torch) ms | Taylor with D² features ms | Taylor (saccade) ms "
        "| speed-up over softmax | memory: saccade / D² features |",
        "|---|---|---|---|---|---|---|",
    ]
    for d, n in sorted({(row["head_dim"], row["tokens"]) for row in rows}):
        cell = {row["mechanism"]: row for row in rows if (row["head_dim"], row["tokens"]) == (d, n)}
        softmax, ours, plain = (
            cell[m]["timing"]["median_ms"] for m in ("sdpa", "taylor-efficient", "taylor-unfused")
        )
        mib = [cell[m]["peak_extra_mib"] for m in ("taylor-efficient", "taylor-unfused")]
        memory = f"{mib[0]:,.0f} / {mib[1]:,.0f} MiB" if None not in mib else ""
        lines.append(
            f"| {d} | {n:,} | {softmax:,.1f} | {plain:,.1f} | {ours:,.1f} "
            f"| {softmax / ours:.2f}x | {memory} |"
        )
    return lines


def h200_times() -> Callable[[int, int, str], tuple[list[float], list[float]]]:
    """Map (D, N, direction) to ms of softmax (cuDNN, flash) and of Taylor (direct, linear)."""
    ms = {
        (row["head_dim"], row["tokens"], row["direction"], row["mechanism"]): row["timing"][
            "median_ms"
        ]
        for row in rows_of(H200)
        if row["status"] == "timed"
    }

    def times(d: int, n: int, direction: str) -> tuple[list[float], list[float]]:
        softmax = [ms[d, n, direction, f"sdpa-{kind}"] for kind in ("cudnn", "flash")]
        taylor = [ms[d, n, direction, f"taylor-{kind}/triton"] for kind in ("direct", "efficient")]
        return softmax, taylor

    return times


def attention_on_h200() -> list[str]:
    """Fused Taylor attention beside torch's fastest softmax on one H200."""
    lines = [
        "| D | N | softmax: cuDNN, flash ms | Taylor: direct, linear time ms | speed-up "
        "| with backward: softmax, Taylor ms | speed-up |",
        "|---|---|---|---|---|---|---|",
    ]
    times = h200_times()
    for d in (16, 32, 64, 128):
        for n in (1024, 4096, 16384, 65536):
            (cudnn, flash), (direct, linear) = times(d, n, "forward")
            softmax, taylor = times(d, n, "training")
            lines.append(
                f"| {d} | {n:,} | {cudnn:.2f}, {flash:.2f} | {direct:.2f}, {linear:.2f} "
                f"| {min(cudnn, flash) / min(direct, linear):.2f}x "
                f"| {min(softmax):.1f}, {min(taylor):.1f} | {min(softmax) / min(taylor):.2f}x |"
            )
    return lines


def headline() -> list[str]:
    """Speed-ups over the fastest softmax on one H200, with the backward pass, by head dim."""
    tokens = (1024, 4096, 16384, 65536)
    times = h200_times()
    lines = [
        "| head dim | " + " | ".join(f"{n:,} tokens" for n in tokens) + " |",
        "|---" * (1 + len(tokens)) + "|",
    ]
    for d in (16, 32, 64, 128):
        ratios = [
            min(softmax) / min(ours) for softmax, ours in (times(d, n, "training") for n in tokens)
        ]
        lines.append(f"| {d} | " + " | ".join(f"{ratio:.1f}x" for ratio in ratios) + " |")
    return lines


def comparison(backbone: str) -> list[str]:
    """Test accuracy of every attention in one network."""
    path = ROOT / "results" / f"compare_{backbone}_cifar10_h200_202611" / "results.json"
    results = json.loads(path.read_text())
    alone = results.get("speed") == "alone"
    lines = [
        "| attention | test accuracy, 95 % interval | points to softmax | p (corrected) |"
        + (" s/epoch |" if alone else ""),
        "|---|---|---|---|" + ("---|" if alone else ""),
    ]
    for row in sorted(results["rows"], key=lambda row: -row["accuracy"]):
        low, mean, high = (100 * row[f"accuracy{end}"] for end in ("_low", "", "_high"))
        difference, p = "", ""
        if row["difference"] is not None:
            difference = f"{100 * row['difference']:+.2f}"
            p = "< 0.001" if row["p_corrected"] < 0.001 else f"{row['p_corrected']:.2g}"
        lines.append(
            f"| `{row['attention']}` | {mean:.2f} % ({low:.1f} to {high:.1f}) | {difference} "
            f"| {p} |" + (f" {row['seconds_per_epoch']:.2f} |" if alone else "")
        )
    return lines


# What the recipes train: attention and number of tokens, which a summary does not hold.
RECIPES = {
    "cifar10-taylor": "TaylorShift, 64",
    "vit-cifar10": "softmax, 64",
    "taylorshift-vit-mu-cifar10": "TaylorShift, 64",
    "taylorir-large-cifar10": "Taylor, 1,025",
    "taylorir-base-cifar10": "Taylor, 1,025",
    "taylorir-small-cifar10": "Taylor, 1,025",
    "vit-micro-cifar10": "softmax, 65",
}


def summaries_by_recipe() -> dict[str, list[dict[str, Any]]]:
    """The summaries in the archive of run folders, by recipe, in the order of their seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    with tarfile.open(RUNS) as archive:
        names = (name for name in archive.getnames() if name.endswith("/summary.json"))
        for name in sorted(names):
            if (file := archive.extractfile(name)) is not None:
                found.setdefault(name.partition("_")[0], []).append(json.load(file))
    return found


def cifar10_recipes() -> list[str]:
    """Test accuracy of the recipes that were trained on CIFAR-10, from their run folders."""
    lines = [
        "| recipe | attention, tokens | parameters | epochs | test accuracy (range of seeds) |",
        "|---|---|---|---|---|",
    ]
    found = summaries_by_recipe()
    for recipe, network in RECIPES.items():
        summaries = found[recipe]
        accuracies = [100 * summary["test_accuracy"] for summary in summaries]
        spread = f"{min(accuracies):.2f} to {max(accuracies):.2f}, {len(summaries)} seeds"
        first = summaries[0]
        lines.append(
            f"| [`{recipe}`](../src/saccade/recipes/{recipe}.yaml) | {network} "
            f"| {first['parameters'] / 1e6:.2f} M | {first['epochs']} "
            f"| {statistics.fmean(accuracies):.2f} % ({spread}) |"
        )
    return lines


TABLES: dict[str, Callable[[], list[str]]] = {
    "headline": headline,
    "attention-h200": attention_on_h200,
    "attention-cpu": attention_on_cpu,
    "cifar10-recipes": cifar10_recipes,
    "compare-vit": lambda: comparison("vit"),
    "compare-hybrid": lambda: comparison("hybrid"),
}


def with_tables(page: str) -> str:
    """The text of a page with every marked table made anew."""
    return MARKED.sub(lambda m: m[1] + "\n".join([*TABLES[m[2]](), m[3]]), page)


def main() -> int:
    """Rewrite or check the tables of all pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing, exit with 1 if a table differs"
    )
    check = parser.parse_args().check
    stale = []
    for page in PAGES:
        text = page.read_text()
        new = with_tables(text)
        if new != text:
            stale.append(page)
            if not check:
                page.write_text(new)
    for page in stale:
        done = "tables differ from the result files" if check else "rewritten"
        print(f"{page.relative_to(ROOT)}: {done}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
