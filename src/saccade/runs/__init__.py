"""The run folder: its files, the manifest of a finished run, checkpoints and predictions."""

from __future__ import annotations

from saccade.runs.checkpoints import Checkpoint
from saccade.runs.folder import MENDABLE, NO_MANIFEST, PREDICTIONS, RunFolder, find_runs
from saccade.runs.manifest import SPLIT
from saccade.runs.overlap import TOGETHER, trained_together
from saccade.runs.predictions import Predictions, read_predictions

__all__ = [
    "MENDABLE",
    "NO_MANIFEST",
    "PREDICTIONS",
    "SPLIT",
    "TOGETHER",
    "Checkpoint",
    "Predictions",
    "RunFolder",
    "find_runs",
    "read_predictions",
    "trained_together",
]
