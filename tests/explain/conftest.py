"""Fixtures: tiny runs, trained for one epoch."""

from pathlib import Path

import pytest

from saccade.train import train
from tests.cli.conftest import saccade
from tests.train.tiny_runs import tiny

__all__ = ["digits_run", "other_run", "saccade", "shapes_run"]


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("explain") / "digits"
    train(tiny("train.epochs=1"), out, quiet=True)
    return out


@pytest.fixture(scope="session")
def other_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same test set, fewer images to train on, another attention, more layers and heads."""
    out = tmp_path_factory.mktemp("explain") / "performer"
    sizes = ("data.num_train=100", "model.overrides.depth=3", "model.overrides.num_heads=4")
    train(tiny("train.epochs=1", "model.attention=performer", *sizes), out, quiet=True)
    return out


@pytest.fixture(scope="session")
def shapes_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("explain") / "shapes"
    train(
        tiny("train.epochs=1", "data.name=shapes", "model.attention=taylorshift"), out, quiet=True
    )
    return out
