"""The README tells the truth: its benchmark table is the result file's, its links exist."""

import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from saccade.config import differences, load_config, recipe_text
from saccade.models.variants import MODELS
from saccade.study.comparison import ComparisonFolder
from saccade.study.comparison.results import collect

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def benchmark_table(path: Path) -> str:
    """The README's table, made from a result file."""
    rows = [r for r in json.loads(path.read_text())["rows"] if r["direction"] == "forward"]
    shapes = sorted({(r["head_dim"], r["tokens"]) for r in rows})
    lines = [
        "| D | N | softmax (torch) ms | Taylor, D² features ms | Taylor, ours ms "
        "| faster than softmax | memory, ours / D² features |",
        "|---|---|---|---|---|---|---|",
    ]
    for d, n in shapes:
        cell = {r["mechanism"]: r for r in rows if (r["head_dim"], r["tokens"]) == (d, n)}
        softmax, ours, plain = (
            cell[m]["timing"]["median_ms"] for m in ("sdpa", "taylor-efficient", "taylor-unfused")
        )
        mib = [cell[m]["peak_extra_mib"] for m in ("taylor-efficient", "taylor-unfused")]
        memory = f"{mib[0]:,.0f} / {mib[1]:,.0f} MiB" if None not in mib else ""
        lines.append(
            f"| {d} | {n:,} | {softmax:,.1f} | {plain:,.1f} | {ours:,.1f} "
            f"| {softmax / ours:.2f}x | {memory} |"
        )
    return "\n".join(lines)


def gpu_table(path: Path) -> str:
    """The README's table of fused kernels, made from a result file."""
    rows = json.loads(path.read_text())["rows"]
    ms = {
        (r["head_dim"], r["tokens"], r["direction"], r["mechanism"]): r["timing"]["median_ms"]
        for r in rows
        if r["status"] == "timed"
    }
    lines = [
        "| D | N | softmax: cuDNN, flash ms | direct ms | linear time ms | the better one "
        "| with backward: softmax, better Taylor ms | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for d in (16, 32, 64, 128):
        for n in (1024, 4096, 16384, 65536):
            cells = {}
            for way in ("forward", "training"):
                softmax = [ms[d, n, way, f"sdpa-{kind}"] for kind in ("cudnn", "flash")]
                ours = [ms[d, n, way, f"taylor-{kind}/triton"] for kind in ("direct", "efficient")]
                cells[way] = softmax, ours, f"{min(softmax) / min(ours):.2f}x"
            (cudnn, flash), (direct, linear), faster = cells["forward"]
            softmax, ours, trained = cells["training"]
            lines.append(
                f"| {d} | {n:,} | {cudnn:.2f}, {flash:.2f} | {direct:.2f} | {linear:.2f} "
                f"| {faster} | {min(softmax):.1f}, {min(ours):.1f} | {trained} |"
            )
    return "\n".join(lines)


# What the study that this comparison repeats published (its Performers attended over one token).
PUBLISHED = {
    "softmax": 84.79,
    "performer_relu": 87.39,
    "performer_gelu": 88.64,
    "performer_exp": 86.17,
    "performer_elu": 77.48,
    "performer_ftheta": 85.08,
}


def comparison_table(path: Path) -> str:
    """The README's table of attentions, made from the results of a comparison.

    Seconds are told where attentions were measured one at a time.
    """
    results = json.loads(path.read_text())
    alone = results.get("speed") == "alone"
    lines = [
        "| attention | test accuracy, 95 % interval | points to softmax | p (Holm) | published |",
        "|---|---|---|---|---|",
    ]
    if alone:
        lines = [f"{line} {more} |" for line, more in zip(lines, ("s/epoch", "---"), strict=True)]
    for row in sorted(results["rows"], key=lambda row: -row["accuracy"]):
        low, mean, high = (100 * row[f"accuracy{end}"] for end in ("_low", "", "_high"))
        apart, chance = "", ""
        if row["difference"] is not None:
            apart = f"{100 * row['difference']:+.2f}"
            chance = "< 0.001" if row["p_corrected"] < 0.001 else f"{row['p_corrected']:.2g}"
        published = PUBLISHED.get(row["attention"])
        lines.append(
            f"| `{row['attention']}` | {mean:.2f} % ({low:.1f} to {high:.1f}) | {apart} | {chance} "
            f"| {f'{published:.2f} %' if published else ''} |"
            + (f" {row['seconds_per_epoch']:.2f} |" if alone else "")
        )
    return "\n".join(lines)


TABLES = {
    "benchmarks/attention_cpu_202611.json": benchmark_table,
    "benchmarks/attention_h200_202611.json": gpu_table,
    "benchmarks/compare_vit_cifar10_h200_202611/results.json": comparison_table,
    "benchmarks/compare_hybrid_cifar10_h200_202611/results.json": comparison_table,
}


def test_the_benchmark_tables_are_the_result_files():
    found = re.findall(r"<!-- table: (\S+) -->\n(.*?)\n<!-- end of table -->", README, re.DOTALL)
    assert [path for path, _ in found] == list(TABLES)
    for path, table in found:
        assert table == TABLES[path](ROOT / path)


def test_the_accuracies_are_those_of_the_runs():
    found = {}
    for run in sorted((ROOT / "benchmarks" / "runs").iterdir()):
        found.setdefault(run.name.partition("_")[0], []).append(run)
    assert list(found) == [
        "cifar10-taylor",
        "taylorir-base-cifar10",
        "taylorir-large-cifar10",
        "taylorir-small-cifar10",
        "taylorshift-vit-mu-cifar10",
        "vit-cifar10",
        "vit-micro-cifar10",
    ]
    for recipe, runs in found.items():
        summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
        accuracies = [100 * summary["test_accuracy"] for summary in summaries]
        mean, count = statistics.fmean(accuracies), len(runs)
        told = f"{mean:.2f} %"
        if count > 1:
            told += f" ({min(accuracies):.2f} to {max(accuracies):.2f}, {count} seeds)"
            assert [summary["seed"] for summary in summaries] == list(range(count))
        row = next(line for line in README.splitlines() if f"benchmarks/runs/{recipe}_" in line)
        assert row.endswith(f"| {summaries[0]['epochs']} | {told} |")
        header = (ROOT / f"src/saccade/recipes/{recipe}.yaml").read_text()
        assert f"{mean:.2f} % on the test set" in header
        if count > 1:
            seeds = ", ".join(f"{accuracy:.2f}" for accuracy in accuracies)
            assert f"({seeds}; spread {statistics.stdev(accuracies):.2f}" in header


def test_the_runs_are_those_of_the_recipes():
    """But for the seed, and what depends on the machine."""
    for run in sorted((ROOT / "benchmarks" / "runs").iterdir()):
        recipe = load_config(run.name.partition("_")[0])
        ignored = {"run.seed", "train.device", "data.root"}
        ignored |= {"train.precision"} if "_cpu_" in run.name else set()
        assert differences(load_config(run / "config.yaml"), recipe, ignored=ignored) == [], run


@pytest.mark.parametrize(
    ("name", "backbone", "attention"),
    [
        ("hybrid-cifar10", "hybrid", "taylorshift"),
        ("performer-favor-cifar10", "vit", "performer"),
        *(
            (f"performer-{phi}-cifar10", "vit", f"performer_{phi}")
            for phi in ("relu", "gelu", "exp", "elu", "ftheta")
        ),
    ],
)
def test_the_recipe_tells_what_its_attention_reached_in_the_comparison(name, backbone, attention):
    folder = ROOT / "benchmarks" / f"compare_{backbone}_cifar10_h200_202611"
    rows = json.loads((folder / "results.json").read_text())["rows"]
    row = next(row for row in rows if row["attention"] == attention)
    header = recipe_text(name)
    seeds = ", ".join(f"{100 * accuracy:.2f}" for accuracy in row["accuracies"])
    assert f" {100 * row['accuracy']:.2f} % on the test set, mean of three seeds" in header
    assert f"({seeds}; spread {100 * row['accuracy_spread']:.2f})" in header
    assert f" {row['seconds_per_epoch']:.2f} s an epoch alone" in header
    assert folder.name in header
    compared, recipe = load_config(folder / "base.yaml"), load_config(name)
    ignored = {"model.name", "model.attention", "train.device"}
    assert differences(compared, recipe, ignored=ignored) == []
    network = MODELS[recipe.model.name].config
    assert (recipe.model.attention or network.attention) == attention
    assert replace(network, attention="softmax") == MODELS[compared.model.name].config


@pytest.mark.parametrize("backbone", ["vit", "hybrid"])
def test_the_committed_table_is_that_of_the_runs_beside_it(backbone):
    folder = ROOT / "benchmarks" / f"compare_{backbone}_cifar10_h200_202611"
    results = json.loads((folder / "results.json").read_text())
    assert {row["runs"] for row in results["rows"]} == {3}
    found = dict(leaves(collect(ComparisonFolder.open(folder))))
    expected = dict(leaves(results))
    assert found.keys() == expected.keys()
    for place, value in expected.items():
        # Processors differ in the last bits of an interval.
        wanted = pytest.approx(value, rel=1e-9, abs=0) if isinstance(value, float) else value
        assert found[place] == wanted, place


def leaves(tree, place=()):
    """The values in nested lists and dictionaries, each with where it is."""
    if not isinstance(tree, dict | list):
        yield place, tree
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from leaves(value, (*place, key))


def test_committed_pages_have_the_figures_they_link_to():
    pages = sorted((ROOT / "benchmarks").glob("compare_*/**/report.html"))
    assert len(pages) == 3
    for page in pages:
        linked = re.findall(r'href="(figures/[^"]+)"', page.read_text())
        assert len(linked) > 40
        assert not [name for name in linked if not (page.parent / name).is_file()]
