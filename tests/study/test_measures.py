"""What is measured of a trained variant means what it says."""

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
from tests.train.tiny_runs import tiny


def small_model(attention: str, **overrides: object) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"embed_dim": 16, "depth": 1, "num_heads": 2, "mlp_hidden_dim": 32, "init_std": 0.5}
    return create_model("vit_micro_patch4_32", attention=attention, **{**sizes, **overrides}).eval()


@torch.no_grad()
def test_error_is_that_of_the_models_own_queries_and_keys() -> None:
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
def test_no_error_where_softmax_is_not_approximated(attention: str) -> None:
    assert approximation_error(small_model(attention), torch.randn(2, 3, 32, 32)) is None


@pytest.mark.parametrize("attention", ["taylorshift", "performer"])
def test_windows_are_measured_too(attention: str) -> None:
    error = approximation_error(small_model(attention, window=2), torch.randn(2, 3, 32, 32))
    assert error is not None
    assert 0 < error < 2


def test_hooks_are_gone_afterwards() -> None:
    model = small_model("taylor")
    approximation_error(model, torch.randn(1, 3, 32, 32))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_latency_outlasts_a_slow_spell(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is busy until the first large batch slows one window of five."""
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


def test_it_is_measured_with_the_threads_of_the_run(finished: Path, tmp_path: Path) -> None:
    """Runs side by side have a share of the threads each; timed alone they keep to it."""
    run = RunFolder(Path(shutil.copytree(finished / "runs/softmax/seed-0", tmp_path / "run")))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for told, expected in ((2, 2), (8, 3)):
            run.write("environment.json", {**run.environment(), "torch_threads": told})
            assert measure_run(run)["threads"] == expected
            assert torch.get_num_threads() == 3
        other = RunFolder(finished / "runs/taylorshift/seed-0")
        fewer = min(3, other.environment()["torch_threads"])
        assert measure_run(run, runs=[run, other])["threads"] == fewer
    finally:
        torch.set_num_threads(before)


def test_speed_of_training_is_that_of_its_steps(
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


def test_memory_grows_with_the_batch_and_repeats_itself(finished: Path, tmp_path: Path) -> None:
    run = ComparisonFolder.open(finished).run(Job("softmax", 0))
    first, second = measure_run(run), measure_run(run)
    assert first["peak_memory_mib"] == second["peak_memory_mib"]
    larger = tiny("train.epochs=1", "train.ema_decay=null", "train.batch_size=96")
    train(larger, tmp_path / "run", quiet=True)
    measured = measure_run(type(run)(tmp_path / "run"))["peak_memory_mib"]
    assert 2 * first["peak_memory_mib"] < measured < 4 * first["peak_memory_mib"]
