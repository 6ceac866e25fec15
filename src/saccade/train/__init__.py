"""One run: from a configuration to a run folder."""

from saccade.train.build import build_model, load_model
from saccade.train.evaluation import Evaluation, evaluate
from saccade.train.start import train

__all__ = ["Evaluation", "build_model", "evaluate", "load_model", "train"]
