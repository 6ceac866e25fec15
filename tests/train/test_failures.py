"""Failures of a run: each ends with one clear message, and saved checkpoints are kept."""

import ctypes
import errno
import re
import resource
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from saccade.config import Config, with_overrides
from saccade.data import Batch
from saccade.errors import ConfigError, DataError, SaccadeError, TrainingError, is_out_of_memory
from saccade.runs import RunFolder
from saccade.train import build_model, train
from saccade.train.checkpoint import snapshot
from saccade.train.distributed import connect
from saccade.train.guard import FiniteGuard
from saccade.train.inference import evaluate_run
from saccade.train.loop import Trainer
from saccade.train.run import dry_run
from saccade.train.step import Stepper
from tests.data.pictures import good_folder, truncate
from tests.train.test_resume import stopped_early
from tests.train.tiny_runs import Start, final_state, tiny
from tests.waiting import PATIENCE_S


def make_stepper(config: Config) -> tuple[Stepper, Batch]:
    from saccade.data import load_splits, make_loader

    splits = load_splits(config.data)
    torch.manual_seed(0)
    network = build_model(config, splits.info)
    loader = make_loader(
        splits.train,
        splits.info,
        batch_size=8,
        augment=None,
        seed=0,
        device="cpu",
        shuffle=True,
    )
    return Stepper(network, config, connect("cpu")), next(loader.epoch(0))


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_guard_remembers_the_first_bad_step(number: float) -> None:
    guard = FiniteGuard(torch.device("cpu"))
    one, bad = torch.tensor(1.0), torch.tensor(number)
    guard.watch(0, one, one)
    assert guard.bad_step() == -1
    assert guard.found_inf == 0
    guard.watch(1, one, bad)
    guard.watch(2, bad, bad)
    guard.watch(3, one, one)
    assert guard.bad_step() == 1
    assert guard.found_inf == 1


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion", "muon"])
def test_overflow_takes_no_step_and_names_the_layer(name: str) -> None:
    config = tiny(f"optim.name={name}", "model.overrides.depth=2", "train.ema_decay=null")
    stepper, batch = make_stepper(config)
    stepper.run(batch, 0, 1.0)
    assert stepper.guard.bad_step() == -1
    with torch.no_grad():
        stepper.network.get_parameter("blocks.1.mlp.fc1.weight").fill_(3e38)
    before = snapshot(stepper.network)
    stepper.run(batch, 1, 1.0)
    stepper.run(batch, 2, 1.0)
    assert stepper.guard.bad_step() == 1
    for key, tensor in snapshot(stepper.network).items():
        assert torch.equal(tensor, before[key]), key
    assert stepper.replay(batch, 1) == "output of blocks.1.mlp.fc1"


def test_finite_step_has_no_bad_layer() -> None:
    stepper, batch = make_stepper(tiny())
    assert stepper.replay(batch, 0) is None


def test_run_that_diverges_stops_and_names_where(tmp_path: Path) -> None:
    config = tiny(
        "optim.name=sgd", "optim.lr=1e37", "optim.clip_norm=null", "optim.warmup_epochs=0"
    )
    with pytest.raises(TrainingError, match=r"(not finite)") as caught:
        train(config, tmp_path / "run", quiet=True)
    message = str(caught.value)
    assert "blocks.0" in message or "patch_embed" in message or "head" in message
    assert caught.value.exit_code == 4
    run = RunFolder(tmp_path / "run")
    assert run.status()["state"] == "failed"
    assert run.status()["message"] == message
    assert run.summary() == {}


def train_with_small_files(config: Config, out: Path, limit: int) -> None:
    """Body of a child process whose files cannot grow past `limit` bytes, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        train(config, out, resume=True, quiet=True)
    except SaccadeError as error:
        (out.parent / "message").write_text(str(error))
        sys.exit(error.exit_code)


def test_full_disk_keeps_the_saved_checkpoints(
    finished: Path, tmp_path: Path, start: Start
) -> None:
    out = tmp_path / "run"
    stopped_early(out)
    before = [c.step for c in RunFolder(out).checkpoints()]
    largest = max(f.stat().st_size for f in RunFolder(out).checkpoints()[-1].path.iterdir())
    process = start(train_with_small_files, tiny(), out, largest - 1000)
    process.join(PATIENCE_S)
    assert process.exitcode == 4
    message = (tmp_path / "message").read_text()
    assert "cannot write to" in message
    assert "go on with --resume" in message
    assert [c.step for c in RunFolder(out).checkpoints()] == before
    assert [c.fault() for c in RunFolder(out).checkpoints()] == [None] * len(before)
    assert not list((out / "checkpoints").glob(".writing-*"))
    train(tiny(), out, resume=True, quiet=True)
    assert final_state(out) == final_state(finished)


def test_a_result_that_cannot_be_written_is_not_lost(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"

    def get_in_the_way(row: Mapping[str, Any]) -> None:
        (out / "summary.json").mkdir(exist_ok=True)

    with pytest.raises(TrainingError, match=r"cannot write to .*go on with --resume"):
        train(tiny(), out, quiet=True, on_epoch=get_in_the_way)
    assert RunFolder(out).status()["state"] == "failed"
    assert not list(out.glob(".summary.json*"))
    (out / "summary.json").rmdir()
    summary = train(tiny(), out, resume=True, quiet=True)
    assert summary["test_accuracy"] == RunFolder(finished).summary()["test_accuracy"]
    assert RunFolder(out).status()["state"] == "finished"


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (Path("/proc/nowhere/run"), tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match=r"--out '.*run'.*(cannot write|not an empty)"):
            train(tiny(), out, quiet=True)


def test_missing_data_is_a_data_error_and_leaves_no_folder(tmp_path: Path) -> None:
    config = tiny("data.name=folder", f"data.root={tmp_path / 'absent'}", "data.num_train=null")
    with pytest.raises(DataError, match="absent"):
        train(config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("typo", ["model.attention=taylr", "model.overrides.dephth=2"])
def test_misspelt_model_leaves_no_folder(typo: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        train(tiny(typo), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_missing_tracker_says_what_to_install(tmp_path: Path) -> None:
    missing = [n for n in ("tensorboard", "trackio") if not _installed(n)]
    if not missing:
        pytest.skip("both trackers are installed")
    with pytest.raises(ConfigError, match=r"pip install 'saccade\[track\]'"):
        train(tiny(f"run.trackers=[{missing[0]}]"), tmp_path / "run", quiet=True)


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def test_batch_that_cannot_be_split_evenly_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a multiple of accumulation=5"):
        tiny("train.accumulation=5")


def with_little_memory(
    told: Path, act: Callable[..., object], *arguments: object, mib: int = 256
) -> None:
    """Body of a child process that acts with a limit on the additional memory that it may use.

    Freed blocks go back to the system at once, as they do on a GPU: a fragmented heap would count
    against the limit.
    """
    m_mmap_threshold = -3
    ctypes.CDLL(None).mallopt(m_mmap_threshold, 1 << 16)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + mib * 2**20,) * 2)
    try:
        act(*arguments)
    except SaccadeError as error:
        told.write_text(str(error))
        sys.exit(error.exit_code)


LARGE = (
    "model.overrides={embed_dim: 256, depth: 6, num_heads: 8, patch_size: 1}",
    "data.num_train=null",
    "train.ema_decay=null",
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (ImportError("libx.so: failed to map segment from shared object"), True),
        (ImportError("libx.so: cannot open shared object file: No such file"), False),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (ValueError("can't allocate memory"), False),
        (SystemError("error return without exception set"), True),
        (SystemError("<built-in function f> returned NULL without setting an exception"), True),
        (SystemError("bad argument to internal function"), False),
    ],
    ids=repr,
)
def test_errors_of_too_little_memory_are_known(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


@pytest.mark.parametrize("act", [train, dry_run])
def test_out_of_memory_says_what_fits(
    tmp_path: Path, start: Start, act: Callable[..., object]
) -> None:
    config = tiny(*LARGE, "data.val_fraction=0.1", "train.batch_size=512")
    process = start(with_little_memory, tmp_path / "message", act, config, tmp_path / "run")
    process.join(PATIENCE_S)
    assert process.exitcode == 4
    message = (tmp_path / "message").read_text()
    assert "512 images at once do not fit" in message
    assert "train.accumulation=" in message
    fits = int(message.split(" do: use")[0].split()[-1])
    assert 1 <= fits < 512
    assert f"train.accumulation={512 // fits} " in message


def test_out_of_memory_in_evaluation_names_its_own_batch_size(tmp_path: Path, start: Start) -> None:
    """During training, and of a trained run."""
    short = ("data.num_train=650", "data.val_fraction=0.98", "train.batch_size=8", "train.epochs=1")
    config = tiny(*LARGE, *short, "model.overrides.depth=2", "train.eval_batch_size=600")
    out, message = tmp_path / "run", tmp_path / "message"
    act_with_less = partial(with_little_memory, mib=128)
    process = start(act_with_less, message, train, config, out)
    process.join(PATIENCE_S)
    assert process.exitcode == 4
    expected = r"600 images at once do not fit on cpu in evaluation, (\d+) do: use {}=\1"
    assert re.search(expected.format("train.eval_batch_size"), message.read_text())
    assert RunFolder(out).status()["message"] == message.read_text()
    train(with_overrides(config, ["train.eval_batch_size=50"]), out, resume=True, quiet=True)
    measure = partial(evaluate_run, out, split="val", batch_size=600)
    process = start(act_with_less, message, measure)
    process.join(PATIENCE_S)
    assert process.exitcode == 4
    assert re.search(expected.format("--batch-size"), message.read_text())


def test_non_finite_outputs_at_the_end_are_a_failure(tmp_path: Path) -> None:
    """The only step is finite, but the outputs of the updated model are not."""
    wild = ["optim.lr=1e30", "optim.clip_norm=null", "train.epochs=1", "train.batch_size=180"]
    config = tiny(*wild, "train.ema_decay=null", "optim.warmup_epochs=0")
    for number, more in enumerate(([], ["run.test=false"], ["data.val_fraction=0"])):
        run = RunFolder(tmp_path / str(number))
        with pytest.raises(TrainingError, match=r"outputs are not finite, first in the \w+ of \w+"):
            train(with_overrides(config, more), run.path, quiet=True)
        assert run.status()["state"] == "failed"
        assert not run.summary()
        assert all(row["val_loss"] is None for row in run.metrics("epoch"))


def test_an_unexpected_exception_is_recorded_as_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_trainer: Trainer) -> None:
        raise IndexError("Target 7 is out of bounds")

    monkeypatch.setattr(Trainer, "train_epoch", fail)
    with pytest.raises(IndexError):
        train(tiny(), tmp_path / "run", quiet=True)
    status = RunFolder(tmp_path / "run").status()
    assert (status["state"], status["message"]) == (
        "failed",
        "IndexError: Target 7 is out of bounds",
    )


def test_a_bad_image_in_the_final_test_can_be_skipped_on_resume(tmp_path: Path) -> None:
    root, out = tmp_path / "images", tmp_path / "run"
    for split in ("train", "test"):
        good_folder(root / split)
    truncate(root / "test" / "dog" / "0.png")
    options = ["data.name=folder", f"data.root={root}", "data.image_size=16", "data.num_train=null"]
    config = tiny(*options, "data.num_test=null", "train.batch_size=4", "train.epochs=1")
    with pytest.raises(DataError, match=r"bad image .*0\.png"):
        train(config, out, quiet=True)
    patient = with_overrides(config, ["data.on_bad_image=skip", "data.max_bad_images=3"])
    assert 0 <= train(patient, out, resume=True, quiet=True)["test_accuracy"] <= 1
