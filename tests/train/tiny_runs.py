"""A tiny run that finishes in a second, and processes to run it in.

The processes are forked from a server that has already imported torch and the code they run. They
are real processes with real signals, but start without two seconds of imports.
"""

import hashlib
import itertools
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from safetensors.torch import load_file, save_file

from saccade.config import Config, make_config, with_overrides
from saccade.errors import SaccadeError
from saccade.runs import RunFolder
from saccade.train import train

TINY = {
    "model": {
        "name": "vit_micro_patch4_32",
        "overrides": {
            "embed_dim": 16,
            "depth": 1,
            "num_heads": 2,
            "mlp_hidden_dim": 32,
            "proj_drop_rate": 0.1,
        },
    },
    "data": {"name": "digits", "num_train": 200, "num_test": 61, "workers": 0},
    "augment": {"crop_padding": 1},
    "optim": {"lr": 0.01, "warmup_epochs": 1},
    "train": {"epochs": 6, "batch_size": 24, "ema_decay": 0.9},
    "run": {"checkpoint_every_steps": 2, "log_every_steps": 5},
}

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["torch._inductor", "accelerate", "saccade.train.run", "tests.study.tiny_comparison"]
)


Start = Callable[..., BaseProcess]


@contextmanager
def processes() -> Iterator[Start]:
    """Start processes by a function and its arguments; kill the remaining ones at the end."""
    started: list[BaseProcess] = []

    def start(body: Callable[..., None], *arguments: object) -> BaseProcess:
        process = PROCESSES.Process(target=body, args=arguments)
        process.start()
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            if process.is_alive():
                process.kill()
            process.join()


def tiny(*overrides: str) -> Config:
    return with_overrides(make_config(TINY), overrides)


def final_state(out: Path) -> dict[str, bytes]:
    """The bytes of the files at the last checkpoint that determine how a run continues."""
    last = RunFolder(out).checkpoints()[-1]
    assert last.fault() is None
    names = ("model", "average", "best", "optimizer")
    return {name: (last.path / f"{name}.safetensors").read_bytes() for name in names}


def spoil(run: Path, name: str, value: float) -> None:
    """Fill one tensor of a run's newest checkpoint with a number, and update the manifests."""
    newest = RunFolder(run).checkpoints()[-1].path
    for file in newest.glob("*.safetensors"):
        tensors = load_file(file)
        if name in tensors:
            tensors[name].fill_(value)
            save_file(tensors, file)
    manifest = json.loads((newest / "manifest.json").read_text())
    for file in manifest["sha256"]:
        manifest["sha256"][file] = hashlib.sha256((newest / file).read_bytes()).hexdigest()
    (newest / "manifest.json").write_text(json.dumps(manifest))
    update_manifest(RunFolder(run))


def update_manifest(run: RunFolder) -> None:
    """Make the manifest of a finished run match files that a test has changed."""
    if run.is_finished():
        run.finish(run.summary(), run.status())


def unfinish(run: RunFolder) -> None:
    """Turn a finished run into one that was killed after its last checkpoint."""
    run.reopen()
    (run.path / "summary.json").unlink()
    (run.path / "manifest.json").unlink()


def forget_manifest(run: RunFolder) -> None:
    """Turn a finished run into one of an older saccade, without a manifest."""
    run.write("status.json", {k: v for k, v in run.status().items() if k != "manifest"})
    (run.path / "manifest.json").unlink()


def train_and_exit(config: Config, out: Path, environment: dict[str, str]) -> None:
    """Body of a child process: train, resuming what is there, and exit as the tool would."""
    os.environ.update(environment)
    sys.stderr = (out.parent / f"stderr-{os.getpid()}").open("w")
    try:
        train(config, out, resume=True)
    except SaccadeError as error:
        (out.parent / f"error-{os.getpid()}").write_text(str(error))
        sys.exit(error.exit_code)


def rank_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


_PORTS = itertools.count(20_000 + 1_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))


def free_port() -> int:
    """A port for this pytest worker, below the ports that the system assigns."""
    for port in _PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
