"""One run: from a configuration to a run folder."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.train.build import build_model, load_model
    from saccade.train.evaluation import Evaluation, evaluate
    from saccade.train.run import train
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "build": ("build_model", "load_model"),
            "evaluation": ("Evaluation", "evaluate"),
            "run": ("train",),
        },
    )

__all__ = ["Evaluation", "build_model", "evaluate", "load_model", "train"]
