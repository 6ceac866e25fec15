"""A run on a streamed set, killed in the middle of an epoch, ends with the same bits."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from saccade.runs import RunFolder
from saccade.train import train
from tests.train.conftest import Launch, launch, start
from tests.train.tiny_runs import final_state, tiny

pytest.importorskip("datasets", reason="the datasets package is not installed")

from tests.data.shards import digits_on_the_hub
from tests.waiting import wait_until

__all__ = ["launch", "start"]


@pytest.mark.slow
def test_a_killed_run_on_a_streamed_set_ends_bit_equal(launch: Launch, tmp_path: Path) -> None:
    root = digits_on_the_hub(tmp_path / "set", count=200)
    config = tiny(
        *(f"data.name=hf:{root}", "data.image_size=8", "data.workers=0"),
        *("data.resident_gib=0", "data.buffer_mib=0.02", "train.epochs=2"),
        *("augment.mixup=0.4", "run.checkpoint_every_steps=3"),
    )
    whole, out = tmp_path / "whole", tmp_path / "run"
    train(config, whole, quiet=True)
    (process,) = launch(config, out)
    wait_until(RunFolder(out).checkpoints, process)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    left = RunFolder(out).newest_intact()[0]
    assert left is not None
    assert left.step % 7  # a checkpoint in the middle of an epoch
    train(config, out, resume=True, quiet=True)
    assert final_state(out) == final_state(whole)
