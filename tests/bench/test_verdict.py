"""`saccade bench model TARGET`: the verdict names only what the times carry."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from saccade.bench.verdict import measure as efficiency_module
from saccade.bench.verdict.findings import judge, told
from saccade.bench.verdict.measure import ModelPoint, best, measure_efficiency, measure_sizes
from saccade.bench.verdict.subject import Facts, Subject
from saccade.cli.bench_target import subject_of
from saccade.errors import ConfigError
from tests.study.conftest import finished, plan

__all__ = ["finished", "plan"]

FACTS = Facts(tokens=65, heads=4, head_dim=32)
GRID = {65: 32, 145: 48, 257: 64, 577: 96, 1025: 128}
"""N -> side of an image."""
SPREAD = (0.98, 0.99, 1.0, 1.01, 1.02)
CPU = torch.device("cpu")
TINY = {"embed_dim": 16, "depth": 1, "num_heads": 2, "mlp_hidden_dim": 32, "in_chans": 1}


def points_by(crossing, disturbed=None, direction="forward"):
    """Quadratic softmax and linear taylor that cross at some N; `disturbed` has other times."""
    found = []
    for name in ("softmax", "taylor"):
        for tokens, size in GRID.items():
            ms = tokens / 65 * (tokens / crossing if name == "softmax" else 1.0)
            times = (disturbed or {}).get((name, tokens), [ms * x for x in SPREAD])
            found.append(ModelPoint(name, direction, size, tokens, 1, tuple(times)))
    return found


def sentences(points):
    return told(judge(points, FACTS), points, FACTS, "px")


def test_verdict_names_the_first_size_that_pays():
    assert sentences(points_by(300)) == [
        "forward, 65 tokens, heads of 32: softmax is 4.6x faster here than taylor.",
        "forward: taylor pays from 577 tokens (96 px) on.",
    ]


def test_attention_that_leads_or_trails_everywhere_has_no_crossing():
    assert (
        sentences(points_by(20))[1]
        == "forward: taylor pays at every size, from 65 tokens (32 px) on."
    )
    assert sentences(points_by(9000))[1] == "forward: taylor does not pay up to 1,025 tokens."


def test_a_crossing_at_the_last_size_within_the_noise_is_not_named():
    noisy = (0.75, 0.9, 1.0, 1.05, 1.1)
    last = {("taylor", 1025): [1025 / 65 * x for x in noisy]}
    (_, line) = sentences(points_by(1000, last))
    assert "do not decide whether it pays" in line


def test_unsteady_calls_around_a_crossing_name_none():
    shaky = {("taylor", 257): [2.0, 3.0, 4.0, 7.0, 9.0]}
    (_, line) = sentences(points_by(300, shaky))
    assert line.startswith("forward: taylor: no crossing is named: taylor is unsteady at N = 257")


def test_a_busy_machine_is_told_and_nothing_is_concluded():
    shaky = {("softmax", n): [1.0, 2.0, 3.0, 5.0, 9.0] for n in GRID}
    (line,) = sentences(points_by(300, shaky))
    assert line.startswith("forward: the machine is too busy to tell: 5 of 10 times are unsteady")


def test_equal_times_are_no_difference():
    same = {(name, 65): [1.0, 1.01, 0.99, 1.0, 1.02] for name in ("softmax", "taylor")}
    (line, _) = sentences(points_by(300, same))
    assert line.endswith("no difference is told between taylor and softmax.")


def tiny(**changes):
    subject = Subject("tiny", "vit_micro_patch4_32", "taylor", 8, overrides=TINY)
    return replace(subject, **changes)


def test_every_attention_is_timed_at_every_size_with_the_same_batch():
    points = []
    names = ["softmax", "taylor", "performer"]
    measure_sizes(
        tiny(), names, [8, 16], CPU, points, [], batch=4, seconds=0.0, autocast=False
    )  # fmt: skip
    assert [p.attention for p in points] == names * 4
    assert {(p.size, p.tokens, p.batch) for p in points} == {(8, 5, 4), (16, 17, 1)}
    assert all(len(p.times_ms) >= 3 for p in points)


def test_a_size_that_takes_too_long_is_left_out_and_told(monkeypatch):
    monkeypatch.setitem(measure_sizes.__globals__["MAX_ROUND_S"], "cpu", 0.0)
    points, remarks = [], []
    measure_sizes(
        tiny(), ["softmax"], [8, 16], CPU, points, remarks,
        passes=["forward"], batch=1, seconds=0.0, autocast=False,
    )  # fmt: skip
    assert [p.size for p in points] == [8]
    assert remarks[0].startswith("forward: 16 px and more are not measured")


def test_efficiency_counts_parameters_and_measures_every_batch():
    found = measure_efficiency(
        tiny(), "taylor", CPU, batches=(1, 4), passes=["training"], seconds=0.0, autocast=False
    )
    model = tiny().build()
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert [(c.batch, c.reason) for c in found.cells] == [(1, ""), (4, "")]
    assert all(c.samples_per_s and c.peak_mib is not None for c in found.cells)
    top = best(found, "training")
    assert top.samples_per_s == max(c.samples_per_s for c in found.cells)


def test_out_of_memory_is_told_in_its_cell(monkeypatch):
    made = efficiency_module.make_pass

    def limited(subject, attention, size, batch, *rest, **options):
        if batch > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return made(subject, attention, size, batch, *rest, **options)

    monkeypatch.setattr(efficiency_module, "make_pass", limited)
    found = measure_efficiency(
        tiny(), "softmax", CPU, batches=(1, 2, 4), passes=["forward"], seconds=0.0, autocast=False
    )
    assert [c.reason for c in found.cells] == ["", "out of memory", "out of memory"]
    assert best(found, "forward").batch == 1


def test_targets_are_names_runs_and_recipes(finished: Path):
    assert subject_of("vit_small_patch16_224").facts() == Facts(197, 6, 64)
    recipe = subject_of("digits-quick")
    assert (recipe.size, recipe.model, recipe.attention) == (8, "hybrid_cifar", "softmax")
    run = subject_of(str(finished / "runs" / "taylorshift" / "seed-0"))
    assert (run.size, run.attention, run.overrides["num_classes"]) == (8, "taylorshift", 10)
    with pytest.raises(ConfigError, match="TARGET must be a recipe, a run folder or a model"):
        subject_of("vit_smol")


def test_sequences_are_measured_at_longer_lengths():
    subject = subject_of("taylorshift_listops")
    assert subject.is_sequence
    short = replace(subject, size=16, overrides={"embed_dim": 16, "depth": 1, "num_heads": 2})
    points = []
    measure_sizes(
        short, ["softmax"], [16, 32], CPU, points, [],
        passes=["training"], batch=1, seconds=0.0, autocast=False,
    )  # fmt: skip
    assert [(p.size, p.reason, len(p.times_ms) > 0) for p in points] == [
        (16, "", True),
        (32, "", True),
    ]


@pytest.mark.slow  # one process for the memory of each batch size
def test_command_writes_what_it_prints(tmp_path):
    words = (
        "digits-quick --attention taylor --image-size 8,16 --passes forward --batch 1 --seconds 0"
    )
    command = [sys.executable, "-m", "saccade", "bench", "model", *words.split(), "--device", "cpu"]
    done = subprocess.run(
        [*command, "--json", "--out", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {p["attention"] for p in document["points"]} == {"softmax", "taylor"}
    assert {c["batch"] for c in document["efficiency"][0]["cells"]} == {1, 16, 32, 64, 128}
    assert document["words"]
    (page,) = tmp_path.glob("verdict_cpu_*.md")
    assert "## Verdict" in page.read_text()


def test_options_that_the_target_replaces_are_refused():
    command = [sys.executable, "-m", "saccade", "bench", "model", "digits-quick", "--preset", "x"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        done.stderr.strip() == "saccade: TARGET and --preset cannot be combined: give one of them"
    )
