"""Measurements of a trained model are correct."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from saccade.models import VisionTransformer, create_model
from saccade.ops import softmax_attention, taylor_attention
from saccade.runs import RunFolder
from saccade.study.comparison import ComparisonFolder, Job
from saccade.study.comparison.measures import approximation_error, measure_run
from saccade.train import train
from saccade.train.step import Stepper
from tests.train.tiny_runs import forget_manifest, tiny


def small_model(attention: str, **overrides: object) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"embed_dim": 16, "depth": 1, "num_heads": 2, "mlp_hidden_dim": 32, "init_std": 0.5}
    return create_model("vit_micro_patch4_32", attention=attention, **{**sizes, **overrides}).eval()


@torch.no_grad()
def test_approximation_error_uses_the_models_queries_and_keys() -> None:
    model, images = small_model("taylor"), torch.randn(3, 3, 32, 32)
    seen: list[torch.Tensor] = []
    model.blocks[0].attn.qkv.register_forward_hook(lambda layer, inputs, out: seen.append(out))
    found = approximation_error(model, images)
    q, k, v = seen[0].view(3, -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
    exact = softmax_attention(q, k, v)
    expected = (taylor_attention(q, k, v) - exact).norm() / exact.norm()
    assert found == pytest.approx(float(expected), rel=1e-4)
    assert found > 0.001


@pytest.mark.parametrize("attention", ["softmax", "performer_relu", "performer_ftheta"])
def test_approximation_error_is_none_without_softmax_counterpart(attention: str) -> None:
    assert approximation_error(small_model(attention), torch.randn(2, 3, 32, 32)) is None


@pytest.mark.parametrize("attention", ["taylorshift", "performer"])
def test_approximation_error_works_with_windows(attention: str) -> None:
    error = approximation_error(small_model(attention, window=2), torch.randn(2, 3, 32, 32))
    assert error is not None
    assert 0 < error < 2


def test_approximation_error_removes_its_hooks() -> None:
    model = small_model("taylor")
    approximation_error(model, torch.randn(1, 3, 32, 32))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_latency_is_robust_to_a_briefly_busy_host(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host is busy until the first large batch, which affects one window of five."""
    run = ComparisonFolder.open(finished).run(Job("softmax", 0))
    forward = VisionTransformer.forward
    sizes: list[int] = []

    def slowly(self: VisionTransformer, images: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        time.sleep(0.1 if len(set(sizes)) == 1 else 0)
        return forward(self, images)

    monkeypatch.setattr(VisionTransformer, "forward", slowly)
    found = measure_run(run)
    assert found["latency_ms"] < 100 < found["latency_ms"] + found["latency_spread_ms"]
    assert found["latency_eval_spread_ms"] < 100
    assert (found["latency_batch"], found["latency_eval_batch"]) == (1, 61)


def test_measurement_uses_the_number_of_threads_of_the_runs(finished: Path, tmp_path: Path) -> None:
    """Parallel runs share the threads; a measurement uses the same number as a run did."""
    run = RunFolder(Path(shutil.copytree(finished / "runs/softmax/seed-0", tmp_path / "run")))
    forget_manifest(run)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for recorded, expected in ((2, 2), (8, 3)):
            run.write("environment.json", {**run.environment(), "torch_threads": recorded})
            assert measure_run(run)["threads"] == expected
            assert torch.get_num_threads() == 3
        other = RunFolder(finished / "runs/taylorshift/seed-0")
        fewer = min(3, other.environment()["torch_threads"])
        assert measure_run(run, runs=[run, other])["threads"] == fewer
    finally:
        torch.set_num_threads(before)


def test_training_speed_measures_training_steps(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ComparisonFolder.open(finished).run(Job("softmax", 0))
    assert "img_per_s" not in measure_run(run)
    take = Stepper.run

    def slowly(self: Stepper, *arguments: Any) -> torch.Tensor:
        time.sleep(0.05)
        return take(self, *arguments)

    monkeypatch.setattr(Stepper, "run", slowly)
    batch = run.config().train.batch_size
    assert 0 < measure_run(run, speed=True)["img_per_s"] < batch / 0.05


def test_memory_grows_with_the_batch_and_is_reproducible(finished: Path, tmp_path: Path) -> None:
    run = ComparisonFolder.open(finished).run(Job("softmax", 0))
    first, second = measure_run(run), measure_run(run)
    assert first["peak_memory_mib"] == second["peak_memory_mib"]
    larger = tiny("train.epochs=1", "train.ema_decay=null", "train.batch_size=96")
    train(larger, tmp_path / "run", quiet=True)
    measured = measure_run(type(run)(tmp_path / "run"))["peak_memory_mib"]
    assert 2 * first["peak_memory_mib"] < measured < 4 * first["peak_memory_mib"]
