"""README and docs/results.md quote the committed result files."""

import json
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from saccade.config import differences, load_config, recipe_text
from saccade.models.variants import MODELS
from saccade.study.comparison import ComparisonFolder
from saccade.study.comparison.results import collect
from tests.archives import cifar10_runs, comparison
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


PAGES = ("README.md", "docs/results.md")


def write_tables(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "benchmarks" / "tables.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def test_tables_are_those_of_the_result_files():
    result = write_tables("--check")
    assert result.returncode == 0, result.stdout + result.stderr
    text = "".join((ROOT / page).read_text() for page in PAGES)
    assert text.count("<!-- table: ") == text.count("<!-- end of table -->") == 6


def test_a_changed_table_is_found_and_rewritten(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "results").symlink_to(ROOT / "results")
    for name in (*PAGES, "benchmarks/tables.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    page = tmp_path / "docs" / "results.md"
    written = page.read_text()
    page.write_text(written.replace("95.48 % (95.28", "96.48 % (95.28"))
    assert page.read_text() != written
    result = write_tables("--check", root=tmp_path)
    assert result.returncode == 1
    assert result.stdout == "docs/results.md: tables differ from the result files\n"
    assert write_tables(root=tmp_path).returncode == 0
    assert page.read_text() == written


def test_accuracies_are_those_of_the_runs():
    found = {}
    for run in cifar10_runs():
        found.setdefault(run.name.partition("_")[0], []).append(run)
    results = (ROOT / "docs" / "results.md").read_text()
    for recipe, runs in found.items():
        summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
        accuracies = [100 * summary["test_accuracy"] for summary in summaries]
        assert [summary["seed"] for summary in summaries] == list(range(len(runs)))
        header = (ROOT / f"src/saccade/recipes/{recipe}.yaml").read_text()
        assert f"{statistics.fmean(accuracies):.2f} % on the test set" in header
        seeds = ", ".join(f"{accuracy:.2f}" for accuracy in accuracies)
        assert f"({seeds}; spread {statistics.stdev(accuracies):.2f}" in header
        assert f"| [`{recipe}`](" in results
        if recipe == "cifar10-taylor":
            seconds = statistics.fmean(summary["seconds"] for summary in summaries)
            quoted = f"reaches {statistics.fmean(accuracies):.2f} % (mean of three seeds) after "
            assert f"{quoted}{seconds:.0f} seconds of training" in " ".join(README.split())


def test_the_readme_quotes_the_comparison():
    path = ROOT / "results" / "compare_vit_cifar10_h200_202611" / "results.json"
    rows = {row["attention"]: row for row in json.loads(path.read_text())["rows"]}
    taylor, softmax = (f"{100 * rows[name]['accuracy']:.2f} %" for name in ("taylor", "softmax"))
    assert taylor == softmax
    sentence = " ".join(README[README.index("In a small ViT") :].split())
    assert "one learning rate that was tuned for neither" in sentence.partition(". ")[0]
    assert f"Taylor attention and softmax both reach {taylor}" in sentence


def test_the_readme_is_one_screen():
    assert len(README.splitlines()) <= 150


def test_the_runs_are_those_of_the_recipes():
    """But for the seed, and what depends on the machine."""
    for run in cifar10_runs():
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
    folder = ROOT / "results" / f"compare_{backbone}_cifar10_h200_202611"
    rows = json.loads((folder / "results.json").read_text())["rows"]
    row = next(row for row in rows if row["attention"] == attention)
    header = recipe_text(name)
    seeds = ", ".join(f"{100 * accuracy:.2f}" for accuracy in row["accuracies"])
    assert f" {100 * row['accuracy']:.2f} % on the test set, mean of three seeds" in header
    assert f"({seeds}; spread {100 * row['accuracy_spread']:.2f})" in header
    assert f" {row['seconds_per_epoch']:.2f} s per epoch alone" in header
    assert folder.name in header
    compared, recipe = load_config(folder / "base.yaml"), load_config(name)
    ignored = {"model.name", "model.attention", "train.device"}
    assert differences(compared, recipe, ignored=ignored) == []
    network = MODELS[recipe.model.name].config
    assert (recipe.model.attention or network.attention) == attention
    assert replace(network, attention="softmax") == MODELS[compared.model.name].config


@pytest.mark.parametrize("backbone", ["vit", "hybrid"])
def test_the_committed_table_is_that_of_the_runs_beside_it(backbone):
    folder = comparison(f"compare_{backbone}_cifar10_h200_202611")
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


def test_committed_pages_are_self_contained():
    pages = sorted((ROOT / "results").glob("compare_*/report.html"))
    assert len(pages) == 3
    for page in pages:
        text = page.read_text()
        assert text.count("<svg") > 10
        assert not re.findall(r'(?:href|src)="(?!#|data:|https://arxiv\.org)[^"]+"', text)
