"""Initial weights: matching tensors are copied, others are unchanged, both are recorded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from saccade.errors import ConfigError
from saccade.runs import RunFolder
from saccade.train import train
from tests.train.tiny_runs import tiny, unfinish

STILL = ["optim.lr=1e-30", "train.epochs=1", "train.ema_decay=null"]
"""A learning rate of nearly 0: the final weights are the initial ones."""


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """The initial weights of a softmax model with seed 5."""
    train(tiny(*STILL, "run.seed=5"), tmp_path / "donor", quiet=True)
    path = tmp_path / "given.safetensors"
    save_file(load_file(RunFolder(tmp_path / "donor").newest_intact()[0].weights("last")), path)
    return path


def start_weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(RunFolder(out).newest_intact()[0].weights("last"))


@pytest.mark.parametrize("attention", ["softmax", "taylorshift", "performer", "performer_ftheta"])
def test_matching_weights_are_copied_and_others_keep_their_values(
    given: Path, tmp_path: Path, attention: str
) -> None:
    config = tiny(*STILL, f"model.attention={attention}")
    train(config, tmp_path / "run", quiet=True, initial=given)
    train(config, tmp_path / "own", quiet=True)
    start, own, donor = (
        start_weights(tmp_path / "run"),
        start_weights(tmp_path / "own"),
        load_file(given),
    )
    record = RunFolder(tmp_path / "run").initial()
    assert set(record["taken"]) == start.keys() & donor.keys()
    assert len(record["taken"]) > 10
    assert set(record["own"]) == {name for name in start if ".core." in name}
    for name, tensor in start.items():
        expected = donor[name] if name in donor else own[name]
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-20)
    assert not torch.equal(start["head.weight"], own["head.weight"])


def test_weights_of_other_shapes_are_not_copied(given: Path, tmp_path: Path) -> None:
    wide = tiny(*STILL, "model.overrides.mlp_hidden_dim=48")
    train(wide, tmp_path / "run", quiet=True, initial=given)
    assert "blocks.0.mlp.fc1.weight" in RunFolder(tmp_path / "run").initial()["own"]


def test_a_run_without_checkpoint_resumes_only_with_the_same_initial_weights(
    given: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train(tiny(*STILL), out, quiet=True, initial=given)
    run = RunFolder(out)
    unfinish(run)
    for checkpoint in run.checkpoints():
        checkpoint.discard()
    with pytest.raises(ConfigError, match="started from given weights"):
        train(tiny(*STILL), out, resume=True, quiet=True)
    other = tmp_path / "other.safetensors"
    save_file({"head.bias": torch.zeros(10)}, other)
    with pytest.raises(ConfigError, match="started from other weights"):
        train(tiny(*STILL), out, resume=True, quiet=True, initial=other)
    train(tiny(*STILL), out, resume=True, quiet=True, initial=given)
    assert run.summary()["epochs"] == 1


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.safetensors': No such file"):
        train(tiny(), tmp_path / "run", initial=tmp_path / "absent.safetensors")


@pytest.mark.parametrize("share", [0, 0.3, 0.9])
def test_a_damaged_file_is_named(given: Path, tmp_path: Path, share: float) -> None:
    content = given.read_bytes()
    given.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ConfigError, match=r"given\.safetensors': not a whole safetensors file"):
        train(tiny(), tmp_path / "run", quiet=True, initial=given)
    assert not (tmp_path / "run").exists()


WITHOUT_MEMORY = """
import os, resource, signal, sys
from saccade.train.initialize import InitialWeights

pages = int(open("/proc/self/statm").read().split()[0])
for mib in range(0, 64, 2):
    child = os.fork()
    if not child:
        signal.alarm(10)  # ends a child that hangs
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + mib * 2**20,) * 2)
        code = 2
        try:
            code = len(InitialWeights.read(sys.argv[1]).tensors) != 4
        except MemoryError:
            code = 3
        finally:
            os._exit(code)
    print(mib, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_reading_ends_where_memory_is_short(tmp_path: Path) -> None:
    """A panic of a compiled library would block: it prints a backtrace, which takes memory too."""
    path = tmp_path / "large.safetensors"
    save_file({f"{number}": torch.ones(2**20) for number in range(4)}, path)
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY, path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RUST_BACKTRACE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    ends = [int(line.split()[1]) for line in found.stdout.splitlines()]
    assert set(ends) == {0, 3}, found.stdout  # read, or out of memory
    assert ends == sorted(ends, reverse=True)


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"head.bias": torch.zeros(3), "stages.0.weight": torch.zeros(2)}, other)
    with pytest.raises(ConfigError, match=r"other\.safetensors': none of its 2 tensors has"):
        train(tiny(), tmp_path / "run", quiet=True, initial=other)
    assert not (tmp_path / "run").exists()
