"""Studies of many runs: comparisons of attentions and hyperparameter searches."""

from typing import TYPE_CHECKING

from saccade.lazy import lazy_names

if TYPE_CHECKING:
    from saccade.study.comparison import compare, make_plan
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {"comparison": ("compare", "make_plan")},
    )

__all__ = ["compare", "make_plan"]
