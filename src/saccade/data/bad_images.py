"""Skip unreadable images up to a limit, and stop with an error beyond it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from saccade.config import DataConfig
from saccade.errors import DataError

__all__ = ["bad_image_limit", "leave_to_parent", "refuse_bad", "skip_bad_image", "tell_once"]

_log = logging.getLogger(__name__)
_logged: set[str] = set()
"""Messages logged by this process. A process can read the same data set many times."""
_logged_lock = threading.Lock()


def bad_image_limit(config: DataConfig) -> int:
    """Return the number of unreadable images of a split that may be skipped."""
    return config.max_bad_images if config.on_bad_image == "skip" else 0


def skip_bad_image(faults: Sequence[str], limit: int) -> None:
    """Log the newest fault, or raise if there are more faults than the limit (`refuse_bad`)."""
    refuse_bad(faults, limit)
    tell_once(faults[-1])


def tell_once(fault: str) -> None:
    """Log a skipped image once per process."""
    with _logged_lock:
        if fault not in _logged:
            _logged.add(fault)
            _log.warning("skipped %s", fault)


def leave_to_parent() -> None:
    """Do not log skipped images in this process; its parent process logs them.

    The parent reads them from the summaries of its workers' runs.
    """
    _log.setLevel(logging.ERROR)


def refuse_bad(faults: Sequence[str], limit: int) -> None:
    """Raise an error if there are more unreadable images than may be skipped.

    Args:
        faults: One message per unreadable image, the newest last.
        limit: Number of images that may be skipped.

    Raises:
        DataError: There are more faults than `limit`.
    """
    if len(faults) <= limit:
        return
    if limit == 0:
        raise DataError(
            f"{faults[-1]} (to skip it, set data.on_bad_image='skip' and data.max_bad_images to "
            "1 or more)"
        )
    raise DataError(f"{faults[-1]}; {len(faults)} bad images, data.max_bad_images={limit}")
