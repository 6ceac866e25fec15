"""The fair comparison: one recipe, several attentions, everything else the same."""

from saccade.study.comparison.folder import ComparisonFolder
from saccade.study.comparison.plan import Job, Plan, make_plan
from saccade.study.comparison.start import compare

__all__ = ["ComparisonFolder", "Job", "Plan", "compare", "make_plan"]
