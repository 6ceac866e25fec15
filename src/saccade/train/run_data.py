"""Load the data of a run, and check that it is the data that the run was started with.

A run keeps a record of its split in `split.json.gz`. The record determines the training, validation
and test images, even if images have been added to the data since. Older runs have no record. They
are split by position again, and refused if the images have changed since training.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from saccade.config import Config, DataConfig
from saccade.data import DatasetInfo, Split, Splits, load_splits
from saccade.data.recorded_folder import RecordedFolder, load_recorded_folder
from saccade.data.split_record import PARTS, SplitRecord, describe_part, hash_images, record_split
from saccade.errors import ConfigError, DataError
from saccade.io import escape_for_terminal
from saccade.runs import SPLIT, RunFolder
from saccade.train.build import read_data_description

__all__ = [
    "batch_note",
    "check_image",
    "check_same_data",
    "check_same_folder",
    "data_differences",
    "load_run_data",
    "load_training_data",
    "record_run_split",
]

_log = logging.getLogger(__name__)

MAX_NAMES = 3
"""Maximum number of classes or images that a message names."""

PART_WORDS = {"train": "training", "val": "validation", "test": "test"}
ELSEWHERE = {"root", "workers", "on_bad_image", "max_bad_images"}
"""Keys of `data` that change where and how images are read, but not which ones."""


def load_training_data(config: Config, run: RunFolder) -> Splits:
    """Load the splits for a new or resumed run.

    Raises:
        ConfigError: A setting watches validation, but there are no validation images.
        DataError: The data cannot be loaded, or is not the data that the run was started with.
    """
    splits = load_run_data(run, config.data) if run.dataset() else load_splits(config.data)
    watching = config.watches_validation()
    if watching and not len(splits.val):
        raise ConfigError(
            f"{watching} watches validation: data.val_fraction is 0 and "
            f"{str(config.data.root)!r} has no val/ beside a test/"
        )
    return splits


def batch_note(config: Config, splits: Splits) -> str | None:
    """A note if the training set is smaller than one batch; None otherwise."""
    size, count = config.train.batch_size, len(splits.train)
    if size <= count:
        return None
    return (
        f"train.batch_size={size} is more than the {count} training {splits.info.noun}s: an epoch "
        "is one step with all of them"
    )


def load_run_data(
    run: RunFolder,
    data: DataConfig | None = None,
    *,
    parts: Collection[str] = PARTS,
    other: bool = False,
    contents: bool = True,
) -> Splits:
    """Load the data of a run, or other data that its model can be evaluated on.

    Args:
        run: The run folder.
        data: The data to load, which may have moved; by default the data in the run's config.
        parts: The splits that will be used, in which no image may be missing or changed.
        other: Allow data other than the run's.
        contents: Compare the contents of the images, which reads all of them.

    Raises:
        DataError: The data cannot be loaded, has other classes or image sizes than the run's, or
            images of `parts` are missing or changed.
    """
    own = run.config().data
    data = data or own
    record = _read_record(run)
    is_own = _image_settings(own) == _image_settings(data)
    if record is None:
        return _load_unrecorded(run, data, may_differ=other and (own.root != data.root))
    if is_own and record.names:
        moved = other and own.root != data.root
        found = _load_recorded(run, data, record, parts, may_differ=moved, contents=contents)
        if found is not None:
            return found
    # The first runs on texts recorded no names.
    splits = load_splits(data, by_position=is_own and not record.names)
    check_same_data(run, splits.info)
    if not is_own or record.names:
        _check_unseen(run, record, splits, parts)
    elif contents:
        _check_unchanged(run, record, splits, parts)
    return splits


def record_run_split(run: RunFolder, splits: Splits) -> list[str]:
    """Write the record of a run's split unless there is one; return warnings for the user."""
    if _read_record(run) is not None:
        return []
    record = record_split(splits)
    run.write_split(record.encode())
    return _copy_warnings(record, splits.info.noun)


def check_image(run: RunFolder, part: str, place: int, split: Split) -> None:
    """Raise if an image has changed since the run was trained."""
    record, files = _read_record(run), split.files
    if record is None or files is None:
        return
    if hash_images([files.paths[place]]) != [record.parts[part].hashes[place]]:
        name = _named([files.names[place]])
        raise DataError(f"{part}:{place}, {name}, has changed since {str(run.path)!r} was trained")


def check_same_folder(run: RunFolder, data: DataConfig) -> None:
    """Raise if images were added to a folder, or removed from it, since a run began.

    Later runs of the same comparison would be trained and tested on other images.
    """
    record = _read_record(run)
    if record is None or not record.names:
        return
    found = load_recorded_folder(data, record.names, record.unused)
    gone = [name for names in found.gone.values() for name in names]
    kinds = {"new": found.new, "gone": gone}
    faults = [f"{len(names)} {kind} ({_named(names)})" for kind, names in kinds.items() if names]
    if faults:
        raise DataError(
            f"the {_noun(run)}s have changed since {str(run.path)!r} began: {', '.join(faults)}; "
            f"the remaining runs would use other {_noun(run)}s: restore the folder as it was"
        )


def _noun(run: RunFolder) -> str:
    """What an input of a run is, in the singular."""
    return read_data_description(run).noun


def _read_record(run: RunFolder) -> SplitRecord | None:
    content = run.split()
    return SplitRecord.decode(content, repr(str(run.path / SPLIT))) if content else None


def _image_settings(data: DataConfig) -> dict[str, object]:
    """The settings that determine the images and their split."""
    return data.model_dump(exclude=ELSEWHERE)


def _load_recorded(
    run: RunFolder,
    data: DataConfig,
    record: SplitRecord,
    parts: Collection[str],
    *,
    may_differ: bool,
    contents: bool,
) -> Splits | None:
    """The images of a folder, split by the record; None if the folder has other images."""
    known = read_data_description(run)
    side = data.image_size or known.image_size[0]
    size = known.image_size if known.is_sequence else (side, side)
    found = load_recorded_folder(data, record.names, record.unused)
    names = found.class_names
    here = replace(known, class_names=names, num_classes=len(names), image_size=size)
    changed = {part: _changed(found.parts[part], record, part) for part in parts if contents}
    same = sum(len(found.parts[part]) - len(changed.get(part, [])) for part in parts)
    if may_differ and not same:
        return None
    check_same_data(run, here)
    _check_complete(run, found, changed, record, parts)
    _log_other_changes(found, parts, known.noun)
    return Splits(found.parts["train"], found.parts["val"], found.parts["test"], known)


def _changed(split: Split, record: SplitRecord, part: str) -> list[str]:
    """The names of images whose content differs from the record."""
    if split.files is None:
        return []
    known = dict(zip(record.parts[part].names, record.parts[part].hashes, strict=True))
    names = [*split.files.names, *(item.name for item in split.left_out)]
    hashes = hash_images([*split.files.paths, *(item.path for item in split.left_out)])
    pairs = zip(names, hashes, strict=True)
    return [name for name, digest in pairs if known[name] != digest]


def _check_complete(
    run: RunFolder,
    found: RecordedFolder,
    changed: dict[str, list[str]],
    record: SplitRecord,
    parts: Iterable[str],
) -> None:
    """Raise if images of `parts` are missing or changed."""
    faults = []
    for part in parts:
        count, what = record.parts[part].count, f"{PART_WORDS[part]} {_noun(run)}s"
        for names, verb in ((found.gone[part], "gone"), (changed.get(part, []), "changed")):
            if names:
                faults.append(f"{len(names)} of {count} {what} {verb} ({_named(names)})")
    if faults:
        raise DataError(
            f"the {_noun(run)}s are not those that {str(run.path)!r} was trained with: "
            f"{', '.join(faults)}; restore them as they were, or train a new run"
        )


def _log_other_changes(found: RecordedFolder, parts: Collection[str], noun: str) -> None:
    """Warn of new images, and of missing images in splits that are not used."""
    if found.new:
        message = "%d %s(s) are new since training and are not used (%s)"
        _log.warning(message, len(found.new), noun, _named(found.new))
    for part, names in found.gone.items():
        if names and part not in parts:
            message = "%d %s %s(s) are gone since training (%s)"
            _log.warning(message, len(names), PART_WORDS[part], noun, _named(names))


def _check_unseen(
    run: RunFolder, record: SplitRecord, splits: Splits, parts: Iterable[str]
) -> None:
    """Raise if the run was trained on some of the images of other data."""
    for part in parts:
        seen = PARTS[: PARTS.index(part)]
        trained = {digest for other in seen for digest in record.parts[other].hashes if digest}
        files = getattr(splits, part).files
        if files is None or not trained or not record.names:
            continue
        noun, hashes = splits.info.noun, hash_images(files.paths)
        copies = [name for name, h in zip(files.names, hashes, strict=True) if h in trained]
        if copies:
            raise DataError(
                f"{len(copies)} of {len(hashes)} {PART_WORDS[part]} {noun}s were trained on by "
                f"{str(run.path)!r} ({_named(copies)}): use {noun}s that it has not seen"
            )


def _check_unchanged(
    run: RunFolder, record: SplitRecord, splits: Splits, parts: Iterable[str]
) -> None:
    """Raise if a data set without files has other images, or another split, than the run."""
    for part in parts:
        if describe_part(split := getattr(splits, part)) != record.parts[part]:
            was, now, noun = record.parts[part].count, len(split), splits.info.noun
            raise DataError(
                f"the {PART_WORDS[part]} {noun}s of {splits.info.name} are not those that "
                f"{str(run.path)!r} was trained with ({now} now, {was} then): the set has changed; "
                "restore it (on the hub by data.name=hf:NAME@REVISION), or train a new run"
            )


def _load_unrecorded(run: RunFolder, data: DataConfig, *, may_differ: bool) -> Splits:
    """The data of an older run without a record, split by position as it was then."""
    splits = load_splits(data, by_position=True) if run.dataset() else load_splits(data)
    check_same_data(run, splits.info)
    if not run.dataset() or _image_settings(data) != _image_settings(run.config().data):
        return splits
    known = read_data_description(run)
    was, now = ((*info.mean, *info.std) for info in (known, splits.info))
    if np.allclose(was, now, rtol=0, atol=1e-9) and _fits_predictions(run, splits.test):
        return splits
    message = (
        f"the images are not those that {str(run.path)!r} was trained on, and this older run has "
        "no record of its split, so the images that it was trained on are unknown"
    )
    if data.name == "folder" and not may_differ:
        raise DataError(f"{message}; restore the folder as it was, or train a new run")
    _log.warning("%s: the result may include images that it was trained on", message)
    return splits


def _fits_predictions(run: RunFolder, test: Split) -> bool:
    """True if the labels of a test split are those in a finished run's predictions."""
    target = run.predictions().get("target")
    if target is None:
        return True
    labels = np.concatenate([test.labels.numpy(), np.full(len(test.left_out), -1)])
    fits = len(target) in {len(test), len(labels)}  # old runs do not count what was left out
    return fits and bool(np.all((target == labels[: len(target)]) | (target < 0)))


def _copy_warnings(record: SplitRecord, noun: str) -> list[str]:
    """A warning if test images are copies of training or validation images."""
    trained = {digest for part in ("train", "val") for digest in record.parts[part].hashes}
    test = record.parts["test"]
    pairs = zip(test.names, test.hashes, strict=True) if test.names else ()
    copies = [name for name, digest in pairs if digest and digest in trained]
    if not copies:
        return []
    return [
        f"{len(copies)} of {test.count} test {noun}s are copies of training or validation {noun}s "
        f"({_named(copies)}): accuracy on them is inflated"
        + ("; `saccade data check` lists copies" if noun == "image" else "")
    ]


def _named(names: Sequence[str]) -> str:
    return escape_for_terminal(_some(names))


def check_same_data(run: RunFolder, found: DatasetInfo) -> None:
    """Raise if data has other classes or image sizes than the data that a run was trained on."""
    if not run.dataset():
        return  # the run has not started
    known = read_data_description(run)
    if faults := data_differences(known, found):
        raise DataError(
            f"the data is not what {str(run.path)!r} was trained on: {', '.join(faults)}"
        )


def data_differences(known: DatasetInfo, found: DatasetInfo) -> list[str]:
    """Differences between data and that of a model, in words: classes and image size."""
    faults = _class_differences(known.class_names, found.class_names)
    was, now = known.input_words, found.input_words
    if known.is_sequence == found.is_sequence:
        was = was.removeprefix("images of ").removeprefix("sequences of ")
    return (
        [*faults, f"{now} instead of {was}"] if found.input_words != known.input_words else faults
    )


def _class_differences(known: Sequence[str], found: Sequence[str]) -> list[str]:
    """Differences between two lists of classes, in words: number, names or order."""
    faults = []
    if len(found) != len(known):
        faults.append(f"{len(found)} classes instead of {len(known)}")
    if missing := [name for name in known if name not in found]:
        faults.append(f"no class {_some(missing)}")
    if new := [name for name in found if name not in known]:
        faults.append(f"a new class {_some(new)}")
    places = enumerate(zip(known, found, strict=False))
    moved = next((place for place, (was, now) in places if was != now), None)
    if not faults and moved is not None:
        faults.append(f"class {moved} is {found[moved]!r} instead of {known[moved]!r}")
    return faults


def _some(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES
    shown = ", ".join(map(repr, names[:MAX_NAMES]))
    return f"{shown} and {more} more" if more > 0 else shown
