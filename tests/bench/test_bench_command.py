"""The command in a real process: results, mistakes, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from saccade.bench.model import ModelCase, ModelResult, check_cases, run_models
from saccade.bench.plan import MODEL_PRESETS, ModelPlan, make_cases, model_verdicts
from saccade.bench.shapes import Grid
from tests.waiting import PATIENCE_S

COMMAND = [sys.executable, "-m", "saccade", "bench"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


def test_attention_prints_json_and_writes_files(tmp_path):
    options = "-m sdpa,taylor-direct --n 16 --d 8 --heads 2 --seconds 0"
    done = bench("attention", *options.split(), "--no-memory", "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [row["status"] for row in document["rows"]] == ["timed"] * 4
    assert document["complete"] is True
    (path,) = tmp_path.glob("attention_cpu_*.json")
    assert json.loads(path.read_text()) == document


def test_calibration_is_filed_and_leaves_other_results_alone(tmp_path, monkeypatch):
    from saccade.bench import calibration, plan
    from saccade.cli import main
    from saccade.ops.taylor.costs import costs_path

    grids = (Grid((calibration.DIRECT, calibration.EFFICIENT), (16, 64), (8,), memory=False),)
    monkeypatch.setattr(plan, "CALIBRATION_GRIDS", {"cpu": grids})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as stop:
        main(["bench", "attention", "--calibrate", "--seconds", "0", "--device", "cpu",
              "--out", str(tmp_path)])  # fmt: skip
    assert stop.value.code == 0
    assert not list(tmp_path.glob("attention_*"))
    assert {path.suffix for path in tmp_path.glob("calibration_cpu_*")} == {
        ".json", ".md", ".png", ".svg",
    }  # fmt: skip
    (costs,) = json.loads(costs_path().read_text())["devices"]["cpu"].values()
    assert set(costs["8"]) == {"crossover_forward", "crossover_training"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("attention -m taylor-drect", "did you mean 'taylor-direct'"),
        (
            "attention -m sdpa,taylor-direct/nothing --n 16 --d 8 --no-memory",
            "saccade: the backend of a mechanism must be one of auto, torch, triton, "
            "got 'taylor-direct/nothing'",
        ),
        ("attention --n 0", "n must be at least 1, got 0"),
        ("attention --d 4096", "d must be at least 1 and at most 256, got 4096"),
        ("attention --n many", "--n must be integers separated by commas, got 'many'"),
        ("attention --out /proc/nowhere", "--out /proc/nowhere"),
        ("attention --preset gpu", "unknown preset 'gpu'"),
        ("attention --preset cpu --n 5", "leave out --n"),
        ("attention --dtype float31", "did you mean 'float32'"),
        ("attention --tokens 64 --batch 2", "--tokens sets B H N"),
        ("model --model light_vti", "did you mean 'light_vit'"),
        ("model --model taylorshift_listops", "takes no images"),
        ("model --passes backward", "unknown pass 'backward'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, told, monkeypatch, capsys):
    from saccade.cli import main

    monkeypatch.setattr(sys, "argv", ["saccade"])
    with pytest.raises(SystemExit) as stop:
        main(["bench", *arguments.split()])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_ctrl_c_keeps_the_rows_there_are(tmp_path):
    """A hundred rows of half a second each: the process is stopped long before the last."""
    lengths = ",".join(str(n) for n in range(64, 114))
    command = f"attention -m taylor-direct --n {lengths} --d 8 --heads 1 --seconds 0.5 --no-memory"
    process = subprocess.Popen(
        [*COMMAND, *command.split(), "--out", str(tmp_path), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr.readline().startswith("[1/100]")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    document = json.loads(out)
    assert document["complete"] is False
    assert 1 <= len(document["rows"]) < 100
    (path,) = tmp_path.glob("attention_cpu_*_partial.json")
    assert json.loads(path.read_text()) == document


def test_help_is_quick():
    before = os.times()
    done = bench("attention", "--help")
    after = os.times()
    assert done.returncode == 0
    assert "--calibrate" in done.stdout
    spent = after.children_user + after.children_system
    spent -= before.children_user + before.children_system
    assert spent < 1  # of processor time; 0.3 s on a quiet machine, and torch alone takes 2


def test_models_with_softmax_beside_them():
    cases = make_cases(
        ["light_vit"],
        ["performer", "softmax"],
        [28],
        [4, 7],
        ["training"],
        batch=2,
        compiled=False,
        autocast=False,
    )
    assert len(cases) == 4
    result = ModelResult(environment={"packages": {"torch": ""}})
    run_models(
        result,
        [case for case in cases if case.patch_size == 7],
        torch.device("cpu"),
        seconds=0.0,
        report=lambda row, done, total: None,
    )
    assert [row.tokens for row in result.rows] == [16] * 2
    assert [row.case.attention for row in result.rows] == ["softmax", "performer"]
    softmax, performer = result.rows
    assert softmax.img_per_s == pytest.approx(2000 / softmax.timing.median_ms)
    assert result.speedup(performer) == pytest.approx(performer.img_per_s / softmax.img_per_s)
    assert all(row.peak_mib is not None for row in result.rows)
    plan = ModelPlan(cases, {result.rows[1].case: 1e9})
    assert model_verdicts(result, plan).lines[0][-1] == "not reached"


def test_the_cases_of_a_preset_can_be_built():
    for plan in MODEL_PRESETS.values():
        check_cases(plan.cases)
        assert {case.attention for case in plan.cases} == {"softmax", "taylorshift"}
        assert all(isinstance(case, ModelCase) for case in plan.targets)
