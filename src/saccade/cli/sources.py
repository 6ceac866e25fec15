"""The model and the images that a command line names: opened, with warnings about damage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saccade.cli.terminal import tell
from saccade.errors import ConfigError, DataError

if TYPE_CHECKING:
    from saccade.runs import RunFolder

__all__ = [
    "check_onnx_use",
    "choose_pretrained",
    "exit_if_any",
    "find_each",
    "is_onnx",
    "is_pretrained_name",
    "open_run",
    "open_run_or_model",
    "require_images",
    "split_words",
]


def split_words(
    words: list[str], pretrained: str | None, *, lone_folder: bool = True
) -> tuple[Path, list[str], bool]:
    """The model's path, the words that name images, and whether the model is a pretrained one.

    With --pretrained every word names images. Without it the first word is the model, unless it is
    an image file, `-`, a URL, or with `lone_folder` a lone folder without a model: then the default
    pretrained model is used.
    """
    if pretrained is not None:
        return choose_pretrained(pretrained), words, True
    first, *others = words
    if _names_images(first, alone=lone_folder and not others):
        return choose_pretrained(None), words, True
    if is_pretrained_name(Path(first)):
        return choose_pretrained(first), others, True
    return Path(first), others, False


def choose_pretrained(name: str | None) -> Path:
    """The folder of a pretrained model; without a name, the default one, which is announced."""
    from saccade.models.pretrained import default_pretrained, pretrained_folder

    if name is None:
        name = default_pretrained()
        tell(f"no run is named: using the pretrained model {name}")
    return pretrained_folder(name)


def _names_images(word: str, *, alone: bool) -> bool:
    from saccade.data.images import IMAGE_SUFFIXES

    if word == "-" or "://" in word:
        return True
    path = Path(word)
    if path.is_file():
        return not is_onnx(path)
    if not path.exists() and path.suffix.lower() in IMAGE_SUFFIXES:
        return True
    is_model = any((path / name).exists() for name in ("config.yaml", "config.json"))
    return alone and path.is_dir() and not is_model


def require_images(words: list[str]) -> list[str]:
    """The words, of which there must be one at least."""
    if not words:
        raise ConfigError("IMAGES is needed: files, folders, or - for one image from stdin")
    return words


def is_onnx(path: Path) -> bool:
    """True if a path is meant as an ONNX file and not as a folder."""
    return path.suffix.lower() == ".onnx" and not path.is_dir()


def check_onnx_use(weights: str | None) -> None:
    """Raise if ONNX files cannot be run here, or if weights are chosen; a file has one set."""
    from saccade.export.options import require_packages

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
            tell(f"{str(path)!r}: config.json has no hash, so the model cannot be checked")
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
        tell(f"{str(path)!r} is damaged: {fault}")
    if run.is_finished() and not run.has_manifest():
        tell(f"{str(path)!r}: {NO_MANIFEST}")
    newest, faults = run.newest_intact()
    if newest is None:
        return run  # commands that need weights raise an error
    for fault in faults:
        tell(f"passed over a damaged checkpoint: {fault}")
    if not run.is_finished():
        _tell_unfinished(run, newest.step)
    elif newest.step != (last := run.status().get("step", newest.step)):
        tell(f"its checkpoint of step {newest.step} is used, not that of its last step {last}")
    return run


def _tell_unfinished(run: RunFolder, step: int) -> None:
    status, epochs = run.status(), run.config().train.epochs
    state, done = status.get("state", "without a status.json"), status.get("epoch", 0)
    state = "running, or killed" if state == "running" else state
    tell(
        f"{str(run.path)!r} is not finished ({state}; {done} of {epochs} epochs done): its "
        f"checkpoint of step {step} is used"
    )


def find_each(
    find: Callable[[list[str]], list[str]], words: Iterable[str]
) -> tuple[list[str], list[DataError]]:
    """The images that the words name, and one error for each word that names none."""
    names: list[str] = []
    faults: list[DataError] = []
    for word in words:
        try:
            names += find([word])
        except DataError as fault:
            faults.append(fault)
    return names, faults


def exit_if_any(faults: Sequence[DataError]) -> None:
    """Print each distinct error once and exit with code 3; return if there are no errors."""
    for line in dict.fromkeys(map(str, faults)):
        tell(f"{line}")
    if faults:
        raise typer.Exit(DataError.exit_code)
