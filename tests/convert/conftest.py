"""A tiny softmax run on digits, and its conversion."""

from __future__ import annotations

from pathlib import Path

import pytest

from saccade.config import load_config
from saccade.convert.conversion import Conversion, convert
from saccade.convert.diagnosis import TOKENS
from saccade.train import train

RECIPE = (
    "model.overrides.embed_dim=32",
    "model.overrides.num_heads=2",
    "train.epochs=5",
    "data.num_test=200",
)


@pytest.fixture(scope="package")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teacher") / "run"
    train(load_config("digits-quick", RECIPE), out, quiet=True)
    return out


@pytest.fixture(scope="package")
def few_tokens() -> object:
    """Speed at few tokens: its figures are not read here."""
    patch = pytest.MonkeyPatch()
    patch.setattr("saccade.convert.diagnosis.TOKENS", (16, 64))
    assert TOKENS == (1024, 4096, 16384)
    yield
    patch.undo()


@pytest.fixture(scope="package")
def converted(
    teacher: Path, few_tokens: object, tmp_path_factory: pytest.TempPathFactory
) -> Conversion:
    out = tmp_path_factory.mktemp("converted") / "run"
    return convert(
        teacher,
        "taylor",
        out=out,
        keep_softmax=1,
        local=True,
        scratch=True,
        quiet=True,
        overrides=["train.epochs=2"],
    )
