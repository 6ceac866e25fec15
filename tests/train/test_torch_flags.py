"""A run sets torch's global flags and restores those of its caller."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from saccade.config import Config
from saccade.errors import ConfigError, Stopped
from saccade.runs import RunFolder
from saccade.study.comparison.measures import measure_run
from saccade.train import train
from saccade.train.run import dry_run
from saccade.train.torch_flags import set_up_machine
from tests.train.tiny_runs import tiny


def flags() -> dict[str, Any]:
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "precision": torch.get_float32_matmul_precision(),
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "cuda": torch.backends.cuda.matmul.fp32_precision,
        "mkldnn": torch.backends.mkldnn.matmul.fp32_precision,
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }


@pytest.fixture(params=["as torch has them", "unlike any run's"])
def before(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """The flags of the caller."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    default = flags()
    if request.param == "unlike any run's":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("medium")
        assert not {key for key in ("deterministic", "benchmark") if flags()[key] == default[key]}
    yield flags()
    torch.use_deterministic_algorithms(default["deterministic"])
    torch.backends.cudnn.benchmark = default["benchmark"]
    torch.set_float32_matmul_precision(default["precision"])
    torch.backends.cuda.matmul.fp32_precision = default["cuda"]
    torch.backends.mkldnn.matmul.fp32_precision = default["mkldnn"]


def config(*words: str) -> Config:
    return tiny("train.epochs=1", "train.device=cpu", *words)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_run_sets_its_flags_and_restores_those_of_the_caller(
    before: dict[str, Any], tmp_path: Path, deterministic: bool
) -> None:
    seen: list[dict[str, Any]] = []
    words = f"train.deterministic={str(deterministic).lower()}"
    train(config(words), tmp_path / "run", quiet=True, on_epoch=lambda _: seen.append(flags()))
    (within,) = seen
    assert (within["deterministic"], within["warn only"]) == (deterministic, False)
    assert within["benchmark"] is not deterministic
    assert within["precision"] == "highest"
    assert within["workspace"] == (":4096:8" if deterministic else None)
    assert flags() == before


def test_a_run_that_ends_early_restores_the_flags(before: dict[str, Any], tmp_path: Path) -> None:
    def stop(_: object) -> None:
        raise Stopped("enough")

    with pytest.raises(Stopped):
        train(config("train.deterministic=true"), tmp_path / "run", quiet=True, on_epoch=stop)
    assert flags() == before
    with pytest.raises(ConfigError):
        train(config("model.attention=none"), tmp_path / "other", quiet=True)
    assert flags() == before
    with pytest.raises(ConfigError, match="fp16"):
        train(config("train.precision=fp16"), tmp_path / "third", quiet=True)
    assert flags() == before


def test_dry_runs_and_measurements_restore_the_flags(
    before: dict[str, Any], tmp_path: Path
) -> None:
    dry_run(config("train.deterministic=true"))
    assert flags() == before
    train(config("train.deterministic=true"), tmp_path / "run", quiet=True)
    measure_run(RunFolder(tmp_path / "run"))
    assert flags() == before


def test_the_callers_cublas_workspace_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with set_up_machine(config("train.deterministic=true")):
        assert flags()["workspace"] == ":16:8"
    assert flags()["workspace"] == ":16:8"
    assert not flags()["deterministic"]


def test_a_precision_of_one_backend_is_restored() -> None:
    """Torch then reports no common precision; that of each backend is restored."""
    matmul = torch.backends.mkldnn.matmul
    default, before = torch.get_float32_matmul_precision(), matmul.fp32_precision
    try:
        matmul.fp32_precision = "bf16"
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        with set_up_machine(config()):
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "bf16"
    finally:
        torch.set_float32_matmul_precision(default)
        matmul.fp32_precision = before
