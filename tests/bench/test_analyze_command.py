"""`saccade analyze` and the scripts of the other analyses in real processes."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "saccade", "analyze"]


def test_crossover_writes_what_it_prints(tmp_path):
    options = ["crossover", "--d", "8", "--seconds", "1", "--device", "cpu", "--threads", "1"]
    done = subprocess.run(
        [*COMMAND, *options, "--json", "--out", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["format"] == "saccade.analyze.crossover"
    assert document["complete"] is True
    assert document["points"]
    assert document["environment"]["command"] == "saccade analyze " + shlex.join(
        [*options, "--json"]
    )
    files = {path.suffix: path for path in tmp_path.glob("crossover_cpu_*")}
    assert set(files) == {".json", ".md", ".png", ".svg"}
    assert json.loads(files[".json"].read_text()) == document
    assert f"]({files['.png'].name})" in files[".md"].read_text()
    assert "forward: ahead in time from N" in files[".md"].read_text()


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
