"""Fixtures: processes for the tiny run, and the finished run itself."""

from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from saccade.config import Config
from saccade.train import train
from tests.train.tiny_runs import (
    Start,
    free_port,
    processes,
    rank_environment,
    tiny,
    train_and_exit,
)

Body = Callable[..., None]
Launch = Callable[..., list[BaseProcess]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that is killed at the end of the test."""
    with processes() as call:
        yield call


@pytest.fixture
def launch(start: Start) -> Launch:
    """Start a run in one process, or in `world_size` processes that share it."""

    def call(
        config: Config, out: Path, world_size: int = 1, body: Body = train_and_exit
    ) -> list[BaseProcess]:
        port = free_port()
        ranks = [
            rank_environment(r, world_size, port) if world_size > 1 else {}
            for r in range(world_size)
        ]
        return [start(body, config, out, environment) for environment in ranks]

    return call


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run, trained without interruption."""
    out = tmp_path_factory.mktemp("finished") / "run"
    train(tiny(), out, quiet=True)
    return out
