"""Fair comparison: train one recipe with several attentions and change nothing else."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.study.comparison.folder import ComparisonFolder
    from saccade.study.comparison.plan import Job, Plan, make_plan
    from saccade.study.comparison.start import compare
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "folder": ("ComparisonFolder",),
            "plan": ("Job", "Plan", "make_plan"),
            "start": ("compare",),
        },
    )

__all__ = ["ComparisonFolder", "Job", "Plan", "compare", "make_plan"]
