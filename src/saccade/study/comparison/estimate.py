"""The plan of a comparison with an estimate of its training time; writes no files."""

from __future__ import annotations

from typing import Any

from saccade.data import load_splits
from saccade.study.comparison.fairness import check_models
from saccade.study.comparison.measures import training_speed
from saccade.study.comparison.plan import Job, Plan
from saccade.study.comparison.tuned import describe_candidates
from saccade.study.tuning.space import check_space
from saccade.train.distributed import connect
from saccade.train.torch_flags import check_machine, set_up_machine

__all__ = ["estimate"]


def estimate(plan: Plan) -> dict[str, Any]:
    """Count trials and runs, and measure a few training steps of each attention.

    Args:
        plan: Plan from `make_plan`.

    Returns:
        JSON values. `seconds` is the training time if runs are made one at a time and no trial is
        pruned; None if some model does not fit in memory.

    Raises:
        ConfigError: A model or a search space is invalid.
        DataError: The data cannot be read.
    """
    first = plan.config(plan.jobs()[0])
    check_machine(first)
    ranks = connect(first.train.device)
    splits = load_splits(first.data)
    check_models(plan, splits.info)
    for config in plan.searches.values():
        check_space(config, splits)
    runs = len(plan.seeds) * (plan.folds or 1)
    rows: list[dict[str, Any]] = []
    for name in plan.attentions:
        config = plan.config(Job(name, plan.seeds[0], None if plan.folds is None else 0))
        with set_up_machine(config):
            speed = training_speed(config, splits, ranks)
        tuned_runs = runs if plan.trials else 0
        one = config.train.epochs * len(splits.train) / speed if speed else None
        count = (plan.trials or 0) + runs + tuned_runs
        search = plan.searches.get(name)
        rows.append(
            {
                "attention": name,
                "trials": plan.trials or 0,
                "runs": runs,
                "tuned_runs": tuned_runs,
                "img_per_s": speed,
                "seconds_per_run": None if one is None else round(one, 2),
                "seconds": None if one is None else round(count * one, 1),
                "space": {k: describe_candidates(search, k) for k in search.search}
                if search
                else {},
            }
        )
    times = [row["seconds"] for row in rows]
    return {
        "trials": sum(row["trials"] for row in rows),
        "runs": sum(row["runs"] + row["tuned_runs"] for row in rows),
        "seconds": None if None in times else round(sum(times), 1),
        "attentions": rows,
    }
