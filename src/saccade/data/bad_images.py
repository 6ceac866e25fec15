"""How many unreadable images a run passes over, and what it says when there are more."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from saccade.config import DataConfig
from saccade.errors import DataError

__all__ = ["bad_image_limit", "pass_over", "refuse_bad"]

_log = logging.getLogger(__name__)


def bad_image_limit(config: DataConfig) -> int:
    """How many unreadable images of a split may be passed over."""
    return config.max_bad_images if config.on_bad_image == "skip" else 0


def pass_over(faults: Sequence[str], limit: int) -> None:
    """Log the newest fault, or stop where that is one too many (`refuse_bad`)."""
    refuse_bad(faults, limit)
    _log.warning("passed over %s", faults[-1])


def refuse_bad(faults: Sequence[str], limit: int) -> None:
    """Stop where more images cannot be read than may be passed over.

    Args:
        faults: What is wrong with each of them, the newest last.
        limit: How many may be passed over.

    Raises:
        DataError: There are more.
    """
    if len(faults) <= limit:
        return
    if limit == 0:
        raise DataError(
            f"{faults[-1]} (data.on_bad_image='skip', with a data.max_bad_images of 1 or more, "
            "would pass it over)"
        )
    raise DataError(f"{faults[-1]}; {len(faults)} bad images, data.max_bad_images={limit}")
