"""Many runs: comparisons, and searches for settings."""

from saccade.study.comparison import compare, make_plan

__all__ = ["compare", "make_plan"]
