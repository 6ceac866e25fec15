"""What makes a comparison unfair: settings refused before it starts, runs not believed after.

Only the attention may differ. Whatever lets a run's length, its batches or its learning rate depend
on how well it goes gives each attention a budget of its own, so it is refused however useful it is
elsewhere. Finished runs are held to the shared configuration again before they are believed: a
folder can be edited, and a run put there from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from saccade.config import Config, differences
from saccade.errors import ConfigError, UnknownNameError
from saccade.layers import ATTENTIONS
from saccade.runs import RunFolder

if TYPE_CHECKING:
    from saccade.data import DatasetInfo
    from saccade.study.comparison.plan import Job, Plan

__all__ = [
    "UnfairError",
    "check_models",
    "check_overrides",
    "check_run",
    "check_settings",
    "check_together",
]

DECIDED = {
    "model.attention": "--attention",
    "run.seed": "--seeds",
    "data.folds": "--folds",
    "data.fold": "--folds",
}
"""Keys that the comparison sets itself, and the option they are set by."""

LOCAL = frozenset({"data.root", "data.workers"})
"""Keys that may change when a comparison goes on: they say where and how images are read."""


class UnfairError(ConfigError):
    """A setting or a run that would give one attention another chance than the others."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"unfair: {reason}")


def check_overrides(overrides: Iterable[str]) -> None:
    """Refuse overrides that belong to one attention, or that the comparison decides."""
    for override in overrides:
        key, _, value = (part.strip() for part in override.partition("="))
        if key in DECIDED:
            raise ConfigError(f"{override}: {DECIDED[key]} decides {key} in a comparison")
        owner = key.replace(":", ".").partition(".")[0]
        if owner in ATTENTIONS:
            raise UnfairError(f"{override} is for {owner} alone; an override holds for all")
        if key == "train.batch_size" and value[:1].isalpha():
            raise UnfairError(
                f"{override}: a batch size that adapts would give every attention another number "
                "of steps; give one number of images"
            )


def check_settings(base: Config, attentions: Sequence[str]) -> None:
    """Refuse settings under which the attentions would not get the same."""
    if base.train.early_stopping_patience is not None:
        raise UnfairError(
            f"train.early_stopping_patience={base.train.early_stopping_patience} would give each "
            "attention another number of epochs; set it to null"
        )
    if base.optim.schedule == "plateau":
        raise UnfairError(
            "optim.schedule='plateau' cuts the learning rate when a run stands still, so each "
            "attention would get another schedule; use cosine, one_cycle, step or constant"
        )
    if not base.run.test:
        raise ConfigError("run.test=false: a comparison is made on the test images")
    options = {option for name in attentions for option in ATTENTIONS[name].options}
    for option in base.model.attention_options:
        if option not in options:
            raise UnknownNameError("option of the compared attentions", option, options)


def check_models(plan: Plan, info: DatasetInfo) -> None:
    """Build every variant, without memory, so that what it refuses is said before any trains.

    Attention dropout is the usual case: only mechanisms that form their weights can drop any.
    """
    import torch

    from saccade.train import build_model

    for job in plan.jobs()[: len(plan.attentions)]:
        try:
            with torch.device("meta"):
                network = build_model(plan.config(job), info)
        except UnknownNameError:
            raise
        except ConfigError as error:
            if "no weights to drop" not in str(error):
                raise ConfigError(f"{job.attention}: {error}") from None
            raise UnfairError(
                "attention dropout on one side only: the others would be trained with it, but "
                f"{job.attention} has no weights to drop; set model.overrides.attn_drop_rate=0"
            ) from None
        del network


def check_run(run: RunFolder, plan: Plan, job: Job) -> None:
    """Refuse a run that was not trained as planned."""
    if changes := differences(plan.config(job), run.config(), ignored=LOCAL):
        raise UnfairError(
            f"{job.name} was not run with the comparison's configuration: {', '.join(changes)}; "
            f"delete {str(run.path)!r} to have it run again"
        )
    if summary := run.summary():
        _check_summary(run, summary, plan, job)


def check_together(summaries: Mapping[Job, Mapping[str, Any]]) -> None:
    """Refuse runs of the same seed and fold that took another number of steps or test images."""
    first: dict[tuple[int, int | None], Job] = {}
    for job, summary in summaries.items():
        other = first.setdefault((job.seed, job.fold), job)
        for key in ("steps", "test_count"):
            if summary[key] != summaries[other][key]:
                raise UnfairError(
                    f"{job.name} has {key}={summary[key]}, {other.name} has "
                    f"{key}={summaries[other][key]}: not the same budget"
                )


def _check_summary(run: RunFolder, summary: Mapping[str, Any], plan: Plan, job: Job) -> None:
    """Hold what a finished run says it did to what it was to do."""
    expected = {"epochs": plan.base.train.epochs, "attention": job.attention, "seed": job.seed}
    found = {key: summary.get(key) for key in expected}
    rows = len(run.metrics("epoch"))
    if found != expected or rows != expected["epochs"]:
        raise UnfairError(
            f"{job.name} says it did {found} in {rows} epochs, and was to do {expected}; delete "
            f"{str(run.path)!r} to have it run again"
        )
