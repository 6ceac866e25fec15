"""The tool as a user runs it: a fresh process; and, where only words matter, in this one."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from saccade.cli import main
from saccade.config import dump_config
from saccade.train import train
from tests.train.tiny_runs import tiny
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny run."""
    out = tmp_path_factory.mktemp("cli") / "run"
    train(tiny("train.epochs=2"), out, quiet=True)
    return out


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(dump_config(tiny("train.epochs=2")))
    return path


def fresh(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Run the tool in a fresh process."""
    command = [sys.executable, "-m", "saccade", *words]
    return subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)


Saccade = Callable[..., tuple[int, str, str]]


@pytest.fixture
def saccade(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Saccade:
    """Run the tool in this process; gives exit code, stdout and stderr."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["saccade"])
        with pytest.raises(SystemExit) as caught:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return call
