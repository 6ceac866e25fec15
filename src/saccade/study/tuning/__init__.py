"""Searching for settings: many trials of one recipe, judged by validation images."""

from saccade.study.tuning.folder import Settings, TuningFolder
from saccade.study.tuning.start import join_search, start_search, tune

__all__ = ["Settings", "TuningFolder", "join_search", "start_search", "tune"]
