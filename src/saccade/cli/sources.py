"""Tell the model from the images on the command line of `predict` and `explain`."""

from __future__ import annotations

from pathlib import Path

from saccade.cli.runs import is_onnx, is_pretrained_name
from saccade.cli.streams import say
from saccade.errors import ConfigError

__all__ = ["PRETRAINED_HELP", "choose_pretrained", "require_images", "split_words"]

PRETRAINED_HELP = "Use the pretrained model of this name: see `saccade list weights`."


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
        say(f"saccade: no run is named: using the pretrained model {name}", err=True)
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
