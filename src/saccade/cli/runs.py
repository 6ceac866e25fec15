"""Open the run that a command uses, and print warnings about damage or unfinished training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from saccade.cli.streams import say
from saccade.errors import ConfigError

if TYPE_CHECKING:
    from saccade.runs import RunFolder

__all__ = ["check_onnx_use", "is_onnx", "is_pretrained_name", "open_run", "open_run_or_model"]


def is_onnx(path: Path) -> bool:
    """True if a path is meant as an ONNX file and not as a folder."""
    return path.suffix.lower() == ".onnx" and not path.is_dir()


def check_onnx_use(weights: str | None) -> None:
    """Raise if ONNX files cannot be run here, or if weights are chosen; a file has one set."""
    from saccade.export.packages import require_packages

    require_packages("onnx", "onnxruntime")
    if weights is not None:
        raise ConfigError(f"weights must be unset for an ONNX file, got {weights!r}")


def is_pretrained_name(path: Path) -> bool:
    """True if nothing is at a path and it is the whole name of pretrained weights."""
    from saccade.models.pretrained import list_pretrained

    return not path.exists() and str(path) in list_pretrained()


def open_run_or_model(path: Path) -> RunFolder | Path:
    """Open a run folder as `open_run` does, or return the path of a `save_pretrained` folder.

    The name of pretrained weights stands for their folder.
    """
    if is_pretrained_name(path):
        from saccade.models.pretrained import pretrained_folder

        path = pretrained_folder(str(path))
    if (path / "config.json").is_file() and not (path / "config.yaml").exists():
        from saccade.models.hub import has_hash

        if not has_hash(path):
            _say(f"{str(path)!r}: config.json has no hash, so the model cannot be checked")
        return path
    return open_run(path)


READ_ALWAYS = {"config.yaml", "dataset.json", "manifest.json"}
"""Files that every command reads; reading a damaged one is an error, so no warning is printed."""


def open_run(path: Path) -> RunFolder:
    """Open a run folder; warn on stderr about damage and name the checkpoint that is used.

    Reading a damaged file raises an error later.
    """
    from saccade.runs import NO_MANIFEST, RunFolder

    run = RunFolder.open(path)
    for name, fault in run.damage().items():
        if name in READ_ALWAYS:
            continue
        _say(f"{str(path)!r} is damaged: {fault}")
    if run.is_finished() and not run.has_manifest():
        _say(f"{str(path)!r}: {NO_MANIFEST}")
    newest, faults = run.newest_intact()
    if newest is None:
        return run  # commands that need weights raise an error
    for fault in faults:
        _say(f"passed over a damaged checkpoint: {fault}")
    if not run.is_finished():
        _say_unfinished(run, newest.step)
    elif newest.step != (last := run.status().get("step", newest.step)):
        _say(f"its checkpoint of step {newest.step} is used, not that of its last step {last}")
    return run


def _say_unfinished(run: RunFolder, step: int) -> None:
    status, epochs = run.status(), run.config().train.epochs
    state, done = status.get("state", "without a status.json"), status.get("epoch", 0)
    state = "running, or killed" if state == "running" else state
    _say(
        f"{str(run.path)!r} is not finished ({state}; {done} of {epochs} epochs done): its "
        f"checkpoint of step {step} is used"
    )


def _say(line: str) -> None:
    say(f"saccade: {line}", err=True)
