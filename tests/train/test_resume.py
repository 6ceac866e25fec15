"""Kills, preemption and damage: a resumed run ends like an uninterrupted one."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from saccade.config import DataConfig, dump_config
from saccade.data import Splits, load_splits
from saccade.errors import ConfigError, Preempted
from saccade.runs import RunFolder
from saccade.train import run_data, train
from saccade.train.signals import Interrupted
from tests.train.conftest import Launch
from tests.train.moments import dying_after, dying_at_sync, signal_at
from tests.train.tiny_runs import final_state, tiny, train_and_exit, unfinish


def newest_step(out: Path) -> int:
    checkpoints = RunFolder(out).checkpoints()
    return checkpoints[-1].step if checkpoints else -1


def wait_for_progress(out: Path, process: subprocess.Popen[bytes], step: int) -> None:
    """Wait until there is a checkpoint after `step`, or the process has ended."""
    deadline = time.monotonic() + 60
    while newest_step(out) <= step and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.001)


def wait_for_saving(out: Path) -> bool:
    """Wait until a checkpoint is being written, for at most a second."""
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        if any((out / "checkpoints").glob(".writing-*/*.safetensors")):
            return True
    return False


def assert_all_intact(out: Path) -> None:
    checkpoints = RunFolder(out).checkpoints()
    assert checkpoints
    assert [c.fault() for c in checkpoints] == [None] * len(checkpoints)


def without_times(out: Path) -> list[dict[str, object]]:
    timed = {"seconds", "img_per_s"}
    return [{k: v for k, v in row.items() if k not in timed} for row in RunFolder(out).metrics()]


def test_killed_runs_end_bit_equal(finished: Path, launch: Launch, tmp_path: Path) -> None:
    out = tmp_path / "run"
    while_saving = 0
    for turn in range(1, 9):
        death = partial(dying_at_sync, 26 + turn) if turn % 2 else partial(dying_after, turn)
        (process,) = launch(tiny(), out, body=partial(death, train_and_exit))
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert_all_intact(out)
        while_saving += any((out / "checkpoints").glob(".writing-*"))
    assert while_saving >= 2
    (process,) = launch(tiny(), out)
    process.join()
    assert process.exitcode == 0
    assert final_state(out) == final_state(finished)
    assert without_times(out) == without_times(finished)
    assert not list((out / "checkpoints").glob(".*"))
    assert len(RunFolder(out).environment()["resumed"]) == 8


@pytest.mark.slow
def test_fifty_kills_of_fresh_processes_end_bit_equal(tmp_path: Path) -> None:
    config = tiny("train.epochs=60")
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(dump_config(config))
    whole, out, moments = tmp_path / "whole", tmp_path / "run", random.Random(1)
    train(config, whole, quiet=True)
    command = [sys.executable, "-m", "saccade", "train", str(recipe), "--resume", "--quiet"]
    kills = while_saving = 0
    for turn in range(50):
        process = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL)
        wait_for_progress(out, process, newest_step(out))
        if turn % 2:
            while_saving += wait_for_saving(out)
        else:
            time.sleep(moments.uniform(0, 0.1))
        process.kill()
        kills += process.wait() == -signal.SIGKILL
        assert_all_intact(out)
    assert kills == 50
    assert while_saving >= 10
    subprocess.run([*command, "--out", str(out)], check=True)
    assert final_state(out) == final_state(whole)
    assert without_times(out) == without_times(whole)


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [(signal.SIGTERM, Preempted, 75), (signal.SIGINT, Interrupted, 130)],
)
def test_signal_saves_and_resumes_bit_equal(
    finished: Path, tmp_path: Path, number: signal.Signals, kind: type, code: int
) -> None:
    out = tmp_path / "run"
    config = tiny("run.checkpoint_every_epochs=100", "run.checkpoint_every_steps=null")
    told = pytest.raises(kind, match="stopped at step 13 and saved; go on with --resume")
    with told as caught, signal_at(13, number):
        train(config, out, quiet=True)
    assert caught.value.exit_code == code
    assert signal.getsignal(number) is not None
    assert RunFolder(out).status()["state"] == "preempted"
    assert len(RunFolder(out).checkpoints()) == 1
    train(config, out, resume=True, quiet=True)
    assert RunFolder(out).status()["state"] == "finished"
    assert final_state(out) == final_state(finished)


def stopped_early(out: Path, *overrides: str) -> None:
    """Leave the run of `tiny` with some checkpoints, as a preemption would."""
    with pytest.raises(Preempted), signal_at(5, signal.SIGTERM):
        train(tiny(*overrides), out, quiet=True)
    assert len(RunFolder(out).checkpoints()) > 1


def test_a_run_with_muon_resumes_bit_equal(tmp_path: Path) -> None:
    whole, out, muon = tmp_path / "whole", tmp_path / "run", "optim.name=muon"
    train(tiny(muon), whole, quiet=True)
    stopped_early(out, muon)
    train(tiny(muon), out, resume=True, quiet=True)
    assert final_state(out) == final_state(whole)


@pytest.mark.parametrize("damage", ["truncate", "flip", "no manifest", "missing"])
def test_damaged_checkpoint_falls_back_to_the_one_before(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    out = tmp_path / "run"
    stopped_early(out)
    *_, before, last = RunFolder(out).checkpoints()
    victim = last.path / "model.safetensors"
    content = victim.read_bytes()
    if damage == "truncate":
        victim.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "no manifest":
        (last.path / "manifest.json").unlink()
    else:
        victim.unlink()
    assert last.fault() is not None
    assert RunFolder(out).newest_intact()[0] == before
    train(tiny(), out, resume=True)
    told = capsys.readouterr().err
    assert f"damaged checkpoint: {last.path.name}" in told
    assert f"resuming from {before.path.name}" in told
    assert final_state(out) == final_state(finished)


def test_resume_ignores_binary_garbage_at_the_end_of_the_metrics(
    finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    stopped_early(out)
    with (out / "metrics.jsonl").open("ab") as file:
        file.write(b"\x00\xff\xfe")
    train(tiny(), out, resume=True, quiet=True)
    assert final_state(out) == final_state(finished)
    assert without_times(out) == without_times(finished)


def test_without_an_intact_checkpoint_training_starts_again(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    stopped_early(out)
    for checkpoint in RunFolder(out).checkpoints():
        (checkpoint.path / "trainer.json").write_text("{")
    rows = (out / "metrics.jsonl").read_bytes()
    assert rows
    train(tiny(), out, resume=True)
    assert "starting again from the first step" in capsys.readouterr().err
    assert final_state(out) == final_state(finished)
    assert without_times(out) == without_times(finished)
    assert (out / "damaged-metrics.jsonl").read_bytes() == rows


@pytest.mark.parametrize("what", ["checkpoints", "manifest.json", "model.safetensors"])
def test_a_checkpoint_without_read_permission_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    out = tmp_path / "run"
    stopped_early(out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    real_open, real_iterdir = os.open, Path.iterdir

    def refuse(path: Path) -> None:
        if path.name == what:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    def opened(path: Any, *arguments: Any, **options: Any) -> int:
        refuse(Path(path))
        return real_open(path, *arguments, **options)

    def listed(path: Path) -> Any:
        refuse(path)
        return real_iterdir(path)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(Path, "iterdir", listed)
    with pytest.raises(ConfigError, match=rf"{what}' cannot be read: Permission denied"):
        train(tiny(), out, resume=True, quiet=True)
    monkeypatch.undo()
    after = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    after.pop(out / ".lock", None)
    before.pop(out / ".lock", None)
    assert after == before


@pytest.mark.parametrize("manifest", ['{"sha256": {}}', '{"sha256": []}', "5", "null"])
def test_a_manifest_without_hashes_is_damage(tmp_path: Path, manifest: str) -> None:
    stopped_early(tmp_path / "run")
    last = RunFolder(tmp_path / "run").checkpoints()[-1]
    (last.path / "manifest.json").write_text(manifest)
    assert last.fault() is not None


def test_finished_run_is_not_trained_again(finished: Path) -> None:
    before = final_state(finished)
    summary = train(tiny(), finished, resume=True, quiet=True)
    assert summary == RunFolder(finished).summary()
    assert final_state(finished) == before


def test_existing_run_is_refused_without_resume(finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"a run is there already; add --resume"):
        train(tiny(), finished, quiet=True)


def test_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match="not an empty folder"):
        train(tiny(), tmp_path, quiet=True)


def test_resume_with_another_configuration_is_refused(finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"optim.lr \(0.01 -> 0.02\)"):
        train(tiny("optim.lr=0.02"), finished, resume=True, quiet=True)


def test_second_process_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped_early(out)
    with RunFolder(out).locked(), pytest.raises(ConfigError, match="another process"):
        train(tiny(), out, resume=True, quiet=True)


def finished_but_for_the_summary(finished: Path, out: Path) -> RunFolder:
    """A run that was killed after its last checkpoint, before it wrote the result."""
    shutil.copytree(finished, out)
    unfinish(RunFolder(out))
    return RunFolder(out)


def test_resume_after_the_last_step_keeps_the_peak_memory(finished: Path, tmp_path: Path) -> None:
    run = finished_but_for_the_summary(finished, tmp_path / "run")
    summary = train(tiny(), run.path, resume=True, quiet=True)
    known = RunFolder(finished).summary()
    assert summary["peak_memory_mib"] == known["peak_memory_mib"] is not None
    assert {key for key in known if known[key] != summary[key]} <= {"seconds"}


@pytest.mark.parametrize("kept", [0, 3])
def test_lost_metrics_are_taken_from_the_checkpoint(
    finished: Path, tmp_path: Path, kept: int
) -> None:
    run = finished_but_for_the_summary(finished, tmp_path / "run")
    run.rewind_metrics(kept)
    train(tiny(), run.path, resume=True, quiet=True)
    assert without_times(run.path) == without_times(finished)
    assert run.metrics()[:-1] == RunFolder(finished).metrics()[:-1]


@pytest.mark.parametrize("kept", [0, 3])
def test_lost_metrics_do_not_stop_a_run(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: int
) -> None:
    """The checkpoint has no copy of the metrics, as those of an older saccade."""
    run = finished_but_for_the_summary(finished, tmp_path / "run")
    written = len(run.metrics()) - 1  # the `test` row comes after the last checkpoint
    last = run.checkpoints()[-1].path
    (last / "metrics.jsonl").unlink()
    manifest = json.loads((last / "manifest.json").read_text())
    del manifest["sha256"]["metrics.jsonl"]
    (last / "manifest.json").write_text(json.dumps(manifest))
    run.rewind_metrics(kept)
    summary = train(tiny(), run.path, resume=True)
    assert f"metrics.jsonl has only {kept} of {written} rows" in capsys.readouterr().err
    assert summary["test_accuracy"] == RunFolder(finished).summary()["test_accuracy"]
    assert summary["val_accuracy_last"] is None
    assert (summary["img_per_s"] is None) == (kept == 0)
    assert len(run.metrics()) == kept + 1


def test_lost_metrics_are_not_counted_again(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped_early(out)
    (out / "metrics.jsonl").unlink()
    with pytest.raises(Preempted), signal_at(9, signal.SIGTERM):
        train(tiny(), out, resume=True, quiet=True)
    train(tiny(), out, resume=True, quiet=True)
    whole = without_times(finished)
    assert without_times(out) == whole[-len(RunFolder(out).metrics()) :]
    assert final_state(out) == final_state(finished)


def test_metrics_are_synced_before_a_checkpoint_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, synced, sync = RunFolder.create(tmp_path / "run", tiny()), [], os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    run.append_metrics({"step": 1, "kind": "step"})
    with run.new_checkpoint(1):
        pass
    folder = run.path.resolve()
    assert folder / "metrics.jsonl" in synced
    assert synced.index(folder / "metrics.jsonl") < synced.index(folder / "checkpoints")


def test_a_run_continued_by_another_process_meanwhile_resumes_from_its_newest_checkpoint(
    finished: Path, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process locks the folder while this one loads its data, and is then killed."""
    out = tmp_path / "run"
    stopped_early(out)
    seen = RunFolder(out).checkpoints()

    def load_slowly(config: DataConfig, **options: bool) -> Splits:
        (other,) = launch(tiny(), out, body=partial(dying_after, 11, train_and_exit))
        other.join()
        assert other.exitcode == -signal.SIGKILL
        assert not set(seen) & set(RunFolder(out).checkpoints())
        return load_splits(config, **options)

    monkeypatch.setattr(run_data, "load_splits", load_slowly)
    train(tiny(), out, resume=True, quiet=True)
    assert not list((out / "checkpoints").glob("damaged-*"))
    assert final_state(out) == final_state(finished)
    assert without_times(out) == without_times(finished)


def test_a_folder_that_another_process_uses_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process has ended before this one starts training, and its files are kept."""
    out = tmp_path / "run"

    def load_slowly(config: DataConfig, **options: bool) -> Splits:
        monkeypatch.undo()
        stopped_early(out)
        return load_splits(config, **options)

    monkeypatch.setattr(run_data, "load_splits", load_slowly)
    with pytest.raises(ConfigError, match="a run is there already"):
        train(tiny(), out, quiet=True)
    assert_all_intact(out)


def test_a_folder_with_only_a_released_lock_is_free(tmp_path: Path) -> None:
    with RunFolder(tmp_path).locked():
        pass
    RunFolder(tmp_path).check_free()
