"""Fixtures: the command line, and a finished comparison."""

from pathlib import Path

import pytest

from saccade.study import compare
from saccade.study.comparison import Plan
from tests.cli.conftest import saccade
from tests.study.tiny_comparison import tiny_plan
from tests.train.conftest import start

__all__ = ["saccade", "start"]


@pytest.fixture(scope="session")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return tiny_plan(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> Path:
    """A finished comparison of three attentions and two seeds."""
    out = tmp_path_factory.mktemp("compare") / "study"
    compare(plan, out, quiet=True)
    return out
