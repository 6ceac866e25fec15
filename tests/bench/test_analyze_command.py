"""`saccade analyze` and the scripts of the other analyses in real processes."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from saccade.bench.crossover.lines import Point, linear_attentions

from saccade.bench.crossover.run import CrossoverFindings
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "saccade", "analyze"]


OPTIONS = ["crossover", "--d", "8", "--seconds", "1", "--device", "cpu", "--threads", "1"]


@pytest.fixture(scope="module")
def crossed(tmp_path_factory):
    """The command with its own attentions and passes: what it printed, and its folder."""
    folder = tmp_path_factory.mktemp("crossed")
    done = subprocess.run(
        [*COMMAND, *OPTIONS, "--json", "--out", str(folder)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), folder


def test_crossover_writes_what_it_prints(crossed):
    document, folder = crossed
    assert document["format"] == "saccade.analyze.crossover"
    assert document["complete"] is True
    assert document["points"]
    assert document["environment"]["command"] == "saccade analyze " + shlex.join(
        [*OPTIONS, "--json"]
    )
    files = {path.suffix: path for path in folder.glob("crossover_cpu_*")}
    assert set(files) == {".json", ".md", ".png", ".svg"}
    assert json.loads(files[".json"].read_text()) == document
    assert f"]({files['.png'].name})" in files[".md"].read_text()
    assert "forward: ahead in time from N" in files[".md"].read_text()


def test_every_linear_attention_and_the_backward_pass_are_covered(crossed):
    names, (document, _) = linear_attentions(), crossed
    assert {"taylorshift", "performer", "performer_ftheta"} <= set(names)
    assert not [remark for remark in document["remarks"] if "not timed" in remark]
    points, found = document["points"], document["crossings"]
    for direction in ("forward", "training"):
        assert set(names) <= {p["line"] for p in points if p["direction"] == direction}
    kinds = {(c["direction"], c["form"], c["rival"]) for c in found if c["measure"] == "time"}
    assert {(d, n, "softmax") for d in ("forward", "training") for n in names} <= kinds
    drawn = CrossoverFindings({}, "float32", points=[Point(**p) for p in points])
    assert {p.form for p in drawn.of_taylor_forward()} == {"torch", "fused", "published"}


@pytest.mark.parametrize(
    ("theme", "command"),
    [
        ("approximation", ["-m", "benchmarks.approximation"]),
        pytest.param(
            "crossover", ["-m", "saccade", "analyze", "crossover"], marks=pytest.mark.slow
        ),
        pytest.param("scaling", ["-m", "benchmarks.scaling"], marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_keeps_partial_results(theme, command, tmp_path):
    process = subprocess.Popen(
        [sys.executable, *command, "--device", "cpu", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
    )
    assert process.stderr.readline().startswith("[")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    (path,) = tmp_path.glob(f"{theme}_cpu_*_partial.json")
    document = json.loads(path.read_text())
    assert document["complete"] is False
    assert document.get("rows", document.get("points"))
    assert document["environment"]["command"].endswith(f"{theme} --device cpu")
    assert "Interrupted" in path.with_suffix(".md").read_text()


def test_an_analysis_refuses_an_unknown_device():
    command = [sys.executable, "-m", "benchmarks.scaling", "--device", "tpu"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "device must be auto, cpu or cuda, got 'tpu'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("crossover --d 0", "d must be at least 1"),
        ("crossover --d many", "--d must be integers separated by commas, got 'many'"),
        ("crossover --device tpu", "device must be auto, cpu or cuda, got 'tpu'"),
        ("crossover --out /proc/nowhere", "--out /proc/nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, told, monkeypatch, capsys):
    from saccade.cli import main

    monkeypatch.setattr(sys, "argv", ["saccade"])
    with pytest.raises(SystemExit) as stop:
        main(["analyze", *arguments.split()])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
