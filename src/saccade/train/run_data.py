"""The data of a run, held to what the run was started on and to what its settings need."""

from __future__ import annotations

from collections.abc import Sequence

from saccade.config import Config, DataConfig
from saccade.data import DatasetInfo, Splits, load_splits
from saccade.errors import ConfigError, DataError
from saccade.runs import RunFolder
from saccade.train.build import read_data_description

__all__ = ["check_same_data", "load_run_data", "load_training_data"]

MOST_NAMES = 3
"""Classes that an error names, of as many as differ."""


def load_training_data(config: Config, run: RunFolder) -> Splits:
    """The splits to train on, from the first step or to go on.

    Raises:
        ConfigError: A setting watches validation and there is none.
        DataError: The data cannot be loaded, or is other data than the run was started on.
    """
    splits = load_splits(config.data)
    check_same_data(run, splits.info)
    watching = config.watches_validation()
    if watching and not len(splits.val):
        raise ConfigError(
            f"{watching} watches validation: data.val_fraction is 0 and "
            f"{str(config.data.root)!r} has no val/ beside a test/"
        )
    return splits


def load_run_data(run: RunFolder, data: DataConfig | None = None) -> Splits:
    """The splits of a run's own data, or of other data that its model can be shown.

    Raises:
        DataError: The data cannot be loaded, or has other classes or images than the run's.
    """
    splits = load_splits(data or run.config().data)
    check_same_data(run, splits.info)
    return splits


def check_same_data(run: RunFolder, found: DatasetInfo) -> None:
    """Refuse data whose labels or images mean something else than those a run was trained on.

    Raises:
        DataError: Names what differs from `dataset.json`.
    """
    if not run.dataset():
        return  # the run has not started
    known = read_data_description(run)
    if faults := _differences(known, found):
        raise DataError(
            f"the data is not what {str(run.path)!r} was trained on: {', '.join(faults)}"
        )


def _differences(known: DatasetInfo, found: DatasetInfo) -> list[str]:
    faults = _class_differences(known.class_names, found.class_names)
    was, now = (" x ".join(map(str, (info.channels, *info.image_size))) for info in (known, found))
    return [*faults, f"images of {now} instead of {was}"] if now != was else faults


def _class_differences(known: Sequence[str], found: Sequence[str]) -> list[str]:
    """What sets two lists of classes apart: their number, names or order."""
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
    more = len(names) - MOST_NAMES
    shown = ", ".join(map(repr, names[:MOST_NAMES]))
    return f"{shown} and {more} more" if more > 0 else shown
