"""Real processes over gloo: exact sums, a killed process, resuming on another number of them."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from saccade.config import dump_config
from saccade.data import load_splits, make_loader
from saccade.runs import RunFolder
from saccade.train import evaluate, load_model, train
from saccade.train.distributed import connect
from saccade.train.loop import Trainer
from saccade.train.signals import end_with_parent
from tests.train.conftest import Launch
from tests.train.moments import held
from tests.train.tiny_runs import (
    Start,
    final_state,
    free_port,
    rank_environment,
    tiny,
    train_and_exit,
)
from tests.waiting import PATIENCE_S, wait_until

STILL = "model.overrides.proj_drop_rate=0"
"""Dropout differs from rank to rank; without it the number of ranks changes only rounding."""


def evaluate_on_ranks(out: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    ranks = connect("cpu")
    model, info = load_model(RunFolder(out))
    loader = make_loader(
        load_splits(tiny().data).test,
        info,
        batch_size=10,
        augment=None,
        seed=0,
        device=ranks.device,
        shuffle=False,
        rank=ranks.rank,
        world_size=ranks.world_size,
    )
    found = evaluate(model, loader, num_classes=10, ranks=ranks)
    counts = [found.correct, found.correct_top5, found.count, found.confusion.tolist()]
    path = out.parent / f"counts-{ranks.world_size}-{ranks.rank}.json"
    predictions = [found.predictions[name].tolist() for name in ("target", "predicted")]
    path.write_text(json.dumps([*counts, found.bin_counts.tolist(), *predictions]))
    ranks.close()


def test_one_two_and_three_ranks_evaluate_equally(finished: Path, start: Start) -> None:
    counts = []
    for world_size in (1, 2, 3):
        port = free_port()
        environments = [
            rank_environment(r, world_size, port) if world_size > 1 else {}
            for r in range(world_size)
        ]
        ranks = [start(evaluate_on_ranks, finished, environment) for environment in environments]
        for process in ranks:
            process.join(PATIENCE_S)
            assert process.exitcode == 0
        for rank in range(world_size):
            path = finished.parent / f"counts-{world_size}-{rank}.json"
            counts.append(json.loads(path.read_text()))
    assert len(counts) == 6
    assert counts[0][2] == 61
    assert counts[0][-2] == load_splits(tiny().data).test.labels.tolist()
    assert counts[0][-1] == RunFolder(finished).predictions()["predicted"].tolist()
    assert all(found == counts[0] for found in counts)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(RunFolder(out).checkpoints()[-1].path / "model.safetensors")


FULL = ["train.epochs=1"]
ODD = ["train.epochs=8", "data.num_train=74", "train.batch_size=96", "optim.warmup_epochs=0"]


@pytest.mark.parametrize(
    ("strategy", "steps"), [("ddp", FULL), ("fsdp", FULL), ("ddp", ODD)], ids=["ddp", "fsdp", "odd"]
)
def test_two_ranks_train_the_same_weights_as_one(
    launch: Launch, tmp_path: Path, strategy: str, steps: list[str]
) -> None:
    overrides = [STILL, *steps, "optim.name=sgd", "run.checkpoint_every_steps=null"]
    train(tiny(*overrides), tmp_path / "one", quiet=True)
    config = tiny(*overrides, f"train.strategy={strategy}")
    for process in launch(config, tmp_path / "two", world_size=2):
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    for key, tensor in one.items():
        torch.testing.assert_close(two[key], tensor, rtol=1e-4, atol=1e-5)


def test_sharded_weights_and_whole_buffers_are_averaged(launch: Launch, tmp_path: Path) -> None:
    """Batch norm has buffers, which are never sharded."""
    overrides = [STILL, "train.epochs=1", "optim.name=sgd", "model.name=taylorir_small"]
    train(tiny(*overrides), tmp_path / "one", quiet=True)
    config = tiny(*overrides, "train.strategy=fsdp")
    for process in launch(config, tmp_path / "two", world_size=2):
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    assert weights(tmp_path / "two").keys() == weights(tmp_path / "one").keys()


def other_stands_still(trainer: Trainer) -> bool:
    """The second rank, from the first checkpoint on."""
    return not trainer.ranks.is_main and bool(trainer.run.checkpoints())


def test_rank_killed_ends_the_others_and_the_run_resumes_on_one(
    launch: Launch, tmp_path: Path
) -> None:
    out, config = tmp_path / "run", tiny("train.epochs=40", STILL)
    main, other = launch(
        config, out, world_size=2, body=partial(held, other_stands_still, train_and_exit)
    )
    wait_until(RunFolder(out).checkpoints, main, other)
    other.kill()
    main.join(PATIENCE_S)
    assert main.exitcode == 4
    assert "lost another process" in (tmp_path / f"error-{main.pid}").read_text()
    assert RunFolder(out).status()["state"] == "failed"
    left = RunFolder(out).newest_intact()[0]
    assert left is not None
    summary = train(tiny("train.epochs=40", STILL), out, resume=True, quiet=True)
    assert summary["epochs"] == 40
    assert RunFolder(out).environment()["resumed"][0]["step"] == left.step


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_change_between_stop_and_resume(
    launch: Launch, tmp_path: Path, strategy: str
) -> None:
    overrides = [STILL, "optim.name=sgd", "train.epochs=30", f"train.strategy={strategy}"]
    train(tiny(*overrides), tmp_path / "whole", quiet=True)
    out = tmp_path / "run"
    for world_size in (2, 3, 1):
        processes = launch(tiny(*overrides), out, world_size=world_size)
        if world_size > 1:
            enough = len(RunFolder(out).metrics("epoch")) + 2
            wait_until(lambda: len(RunFolder(out).metrics("epoch")) >= enough, *processes)  # noqa: B023
            os.kill(processes[-1].pid, signal.SIGTERM)
        for process in processes:
            process.join(PATIENCE_S)
            assert process.exitcode == (75 if world_size > 1 else 0)
    whole, pieces = weights(tmp_path / "whole"), weights(out)
    for key, tensor in whole.items():
        torch.testing.assert_close(pieces[key], tensor, rtol=1e-2, atol=1e-3)
    assert RunFolder(out).summary()["epochs"] == 30


@pytest.mark.slow
def test_torchrun_trains_and_repeats_itself(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(dump_config(tiny()))
    for name in ("first", "second"):
        out = str(tmp_path / name)
        words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
        words += [str(free_port()), "-m", "saccade", "train", str(recipe), "--out", out, "--json"]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["epochs"] == 6
    assert final_state(tmp_path / "first") == final_state(tmp_path / "second")


def end_with_launcher(out: Path, parent: int) -> None:
    """Body of a process: a rank that ignores SIGTERM and whose launcher has ended."""
    signal.signal(signal.SIGTERM, lambda *_: (out / "told").touch())
    end_with_parent(parent, signal.SIGTERM, grace_s=1)
    (out / "ready").touch()
    while True:
        time.sleep(0.1)


LAUNCHER = """
import multiprocessing, sys
from pathlib import Path
from tests.train.test_ranks import end_with_launcher
import os
rank = multiprocessing.get_context("fork").Process(
    target=end_with_launcher, args=(Path(sys.argv[1]), os.getpid())
)
rank.start()
print(rank.pid, flush=True)
rank.join()
"""


def test_a_rank_gets_sigterm_and_is_then_killed_if_its_launcher_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=root) as launcher:
        assert launcher.stdout is not None
        rank = psutil.Process(int(launcher.stdout.readline()))
        wait_until((tmp_path / "ready").exists, launcher)
        launcher.kill()
    wait_until((tmp_path / "told").exists)
    rank.wait(PATIENCE_S)
