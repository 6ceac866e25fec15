"""Hyperparameter search: many trials of one recipe, compared on validation images."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.study.tuning.folder import Settings, TuningFolder
    from saccade.study.tuning.start import join_search, start_search, tune
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "folder": ("Settings", "TuningFolder"),
            "start": ("join_search", "start_search", "tune"),
        },
    )

__all__ = ["Settings", "TuningFolder", "join_search", "start_search", "tune"]
