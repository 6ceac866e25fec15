"""The calibration file: wrong ones are ignored with one line, and no home is no error."""

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch

from saccade.errors import ConfigError
from saccade.ops import taylor_attention
from saccade.ops.taylor import explain_choice
from saccade.ops.taylor.costs import costs_path, read_costs, read_costs_once


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Where calibration files are read from, in an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    read_costs_once.cache_clear()
    found = costs_path()
    found.parent.mkdir()
    yield found
    read_costs_once.cache_clear()


def document(crossover):
    passes = {"crossover_forward": crossover, "crossover_training": crossover}
    return {"version": 1, "devices": {"cpu": {"float32": {"8": passes}}}}


def below(*keys, value=None):
    """A document with another value at some place."""
    whole = document(40.0)
    table = whole
    for key in keys[:-1]:
        table = table[key]
    table[keys[-1]] = value
    return whole


CPU = ("devices", "cpu")
WRONG = {
    "a list": [],
    "a number": 7,
    "no version": {"devices": {}},
    "another version": {"version": 2, "devices": {}},
    "a version that is true": {"version": True, "devices": {}},
    "no devices": {"version": 1},
    "devices in a list": {"version": 1, "devices": [1]},
    "a device that is a text": below(*CPU, value="fast"),
    "a dtype that is null": below(*CPU, "float32", value=None),
    "a dim that is a list": below(*CPU, "float32", "8", value=[1, 2]),
    "a crossover that is a text": document("40"),
    "a crossover that is true": document(True),
    "a crossover that is a list": document([40]),
    "a negative crossover": document(-3),
    "NaN": document(float("nan")),
    "infinity": document(float("inf")),
    "a huge number": document(1e300),
    "a huge whole number": document(10**400),
}
DAMAGED = {
    "nothing": b"",
    "null": b"null",
    "control characters": b"\x00\x01",
    "half": b'{"version": 1, "devices": {"cpu": ',
    "not UTF-8": b'{"version": 1, "devices": {"\xff": {}}}',
    "nested deeply": b"[" * 100_000,
    "too large": b" " * (1 << 21) + b"{}",
    "a number of 5,000 digits": b'{"version": 1, "devices": ' + b"9" * 5000 + b"}",
}


def assert_ignored_with_one_line():
    q = torch.randn(1, 1, 16, 8, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            taylor_attention(q, q, q, algorithm="auto").sum().backward()
        explain_choice(16, head_dim=8, device_name="cpu", dtype="float32")
    (told,) = [str(warning.message) for warning in caught]
    assert told.startswith("ignored the calibration: ")
    assert "attention_costs.json" in told
    assert "--calibrate" in told
    assert "\n" not in told
    assert len(told) < 600


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_ignored_with_one_line(content, path):
    path.write_text(json.dumps(content))
    assert_ignored_with_one_line()


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_ignored_with_one_line(content, path):
    path.write_bytes(content)
    assert_ignored_with_one_line()


@pytest.mark.parametrize("make", ["mkdir", "fifo", "dangling", "circular"])
def test_what_is_no_file_is_ignored_with_one_line(make, path):
    if make == "mkdir":
        path.mkdir()
    elif make == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(path if make == "circular" else path.with_name("gone"))
    assert_ignored_with_one_line()


@pytest.mark.parametrize("crossover", [0, 15, 40.5, None])
def test_a_right_file_is_used_in_silence(crossover, path):
    path.write_text(json.dumps(document(crossover)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = explain_choice(41, head_dim=8, device_name="cpu", dtype="float32")
    assert "measured on cpu" in chosen.reason
    assert chosen.algorithm == ("direct" if crossover is None else "efficient")


def test_a_missing_file_is_no_fault(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_costs_once() == {}


def test_the_fault_is_named(path):
    path.write_text(json.dumps(document("40")))
    place = "devices.cpu.float32.8.crossover_forward must be null or a number"
    with pytest.raises(ConfigError, match=f"{place}.*got '40'"):
        read_costs()


HOMELESS = """
import pathlib
def expanduser(path):
    raise RuntimeError("Could not determine home directory.")
pathlib.Path.expanduser = expanduser
pathlib.Path.home = classmethod(expanduser)
import torch
from saccade.ops import taylor_attention
q = torch.randn(1, 1, 16, 8)
print(taylor_attention(q, q, q, algorithm="auto").shape)
from saccade.cli import main
main(["bench", "attention", "--calibrate", "--device", "cpu"])
"""


def test_auto_runs_where_no_home_is_known():
    environment = {k: v for k, v in os.environ.items() if k not in {"HOME", "XDG_CACHE_HOME"}}
    command = [sys.executable, "-W", "error", "-c", HOMELESS]
    told = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=120
    )
    assert "torch.Size([1, 1, 16, 8])" in told.stdout
    assert told.returncode == 2
    assert "XDG_CACHE_HOME must be" in told.stderr
    assert "Traceback" not in told.stderr
